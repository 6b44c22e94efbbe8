"""lint: which functions have gradients that can be NaN, and what is said of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import lax, nn, scipy

X = np.array([0.0, 1.0, 2.0])

HAZARDS = [
    (lambda x: anp.where(x > 0, anp.sqrt(x), 0.0), ["sqrt"]),
    (lambda x: anp.where(x > 0, 2 * anp.log(x) + 1, x), ["log"]),
    (lambda x: anp.where(x != 0, anp.sin(x) / x, 1.0), ["div"]),
    (lambda x: anp.where(x < 1, x, (1 / x) ** 2), ["div"]),
    (lambda x: lax.select(x > 0, x**0.3, x), ["pow"]),
    (lambda x: 2 * anp.linalg.norm(x), ["sum of squares"]),
    (lambda x: anp.sqrt(anp.sum(x * x)), ["sum of squares"]),
    (
        lambda x: lax.scan(lambda c, y: (c + anp.hypot(c, y), None), 0.0, x)[0],
        [],
    ),
    (
        lambda x: lax.scan(
            lambda c, y: (anp.where(y > 0, c * anp.log(y), c), None), 1.0, x
        )[0],
        ["log"],
    ),
    (lambda x: anp.where(x > 0, anp.sqrt(anp.where(x > 0, x, 1)), 0.0), []),
    (lambda x: anp.where(x > 0, anp.log(anp.maximum(x, 1e-9)), 0.0), []),
    (lambda x: anp.sqrt(anp.sum(x * x) + 1e-12), []),
    (lambda x: anp.where(x > 0, x, 0.0) / 2, []),
    (lambda x: anp.where(x > 0, x, np.sqrt(2.0)), []),
    (nn.relu, []),
    (nn.softmax, []),
    (nn.gelu, []),
    (scipy.special.logsumexp, []),
    (anp.sinc, []),
    # Added constants keep an operand off 0 only if they are positive.
    (lambda x: anp.where(x > 0, anp.log(anp.abs(x) + 1e-9), 0.0), []),
    (lambda x: anp.where(x > 0, anp.sqrt(x + 0.0), 0.0), ["sqrt"]),
    (lambda x: anp.where(x < 0, anp.sqrt(x + -1.0), 0.0), ["sqrt"]),
    (lambda x: anp.where(x < 0, anp.arcsin(x + 1.0), x), ["arcsin", "asin"]),
]


@pytest.mark.parametrize(("function", "said"), HAZARDS)
def test_hazards_are_listed(function: Any, said: list[str]) -> None:
    found = af.lint(function)(X)
    assert len(found) == len(said)
    for hazard, text in zip(found, said, strict=True):
        assert text in hazard.message
        assert str(hazard).startswith(__file__)


@pytest.mark.parametrize(("function", "said"), HAZARDS)
def test_what_is_listed_is_so(function: Any, said: list[str]) -> None:
    at = np.zeros(3)
    value = af.jit(function)(at)
    slope = af.jit(af.grad(lambda x: function(x).sum()))(at)
    assert np.isfinite(value).all()
    assert np.isfinite(slope).all() == (not said)


def test_through_calls_and_without_values() -> None:
    @af.jit
    def inner(x: Any) -> Any:
        return anp.where(x > 0, anp.sqrt(x), 0.0)

    shape = af.ShapeDtypeStruct((3,), np.float32)
    (hazard,) = af.lint(lambda p: inner(p["x"]).sum())({"x": shape})
    assert "guard its operand" in hazard.message
    assert not af.lint(lambda n: anp.where(n > 0, 4 // n, 0))(np.arange(3))


SQUARE = np.array([[2.0, 1.0], [1.0, 3.0]])
EDGES = [
    (anp.std, np.ones(3), "of std at equal values"),
    (lambda x: anp.std(x, axis=0, ddof=1)[0], np.ones((3, 2)), "sum of squares"),
    (lambda x: anp.arctan2(x[0], x[1]), np.zeros(2), "arctan2(y, x) is NaN"),
    (anp.arccos, np.float64(1.0), "arccos is infinite at 1"),
    (lambda x: anp.arccos(x + 0.5), np.float64(0.5), "arccos is infinite at 1"),
    (lambda x: anp.arcsin(anp.exp(x)), np.float64(0.0), "arcsin is infinite at 1"),
    (anp.arcsin, np.float64(-1.0), "arcsin is infinite at 1"),
    (lambda a: anp.linalg.eigh(a)[1][0, 0], np.eye(2), "two eigenvalues are equal"),
    (lambda a: anp.linalg.svd(a)[0][0, 0], np.eye(2), "two singular values are equal"),
    (lambda a: anp.abs(anp.linalg.eig(a)[1][0, 0]), np.eye(2), "two eigenvalues"),
]


@pytest.mark.parametrize(("function", "at", "said"), EDGES)
def test_edges_are_listed_and_are_not_finite(function: Any, at: Any, said: str) -> None:
    (hazard,) = af.lint(function)(at)
    assert said in hazard.message
    assert str(hazard).count(": ") >= 2
    with np.errstate(all="ignore"):
        slope = af.jit(af.grad(function))(at)
    assert not np.all(np.isfinite(slope))


@pytest.mark.parametrize(
    ("function", "at"),
    [
        (lambda x: anp.arccos(anp.clip(x, -0.999, 0.999)), 1.0),
        (
            lambda x: anp.arctan2(
                x[0], anp.where((x[0] == 0) & (x[1] == 0), 1.0, x[1])
            ),
            np.zeros(2),
        ),
        (lambda a: anp.sum(anp.linalg.eigvalsh(a) ** 2), np.eye(2)),
        (lambda a: anp.sum(anp.linalg.eigh(a)[0]), np.eye(2)),
        (lambda a: anp.sum(anp.linalg.svd(a)[1]), np.eye(2)),
        (lambda x: anp.sqrt(anp.var(x) + 1e-6), np.ones(3)),
        (lambda x: x * np.arccos(1.0) + np.arctan2(0.0, 0.0), 1.0),
    ],
)
def test_guarded_edges_are_not_listed_and_are_finite(function: Any, at: Any) -> None:
    assert af.lint(function)(at) == ()
    assert np.all(np.isfinite(af.jit(af.grad(function))(at)))
