"""A plan as words in memory: what the native plan runner walks.

``encode`` writes an *image* (its offsets are in ``image_layout`` and ``entry``): the
specs of inputs and outputs, the steps with their entry addresses, the template of all
arguments, and where inputs, outputs and the workspace have to be filled in.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from arrayfn import dtypes
from arrayfn.backends.cpu import entry
from arrayfn.backends.cpu import image_layout as at
from arrayfn.backends.cpu.runtime import Runtime
from arrayfn.errors import BackendError
from arrayfn.ir import ArrayType
from arrayfn.ir import layout as layouts
from arrayfn.lowering.plan import (
    Branch,
    BufferKind,
    ExecutionPlan,
    KernelCall,
    Loop,
    ScratchArgument,
    Step,
    blocks_of,
    kernel_calls,
)

Words = np.ndarray[Any, np.dtype[np.int64]]
LONG_WORK: Final = 4  # grains of work from which a plan runs without the GIL
LEAST_WORK: Final = 0.002  # grains that the call of a kernel is, with nothing to do
MANY: Final = 10_000  # iterations, where their number is not known
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

    BLAS has one thread while a plan runs that ``uses_blas``. ``pool`` is the number of
    the word that is the pool's address or 0. How long a grain takes is known of a
    kernel that ``is_generated``.
    """

    address: int
    prefix: tuple[int, ...] = ()
    uses_blas: bool = False
    pool: int | None = None
    is_generated: bool = False


class _Writer:
    """Words that may hold addresses of other words before those are known."""

    def __init__(self) -> None:
        self.words = [0] * (at.IMAGE_BYTES // 8)
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
        inputs, outputs = _count(plan, "input"), _count(plan, "output")
        moving = [
            k for k, b in enumerate(plan.buffers) if b.kind in ("slice", "carried")
        ]
        self.bases = {k: inputs + outputs + n for n, k in enumerate(moving)}
        self.moving = len(moving)
        for number, buffer in enumerate(plan.buffers):
            if buffer.kind in ("input", "output"):
                first = inputs if buffer.kind == "output" else 0
                self.bases[number] = first + buffer.index
        self.arena = line_up(plan.arena)
        self.template: list[int] = []
        self.patches: list[int] = []
        self.workspace_patches: list[int] = []
        self.moving_patches: list[int] = []

    def add_buffer(self, number: int, offset: int = 0) -> None:
        """An argument that points into buffer ``number``."""
        buffer = self.plan.buffers[number]
        word = len(self.template)
        self.template.append(0)
        if buffer.kind == "constant":
            self.template[word] = self.constants[buffer.index] + offset
        elif buffer.kind == "temporary":
            self.workspace_patches += [word, buffer.offset + offset]
        elif buffer.kind in ("slice", "carried"):
            self.moving_patches += [word, self.bases[number], offset]
        else:
            self.patches += [word, self.bases[number], offset]

    def take_moving(self) -> list[int]:
        """The patches of a step's arguments that point to moving buffers."""
        taken, self.moving_patches = self.moving_patches, []
        return taken

    def add_scratch(self, offset: int) -> None:
        """An argument that points into the running thread's scratch memory."""
        self.workspace_patches += [len(self.template), self.arena + offset]
        self.template.append(0)

    def add_call(self, step: KernelCall, prefix: tuple[int, ...]) -> list[int]:
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


class _Steps:
    """Writes steps, those in loops and branches too."""

    def __init__(
        self, writer: _Writer, arguments: _Arguments, entries: Mapping[str, Entry]
    ) -> None:
        self.writer = writer
        self.arguments = arguments
        self.entries = entries
        self.copy_words = 0

    def write(self, steps: Sequence[Step]) -> int:
        """The place of the first of ``steps``; the others follow it."""
        begin = self.writer.append([0] * (len(steps) * at.STEP_BYTES // 8))
        for number, step in enumerate(steps):
            place = begin + number * at.STEP_BYTES
            first = len(self.arguments.template)
            if isinstance(step, KernelCall):
                self.call(place, step)
            elif isinstance(step, Loop):
                self.loop(place, step)
            else:
                self.branch(place, step)
            self.writer.set(place + at.STEP_ARGUMENTS, first)
        return begin

    def moving(self, place: int) -> None:
        """The patches that the arguments just added need in each iteration."""
        patches = self.arguments.take_moving()
        self.table(place + at.STEP_PATCHES, patches, 3)

    def table(self, offset: int, words: Sequence[int], width: int) -> None:
        """A table of rows of ``width`` words; its place and its length."""
        self.writer.point(offset, self.writer.append(words))
        self.writer.set(offset + 8, len(words) // width)

    def call(self, place: int, step: KernelCall) -> None:
        first = len(self.arguments.template)
        entry = self.entries[step.kernel]
        slots = self.arguments.add_call(step, entry.prefix)
        words = len(self.arguments.template) - first
        if slots:
            self.copy_words = max(self.copy_words, words)
        self.moving(place)
        writer = self.writer
        writer.set(place + at.STEP_KIND, at.KIND_CALL)
        writer.set(place + at.STEP_ENTRY, entry.address)
        writer.set(place + at.STEP_COUNT_ARGUMENTS, words)
        writer.set(place + at.STEP_ITEMS, step.items)
        writer.set(place + at.STEP_GRAIN, max(1, step.grain))
        is_short = entry.is_generated and step.turns == 1 and step.items <= step.grain
        writer.set(place + at.STEP_WEIGHT, 1 if is_short else at.LOOK_AFTER)
        pool = -1 if entry.pool is None else entry.pool
        writer.set(place + at.STEP_POOL, 8 * pool)
        self.table(place + at.STEP_SLOTS, slots, 1)

    def loop(self, place: int, step: Loop) -> None:
        writer, arguments = self.writer, self.arguments
        first = len(arguments.template)
        slices: list[int] = []
        carries: list[int] = []
        for s in step.slices:
            begin = len(arguments.template) - first
            slices += [arguments.bases[s.buffer], begin, s.stride]
            arguments.add_buffer(s.source, s.offset)
        for c in step.carries:
            begin = len(arguments.template) - first
            size = arguments.plan.buffers[c.result].nbytes
            bases = [arguments.bases[c.current], arguments.bases[c.next]]
            carries += [*bases, begin, size]
            for buffer in (c.initial, c.first, c.second, c.result):
                arguments.add_buffer(buffer)
        loop = writer.append([0] * (at.LOOP_BYTES // 8))
        writer.set(loop + at.LOOP_PREDICATE, len(arguments.template) - first)
        if step.predicate is not None:
            arguments.add_buffer(step.predicate)
        self.moving(place)
        count = -1 if step.count is None else step.count
        writer.set(loop + at.LOOP_COUNT, count)
        self.table(loop + at.LOOP_SLICES, slices, 3)
        self.table(loop + at.LOOP_CARRIES, carries, 4)
        writer.point(loop + at.LOOP_STEPS, self.write(step.body))
        writer.set(loop + at.LOOP_STEP_COUNT, len(step.body))
        writer.set(place + at.STEP_KIND, at.KIND_LOOP)
        writer.point(place + at.STEP_TABLE, loop)

    def branch(self, place: int, step: Branch) -> None:
        writer = self.writer
        self.arguments.add_buffer(step.index)
        self.moving(place)
        table = writer.append([len(step.branches), *([0, 0] * len(step.branches))])
        for number, branch in enumerate(step.branches):
            row = table + at.BRANCH_TABLE + 16 * number
            writer.point(row, self.write(branch))
            writer.set(row + 8, len(branch))
        writer.set(place + at.STEP_KIND, at.KIND_BRANCH)
        writer.point(place + at.STEP_TABLE, table)


def line_up(size: int) -> int:
    """``size`` rounded up to whole cache lines."""
    return -(-size // at.LINE) * at.LINE


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
    steps = _Steps(writer, arguments, entries)
    writer.point(at.STEPS, steps.write(plan.steps))
    writer.set(at.STEP_COUNT, len(plan.steps))
    _write_arguments(writer, arguments)
    _write_specs(writer, plan)
    _write_runtime(writer, runtime)
    writer.set(at.ARENA_BYTES, arguments.arena)
    writer.set(at.SCRATCH_BYTES, line_up(plan.scratch))
    writer.set(at.COPY_BYTES, line_up(8 * steps.copy_words))
    writer.set(at.MOVING_COUNT, arguments.moving)
    writer.set(at.FLAGS, _flags(plan, entries))
    return writer.finish()


def _flags(plan: ExecutionPlan, entries: Mapping[str, Entry]) -> int:
    flags = 0
    calls = list(kernel_calls(plan.steps))
    if any(call.items > call.grain for call in calls):
        flags |= at.PARALLEL
    if _work(plan.steps) >= LONG_WORK:
        flags |= at.RELEASE_GIL
    if any(entries[call.kernel].uses_blas for call in calls):
        flags |= at.USES_BLAS
    return flags


def _work(steps: Sequence[Step]) -> float:
    """The work of ``steps`` in grains; unknown numbers of iterations are many."""
    total = 0.0
    for step in steps:
        if isinstance(step, KernelCall):
            turns = MANY if step.turns is None else step.turns
            grains = step.items / max(1, step.grain)
            total += max(grains, turns * LEAST_WORK)
        else:
            times = 1 if isinstance(step, Branch) else step.count
            inside = sum(_work(block) for block in blocks_of(step))
            total += inside * (MANY if times is None else times)
    return total


def _write_arguments(writer: _Writer, arguments: _Arguments) -> None:
    writer.point(at.TEMPLATE, writer.append(arguments.template))
    writer.set(at.TEMPLATE_WORDS, len(arguments.template))
    writer.point(at.PATCHES, writer.append(arguments.patches))
    writer.set(at.PATCH_COUNT, len(arguments.patches) // 3)
    workspace = arguments.workspace_patches
    writer.point(at.WORKSPACE_PATCHES, writer.append(workspace))
    writer.set(at.WORKSPACE_PATCH_COUNT, len(workspace) // 2)


def _write_specs(writer: _Writer, plan: ExecutionPlan) -> None:
    inputs = [_spec(kind, is_input=True) for kind in _types(plan, "input")]
    outputs = [_spec(kind, is_input=False) for kind in _types(plan, "output")]
    for specs, count, table in (
        (inputs, at.INPUT_COUNT, at.INPUT_SPECS),
        (outputs, at.OUTPUT_COUNT, at.OUTPUT_SPECS),
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
    writer.set(at.POOL, runtime.pool)
    writer.set(at.HEAP, runtime.heap)
    writer.set(at.BLAS, runtime.blas)
    writer.set(at.NDARRAY_TYPE, api[entry.API_ARRAY_TYPE])
    writer.set(at.NEW_FROM_DESCR, api[entry.API_NEW_FROM_DESCR])
    writer.set(at.MEMORY_HANDLER, runtime.memory_handler)
    writer.set(at.FLOAT_TYPE, id(float))
    writer.set(at.INT_TYPE, id(int))
    writer.set(at.BOOL_TYPE, id(bool))
    writer.set(at.TUPLE_ITEMS, tuple.__basicsize__)
