// Which card is current, and which stream on it: both are properties of a thread.
//
// Contract: an index is checked when it is set, so that whatever is current exists.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <limits>

namespace spyre {

constexpr c10::DeviceType kCard = c10::DeviceType::PrivateUse1;

// Device indices are 8 bits wide.
constexpr int kMaxDevices = std::numeric_limits<c10::DeviceIndex>::max();

// Asked of the driver once; throws what the driver throws.
c10::DeviceIndex device_count();
c10::DeviceIndex device_count_or_zero() noexcept;
void forget_device_count() noexcept;

void check_index(c10::DeviceIndex index);

c10::DeviceIndex current_device() noexcept;
void set_device(c10::DeviceIndex index);
c10::DeviceIndex exchange_device(c10::DeviceIndex index);
void set_device_unchecked(c10::DeviceIndex index) noexcept;

// -1 (no index given) means the current card.
c10::DeviceIndex resolve(c10::DeviceIndex index);

c10::StreamId current_stream(c10::DeviceIndex index) noexcept;
c10::StreamId exchange_stream(c10::DeviceIndex index, c10::StreamId stream);

}  // namespace spyre
