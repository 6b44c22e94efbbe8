"""Rows two of whose stages are combined in one exchange between warps: see ``merges``.

Each warp computes the later stage's sums relative to a number of its own, and exchanges
both stages' results at once. Each lane then rescales one warp's results to a common
number, before the lanes are reduced. In a cluster the first warp does so for its block
and sends the result; each warp of the cluster then rescales the results of the blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from arrayfn.dtypes import short_name
from arrayfn.lowering.cuda.merges import (
    Exponentials,
    Merge,
    Moved,
    Squares,
    Unmoved,
)
from arrayfn.lowering.cuda.rows import Parts, RowsPrinter
from arrayfn.lowering.cuda.schedule import Pipeline, Rows
from arrayfn.lowering.cuda.shared_rows import row_merges
from arrayfn.lowering.cuda.stage_plan import is_half_exp
from arrayfn.lowering.cuda.vocabulary import WARP
from arrayfn.lowering.kernel_ir import (
    Compute,
    Statement,
    Store,
    Value,
    uses,
)

R = TypeVar("R", Rows, Pipeline)
_WARP, _BLOCK = "own", "block"
"""Suffixes of names of a warp's, and a block's, own value, not yet the row's."""


@dataclass
class MergedRowsPrinter(RowsPrinter[R]):
    """Prints rows of which some stages merge."""

    shares: dict[str, str] = field(default_factory=dict[str, str])
    """Factors of kept values that are only divided by their own sum: over that sum."""

    def __post_init__(self) -> None:
        if self.schedule.merged:
            self.merges = row_merges(self.nest, self.schedule)
        super().__post_init__()

    def sent_after(self, stage: int) -> Sequence[Value]:
        for merge in self.merges:
            if merge.stage == stage:
                return merge.sent
            if merge.stage + 1 == stage:
                return ()
        return super().sent_after(stage)

    def stage(self, stage: int) -> None:
        for merge in self.merges:
            if merge.stage == stage:
                self.outer_stage(stage)
                self.row_stage(stage)
                self.combine_warp(self.reduces(stage))
                self.take_own(merge, _WARP)
                return
            if merge.stage + 1 == stage:
                self.row_stage(stage)
                self.combine_warp(self.reduces(stage))
                parts = self.exchange_merged(merge)
                self.combine_parts(merge.reduces, parts)
                self.outer_stage(stage)
                self.scale(merge)
                self.move(merge, parts)
                self.share(merge)
                return
        super().stage(stage)

    def exchange_merged(self, merge: Merge) -> Parts:
        """Exchange the results of both stages between warps, or blocks.

        In a cluster the first warp combines what the warps have, and sends it.
        """
        if self.warps_meet:
            for s in merge.maxima:
                name = self.name_of(s.result)
                self.line(f"{name}_{_BLOCK} = {name}_{_WARP}")
            warps = self.exchange_warps(self.texts(merge, _WARP))
            with self.open(f"if member < {WARP}:"):
                self.combine_parts(merge.reduces, warps)
                self.take_own(merge, _BLOCK)
                self.move(merge, warps)
            return self.exchange(merge.stage, self.texts(merge, _BLOCK))
        return self.exchange(merge.stage, self.texts(merge, _WARP))

    # What a part takes for the row's.

    def texts(self, merge: Merge, suffix: str) -> dict[Value, str]:
        """What a part has of each value that is exchanged."""
        texts = {v: self.name_of(v) for v in merge.sent}
        own = (s.result for s in merge.maxima)
        return texts | {v: f"{self.name_of(v)}_{suffix}" for v in own}

    def take_own(self, merge: Merge, suffix: str) -> None:
        """Provisional values, of the part alone, for the elements of the next stage."""
        for s in merge.maxima:
            # Of a part of -inf alone, or of nothing, there is no difference.
            name = self.name_of(s.result)
            self.line(f"{name}_{suffix} = {name}")
            function, lowest = s.function, self.lowest(s.result)
            self.line(f"{name} = {function}({name}, {lowest})")
        self.provisional_statements(merge, suffix)

    def lowest(self, value: Value) -> str:
        dtype = short_name(value.dtype)
        return f"{dtype}({float(np.finfo(value.dtype).min)!r})"

    def provisional_statements(self, merge: Merge, suffix: str) -> None:
        """The outer statements that the next stage needs, of the part's numbers."""
        stage = merge.stage + 1
        statements = self.outer_statements(stage)
        means = {m.about.name: m for m in merge.moved if isinstance(m, Squares)}
        needed = {v.name for s in self.plan.bodies[stage] for v in uses(s)}
        needed |= {m.about.name for m in merge.moved if isinstance(m, Exponentials)}
        for s in reversed(statements):
            if not isinstance(s, Store) and s.result.name in needed - set(means):
                needed |= {v.name for v in uses(s)}
        elements = self.row_elements() // self.parts
        if suffix == _WARP:
            elements = self.row_elements() * WARP // self.schedule.threads_per_row
        for s in statements:
            if isinstance(s, Store) or s.result.name not in needed:
                continue
            if s.result.name in means:
                m = means[s.result.name]
                mean = self.mean(m, self.name_of(m.total.result), elements)
                self.line(f"{self.name_of(m.about)} = {mean}")
            else:
                self.emit(s, self.variables)

    def mean(self, m: Squares, total: str, elements: int) -> str:
        """The mean of a part of so many elements, of their ``total``."""
        dtype = short_name(m.about.dtype)
        return f"div_{dtype}({total}, {dtype}({elements}))"

    # What the row has.

    def scale(self, merge: Merge) -> None:
        """Factors that rescale kept exponentials to the row's maximum."""
        for name, m in merge.scaled.items():
            if name in self.plan.kept:
                factor = f"{self.name_of(m.element.result)}_factor"
                own = f"{self.name_of(m.maximum.result)}_{_WARP}"
                moved = f"{own} - {self.name_of(m.about)}"
                self.line(f"{factor} = {self.growth(m.element, moved)}")
                self.factors[name] = factor

    def move(self, merge: Merge, parts: Parts) -> None:
        """Combine the later sums, each part's moved to a common number first."""
        for m in merge.moved:
            identity = self.constant(m.reduce.identity)
            self.line(f"{self.name_of(m.reduce.result)} = {identity}")
        for m in merge.moved:
            name = self.name_of(m.reduce.result)
            term = self.moved_term(m, parts)
            self.line(f"{name} = {m.reduce.function}({name}, {term})")
        self.shuffles([m.reduce for m in merge.moved], parts.count)

    def growth(self, element: Compute, moved: str) -> str:
        """The factor of exponentials that are ``moved`` to another number."""
        dtype = short_name(element.result.dtype)
        clamped = f"accumulate_min_{dtype}({moved}, {dtype}(0))"
        if is_half_exp(element):
            return f"approximate_exp_f32({clamped})"
        return f"{element.function}({clamped})"

    def moved_term(self, m: Moved, parts: Parts) -> str:
        """A part's sum, rescaled to the common number."""
        part = parts.of(self.name_of(m.reduce.result), parts.own)
        if isinstance(m, Unmoved):
            return part
        about = self.name_of(m.about)
        if isinstance(m, Squares):
            total = parts.of(self.name_of(m.total.result), parts.own)
            self.line(f"moved = {self.mean(m, total, parts.elements)} - {about}")
            elements = f"{short_name(m.about.dtype)}({parts.elements})"
            return f"{part} + moved * moved * {elements}"
        maximum = parts.of(self.name_of(m.maximum.result), parts.own)
        self.line(f"moved = {maximum} - {about}")
        return f"{part} * {self.growth(m.element, 'moved')}"

    # Exponentials over their sum.

    def share(self, merge: Merge) -> None:
        """The factors of exponentials that become shares of their sum, as softmax's.

        One product moves and divides them: a sum is 1 or more, if it is a number.
        """
        later = [s for body in self.plan.bodies[merge.stage + 2 :] for s in body]
        for name, m in merge.scaled.items():
            read = [s for s in later if name in {v.name for v in uses(s)}]
            if name in self.factors and all(self.is_share(s, m) for s in read):
                total = self.name_of(m.reduce.result)
                share = f"{self.name_of(m.element.result)}_share"
                dtype = short_name(m.element.result.dtype)
                factor, is_half = self.factors.pop(name), m.element.result.half
                divide = self.divide_half() if is_half else f"div_{dtype}"
                self.line(f"{share} = {divide}({factor}, {total})")
                self.shares[name] = share

    def is_share(self, s: Statement, m: Exponentials) -> bool:
        """Whether ``s`` divides an exponential by the sum of them all."""
        if not isinstance(s, Compute) or not s.function.startswith("div_"):
            return False
        return s.arguments == (m.element.result, m.reduce.result)

    def share_of(self, s: Compute) -> str | None:
        """The factor of what ``s`` divides, if it is over the divisor already."""
        x = s.arguments[0] if s.function.startswith("div_") else None
        return self.shares.get(x.name) if isinstance(x, Value) else None

    def divisor(self, s: Statement) -> str:
        has_share = isinstance(s, Compute) and self.share_of(s) is not None
        return "" if has_share else super().divisor(s)

    def compute(self, s: Compute) -> None:
        share = self.share_of(s)
        if share is None:
            super().compute(s)
            return
        x = self.scalar(s.arguments[0])
        self.line(f"{self.name_of(s.result)} = {x} * {share}", s.source)
