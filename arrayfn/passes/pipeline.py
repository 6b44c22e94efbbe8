"""The passes, in order. Each module's docstring says what holds after its pass."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from arrayfn.ir import Equation, Program
from arrayfn.passes.control_flow import simplify_control_flow
from arrayfn.passes.cse import cse
from arrayfn.passes.expand import BLAS, Products, expand
from arrayfn.passes.inline_calls import inline_calls, keep_none
from arrayfn.passes.layout_assignment import (
    Along,
    TakesView,
    along_any,
    assign_layouts,
    takes_no_view,
)
from arrayfn.passes.long_transforms import cut_long_transforms
from arrayfn.passes.loop_invariants import loop_invariants
from arrayfn.passes.loop_products import products_out_of_loops
from arrayfn.passes.loop_unrolling import unroll_loops
from arrayfn.passes.simplify import simplify
from arrayfn.passes.single_index import single_index
from arrayfn.passes.small import small_loops
from arrayfn.passes.storage_types import storage_as_bytes
from arrayfn.transforms.dce import dce

Pass = Callable[[Program], Program]
Simplified = set[Program]
"""Programs that have been through the passes already."""


def pipeline(
    products: Products = BLAS,
    keep: Callable[[Equation], bool] = keep_none,
    arrange: Pass | None = None,
    *,
    pairs: int | None = None,
    transforms: bool = True,
    takes_view: TakesView = takes_no_view,
    along: Along = along_any,
    aligned: int = 1,
) -> tuple[Pass, ...]:
    """The passes for a target, in order.

    Args:
        products: the dtypes of matrices that the target's library multiplies.
        keep: which calls the target computes itself, so they are not inlined.
        arrange: a pass of the target that runs before primitives are expanded.
        pairs: loops compute products of up to so many multiplications as sums, not by
            the library; by default only small loops do.
        transforms: whether long Fourier transforms are cut.
        takes_view: which calls accept an operand without a copy.
        along: for which products contiguous operands are worth a copy.
        aligned: the alignment in bytes that kernels of calls and libraries need.
    """

    def unrolled(program: Program, done: Simplified | None = None) -> Program:
        """Unroll scans; their bodies go through the passes first."""
        known = set[Program]() if done is None else done
        return unroll_loops(program, lambda inner: simplified(inner, known))

    def control_flow(program: Program, done: Simplified | None = None) -> Program:
        """Simplify loops and branches, and the Programs inside them."""
        known = set[Program]() if done is None else done
        return simplify_control_flow(program, lambda inner: simplified(inner, known))

    def with_own_sums(program: Program, done: Simplified | None = None) -> Program:
        """Write products in small loops as sums."""
        known = set[Program]() if done is None else done
        return small_loops(program, lambda inner: simplified(inner, known), pairs)

    def short_transforms(program: Program) -> Program:
        """Cut long Fourier transforms."""
        return cut_long_transforms(program) if transforms else program

    def simplified(program: Program, known: Simplified) -> Program:
        """``program`` after the passes, which run once on each Program."""
        # A body is simplified again after its loop has changed. Inner loops that are
        # already simplified are skipped, or the work would double at each depth.
        if program not in known:
            for apply in passes:
                if apply in (unrolled, control_flow, with_own_sums):
                    program = apply(program, known)
                else:
                    program = apply(program)
            known.add(program)
        return program

    passes: tuple[Callable[..., Program], ...] = (
        partial(inline_calls, keep=keep),
        partial(storage_as_bytes, products=products, keep=keep),
        short_transforms,
        *(() if arrange is None else (arrange,)),
        partial(expand, products=products, keep=keep),
        simplify,
        single_index,
        cse,
        simplify,
        dce,
        unrolled,
        control_flow,
        loop_invariants,
        products_out_of_loops,
        with_own_sums,
        dce,
    )
    layouts = partial(
        assign_layouts, takes_view=takes_view, along=along, aligned=aligned
    )
    return (*passes, layouts)


PIPELINE: Final[tuple[Pass, ...]] = pipeline()


def run_passes(
    program: Program, check: bool = False, passes: tuple[Pass, ...] = PIPELINE
) -> Program:
    """``program`` after all passes; ``check`` verifies its types after each."""
    for apply in passes:
        program = apply(program)
        if check:
            program.check()
    return program
