// Card memory and pinned host memory, as c10 asks for them.
//
// Contract: c10::DeviceAllocator and at::HostAllocator. `DataPtr::get()` of card memory is a
// logical address that only the driver can resolve; `get_context()` owns the driver's allocation
// object.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Storage.h>

#include "driver.h"

namespace spyre {

// The memory of one card, whose index has been checked; -1 is the card that is current when asked.
c10::Allocator& allocator_of(c10::DeviceIndex index);
c10::Allocator& pinned_allocator();
void register_allocators();

bool is_pinned(const void* pointer);

// The driver's allocation object behind a DataPtr; none for zero bytes. A context that is not ours
// (DLPack, from_blob, copy-on-write) is looked up by its address. GIL held.
Ref allocation_of(const c10::DataPtr& data);

// Gives a storage another size, in either direction; keeps the bytes that both sizes hold.
void resize_storage(c10::StorageImpl& storage, size_t bytes);

void record_stream(const c10::DataPtr& data, c10::Stream stream);

}  // namespace spyre
