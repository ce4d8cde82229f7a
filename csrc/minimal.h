// The operators that only make or rearrange metadata.
//
// Contract: aten's `empty`, `as_strided`, `view`, `resize_`, `set_` and their kin for PrivateUse1.
#pragma once

#include <ATen/core/Tensor.h>

namespace spyre {

// An uninitialised strided tensor on a card whose index has been checked.
at::Tensor empty_strided_on(c10::DeviceIndex index, at::IntArrayRef size, at::IntArrayRef stride,
                            at::ScalarType dtype);

// The same tensor; filled where torch.use_deterministic_algorithms promises that.
at::Tensor fresh(at::Tensor tensor);

// A tensor of other geometry on the same storage, with no autograd history and no conj or neg bit.
// `offset` is in elements of `dtype`.
at::Tensor alias(const at::Tensor& tensor, at::ScalarType dtype, at::IntArrayRef size,
                 at::IntArrayRef stride, int64_t offset);

// Gives a card tensor another shape, contiguous; grows its storage when it must.
void resize_to(const at::Tensor& tensor, at::IntArrayRef size);

}  // namespace spyre
