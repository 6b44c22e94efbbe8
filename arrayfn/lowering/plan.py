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
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from arrayfn.errors import SourceLocation
from arrayfn.ir import ArrayType

if TYPE_CHECKING:
    from arrayfn.display.markup import Line

NEUTRAL_NAME: Final = "kernel"
"""The function that the neutral text of every kernel defines."""

BufferKind = Literal["input", "output", "constant", "temporary", "slice", "carried"]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a kernel: ``kind`` is ``"i64"`` or a pointer, ``"f32*"``."""

    name: str
    kind: str


@dataclass(frozen=True, slots=True, repr=False)
class Kernel:
    """A kernel as source text, with the signature its entry has.

    ``name`` is the function's name in ``source`` (unique within a program). ``key`` is
    the source with neutral names and no comments, and it is what is compiled: kernels
    with equal keys are compiled once. ``source`` is for people. A kernel that was
    replaced has one text, its own. ``parameters`` are those before ``begin, end``.
    ``reason`` says what was fused, and why. ``threads`` are those of a block, on a GPU:
    there an item is a block, and blocks may come in clusters of ``cluster``, and ask
    for ``shared`` bytes of shared memory; ``min_blocks`` of them are to fit on a
    multiprocessor, if that is not 0. The rest of its memory is the first cache of those
    that are ``cached``. All blocks of a ``cooperative`` kernel run at once. One that is
    made of a Program ``from_file`` is compiled by arrayfn alone: nothing executes it.
    """

    name: str
    source: str
    key: str
    parameters: tuple[Parameter, ...]
    reason: str = ""
    threads: int = 0
    cluster: int = 1
    shared: int = 0
    min_blocks: int = 0
    cached: bool = False
    cooperative: bool = False
    from_file: bool = False

    @property
    def is_replaced(self) -> bool:
        """Whether it was written by hand (``Lowered.with_kernel``)."""
        return self.key == self.source

    @property
    def compiled_name(self) -> str:
        """The function's name in ``key``."""
        return self.name if self.is_replaced else NEUTRAL_NAME

    def __str__(self) -> str:
        return self.source

    def __repr__(self) -> str:
        return f"<Kernel {self.name}: {self.reason}>"

    def _repr_html_(self) -> str:
        from arrayfn.display import markup

        title = f"{self.name} <small>{markup.escape(self.reason)}</small>"
        return markup.shown(title, markup.listing(self.source.splitlines()))


@dataclass(frozen=True, slots=True, repr=False)
class LibraryKernel:
    """A kernel that a library has (a GEMM): its provider and its parameters.

    ``provider`` names it to the backend: what it computes, and the dtype, as
    ``"gemm_f32"``. The parameters are pointers, then integers.
    """

    name: str
    provider: str
    parameters: tuple[Parameter, ...]
    reason: str = ""

    @property
    def source(self) -> str:
        """A comment: the library has the code."""
        return f"# {self.name}: {self.reason}\n"

    def __str__(self) -> str:
        return self.source

    def __repr__(self) -> str:
        return f"<LibraryKernel {self.name}: {self.reason}>"


@dataclass(frozen=True, slots=True)
class BufferAllocation:
    """One buffer of a plan.

    ``nbytes`` are those from its lowest element to its highest, and so more than those
    of its elements where a strided input has gaps. ``index`` counts within ``kind``:
    the n-th input, output or constant. Temporaries lie at byte ``offset`` of the arena;
    ``first`` and ``last`` are the steps between which they live (numbered as they are
    printed: a loop, then what is in it). An output with a ``donor`` is written over
    that input. A "slice" or "carried" buffer has no memory of its own: its loop says
    where it is.
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
        """What the plan's text calls it."""
        return f"{self.kind} {self.index}"


@dataclass(frozen=True, slots=True)
class BufferArgument:
    """A pointer: ``offset`` bytes into buffer number ``buffer`` of the plan."""

    buffer: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class ScratchArgument:
    """A pointer to the running thread's own scratch memory, ``offset`` bytes in."""

    offset: int = 0


Argument = BufferArgument | ScratchArgument | int


@dataclass(frozen=True, slots=True)
class Origin:
    """An equation that a step computes, or has a part in.

    ``line`` is its line in ``CompiledProgram.text``, from 1 on, and ``source`` the
    user's. ``operations`` are those that one run of the step does for it.
    """

    line: int
    operations: int
    source: SourceLocation | None


@dataclass(frozen=True, slots=True)
class KernelCall:
    """Run ``kernel`` over work items 0 to ``items``.

    ``grain`` is the smallest number of items worth giving to a thread (a runtime runs
    ``items <= grain`` serially); ``scratch`` is the bytes of scratch memory that each
    thread needs. ``writes`` and ``reads`` are buffer numbers; ``updates`` are those of
    ``writes`` that it reads too. A kernel that is a loop has ``iterations`` iterations;
    None if their number is unknown. ``origins`` are the equations that it computes.
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


@dataclass(frozen=True, slots=True)
class Slice:
    """A window ``buffer`` of ``source`` that moves by ``stride`` bytes an iteration.

    It begins ``offset`` bytes into ``source``. The stride of a reversed loop is
    negative.
    """

    buffer: int
    source: int
    offset: int
    stride: int


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class Loop:
    """Run ``body`` ``count`` times, or as long as buffer ``predicate`` holds True.

    The predicate is read before each iteration. Values that ``slices`` and ``carries``
    do not name stay where they are: the body writes over them. ``reads`` and ``writes``
    are the buffers outside that the loop uses. On a GPU ``host`` names a step inside
    for which the host reads the predicate; if there is none the GPU does.
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


@dataclass(frozen=True, slots=True)
class Branch:
    """Run one of ``branches``, by number ``index``, a buffer of an int32.

    An index outside is moved to the nearest branch. ``host`` is as in ``Loop``.
    """

    index: int
    branches: tuple[tuple[Step, ...], ...]
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    host: str = ""
    origins: tuple[Origin, ...] = ()


Step = KernelCall | Loop | Branch


def kernel_calls(steps: Iterable[Step]) -> Iterator[KernelCall]:
    """The kernel calls among ``steps``, in loops and branches too."""
    for step in steps:
        if isinstance(step, KernelCall):
            yield step
        else:
            for inner in blocks_of(step):
                yield from kernel_calls(inner)


def blocks_of(step: Loop | Branch) -> tuple[tuple[Step, ...], ...]:
    """The lists of steps inside ``step``."""
    return (step.body,) if isinstance(step, Loop) else step.branches


@dataclass(frozen=True, slots=True, repr=False)
class ExecutionPlan:
    """Buffers and steps, in order. ``arena`` and ``scratch`` are sizes in bytes."""

    buffers: tuple[BufferAllocation, ...]
    steps: tuple[Step, ...]
    arena: int = 0
    scratch: int = 0

    def __str__(self) -> str:
        """Buffers and steps, a line each; what is in a loop or branch is indented."""
        return "".join(f"{line}\n" for line, _ in plan_lines(self))

    def bytes_of(self, call: KernelCall) -> int:
        """The bytes of the buffers that one run of ``call`` reads and writes.

        One that is read and written counts twice.
        """
        touched = (*call.reads, *call.updates, *call.writes)
        return sum(self.buffers[k].nbytes for k in touched)

    def __repr__(self) -> str:
        calls = len(list(kernel_calls(self.steps)))
        return f"<ExecutionPlan: {calls} calls of kernels, arena {self.arena} bytes>"

    def _repr_html_(self) -> str:
        from arrayfn.display import markup

        return markup.shown(
            "Execution plan",
            markup.listing(linked_lines(self)),
            memory_chart(self),
            groups=[f"s{k}" for k, _ in numbered(self.steps)],
        )


def numbered(steps: Iterable[Step]) -> Iterator[tuple[int, Step]]:
    """``steps`` with their numbers: a loop or branch, then what is in it."""
    yield from enumerate(_every(steps))


def _every(steps: Iterable[Step]) -> Iterator[Step]:
    for step in steps:
        yield step
        if not isinstance(step, KernelCall):
            for inner in blocks_of(step):
                yield from _every(inner)


def linked_lines(plan: ExecutionPlan) -> list[Line]:
    """The lines of a plan; those of one step have its number in common."""
    from arrayfn.display.markup import Line

    return [
        Line(text, () if number is None else (f"s{number}",))
        for text, number in plan_lines(plan)
    ]


def memory_chart(plan: ExecutionPlan) -> str:
    """What lies where in the arena from step to step, as SVG; empty if nothing does."""
    from arrayfn.display import charts

    bars = [
        charts.Bar(f"{b.label}: {b.type}", b.offset, b.nbytes, b.first, b.last)
        for b in plan.buffers
        if b.kind == "temporary"
    ]
    return charts.timeline(bars, len(list(_every(plan.steps))), plan.arena)


def plan_lines(plan: ExecutionPlan) -> list[tuple[str, int | None]]:
    """The lines of a plan's text, each with the number of its step, if it has one."""
    return _PlanText(plan).text()


@dataclass
class _PlanText:
    plan: ExecutionPlan
    lines: list[tuple[str, int | None]] = field(
        default_factory=list[tuple[str, int | None]]
    )
    number: int = 0

    def text(self) -> list[tuple[str, int | None]]:
        plan = self.plan
        self.steps(plan.steps, "  ")
        sizes = f"arena {plan.arena} bytes, scratch {plan.scratch} bytes a thread"
        head = [f"plan: {self.number} steps, {sizes}"]
        own = self.lines
        for buffer in plan.buffers:
            text = f"  {buffer.label}: {buffer.type}, {buffer.nbytes} bytes"
            if buffer.kind == "temporary":
                text += f" at {buffer.offset}, steps {buffer.first} to {buffer.last}"
            if buffer.donor is not None:
                text += f", over input {buffer.donor}"
            head.append(text)
        return [*((line, None) for line in head), *own]

    def label(self, buffer: int) -> str:
        return self.plan.buffers[buffer].label

    def labels(self, buffers: Iterable[int]) -> str:
        return ", ".join(map(self.label, buffers))

    def steps(self, steps: Iterable[Step], indent: str) -> None:
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
                by = f"branch by {self.label(step.index)}"
                self.lines.append((f"{head}{by}{arrays}{by_host}", number))
                for position, branch in enumerate(step.branches):
                    self.lines.append((f"{indent}  branch {position}:", number))
                    self.steps(branch, indent + "    ")

    def trip_count(self, loop: Loop) -> str:
        if loop.predicate is not None:
            return f"while {self.label(loop.predicate)}"
        return f"{loop.count} times"

    def moves(self, loop: Loop, indent: str) -> None:
        for s in loop.slices:
            begin = f" from byte {s.offset}" if s.offset else ""
            where = f"{self.label(s.buffer)} in {self.label(s.source)}{begin}"
            text = f"{indent}{where}, {s.stride} bytes an iteration"
            self.lines.append((text, self.number - 1))
        for c in loop.carries:
            text = (
                f"{indent}{self.label(c.current)} from {self.label(c.initial)}; "
                f"{self.label(c.next)} in {self.label(c.first)} and "
                f"{self.label(c.second)} alternately; then {self.label(c.result)}"
            )
            self.lines.append((text, self.number - 1))
