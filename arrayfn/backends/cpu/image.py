"""A plan as words in memory: what the native plan runner walks.

``encode`` writes an *image* (its offsets are in ``runner`` and ``entry``): the specs of
inputs and outputs, the steps with their entry addresses, the template of all arguments,
and where inputs, outputs and the workspace have to be filled in.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from arrayfn import dtypes
from arrayfn import layout as layouts
from arrayfn.backends.cpu import entry, runner
from arrayfn.backends.cpu.runtime import Runtime
from arrayfn.errors import BackendError
from arrayfn.ir import ArrayType
from arrayfn.lowering.plan import (
    BufferKind,
    ExecutionPlan,
    KernelCall,
    ScratchArgument,
)

Words = np.ndarray[Any, np.dtype[np.int64]]
LONG_WORK: Final = 4  # grains of work from which a plan runs without the GIL
_LAYOUTS: Final = {layouts.C: entry.LAYOUT_C, layouts.F: entry.LAYOUT_F}
_SCALARS: Final = {
    dtypes.float32: entry.SCALAR_F32,
    dtypes.float64: entry.SCALAR_F64,
    dtypes.int64: entry.SCALAR_INT,
    dtypes.bool_: entry.SCALAR_BOOL,
}


@dataclass(frozen=True, slots=True)
class Entry:
    """A kernel as the runner calls it: an address, and words before its arguments.

    BLAS has one thread while a plan runs that ``uses_blas``.
    """

    address: int
    prefix: tuple[int, ...] = ()
    uses_blas: bool = False


class _Writer:
    """Words that may hold addresses of other words before those are known."""

    def __init__(self) -> None:
        self.words = [0] * (runner.IMAGE_BYTES // 8)
        self.relative: list[int] = []

    def set(self, offset: int, value: int) -> None:
        """Set the header's word at byte ``offset``."""
        self.words[offset // 8] = value

    def point(self, offset: int, place: int) -> None:
        """Make the word at byte ``offset`` the address of the one at ``place``."""
        self.words[offset // 8] = place
        self.relative.append(offset // 8)

    def append(self, table: Iterable[int]) -> int:
        """Add a table; the byte offset of its first word."""
        place = 8 * len(self.words)
        self.words.extend(table)
        return place

    def finish(self) -> Words:
        """The words, with addresses."""
        words = np.array(self.words, np.int64)
        words[self.relative] += words.__array_interface__["data"][0]
        return words


class _Arguments:
    """The template of all steps' arguments, and what a call fills into it."""

    def __init__(self, plan: ExecutionPlan, constants: Sequence[int]) -> None:
        self.plan = plan
        self.constants = constants
        self.inputs = _count(plan, "input")
        self.arena = line_up(plan.arena)
        self.template: list[int] = []
        self.patches: list[int] = []
        self.workspace_patches: list[int] = []

    def add_buffer(self, number: int, offset: int) -> None:
        """An argument that points into buffer ``number``."""
        buffer = self.plan.buffers[number]
        word = len(self.template)
        self.template.append(0)
        if buffer.kind == "constant":
            self.template[word] = self.constants[buffer.index] + offset
        elif buffer.kind == "temporary":
            self.workspace_patches += [word, buffer.offset + offset]
        else:
            first = self.inputs if buffer.kind == "output" else 0
            self.patches += [word, first + buffer.index, offset]

    def add_scratch(self, offset: int) -> None:
        """An argument that points into the running thread's scratch memory."""
        self.workspace_patches += [len(self.template), self.arena + offset]
        self.template.append(0)

    def add_step(self, step: KernelCall, prefix: tuple[int, ...]) -> list[int]:
        """A step's arguments; the numbers of those that point to scratch memory."""
        first = len(self.template)
        slots: list[int] = []
        self.template += prefix
        for argument in step.arguments:
            if isinstance(argument, int):
                self.template.append(argument)
            elif isinstance(argument, ScratchArgument):
                slots.append(len(self.template) - first)
                self.add_scratch(argument.offset)
            else:
                self.add_buffer(argument.buffer, argument.offset)
        return slots


def line_up(size: int) -> int:
    """``size`` rounded up to whole cache lines."""
    return -(-size // runner.LINE) * runner.LINE


def _types(plan: ExecutionPlan, kind: BufferKind) -> list[ArrayType]:
    """The types of the buffers of a kind, by index."""
    found = {b.index: b.type for b in plan.buffers if b.kind == kind}
    if sorted(found) != list(range(len(found))):
        raise BackendError(f"the plan's {kind}s have indices {sorted(found)}")
    return [found[index] for index in range(len(found))]


def _count(plan: ExecutionPlan, kind: BufferKind) -> int:
    return len({buffer.index for buffer in plan.buffers if buffer.kind == kind})


def _spec(kind: ArrayType, *, is_input: bool) -> list[int]:
    """What an input is checked against, or an output made from."""
    strides = [step * kind.dtype.itemsize for step in kind.layout.strides(kind.shape)]
    scalar = entry.SCALAR_NONE
    if is_input and kind.weak and kind.shape == ():
        scalar = _SCALARS.get(kind.dtype, entry.SCALAR_NONE)
    layout = entry.LAYOUT_STRIDED
    if not isinstance(kind.layout, layouts.Strided):
        layout = _LAYOUTS[kind.layout]
    if not is_input and layout == entry.LAYOUT_STRIDED and not _is_dense(kind):
        raise BackendError(f"an output of type {kind} would have gaps or overlap")
    head = [id(kind.dtype), len(kind.shape), layout, scalar, kind.nbytes]
    return [*head, *kind.shape, *strides]


def _is_dense(kind: ArrayType) -> bool:
    """Whether the elements fill one block of memory, each once."""
    expected = 1
    steps = sorted(zip(kind.layout.strides(kind.shape), kind.shape, strict=True))
    for step, extent in steps:
        if extent != 1 and step != expected:
            return False
        expected *= extent
    return True


def encode(
    plan: ExecutionPlan,
    entries: Mapping[str, Entry],
    constants: Sequence[int],
    runtime: Runtime,
) -> Words:
    """The image of ``plan``; ``constants`` are addresses.

    The dtypes of its types have to live as long as the image. Raises BackendError for a
    plan that this runtime cannot run.
    """
    writer = _Writer()
    arguments = _Arguments(plan, constants)
    steps = writer.append([0] * (len(plan.steps) * runner.STEP_BYTES // 8))
    copy_words = 0
    for number, step in enumerate(plan.steps):
        place = steps + number * runner.STEP_BYTES
        first = len(arguments.template)
        slots = arguments.add_step(step, entries[step.kernel].prefix)
        words = len(arguments.template) - first
        if slots:
            copy_words = max(copy_words, words)
        writer.set(place + runner.STEP_ENTRY, entries[step.kernel].address)
        writer.set(place + runner.STEP_ARGUMENTS, first)
        writer.set(place + runner.STEP_COUNT_ARGUMENTS, words)
        writer.set(place + runner.STEP_ITEMS, step.items)
        writer.set(place + runner.STEP_GRAIN, max(1, step.grain))
        writer.point(place + runner.STEP_SLOTS, writer.append(slots))
        writer.set(place + runner.STEP_SLOT_COUNT, len(slots))
    _write_arguments(writer, arguments)
    _write_specs(writer, plan)
    _write_runtime(writer, runtime)
    writer.set(runner.STEP_COUNT, len(plan.steps))
    writer.point(runner.STEPS, steps)
    writer.set(runner.ARENA_BYTES, arguments.arena)
    writer.set(runner.SCRATCH_BYTES, line_up(plan.scratch))
    writer.set(runner.COPY_BYTES, line_up(8 * copy_words))
    writer.set(runner.FLAGS, _flags(plan, entries))
    return writer.finish()


def _flags(plan: ExecutionPlan, entries: Mapping[str, Entry]) -> int:
    flags = 0
    if any(step.items > step.grain for step in plan.steps):
        flags |= runner.PARALLEL
    if sum(step.items / max(1, step.grain) for step in plan.steps) >= LONG_WORK:
        flags |= runner.RELEASE_GIL
    if any(entries[step.kernel].uses_blas for step in plan.steps):
        flags |= runner.USES_BLAS
    return flags


def _write_arguments(writer: _Writer, arguments: _Arguments) -> None:
    writer.point(runner.TEMPLATE, writer.append(arguments.template))
    writer.set(runner.TEMPLATE_WORDS, len(arguments.template))
    writer.point(runner.PATCHES, writer.append(arguments.patches))
    writer.set(runner.PATCH_COUNT, len(arguments.patches) // 3)
    workspace = arguments.workspace_patches
    writer.point(runner.WORKSPACE_PATCHES, writer.append(workspace))
    writer.set(runner.WORKSPACE_PATCH_COUNT, len(workspace) // 2)


def _write_specs(writer: _Writer, plan: ExecutionPlan) -> None:
    inputs = [_spec(kind, is_input=True) for kind in _types(plan, "input")]
    outputs = [_spec(kind, is_input=False) for kind in _types(plan, "output")]
    for specs, count, table in (
        (inputs, runner.INPUT_COUNT, runner.INPUT_SPECS),
        (outputs, runner.OUTPUT_COUNT, runner.OUTPUT_SPECS),
    ):
        places = [writer.append(spec) for spec in specs]
        index = writer.append([0] * len(places))
        for number, place in enumerate(places):
            writer.point(index + 8 * number, place)
        writer.set(count, len(places))
        writer.point(table, index)


def _write_runtime(writer: _Writer, runtime: Runtime) -> None:
    api = (ctypes.c_int64 * (entry.API_NEW_FROM_DESCR + 1)).from_address(
        runtime.numpy_api
    )
    writer.set(runner.POOL, runtime.pool)
    writer.set(runner.HEAP, runtime.heap)
    writer.set(runner.BLAS, runtime.blas)
    writer.set(runner.NDARRAY_TYPE, api[entry.API_ARRAY_TYPE])
    writer.set(runner.NEW_FROM_DESCR, api[entry.API_NEW_FROM_DESCR])
    writer.set(runner.MEMORY_HANDLER, runtime.memory_handler)
    writer.set(runner.FLOAT_TYPE, id(float))
    writer.set(runner.INT_TYPE, id(int))
    writer.set(runner.BOOL_TYPE, id(bool))
    writer.set(runner.TUPLE_ITEMS, tuple.__basicsize__)
