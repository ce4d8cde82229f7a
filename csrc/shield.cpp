// A Python kernel that survives the interpreter's end: see shield.h.
#include "shield.h"

#include <structmember.h>

#include "python.h"

namespace spyre {
namespace {

struct Shield {
  PyObject_HEAD vectorcallfunc vectorcall;
  PyObject* callable;
};

PyObject* vectorcall(PyObject* self, PyObject* const* arguments, size_t flags, PyObject* names) {
  return call_kernel(reinterpret_cast<Shield*>(self)->callable, arguments, flags, names);
}

void deallocate(PyObject* self) {
  PyObject_GC_UnTrack(self);
  Py_XDECREF(reinterpret_cast<Shield*>(self)->callable);
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(reinterpret_cast<Shield*>(self)->callable);
  return 0;
}

PyObject* represent(PyObject* self) {
  return PyUnicode_FromFormat("shield(%R)", reinterpret_cast<Shield*>(self)->callable);
}

PyMemberDef members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Shield, vectorcall), READONLY, nullptr},
    {"__wrapped__", T_OBJECT, offsetof(Shield, callable), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyType_Slot slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(&deallocate)},
    {Py_tp_traverse, reinterpret_cast<void*>(&traverse)},
    {Py_tp_repr, reinterpret_cast<void*>(&represent)},
    {Py_tp_call, reinterpret_cast<void*>(&PyVectorcall_Call)},
    {Py_tp_members, members},
    {0, nullptr},
};

PyType_Spec specification = {"torch_spyre_ref._bridge.Shield", sizeof(Shield), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
                             slots};

}  // namespace

PyObject* make_shield(PyObject* callable) {
  static auto* const type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&specification));
  if (!type) throw_pending_error();
  auto* shield = PyObject_GC_New(Shield, type);
  if (!shield) throw_pending_error();
  shield->vectorcall = &vectorcall;
  shield->callable = Py_NewRef(callable);
  PyObject_GC_Track(reinterpret_cast<PyObject*>(shield));
  return reinterpret_cast<PyObject*>(shield);
}

}  // namespace spyre
