"""A plan as structures in memory: what the native plan runner walks.

``encode`` makes an *image* (``image_layout``): the specs of inputs and outputs, the
steps with their entry addresses, the template of all arguments, and where inputs,
outputs and the workspace have to be filled in.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Mapping, Sequence
from typing import Final

from arrayfn import dtypes
from arrayfn.backends.cpu.image_layout import (
    CHECK_AFTER,
    LINE,
    PARALLEL,
    RELEASE_GIL,
    USES_BLAS,
    USES_THREADED_BLAS,
    Block,
    Branch,
    Carry,
    Image,
    Layout,
    Loop,
    Number,
    Patch,
    Slice,
    Spec,
    Step,
    StepKind,
    WorkspacePatch,
)
from arrayfn.backends.cpu.runtime import Runtime
from arrayfn.backends.native.structures import Struct
from arrayfn.errors import BackendError
from arrayfn.ir import ArrayType
from arrayfn.ir import layout as layouts
from arrayfn.lowering import plan as plans
from arrayfn.lowering.plan import (
    BufferKind,
    ExecutionPlan,
    KernelCall,
    ScratchArgument,
    blocks_of,
    kernel_calls,
)
from arrayfn.records import frozen

# A grain is the smallest amount of work worth giving to a thread.
LONG_WORK: Final = 4  # grains of work from which a plan runs without the GIL
MIN_WORK: Final = 0.002  # grains that a kernel's call costs even without any work
MANY: Final = 10_000  # iterations assumed for a loop whose trip count is unknown
_LAYOUTS: Final = {layouts.C: Layout.C, layouts.F: Layout.F}
_NUMBERS: Final = {
    dtypes.float32: Number.F32,
    dtypes.float64: Number.F64,
    dtypes.int64: Number.INT,
    dtypes.bool_: Number.BOOL,
}


@frozen(slots=True)
class Entry:
    """The address of a kernel and its leading arguments, for the plan runner.

    Attributes:
        address: where the kernel's machine code is.
        prefix: leading arguments that are the same in every call of the kernel.
        uses_blas: the kernel calls BLAS, which must use one thread while the plan runs.
        uses_threaded_blas: the kernel calls the BLAS library that uses as many threads
            as the pool while the plan runs.
        is_generated: the compiler printed the kernel, so one grain of it takes a short
            time. A library's kernel may take any time.
    """

    address: int
    prefix: tuple[int, ...] = ()
    uses_blas: bool = False
    uses_threaded_blas: bool = False
    is_generated: bool = False


class _Tables:
    """Allocates the tables of an image, and keeps them alive in ``keepalive``."""

    def __init__(self) -> None:
        self.keepalive: list[object] = []

    def integers(self, values: Sequence[int]) -> int:
        """Allocate a table of 64-bit integers; return its address, 0 if it is empty."""
        if not values:
            return 0
        table = array("q", values)
        self.keepalive.append(table)
        return table.buffer_info()[0]

    def structures(self, rows: Sequence[Struct]) -> int:
        """Allocate a table of structures; return its address, 0 if it is empty."""
        if not rows:
            return 0
        table = (type(rows[0]) * len(rows))(*rows)
        self.keepalive.append(table)
        return ctypes.addressof(table)


class _Arguments:
    """Collects the arguments of all steps of a plan as one list of integers.

    ``template`` is that list. Arguments whose value is not known before the call are 0
    in it, and a patch says how to compute each: ``patches`` for addresses in inputs and
    outputs, ``workspace_patches`` for temporaries and scratch memory, and
    ``moving_patches`` for *moving* buffers (slices and carries of loops), whose address
    differs from iteration to iteration.
    """

    def __init__(self, plan: ExecutionPlan, constants: Sequence[int]) -> None:
        """Number the buffers whose addresses a frame holds.

        ``constants`` are the addresses of the plan's constants. A frame holds the
        addresses of inputs, outputs and moving buffers, in this order. ``bases`` maps a
        buffer's number in the plan to its index in the frame. ``moving`` is the number
        of moving buffers, and ``arena`` the size of the arena in bytes.
        """
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
        self.patches: list[Patch] = []
        self.workspace_patches: list[WorkspacePatch] = []
        self.moving_patches: list[Patch] = []

    def add_buffer(self, number: int, offset: int = 0) -> None:
        """Add an argument that points ``offset`` bytes into buffer ``number``.

        The address of a constant is known; any other is 0 and gets a patch.
        """
        buffer = self.plan.buffers[number]
        position = len(self.template)
        self.template.append(0)
        if buffer.kind == "constant":
            self.template[position] = self.constants[buffer.index] + offset
        elif buffer.kind == "temporary":
            patch = WorkspacePatch(position, buffer.offset + offset)
            self.workspace_patches.append(patch)
        elif buffer.kind in ("slice", "carried"):
            self.moving_patches.append(Patch(position, self.bases[number], offset))
        else:
            self.patches.append(Patch(position, self.bases[number], offset))

    def take_moving(self) -> list[Patch]:
        """Remove and return the patches in ``moving_patches``: those of one step."""
        taken, self.moving_patches = self.moving_patches, []
        return taken

    def add_scratch(self, offset: int) -> None:
        """Add an argument that points ``offset`` bytes into the thread's scratch.

        Scratch memory follows the arena in the workspace.
        """
        patch = WorkspacePatch(len(self.template), self.arena + offset)
        self.workspace_patches.append(patch)
        self.template.append(0)

    def add_call(self, step: KernelCall, prefix: tuple[int, ...]) -> list[int]:
        """Add the arguments of a kernel call: ``prefix``, then those of ``step``.

        Returns the positions, among the call's arguments, of those that point to
        scratch memory.
        """
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
    """Encodes the steps of a plan, those in loops and branches too.

    ``copy_words`` is the number of arguments of the longest call that uses scratch
    memory: threads make their own copies of such arguments.
    """

    def __init__(
        self, tables: _Tables, arguments: _Arguments, entries: Mapping[str, Entry]
    ) -> None:
        """Begin without steps; ``entries`` has the code of each kernel by name.

        The steps' tables go to ``tables``, and their arguments to ``arguments``.
        """
        self.tables = tables
        self.arguments = arguments
        self.entries = entries
        self.copy_words = 0

    def table(self, steps: Sequence[plans.Step]) -> int:
        """Encode ``steps`` as a table, and return its address."""
        return self.tables.structures([self.step(step) for step in steps])

    def step(self, step: plans.Step) -> Step:
        """Encode a step of any kind, and append its arguments to the template."""
        first = len(self.arguments.template)
        if isinstance(step, KernelCall):
            encoded = self.call(step)
        elif isinstance(step, plans.Loop):
            encoded = self.loop(step)
        else:
            encoded = self.branch(step)
        encoded.arguments = first
        return encoded

    def take_patch_fields(self) -> dict[str, int]:
        """Return the fields ``patches`` and ``patch_count`` of the step being encoded.

        The patches are those of the step's arguments in moving buffers. The runner
        applies them before each run of the step. Call this after all of the step's own
        arguments are added, and before the steps inside it are encoded: it takes the
        patches of all arguments since the last call.
        """
        patches = self.arguments.take_moving()
        address = self.tables.structures(patches)
        return {"patches": address, "patch_count": len(patches)}

    def call(self, step: KernelCall) -> Step:
        """Encode a kernel call.

        After a call that may take long, the runner checks for signals at once: its
        ``weight`` is CHECK_AFTER. After short calls it checks at every CHECK_AFTER-th.
        """
        first = len(self.arguments.template)
        entry = self.entries[step.kernel]
        slots = self.arguments.add_call(step, entry.prefix)
        count = len(self.arguments.template) - first
        if slots:
            self.copy_words = max(self.copy_words, count)
        is_short = (
            entry.is_generated and step.iterations == 1 and step.items <= step.grain
        )
        return Step(
            kind=StepKind.CALL,
            entry=entry.address,
            argument_count=count,
            items=step.items,
            grain=max(1, step.grain),
            slots=self.tables.integers(slots),
            slot_count=len(slots),
            weight=1 if is_short else CHECK_AFTER,
            **self.take_patch_fields(),
        )

    def loop(self, step: plans.Loop) -> Step:
        """Encode a loop and its body.

        The loop's own arguments are the address of each slice's first row, four
        addresses for each carry (see ``image_layout.Carry``), and the address of the
        predicate of a while loop. Slices, carries and the loop hold their position
        among these arguments.
        """
        arguments = self.arguments
        first = len(arguments.template)
        slices: list[Slice] = []
        carries: list[Carry] = []
        for s in step.slices:
            begin = len(arguments.template) - first
            slices.append(Slice(arguments.bases[s.buffer], begin, s.stride))
            arguments.add_buffer(s.source, s.offset)
        for c in step.carries:
            begin = len(arguments.template) - first
            nbytes = arguments.plan.buffers[c.result].nbytes
            current, following = arguments.bases[c.current], arguments.bases[c.next]
            carries.append(
                Carry(base=current, next_base=following, argument=begin, nbytes=nbytes)
            )
            # In the order of CARRY_INITIAL to CARRY_RESULT.
            for buffer in (c.initial, c.first, c.second, c.result):
                arguments.add_buffer(buffer)
        predicate = len(arguments.template) - first
        if step.predicate is not None:
            arguments.add_buffer(step.predicate)
        # The loop's own arguments end here; those of its body follow.
        own_patches = self.take_patch_fields()
        loop = Loop(
            count=-1 if step.count is None else step.count,
            predicate=predicate,
            steps=self.table(step.body),
            step_count=len(step.body),
            slices=self.tables.structures(slices),
            slice_count=len(slices),
            carries=self.tables.structures(carries),
            carry_count=len(carries),
        )
        address = self.tables.structures([loop])
        return Step(kind=StepKind.LOOP, loop=address, **own_patches)

    def branch(self, step: plans.Branch) -> Step:
        """Encode a branch and the steps of all its blocks.

        Its only argument is the address of the index of the block to run.
        """
        self.arguments.add_buffer(step.index)
        own_patches = self.take_patch_fields()
        blocks = [
            Block(steps=self.table(branch), step_count=len(branch))
            for branch in step.branches
        ]
        table = self.tables.structures(blocks)
        branch = self.tables.structures([Branch(blocks=table, block_count=len(blocks))])
        return Step(kind=StepKind.BRANCH, branch=branch, **own_patches)


def line_up(size: int) -> int:
    """Round ``size``, in bytes, up to whole cache lines."""
    return -(-size // LINE) * LINE


def types_of(plan: ExecutionPlan, kind: BufferKind) -> list[ArrayType]:
    """Return the types of the "input" or "output" buffers, sorted by their index.

    Raises BackendError if the indices are not 0, 1, 2 and so on.
    """
    types = {b.index: b.type for b in plan.buffers if b.kind == kind}
    if sorted(types) != list(range(len(types))):
        raise BackendError(f"the plan's {kind}s have indices {sorted(types)}")
    return [types[index] for index in range(len(types))]


def _count(plan: ExecutionPlan, kind: BufferKind) -> int:
    """Return the number of the plan's inputs or outputs."""
    return len({buffer.index for buffer in plan.buffers if buffer.kind == kind})


def _spec(kind: ArrayType, tables: _Tables, *, is_input: bool) -> Spec:
    """Encode the array type ``kind`` for the call entry.

    The call entry compares inputs with the Spec and allocates outputs by it. A weakly
    typed input of rank 0 also accepts a Python number. Raises BackendError for an
    output whose elements would have gaps or overlap.
    """
    strides = [step * kind.dtype.itemsize for step in kind.layout.strides(kind.shape)]
    number = Number.NONE
    if is_input and kind.weak and kind.shape == ():
        number = _NUMBERS.get(kind.dtype, Number.NONE)
    layout = Layout.STRIDED
    if not isinstance(kind.layout, layouts.Strided):
        layout = _LAYOUTS[kind.layout]
    if not is_input and layout == Layout.STRIDED and not _is_dense(kind):
        raise BackendError(f"an output of type {kind} would have gaps or overlap")
    return Spec(
        descr=id(kind.dtype),
        ndim=len(kind.shape),
        layout=layout,
        number=number,
        nbytes=kind.nbytes,
        shape=tables.integers(kind.shape),
        strides=tables.integers(strides),
    )


def _is_dense(kind: ArrayType) -> bool:
    """Return whether the elements fill one block of memory without gaps or overlap."""
    # From the innermost axis on, each stride is the product of the extents before it.
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
) -> tuple[Image, list[object]]:
    """Encode ``plan`` as an image, the structure that the runner executes.

    ``entries`` has the code of each kernel by name; ``constants`` are the addresses of
    the plan's constants. The second result are objects that must live as long as the
    image, because it holds their addresses. So must the dtypes in the plan's types.
    Raises BackendError for a plan that this runtime cannot run.
    """
    tables = _Tables()
    arguments = _Arguments(plan, constants)
    steps = _Steps(tables, arguments, entries)
    inputs, outputs = types_of(plan, "input"), types_of(plan, "output")
    image = Image(
        inputs=tables.structures([_spec(k, tables, is_input=True) for k in inputs]),
        input_count=len(inputs),
        outputs=tables.structures([_spec(k, tables, is_input=False) for k in outputs]),
        output_count=len(outputs),
        steps=steps.table(plan.steps),
        step_count=len(plan.steps),
        moving_count=arguments.moving,
        arena_bytes=arguments.arena,
        scratch_bytes=line_up(plan.scratch),
        copy_bytes=line_up(8 * steps.copy_words),
        flags=_flags(plan, entries),
        pool=ctypes.addressof(runtime.pool),
        heap=ctypes.addressof(runtime.heap),
        blas=ctypes.addressof(runtime.blas),
        threaded_blas=ctypes.addressof(runtime.threaded_blas),
        ndarray_type=runtime.array_type,
        float_type=id(float),
        int_type=id(int),
        bool_type=id(bool),
        memory_handler=id(runtime.memory_handler),
        new_from_descr=runtime.new_from_descr,
    )
    # ``steps.table`` has filled in the arguments and their patches.
    workspace = arguments.workspace_patches
    image.set(
        template=tables.integers(arguments.template),
        argument_count=len(arguments.template),
        patches=tables.structures(arguments.patches),
        patch_count=len(arguments.patches),
        workspace_patches=tables.structures(workspace),
        workspace_patch_count=len(workspace),
    )
    return image, tables.keepalive


def _flags(plan: ExecutionPlan, entries: Mapping[str, Entry]) -> int:
    """Return the image's flags, combined in one integer.

    PARALLEL: some call is large enough for several threads. RELEASE_GIL: the plan is
    long enough to run without the GIL. USES_BLAS and USES_THREADED_BLAS: some kernel
    calls the library.
    """
    flags = 0
    calls = list(kernel_calls(plan.steps))
    if any(call.items > call.grain for call in calls):
        flags |= PARALLEL
    if _work(plan.steps) >= LONG_WORK:
        flags |= RELEASE_GIL
    if any(entries[call.kernel].uses_blas for call in calls):
        flags |= USES_BLAS
    if any(entries[call.kernel].uses_threaded_blas for call in calls):
        flags |= USES_THREADED_BLAS
    return flags


def _work(steps: Sequence[plans.Step]) -> float:
    """Estimate the work of ``steps``, in grains.

    A grain is the smallest amount of work worth giving to a thread. An unknown trip
    count counts as ``MANY``. All blocks of a branch are added up.
    """
    total = 0.0
    for step in steps:
        if isinstance(step, KernelCall):
            iterations = MANY if step.iterations is None else step.iterations
            grains = step.items / max(1, step.grain)
            total += max(grains, iterations * MIN_WORK)
        else:
            times = 1 if isinstance(step, plans.Branch) else step.count
            inside = sum(_work(block) for block in blocks_of(step))
            total += inside * (MANY if times is None else times)
    return total
