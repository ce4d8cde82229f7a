// Keys of arguments, and where their tensors lie: see signature.h.
#include "signature.h"

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <cstring>

#include "allocator.h"
#include "device.h"

namespace spyre {
namespace {

// Of every entry; sizes and strides of a described tensor follow. All of it is compared, so it has
// no byte that nobody sets.
struct Head {
  char kind;
  int8_t device_type, device_index, dtype;
  uint32_t bits;
  uint32_t rank;
  uint32_t first;  // the first entry that starts where this one does, in the same storage
};
static_assert(sizeof(Head) == 16);

constexpr char kDescribed = 't', kOpaque = 'x';
constexpr uint32_t kConj = 1, kNeg = 2, kNumber = 4;

// Whether a tensor's sizes, strides and storage are its own: neither Python answers in its place,
// nor another tensor.
bool is_plain(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.layout() != at::kStrided) return false;
  const auto* impl = tensor.unsafeGetTensorImpl();
  return impl->has_storage() && !impl->is_python_dispatch() &&
         !impl->has_symbolic_sizes_strides() && !tensor.is_nested();
}

char kind_of(PyObject* entry) {
  if (entry == Py_None) return 'n';
  if (PyBool_Check(entry)) return 'b';
  if (PyLong_CheckExact(entry)) return 'i';
  if (PyFloat_CheckExact(entry)) return 'f';
  if (PyComplex_CheckExact(entry)) return 'c';
  return THPVariable_Check(entry) ? kOpaque : '?';
}

const at::Tensor* described(PyObject* entry) {
  if (!THPVariable_Check(entry)) return nullptr;
  const at::Tensor& tensor = THPVariable_Unpack(entry);
  return is_plain(tensor) ? &tensor : nullptr;
}

using Tensors = c10::SmallVector<const at::Tensor*, 16>;

uint32_t first_at_the_place_of(size_t index, const Tensors& tensors) {
  const auto& tensor = *tensors[index];
  const auto* storage = tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  for (size_t i = 0; i < index; ++i) {
    if (!tensors[i] || tensors[i]->storage_offset() != tensor.storage_offset()) continue;
    const auto* other = tensors[i]->unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
    if (other == storage) return static_cast<uint32_t>(i);
  }
  return static_cast<uint32_t>(index);
}

Head head_of(size_t index, const Tensors& tensors) {
  const auto& tensor = *tensors[index];
  const auto device = tensor.device();
  const uint32_t bits = (tensor.is_conj() ? kConj : 0) | (tensor.is_neg() ? kNeg : 0) |
                        (tensor.unsafeGetTensorImpl()->is_wrapped_number() ? kNumber : 0);
  return {kDescribed,
          static_cast<int8_t>(device.type()),
          device.index(),
          static_cast<int8_t>(tensor.scalar_type()),
          bits,
          static_cast<uint32_t>(tensor.dim()),
          first_at_the_place_of(index, tensors)};
}

char* append(char* end, const void* bytes, size_t count) {
  std::memcpy(end, bytes, count);
  return end + count;
}

Ref key_of(PyObject* const* entries, const Tensors& tensors) {
  size_t bytes = tensors.size() * sizeof(Head);
  for (const auto* tensor : tensors)
    if (tensor) bytes += 2 * sizeof(int64_t) * static_cast<size_t>(tensor->dim());
  Ref key = checked(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(bytes)));
  char* end = PyBytes_AS_STRING(key.get());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto* tensor = tensors[i];
    const Head head = tensor ? head_of(i, tensors) : Head{kind_of(entries[i])};
    end = append(end, &head, sizeof head);
    if (!tensor) continue;
    const auto extent = sizeof(int64_t) * head.rank;
    end = append(end, tensor->sizes().data(), extent);
    end = append(end, tensor->strides().data(), extent);
  }
  return key;
}

Ref place_of(const at::Tensor* tensor) {
  if (!tensor || tensor->device().type() != kCard) return Ref::borrow(Py_None);
  return locate(*tensor);
}

Ref to_tuple(at::IntArrayRef numbers) {
  Ref tuple = checked(PyTuple_New(static_cast<Py_ssize_t>(numbers.size())));
  for (size_t i = 0; i < numbers.size(); ++i)
    PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(i), to_python(numbers[i]).take());
  return tuple;
}

// What `tensor.shape` gives.
Ref to_size(at::IntArrayRef sizes) {
  static PyObject* const type =
      checked(PyObject_GetAttrString(checked(PyImport_ImportModule("torch")).get(), "Size")).take();
  return checked(PyObject_CallOneArg(type, to_tuple(sizes).get()));
}

// (dtype, shape, strides, card), as the tensor's own methods give them.
Ref description(const at::Tensor& tensor) {
  auto* dtype = reinterpret_cast<PyObject*>(torch::getTHPDtype(tensor.scalar_type()));
  return checked(PyTuple_Pack(4, dtype, to_size(tensor.sizes()).get(),
                              to_tuple(tensor.strides()).get(),
                              to_python(static_cast<int64_t>(tensor.get_device())).get()));
}

void add_to(PyObject* list, PyObject* entry) {
  if (PyList_Append(list, entry) < 0) throw_pending_error();
}

// Whether an argument is of the kinds that say all at once; then it is in the lists.
bool take_one(PyObject* entry, bool is_patched, const Parts& parts) {
  auto* const kind = reinterpret_cast<PyObject*>(Py_TYPE(entry));
  if (const auto* tensor = described(entry)) {
    if (tensor->device().type() != kCard) return false;
    add_to(parts.tensors, entry);
    add_to(parts.key, description(*tensor).get());
  } else if (entry == Py_None || PyBool_Check(entry)) {
    add_to(parts.key, checked(PyTuple_Pack(2, kind, entry)).get());
  } else if (is_patched && (PyLong_CheckExact(entry) || PyFloat_CheckExact(entry))) {
    add_to(parts.numbers, entry);
    add_to(parts.key, kind);
  } else {
    return false;
  }
  return true;
}

}  // namespace

Ref locate(const at::Tensor& tensor) {
  const auto& data = tensor.storage().data_ptr();
  uintptr_t start = 0;
  if (data.get())
    start = reinterpret_cast<uintptr_t>(data.get()) +
            static_cast<uintptr_t>(tensor.storage_offset()) * tensor.itemsize();
  Ref address = checked(PyLong_FromUnsignedLongLong(start));
  return checked(PyTuple_Pack(2, allocation_of(data).get(), address.get()));
}

Ref signature(PyObject* sequence) {
  // A tuple of our own: looking up a storage that is not ours runs Python.
  Ref owned = checked(PySequence_Tuple(sequence));
  PyObject* const* entries = &PyTuple_GET_ITEM(owned.get(), 0);
  Tensors tensors(static_cast<size_t>(PyTuple_GET_SIZE(owned.get())));
  for (size_t i = 0; i < tensors.size(); ++i) tensors[i] = described(entries[i]);
  Ref key = key_of(entries, tensors);
  Ref places = checked(PyTuple_New(static_cast<Py_ssize_t>(tensors.size())));
  for (size_t i = 0; i < tensors.size(); ++i)
    PyTuple_SET_ITEM(places.get(), static_cast<Py_ssize_t>(i), place_of(tensors[i]).take());
  return checked(PyTuple_Pack(2, key.get(), places.get()));
}

Py_ssize_t take_plain(PyObject* arguments, PyObject* patched, const Parts& parts) {
  Ref owned = checked(PySequence_Tuple(arguments));
  Ref numbers = checked(PySequence_Tuple(patched));
  const Py_ssize_t count = std::min(PyTuple_GET_SIZE(owned.get()), PyTuple_GET_SIZE(numbers.get()));
  for (Py_ssize_t i = 0; i < count; ++i) {
    const bool is_patched = PyTuple_GET_ITEM(numbers.get(), i) == Py_True;
    if (!take_one(PyTuple_GET_ITEM(owned.get(), i), is_patched, parts)) return i;
  }
  return count;
}

bool apart(PyObject* places) {
  Ref owned = checked(PySequence_Fast(places, "apart() takes a sequence of places"));
  PyObject* const* all = PySequence_Fast_ITEMS(owned.get());
  const Py_ssize_t count = PySequence_Fast_GET_SIZE(owned.get());
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (!PyTuple_CheckExact(all[i])) return false;
    PyObject* owner = PyTuple_GET_ITEM(all[i], 0);
    if (owner == Py_None) return false;
    for (Py_ssize_t before = 0; before < i; ++before)
      if (PyTuple_GET_ITEM(all[before], 0) == owner) return false;
  }
  return true;
}

}  // namespace spyre
