"""compare: every implementation is there, with its error and its time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import lax
from arrayfn.errors import ArgumentError
from arrayfn.lowering.operations import operations
from arrayfn.lowering.operator_kernels import KERNELS
from arrayfn.transforms import make_program

X = np.random.default_rng(0).standard_normal((40, 50)).astype(np.float32)


@af.operator(name="compared_softmax")
def softmax(x: Any, axis: int = -1) -> Any:
    e = anp.exp(x - anp.max(x, axis=axis, keepdims=True))
    return e / anp.sum(e, axis=axis, keepdims=True)


@softmax.kernel("cpu", when=lambda x, axis: x.ndim == 2)
def by_numpy(x: Any, out: Any, axis: int) -> None:
    np.exp(x - x.max(axis, keepdims=True), out=out)
    out /= out.sum(axis, keepdims=True)


@softmax.kernel("cpu", when=lambda x, axis: x.ndim == 2)
def too_large(x: Any, out: Any, axis: int) -> None:
    by_numpy(x, out, axis)
    out *= np.float32(1.001)


@softmax.kernel("cpu", when=lambda x, axis: x.ndim == 1)
def of_vectors(x: Any, out: Any, axis: int) -> None:
    raise AssertionError


def test_all_implementations_are_measured() -> None:
    before = len(softmax.kernels)
    compared = af.compare(softmax, X, repeats=3, axis=-1)
    rows = {row.name: row for row in compared}
    assert {"generated", "interpreted", "by_numpy", "too_large"} <= set(rows)
    assert rows["generated"].max_abs < 1e-7
    assert rows["by_numpy"].ulp < 20
    assert 0.9e-3 < rows["too_large"].max_rel < 1.1e-3
    assert 0.9e-3 < rows["too_large"].l2 < 1.1e-3
    assert rows["of_vectors"].refused == "does not take these operands"
    assert len(rows["generated"].times) == 3
    assert rows["generated"].bytes == 2 * X.nbytes
    assert "max abs" in repr(compared).splitlines()[0]
    assert "roof of cpu: " in repr(compared)
    page = compared._repr_html_()
    assert page.count("<tr>") == 1 + len(compared)
    assert "does not take these operands" in page
    assert len(softmax.kernels) == before
    assert not KERNELS.of("compared_softmax_0")


def test_functions_and_results_of_any_kind() -> None:
    def f(x: Any, n: Any) -> Any:
        return {"n": n + 1, "z": x * 1j, "nan": anp.log(x), "none": x[:0]}

    for row in af.compare(f, X[0], 3, repeats=1, warmup=0):
        assert row.max_abs < 1e-6


def test_operations_are_counted() -> None:
    def f(x: Any, y: Any) -> Any:
        return lax.scan(lambda c, _: (anp.sin(c) + 1, None), x @ y, None, length=7)[0]

    program = make_program(f)(np.ones((3, 4)), np.ones((4, 5)))
    assert operations(program) == 2 * 3 * 4 * 5 + 7 * 2 * 15


def test_operands_are_arrays() -> None:
    with pytest.raises(ArgumentError, match="an operand is a str"):
        af.compare(anp.sum, "x")
