// How C++ enters Python and survives it: the GIL, exceptions both ways, and the interpreter's end.
//
// Contract: every call into Python goes through `call`, `attribute` or `release` below, with the
// GIL held by a `Gil` object. None of them is reached after `shut_down()`.
#pragma once

#include <Python.h>

#include <cstdint>
#include <utility>

namespace spyre {

// The interpreter is leaving (or has left): the GIL must not be asked for any more.
bool interpreter_gone() noexcept;

// Called once, from atexit, on the thread that ends the interpreter.
void shut_down();

// What a caller that needs an answer from Python does when the interpreter is gone: the thread that
// ends the interpreter gets an exception, any other thread stops here for ever.
void refuse_if_gone(const char* what);

// Turns the pending Python exception into a C++ one that carries it (type, value, traceback).
[[noreturn]] void throw_pending_error();

class Gil {
 public:
  Gil() : state_(acquire()) {}
  ~Gil();
  Gil(const Gil&) = delete;
  Gil& operator=(const Gil&) = delete;

 private:
  static PyGILState_STATE acquire();
  PyGILState_STATE state_;
};

// Lets other threads run Python for a scope, where this thread held the GIL.
class WithoutGil {
 public:
  WithoutGil() : thread_(PyGILState_Check() ? PyEval_SaveThread() : nullptr) {}
  ~WithoutGil();
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* thread_;
};

// Keeps a pending Python exception safe while a deleter runs Python of its own: without it a kernel
// that fails on a temporary would lose its message to the temporary's deleter.
class PendingError {
 public:
  PendingError() { PyErr_Fetch(&type_, &value_, &traceback_); }
  ~PendingError() { PyErr_Restore(type_, value_, traceback_); }
  PendingError(const PendingError&) = delete;
  PendingError& operator=(const PendingError&) = delete;

 private:
  PyObject *type_, *value_, *traceback_;
};

// `arguments[-1]` must be a free slot (PY_VECTORCALL_ARGUMENTS_OFFSET). Null when Python raised.
PyObject* call(PyObject* callable, PyObject** arguments, size_t count);
// The same for a kernel that torch called: its arguments as they came, and not after the end.
PyObject* call_kernel(PyObject* callable, PyObject* const* arguments, size_t flags,
                      PyObject* names);
PyObject* attribute(PyObject* object, PyObject* interned_name);
// Sets RecursionError, and says so, where the recursion limit is too near for what Python has to do
// for us: reached half way, it would leave a queue or a region half changed.
bool too_deep() noexcept;
void release(PyObject* object) noexcept;

// An owned reference; destroyed with the GIL held.
class Ref {
 public:
  Ref() = default;
  explicit Ref(PyObject* owned) : object_(owned) {}
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref& operator=(Ref&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Ref() {
    if (object_) release(object_);
  }
  static Ref borrow(PyObject* object) {
    Py_XINCREF(object);
    return Ref(object);
  }
  PyObject* get() const { return object_; }
  PyObject* take() { return std::exchange(object_, nullptr); }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_ = nullptr;
};

inline Ref checked(PyObject* owned) {
  if (!owned) throw_pending_error();
  return Ref(owned);
}

inline Ref to_python(bool value) { return Ref::borrow(value ? Py_True : Py_False); }
inline Ref to_python(PyObject* object) { return Ref::borrow(object); }
inline Ref to_python(int64_t value) { return checked(PyLong_FromLongLong(value)); }
inline Ref to_python(uint64_t value) { return checked(PyLong_FromUnsignedLongLong(value)); }

int64_t to_int(const Ref& value);
uint64_t to_address(const Ref& value);
double to_double(const Ref& value);
bool to_bool(const Ref& value);

}  // namespace spyre
