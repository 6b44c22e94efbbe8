"""The passes, in order. Each module's docstring says what holds after its pass."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from arrayfn.ir import Equation, Program
from arrayfn.passes.control_flow import simplify_control_flow
from arrayfn.passes.cse import cse
from arrayfn.passes.expand import BLAS, Products, expand
from arrayfn.passes.inline_calls import inline_calls, keep_none
from arrayfn.passes.layout_assignment import (
    DEFAULT_RULES,
    LayoutRules,
    assign_layouts,
)
from arrayfn.passes.long_transforms import cut_long_transforms
from arrayfn.passes.loop_invariants import loop_invariants
from arrayfn.passes.loop_products import products_out_of_loops
from arrayfn.passes.loop_unrolling import unroll_loops
from arrayfn.passes.simplify import simplify
from arrayfn.passes.single_index import single_index
from arrayfn.passes.small import small_loops
from arrayfn.passes.storage_types import storage_as_bytes
from arrayfn.records import frozen
from arrayfn.transforms.dce import dce

Pass = Callable[[Program], Program]


def pipeline(
    products: Products = BLAS,
    keep: Callable[[Equation], bool] = keep_none,
    arrange: Pass | None = None,
    *,
    max_summed: int | None = None,
    cuts_transforms: bool = True,
    layout_rules: LayoutRules = DEFAULT_RULES,
) -> tuple[Pass, ...]:
    """Return the passes for a target, in the order in which they run.

    Args:
        products: the dtypes of matrices that the target's library multiplies.
        keep: whether the target computes an equation itself; such an equation is
            neither inlined nor expanded.
        arrange: a pass of the target that runs before primitives are expanded.
        max_summed: loops compute products of at most so many multiplications as sums,
            not by the library; by default only small loops do.
        cuts_transforms: whether long Fourier transforms are cut.
        layout_rules: which layouts the target's kernels and libraries accept.
    """
    # The loop passes hold this list: they run all of it on the bodies of loops.
    passes: list[Pass] = []
    passes += (
        partial(inline_calls, keep=keep),
        partial(storage_as_bytes, products=products, keep=keep),
        *((cut_long_transforms,) if cuts_transforms else ()),
        *(() if arrange is None else (arrange,)),
        partial(expand, products=products, keep=keep),
        simplify,
        single_index,
        cse,
        simplify,
        dce,
        _LoopPass(unroll_loops, passes),
        _LoopPass(simplify_control_flow, passes),
        loop_invariants,
        products_out_of_loops,
        _LoopPass(partial(small_loops, limit=max_summed), passes),
        dce,
    )
    return (*passes, partial(assign_layouts, rules=layout_rules))


@frozen
class _LoopPass:
    """A pass on loops, which also runs the pipeline on bodies of loops and branches.

    Attributes:
        func: the pass. It takes a Program and a function that simplifies a body.
        body_passes: what bodies go through: the pipeline that this pass is part of,
            without layouts.
    """

    func: Callable[[Program, Pass], Program]
    body_passes: list[Pass]

    def __call__(
        self, program: Program, simplified: set[Program] | None = None
    ) -> Program:
        """Run the pass on ``program``.

        ``simplified`` are Programs that have been through ``body_passes``. A body is
        simplified again after its loop has changed. Its inner loops are in this set by
        then and are skipped, or the work would double at each depth.
        """
        known = set[Program]() if simplified is None else simplified
        return self.func(program, lambda body: self._simplified(body, known))

    def _simplified(self, body: Program, simplified: set[Program]) -> Program:
        """Run ``body_passes`` on ``body``, unless they have been run on it before.

        The result is added to ``simplified``. Other loop passes take this set too, so
        that they skip the inner bodies in it.
        """
        if body in simplified:
            return body
        for apply in self.body_passes:
            if isinstance(apply, _LoopPass):
                body = apply(body, simplified)
            else:
                body = apply(body)
        simplified.add(body)
        return body


PIPELINE: Final[tuple[Pass, ...]] = pipeline()


def name_of(apply: Any) -> str:
    """Return the name of the function that a pass runs, without its wrappers.

    >>> [name_of(apply) for apply in PIPELINE][-2:]
    ['dce', 'assign_layouts']
    """
    while hasattr(apply, "func"):
        apply = apply.func
    return str(apply.__name__)


def run_passes(
    program: Program, check: bool = False, passes: tuple[Pass, ...] = PIPELINE
) -> Program:
    """Run ``passes`` on ``program``; ``check`` verifies its types after each."""
    for apply in passes:
        program = apply(program)
        if check:
            program.check()
    return program
