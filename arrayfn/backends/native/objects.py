"""Makes CPython objects with native code behind them, and memory that outlives them."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any, Final, TypeVar

from arrayfn.backends.native import Routine
from arrayfn.backends.native.code import native_address
from arrayfn.backends.native.structures import Struct

METH_NOARGS: Final = 0x4
METH_FASTCALL: Final = 0x80


class MethodDef(ctypes.Structure):
    """CPython's ``PyMethodDef``."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


@cache
def method(routine: Routine[..., Any], flags: int) -> MethodDef:
    """Return the PyMethodDef of ``routine``, which describes a builtin to Python.

    ``flags`` are its calling convention, such as METH_FASTCALL. The cache keeps it
    alive, because builtin functions refer to it.
    """
    name = routine.function.__name__.encode()
    return MethodDef(name, native_address(routine), flags, None)


def builtin_of(routine: Routine[..., Any], flags: int, owner: Any) -> Any:
    """Make a builtin function that calls ``routine`` with ``owner`` as its ``self``.

    ``flags`` are its calling convention, such as METH_FASTCALL.
    """
    new = ctypes.pythonapi.PyCFunction_NewEx
    new.restype = ctypes.py_object
    new.argtypes = (ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
    return new(ctypes.addressof(method(routine, flags)), owner, None)


S = TypeVar("S", bound=Struct)


def immortal(kind: type[S]) -> S:
    """Allocate a zeroed structure, aligned to a page, that is never freed."""
    libc = ctypes.CDLL(None)
    libc.posix_memalign.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
    address = ctypes.c_void_p()
    size = ctypes.sizeof(kind)
    if libc.posix_memalign(ctypes.byref(address), 4096, size) or not address.value:
        raise MemoryError
    ctypes.memset(address, 0, size)
    return kind.from_address(address.value)


_CAPSULE_NAMES: Final[dict[bytes, ctypes.c_char_p]] = {}


def new_capsule(pointer: int, name: bytes | None, destructor: int) -> Any:
    """Make a PyCapsule of the address ``pointer``.

    ``destructor`` is the address of a C function, or 0. A capsule refers to its name,
    so names are kept as long as the process lives.
    """
    new = ctypes.pythonapi.PyCapsule_New
    new.restype = ctypes.py_object
    new.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    c_name = (
        None if name is None else _CAPSULE_NAMES.setdefault(name, ctypes.c_char_p(name))
    )
    return new(pointer, c_name, destructor)
