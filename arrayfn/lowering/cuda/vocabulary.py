"""What CUDA kernels are written in, besides the scalar vocabulary.

Where a thread is, how the threads of a block meet and exchange values, memory that a
block or a thread owns, and vector accesses. Every name of ``FUNCTIONS`` is a name of
this module. A backend compiles the same objects; called, they act for the thread that
an emulator has made the current one.

Indices are i64. ``shared_T`` and ``registers_T`` take a constant and give memory that
is indexed like an array. ``load_TxN(array, at, tile, place)`` copies N elements from
``array[at]`` on to ``tile[place]`` in accesses of up to 128 bits; ``array[at]`` must
lie at a multiple of the vector's size. ``store_TxN`` goes the other way.
``shuffle_xor_T(value, mask)`` gives the value of the lane whose number differs in the
bits of ``mask``, ``shuffle_up_T(value, k)`` that of the lane ``k`` below, if there is
one; all 32 lanes of the warp take part. ``quotient`` and ``remainder`` are
of indices below 2**31.

The blocks of a cluster run at the same time. ``put_T(shared, at, value, rank)`` writes
to the shared memory of the block ``rank`` of the cluster, which must have begun to run.
``cluster_wait`` waits until all threads of the cluster have called ``cluster_arrive``,
and sees what they had put before.

Copies into shared memory can run beside a block. ``arena_T(offset, count)`` is
``count`` elements from byte ``offset`` of the memory that the kernel's launch asks for.
``fetch_T(array, at, shared, place, count, signals, k)`` begins to copy elements, in
pieces of 16 bytes, and returns. ``signals_i64(n)`` are n signals, each of which
``signal_init`` makes, ``expect(signals, k, bytes)`` tells what will arrive, and
``await_signal(signals, k, parity)`` waits for: the first time with parity 0, then 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

from arrayfn.lowering.scalars.arithmetic import COMPLEXES, FLOATS, INTEGERS

WARP: Final = 32
VALUES: Final = ("bool", *INTEGERS, *FLOATS, *COMPLEXES)
"""The dtypes of values in kernels; halves and booleans lie in memory as u16 and u8."""
STORED: Final = (*INTEGERS, *FLOATS, *COMPLEXES)
LANES: Final = (2, 4, 8, 16)

Kind = Literal[
    "block_index",
    "thread_index",
    "barrier",
    "quotient",
    "remainder",
    "shuffle_xor",
    "shuffle_up",
    "shared",
    "registers",
    "load",
    "store",
    "put",
    "cluster_arrive",
    "cluster_wait",
    "arena",
    "fetch",
    "signals",
    "signal_init",
    "expect",
    "await_signal",
]


_UNTYPED: Final[tuple[Kind, ...]] = (
    "block_index",
    "thread_index",
    "barrier",
    "cluster_arrive",
    "cluster_wait",
    "quotient",
    "remainder",
    "signal_init",
    "expect",
    "await_signal",
)


class Thread(Protocol):
    """One running thread, as an emulator makes it."""

    def call(self, function: DeviceFunction, arguments: tuple[Any, ...]) -> Any:
        """Do what ``function`` does for this thread."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class DeviceFunction:
    """One function: ``dtype`` and ``lanes`` are those in its name."""

    name: str
    kind: Kind
    dtype: str = ""
    lanes: int = 1

    def __call__(self, *arguments: Any) -> Any:
        """Act for the current thread. Raises RuntimeError outside an emulator."""
        if _current is None:
            raise RuntimeError(
                f"{self.name} acts for one thread of a launched kernel; to run a CUDA "
                "kernel without a GPU, use arrayfn.backends.cuda.emulator.launch"
            )
        return _current.call(self, arguments)

    def __repr__(self) -> str:
        return f"<device function {self.name}>"


_current: Thread | None = None


def set_current(thread: Thread | None) -> None:
    """Make ``thread`` the one that device functions act for."""
    global _current  # noqa: PLW0603 - one thread runs at a time
    _current = thread


def _functions() -> Iterator[DeviceFunction]:
    for kind in _UNTYPED:
        yield DeviceFunction(kind, kind)
    for t in VALUES:
        yield DeviceFunction(f"shuffle_xor_{t}", "shuffle_xor", t)
        yield DeviceFunction(f"shuffle_up_{t}", "shuffle_up", t)
        yield DeviceFunction(f"shared_{t}", "shared", t)
        yield DeviceFunction(f"registers_{t}", "registers", t)
        yield DeviceFunction(f"put_{t}", "put", t)
    yield DeviceFunction("signals_i64", "signals", "i64")
    for t in STORED:
        yield DeviceFunction(f"arena_{t}", "arena", t)
        yield DeviceFunction(f"fetch_{t}", "fetch", t)
        for n in LANES:
            yield DeviceFunction(f"load_{t}x{n}", "load", t, n)
            yield DeviceFunction(f"store_{t}x{n}", "store", t, n)


FUNCTIONS: Final[dict[str, DeviceFunction]] = {f.name: f for f in _functions()}
"""All functions, by name."""

COLLECTIVE: Final = frozenset(
    f.name
    for f in FUNCTIONS.values()
    if f.kind in ("barrier", "cluster_wait", "shuffle_xor", "shuffle_up")
)
"""Names of the functions at which the threads of a warp or block meet."""


def __getattr__(name: str) -> Callable[..., Any]:
    try:
        return FUNCTIONS[name]
    except KeyError:
        raise AttributeError(name) from None
