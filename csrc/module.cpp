// The Python face of the bridge: the module `torch_spyre_ref._bridge`.
//
// Contract: `_bridge.pyi` beside the package says what each function takes and gives.
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/Storage.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <vector>

#include "allocator.h"
#include "device.h"
#include "driver.h"
#include "generator.h"
#include "hooks.h"
#include "minimal.h"
#include "profiler.h"
#include "shield.h"
#include "signature.h"
#include "versions.h"

namespace spyre {
namespace {

c10::DeviceIndex index_of(PyObject* value) {
  const long index = PyLong_AsLong(value);
  if (index == -1 && PyErr_Occurred()) throw python_error();
  TORCH_CHECK(-128 <= index && index <= 127, c10::get_privateuse1_backend(), ":", index,
              " does not exist: torch numbers devices from 0 to 127");
  return static_cast<c10::DeviceIndex>(index);
}

const c10::Storage& storage_of(const at::Tensor& tensor) {
  TORCH_CHECK_TYPE(tensor.device().type() == kCard, "expected a tensor on ",
                   c10::get_privateuse1_backend(), ", got one on ", tensor.device());
  return tensor.storage();
}

const at::Tensor& tensor_of(PyObject* object) {
  TORCH_CHECK_TYPE(THPVariable_Check(object), "expected a torch.Tensor, got ",
                   Py_TYPE(object)->tp_name);
  return THPVariable_Unpack(object);
}

PyObject* install(PyObject*, PyObject* object) {
  HANDLE_TH_ERRORS
  install_driver(object);
  register_allocators();
  register_hooks();
  register_profiler();
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* shutdown(PyObject*, PyObject*) {
  HANDLE_TH_ERRORS
  shut_down();
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* allocation(PyObject*, PyObject* tensor) {
  HANDLE_TH_ERRORS
  return allocation_of(storage_of(tensor_of(tensor)).data_ptr()).take();
  END_HANDLE_TH_ERRORS
}

PyObject* locate_(PyObject*, PyObject* object) {
  HANDLE_TH_ERRORS
  const at::Tensor& tensor = tensor_of(object);
  storage_of(tensor);
  return locate(tensor).take();
  END_HANDLE_TH_ERRORS
}

PyObject* signature_(PyObject*, PyObject* entries) {
  HANDLE_TH_ERRORS
  return signature(entries).take();
  END_HANDLE_TH_ERRORS
}

PyObject* apart_(PyObject*, PyObject* places) {
  HANDLE_TH_ERRORS
  return PyBool_FromLong(apart(places));
  END_HANDLE_TH_ERRORS
}

PyObject* take_plain_(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(count == 5 && std::all_of(arguments + 2, arguments + 5,
                                             [](PyObject* list) { return PyList_Check(list); }),
                   "take_plain() takes arguments, which of them are patched, and three lists");
  return PyLong_FromSsize_t(
      take_plain(arguments[0], arguments[1], {arguments[2], arguments[3], arguments[4]}));
  END_HANDLE_TH_ERRORS
}

std::vector<int64_t> integers(PyObject* sequence) {
  Ref owned = checked(PySequence_Tuple(sequence));
  std::vector<int64_t> values(static_cast<size_t>(PyTuple_GET_SIZE(owned.get())));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = to_int(Ref::borrow(PyTuple_GET_ITEM(owned.get(), static_cast<Py_ssize_t>(i))));
  return values;
}

PyObject* empty_strided_(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(count == 4 && THPDtype_Check(arguments[2]),
                   "empty_strided() takes sizes, strides, a torch.dtype and the index of a card");
  const auto dtype = reinterpret_cast<THPDtype*>(arguments[2])->scalar_type;
  const auto index = resolve(index_of(arguments[3]));
  return THPVariable_Wrap(
      fresh(empty_strided_on(index, integers(arguments[0]), integers(arguments[1]), dtype)));
  END_HANDLE_TH_ERRORS
}

PyObject* storage_allocation(PyObject*, PyObject* object) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(THPStorage_Check(object), "expected a torch.UntypedStorage, got ",
                   Py_TYPE(object)->tp_name);
  const auto& storage = THPStorage_Unpack(object);
  TORCH_CHECK_TYPE(storage.device().type() == kCard, "expected a storage on ",
                   c10::get_privateuse1_backend(), ", got one on ", storage.device());
  return allocation_of(storage.data_ptr()).take();
  END_HANDLE_TH_ERRORS
}

PyObject* device_count_(PyObject*, PyObject*) {
  HANDLE_TH_ERRORS
  return PyLong_FromLong(device_count());
  END_HANDLE_TH_ERRORS
}

PyObject* current_device_(PyObject*, PyObject*) { return PyLong_FromLong(current_device()); }

PyObject* set_device_(PyObject*, PyObject* index) {
  HANDLE_TH_ERRORS
  set_device(index_of(index));
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* exchange_device_(PyObject*, PyObject* index) {
  HANDLE_TH_ERRORS
  return PyLong_FromLong(exchange_device(index_of(index)));
  END_HANDLE_TH_ERRORS
}

PyObject* current_stream_(PyObject*, PyObject* index) {
  HANDLE_TH_ERRORS
  return PyLong_FromLongLong(current_stream(resolve(index_of(index))));
  END_HANDLE_TH_ERRORS
}

PyObject* exchange_stream_(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(count == 2, "exchange_stream() takes a device index and a stream id");
  const auto index = resolve(index_of(arguments[0]));
  const long long stream = PyLong_AsLongLong(arguments[1]);
  if (stream == -1 && PyErr_Occurred()) throw python_error();
  return PyLong_FromLongLong(exchange_stream(index, stream));
  END_HANDLE_TH_ERRORS
}

PyObject* default_generator_(PyObject*, PyObject* index) {
  HANDLE_TH_ERRORS
  return THPGenerator_Wrap(default_generator(index_of(index)));
  END_HANDLE_TH_ERRORS
}

PyObject* generator_reserve(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(count == 2 && THPGenerator_Check(arguments[0]),
                   "generator_reserve() takes a torch.Generator and a count");
  const auto wanted = PyLong_AsUnsignedLongLong(arguments[1]);
  if (PyErr_Occurred()) throw python_error();
  const auto [seed, offset] = reserve(THPGenerator_Unwrap(arguments[0]), wanted);
  return Py_BuildValue("KK", static_cast<unsigned long long>(seed),
                       static_cast<unsigned long long>(offset));
  END_HANDLE_TH_ERRORS
}

PyObject* correlation_id_(PyObject*, PyObject*) { return PyLong_FromLongLong(correlation_id()); }

PyObject* shield(PyObject*, PyObject* callable) {
  HANDLE_TH_ERRORS
  return make_shield(callable);
  END_HANDLE_TH_ERRORS
}

template <class Function>
PyCFunction fast(Function* function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

PyMethodDef methods[] = {
    {"install", install, METH_O, nullptr},
    {"shutdown", shutdown, METH_NOARGS, nullptr},
    {"allocation", allocation, METH_O, nullptr},
    {"storage_allocation", storage_allocation, METH_O, nullptr},
    {"locate", locate_, METH_O, nullptr},
    {"signature", signature_, METH_O, nullptr},
    {"apart", apart_, METH_O, nullptr},
    {"take_plain", fast(take_plain_), METH_FASTCALL, nullptr},
    {"empty_strided", fast(empty_strided_), METH_FASTCALL, nullptr},
    {"device_count", device_count_, METH_NOARGS, nullptr},
    {"current_device", current_device_, METH_NOARGS, nullptr},
    {"set_device", set_device_, METH_O, nullptr},
    {"exchange_device", exchange_device_, METH_O, nullptr},
    {"current_stream", current_stream_, METH_O, nullptr},
    {"exchange_stream", fast(exchange_stream_), METH_FASTCALL, nullptr},
    {"default_generator", default_generator_, METH_O, nullptr},
    {"generator_reserve", fast(generator_reserve), METH_FASTCALL, nullptr},
    {"correlation_id", correlation_id_, METH_NOARGS, nullptr},
    {"shield", shield, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {PyModuleDef_HEAD_INIT,
                          "torch_spyre_ref._bridge",
                          "c10's interfaces for PrivateUse1, answered by one Python object.",
                          -1,
                          methods,
                          nullptr,
                          nullptr,
                          nullptr,
                          nullptr};

}  // namespace
}  // namespace spyre

PyMODINIT_FUNC PyInit__bridge() { return PyModule_Create(&spyre::definition); }
