// What torch's device-independent code asks of the accelerator: see hooks.h.
#include "hooks.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/util/Exception.h>

#include "allocator.h"
#include "device.h"
#include "generator.h"

namespace spyre {
namespace {

// --8<-- [start:hooks]
class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count_or_zero() > 0; }

  // Autograd and the fork handlers ask this to avoid waking a card that nobody has used.
  bool hasPrimaryContext(c10::DeviceIndex index) const override {
    return device_count_or_zero() > 0 && !interpreter_gone() && resolve(index) >= 0 &&
           ask("the card's state", to_bool, Method::is_initialized);
  }

  c10::DeviceIndex deviceCount() const override { return device_count_or_zero(); }
  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }
  void setCurrentDevice(c10::DeviceIndex index) const override { set_device(index); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    return exchange_device(index);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return index < 0 ? current_device() : exchange_device(index);
  }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    return default_generator(index);
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return new_generator(index);
  }

  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator(); }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }

  c10::Device getDeviceFromPtr(void* data) const override {
    if (!data) return {kCard, current_device()};
    const auto address = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(data));
    const auto index = ask("the card's memory", to_int, Method::device_of, address);
    TORCH_CHECK(index >= 0, "address ", data, " lies in no live allocation of any ",
                c10::get_privateuse1_backend(), " card");
    return {kCard, static_cast<c10::DeviceIndex>(index)};
  }

  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    TORCH_CHECK(static_cast<int64_t>(bytes) >= 0, "cannot resize a storage to ",
                static_cast<int64_t>(bytes), " bytes: give a size of 0 or more");
    resize_storage(*storage.unsafeGetStorageImpl(), bytes);
  }
};
// --8<-- [end:hooks]

}  // namespace

void register_hooks() {
  if (!at::isPrivateUse1HooksRegistered()) at::RegisterPrivateUse1HooksInterface(new Hooks());
}

}  // namespace spyre
