"""Branches whose index is known are inlined: the branch that the index chooses."""

from __future__ import annotations

import numpy as np
import pytest

import arrayfn as af
from arrayfn import lax
from arrayfn.ir import Literal, Program
from arrayfn.ir.builder import ProgramBuilder
from arrayfn.passes.control_flow import simplify_control_flow
from arrayfn.primitives.calls import evaluate


def by_literal(index: int) -> Program:
    """x + 1, x + 2 or x + 3, chosen by a literal index."""
    branches = [lambda x, k=k: x + k for k in (1.0, 2.0, 3.0)]
    traced = af.make_program(lambda k, x: lax.switch(k, branches, x))(np.int32(0), 1.0)
    (cond,) = [e for e in traced.equations if e.primitive.name == "cond"]
    builder = ProgramBuilder("known")
    with builder:
        x = builder.input(cond.inputs[1].type)
        y = cond.primitive(Literal(index, cond.inputs[0].type.dtype), x, **cond.params)
        return builder.build(y if isinstance(y, tuple) else [y])


@pytest.mark.parametrize(("index", "want"), [(-3, 1), (0, 1), (1, 2), (2, 3), (9, 3)])
def test_a_literal_index_chooses_its_branch(index: int, want: int) -> None:
    before = by_literal(index)
    after = simplify_control_flow(before, lambda program: program)
    after.check()
    assert [
        e.primitive.name for e in after.equations if e.primitive.name == "cond"
    ] == []
    x = np.asarray(0.5)
    assert evaluate(after, [x]) == evaluate(before, [x]) == [0.5 + want]
