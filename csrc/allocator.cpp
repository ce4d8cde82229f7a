// Card memory, as c10 asks for it: see allocator.h.
#include "allocator.h"

#include <algorithm>
#include <deque>

#include "device.h"

namespace spyre {
namespace {

PyObject* address_name() {
  static PyObject* const name = PyUnicode_InternFromString("address");
  return name;
}

// --8<-- [start:allocator]
// What a DataPtr owns: the driver's allocation, and the driver that will take it back.
struct Owned {
  PyObject* allocation;
  const Driver* driver;
};

// Runs when PyTorch drops its last reference: on any thread, with any error pending, at any time.
void give_back(void* context) noexcept {
  if (interpreter_gone()) return;
  auto* owned = static_cast<Owned*>(context);
  Gil gil;
  PendingError pending;
  PyObject* arguments[] = {nullptr, owned->allocation};
  PyObject* free = owned->driver->bound(Method::free);
  if (PyObject* result = call(free, arguments + 1, 1)) {
    release(result);
  } else {
    PyErr_WriteUnraisable(free);
  }
  release(owned->allocation);
  delete owned;
}

c10::DataPtr take(c10::DeviceIndex index, size_t bytes) {
  const c10::Device device(kCard, index);
  if (bytes == 0) return {nullptr, nullptr, &give_back, device};
  refuse_if_gone("card memory");
  Gil gil;
  const Driver& from = driver();
  from.bound(Method::free);  // what cannot be given back must not be taken
  Ref allocation = from(Method::allocate, static_cast<uint64_t>(bytes), static_cast<int64_t>(index),
                        static_cast<int64_t>(current_stream(index)));
  const uint64_t address = to_address(checked(attribute(allocation.get(), address_name())));
  TORCH_CHECK(address != 0, "driver.allocate() gave address 0, which stands for no memory at all");
  return {reinterpret_cast<void*>(address), new Owned{allocation.take(), &from}, &give_back,
          device};
}
// --8<-- [end:allocator]

Ref find(const void* address) {
  return driver()(Method::find, static_cast<uint64_t>(reinterpret_cast<uintptr_t>(address)));
}

// --8<-- [start:statistics]
using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatArray;
using c10::CachingDeviceAllocator::DeviceStats;

constexpr std::pair<const char*, StatArray DeviceStats::*> kPooled[] = {
    {"allocation", &DeviceStats::allocation},
    {"segment", &DeviceStats::segment},
    {"active", &DeviceStats::active},
    {"inactive_split", &DeviceStats::inactive_split},
    {"allocated_bytes", &DeviceStats::allocated_bytes},
    {"reserved_bytes", &DeviceStats::reserved_bytes},
    {"active_bytes", &DeviceStats::active_bytes},
    {"inactive_split_bytes", &DeviceStats::inactive_split_bytes},
    {"requested_bytes", &DeviceStats::requested_bytes},
};
constexpr std::pair<const char*, Stat DeviceStats::*> kSingle[] = {
    {"oversize_allocations", &DeviceStats::oversize_allocations},
    {"oversize_segments", &DeviceStats::oversize_segments},
};
constexpr std::pair<const char*, int64_t DeviceStats::*> kCounts[] = {
    {"num_alloc_retries", &DeviceStats::num_alloc_retries},
    {"num_ooms", &DeviceStats::num_ooms},
    {"num_sync_all_streams", &DeviceStats::num_sync_all_streams},
    {"num_device_alloc", &DeviceStats::num_device_alloc},
    {"num_device_free", &DeviceStats::num_device_free},
    {"max_split_size", &DeviceStats::max_split_size},
};
constexpr std::pair<const char*, int64_t Stat::*> kStat[] = {
    {"current", &Stat::current},
    {"peak", &Stat::peak},
    {"allocated", &Stat::allocated},
    {"freed", &Stat::freed},
};
// --8<-- [end:statistics]

// A value of the driver's dict; none when it does not report that figure.
Ref item(const Ref& dict, const char* key) {
  TORCH_CHECK_TYPE(PyMapping_Check(dict.get()) && PyDict_Check(dict.get()),
                   "driver.statistics() must give a dict of dicts, not ",
                   Py_TYPE(dict.get())->tp_name);
  return Ref::borrow(PyDict_GetItemString(dict.get(), key));
}

void fill(Stat& stat, const Ref& dict) {
  for (const auto& [key, member] : kStat)
    if (Ref value = item(dict, key)) stat.*member = to_int(value);
}

DeviceStats to_stats(const Ref& dict) {
  DeviceStats stats;
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  for (const auto& [key, member] : kPooled)
    if (Ref value = item(dict, key)) fill((stats.*member)[kAll], value);
  for (const auto& [key, member] : kSingle)
    if (Ref value = item(dict, key)) fill(stats.*member, value);
  for (const auto& [key, member] : kCounts)
    if (Ref value = item(dict, key)) stats.*member = to_int(value);
  return stats;
}

std::pair<size_t, size_t> to_free_and_total(const Ref& pair) {
  Ref sequence = checked(PySequence_Tuple(pair.get()));
  TORCH_CHECK_VALUE(PyTuple_GET_SIZE(sequence.get()) == 2,
                    "driver.memory_info() must give (free, total) in bytes");
  return {to_address(Ref::borrow(PyTuple_GET_ITEM(sequence.get(), 0))),
          to_address(Ref::borrow(PyTuple_GET_ITEM(sequence.get(), 1)))};
}

// One for each card, and one (-1) for whichever is current: a storage keeps the allocator that made
// it, and torch asks that one for more, on any thread.
class CardAllocator final : public c10::DeviceAllocator {
 public:
  explicit CardAllocator(c10::DeviceIndex index) : index_(index) {}

  c10::DataPtr allocate(size_t bytes) override {
    return take(index_ < 0 ? current_device() : index_, bytes);
  }

  // The raw interface wants a context that is the data pointer itself; ours is an object. For the
  // same reason a storage cannot become copy-on-write: torch._lazy_clone() refuses it.
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }

  // c10 copies through an allocator only where context and data are one pointer (copy-on-write).
  void copy_data(void*, const void*, size_t) const override {
    TORCH_CHECK_NOT_IMPLEMENTED(false,
                                "card memory cannot be cloned by its allocator: copy tensors");
  }

  bool initialized() override {
    return driver_or_null() && !interpreter_gone() &&
           ask("the card's state", to_bool, Method::is_initialized);
  }
  void emptyCache(c10::MempoolId_t) override { ask("memory", nothing, Method::empty_cache); }
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    record_stream(data, stream);
  }
  DeviceStats getDeviceStats(c10::DeviceIndex index) override {
    return ask("memory statistics", to_stats, Method::statistics, card(index));
  }
  void resetAccumulatedStats(c10::DeviceIndex index) override {
    ask("memory statistics", nothing, Method::reset_accumulated, card(index));
  }
  void resetPeakStats(c10::DeviceIndex index) override {
    ask("memory statistics", nothing, Method::reset_peak, card(index));
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex index) override {
    return ask("memory information", to_free_and_total, Method::memory_info, card(index));
  }

 private:
  static int64_t card(c10::DeviceIndex index) { return resolve(index); }

  c10::DeviceIndex index_;
};

std::deque<CardAllocator>& allocators() {
  static auto* const made = [] {
    auto* all = new std::deque<CardAllocator>();
    for (int index = -1; index < kMaxDevices; ++index) all->emplace_back(index);
    return all;
  }();
  return *made;
}

}  // namespace

c10::Allocator& allocator_of(c10::DeviceIndex index) {
  return allocators()[static_cast<size_t>(index + 1)];
}

void register_allocators() {
  c10::SetAllocator(kCard, &allocator_of(-1));
  pinned_allocator();
}

Ref allocation_of(const c10::DataPtr& data) {
  if (!data.get()) return Ref::borrow(Py_None);
  if (C10_LIKELY(data.get_deleter() == &give_back))
    return Ref::borrow(static_cast<Owned*>(data.get_context())->allocation);
  return find(data.get());
}

void record_stream(const c10::DataPtr& data, c10::Stream stream) {
  if (!data.get()) return;
  refuse_if_gone("a stream");
  Gil gil;
  Ref allocation = allocation_of(data);
  driver()(Method::record_stream, allocation.get(), static_cast<int64_t>(stream.device_index()),
           static_cast<int64_t>(stream.id()));
}

// --8<-- [start:resize-storage]
void resize_storage(c10::StorageImpl& storage, size_t bytes) {
  TORCH_CHECK(storage.resizable(), "Trying to resize storage that is not resizable");
  if (bytes == storage.nbytes()) return;
  const size_t kept = std::min(bytes, storage.nbytes());
  c10::DataPtr fresh = take(storage.device().index(), bytes);
  if (kept > 0) {
    refuse_if_gone("a resize");
    Gil gil;
    Ref target = allocation_of(fresh), source = allocation_of(storage.data_ptr());
    driver()(Method::move_bytes, target.get(), source.get(), static_cast<uint64_t>(kept));
  }
  storage.set_data_ptr_noswap(std::move(fresh));
  storage.set_nbytes(bytes);
}
// --8<-- [end:resize-storage]

}  // namespace spyre
