"""DLPack's structures, through ctypes: an array's memory given away, and received."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from arrayfn import dtypes

CPU: Final = 1
CUDA: Final = 2
_CODES: Final = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
_NARROW: Final = {
    dtypes.bfloat16: 4,
    dtypes.float8_e4m3fn: 10,
    dtypes.float8_e5m2: 12,
}


class _Tensor(ctypes.Structure):
    """DLTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset", ctypes.c_uint64),
    )


_Deleter = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    """DLManagedTensor."""

    _fields_ = (
        ("tensor", _Tensor),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


_NAME: Final = b"dltensor"
_USED: Final = b"used_dltensor"
_Destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_python = ctypes.pythonapi
_new = _python.PyCapsule_New
_new.restype = ctypes.py_object
_new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_get = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", _python)
)
_rename = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_SetName", _python)
)
# The destructor's capsule is dying: it must not be counted as an object.
_is_unused = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", _python)
)
_get_dying = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", _python)
)
_exported: dict[int, Any] = {}
"""What must live until a receiver is done, by the address of its ``_Managed``."""


@_Deleter
def _release(address: int) -> None:
    """Drop the exported array whose ``_Managed`` is at ``address``.

    A receiver calls this as the deleter of the capsule's DLManagedTensor.
    """
    _exported.pop(address, None)


@_Destructor
def _drop(capsule: int) -> None:
    """Release the array of a capsule that dies without having been received."""
    if _is_unused(capsule, _NAME):
        _release(_get_dying(capsule, _NAME))


def export(
    owner: object,
    pointer: int,
    shape: Sequence[int],
    strides: Sequence[int],
    dtype: np.dtype[Any],
    device: tuple[int, int],
) -> Any:
    """Return a capsule of an array; ``owner`` lives until the receiver is done.

    ``pointer`` is the address of the first element; ``shape`` and ``strides`` count
    elements. ``device`` is its kind, ``CPU`` or ``CUDA``, and its number. Raises
    BufferError for int4.
    """
    extents = (ctypes.c_int64 * len(shape))(*shape)
    steps = (ctypes.c_int64 * len(shape))(*strides)
    if dtype in dtypes.INT4:
        raise BufferError(
            "DLPack has no int4 in a byte of its own; export x.view('u1')"
        )
    code = _NARROW[dtype] if dtype in _NARROW else _CODES[dtype.kind]
    managed = _Managed(
        _Tensor(
            pointer,
            *device,
            len(shape),
            code,
            8 * dtype.itemsize,
            1,
            extents,
            steps,
            0,
        ),
        None,
        ctypes.cast(_release, ctypes.c_void_p),
    )
    address = ctypes.addressof(managed)
    _exported[address] = (managed, extents, steps, owner)
    return _new(address, _NAME, ctypes.cast(_drop, ctypes.c_void_p))


class Received:
    """An array that another library gave, which is released when this object dies.

    ``pointer`` is the address of the first element. ``strides`` are in elements, or
    None for a row-major array.
    """

    def __init__(self, address: int) -> None:
        self._managed = _Managed.from_address(address)
        self._address = address
        tensor = self._managed.tensor
        self.pointer = int(tensor.data or 0) + tensor.offset
        self.shape = tuple(tensor.shape[: tensor.ndim])
        self.strides = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else None
        self.dtype = _dtype(tensor.code, tensor.bits, tensor.lanes)

    def __del__(self) -> None:
        if self._managed.deleter:
            _Deleter(self._managed.deleter)(self._address)


def receive(capsule: Any) -> Received:
    """Take the array out of ``capsule``, which cannot be used again."""
    address = _get(capsule, _NAME)
    # DLPack's convention: a renamed capsule does not release the array when it dies.
    _rename(capsule, _USED)
    return Received(address)


def _dtype(code: int, bits: int, lanes: int) -> np.dtype[Any]:
    """Return the dtype of a DLPack type; TypeError if there is none."""
    narrow = {number: dtype for dtype, number in _NARROW.items()}
    if lanes == 1 and code in narrow:
        return narrow[code]
    kinds = {number: kind for kind, number in _CODES.items()}
    if lanes != 1 or code not in kinds:
        raise TypeError(
            f"arrayfn has no data type for DLPack's type {code} of {bits} bits; "
            "convert the array first"
        )
    if kinds[code] == "b":
        return dtypes.bool_
    return dtypes.canonical(np.dtype(f"{kinds[code]}{bits // 8}"))
