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

}  // namespace spyre
