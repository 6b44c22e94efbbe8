"""The passes, in order. Each states in its module what holds after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from arrayfn.ir import Program
from arrayfn.passes.cse import cse
from arrayfn.passes.dce import dce
from arrayfn.passes.expand import expand
from arrayfn.passes.inline_calls import inline_calls
from arrayfn.passes.layout_assignment import assign_layouts
from arrayfn.passes.simplify import simplify
from arrayfn.passes.single_index import single_index

Pass = Callable[[Program], Program]

PIPELINE: Final[tuple[Pass, ...]] = (
    inline_calls,
    expand,
    simplify,
    single_index,
    cse,
    simplify,
    dce,
    assign_layouts,
)


def run_passes(program: Program, check: bool = False) -> Program:
    """``program`` after every pass; ``check`` verifies the types between passes."""
    for apply in PIPELINE:
        program = apply(program)
        if check:
            program.check()
    return program
