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

from arrayfn.backends.cpu.libraries.blas import Blas, blas, threaded_blas
from arrayfn.backends.cpu.libraries.provider import Provider
from arrayfn.backends.cpu.pool import KernelEntry, Pool, sched_yield
from arrayfn.backends.cpu.runtime import runtime
from arrayfn.backends.native import (
    atomic_exchange_if,
    atomic_store,
    native,
    pointer,
)
from arrayfn.backends.native.code import native_address
from arrayfn.backends.native.loading import LOCK as LOADING
from arrayfn.backends.native.objects import immortal
from arrayfn.backends.native.structures import Struct, i32


class State(Struct):
    """The library's number of threads, which is the process's."""

    lock: int
    users: int  # routines that run
    saved: int  # the number before
    # Functions of the library; None where it is to have one thread.
    get_threads: Callable[[], i32] | None
    set_threads: Callable[[i32], None] | None


class Arguments(Struct):
    """The arguments of ``on_threads_run``; the routine's own begin at ``own``."""

    state: State
    pool: Pool
    routine: KernelEntry
    own: int


@native
def on_threads_run(arguments: Arguments, begin: int, end: int) -> None:
    """Run a routine while its library has as many threads as the pool."""
    state = arguments.state
    own = pointer(arguments.own)
    if state.get_threads is None or state.set_threads is None:
        arguments.routine(own, begin, end)
        return
    lock(state)
    if state.users == 0:
        state.saved = state.get_threads()
        state.set_threads(arguments.pool.threads)
    state.users += 1
    atomic_store(state.lock, 0)
    arguments.routine(own, begin, end)
    lock(state)
    state.users -= 1
    if state.users == 0:
        state.set_threads(state.saved)
    atomic_store(state.lock, 0)


@native
def lock(state: State) -> None:
    """Wait until no other thread changes the state."""
    while atomic_exchange_if(state.lock, 0, 1) != 0:
        sched_yield()


def state() -> State:
    """The process's state."""
    with LOADING:
        return _state()


@cache
def _state() -> State:
    made = immortal(State)
    library = threaded_blas()
    if library is not blas():
        made.set(get_threads=library.get_threads, set_threads=library.set_threads)
    return made


def with_large(
    name: str, provider: Provider, words: Callable[[str, Blas], tuple[int, ...]]
) -> dict[str, Provider]:
    """A provider, and the one for single large matrices, by their names.

    ``words`` are the provider's with the functions of a library.
    """

    def all_words(dtype: str) -> tuple[int, ...]:
        pool = ctypes.addressof(runtime().pool)
        head = ctypes.addressof(state()), pool, native_address(provider.routine)
        return *head, *words(dtype, threaded_blas())

    large = replace(provider, routine=on_threads_run, words=all_words)
    return {name: provider, f"{name}_large": large}
