// How C++ enters Python and survives it: see python.h.
//
// The interpreter's end is the hard part. While CPython finalizes, a thread that asks for the GIL
// is ended inside the request (pthread_exit up to 3.13), which unwinds the C++ frames below it and
// aborts the process as soon as it meets a noexcept destructor, of which torch's frames are full.
// So a thread that is ended inside one of our calls is held there instead, as 3.14 does by itself.
#include "python.h"

#include <c10/util/Exception.h>
#include <cxxabi.h>
#include <torch/csrc/Exceptions.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "versions.h"

namespace spyre {
namespace {

std::atomic<bool> shut{false};
std::thread::id ending_thread;

[[noreturn]] void hold_for_ever() {
  for (;;) pause();
}

// Runs `body`; a thread that CPython ends inside it stays here.
template <class Body>
auto held_at_exit(Body&& body) {
#ifdef __GLIBCXX__
  try {
    return body();
  } catch (abi::__forced_unwind&) {
    hold_for_ever();
  }
#else
  return body();
#endif
}

}  // namespace

// --8<-- [start:shutdown]
bool interpreter_gone() noexcept {
  return shut.load(std::memory_order_acquire) || !Py_IsInitialized() || interpreter_is_finalizing();
}

// Python has joined all other threads by now: what is left are daemons. Those that use a card get
// a moment to come by and be held here; elsewhere, in torch's frames, they would abort the process.
void shut_down() {
  ending_thread = std::this_thread::get_id();
  shut.store(true, std::memory_order_release);
  const Ref threading = checked(PyImport_ImportModule("threading"));
  const Ref count = checked(PyObject_CallMethod(threading.get(), "active_count", nullptr));
  if (to_int(count) == 1) return;
  const WithoutGil released;
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
}

void refuse_if_gone(const char* what) {
  if (C10_LIKELY(!interpreter_gone())) return;
  const bool ends_it = shut ? std::this_thread::get_id() == ending_thread : PyGILState_Check() != 0;
  if (!ends_it) {
    if (PyGILState_Check()) PyEval_SaveThread();
    hold_for_ever();
  }
  TORCH_CHECK(false, what,
              " is out of reach: the interpreter is ending, and the card is shut down.",
              " Use it before, for example in an atexit handler that is registered after this "
              "package was imported");
}
// --8<-- [end:shutdown]

PyGILState_STATE Gil::acquire() {
  return held_at_exit([] { return PyGILState_Ensure(); });
}

Gil::~Gil() {
  held_at_exit([this] { PyGILState_Release(state_); });
}

WithoutGil::~WithoutGil() {
  if (thread_) held_at_exit([this] { PyEval_RestoreThread(thread_); });
}

PyObject* call(PyObject* callable, PyObject** arguments, size_t count) {
  return held_at_exit([&] {
    return PyObject_Vectorcall(callable, arguments, count | PY_VECTORCALL_ARGUMENTS_OFFSET,
                               nullptr);
  });
}

PyObject* call_kernel(PyObject* callable, PyObject* const* arguments, size_t flags,
                      PyObject* names) {
  try {
    refuse_if_gone("a kernel");
  } catch (const c10::Error& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what_without_backtrace());
    return nullptr;
  }
  if (too_deep()) return nullptr;
  return held_at_exit([&] { return PyObject_Vectorcall(callable, arguments, flags, names); });
}

bool too_deep() noexcept {
  constexpr int kNeeded = 150;
  if (C10_LIKELY(python_calls_left() > kNeeded)) return false;
  PyErr_SetString(PyExc_RecursionError,
                  "maximum recursion depth is too near for an operation on a card: recurse less "
                  "deeply, or raise sys.setrecursionlimit()");
  return true;
}

PyObject* attribute(PyObject* object, PyObject* interned_name) {
  return held_at_exit([&] { return PyObject_GetAttr(object, interned_name); });
}

void release(PyObject* object) noexcept {
  held_at_exit([&] { Py_DECREF(object); });
}

void throw_pending_error() {
  python_error error;
  error.persist();
  throw error;
}

int64_t to_int(const Ref& value) {
  const int64_t result = PyLong_AsLongLong(value.get());
  if (result == -1 && PyErr_Occurred()) throw_pending_error();
  return result;
}

uint64_t to_address(const Ref& value) {
  const uint64_t result = PyLong_AsUnsignedLongLong(value.get());
  if (result == static_cast<uint64_t>(-1) && PyErr_Occurred()) throw_pending_error();
  return result;
}

double to_double(const Ref& value) {
  const double result = PyFloat_AsDouble(value.get());
  if (result == -1.0 && PyErr_Occurred()) throw_pending_error();
  return result;
}

bool to_bool(const Ref& value) {
  const int result = held_at_exit([&] { return PyObject_IsTrue(value.get()); });
  if (result < 0) throw_pending_error();
  return result != 0;
}

}  // namespace spyre
