// The card's random state: see generator.h.
#include "generator.h"

#include <ATen/EmptyTensor.h>
#include <c10/util/Exception.h>

#include <array>
#include <atomic>
#include <cstring>
#include <mutex>

namespace spyre {
namespace {

// --8<-- [start:generator]
class CardGenerator final : public c10::GeneratorImpl {
 public:
  explicit CardGenerator(c10::DeviceIndex index)
      : GeneratorImpl({kCard, index}, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}

  void set_current_seed(uint64_t seed) override { seed_ = seed, offset_ = 0; }
  uint64_t current_seed() const override { return seed_; }
  void set_offset(uint64_t offset) override { offset_ = offset; }
  uint64_t get_offset() const override { return offset_; }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return seed_;
  }

  // The caller holds mutex_, as for every generator of torch.
  std::pair<uint64_t, uint64_t> reserve(uint64_t count) {
    return {seed_, std::exchange(offset_, offset_ + count)};
  }

  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    const uint64_t state[] = {seed_, offset_};
    auto tensor = at::detail::empty_cpu({sizeof(state)}, at::kByte);
    std::memcpy(tensor.mutable_data_ptr(), state, sizeof(state));
    return tensor.getIntrusivePtr();
  }

  void set_state(const c10::TensorImpl& state) override {
    uint64_t values[2];
    TORCH_CHECK(
        state.device().is_cpu() && state.dtype() == caffe2::TypeMeta::Make<uint8_t>() &&
            state.numel() == sizeof(values) && state.is_contiguous(),
        "a random state of this device is a contiguous CPU tensor of 16 bytes (torch.uint8):"
        " the seed and the offset, as get_state() gave it; got ",
        state.numel(), " elements of ", state.dtype(), " on ", state.device());
    std::memcpy(values, state.data(), sizeof(values));
    seed_ = values[0], offset_ = values[1];
  }

 private:
  CardGenerator* clone_impl() const override {
    auto* copy = new CardGenerator(device().index());
    copy->seed_ = seed_, copy->offset_ = offset_;
    return copy;
  }

  uint64_t seed_ = c10::default_rng_seed_val;
  uint64_t offset_ = 0;
};
// --8<-- [end:generator]

}  // namespace

at::Generator new_generator(c10::DeviceIndex index) {
  return at::make_generator<CardGenerator>(resolve(index));
}

// Made on first use without a lock: a lock held by another thread at fork() never opens in the
// child.
const at::Generator& default_generator(c10::DeviceIndex index) {
  static std::array<std::atomic<at::Generator*>, kMaxDevices + 1> generators{};
  auto& slot = generators[static_cast<size_t>(resolve(index))];
  if (auto* made = slot.load(std::memory_order_acquire)) return *made;
  auto* fresh = new at::Generator(new_generator(index));
  at::Generator* made = nullptr;
  if (slot.compare_exchange_strong(made, fresh)) return *fresh;
  delete fresh;
  return *made;
}

std::pair<uint64_t, uint64_t> reserve(const at::Generator& generator, uint64_t count) {
  TORCH_CHECK(generator.defined() && generator.device().type() == kCard, "Expected a '",
              c10::get_privateuse1_backend(), "' device type for generator but found '",
              generator.defined() ? generator.device().str() : "none", "'");
  auto* impl = static_cast<CardGenerator*>(generator.unsafeGetGeneratorImpl());
  const std::lock_guard lock(impl->mutex_);
  return impl->reserve(count);
}

}  // namespace spyre
