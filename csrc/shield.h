// A Python kernel that survives the interpreter's end.
#pragma once

#include <Python.h>

namespace spyre {

// A callable that calls `callable`, and holds a thread that CPython ends inside it. torch's own
// frames around a Python kernel do not survive being unwound; this stands between them and it.
PyObject* make_shield(PyObject* callable);

}  // namespace spyre
