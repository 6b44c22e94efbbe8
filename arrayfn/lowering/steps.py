"""The steps of a plan before its buffers have numbers: they speak of Vars.

A step is a kernel's nest that is not printed yet, a call of a kernel, a loop, or a
branch. ``arrays`` are the Vars outside that it accesses, for lifetimes; a step in a
loop's body sees the body's Vars, whose storage the loop decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from arrayfn.ir import Var
from arrayfn.lowering.kernel_ir import Load, Nest
from arrayfn.lowering.kernel_text import Partial
from arrayfn.lowering.plan import Origin


@dataclass
class NestStep:
    """A step before it is printed; ``partials`` if it is half of a split reduction.

    ``origins`` are those of a nest whose statements do not say where they come from.
    """

    nest: Nest
    partials: list[Partial]
    origins: tuple[Origin, ...] = ()

    def arrays(self) -> list[Var]:
        """The arrays that it reads or writes."""
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
        """The arrays that it writes, but for partial results."""
        return [o.array for o in self.nest.operands if o.written]


@dataclass
class CallStep:
    """A call of a kernel; pointers are (Var, byte offset).

    ``over`` are pairs (result, operand) of whole arrays: the kernel may write the one
    where the other lies, element for element. Of ``writes`` it also reads ``updates``.
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
        """The arrays that it reads or writes."""
        return [*self.reads, *self.writes]


@dataclass
class SliceOf:
    """``inner`` is a window into ``outer`` that moves ``stride`` bytes an iteration."""

    inner: Var
    outer: Var
    offset: int
    stride: int


@dataclass
class CarriedValue:
    """A loop's value: ``current`` becomes ``next`` in the body.

    ``initial`` goes in and ``result`` comes out. With ``first`` and ``second`` the
    value lies in these alternately, else ``next`` is written over ``current``.
    """

    current: Var
    next: Var
    initial: Var
    result: Var
    first: Var | None = None
    second: Var | None = None


@dataclass
class LoopStep:
    """``body``, ``count`` times or while ``predicate`` is true.

    ``operands`` are the arrays outside that it reads: constants of the loop, initial
    values, and what is sliced. ``results`` it writes. A ``serial`` loop becomes one
    kernel, in which a carried array has its next value in ``second``; with ``lanes``
    that many elements go through all iterations, each by itself.
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
        """The arrays that it reads or writes."""
        own = [v for c in self.carries for v in (c.first, c.second) if v is not None]
        return [*self.operands, *self.results, *own]

    @property
    def writes(self) -> list[Var]:
        """The arrays that it writes."""
        return self.results


@dataclass
class BranchStep:
    """Runs one of ``branches``, by number ``index``."""

    index: Var
    branches: list[list[PlanStep]]
    operands: list[Var]
    results: list[Var]
    origins: tuple[Origin, ...] = ()

    def arrays(self) -> list[Var]:
        """The arrays that it reads or writes."""
        return [self.index, *self.operands, *self.results]

    @property
    def writes(self) -> list[Var]:
        """The arrays that it writes."""
        return self.results


PlanStep = NestStep | CallStep | LoopStep | BranchStep


def blocks_of(step: PlanStep) -> Sequence[list[PlanStep]]:
    """The lists of steps inside ``step``."""
    if isinstance(step, LoopStep):
        return (step.body,)
    return step.branches if isinstance(step, BranchStep) else ()


def walk(steps: Iterable[PlanStep]) -> Iterator[PlanStep]:
    """``steps`` and those inside them: a loop or branch, then what is in it."""
    for step in steps:
        yield step
        for block in blocks_of(step):
            yield from walk(block)
