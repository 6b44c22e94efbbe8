"""The state that all executables of a process share: routines, pool, heap.

``runtime()`` makes it on first use. ``set_num_threads`` and ``get_num_threads`` govern
the pool; the default is ``ARRAYFN_NUM_THREADS``, else the processors this process may
use (``lowering.cpu.machine``).
"""

from __future__ import annotations

import atexit
import ctypes
import os
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, Final

from arrayfn.backends.addresses import function_address
from arrayfn.backends.cpu import entry, heap, pool, portable_entry
from arrayfn.backends.cpu.heap import Heap, MemoryHandler
from arrayfn.backends.cpu.image_layout import Blas
from arrayfn.backends.cpu.pool import Pool
from arrayfn.backends.native import Routine
from arrayfn.backends.native.code import native_address, native_addresses
from arrayfn.backends.native.loading import LOCK
from arrayfn.backends.native.objects import (
    METH_FASTCALL,
    builtin_of,
    immortal,
    new_capsule,
)
from arrayfn.backends.native.python_objects import (
    API_ARRAY_TYPE,
    API_NEW_FROM_DESCR,
    numpy_api,
    reads_objects,
)
from arrayfn.errors import ArgumentError
from arrayfn.lowering.cpu import machine
from arrayfn.records import frozen

SPINS: Final = 2000  # iterations in which an idle worker looks for work, then it sleeps
HEAP_LIMIT: Final = 512 << 20  # bytes on the free list
_CORE_FUNCTIONS: Final = {
    "get_core": "sched_getcpu",
    "get_cores": "sched_getaffinity",
    "set_cores": "sched_setaffinity",
}
MADV_HUGEPAGE: Final = 14  # of sys/mman.h


@frozen
class Runtime:
    """The native state of a process: thread pool, heap, BLAS libraries.

    ``array_type`` and ``new_from_descr`` are addresses of NumPy's ndarray type and of
    its ``PyArray_NewFromDescr``. ``entries(capsule, inputs, outputs)`` makes the
    functions of an ``Executable``, by name, from the capsule of an image and the types
    of its inputs and outputs.
    """

    pool: Pool
    heap: Heap
    blas: Blas
    threaded_blas: Blas
    memory_handler: object
    array_type: int
    new_from_descr: int
    entries: Callable[..., dict[str, Callable[..., Any]]]


def _callable(routine: Routine[..., Any]) -> Callable[..., None]:
    """Return a native routine as a Python function of addresses and integers.

    A call keeps the GIL, and returns None.
    """
    prototype = ctypes.PYFUNCTYPE(None, *[ctypes.c_int64] * routine.arity)
    return prototype(native_address(routine))


def _c_function(name: str) -> int:
    """Return the address of the C library's function ``name``; 0 if it has none."""
    return function_address(getattr(ctypes.CDLL(None), name, None))


def _heap_limit() -> int:
    """Return the limit in bytes of the heap's free list.

    It is ``HEAP_LIMIT``, or a 16th of the machine's memory if that is less.
    """
    try:
        physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return HEAP_LIMIT
    return min(HEAP_LIMIT, physical // 16)


@cache
def runtime() -> Runtime:
    """Return the process's Runtime. The first call makes it and loads its routines."""
    with LOCK:
        return _make()


def _make() -> Runtime:
    """Make the runtime, which lives as long as the process.

    Images hold the addresses of its parts, so the last line keeps it alive.
    """
    entries = _native_entries if reads_objects() else portable_entry.entries
    the_heap = immortal(Heap)
    the_heap.limit = _heap_limit()
    if os.uname().sysname == "Linux":
        the_heap.huge_advice = MADV_HUGEPAGE
    handler = _memory_handler(the_heap)
    made = Runtime(
        pool=_make_pool(machine.cores()),
        heap=the_heap,
        blas=immortal(Blas),
        threaded_blas=immortal(Blas),
        memory_handler=new_capsule(ctypes.addressof(handler), b"mem_handler", 0),
        array_type=numpy_api(API_ARRAY_TYPE),
        new_from_descr=numpy_api(API_NEW_FROM_DESCR),
        entries=entries,
    )
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(made))
    return made


def _native_entries(capsule: Any, *_: object) -> dict[str, Callable[..., Any]]:
    """Return the call functions of a plan as builtins that check arguments natively.

    ``capsule`` holds the plan's Image and becomes the ``self`` of the builtins. Types
    of inputs and outputs, which ``Runtime.entries`` passes too, are in the image.
    """
    routines = (entry.call_tuple, entry.call_single, entry.call_into)
    names = ("call", "call_single", "call_into")
    return {
        name: builtin_of(routine, METH_FASTCALL, capsule)
        for name, routine in zip(names, routines, strict=True)
    }


def with_own_pool(threads: int) -> Runtime:
    """Return a copy of the process's runtime with its own pool of ``threads`` threads.

    The copy lives as long as the process.
    """
    shared = runtime()
    with LOCK:
        made = replace(shared, pool=_make_pool(threads))
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(made))
    return made


def _make_pool(threads: int) -> Pool:
    """Make a pool of ``threads`` threads.

    It is reset in a forked child, where its workers do not exist, and stopped at exit.
    """
    made = immortal(Pool)
    made.threads = threads
    made.spins = SPINS
    made.set(**{field: _c_function(name) for field, name in _CORE_FUNCTIONS.items()})
    address = ctypes.addressof(made)
    reset, stop = _callable(pool.pool_reset), _callable(pool.pool_stop)
    reset(address)
    os.register_at_fork(after_in_child=lambda: reset(address))
    atexit.register(lambda: stop(address))
    return made


def _memory_handler(the_heap: Heap) -> MemoryHandler:
    """Make NumPy's memory handler (NEP 49) that allocates from ``the_heap``."""
    made = immortal(MemoryHandler)
    names = ("malloc", "calloc", "realloc", "free")
    routines = (
        heap.heap_allocate,
        heap.handler_calloc,
        heap.handler_realloc,
        heap.heap_free,
    )
    # The handler begins with its name, an array of 127 characters.
    ctypes.memmove(ctypes.addressof(made), b"arrayfn", len("arrayfn"))
    made.version = 1
    made.set(context=ctypes.addressof(the_heap))
    made.set(**dict(zip(names, native_addresses(*routines), strict=True)))
    return made


def get_num_threads() -> int:
    """Return the number of threads that a compiled function may use.

    >>> get_num_threads() >= 1
    True
    """
    return runtime().pool.threads


def set_num_threads(count: int) -> None:
    """Let compiled functions use ``count`` threads, including the calling thread.

    Results do not depend on ``count``. Waits until no plan uses the threads. Raises
    ArgumentError unless ``count`` is an int and ``1 <= count <= 256``.
    """
    if type(count) is not int:
        raise ArgumentError(f"the number of threads must be an int, not {count!r}")
    if not 1 <= count <= pool.MAX_THREADS:
        raise ArgumentError(
            f"the number of threads is from 1 to {pool.MAX_THREADS}, not {count}"
        )
    _callable(pool.pool_resize)(ctypes.addressof(runtime().pool), count)
