"""Objects of CPython and NumPy as native routines read them, and the C functions.

The structures are those of CPython 3.11 to 3.13 with the GIL, and of NumPy 2
(``ndarraytypes.h``). ``reads_objects`` says whether those that are running are known
to be so; where they are not, calls go through Python (``cpu.portable_entry``, and the
fallbacks of ``cuda.call_entry``).
"""

from __future__ import annotations

import ctypes
import sys
import warnings
from collections.abc import Callable
from functools import cache, partial
from typing import Final

import numpy as np

from arrayfn.backends.native import CFunction
from arrayfn.backends.native.structures import Array, Struct, i32, u8, u64
from arrayfn.errors import BackendError

KNOWN_PYTHON: Final = ((3, 11), (3, 13))
"""The first and the last minor version of CPython with these structures."""
KNOWN_NUMPY: Final = 2


class PyObject(Struct):
    """CPython's PyObject, the head of every object."""

    ob_refcnt: int
    ob_type: PyObject


class PyArrayDescr(PyObject):
    """NumPy's ``_PyArray_Descr``, as far as it is read."""

    typeobj: PyObject
    kind: u8
    type: u8
    byteorder: u8
    former_flags: u8
    type_num: i32
    flags: u64
    elsize: int


class PyArrayObject(PyObject):
    """NumPy's ``PyArrayObject_fields``."""

    data: int
    nd: i32
    dimensions: Array[int]
    strides: Array[int]
    base: PyObject | None
    descr: PyArrayDescr
    flags: i32
    weakreflist: PyObject | None
    buffer_info: int
    mem_handler: PyObject | None


class PyUFuncObject(PyObject):
    """NumPy's ``PyUFuncObject``, as far as it is read."""

    nin: i32
    nout: i32
    nargs: i32
    identity: i32
    functions: Array[int]
    data: Array[int]
    ntypes: i32


API_ARRAY_TYPE: Final = 2  # positions in NumPy's table of C functions
API_NEW_FROM_DESCR: Final = 94

Py_IncRef = CFunction[[PyObject], None]("Py_IncRef")
Py_DecRef = CFunction[[PyObject], None]("Py_DecRef")
PyCapsule_New = CFunction[[int, None, Callable[[PyObject], None]], PyObject | None](
    "PyCapsule_New"
)
PyCapsule_GetPointer = CFunction[[PyObject, None], int]("PyCapsule_GetPointer")
PyCapsule_GetContext = CFunction[[PyObject], int]("PyCapsule_GetContext")
PyCapsule_SetContext = CFunction[[PyObject, int], i32]("PyCapsule_SetContext")
PyLong_AsLongLong = CFunction[[PyObject], int]("PyLong_AsLongLong")
PyLong_FromLongLong = CFunction[[int], PyObject | None]("PyLong_FromLongLong")
PyTuple_New = CFunction[[int], PyObject | None]("PyTuple_New")
PyTuple_SetItem = CFunction[[PyObject, int, PyObject], i32]("PyTuple_SetItem")
PyErr_NoMemory = CFunction[[], None]("PyErr_NoMemory")
PyEval_SaveThread = CFunction[[], int]("PyEval_SaveThread")
PyEval_RestoreThread = CFunction[[int], None]("PyEval_RestoreThread")


@cache
def reads_objects() -> bool:
    """Return whether native code may read Python objects by the structures above.

    It may if these versions of Python and NumPy are known to lay out objects so. If
    not, a RuntimeWarning says that calls take longer. Raises BackendError for a Python
    without the GIL, which guards the state that calls share.
    """
    if "t" in sys.abiflags:
        raise BackendError(
            "compiled functions run on CPython with the GIL, not on "
            f"{sys.version}. Use device='reference'."
        )
    numpy_version = int(np.__version__.partition(".")[0])
    first, last = KNOWN_PYTHON
    is_known = first <= sys.version_info[:2] <= last and numpy_version == KNOWN_NUMPY
    if is_known and sys.implementation.name == "cpython" and _fits():
        return True
    warnings.warn(
        f"arrayfn does not know how {sys.implementation.name} "
        f"{sys.version.partition(' ')[0]} and NumPy {np.__version__} lay out objects: "
        "calls of compiled functions go through Python, and take microseconds longer",
        RuntimeWarning,
        stacklevel=2,
    )
    return False


def numpy_api(position: int) -> int:
    """Return the address at ``position`` in NumPy's table of C functions and types."""
    capsule = np._core._multiarray_umath._ARRAY_API  # type: ignore[attr-defined]
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype = ctypes.c_void_p
    pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
    table = ctypes.c_int64 * (position + 1)
    return table.from_address(int(pointer(capsule, None)))[position]


def _fits() -> bool:
    """Return whether the fields of a NumPy array are where ``PyArrayObject`` says.

    They are read natively and compared with what Python says.
    """
    probe = np.zeros((2, 3), np.float32)[:, ::2]
    field = partial(getattr, PyArrayObject.from_address(id(probe)))
    pair = ctypes.c_int64 * 2
    return (
        field("ob_type") == id(np.ndarray) == numpy_api(API_ARRAY_TYPE)
        and field("data") == probe.__array_interface__["data"][0]
        and field("nd") == probe.ndim
        and tuple(pair.from_address(field("dimensions"))) == probe.shape
        and tuple(pair.from_address(field("strides"))) == probe.strides
        and field("descr") == id(probe.dtype)
        and field("flags") == probe.flags.num
    )
