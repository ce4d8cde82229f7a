// What an operator or a launch was given, as one key for a cache, and where its tensors lie.
//
// Contract: `signature(entries)` of `_bridge.pyi`. Two sequences have one key exactly when their
// entries agree in kind and metadata, and the same of them start at the same place.
#pragma once

#include <ATen/core/Tensor.h>

#include "python.h"

namespace spyre {

// (allocation, address of the first element) of a tensor on a card; GIL held.
Ref locate(const at::Tensor& tensor);

// (key, places) of a sequence; GIL held.
Ref signature(PyObject* entries);

// What the arguments of an op fall into: lists of tensors, numbers, and parts of a key.
struct Parts {
  PyObject *tensors, *numbers, *key;
};

// Sorts arguments into the lists, up to the first that Python has to look at; how many; GIL held.
Py_ssize_t take_plain(PyObject* arguments, PyObject* patched, const Parts& parts);

// Whether every place is in an allocation, and no two are in the same one; GIL held.
bool apart(PyObject* places);

}  // namespace spyre
