"""One kernel for each equation: fusion changes no bits, but where sums are ordered.

What is promised: elementwise equations, choices, extrema, integers and whatever moves
elements give the same bits fused or not. Sums may be cut otherwise where a kernel has
other axes inside; they, and what is computed of them, keep the oracle's bounds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, note, settings

from arrayfn import dtypes
from arrayfn.backends.cpu.unjitted import run_unjitted
from arrayfn.backends.cuda.emulator.plan import run_plan
from arrayfn.ir import Program, Var
from arrayfn.lowering.lower import lower
from arrayfn.lowering.options import Options
from arrayfn.passes.pipeline import run_passes
from arrayfn.primitives.base import Primitive
from arrayfn.tools.oracle import oracle
from arrayfn.transforms import make_program
from tests.lowered_on_gpu import lowered
from tests.lowering.kernels import run_compiled
from tests.lowering.test_fused_programs import CASES
from tests.lowering.test_kernels_of_the_table import LOWERED, program_of_samples
from tests.lowering.test_random_fusion import arguments, mixtures
from tests.test_random_programs import arguments_of, programs

Array = np.ndarray[Any, Any]

ALONE = Options(fused=False)
IN_ORDER = {"reduce_sum", "reduce_prod", "dot_general"}
"""What adds or multiplies in an order that its kernel chooses."""


def of_sums(program: Program) -> list[bool]:
    """Which outputs are computed of sums or products over axes."""
    found: set[Var] = set()
    for equation in program.equations:
        row = equation.primitive
        assert isinstance(row, Primitive)
        sums = row.name in IN_ORDER or any(
            any(of_sums(inner)) for inner in equation.subprograms()
        )
        if sums or any(a in found for a in equation.inputs if isinstance(a, Var)):
            found.update(equation.outputs)
    return [a in found for a in program.outputs]


def check(program: Program, given: list[Any], *, jit: bool = True) -> None:
    """Assert that kernels of one equation each, and fused ones, agree."""
    alone, fused = lower(program, options=ALONE), lower(program)
    run = run_compiled if jit else run_unjitted
    judged = oracle(program, given)
    passed = of_sums(run_passes(program))
    for k, (x, y) in enumerate(zip(run(alone, given), run(fused, given), strict=True)):
        assert x.dtype == y.dtype
        if passed[k] and x.dtype in dtypes.INEXACT:
            judged[k].check(x, f"output {k}, alone")
            judged[k].check(y, f"output {k}, fused")
        elif x.dtype not in dtypes.HALF_PRECISION:
            assert same_bits(x, y), f"output {k}"


def same_bits(x: Array, y: Array) -> bool:
    """Whether all bits are equal; those of NaN need not be."""
    if x.dtype in dtypes.INEXACT:
        missing = x != x
        if not np.array_equal(missing, y != y):
            return False
        x, y = np.where(missing, 0, x), np.where(missing, 0, y)
    return x.tobytes() == y.tobytes()


def test_each_equation_has_a_kernel() -> None:
    x = np.ones((3, 4), np.float32)
    program = make_program(lambda x: (x * 2 + 1) / x)(x)
    names = [kernel.name for kernel in lower(program, options=ALONE).kernels]
    assert len(names) == 3
    assert len(lower(program).kernels) == 1


@pytest.mark.parametrize("name", CASES)
def test_named_programs_have_the_same_bits(name: str) -> None:
    function, given = CASES[name]
    check(make_program(function)(*given), list(given))


@pytest.mark.parametrize("name", CASES)
def test_a_gpus_kernels_keep_the_bounds_fused_or_not(name: str) -> None:
    function, given = CASES[name]
    judged = oracle(make_program(function)(*given), given)
    runs = {
        how: run_plan(lowered(function, *given, options=options), given)
        for how, options in (("fused", Options()), ("alone", ALONE))
    }
    for how, results in runs.items():
        for k, have in enumerate(results):
            judged[k].check(np.asarray(have), f"output {k}, {how}")


@pytest.mark.parametrize(
    "row", [row for row in LOWERED if row.family != "linear algebra"], ids=str
)
def test_rows_followed_by_others_have_the_same_bits(row: Primitive) -> None:
    program, given, _ = program_of_samples(row)
    check(program, given, jit=False)


@given(mixtures())
@settings(max_examples=60, deadline=None)
def test_mixtures_have_the_same_bits(program: Program) -> None:
    note(str(program))
    given = arguments(program)
    results = [
        run_unjitted(lower(program, options=options), given)
        for options in (Options(), ALONE)
    ]
    for x, y in zip(*results, strict=True):
        np.testing.assert_array_equal(x, y)  # all sums are exact


@given(programs(dtypes.float32))
@settings(max_examples=60, deadline=None)
def test_random_programs_have_the_same_bits(program: Program) -> None:
    note(str(program))
    check(program, arguments_of(program), jit=False)
