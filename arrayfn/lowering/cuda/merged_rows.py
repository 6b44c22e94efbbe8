"""Rows two of whose stages share one exchange between warps: see ``merges``.

Each warp computes the later stage's sums with a shift of its own, and exchanges both
stages' results at once. Each lane then rescales one warp's results to the row's shift,
before the lanes are combined. In a cluster the first warp does so for its block and
sends the result; each warp of the cluster then rescales the results of the blocks.

In the lines that are printed for a softmax, ``a`` is the maximum and ``e`` the sum of
the exponentials ``d``; ``a_warp`` is the maximum of a warp.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

import numpy as np
from typing_extensions import override

from arrayfn.dtypes import short_name
from arrayfn.lowering.cuda.merges import (
    Exponentials,
    Merge,
    Rescaled,
    Squares,
    Unshifted,
)
from arrayfn.lowering.cuda.rows import Exchanged, R, RowsPrinter
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
from arrayfn.records import record

_WARP, _BLOCK = "warp", "block"
"""The two kinds of parts of a row, as suffixes of variables.

``a_warp`` and ``a_block`` keep the maximum ``a`` of a warp and of a block.
"""


@record
class MergedRowsPrinter(RowsPrinter[R]):
    """Prints row kernels in which some pairs of stages share one exchange."""

    normalizing_factors: dict[str, str] = field(default_factory=dict[str, str])
    """The variable, such as ``d_share``, by which later stages multiply an exponential
    ``d``.

    It both rescales the exponential and divides it by the sum; see ``fold_division``.
    """

    def __post_init__(self) -> None:
        """Find the pairs of stages that merge, before the stages are planned."""
        if self.schedule.merged:
            self.merges = row_merges(self.nest, self.schedule)
        super().__post_init__()

    @override
    def exchanged_values(self, stage: int) -> Sequence[Value]:
        """Return the values that parts of a row exchange after ``stage``.

        The first stage of a merge sends the values of both stages, so the second stage
        sends none.
        """
        for merge in self.merges:
            if merge.stage == stage:
                return merge.sent
            if merge.stage + 1 == stage:
                return ()
        return super().exchanged_values(stage)

    @override
    def stage(self, stage: int) -> None:
        """Print stage number ``stage``; a merge's exchange is after its second stage.

        The first stage ends with each warp's own results. The second stage uses them as
        if they were the row's, and rescales afterwards.
        """
        merge = next((m for m in self.merges if stage - m.stage in (0, 1)), None)
        if merge is None:
            super().stage(stage)
            return
        is_first = merge.stage == stage
        if is_first:
            self.outer_stage(stage)
        self.row_stage(stage)
        self.combine_warp(self.row_reductions(stage))
        if is_first:
            self.set_partial_values(merge, _WARP)
            return
        parts = self.exchange_merged(merge)
        self.combine_parts(merge.reduces, parts)
        self.outer_stage(stage)
        self.print_kept_factors(merge)
        self.rescale(merge, parts)
        self.fold_division(merge)

    def exchange_merged(self, merge: Merge) -> Exchanged:
        """Exchange the results of both stages of ``merge`` between the parts of a row.

        Prints, for a softmax by 16 warps:

            a_warps = shared_f32(16)
            e_warps = shared_f32(16)
            if remainder(thread, 32) == 0:
                a_warps[quotient(thread, 32)] = a_warp
                e_warps[quotient(thread, 32)] = e
            barrier()

        In a cluster the first warp then combines the results of the block, and sends
        them to the other blocks.
        """
        if self.combines_in_block:
            for s in merge.maxima:
                name = self.name_of(s.result)
                self.line(f"{name}_{_BLOCK} = {name}_{_WARP}")
            warps = self.exchange_warps(self.texts(merge, _WARP))
            with self.open(f"if member < {WARP}:"):
                self.combine_parts(merge.reduces, warps)
                self.set_partial_values(merge, _BLOCK)
                self.rescale(merge, warps)
            return self.exchange(merge.stage, self.texts(merge, _BLOCK))
        return self.exchange(merge.stage, self.texts(merge, _WARP))

    # A part's values.

    def texts(self, merge: Merge, suffix: str) -> dict[Value, str]:
        """Return the variable of each value that a part sends: ``a_warp``, ``e``.

        A maximum ``a`` is sent from its copy ``a_warp``, because the variable ``a``
        becomes the part's shift. ``suffix`` is ``_WARP`` or ``_BLOCK``.
        """
        texts = {v: self.name_of(v) for v in merge.sent}
        maxima = (s.result for s in merge.maxima)
        return texts | {v: f"{self.name_of(v)}_{suffix}" for v in maxima}

    def set_partial_values(self, merge: Merge, suffix: str) -> None:
        """Set the part's shifts, and the values that the next stage computes from them.

        Prints, for a softmax:

            a_warp = a
            a = accumulate_max_f32(a, f32(-3.4028234663852886e+38))

        The maximum with the lowest finite number avoids ``-inf - -inf`` in parts
        without a finite element.

        Args:
            merge: The pair of stages.
            suffix: Whether a part is a warp (``_WARP``) or a block (``_BLOCK``).
        """
        for s in merge.maxima:
            name = self.name_of(s.result)
            self.line(f"{name}_{suffix} = {name}")
            function, lowest = s.function, self.lowest(s.result)
            self.line(f"{name} = {function}({name}, {lowest})")
        self.partial_statements(merge, suffix)

    def lowest(self, value: Value) -> str:
        """Return the lowest finite number of ``value``'s dtype as an expression.

        For float32 this is ``f32(-3.4028234663852886e+38)``.
        """
        dtype = short_name(value.dtype)
        return f"{dtype}({float(np.finfo(value.dtype).min)!r})"

    def partial_statements(self, merge: Merge, suffix: str) -> None:
        """Print the outer statements that the next stage needs, with the part's values.

        Outer statements run once a row. They compute shifts from results of the earlier
        stage; here these are one part's results. Prints, for a variance by warps of 512
        elements each: ``c = div_f32(a, f32(512))``, the mean of a warp's elements.
        ``suffix`` says whether the part is a warp or a block.
        """
        stage = merge.stage + 1
        statements = self.outer_statements(stage)
        means = {m.shift.name: m for m in merge.rescaled if isinstance(m, Squares)}
        needed = {v.name for s in self.plan.bodies[stage] for v in uses(s)}
        needed |= {m.shift.name for m in merge.rescaled if isinstance(m, Exponentials)}
        # Add what the needed values are computed from, except what only means need: a
        # part's mean is printed from its own sum below.
        for s in reversed(statements):
            if not isinstance(s, Store) and s.result.name in needed - set(means):
                needed |= {v.name for v in uses(s)}
        # Elements of the part.
        elements = self.row_elements() // self.parts
        if suffix == _WARP:
            elements = self.row_elements() * WARP // self.schedule.threads_per_row
        for s in statements:
            if isinstance(s, Store) or s.result.name not in needed:
                continue
            if s.result.name in means:
                m = means[s.result.name]
                mean = self.mean(m, self.name_of(m.total.result), elements)
                self.line(f"{self.name_of(m.shift)} = {mean}")
            else:
                self.emit(s, self.variables)

    def mean(self, m: Squares, total: str, elements: int) -> str:
        """Return the expression of the mean of ``elements`` numbers with sum ``total``.

        For 512 elements it is ``div_f32(a, f32(512))``, if ``total`` is ``a``. The
        dtype is that of the shift of ``m``.
        """
        dtype = short_name(m.shift.dtype)
        return f"div_{dtype}({total}, {dtype}({elements}))"

    # The row's values.

    def print_kept_factors(self, merge: Merge) -> None:
        """Define the factors that rescale the exponentials which registers keep.

        The exponentials were computed with their warp's maximum as the shift. Prints:

            d_factor = exp_f32(accumulate_min_f32(a_warp - a, f32(0)))
        """
        for name, m in merge.scaled.items():
            if name in self.plan.kept:
                factor = f"{self.name_of(m.element.result)}_factor"
                maximum = f"{self.name_of(m.maximum.result)}_{_WARP}"
                difference = f"{maximum} - {self.name_of(m.shift)}"
                self.line(f"{factor} = {self.rescale_factor(m.element, difference)}")
                self.factors[name] = factor

    def rescale(self, merge: Merge, parts: Exchanged) -> None:
        """Combine the later stage's results of all parts, rescaled to the row's shift.

        Prints, for the sum of a softmax by 16 warps (left out is the clamp of
        ``difference``, see ``rescale_factor``):

            e = f32(0)
            difference = a_warps[remainder(thread, 16)] - a
            e = accumulate_add_f32(e, e_warps[...] * exp_f32(difference))
            for step in range(4):
                e = accumulate_add_f32(e, shuffle_xor_f32(e, 8 >> step))

        ``parts`` says where shared memory has the parts' results.
        """
        for m in merge.rescaled:
            identity = self.constant(m.reduce.identity)
            self.line(f"{self.name_of(m.reduce.result)} = {identity}")
        for m in merge.rescaled:
            name = self.name_of(m.reduce.result)
            term = self.rescaled_term(m, parts)
            self.line(f"{name} = {m.reduce.function}({name}, {term})")
        self.shuffles([m.reduce for m in merge.rescaled], parts.count)

    def rescale_factor(self, element: Compute, difference: str) -> str:
        """Return the expression of the factor that rescales an exponential.

        It is ``exp_f32(accumulate_min_f32(difference, f32(0)))``. The difference of a
        part's maximum and the shift is positive only in a row with an infinite or NaN
        maximum, for which Programs may take 0 as the shift.

        Args:
            element: The exponential, whose dtype and precision the factor has.
            difference: The expression of the difference.
        """
        dtype = short_name(element.result.dtype)
        clamped = f"accumulate_min_{dtype}({difference}, {dtype}(0))"
        if is_half_exp(element):
            return f"approximate_exp_f32({clamped})"
        return f"{element.function}({clamped})"

    def rescaled_term(self, m: Rescaled, parts: Exchanged) -> str:
        """Return the expression of a part's result of ``m``, rescaled to the row.

        For exponentials it is the second argument of ``accumulate_add_f32`` in
        ``rescale``. For squares, of parts of 512 elements:

            g_warps[remainder(thread, 16)] + difference * difference * f32(512)

        In both cases the line that defines ``difference`` is printed first. ``parts``
        says where shared memory has the parts' results.
        """
        part = parts.of(self.name_of(m.reduce.result))
        if isinstance(m, Unshifted):
            return part
        shift = self.name_of(m.shift)
        if isinstance(m, Squares):
            total = parts.of(self.name_of(m.total.result))
            self.line(f"difference = {self.mean(m, total, parts.elements)} - {shift}")
            elements = f"{short_name(m.shift.dtype)}({parts.elements})"
            return f"{part} + difference * difference * {elements}"
        maximum = parts.of(self.name_of(m.maximum.result))
        self.line(f"difference = {maximum} - {shift}")
        return f"{part} * {self.rescale_factor(m.element, 'difference')}"

    # Exponentials over their sum.

    def fold_division(self, merge: Merge) -> None:
        """Define factors that rescale exponentials and divide them by their sum.

        Prints, for a softmax: ``d_share = div_f32(d_factor, e)``. The quotients then
        are ``g = d * d_share``. This is done only for exponentials whose one use is the
        division by their sum. The sum is at least 1, or NaN, so the factor does not
        overflow.
        """
        later = [s for body in self.plan.bodies[merge.stage + 2 :] for s in body]
        # The sum ``m`` of the exponentials that are called ``name``.
        for name, m in merge.scaled.items():
            read = [s for s in later if name in {v.name for v in uses(s)}]
            if name in self.factors and all(
                self.divides_by_own_sum(s, m) for s in read
            ):
                total = self.name_of(m.reduce.result)
                normalizing = f"{self.name_of(m.element.result)}_share"
                dtype = short_name(m.element.result.dtype)
                factor, is_half = self.factors.pop(name), m.element.result.half
                divide = self.divide_half() if is_half else f"div_{dtype}"
                self.line(f"{normalizing} = {divide}({factor}, {total})")
                self.normalizing_factors[name] = normalizing

    def divides_by_own_sum(self, s: Statement, m: Exponentials) -> bool:
        """Whether ``s`` divides an exponential of ``m`` by the sum of all of them."""
        if not isinstance(s, Compute) or not s.function.startswith("div_"):
            return False
        return s.arguments == (m.element.result, m.reduce.result)

    def normalizing_factor(self, s: Compute) -> str | None:
        """Return the variable by which the division ``s`` becomes a multiplication.

        An exponential ``d`` that is divided by the sum of all exponentials is
        multiplied by ``d_share`` instead. None if ``s`` is no such division.
        """
        x = s.arguments[0] if s.function.startswith("div_") else None
        return self.normalizing_factors.get(x.name) if isinstance(x, Value) else None

    @override
    def divisor(self, s: Statement) -> str:
        """Return the variable of the row scalar that ``s`` divides by; else "".

        A division that has become a multiplication by a factor has no divisor.
        """
        has_factor = isinstance(s, Compute) and self.normalizing_factor(s) is not None
        return "" if has_factor else super().divisor(s)

    @override
    def compute(self, s: Compute) -> None:
        """Print ``s``; a division by the sum becomes ``g = d * d_share``."""
        factor = self.normalizing_factor(s)
        if factor is None:
            super().compute(s)
            return
        x = self.scalar(s.arguments[0])
        self.line(f"{self.name_of(s.result)} = {x} * {factor}", s.source)
