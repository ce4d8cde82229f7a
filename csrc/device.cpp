// Which card is current, and which stream on it: see device.h.
#include "device.h"

#include <c10/util/Exception.h>

#include <array>
#include <atomic>
#include <utility>

#include "driver.h"

namespace spyre {
namespace {

std::atomic<int> known_count{-1};
thread_local c10::DeviceIndex device_of_thread = 0;
thread_local std::array<c10::StreamId, kMaxDevices + 1> streams_of_thread{};

}  // namespace

c10::DeviceIndex device_count() {
  int count = known_count.load(std::memory_order_relaxed);
  if (C10_LIKELY(count >= 0)) return static_cast<c10::DeviceIndex>(count);
  count = static_cast<int>(ask("the number of cards", to_int, Method::device_count));
  TORCH_CHECK(0 <= count && count <= kMaxDevices, "driver.device_count() gave ", count,
              ": torch can number 0 to ", kMaxDevices, " devices");
  known_count.store(count, std::memory_order_relaxed);
  return static_cast<c10::DeviceIndex>(count);
}

c10::DeviceIndex device_count_or_zero() noexcept {
  if (known_count.load(std::memory_order_relaxed) < 0 && (!driver_or_null() || interpreter_gone()))
    return 0;
  try {
    return device_count();
  } catch (const std::exception&) {
    return 0;
  }
}

void forget_device_count() noexcept { known_count.store(-1, std::memory_order_relaxed); }

void check_index(c10::DeviceIndex index) {
  const auto count = device_count();
  if (C10_LIKELY(0 <= index && index < count)) return;
  const auto name = c10::get_privateuse1_backend();
  TORCH_CHECK(count > 0, name, ":", static_cast<int>(index), " does not exist: there is no card");
  TORCH_CHECK(false, name, ":", static_cast<int>(index), " does not exist: there ",
              count == 1 ? "is 1 card" : c10::str("are ", static_cast<int>(count), " cards"), ", ",
              name, ":0", count == 1 ? "" : c10::str(" to ", name, ":", count - 1));
}

c10::DeviceIndex current_device() noexcept { return device_of_thread; }

void set_device_unchecked(c10::DeviceIndex index) noexcept {
  if (index >= 0) device_of_thread = index;
}

void set_device(c10::DeviceIndex index) {
  check_index(index);
  device_of_thread = index;
}

c10::DeviceIndex exchange_device(c10::DeviceIndex index) {
  const auto previous = device_of_thread;
  if (index != previous) set_device(index);
  return previous;
}

c10::DeviceIndex resolve(c10::DeviceIndex index) {
  if (index == -1) index = device_of_thread;
  check_index(index);
  return index;
}

c10::StreamId current_stream(c10::DeviceIndex index) noexcept {
  return streams_of_thread[static_cast<size_t>(index)];
}

c10::StreamId exchange_stream(c10::DeviceIndex index, c10::StreamId stream) {
  check_index(index);
  return std::exchange(streams_of_thread[static_cast<size_t>(index)], stream);
}

}  // namespace spyre
