"""What all executables of a process share: native routines, thread pool, heap.

``runtime()`` makes it on first use. ``set_num_threads`` and ``get_num_threads`` govern
the pool; the default is ``ARRAYFN_NUM_THREADS``, else the processors this process may
use (``lowering.cpu.machine``).
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np

from arrayfn.backends.cpu import (  # interrupts defines the words of signals
    entry,
    heap,
    image_layout,
    interrupts,  # noqa: F401  # pyright: ignore[reportUnusedImport]
    pool,
)
from arrayfn.backends.native import Routine
from arrayfn.backends.native.code import native_address, native_addresses
from arrayfn.backends.native.loading import LOCK
from arrayfn.backends.native.objects import (
    METH_FASTCALL,
    MethodDef,
    immortal,
    method,
    new_capsule,
)
from arrayfn.errors import ArgumentError, BackendError
from arrayfn.lowering.cpu import machine

SPINS: Final = 2000
HEAP_LIMIT: Final = 512 << 20
_CORE_FUNCTIONS: Final = {
    pool.GET_CORE: "sched_getcpu",
    pool.GET_CORES: "sched_getaffinity",
    pool.SET_CORES: "sched_setaffinity",
}
MADV_HUGEPAGE: Final = 14


class _MemoryHandler(ctypes.Structure):
    """NumPy's ``PyDataMem_Handler``, version 1 (NEP 49)."""

    _fields_ = (
        ("name", ctypes.c_char * 127),
        ("version", ctypes.c_uint8),
        ("context", ctypes.c_void_p),
        ("malloc", ctypes.c_void_p),
        ("calloc", ctypes.c_void_p),
        ("realloc", ctypes.c_void_p),
        ("free", ctypes.c_void_p),
    )


@dataclass(frozen=True)
class Runtime:
    """Addresses of the process's pool, heap and BLAS words, and its call entries."""

    pool: int
    heap: int
    blas: int
    memory_handler: int
    numpy_api: int
    methods: dict[str, MethodDef]
    keepalive: tuple[Any, ...]


def _callable(routine: Routine) -> Any:
    """A native routine of two integers as a function; the GIL stays held."""
    prototype = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
    return prototype(native_address(routine))


def _numpy_api() -> int:
    """The address of NumPy's table of C functions."""
    capsule = np._core._multiarray_umath._ARRAY_API  # type: ignore[attr-defined]
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype = ctypes.c_void_p
    pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
    return int(pointer(capsule, None))


def _c_function(name: str) -> int:
    """The address of a function of the C library; 0 if it has no such function."""
    function = getattr(ctypes.CDLL(None), name, None)
    return ctypes.cast(function, ctypes.c_void_p).value or 0 if function else 0


def _heap_limit() -> int:
    try:
        physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return HEAP_LIMIT
    return min(HEAP_LIMIT, physical // 16)


def _word(address: int) -> ctypes.c_int64:
    return ctypes.c_int64.from_address(address)


@cache
def runtime() -> Runtime:
    """The process's runtime. The first call loads the routines that all plans need."""
    with LOCK:
        return _make()


def _check_interpreter(api: int) -> None:
    """Raise BackendError where objects don't lie in memory as ``entry`` reads them."""
    probe = np.zeros((2, 3), np.float32)[:, ::2]
    words = (ctypes.c_int64 * 9).from_address(id(probe))
    word = {offset: words[offset // 8] for offset in range(0, 72, 8)}
    fits = (
        word[entry.OBJECT_TYPE] == id(np.ndarray)
        and word[entry.ARRAY_DATA] == probe.__array_interface__["data"][0]
        and word[entry.ARRAY_NDIM] & 0xFFFFFFFF == 2
        and list((ctypes.c_int64 * 2).from_address(word[entry.ARRAY_DIMS])) == [2, 2]
        and list((ctypes.c_int64 * 2).from_address(word[entry.ARRAY_STRIDES]))
        == [12, 8]
        and word[entry.ARRAY_DESCR] == id(probe.dtype)
        and word[entry.ARRAY_FLAGS] & 0xFFFFFFFF == probe.flags.num
        and _word(api + 8 * entry.API_ARRAY_TYPE).value == id(np.ndarray)
        and _word(id(1.5) + entry.FLOAT_VALUE).value == 0x3FF8 << 48
    )
    if not fits or "t" in sys.abiflags:
        raise BackendError(
            "the CPU backend runs on CPython with the GIL, and NumPy 2; not on "
            f"{sys.version} with NumPy {np.__version__}. Use device='reference'."
        )


def _make() -> Runtime:
    _check_interpreter(_numpy_api())
    methods = {
        name: method(routine, METH_FASTCALL)
        for name, routine in (
            ("call_tuple", entry.call_tuple),
            ("call_single", entry.call_single),
            ("call_into", entry.call_into),
        )
    }
    the_pool = immortal(pool.POOL_BYTES)
    the_heap = immortal(heap.HEAP_BYTES)
    _word(the_heap + heap.LIMIT).value = _heap_limit()
    if os.uname().sysname == "Linux":
        _word(the_heap + heap.HUGE_ADVICE).value = MADV_HUGEPAGE
    _word(the_pool + pool.THREADS).value = machine.cores()
    _word(the_pool + pool.SPINS).value = SPINS
    for place, function in _CORE_FUNCTIONS.items():
        _word(the_pool + place).value = _c_function(function)
    handler = _MemoryHandler(
        b"arrayfn",
        1,
        the_heap,
        *native_addresses(
            heap.handler_malloc,
            heap.handler_calloc,
            heap.handler_realloc,
            heap.handler_free,
        ),
    )
    handler_address = immortal(ctypes.sizeof(handler))
    ctypes.memmove(handler_address, ctypes.byref(handler), ctypes.sizeof(handler))
    capsule = new_capsule(handler_address, b"mem_handler", 0)
    made = Runtime(
        pool=the_pool,
        heap=the_heap,
        blas=immortal(image_layout.BLAS_BYTES),
        memory_handler=id(capsule),
        numpy_api=_numpy_api(),
        methods=methods,
        keepalive=(capsule,),
    )
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(made))
    reset, stop = _callable(pool.pool_reset), _callable(pool.pool_stop)
    reset(the_pool, 0)
    os.register_at_fork(after_in_child=lambda: reset(the_pool, 0))
    atexit.register(lambda: stop(the_pool, 0))
    return made


def get_num_threads() -> int:
    """How many threads a compiled function may use.

    >>> get_num_threads() >= 1
    True
    """
    return _word(runtime().pool + pool.THREADS).value


def set_num_threads(count: int) -> None:
    """Let compiled functions use ``count`` threads, the calling one included.

    Raises ArgumentError unless ``1 <= count <= 256``. Results don't depend on it.
    """
    if type(count) is not int:
        raise ArgumentError(f"the number of threads is an int, not {count!r}")
    if not 1 <= count <= pool.MAX_THREADS:
        raise ArgumentError(
            f"the number of threads is from 1 to {pool.MAX_THREADS}, not {count}"
        )
    _callable(pool.pool_resize)(runtime().pool, count)
