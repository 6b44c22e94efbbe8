"""The vocabulary of CUDA kernels, besides the scalar functions.

Thread indices, barriers, exchange between threads, shared memory and registers, vector
accesses, asynchronous copies, tensor cores and memory shared by the grid. ``FUNCTIONS``
holds all functions; each is an attribute of this module, too. The CUDA backend compiles
them; called from Python, they act for the current thread of the emulator. Names follow
PTX where there is an instruction. T stands for a dtype, N for a number of elements.

**Memory.** Indices are i64. ``shared_T(n)`` and ``registers_T(n)`` allocate n elements,
a constant, and are indexed like arrays. ``dynamic_shared_T(offset, count)`` is
``count`` elements from byte ``offset`` of the dynamic shared memory that the launch
asks for. ``subarray_T(array, at)`` is ``array`` from element ``at`` on.
``load_TxN(array, at, tile, place)`` copies N elements from ``array[at]`` on to
``tile[place]`` in accesses of up to 128 bits; ``array[at]`` must be aligned to the
vector's size. ``store_TxN`` goes the other way. Where T is fp16 or bf16, the registers
of a store are float32, and each value is rounded. ``widen_TxN(tile, place, wide, at)``
converts N fp16 or bf16 registers to float32 registers, and is never merged with an
earlier conversion of them. ``atomic_add_T(array, at, value)`` adds to an element of
shared or global memory atomically. ``opaque_i64(x)`` is x, hidden from the optimizer: a
load from an address computed with it is not merged with an earlier one.

**Arithmetic.** ``quotient`` and ``remainder`` are of indices below 2**31.
``byte_T(value, shift)`` is the byte that begins at bit ``shift``, as i64.
``fma_rn_f32(x, y, z)`` is ``x * y + z``, rounded once. ``max_TxN(tile, place, x)`` and
``min_TxN`` are the maximum and minimum of N fp16 or bf16 registers and the float32 x;
NaN if one of them is. ``transpose_TxN(tile, place)`` transposes in registers N vectors
of N elements, each vector of 32 bits. ``divide_f32(x, y, inverse)``, where ``inverse``
is ``inverse_f32(y)``, has the bits of ``x / y`` if ``divides_f32(smallest, largest,
y)`` holds for the smallest and largest magnitude that x takes. ``approximate_exp2_f32``
is 2**x within 2 ulp, and ``approximate_exp_f32`` is e**x with a relative error of up to
2**-17; both flush subnormal results to 0. ``approximate_rsqrt_f32`` is 1 / sqrt(x)
within 2 ulp, for normal numbers, and ``approximate_sqrt_f32`` and
``approximate_divide_f32`` are sqrt(x) and x / y within 2. Loops over ``unrolled(n)``,
which is ``range(n)``, are unrolled by the compiler.

**Warps.** All 32 lanes take part. ``shuffle_xor_T(value, mask)`` is the value of the
lane whose number differs in the bits of ``mask``, ``shuffle_up_T(value, k)`` that of
the lane ``k`` below, if there is one, and ``shuffle_from_T(value, k)`` that of lane
``k``. ``match_any_u32(value)`` is the i32 mask of the lanes that have the same value,
and ``match_any_byte(value)`` of those that have the same lowest byte. ``ballot(truth)``
is the mask of the lanes where ``truth`` holds. After ``warp_barrier()`` the lanes see
what the others had written to memory.

**Clusters.** The blocks of a cluster run at the same time. ``cluster_wait()`` waits
until all threads of the cluster have called ``cluster_arrive()``.
``dsmem_store_T(shared, at, value, rank, mbarriers, k)`` begins to store to the shared
memory of block ``rank`` of the cluster (distributed shared memory, ``st.async``), whose
mbarrier ``k`` counts the bytes as they arrive. That block must have begun to run.

**mbarriers and bulk copies.** ``mbarriers_i64(n)`` allocates n mbarriers, and
``mbarrier_init(mbarriers, n)`` initializes each for one arrival. After
``fence_mbarrier_init()``, which is slow, other threads, blocks and copies may use them.
``mbarrier_expect_tx(mbarriers, k, bytes)`` arrives and says how many bytes the current
phase waits for. ``mbarrier_wait(mbarriers, k, parity)`` waits for the end of a phase:
parity is 0 for the first phase, then 1, and so on. A phase of 0 bytes ends at once.
``bulk_copy_T(array, at, shared, place, count, mbarriers, k)`` begins to copy elements
from global to shared memory (``cp.async.bulk``), in multiples of 16 bytes; mbarrier k
counts them.

**cp.async.** ``cp_async_TxN(array, at, shared, place, live)`` begins a copy of this
thread's to shared memory, of 4 to 16 aligned bytes; zeros are stored where ``live`` is
0. ``cp_async_commit()`` closes a group of such copies, and ``cp_async_wait(n)`` waits
until all groups of this thread but the last n are complete. Other threads see them
after a barrier.

**Tensor cores.** Warps multiply matrices of fp16 or bf16, of which each lane holds a
*fragment* in registers (PTX ISA, matrix fragments for mma.m16n8k16). Of an 8x8 matrix
lane l holds elements 2 (l % 4) and the next of row l // 4. ``ldmatrix_u16(shared, at,
tile, place)`` loads four such matrices: lane l gives the element at which row l % 8 of
matrix l // 8 begins, and receives its elements of matrix k in ``tile[place + 2 * k]``
and the next. ``ldmatrix_trans_u16`` transposes each. ``mma_T(c, i, a, j, b, k)`` adds
``a @ b.T``, of 16x16 and 8x16, to the 16x8 matrix ``c`` of float32. Their fragments
begin at registers i, j and k; those of a are its left half from top to bottom, then its
right one. ``pack_T(x, y, tile, place)`` rounds two values to fp16 or bf16 registers.

**Grids that run at once.** In a cooperative kernel ``grid_barrier(barrier_state,
blocks)`` waits until all threads of all ``blocks`` have called it, and makes visible
what they wrote before. The word ``barrier_state[0]`` is 0 at first.

**Decoupled look-back.** Blocks that do not all run at once hand values on to blocks
that begin later. ``dynamic_block_id(flag_buffer, blocks)``, which all threads of a
block call first, numbers the ``blocks`` of a launch from 0 in the order in which they
begin. ``publish_T(flag_buffer, k, value)`` publishes a value in slot k, once a launch,
and ``wait_for_T(flag_buffer, k)`` waits for it and returns it. To be free of deadlock,
a block waits only for blocks of lower ids, which have begun before. ``wait_for_TxN(
flag_buffer, k, step, end, tile)`` waits for the N slots k, k + step, ... below ``end``,
whose loads are issued together, and puts the values in the first registers of ``tile``;
registers of slots from ``end`` on stay as they are. Who waits also sees other memory
that the publisher wrote before a ``fence()``, after a ``fence()`` of its own. A flag
buffer is u64 words that are 0 before the first launch and used by only one kernel: one
word, and as many for each slot as a value has parts of 32 bits. Every flag holds the
number of its launch, so nothing is cleared between launches.

**Work queue.** ``next_work_item(flag_buffer, at, count)``, called by one thread, claims
``count`` work items and returns the first: an atomic counter, ``flag_buffer[at]``, from
0 in each launch. When its block claims no more, one thread of each of the ``blocks``
calls ``end_work_queue(flag_buffer, at, blocks)``; the last resets the counter. If the
blocks publish values, too, one thread calls ``begin_work_queue(flag_buffer)`` first, in
place of ``dynamic_block_id``, and a barrier follows.

**Programmatic dependent launch.** A kernel may be launched while those before it end.
``griddepcontrol_wait()`` waits for them: before it, a kernel may use only shared
memory. A kernel that does not call it waits at its beginning. Once all blocks of a
kernel have ended, or have called ``griddepcontrol_launch_dependents()``, the next
kernel is launched.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Literal, Protocol, get_args

from typing_extensions import override

from arrayfn.dtypes import DType
from arrayfn.lowering.scalars.arithmetic import (
    COMPLEXES,
    FLOATS,
    HALF_PRECISION,
    INTEGERS,
)
from arrayfn.records import frozen

WARP: Final = 32
VALUES: Final = ("bool", *INTEGERS, *FLOATS, *COMPLEXES)
"""The dtypes of values in kernels; in memory fp16 and bf16 are u16, booleans u8."""
MEMORY_DTYPES: Final = (*INTEGERS, *FLOATS, *COMPLEXES)
VECTOR_BYTES: Final = 16
"""Bytes of the widest access of a thread to memory."""
SHARED_LINE: Final = 128
"""Bytes of a line of shared memory.

mbarriers and arrays of at least a line begin at a line; a smaller array lies within one
line.
"""
DSMEM_DTYPES: Final = ("i32", "i64", "u32", "u64", *FLOATS, *COMPLEXES)
"""The dtypes that blocks of a cluster store in each other's shared memory."""
DSMEM_BYTES: Final = (4, 8, 16)
"""The sizes of these dtypes in bytes."""
MIN_DIVIDEND: Final = 2.0**-90
MIN_DIVISOR: Final = 2.0**-30
"""``divide_f32`` is exact for magnitudes of x and y from these up to their inverses."""
LANES: Final = (2, 4, 8, 16)
KEY_DTYPES: Final = ("u32", "i64")
"""The dtypes of radix-sort keys."""
ATOMIC: Final = ("i32", "u32", "i64", "u64", "f32", "f64")
"""The dtypes of atomic additions."""

_Untyped = Literal[
    "block_index",
    "thread_index",
    "barrier",
    "warp_barrier",
    "match_any_byte",
    "match_any_u32",
    "ballot",
    "cluster_arrive",
    "cluster_wait",
    "quotient",
    "remainder",
    "mbarrier_init",
    "fence_mbarrier_init",
    "mbarrier_expect_tx",
    "mbarrier_wait",
    "cp_async_commit",
    "cp_async_wait",
    "grid_barrier",
    "dynamic_block_id",
    "fence",
    "begin_work_queue",
    "next_work_item",
    "end_work_queue",
    "griddepcontrol_wait",
    "griddepcontrol_launch_dependents",
    "unrolled",
]
_Extreme = Literal["max", "min"]
_Approximate = Literal[
    "approximate_exp2",
    "approximate_exp",
    "approximate_rsqrt",
    "approximate_sqrt",
    "approximate_divide",
]
_Product = Literal["inverse", "divide", "divides", "fma_rn"]
_Shuffle = Literal["shuffle_xor", "shuffle_up", "shuffle_from"]
_Typed = Literal[
    "byte",
    "atomic_add",
    "shared",
    "registers",
    "load",
    "store",
    "widen",
    "transpose",
    "opaque",
    "dsmem_store",
    "dynamic_shared",
    "bulk_copy",
    "mbarriers",
    "cp_async",
    "ldmatrix",
    "ldmatrix_trans",
    "mma",
    "pack",
    "subarray",
    "publish",
    "wait_for",
    "wait_for_many",
]
Kind = _Untyped | _Extreme | _Approximate | _Product | _Shuffle | _Typed
EXTREMES: Final[tuple[Kind, ...]] = get_args(_Extreme)
APPROXIMATE: Final[tuple[Kind, ...]] = get_args(_Approximate)
PRODUCTS: Final[tuple[Kind, ...]] = get_args(_Product)
SHUFFLES: Final[tuple[Kind, ...]] = get_args(_Shuffle)


def vector_lanes(dtype: DType) -> int:
    """Return how many elements of ``dtype`` the widest access of a thread moves."""
    return VECTOR_BYTES // dtype.itemsize


class Thread(Protocol):
    """A thread of an emulated launch, for which device functions are executed."""

    def call(self, function: DeviceFunction, arguments: tuple[Any, ...]) -> Any:
        """Execute ``function`` with these arguments; return its result."""
        ...


@frozen(slots=True, eq=False)
class DeviceFunction:
    """A function that kernels call and that the CUDA backend compiles to instructions.

    Args:
        name: The name in kernels, such as ``load_f32x4``.
        kind: The name without its dtype and number of lanes: ``load``.
        dtype: The dtype in the name, or empty.
        lanes: The number of elements in the name, or 1.
    """

    name: str
    kind: Kind
    dtype: str = ""
    lanes: int = 1

    def __call__(self, *arguments: Any) -> Any:
        """Execute the function for the emulator's current thread; return its result.

        Raises RuntimeError outside of an emulated launch.
        """
        if _current is None:
            raise RuntimeError(
                f"{self.name} acts for one thread of a launched kernel; to run a CUDA "
                "kernel without a GPU, use arrayfn.backends.cuda.emulator.launch"
            )
        return _current.call(self, arguments)

    @override
    def __repr__(self) -> str:
        return f"<device function {self.name}>"


_current: Thread | None = None


def set_current(thread: Thread | None) -> None:
    """Set the thread that device functions are executed for; None after a launch."""
    global _current  # noqa: PLW0603 - one thread runs at a time
    _current = thread


_COPIED: Final = {
    "u16": (2, 4, 8),
    **dict.fromkeys(("i32", "u32", "f32"), (1, 2, 4)),
    **dict.fromkeys(("i64", "u64", "f64"), (1, 2)),
}
"""The numbers of elements that one ``cp.async`` can copy: 4 to 16 bytes."""
_TRANSPOSED: Final = {"i8": 4, "u8": 4, "i16": 2, "u16": 2}
"""The elements of each dtype that fill 32 bits."""


def _typed(
    kinds: Iterable[Kind], dtypes: Iterable[str], lanes: Iterable[int] = ()
) -> Iterator[DeviceFunction]:
    """Yield a function for each of ``kinds``, ``dtypes`` and ``lanes``.

    The function's name is ``kind_T``, or ``kind_TxN`` if ``lanes`` are given.
    """
    counts = [(f"x{n}", n) for n in lanes] or [("", 1)]
    for kind, t, (suffix, n) in itertools.product(kinds, dtypes, counts):
        # ``wait_for_f32`` has another kind than ``wait_for_f32x8``.
        stem = "wait_for" if kind == "wait_for_many" else kind
        yield DeviceFunction(f"{stem}_{t}{suffix}", kind, t, n)


def _functions() -> Iterator[DeviceFunction]:
    """Yield all functions of the vocabulary, with the dtypes that each kind has."""
    untyped: tuple[Kind, ...] = get_args(_Untyped)
    for kind in untyped:
        yield DeviceFunction(kind, kind)
    yield from _typed((*SHUFFLES, "shared", "registers"), VALUES)
    yield from _typed(("dsmem_store",), DSMEM_DTYPES)
    yield from _typed((*PRODUCTS, *APPROXIMATE), ("f32",))
    yield from _typed(("mbarriers", "opaque"), ("i64",))
    yield from _typed(("byte",), KEY_DTYPES)
    yield from _typed(("atomic_add",), ATOMIC)
    in_memory: tuple[Kind, ...] = ("dynamic_shared", "bulk_copy", "subarray")
    yield from _typed((*in_memory, "publish", "wait_for"), MEMORY_DTYPES)
    yield from _typed(("wait_for_many", "load", "store"), MEMORY_DTYPES, LANES)
    # Some have one number of lanes for each dtype, or several.
    for t, n in _TRANSPOSED.items():
        yield from _typed(("transpose",), (t,), (n,))
    for t, counts in _COPIED.items():
        yield from _typed(("cp_async",), (t,), counts)
    yield from _typed(("ldmatrix", "ldmatrix_trans"), ("u16",))
    yield from _typed(("mma", "pack"), HALF_PRECISION)
    yield from _typed(("store", "widen", *EXTREMES), HALF_PRECISION, LANES)


FUNCTIONS: Final[dict[str, DeviceFunction]] = {f.name: f for f in _functions()}
"""All functions, by name."""

_WARP_COLLECTIVES: Final = frozenset(
    (
        "warp_barrier",
        "match_any_byte",
        "match_any_u32",
        "ballot",
        *SHUFFLES,
        "ldmatrix",
        "ldmatrix_trans",
        "mma",
    )
)
_BLOCKING: Final = (
    *("barrier", "cluster_wait", "mbarrier_wait", "grid_barrier"),
    *("wait_for", "wait_for_many"),
)
COLLECTIVE: Final = frozenset(
    f.name for f in FUNCTIONS.values() if f.kind in (*_BLOCKING, *_WARP_COLLECTIVES)
)
"""Names of the functions at which a thread waits for others."""


class DeviceHelper:
    """A Python function in a kernel's text, which the kernel calls.

    Compiled, it becomes part of the kernel. In an emulator it runs as Python.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *arguments: Any) -> Any:
        """Run the helper as Python, for the emulator's current thread."""
        return self.function(*arguments)


def device_function(function: Callable[..., Any]) -> DeviceHelper:
    """Mark a helper function in a kernel's text, as a decorator."""
    return DeviceHelper(function)


def __getattr__(name: str) -> Callable[..., Any]:
    """Return the device function ``name``, so that it is an attribute of this module.

    ``vocabulary.barrier`` is ``FUNCTIONS["barrier"]``.
    """
    try:
        return FUNCTIONS[name]
    except KeyError:
        raise AttributeError(name) from None
