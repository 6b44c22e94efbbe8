"""The steps of a plan over Vars, before buffers have numbers.

A step is a nest that is not printed yet, a call of a kernel, a loop or a branch. The
``arrays`` of a step are those whose memory must exist while it runs. A step in a loop's
body uses the body's Vars, whose storage the loop decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field

from arrayfn.ir import Var
from arrayfn.lowering.kernel_ir import Load, Nest
from arrayfn.lowering.kernel_text import Partial
from arrayfn.lowering.plan import Origin
from arrayfn.records import record


@record
class NestStep:
    """A kernel that is not printed yet.

    ``partials`` are the arrays of partial results, if the nest is the first half of a
    split reduction. ``origins`` are for a nest whose statements do not name their
    equations.
    """

    nest: Nest
    partials: list[Partial]
    origins: tuple[Origin, ...] = ()

    def arrays(self) -> list[Var]:
        """Return the arrays that it reads or writes."""
        arrays = [o.array for o in self.nest.operands]
        return arrays + [p.array for p in self.partials]

    @property
    def updates(self) -> list[Var]:
        """The arrays that it reads and writes in place."""
        loaded = {s.operand for s in self.nest.statements if isinstance(s, Load)}
        operands = enumerate(self.nest.operands)
        return [o.array for k, o in operands if o.written and k in loaded]

    @property
    def writes(self) -> list[Var]:
        """The arrays that it writes, without partial results."""
        return [o.array for o in self.nest.operands if o.written]


@record
class CallStep:
    """A call of a kernel: a ``plan.KernelCall`` with Vars in place of buffers.

    Attributes that are not listed here are those of ``KernelCall``.

    Attributes:
        pointers: ``(array, byte offset)`` for each pointer argument.
        scratch: the offsets of the scratch arguments, which follow the pointers.
        integers: the integer arguments, which follow those.
        over: pairs ``(result, operand)`` of whole arrays: the result may be written in
            the operand's memory, as each element is read before it is written.
        updates: those of ``writes`` that the kernel reads too.
    """

    kernel: str
    pointers: list[tuple[Var, int]]
    scratch: list[int]
    integers: list[int]
    items: int
    grain: int
    scratch_bytes: int
    reads: list[Var]
    writes: list[Var]
    iterations: int | None = 1
    over: list[tuple[Var, Var]] = field(default_factory=list[tuple[Var, Var]])
    updates: list[Var] = field(default_factory=list[Var])
    origins: tuple[Origin, ...] = ()

    def arrays(self) -> list[Var]:
        """Return the arrays that it reads or writes."""
        return [*self.reads, *self.writes]


@record
class SliceOf:
    """The slice ``inner`` of the array ``outer`` that a loop's iteration uses.

    It begins at byte ``offset`` and moves by ``stride`` bytes with each iteration.
    """

    inner: Var
    outer: Var
    offset: int
    stride: int


@record
class CarriedValue:
    """A value that a loop carries: the body reads ``current`` and computes ``next``.

    ``initial`` is the value before the loop and ``result`` the one after it. With
    buffers ``first`` and ``second``, iterations write them alternately; without,
    ``next`` is written over ``current``.
    """

    current: Var
    next: Var
    initial: Var
    result: Var
    first: Var | None = None
    second: Var | None = None


@record
class LoopStep:
    """Runs ``body`` ``count`` times, or while ``predicate`` is true.

    Attributes:
        slices: the views of arrays outside that move with each iteration.
        carries: the values that iterations hand on.
        operands: the arrays outside that it reads: constants of the loop, initial
            values, and what is sliced.
        results: the arrays outside that it writes.
        outputs: the results of the body.
        serial: whether it becomes one kernel, in which a carried array has its next
            value in ``second``.
        lanes: the number of elements that go through all iterations independently; 0
            if iterations need all elements.
    """

    body: list[PlanStep]
    count: int | None
    predicate: Var | None
    slices: list[SliceOf]
    carries: list[CarriedValue]
    operands: list[Var]
    results: list[Var]
    outputs: list[Var] = field(default_factory=list[Var])
    serial: bool = False
    lanes: int = 0
    origins: tuple[Origin, ...] = ()

    def arrays(self) -> list[Var]:
        """Return the arrays that it reads or writes."""
        own = [v for c in self.carries for v in (c.first, c.second) if v is not None]
        return [*self.operands, *self.results, *own]

    @property
    def writes(self) -> list[Var]:
        """The arrays that it writes."""
        return self.results


@record
class BranchStep:
    """Runs one of ``branches``, by number ``index``, an int32.

    ``operands`` are the arrays outside that the branches read, and ``results`` those
    that they write.
    """

    index: Var
    branches: list[list[PlanStep]]
    operands: list[Var]
    results: list[Var]
    origins: tuple[Origin, ...] = ()

    def arrays(self) -> list[Var]:
        """Return the arrays that it reads or writes."""
        return [self.index, *self.operands, *self.results]

    @property
    def writes(self) -> list[Var]:
        """The arrays that it writes."""
        return self.results


PlanStep = NestStep | CallStep | LoopStep | BranchStep


def blocks_of(step: PlanStep) -> Sequence[list[PlanStep]]:
    """Return the lists of steps inside ``step``: a loop's body, or each branch."""
    if isinstance(step, LoopStep):
        return (step.body,)
    return step.branches if isinstance(step, BranchStep) else ()


def walk(steps: Iterable[PlanStep]) -> Iterator[PlanStep]:
    """Yield all steps, nested ones too: a loop or branch before the steps inside it."""
    for step in steps:
        yield step
        for block in blocks_of(step):
            yield from walk(block)
