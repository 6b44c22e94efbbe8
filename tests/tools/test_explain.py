"""Explanations: why steps are apart, which line copies, what was compiled again."""

from __future__ import annotations

import xml.dom.minidom
from typing import Any

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import lax

X = np.ones((16, 8))
W = np.ones((8, 8))


def reasons(function: Any, *args: Any) -> list[str]:
    return [b.reason for b in af.explain(function, *args).boundaries]


def test_one_kernel_has_no_boundary() -> None:
    found = af.explain(lambda x: anp.exp(x - anp.max(x, axis=1, keepdims=True)), X)
    assert found.boundaries == ()
    assert found.copies == ()
    assert "not fused" not in str(found)
    assert "copies: none" in str(found)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: anp.tanh(x @ W), "a library computes dot_general"),
        (lambda x: anp.exp(x) @ W, "a library computes dot_general"),
        (lambda x: anp.sum(x, axis=0) + anp.sum(x, axis=1)[:8], "axes"),
        (lambda x: anp.cumsum(anp.sort(x, axis=1) + 1, axis=1), "a library computes"),
        (
            lambda x: anp.sum(anp.exp(x) / anp.sum(anp.exp(x))),
            "it needs a total, which all threads must have added up before",
        ),
        (
            lambda x: lax.scan(lambda c, r: (c @ W, r), x[:2] * 2, X[:3])[0],
            "scan is a loop or branch of the plan",
        ),
    ],
    ids=["product", "before a product", "axes", "sort", "total", "loop"],
)
def test_why_two_steps_are_not_one(function: Any, reason: str) -> None:
    x = np.ones((300, 8)) if reason.startswith("it needs") else X
    assert any(reason in text for text in reasons(function, x))


def test_a_long_sum_has_two_steps() -> None:
    texts = reasons(anp.sum, np.ones(100_000))
    assert texts == [
        "a long sum has two steps: totals of chunks, then the total of these"
    ]


def test_copies_name_the_line_that_caused_them() -> None:
    def f(x: Any) -> Any:
        y = x[:8].T
        return anp.linalg.solve(y, x[8:])

    found = af.explain(f, X)
    line = f.__code__.co_firstlineno
    assert found.copies
    for copy in found.copies:
        assert copy.location is not None
        assert line < copy.location.line <= line + 2
        assert copy.reason
    assert f"(test_explain.py:{found.copies[0].location.line})" in str(found)


def test_a_function_compiled_again_says_for_which_argument() -> None:
    @af.jit
    def scaled(x: Any, rate: Any) -> Any:
        return x * rate

    scaled(X, 1.0)
    scaled(X[0], 1.0)
    found = af.explain(scaled, X, 1.0)
    assert [built.reason for _, built in found.signatures] == [
        "",
        "x is f64[8], not f64[16,8]",
    ]
    assert "because x is f64[8], not f64[16,8]" in str(found)
    assert found.compiled == 0


def test_code_of_kernels_is_found_or_compiled() -> None:
    number = float(np.random.default_rng().integers(1 << 40))
    first = af.explain(lambda x: (x + 3) * (x - number / 7) / (x * x + 5), X)
    assert first.compiled + first.from_disk <= 2
    again = af.explain(lambda x: (x + 3) * (x - number / 7) / (x * x + 5), X)
    assert (again.compiled, again.from_disk) == (0, 0)


def test_it_is_shown_in_a_notebook_and_without_a_gpu() -> None:
    found = af.explain(af.jit(lambda x: anp.tanh(x @ W), device="cuda"), X)
    html = found._repr_html_()
    xml.dom.minidom.parseString(f"<div>{html}</div>")
    assert "a library computes dot_general" in html or not found.boundaries
    assert "for cuda" in str(found)
    reference = af.explain(af.jit(anp.exp, device="reference"), X)
    assert reference.boundaries == ()
