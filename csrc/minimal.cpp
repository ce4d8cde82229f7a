// The operators that only make or rearrange metadata: see minimal.h.
//
// Nothing here touches a byte of card memory except a growing storage, which keeps its content. Of
// the ops that have a CPU kernel and return an alias, every one must be here: through the CPU
// fallback they would return a copy, and a write to the view would be lost.
#include "minimal.h"

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/ResizeCommon.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DefaultDtype.h>
#include <torch/library.h>

#include "allocator.h"
#include "device.h"

namespace spyre {
namespace {

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

// --8<-- [start:factories]
c10::DeviceIndex check_options(std::optional<at::Layout> layout, std::optional<at::Device> device,
                               std::optional<bool> pin_memory) {
  const auto name = c10::get_privateuse1_backend();
  const auto wanted = layout.value_or(at::kStrided);
  TORCH_CHECK_NOT_IMPLEMENTED(wanted == at::kStrided, name, " stores strided tensors only, not ",
                              wanted, ": make it on the CPU, or call .to_dense() first");
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned, not ", name,
              ": drop pin_memory=True or the device");
  return resolve(device.has_value() ? device->index() : -1);
}

// torch.use_deterministic_algorithms promises that fresh memory does not vary.
bool fills_fresh_memory() {
  const auto& context = at::globalContext();
  return context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory();
}

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout> layout, std::optional<at::Device> device,
                 std::optional<bool> pin_memory, std::optional<at::MemoryFormat> format) {
  auto& memory = allocator_of(check_options(layout, device, pin_memory));
  return fresh(
      at::detail::empty_generic(size, &memory, kKeys, c10::dtype_or_default(dtype), format));
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                         std::optional<at::Device> device, std::optional<bool> pin_memory) {
  return fresh(empty_strided_on(check_options(layout, device, pin_memory), size, stride,
                                c10::dtype_or_default(dtype)));
}
// --8<-- [end:factories]

// --8<-- [start:resize]
// Grows a storage that is too small for a geometry. It comes first: where it fails, nothing has
// changed.
void make_room(const at::Storage& storage, const at::Tensor& tensor, at::IntArrayRef size,
               at::OptionalIntArrayRef stride, int64_t offset) {
  at::detail::check_size_nonnegative(size);
  const size_t itemsize = tensor.itemsize();
  const size_t bytes = stride ? at::detail::computeStorageNbytes(size, *stride, itemsize, offset)
                              : at::detail::computeStorageNbytesContiguous(size, itemsize, offset);
  if (c10::multiply_integers(size) > 0 && bytes > storage.nbytes())
    resize_storage(*storage.unsafeGetStorageImpl(), bytes);
}

const at::Tensor& resize_(const at::Tensor& self, at::IntArrayRef size,
                          std::optional<at::MemoryFormat> format) {
  const auto bytes = static_cast<int64_t>(self.storage().nbytes());
  if (self.sizes() != size) resize_to(self, size);
  if (format.has_value()) {
    TORCH_CHECK(*format != at::MemoryFormat::Preserve, "Unsupported memory format", *format);
    self.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  }
  if (C10_UNLIKELY(fills_fresh_memory())) at::native::fill_resize_deterministic_(self, bytes);
  return self;
}
// --8<-- [end:resize]

// --8<-- [start:set]
at::Tensor& set_storage(at::Tensor& self, at::Storage source, int64_t offset, at::IntArrayRef size,
                        at::IntArrayRef stride) {
  TORCH_CHECK(offset >= 0, "Tensor: invalid storage offset ", offset);
  TORCH_CHECK(!stride.data() || size.size() == stride.size(), "unequal size length (", size.size(),
              ") and stride length (", stride.size(), ")");
  TORCH_CHECK(source.device() == self.storage().device(),
              "Attempted to set the storage of a tensor on device \"", self.storage().device(),
              "\" to a storage on different device \"", source.device(),
              "\".  This is no longer allowed; the devices must match.");
  const at::OptionalIntArrayRef strides =
      stride.data() ? at::OptionalIntArrayRef(stride) : std::nullopt;
  make_room(source, self, size, strides, offset);
  auto* impl = self.unsafeGetTensorImpl();
  if (!self.storage().is_alias_of(source)) impl->set_storage_keep_dtype(std::move(source));
  impl->set_storage_offset(offset);
  if (strides)
    impl->set_sizes_and_strides(size, *strides);
  else
    impl->set_sizes_contiguous(size);
  return self;
}

at::Tensor& set_to_nothing(at::Tensor& self) {
  at::Storage empty(at::Storage::use_byte_size_t(), 0, &allocator_of(self.device().index()),
                    /*resizable=*/true);
  return set_storage(self, std::move(empty), 0, {0}, {});
}
// --8<-- [end:set]

// `module.to(card)` exchanges the data inside each Parameter when this says yes, so that an
// optimizer made before the move still holds the parameters that train.
bool has_compatible_shallow_copy_type(const at::Tensor& self, const at::Tensor& from) {
  const auto is_dense = [](const at::Tensor& tensor) {
    return tensor.layout() == at::kStrided && !tensor.is_quantized() &&
           (tensor.is_cpu() || tensor.device().type() == kCard);
  };
  return is_dense(self) && is_dense(from);
}

void record_stream_(at::Tensor& self, at::Stream stream) {
  record_stream(self.storage().data_ptr(), stream);
}

// Any op that meets a card tensor of a layout that a card has no memory for.
void refuse_layout(const c10::OperatorHandle& op, torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, op.operator_name(), ": ", c10::get_privateuse1_backend(),
      " stores strided, unquantized tensors only (not sparse, nested or quantized ones): keep this "
      "tensor on the CPU, or make it dense first");
}

// --8<-- [start:minimal]
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view",
         static_cast<at::Tensor (*)(const at::Tensor&, at::IntArrayRef)>(&at::native::view));
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("unfold", &at::native::unfold);
  m.impl("view_as_real", &at::native::view_as_real);
  m.impl("view_as_complex", &at::native::view_as_complex);
  m.impl("resize_", &resize_);
  m.impl("set_", &set_to_nothing);
  m.impl("set_.source_Storage",
         static_cast<at::Tensor& (*)(at::Tensor&, at::Storage)>(&at::native::set_));
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("set_.source_Tensor", &at::native::set_tensor_);
  m.impl("_has_compatible_shallow_copy_type", &has_compatible_shallow_copy_type);
  m.impl("record_stream", &record_stream_);
}
// --8<-- [end:minimal]

#define SPYRE_REFUSE(KEY)                                                    \
  TORCH_LIBRARY_IMPL(_, KEY, m) {                                            \
    m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_layout>()); \
  }
SPYRE_REFUSE(SparsePrivateUse1)
SPYRE_REFUSE(SparseCsrPrivateUse1)
SPYRE_REFUSE(QuantizedPrivateUse1)
SPYRE_REFUSE(NestedTensorPrivateUse1)
#undef SPYRE_REFUSE

// Core composes compressed sparse tensors of any device out of three strided ones.
#define SPYRE_REFUSE_COMPRESSED(KEY)                                                 \
  TORCH_LIBRARY_IMPL(aten, KEY, m) {                                                 \
    for (const char* op :                                                            \
         {"_sparse_compressed_tensor_unsafe", "_sparse_compressed_tensor_with_dims", \
          "sparse_compressed_tensor.comp_plain_value_size"})                         \
      m.impl(op, torch::CppFunction::makeFromBoxedFunction<&refuse_layout>());       \
  }
SPYRE_REFUSE_COMPRESSED(PrivateUse1)
SPYRE_REFUSE_COMPRESSED(SparseCsrPrivateUse1)
#undef SPYRE_REFUSE_COMPRESSED

// `_copy_from` resolves conj and neg bits itself. Core would resolve them beforehand, by a copy,
// which asks `_copy_from`, for which core would resolve them beforehand, until the stack is full.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

// Without it `torch.autocast` of this device fails on every op that no autocast rule names.
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

}  // namespace

at::Tensor fresh(at::Tensor tensor) {
  if (C10_UNLIKELY(fills_fresh_memory())) at::native::fill_empty_deterministic_(tensor);
  return tensor;
}

at::Tensor empty_strided_on(c10::DeviceIndex index, at::IntArrayRef size, at::IntArrayRef stride,
                            at::ScalarType dtype) {
  return at::detail::empty_strided_generic(size, stride, &allocator_of(index), kKeys, dtype);
}

at::Tensor alias(const at::Tensor& tensor, at::ScalarType dtype, at::IntArrayRef size,
                 at::IntArrayRef stride, int64_t offset) {
  const auto keys = tensor.is_cpu() ? c10::DispatchKeySet(c10::DispatchKey::CPU) : kKeys;
  auto result =
      at::detail::make_tensor<at::TensorImpl>(at::TensorImpl::VIEW, at::Storage(tensor.storage()),
                                              keys, caffe2::TypeMeta::fromScalarType(dtype));
  auto* impl = result.unsafeGetTensorImpl();
  impl->set_storage_offset(offset);
  impl->set_sizes_and_strides(size, stride);
  return result;
}

void resize_to(const at::Tensor& tensor, at::IntArrayRef size) {
  make_room(tensor.storage(), tensor, size, std::nullopt, tensor.storage_offset());
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(size);
}

}  // namespace spyre
