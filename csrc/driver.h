// The one Python object that decides everything: the driver.
//
// Contract: `install(driver)` looks its methods up once; the bridge then calls the bound methods. A
// method that the driver lacks is an error only when it is needed.
#pragma once

#include <array>
#include <cstddef>

#include "python.h"

namespace spyre {

// --8<-- [start:driver-methods]
enum class Method : size_t {
  device_count,
  is_initialized,
  allocate,
  free,
  find,
  device_of,
  statistics,
  reset_peak,
  reset_accumulated,
  empty_cache,
  memory_info,
  record_stream,
  move_bytes,
  pin,
  is_pinned,
  new_stream,
  synchronize_stream,
  query_stream,
  synchronize_device,
  stream_handle,
  record_event,
  block_event,
  query_event,
  synchronize_event,
  elapsed_time,
  destroy_event,
  fallback,
  start_trace,
  stop_trace,
};
// --8<-- [end:driver-methods]
constexpr size_t kMethods = static_cast<size_t>(Method::stop_trace) + 1;

class Driver {
 public:
  explicit Driver(PyObject* object);

  PyObject* object() const { return object_; }
  bool has(Method method) const { return bound_[static_cast<size_t>(method)] != nullptr; }
  PyObject* bound(Method method) const;

  // Calls the method with ints, bools and Python objects; GIL held. Throws what Python raised.
  template <class... Arguments>
  Ref operator()(Method method, Arguments... arguments) const {
    PyObject* callable = bound(method);
    if (too_deep()) throw_pending_error();
    Ref owned[] = {Ref(), to_python(arguments)...};
    PyObject* raw[1 + sizeof...(Arguments)];
    for (size_t i = 0; i <= sizeof...(Arguments); ++i) raw[i] = owned[i].get();
    return checked(call(callable, raw + 1, sizeof...(Arguments)));
  }

 private:
  PyObject* object_;
  std::array<PyObject*, kMethods> bound_{};
};

// The driver in use. Drivers are never destroyed: an allocation is freed by the one that made it.
const Driver& driver();
const Driver* driver_or_null() noexcept;
void install_driver(PyObject* object);

// Calls the driver in use from any thread, GIL held or not, and converts the answer under the GIL.
template <class Convert, class... Arguments>
auto ask(const char* what, Convert&& convert, Method method, Arguments... arguments) {
  refuse_if_gone(what);
  Gil gil;
  return convert(driver()(method, arguments...));
}

inline void nothing(const Ref&) {}

}  // namespace spyre
