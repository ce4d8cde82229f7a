// Devices, streams and events, as c10's guards ask for them.
//
// Contract: c10::impl::DeviceGuardImplInterface of torch 2.13, every method. Devices are a matter
// of this file and device.cpp; streams and events belong to the driver.
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include <atomic>

#include "allocator.h"
#include "device.h"
#include "driver.h"

namespace spyre {
namespace {

// Streams are numbered from 0, and all up to this one exist.
std::atomic<c10::StreamId> last_made{0};

int64_t number(c10::DeviceIndex index) { return resolve(index); }
int64_t handle(void* event) { return static_cast<int64_t>(reinterpret_cast<intptr_t>(event)); }
int64_t id(const c10::Stream& stream) { return stream.id(); }

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kCard; }

  // --8<-- [start:guard-devices]
  c10::Device getDevice() const override { return {kCard, current_device()}; }
  void setDevice(c10::Device device) const override {
    if (device.has_index()) set_device(device.index());
  }
  c10::Device exchangeDevice(c10::Device device) const override {
    return {kCard, device.has_index() ? exchange_device(device.index()) : current_device()};
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    set_device_unchecked(device.index());
  }
  c10::DeviceIndex deviceCount() const noexcept override { return device_count_or_zero(); }
  // Every dtype that torch can store can be stored: bytes are bytes.
  c10::DeviceCapability getDeviceCapability(c10::Device device) const override {
    resolve(device.index());
    return {};
  }
  // --8<-- [end:guard-devices]

  // --8<-- [start:guard-streams]
  c10::Stream getStream(c10::Device device) const override {
    const auto index = resolve(device.index());
    return stream(index, current_stream(index));
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return stream(resolve(device.index()), 0);
  }
  c10::Stream getNewStream(c10::Device device, int priority) const override {
    const auto index = resolve(device.index());
    const auto made =
        ask("a stream", to_int, Method::new_stream, number(index), static_cast<int64_t>(priority));
    auto last = last_made.load();
    while (made > last && !last_made.compare_exchange_weak(last, made)) {
    }
    return stream(index, made);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool high_priority) const override {
    return getNewStream(device, high_priority ? -1 : 0);
  }
  c10::Stream exchangeStream(c10::Stream next) const override {
    const auto index = next.device_index();
    // A stream can be made from any number. Who has no handle for it says so.
    if (next.id() < 0 || next.id() > last_made.load()) getStreamNativeHandle(next);
    return stream(index, exchange_stream(index, next.id()));
  }
  bool queryStream(const c10::Stream& s) const override {
    return ask("a stream", to_bool, Method::query_stream, number(s.device_index()), id(s));
  }
  void synchronizeStream(const c10::Stream& s) const override {
    ask("a stream", nothing, Method::synchronize_stream, number(s.device_index()), id(s));
  }
  void synchronizeDevice(const c10::DeviceIndex index) const override {
    ask("a card", nothing, Method::synchronize_device, number(index));
  }
  bool isStreamCapturing(const c10::Stream&) const override { return false; }
  void* getStreamNativeHandle(const c10::Stream s) const override {
    const auto value =
        ask("a stream", to_int, Method::stream_handle, number(s.device_index()), id(s));
    return reinterpret_cast<void*>(static_cast<intptr_t>(value));
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& s) const override {
    record_stream(data, s);
  }
  // --8<-- [end:guard-streams]

  // --8<-- [start:guard-events]
  void record(void** event, const c10::Stream& s, const c10::DeviceIndex device_index,
              const c10::EventFlag flag) const override {
    TORCH_CHECK(device_index < 0 || device_index == s.device_index(), "an event of ",
                c10::Device(kCard, device_index), " cannot be recorded on a stream of ", s.device(),
                ": make an event for each card");
    const bool timing = flag == c10::EventFlag::BACKEND_DEFAULT;
    const auto recorded = ask("an event", to_int, Method::record_event, handle(*event),
                              number(s.device_index()), id(s), timing);
    TORCH_CHECK(recorded != 0, "driver.record_event() gave handle 0, which stands for no event");
    *event = reinterpret_cast<void*>(static_cast<intptr_t>(recorded));
  }
  void block(void* event, const c10::Stream& s) const override {
    if (!event) return;
    ask("an event", nothing, Method::block_event, handle(event), number(s.device_index()), id(s));
  }
  bool queryEvent(void* event) const override {
    return !event || ask("an event", to_bool, Method::query_event, handle(event));
  }
  void synchronizeEvent(void* event) const override {
    if (event) ask("an event", nothing, Method::synchronize_event, handle(event));
  }
  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    TORCH_CHECK(start && end, "Both events must be recorded before calculating elapsed time.");
    return ask("an event", to_double, Method::elapsed_time, handle(start), handle(end));
  }
  void destroyEvent(void* event, const c10::DeviceIndex index) const noexcept override {
    const Driver* from = driver_or_null();
    if (!event || !from || !from->has(Method::destroy_event) || interpreter_gone()) return;
    Gil gil;
    PendingError pending;
    try {
      (*from)(Method::destroy_event, handle(event), static_cast<int64_t>(index));
    } catch (const std::exception& error) {
      PySys_FormatStderr("driver.destroy_event() failed: %s\n", error.what());
    }
  }
  // --8<-- [end:guard-events]

 private:
  static c10::Stream stream(c10::DeviceIndex index, c10::StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, {kCard, index}, id);
  }
};

const c10::impl::DeviceGuardImplRegistrar registered(kCard, new Guard());

}  // namespace
}  // namespace spyre
