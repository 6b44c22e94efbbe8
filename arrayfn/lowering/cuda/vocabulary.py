"""What CUDA kernels are written in, besides the scalar vocabulary.

Where a thread is, how the threads of a block meet and exchange values, memory that a
block or a thread owns, and vector accesses. Every name of ``FUNCTIONS`` is a name of
this module. A backend compiles the same objects; called, they act for the thread that
an emulator has made the current one.

Indices are i64. ``shared_T`` and ``registers_T`` take a constant and give memory that
is indexed like an array. ``load_TxN(array, at, tile, place)`` copies N elements from
``array[at]`` on to ``tile[place]`` in accesses of up to 128 bits; ``array[at]`` must
lie at a multiple of the vector's size. ``store_TxN`` goes the other way; where T is a
half, the registers are float32, and each is rounded. ``widen_TxN(tile, place, wide,
at)`` makes float32 registers of N halves in others, anew each time: they are not kept.
``turn_TxN(tile, place)`` transposes N vectors of N elements there, each of 32 bits.
``greatest_TxN(tile, place, x)`` is the greatest of N halves in registers and the
float32 x, ``least_TxN`` the least; NaN if one is. ``anew_i64(x)`` is x, which the
compiler does not know: what it loads from there it loads again.
``shuffle_xor_T(value, mask)`` gives the value of the lane whose number differs in the
bits of ``mask``, ``shuffle_up_T(value, k)`` that of the lane ``k`` below, if there is
one, and ``shuffle_from_T(value, k)`` that of lane ``k``; all 32 lanes of the warp take
part, as they do in ``match_byte(value)``, the i32 whose bits are the lanes whose value
has the same lowest byte, ``match_word(value)``, for 32 bits, ``ballot(truth)``, whose
bits are the lanes where it is so, and ``warp_barrier``, after which they see what they
had written to memory. ``byte_T(value, shift)`` is the byte that begins at bit
``shift``, as i64. ``quotient`` and ``remainder`` are of indices below 2**31.

``fused_f32(x, y, z)`` is ``x * y + z``, rounded once.

``divide_f32(x, y, inverse)``, where ``inverse`` is ``inverse_f32(y)``, gives the bits
of ``x / y`` if ``divides_f32(|x|, |x|, y)``; the first two are the least and the
greatest magnitude that x has.

``atomic_add_T(array, at, value)`` adds in memory, of the block or of the grid, where
other threads may add to the same element at the same time.

The blocks of a cluster run at the same time. ``cluster_wait`` waits until all threads
of the cluster have called ``cluster_arrive``; then signals are there that were shown
before. ``send_T(shared, at, value, rank, signals, k)`` begins to write to the shared
memory of the block ``rank`` of the cluster, which must have begun to run: its signal
``k`` counts the bytes as they arrive.

Copies into shared memory can run beside a block. ``arena_T(offset, count)`` is
``count`` elements from byte ``offset`` of the memory that the kernel's launch asks for.
``fetch_T(array, at, shared, place, count, signals, k)`` begins to copy elements, in
pieces of 16 bytes, and returns. ``signals_i64(n)`` are n signals, which
``signal_init(signals, n)`` makes; after ``show_signals()``, which is slow, the others
see those that a thread has made. ``expect(signals, k, bytes)`` tells one what will
arrive, and ``await_signal(signals, k, parity)`` waits for it: the first time with
parity 0, then 1. If nothing will, it has come.
Smaller ones each thread begins for itself: ``copy_TxN(array, at, shared, place, live)``
copies N elements of 4 to 16 bytes in all, aligned as a vector of them, or puts zeros
there where ``live`` is 0. ``close_copies`` ends a group of a thread's copies, and
``await_copies(n)`` waits until all of its groups but the last n are done; a barrier
then shows them to the others.

Warps multiply matrices of halves, each lane having a part of each matrix, a *fragment*,
in registers (PTX ISA, matrix fragments for mma.m16n8k16). Of an 8x8 matrix lane l has
elements 2 (l % 4) and the next of row l // 4. ``load_matrix_u16(shared, at, tile,
place)`` loads four such matrices: lane l says at which element row l % 8 of matrix
l // 8 begins, and has the elements of matrix k in ``tile[place + 2 * k]`` and the next;
``load_transposed_u16`` transposes each. ``multiply_T(c, i, a, j, b, k)`` adds ``a @
b.T``, of 16x16 and 8x16, to the 16x8 matrix ``c`` of float32: fragments from registers
i, j and k on, a's being its left half from above, then its right one.
``pack_T(x, y, tile, place)`` rounds two values to halves, into registers.
``approximate_exp2_f32`` is 2**x within 2 ulp, and ``approximate_exp_f32`` is e**x with
a relative error of up to 2**-17: both are 0 instead of subnormal numbers.
``approximate_rsqrt_f32`` is 1 / sqrt(x) within 2 ulp, of numbers that are normal, and
``approximate_sqrt_f32`` and ``approximate_divide_f32`` are sqrt(x) and x / y within 2.
Loops over ``unrolled(n)``, which is ``range(n)``, are written out in machine code.

In a kernel whose blocks all run at once, ``grid_barrier(meeting, blocks)`` waits until
all threads of all ``blocks`` have called it, and sees what they wrote before; the word
``meeting[0]`` is 0 at first. ``window_T(array, at)`` is ``array`` from ``at`` on.

Blocks that do not all run at once hand values on to those that begin later.
``ticket(board, blocks)``, which all threads of a block call first, is its number, from
0, in the order in which the ``blocks`` of a launch begin. ``post_T(board, k, value)``
puts a value at place k of the board, once a launch, and ``posted_T(board, k)`` waits
until it is there, which a block does for lower tickets alone, or for lower numbers of
blocks: these begin in that order. A board is words of u64 that no one else touches, 0
before the first launch: one, and for each place as many as a value has parts of 32
bits. Besides the value, who waited for it sees what was written to memory before a
``fence`` of who posted it, after a ``fence`` of its own. ``postings_TxN(board, k, step,
end, tile)`` waits for the N places k, k + step, ... below ``end``, which it asks for at
once, and puts their values in the first registers of ``tile``: the others stay.

Or blocks take as much work as they come to: ``take(board, at, count)``, which one
thread calls, is the first of ``count`` numbers, from 0 in each launch, that nobody else
takes; they are counted in the word ``board[at]``. One thread of each of the ``blocks``
of a launch calls ``close_board(board, at, blocks)`` when its block takes no more. If
they post too, one thread calls ``open_board(board)`` before, instead of ``ticket``, and
a barrier follows; a block then waits for what is posted for lower numbers alone.

A kernel may be launched while those before it end. ``await_kernels()`` waits for them:
before it only shared memory is read or written. Who does not call it waits first of
all. When all blocks have ended, or called ``release_kernels()``, the next kernel may be
launched, and waits for this one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

from arrayfn.lowering.scalars.arithmetic import COMPLEXES, FLOATS, HALVES, INTEGERS

WARP: Final = 32
VALUES: Final = ("bool", *INTEGERS, *FLOATS, *COMPLEXES)
"""The dtypes of values in kernels; halves and booleans lie in memory as u16 and u8."""
STORED: Final = (*INTEGERS, *FLOATS, *COMPLEXES)
SHARED_LINE: Final = 128
"""Bytes of shared memory that are one line.

Signals lie at the begin of one, and so does an array as large; a smaller one lies
within a line.
"""
SENT: Final = ("i32", "i64", "u32", "u64", *FLOATS, *COMPLEXES)
"""The dtypes that blocks send to each other."""
SENT_BYTES: Final = (4, 8, 16)
"""The sizes of those."""
LEAST_DIVIDEND: Final = 2.0**-90
LEAST_DIVISOR: Final = 2.0**-30
"""Magnitudes, and the inverses of the greatest, that ``divide_f32`` is exact for."""
LANES: Final = (2, 4, 8, 16)
WORDS: Final = ("u32", "i64")
"""The dtypes of keys that are sorted by their bytes."""
ATOMIC: Final = ("i32", "u32", "i64", "u64", "f32", "f64")
"""The dtypes that the card adds to memory without being interrupted."""

Kind = Literal[
    "block_index",
    "thread_index",
    "barrier",
    "warp_barrier",
    "match_byte",
    "match_word",
    "ballot",
    "byte",
    "atomic_add",
    "quotient",
    "remainder",
    "shuffle_xor",
    "shuffle_up",
    "shuffle_from",
    "inverse",
    "divide",
    "divides",
    "fused",
    "shared",
    "registers",
    "load",
    "store",
    "widen",
    "turn",
    "anew",
    "greatest",
    "least",
    "send",
    "cluster_arrive",
    "cluster_wait",
    "arena",
    "fetch",
    "signals",
    "signal_init",
    "show_signals",
    "expect",
    "await_signal",
    "copy",
    "close_copies",
    "await_copies",
    "load_matrix",
    "load_transposed",
    "multiply",
    "pack",
    "approximate_exp2",
    "approximate_exp",
    "approximate_rsqrt",
    "approximate_sqrt",
    "approximate_divide",
    "grid_barrier",
    "window",
    "ticket",
    "post",
    "posted",
    "postings",
    "fence",
    "open_board",
    "take",
    "close_board",
    "await_kernels",
    "release_kernels",
    "unrolled",
]


_UNTYPED: Final[tuple[Kind, ...]] = (
    "block_index",
    "thread_index",
    "barrier",
    "warp_barrier",
    "match_byte",
    "match_word",
    "ballot",
    "cluster_arrive",
    "cluster_wait",
    "quotient",
    "remainder",
    "signal_init",
    "show_signals",
    "expect",
    "await_signal",
    "close_copies",
    "await_copies",
    "grid_barrier",
    "ticket",
    "fence",
    "open_board",
    "take",
    "close_board",
    "await_kernels",
    "release_kernels",
    "unrolled",
)


EXTREMES: Final[tuple[Kind, ...]] = ("greatest", "least")
APPROXIMATE: Final[tuple[Kind, ...]] = (
    "approximate_exp2",
    "approximate_exp",
    "approximate_rsqrt",
    "approximate_sqrt",
    "approximate_divide",
)
PRODUCTS: Final[tuple[Kind, ...]] = ("inverse", "divide", "divides", "fused")
SHUFFLES: Final[tuple[Kind, ...]] = ("shuffle_xor", "shuffle_up", "shuffle_from")


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


_COPIED: Final = {
    "u16": (2, 4, 8),
    **dict.fromkeys(("i32", "u32", "f32"), (1, 2, 4)),
    **dict.fromkeys(("i64", "u64", "f64"), (1, 2)),
}
"""How many elements are copied into shared memory at a time: 4 to 16 bytes."""
_TURNED: Final = {"i8": 4, "u8": 4, "i16": 2, "u16": 2}
"""How many elements are a word that is turned."""


def _functions() -> Iterator[DeviceFunction]:
    for kind in _UNTYPED:
        yield DeviceFunction(kind, kind)
    for t in VALUES:
        yield DeviceFunction(f"shuffle_xor_{t}", "shuffle_xor", t)
        yield DeviceFunction(f"shuffle_up_{t}", "shuffle_up", t)
        yield DeviceFunction(f"shuffle_from_{t}", "shuffle_from", t)
        yield DeviceFunction(f"shared_{t}", "shared", t)
        yield DeviceFunction(f"registers_{t}", "registers", t)
    for t in SENT:
        yield DeviceFunction(f"send_{t}", "send", t)
    for kind in PRODUCTS:
        yield DeviceFunction(f"{kind}_f32", kind, "f32")
    yield DeviceFunction("signals_i64", "signals", "i64")
    yield DeviceFunction("anew_i64", "anew", "i64")
    for t in WORDS:
        yield DeviceFunction(f"byte_{t}", "byte", t)
    for t in ATOMIC:
        yield DeviceFunction(f"atomic_add_{t}", "atomic_add", t)
    for t in STORED:
        yield DeviceFunction(f"arena_{t}", "arena", t)
        yield DeviceFunction(f"fetch_{t}", "fetch", t)
        yield DeviceFunction(f"window_{t}", "window", t)
        yield DeviceFunction(f"post_{t}", "post", t)
        yield DeviceFunction(f"posted_{t}", "posted", t)
        for n in LANES:
            yield DeviceFunction(f"postings_{t}x{n}", "postings", t, n)
            yield DeviceFunction(f"load_{t}x{n}", "load", t, n)
            yield DeviceFunction(f"store_{t}x{n}", "store", t, n)
    for t, n in _TURNED.items():
        yield DeviceFunction(f"turn_{t}x{n}", "turn", t, n)
    for t, counts in _COPIED.items():
        for n in counts:
            yield DeviceFunction(f"copy_{t}x{n}", "copy", t, n)
    yield DeviceFunction("load_matrix_u16", "load_matrix", "u16")
    yield DeviceFunction("load_transposed_u16", "load_transposed", "u16")
    for t in HALVES:
        yield DeviceFunction(f"multiply_{t}", "multiply", t)
        yield DeviceFunction(f"pack_{t}", "pack", t)
        for n in LANES:
            yield DeviceFunction(f"store_{t}x{n}", "store", t, n)
            yield DeviceFunction(f"widen_{t}x{n}", "widen", t, n)
            for kind in EXTREMES:
                yield DeviceFunction(f"{kind}_{t}x{n}", kind, t, n)
    for kind in APPROXIMATE:
        yield DeviceFunction(f"{kind}_f32", kind, "f32")


FUNCTIONS: Final[dict[str, DeviceFunction]] = {f.name: f for f in _functions()}
"""All functions, by name."""

_OF_A_WARP: Final = frozenset(
    (
        "warp_barrier",
        "match_byte",
        "match_word",
        "ballot",
        *SHUFFLES,
        "load_matrix",
        "load_transposed",
        "multiply",
    )
)
_WAITING: Final = (
    *("barrier", "cluster_wait", "await_signal", "grid_barrier"),
    *("posted", "postings"),
)
COLLECTIVE: Final = frozenset(
    f.name for f in FUNCTIONS.values() if f.kind in (*_WAITING, *_OF_A_WARP)
)
"""Names of the functions at which threads meet, or wait."""


class DeviceHelper:
    """A function that a kernel calls: compiled, it becomes a part of the kernel."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *arguments: Any) -> Any:
        """Act for the current thread, as the function's text says."""
        return self.function(*arguments)


def device_function(function: Callable[..., Any]) -> DeviceHelper:
    """Decorates a function of a kernel's text that the kernel calls."""
    return DeviceHelper(function)


def __getattr__(name: str) -> Callable[..., Any]:
    try:
        return FUNCTIONS[name]
    except KeyError:
        raise AttributeError(name) from None
