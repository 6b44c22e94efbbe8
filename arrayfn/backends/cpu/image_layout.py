"""The structures that native routines read: a plan's *image*, a call's *frame*.

An image is a plan encoded as structures, which ``image`` makes. A frame has what one
call of it needs; see ``frames``.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Final

from arrayfn.backends.cpu.heap import Heap
from arrayfn.backends.cpu.pool import KernelEntry, Pool
from arrayfn.backends.native.python_objects import (
    PyArrayDescr,
    PyArrayObject,
    PyObject,
)
from arrayfn.backends.native.structures import Array, Struct, i32

RELEASE_GIL: Final = 1  # flags of an image
PARALLEL: Final = 2
USES_BLAS: Final = 4
USES_THREADED_BLAS: Final = 8

CHECK_AFTER: Final = 16  # sum of steps' weights after which signals are checked
INLINE_WORKSPACE: Final = 1 << 16  # bytes of a workspace that is part of its frame
LINE: Final = 64  # bytes of a cache line

# The arguments of a carry, counted from ``Carry.argument`` on: addresses of its initial
# value, of the two buffers that iterations alternate between, and of the final result.
CARRY_INITIAL: Final = 0
CARRY_FIRST: Final = 1
CARRY_SECOND: Final = 2
CARRY_RESULT: Final = 3


class StepKind(IntEnum):
    """The kinds of steps."""

    CALL = 0
    LOOP = 1
    BRANCH = 2


class Layout(IntEnum):
    """Memory layouts of arrays."""

    C = 0
    F = 1
    STRIDED = 2


class Number(IntEnum):
    """Which Python numbers an array of rank 0 accepts, and the dtype stored."""

    NONE = 0
    F32 = 1
    F64 = 2
    INT = 3  # of 8 bytes
    BOOL = 4


class Spec(Struct):
    """An encoded array type, to compare inputs with and to allocate outputs by."""

    descr: PyArrayDescr  # the dtype
    ndim: int
    layout: int  # a Layout
    number: int  # a Number: the Python number that is accepted instead of an array
    nbytes: int
    shape: Array[int]
    strides: Array[int]  # in bytes


class Patch(Struct):
    """Says that an argument is an address ``offset`` bytes into a buffer.

    ``argument`` is its number among all arguments of the plan. ``base`` is the index,
    in ``Frame.bases``, of the address where the buffer (input, output or moving)
    begins.
    """

    argument: int
    base: int
    offset: int


class WorkspacePatch(Struct):
    """Says that an argument is an address ``offset`` bytes into the workspace."""

    argument: int
    offset: int


class Slice(Struct):
    """A buffer of a loop that is slice k of an array in iteration k."""

    base: int  # index of the buffer's address in Frame.bases
    argument: int  # the loop's argument with the address of the first slice
    stride: int  # from one slice to the next, in bytes


class Carry(Struct):
    """A carry of a loop, which is double-buffered.

    Four arguments of the loop, from number ``argument`` on, are its addresses: see
    CARRY_INITIAL to CARRY_RESULT.
    """

    base: int  # index in Frame.bases of the address that an iteration reads
    next_base: int  # index in Frame.bases of the address that an iteration writes
    argument: int
    nbytes: int


class Loop(Struct):
    """A loop: its steps, slices and carries."""

    count: int  # trip count, or -1 for a loop that runs while its predicate is true
    predicate: int  # number of the loop's argument with the predicate's address
    steps: Array[Step]
    step_count: int
    slices: Array[Slice]
    slice_count: int
    carries: Array[Carry]
    carry_count: int


class Block(Struct):
    """The steps of one branch."""

    steps: Array[Step]
    step_count: int


class Branch(Struct):
    """A branch: ``block_count`` blocks of steps, of which one is run.

    Its only argument is the address of the block's index, an int32.
    """

    blocks: Array[Block]
    block_count: int


class Step(Struct):
    """A step of the plan: a kernel call, a loop, or a branch.

    ``kind`` is a StepKind. ``entry`` to ``slot_count`` and ``weight`` are those of a
    kernel call. All arguments of loops and branches are addresses.
    """

    kind: int
    entry: KernelEntry
    arguments: int  # number of the step's first argument among the plan's arguments
    argument_count: int
    items: int  # work items
    grain: int  # the fewest work items for a thread
    slots: Array[int]  # the numbers of its arguments that point to scratch memory
    slot_count: int
    patches: Array[Patch]  # of arguments that point to moving buffers
    patch_count: int
    weight: int  # added to Frame.unchecked after the call; CHECK_AFTER for a long one
    loop: Loop
    branch: Branch


class Blas(Struct):
    """A BLAS library whose number of threads is set while plans that use it run."""

    users: int  # how many such plans run
    saved: int  # the number of threads to restore afterwards
    threads: int  # the number of threads while users > 0
    get_threads: Callable[[], i32]  # null if the library has no such functions
    set_threads: Callable[[i32], None] | None


class Frame(Struct):
    """The memory of one call: this head, then its arrays and a small workspace."""

    next: Frame | None  # in the image's list of free ones
    threads: int  # for how many its copies and its workspace have room
    patched: int  # address of the workspace that the arguments point to
    workspace: int  # address of its own workspace; 0: each call takes one from the heap
    unchecked: int  # weights of the steps since signals were checked
    bases: Array[int]  # addresses of inputs, outputs and moving buffers
    numbers: Array[int]  # values of inputs that are Python numbers
    arguments: Array[int]  # of all steps
    copies: int  # address of the threads' own copies of a step's arguments


class Image(Struct):
    """A plan, its types, and pointers to the process's pool, heap and BLAS.

    ``keepalive`` is a Python object that owns the memory of all tables.
    """

    inputs: Array[Spec]
    input_count: int
    outputs: Array[Spec]
    output_count: int
    steps: Array[Step]
    step_count: int
    template: Array[int]  # the arguments of all steps, constants filled in
    argument_count: int
    patches: Array[Patch]  # of arguments that point to inputs and outputs
    patch_count: int
    workspace_patches: Array[WorkspacePatch]
    workspace_patch_count: int
    moving_count: int  # buffers whose address changes during a run: slices, carries
    arena_bytes: int
    scratch_bytes: int  # of a thread
    copy_bytes: int  # of a thread's own copy of a step's arguments
    flags: int  # PARALLEL, RELEASE_GIL, USES_BLAS and USES_THREADED_BLAS
    frames: Frame | None  # the list of free ones
    pool: Pool
    heap: Heap
    blas: Blas  # of one thread
    threaded_blas: Blas  # of as many threads as the pool
    ndarray_type: PyObject
    float_type: PyObject
    int_type: PyObject
    bool_type: PyObject
    memory_handler: PyObject
    new_from_descr: Callable[
        [PyObject, PyArrayDescr, i32, Array[int], Array[int] | None, int, i32, None],
        PyArrayObject | None,
    ]
    keepalive: PyObject
