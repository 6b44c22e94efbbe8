"""The passes, in order. Each states in its module what holds after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from arrayfn.ir import Program
from arrayfn.passes.control_flow import simplify_control_flow
from arrayfn.passes.cse import cse
from arrayfn.passes.dce import dce
from arrayfn.passes.expand import expand
from arrayfn.passes.inline_calls import inline_calls
from arrayfn.passes.layout_assignment import assign_layouts
from arrayfn.passes.simplify import simplify
from arrayfn.passes.single_index import single_index

Pass = Callable[[Program], Program]


def control_flow(program: Program) -> Program:
    """Loops and branches; their Programs go through the passes up to the layouts."""
    return simplify_control_flow(program, _simplified)


SIMPLIFY: Final[tuple[Pass, ...]] = (
    inline_calls,
    expand,
    simplify,
    single_index,
    cse,
    simplify,
    dce,
    control_flow,
    dce,
)
PIPELINE: Final[tuple[Pass, ...]] = (*SIMPLIFY, assign_layouts)


def _simplified(program: Program) -> Program:
    for apply in SIMPLIFY:
        program = apply(program)
    return program


def run_passes(program: Program, check: bool = False) -> Program:
    """``program`` after every pass; ``check`` verifies the types between passes."""
    for apply in PIPELINE:
        program = apply(program)
        if check:
            program.check()
    return program
