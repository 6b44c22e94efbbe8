"""Indices that are computed where gathers and scatters read them."""

import numpy as np
import pytest

import arrayfn.numpy as anp
from arrayfn.backends.cuda.emulator.plan import run_plan
from arrayfn.lowering.cuda.indexing import additions
from arrayfn.lowering.cuda.lower import Options, lower
from arrayfn.primitives.calls import evaluate
from arrayfn.transforms import trace_function
from tests.common_functions import random

INDEX = np.array([3, -1, 0, 7, -8, 3, 2, 5] * 5, np.int32)
ROWS, UPDATES = random(8, 12), random(40)
ANY_ORDER = Options(deterministic=False)


def compiled_of(function, arguments, **options):
    """What ``function`` is lowered to, after a run that equals the reference."""
    program = trace_function(
        function, arguments, {}, abstract=True, with_values=False
    ).program
    compiled = lower(program, check=True, **options)
    results = run_plan(compiled, list(arguments))
    for result, expected in zip(results, evaluate(program, arguments), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)
    return compiled


MERGED = {
    "rows": (lambda x, i: x[i], (ROWS, INDEX), {}),
    "shifted": (lambda x, i, j: x[i + j], (ROWS, abs(INDEX[:8]) // 2, INDEX[8:9]), {}),
    "reversed": (lambda x, i: x[i[::-1]], (ROWS, INDEX), {}),
    "every second": (lambda x, i: x[(i ^ 1)[::2]], (ROWS, INDEX), {}),
    "columns": (lambda x, i: x[:, i], (ROWS, INDEX), {}),
    "updates as they come": (
        lambda x, i, u: (x * 2).at[i].add(u),
        (ROWS[0], INDEX, UPDATES),
        {"options": ANY_ORDER},
    ),
}


@pytest.mark.parametrize("case", MERGED)
def test_indices_are_computed_where_they_are_read(case):
    function, arguments, options = MERGED[case]
    compiled = compiled_of(function, arguments, **options)
    last = compiled.kernels[-1].source
    assert "select_i32" in last
    before = [k.source for k in compiled.kernels[:-1]]
    assert not any("select_i32" in source for source in before)


def both(x, i):
    i = anp.where(i < 0, i + 8, i)
    return x[i], i


def into_itself(i):
    i = i * 2 // 2
    return i.at[i].add(1)


KEPT = {
    "what else reads them": (both, (ROWS, INDEX)),
    "what is written over": (into_itself, (INDEX[:8],)),
}


@pytest.mark.parametrize("case", KEPT)
def test_indices_stay_arrays_for(case):
    function, arguments = KEPT[case]
    compiled = compiled_of(function, arguments)
    assert len(compiled.kernels) > 1


def test_additions_as_they_come_are_one_kernel_of_vectors():
    x, i = np.zeros((16, 2), np.float32), np.arange(40, dtype=np.int32) % 5
    add = lambda x, i, u: (x + 1).at[i].add(u)  # noqa: E731
    compiled = compiled_of(add, (x, i, random(40, 2)), options=ANY_ORDER)
    assert "atomic_add_f32(" in compiled.kernels[-1].source
    compiled = compiled_of(add, (ROWS[0], i, random(40)), options=ANY_ORDER)
    assert "load_f32x4(" in compiled.kernels[-1].source


def test_additions_to_many_targets_go_range_by_range(monkeypatch):
    monkeypatch.setattr(additions, "RANGE_BYTES", 1024)
    monkeypatch.setattr(additions, "_MIN_UPDATES", 16)
    add = lambda x, i, u: x.at[i].add(u)  # noqa: E731
    for x, i in ((random(512), INDEX * 50), (random(512)[::-1] + 0, INDEX)):
        compiled = compiled_of(add, (x, i, UPDATES), options=ANY_ORDER)
        kernels = [step.kernel for step in compiled.plan.steps]
        assert kernels == ["elementwise_0", "elementwise_1"] * 2
    compiled = compiled_of(
        lambda x, *a: add(x * 2, *a), (x, i, UPDATES), options=ANY_ORDER
    )
    assert len(compiled.plan.steps) == 2
