"""Single large matrices, which a library factors on threads of its own.

Batches, small matrices and right-hand sides are divided by arrayfn's threads, each of
which calls ``blas()`` with one thread. A factorization of one matrix can only be
divided inside: ``threaded_blas()`` has as many threads as arrayfn while one runs. How
it divides sums, and so how they are rounded, follows from that number.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Final

from arrayfn.backends.cpu.libraries.blas import Blas, blas, threaded_blas
from arrayfn.backends.cpu.libraries.provider import Provider
from arrayfn.backends.cpu.pool import THREADS
from arrayfn.backends.cpu.runtime import runtime
from arrayfn.backends.native import (
    CFunction,
    atomic_exchange_if,
    atomic_store,
    call,
    load,
    native,
    store,
)
from arrayfn.backends.native.code import native_address
from arrayfn.backends.native.loading import LOCK as LOADING
from arrayfn.backends.native.objects import immortal

sched_yield = CFunction("sched_yield", 0, "i32")

# Byte offsets into the words of the process.
LOCK: Final = 0
USERS: Final = 8  # routines that run
SAVED: Final = 16  # the number of threads before
GET: Final = 24  # functions of the library; 0 where it is to have one thread
SET: Final = 32
STATE_BYTES: Final = 40

# Byte offsets into the arguments.
STATE: Final = 0
POOL: Final = 8
ROUTINE: Final = 16
FIRST: Final = 24  # of the routine's own


@native
def on_threads_run(arguments: int, begin: int, end: int) -> int:
    """Run a routine while its library has as many threads as the pool."""
    state = load(arguments + STATE)
    if load(state + SET) == 0:
        return call(load(arguments + ROUTINE), arguments + FIRST, begin, end)
    lock(state)
    if load(state + USERS) == 0:
        store(state + SAVED, call(load(state + GET)) & 0xFFFF)
        call(load(state + SET), load(load(arguments + POOL) + THREADS))
    store(state + USERS, load(state + USERS) + 1)
    atomic_store(state + LOCK, 0)
    call(load(arguments + ROUTINE), arguments + FIRST, begin, end)
    lock(state)
    store(state + USERS, load(state + USERS) - 1)
    if load(state + USERS) == 0:
        call(load(state + SET), load(state + SAVED))
    atomic_store(state + LOCK, 0)
    return 0


@native
def lock(state: int) -> int:
    """Wait until no other thread changes the words."""
    while atomic_exchange_if(state + LOCK, 0, 1) != 0:
        sched_yield()
    return 0


def state() -> int:
    """The address of the process's words."""
    with LOADING:
        return _state()


@cache
def _state() -> int:
    address = immortal(STATE_BYTES)
    words = (ctypes.c_int64 * (STATE_BYTES // 8)).from_address(address)
    library = threaded_blas()
    own = library if library is not blas() else None
    functions = (own.get_threads, own.set_threads) if own else (0, 0)
    words[:] = (0, 0, 0, *functions)
    return address


def with_large(
    name: str, provider: Provider, words: Callable[[str, Blas], tuple[int, ...]]
) -> dict[str, Provider]:
    """A provider, and the one for single large matrices, by their names.

    ``words`` are the provider's with the functions of a library.
    """

    def all_words(dtype: str) -> tuple[int, ...]:
        head = state(), runtime().pool, native_address(provider.routine)
        return *head, *words(dtype, threaded_blas())

    large = replace(provider, routine=on_threads_run, words=all_words)
    return {name: provider, f"{name}_large": large}
