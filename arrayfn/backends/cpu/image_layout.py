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

CHECK_AFTER: Final = 16  # weights of steps, after which signals are checked
INLINE_WORKSPACE: Final = 1 << 16  # bytes of a workspace that is part of its frame
LINE: Final = 64  # bytes of a cache line


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
    """The Python numbers accepted for an array of rank 0, and the dtype stored."""

    NONE = 0
    F32 = 1
    F64 = 2
    INT = 3  # of 8 bytes
    BOOL = 4


class Spec(Struct):
    """The type that an input is checked against, or an output made from."""

    descr: PyArrayDescr
    ndim: int
    layout: int
    number: int
    nbytes: int
    shape: Array[int]
    strides: Array[int]  # in bytes


class Patch(Struct):
    """An argument that points ``offset`` bytes into an input, output or moving buffer.

    It is number ``argument`` of the plan's, the buffer number ``base`` of a frame's.
    """

    argument: int
    base: int
    offset: int


class WorkspacePatch(Struct):
    """An argument that points ``offset`` bytes into the workspace."""

    argument: int
    offset: int


class Slice(Struct):
    """A buffer that is a slice of an array in a loop: another one in each iteration."""

    base: int
    argument: int  # of the loop: where the first slice begins
    stride: int  # in bytes


class Carry(Struct):
    """A value that a loop carries.

    The loop's arguments from ``argument`` on are its first address, the two that it has
    alternately, and that of the result.
    """

    base: int
    next_base: int
    argument: int
    nbytes: int


class Loop(Struct):
    """A loop's steps, slices and carried values."""

    count: int  # or -1: while the predicate is true
    predicate: int  # the loop's argument with its address
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
    """The blocks of steps of which a branch runs one: its only argument says which."""

    blocks: Array[Block]
    block_count: int


class Step(Struct):
    """A kernel's call, a loop, or a branch; the arguments of those are addresses."""

    kind: int
    entry: KernelEntry
    arguments: int  # number of the first in the plan's arguments
    argument_count: int
    items: int
    grain: int
    slots: Array[int]  # the numbers of its arguments that point to scratch memory
    slot_count: int
    patches: Array[Patch]  # of arguments that point to moving buffers
    patch_count: int
    weight: int  # added to Frame.unchecked after it; CHECK_AFTER if it may run long
    loop: Loop
    branch: Branch


class Blas(Struct):
    """A library whose number of threads is changed while plans run that use it."""

    users: int  # how many such plans run
    saved: int  # the number to restore afterwards
    threads: int  # the number set while users > 0
    get_threads: Callable[[], i32]  # both None where it has no such function
    set_threads: Callable[[i32], None] | None


class Frame(Struct):
    """The head of a call's memory; its arrays and a small workspace follow."""

    next: Frame | None  # in the image's list of free ones
    threads: int
    patched: int  # address of the workspace that the arguments point to
    workspace: int  # its own, or 0 if the heap gives one for each call
    unchecked: int  # weights of the steps since signals were checked
    bases: Array[int]  # addresses of inputs, outputs and moving buffers
    numbers: Array[int]  # values of inputs that are Python numbers
    arguments: Array[int]
    copies: int  # address of the threads' own copies of a step's arguments


class Image(Struct):
    """A plan, its types, and pointers to the process's pool, heap and BLAS."""

    inputs: Array[Spec]
    input_count: int
    outputs: Array[Spec]
    output_count: int
    steps: Array[Step]
    step_count: int
    template: Array[int]  # the arguments of all steps, constants filled in
    argument_count: int
    patches: Array[Patch]
    patch_count: int
    workspace_patches: Array[WorkspacePatch]
    workspace_patch_count: int
    moving_count: int
    arena_bytes: int
    scratch_bytes: int  # of a thread
    copy_bytes: int  # of a thread's own copy of a step's arguments
    flags: int
    frames: Frame | None
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
