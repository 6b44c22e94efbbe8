"""Rows of which two stages are combined in one exchange: see ``merges``.

The parts of a row, warps or the blocks of a cluster, take the later stage's sums about
numbers of their own, and exchange both stages' results at once. Each lane then moves
what one part has to the row's number, before the lanes add up.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np

from arrayfn.dtypes import short_name
from arrayfn.lowering.cuda.merges import (
    Exponentials,
    Merge,
    Moved,
    Unmoved,
    merges_of,
)
from arrayfn.lowering.cuda.schedule import Pipeline, Rows
from arrayfn.lowering.cuda.stage_plan import StagePlan, is_half_exp
from arrayfn.lowering.cuda.stages import StagedPrinter
from arrayfn.lowering.kernel_ir import Compute, Reduce, Store, Value, uses

R = TypeVar("R", Rows, Pipeline)
_OWN: Final = "part"  # ends the name of what a part has, where that of the row follows


@dataclass(frozen=True)
class Parts:
    """Where a block finds what each of a row's ``count`` warps, or blocks, has sent.

    That of a value is in the array ``NAME_suffix``, from ``place`` on. A lane combines
    the part ``own``.
    """

    count: int
    suffix: str
    own: str
    place: str = ""

    def of(self, name: str, at: str) -> str:
        """The part of the warp, or block, ``at``."""
        return f"{name}_{self.suffix}[{self.place}{at}]"


@dataclass
class MergedRowsPrinter(StagedPrinter[R]):
    """Prints the stages that merge; ``exchange`` is done by blocks or clusters."""

    def __post_init__(self) -> None:
        if self.schedule.merged:
            self.merges = merges_of(self.nest)
        super().__post_init__()

    @abstractmethod
    def shuffles(self, reduces: Sequence[Reduce], team: int) -> None:
        """Each of ``team`` neighbouring lanes gets the combination of all."""

    @property
    @abstractmethod
    def parts(self) -> int:
        """How many parts of a row are exchanged."""

    @abstractmethod
    def combine_own(self, reduces: Sequence[Reduce]) -> None:
        """Combine what the threads of a part have."""

    @abstractmethod
    def exchange(
        self, stage: int, values: Sequence[Value], own: frozenset[Value] = frozenset()
    ) -> Parts:
        """All parts of a row learn ``values`` of each other, after ``stage``.

        Of those that are ``own`` the part's is in ``NAME_part``.
        """

    @abstractmethod
    def combine_parts(self, reduces: Sequence[Reduce], parts: Parts) -> None:
        """Each warp combines what all have sent."""

    def sent_after(self, stage: int) -> Sequence[Value]:
        """What is exchanged after ``stage``."""
        for merge in self.merges:
            if merge.stage == stage:
                return merge.sent
            if merge.stage + 1 == stage:
                return ()
        return [s.result for s in self.reduces(stage)]

    def stage(
        self, plan: StagePlan, stage: int, variables: dict[int, str], member: str
    ) -> None:
        for merge in self.merges:
            if merge.stage == stage:
                self.outer_stage(stage, variables, member)
                self.row_stage(plan, stage, variables, member)
                self.combine_own(self.reduces(stage))
                self.take_own(merge, plan, variables)
                return
            if merge.stage + 1 == stage:
                self.row_stage(plan, stage, variables, member)
                self.combine_own(self.reduces(stage))
                parts = self.exchange(merge.stage, merge.sent, self.own(merge))
                self.combine_parts(merge.reduces, parts)
                self.outer_stage(stage, variables, member)
                self.move(merge, plan, parts)
                return
        super().stage(plan, stage, variables, member)

    # What a part takes for the row's.

    def own(self, merge: Merge) -> frozenset[Value]:
        """What a part sends by another name: the row's has its own from then on."""
        return frozenset(s.result for s in merge.greatest)

    def take_own(
        self, merge: Merge, plan: StagePlan, variables: dict[int, str]
    ) -> None:
        """What the elements of the next stage need of the row, as the part knows it."""
        for s in merge.greatest:
            # Of a part of -inf alone, or of nothing, there is no difference.
            name = self.name_of(s.result)
            self.line(f"{name}_{_OWN} = {name}")
            function, lowest = self.use(s.function), self.lowest(s.result)
            self.line(f"{name} = {function}({name}, {lowest})")
        self.provisional_statements(merge, plan, variables)

    def lowest(self, value: Value) -> str:
        dtype = short_name(value.dtype)
        return f"{self.use(dtype)}({float(np.finfo(value.dtype).min)!r})"

    def provisional_statements(
        self, merge: Merge, plan: StagePlan, variables: dict[int, str]
    ) -> None:
        """The outer statements that the next stage needs, of the part's numbers."""
        stage = merge.stage + 1
        statements = self.outer_statements(stage)
        needed = {v.name for s in plan.bodies[stage] for v in uses(s)}
        for s in reversed(statements):
            if not isinstance(s, Store) and s.result.name in needed:
                needed |= {v.name for v in uses(s)}
        for s in statements:
            if not isinstance(s, Store) and s.result.name in needed:
                self.emit(s, variables)

    # What the row has.

    def move(self, merge: Merge, plan: StagePlan, parts: Parts) -> None:
        """Combine the later sums, each part's moved to the row's number first."""
        for name, m in merge.scaled.items():
            if name in plan.kept:
                factor = f"{self.name_of(m.element.result)}_factor"
                own = f"{self.name_of(m.greatest.result)}_{_OWN}"
                moved = f"{own} - {self.name_of(m.about)}"
                self.line(f"{factor} = {self.growth(m.element, moved)}")
                self.factors[name] = factor
        for m in merge.moved:
            identity = self.constant(m.reduce.identity)
            self.line(f"{self.name_of(m.reduce.result)} = {identity}")
        for m in merge.moved:
            name = self.name_of(m.reduce.result)
            term = self.moved_term(m, parts)
            self.line(f"{name} = {self.use(m.reduce.function)}({name}, {term})")
        self.shuffles([m.reduce for m in merge.moved], parts.count)

    def growth(self, element: Compute, moved: str) -> str:
        """The factor of exponentials that are ``moved`` to another number."""
        dtype = short_name(element.result.dtype)
        least = f"{self.use(f'accumulate_min_{dtype}')}({moved}, {self.use(dtype)}(0))"
        if is_half_exp(element):
            return f"{self.use_device('approximate_exp_f32')}({least})"
        return f"{self.use(element.function)}({least})"

    def moved_term(self, m: Moved, parts: Parts) -> str:
        """What a part has, about the row's number."""
        part = parts.of(self.name_of(m.reduce.result), parts.own)
        if isinstance(m, Unmoved):
            return part
        assert isinstance(m, Exponentials)
        greatest = parts.of(self.name_of(m.greatest.result), parts.own)
        self.line(f"moved = {greatest} - {self.name_of(m.about)}")
        return f"{part} * {self.growth(m.element, 'moved')}"
