// Everything in the bridge that depends on the version of torch or of Python stands here.
//
// Contract: torch >= 2.13, < 2.15 and CPython >= 3.11. Code elsewhere is written for all of them.
#pragma once

#include <Python.h>
#include <torch/headeronly/version.h>

#define SPYRE_TORCH_AT_LEAST(major, minor) \
  (TORCH_VERSION_MAJOR > (major) ||        \
   (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))

#if !SPYRE_TORCH_AT_LEAST(2, 13) || SPYRE_TORCH_AT_LEAST(2, 15)
#error "torch_spyre_ref is written for torch >= 2.13, < 2.15"
#endif

namespace spyre {

inline bool interpreter_is_finalizing() noexcept {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

// How many more Python calls fit under the recursion limit; GIL held.
inline int python_calls_left() noexcept {
#if PY_VERSION_HEX >= 0x030C0000
  return PyThreadState_Get()->py_recursion_remaining;
#else
  return PyThreadState_Get()->recursion_remaining;
#endif
}

}  // namespace spyre
