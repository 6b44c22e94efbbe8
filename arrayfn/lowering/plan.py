"""What a compiled program is: kernels, buffers, and the steps that run over them.

Plain data. Everything a runtime needs is here, and nothing of the tracer: a plan can be
printed, saved, and run by any backend that can compile its kernels' sources.

A *kernel* has the uniform entry ``(arguments..., begin, end)``: its arguments are
pointers and 64-bit integers, and it does the work items ``begin`` to ``end`` of
``KernelCall.items``. Work items are independent, so a runtime may split the range over
threads as it likes: the bits of the result do not depend on the split.

A *step* is a call of a kernel, a loop or a branch; these two hold steps of their own,
over the same buffers, arena and scratch memory. Nothing is copied from one iteration to
the next: a buffer of kind "slice" is a window that moves through another buffer, and of
kind "carried" one of the two places that a loop's value has alternately. A step inside
is given the address that such a buffer has in that iteration.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import field
from typing import TYPE_CHECKING, Final, Literal

from typing_extensions import override

from arrayfn.errors import SourceLocation, plural
from arrayfn.ir import ArrayType
from arrayfn.records import frozen, record

if TYPE_CHECKING:
    from arrayfn.display.markup import Line

NEUTRAL_NAME: Final = "kernel"
"""The function that the neutral text of every kernel defines."""

BufferKind = Literal["input", "output", "constant", "temporary", "slice", "carried"]


@frozen(slots=True)
class Parameter:
    """A parameter of a kernel: ``kind`` is ``"i64"``, or ``"f32*"`` for a pointer."""

    name: str
    kind: str


@frozen(slots=True, repr=False)
class Kernel:
    """A kernel as source text, with its parameters and, for a GPU, its launch bounds.

    Attributes:
        name: the function's name in ``source``, unique within a program.
        source: the text for people, with the Program's names and its source lines.
        key: the text that is compiled, with neutral names and no comments. Kernels
            with equal keys are compiled once. A kernel that was replaced by hand has
            one text: ``key == source``.
        parameters: those before ``begin, end``.
        reason: what was fused, and why.
        threads: threads of a block, on a GPU, where a work item is a block.
        cluster: blocks of a cluster, on a GPU.
        shared: bytes of dynamic shared memory of a block.
        blocks_per_multiprocessor: blocks that must fit on a multiprocessor at once,
            which limits the registers of a thread; 0 sets no limit.
        cached: whether the memory of a multiprocessor that is not shared memory is to
            be L1 cache.
        cooperative: whether all blocks of a launch must be resident at once.
        from_file: whether the Program was loaded from a file. Such a kernel is compiled
            by arrayfn only, and never executed as Python.
    """

    name: str
    source: str
    key: str
    parameters: tuple[Parameter, ...]
    reason: str = ""
    threads: int = 0
    cluster: int = 1
    shared: int = 0
    blocks_per_multiprocessor: int = 0
    cached: bool = False
    cooperative: bool = False
    from_file: bool = False

    @property
    def is_replaced(self) -> bool:
        """Whether a kernel written by hand replaces it (``Lowered.with_kernel``)."""
        return self.key == self.source

    @property
    def compiled_name(self) -> str:
        """The function's name in ``key``."""
        return self.name if self.is_replaced else NEUTRAL_NAME

    @override
    def __str__(self) -> str:
        return self.source

    @override
    def __repr__(self) -> str:
        return f"<Kernel {self.name}: {self.reason}>"

    def _repr_html_(self) -> str:
        """Return what a notebook shows, as HTML."""
        from arrayfn.display import markup

        title = f"{self.name} <small>{markup.escape(self.reason)}</small>"
        return markup.shown(title, markup.listing(self.source.splitlines()))


@frozen(slots=True, repr=False)
class LibraryKernel:
    """A kernel of a library, such as a GEMM: its provider and its parameters.

    ``provider`` names what the backend runs: the operation and its dtype, as
    ``"gemm_f32"``. The parameters are pointers, then integers.
    """

    name: str
    provider: str
    parameters: tuple[Parameter, ...]
    reason: str = ""

    @property
    def source(self) -> str:
        """A comment in place of source text, which the library does not have."""
        return f"# {self.name}: {self.reason}\n"

    @override
    def __str__(self) -> str:
        return self.source

    @override
    def __repr__(self) -> str:
        return f"<LibraryKernel {self.name}: {self.reason}>"


@frozen(slots=True)
class BufferAllocation:
    """One buffer of a plan.

    ``index`` counts the buffers of one ``kind``: the n-th input, output or constant.
    ``nbytes`` spans from the lowest element to the highest, including the gaps of a
    strided input. A temporary lies at byte ``offset`` of the arena, and lives from step
    ``first`` to step ``last`` (numbered as ``numbered`` does). An output with a
    ``donor`` is written over the input of that number. A "slice" or "carried" buffer
    has no memory of its own: its loop says where it lies in each iteration.
    """

    kind: BufferKind
    index: int
    type: ArrayType
    nbytes: int
    offset: int = 0
    first: int = 0
    last: int = 0
    donor: int | None = None

    @property
    def label(self) -> str:
        """The buffer's name in the plan's text: ``"input 0"``."""
        return f"{self.kind} {self.index}"


@frozen(slots=True)
class BufferArgument:
    """A pointer argument: ``offset`` bytes into buffer ``buffer`` of the plan."""

    buffer: int
    offset: int = 0


@frozen(slots=True)
class ScratchArgument:
    """A pointer argument: ``offset`` bytes into the thread's scratch memory."""

    offset: int = 0


Argument = BufferArgument | ScratchArgument | int


@frozen(slots=True)
class Origin:
    """An equation that a step computes, wholly or partly.

    ``line`` is its line in ``CompiledProgram.text``, from 1 on, and ``source`` the
    user's. ``operations`` are those that one run of the step does for it.
    """

    line: int
    operations: int
    source: SourceLocation | None


@frozen(slots=True)
class KernelCall:
    """Run ``kernel`` over work items 0 to ``items``.

    Attributes:
        kernel: the name of a kernel of the program.
        arguments: pointers and integers, in the order of the kernel's parameters.
        items: the number of work items.
        grain: the smallest number of items worth giving to a thread. A runtime runs
            ``items <= grain`` serially.
        scratch: bytes of scratch memory that each thread needs.
        reads, writes: the numbers of the buffers that the call reads and writes.
        iterations: for a kernel that is a loop, its trip count; None if it is unknown.
        updates: those of ``writes`` that the call reads too.
        origins: the equations that the call computes.
    """

    kernel: str
    arguments: tuple[Argument, ...]
    items: int
    grain: int = 1
    scratch: int = 0
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    iterations: int | None = 1
    updates: tuple[int, ...] = ()
    origins: tuple[Origin, ...] = ()

    @property
    def operations(self) -> int:
        """The arithmetic operations of one run."""
        return sum(origin.operations for origin in self.origins)


@frozen(slots=True)
class Slice:
    """The slice of an array that a loop's iteration reads or writes.

    The buffer ``buffer`` begins ``offset`` bytes into ``source`` in the first
    iteration, and moves by ``stride`` bytes with each. The stride of a reversed loop is
    negative.
    """

    buffer: int
    source: int
    offset: int
    stride: int


@frozen(slots=True)
class Carry:
    """A loop's value, double-buffered: an iteration reads ``current``, writes ``next``.

    ``next`` alternates between ``first`` and ``second``, beginning with ``first``, and
    ``current`` is the one written before, at first ``initial``. After the loop the
    value is in ``result``. The last iteration writes there if the number of iterations
    is known; otherwise the value may be copied there, once.
    """

    current: int
    next: int
    initial: int
    first: int
    second: int
    result: int


@frozen(slots=True)
class Loop:
    """Run ``body`` ``count`` times, or as long as buffer ``predicate`` holds True.

    The runtime reads the predicate before each iteration. A value that neither
    ``slices`` nor ``carries`` names stays in its buffer, which the body writes over.
    ``reads`` and ``writes`` are the buffers outside the loop that it uses. On a GPU,
    ``host`` names a step of the body that needs the host, so that the host reads the
    predicate; if it is empty, the GPU reads it.
    """

    body: tuple[Step, ...]
    count: int | None = None
    predicate: int | None = None
    slices: tuple[Slice, ...] = ()
    carries: tuple[Carry, ...] = ()
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    host: str = ""
    origins: tuple[Origin, ...] = ()


@frozen(slots=True)
class Branch:
    """Run one of ``branches``, by number ``index``, a buffer of an int32.

    An index out of range selects the nearest branch. ``reads``, ``writes`` and ``host``
    are as in ``Loop``.
    """

    index: int
    branches: tuple[tuple[Step, ...], ...]
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    host: str = ""
    origins: tuple[Origin, ...] = ()


Step = KernelCall | Loop | Branch


def kernel_calls(steps: Iterable[Step]) -> Iterator[KernelCall]:
    """Return the kernel calls among ``steps``, in loops and branches too."""
    return (step for step in walk(steps) if isinstance(step, KernelCall))


def blocks_of(step: Loop | Branch) -> tuple[tuple[Step, ...], ...]:
    """Return the lists of steps inside ``step``: a loop's body, or each branch."""
    return (step.body,) if isinstance(step, Loop) else step.branches


@frozen(slots=True, repr=False)
class ExecutionPlan:
    """The buffers and steps of a plan, in order.

    ``arena`` is the size in bytes of the memory of all temporaries. ``scratch`` is the
    size of each thread's scratch memory.

    >>> import arrayfn as af
    >>> plan = af.jit(lambda x: x + 1).lower(1.0).plan
    >>> len(plan.steps), isinstance(plan, af.Plan)
    (1, True)
    """

    buffers: tuple[BufferAllocation, ...]
    steps: tuple[Step, ...]
    arena: int = 0
    scratch: int = 0

    @override
    def __str__(self) -> str:
        """One line for each buffer and step, nested steps indented."""
        return "".join(f"{line}\n" for line, _ in plan_lines(self))

    def bytes_of(self, call: KernelCall) -> int:
        """Return the bytes that one run of ``call`` reads and writes.

        A buffer that is both read and written counts twice.
        """
        touched = (*call.reads, *call.updates, *call.writes)
        return sum(self.buffers[k].nbytes for k in touched)

    @override
    def __repr__(self) -> str:
        calls = plural(len(list(kernel_calls(self.steps))), "kernel call")
        return f"<ExecutionPlan: {calls}, arena {self.arena} bytes>"

    def _repr_html_(self) -> str:
        """Return what a notebook shows, as HTML."""
        from arrayfn.display import markup

        return markup.shown(
            "Execution plan",
            markup.listing(linked_lines(self)),
            memory_chart(self),
            groups=[f"s{k}" for k, _ in numbered(self.steps)],
        )


def numbered(steps: Iterable[Step]) -> Iterator[tuple[int, Step]]:
    """Yield ``(number, step)`` for all steps, in the order of ``walk``."""
    yield from enumerate(walk(steps))


def walk(steps: Iterable[Step]) -> Iterator[Step]:
    """Yield all steps, nested ones too: a loop or branch before the steps inside it."""
    for step in steps:
        yield step
        if not isinstance(step, KernelCall):
            for inner in blocks_of(step):
                yield from walk(inner)


def linked_lines(plan: ExecutionPlan) -> list[Line]:
    """Return the lines of a plan's text for a notebook.

    Hovering highlights all of a step.
    """
    from arrayfn.display.markup import Line

    return [
        Line(text, () if number is None else (f"s{number}",))
        for text, number in plan_lines(plan)
    ]


def memory_chart(plan: ExecutionPlan) -> str:
    """Return an SVG of the arena: the bytes of each temporary from step to step."""
    from arrayfn.display import charts

    bars = [
        charts.Bar(f"{b.label}: {b.type}", b.offset, b.nbytes, b.first, b.last)
        for b in plan.buffers
        if b.kind == "temporary"
    ]
    return charts.timeline(bars, len(list(walk(plan.steps))), plan.arena)


def plan_lines(plan: ExecutionPlan) -> list[tuple[str, int | None]]:
    """Return ``(line, step number)`` for each line of a plan's text.

    None for a buffer.
    """
    return _PlanText(plan).text()


@record
class _PlanText:
    """Formats ``plan`` as text: ``lines`` are (line, step number) pairs so far."""

    plan: ExecutionPlan
    lines: list[tuple[str, int | None]] = field(
        default_factory=list[tuple[str, int | None]]
    )
    number: int = 0

    def text(self) -> list[tuple[str, int | None]]:
        """Return all lines: the totals, the buffers, then the steps."""
        plan = self.plan
        self.steps(plan.steps, "  ")
        sizes = f"arena {plan.arena} bytes, scratch {plan.scratch} bytes a thread"
        head = [f"plan: {plural(self.number, 'step')}, {sizes}"]
        step_lines = self.lines
        for buffer in plan.buffers:
            text = f"  {buffer.label}: {buffer.type}, {buffer.nbytes} bytes"
            if buffer.kind == "temporary":
                text += f" at {buffer.offset}, steps {buffer.first} to {buffer.last}"
            if buffer.donor is not None:
                text += f", over input {buffer.donor}"
            head.append(text)
        return [*((line, None) for line in head), *step_lines]

    def label(self, buffer: int) -> str:
        """Return the name of buffer number ``buffer``."""
        return self.plan.buffers[buffer].label

    def labels(self, buffers: Iterable[int]) -> str:
        """Return the names of ``buffers``, separated by commas."""
        return ", ".join(map(self.label, buffers))

    def steps(self, steps: Iterable[Step], indent: str) -> None:
        """Add the lines of ``steps``, and of the steps inside them."""
        for step in steps:
            arrays = f"({self.labels(step.reads)}) -> {self.labels(step.writes)}"
            number = self.number
            head = f"{indent}step {number}: "
            self.number += 1
            if isinstance(step, KernelCall):
                text = f"{head}{step.kernel}{arrays}, {step.items} items"
                if step.iterations is None:
                    text += " with a loop"
                elif step.iterations != 1:
                    text += f" of {step.iterations} iterations"
                self.lines.append((text, number))
                continue
            by_host = f", read by the host for {step.host}" if step.host else ""
            if isinstance(step, Loop):
                text = f"{head}loop{arrays}, {self.trip_count(step)}{by_host}"
                self.lines.append((text, number))
                self.moves(step, indent + "  ")
                self.steps(step.body, indent + "  ")
            else:
                head_text = f"branch by {self.label(step.index)}"
                self.lines.append((f"{head}{head_text}{arrays}{by_host}", number))
                for position, branch in enumerate(step.branches):
                    self.lines.append((f"{indent}  branch {position}:", number))
                    self.steps(branch, indent + "    ")

    def trip_count(self, loop: Loop) -> str:
        """Return how often ``loop`` runs, in words."""
        if loop.predicate is not None:
            return f"while {self.label(loop.predicate)}"
        return f"{loop.count} times"

    def moves(self, loop: Loop, indent: str) -> None:
        """Add a line for each slice and carried value of ``loop``."""
        for s in loop.slices:
            begin = f" from byte {s.offset}" if s.offset else ""
            window = f"{self.label(s.buffer)} in {self.label(s.source)}{begin}"
            text = f"{indent}{window}, {s.stride} bytes an iteration"
            self.lines.append((text, self.number - 1))
        for c in loop.carries:
            text = (
                f"{indent}{self.label(c.current)} from {self.label(c.initial)}; "
                f"{self.label(c.next)} in {self.label(c.first)} and "
                f"{self.label(c.second)} alternately; then {self.label(c.result)}"
            )
            self.lines.append((text, self.number - 1))
