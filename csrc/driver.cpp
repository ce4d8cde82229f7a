// The driver in use and its bound methods: see driver.h.
#include "driver.h"

#include <c10/util/Exception.h>

#include <atomic>

#include "device.h"

namespace spyre {
namespace {

constexpr std::array<const char*, kMethods> kNames = {
    "device_count",
    "is_initialized",
    "allocate",
    "free",
    "find",
    "device_of",
    "statistics",
    "reset_peak",
    "reset_accumulated",
    "empty_cache",
    "memory_info",
    "record_stream",
    "move_bytes",
    "pin",
    "is_pinned",
    "new_stream",
    "synchronize_stream",
    "query_stream",
    "synchronize_device",
    "stream_handle",
    "record_event",
    "block_event",
    "query_event",
    "synchronize_event",
    "elapsed_time",
    "destroy_event",
    "fallback",
    "start_trace",
    "stop_trace",
};

std::atomic<const Driver*> installed{nullptr};

}  // namespace

Driver::Driver(PyObject* object) : object_(object) {
  Py_INCREF(object_);
  for (size_t i = 0; i < kMethods; ++i) {
    bound_[i] = PyObject_GetAttrString(object, kNames[i]);
    if (bound_[i]) continue;
    if (!PyErr_ExceptionMatches(PyExc_AttributeError)) throw_pending_error();
    PyErr_Clear();
  }
}

PyObject* Driver::bound(Method method) const {
  const auto index = static_cast<size_t>(method);
  TORCH_CHECK_NOT_IMPLEMENTED(bound_[index], "the driver ", Py_TYPE(object_)->tp_name,
                              " has no method ", kNames[index], "(): this operation needs it");
  return bound_[index];
}

const Driver* driver_or_null() noexcept { return installed.load(std::memory_order_acquire); }

const Driver& driver() {
  const Driver* current = driver_or_null();
  TORCH_CHECK(current, "no driver is installed: call torch_spyre_ref.register() first");
  return *current;
}

void install_driver(PyObject* object) {
  const Driver* current = driver_or_null();
  if (current && current->object() == object) return;
  installed.store(new Driver(object), std::memory_order_release);
  forget_device_count();
}

}  // namespace spyre
