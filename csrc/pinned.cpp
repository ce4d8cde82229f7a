// Host memory that the card's DMA can see: what `pin_memory()` and `DataLoader(pin_memory=True)`
// ask for.
//
// Contract: at::HostAllocator. The driver's block is kept by one reference and lives as long as it.
#include <ATen/core/CachingHostAllocator.h>

#include "allocator.h"
#include "device.h"

namespace spyre {
namespace {

void drop_block(void* block) noexcept {
  if (interpreter_gone()) return;
  Gil gil;
  PendingError pending;
  release(static_cast<PyObject*>(block));
}

class PinnedAllocator final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device host(c10::DeviceType::CPU);
    if (bytes == 0) return {nullptr, nullptr, &drop_block, host};
    refuse_if_gone("pinned memory");
    Gil gil;
    Ref block = driver()(Method::pin, static_cast<uint64_t>(bytes));
    static PyObject* const name = PyUnicode_InternFromString("address");
    void* const address =
        reinterpret_cast<void*>(to_address(checked(attribute(block.get(), name))));
    return {address, block.take(), &drop_block, host};
  }

  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }

  void copy_data(void* target, const void* source, size_t bytes) const override {
    default_copy_data(target, source, bytes);
  }

  // Nothing to remember: an operation in flight holds a reference to the block it reads or writes.
  bool record_event(void*, void*, c10::Stream) override { return true; }

  // Nothing is cached: a block goes back with its last reference.
  void empty_cache() override {}
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}
};

}  // namespace

c10::Allocator& pinned_allocator() {
  static auto* const allocator = [] {
    auto* made = new PinnedAllocator();
    at::setHostAllocator(kCard, made);
    return made;
  }();
  return *allocator;
}

bool is_pinned(const void* pointer) {
  if (!pointer || !driver_or_null() || interpreter_gone()) return false;
  return ask("pinned memory", to_bool, Method::is_pinned,
             static_cast<uint64_t>(reinterpret_cast<uintptr_t>(pointer)));
}

}  // namespace spyre
