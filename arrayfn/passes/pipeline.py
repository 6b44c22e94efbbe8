"""The passes, in order. Each states in its module what holds after it."""

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
from arrayfn.transforms.dce import dce

Pass = Callable[[Program], Program]
Settled = set[Program]
"""Programs that the passes have nothing to do with: they came out of them."""


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
    """The passes for a target.

    Its library multiplies what ``products`` says, faster what lies along the axes that
    are contracted where ``along`` says so, and it computes the equations that ``keep``
    accepts as they stand, after ``arrange`` has written what else a library takes in
    its terms; they read operands as they lie where ``takes_view`` says so, from
    multiples of ``aligned`` bytes on. Small loops
    multiply without the library, or with ``pairs`` all loops, matrices that have up to
    so many to multiply; with ``transforms`` long Fourier transforms are cut.
    """

    def unrolled(program: Program, settled: Settled | None = None) -> Program:
        """Scans that are written out; their bodies go through the passes before."""
        known = set[Program]() if settled is None else settled
        return unroll_loops(program, lambda inner: simplified(inner, known))

    def control_flow(program: Program, settled: Settled | None = None) -> Program:
        """Loops and branches; their Programs go through the passes but the layouts."""
        known = set[Program]() if settled is None else settled
        return simplify_control_flow(program, lambda inner: simplified(inner, known))

    def with_own_sums(program: Program, settled: Settled | None = None) -> Program:
        """Products of small loops as sums."""
        known = set[Program]() if settled is None else settled
        return small_loops(program, lambda inner: simplified(inner, known), pairs)

    def short_transforms(program: Program) -> Program:
        """Long transforms as short ones."""
        return cut_long_transforms(program) if transforms else program

    def simplified(program: Program, settled: Settled) -> Program:
        # A loop's body is simplified again after the loop has changed: loops inside it
        # that came out of here are not, or it would be twice as often at each depth.
        if program not in settled:
            for apply in passes:
                if apply in (unrolled, control_flow, with_own_sums):
                    program = apply(program, settled)
                else:
                    program = apply(program)
            settled.add(program)
        return program

    passes: tuple[Callable[..., Program], ...] = (
        partial(inline_calls, keep=keep),
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
    """``program`` after every pass; ``check`` verifies the types between passes."""
    for apply in passes:
        program = apply(program)
        if check:
            program.check()
    return program
