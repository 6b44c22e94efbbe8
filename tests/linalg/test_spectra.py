"""Spectra that are hard: clusters, graded numbers, what over- and underflows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import arrayfn as af

Array = np.ndarray[Any, Any]


def symmetric(n: int) -> Iterator[tuple[str, Array]]:
    """Names and matrices."""
    rng = np.random.default_rng(n)
    ones = np.ones(n - 1)
    sides = np.diag(ones, 1) + np.diag(ones, -1)
    q, _ = np.linalg.qr(rng.standard_normal((n, n)))
    x = rng.standard_normal((n, n))
    count = np.arange(n)
    yield "random", x + x.T
    yield "graded", (q * 10.0 ** -np.linspace(0, 12, n)) @ q.T
    yield "clusters", (q * (1.0 + count % 4)) @ q.T
    yield "near", (q * (1 + 1e-10 * count)) @ q.T
    yield "Wilkinson", np.diag(np.abs(count - n // 2).astype(float)) + sides
    yield "second differences", 2 * np.eye(n) - sides
    yield "rank 1", np.ones((n, n))
    yield "diagonal and rank 1", np.diag(x[0]) + np.outer(x[1], x[1])
    yield "zeros", np.zeros((n, n))
    yield "identity", np.eye(n)
    yield "Hilbert", 1 / (1.0 + count[:, None] + count)
    halves = 2.0**-count
    yield "geometric", np.diag(halves) + sides * np.minimum.outer(halves, halves)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("n", [9, 33, 64, 100])
def test_hard_spectra_are_as_accurate_as_lapacks(n: int, dtype: Any) -> None:
    both = af.jit(lambda x: tuple(af.linalg.eigh(x)))
    alone = af.jit(af.linalg.eigvalsh)
    limits = np.finfo(dtype)
    # As a multiple of the rounding of a number as large as the greatest.
    bound = 8 * np.sqrt(n) * limits.eps
    for name, exact in symmetric(n):
        for scale in (1.0, float(limits.max) ** 0.5, float(limits.tiny) ** 0.9):
            x = (exact * scale).astype(dtype)
            x = (x + x.T) / 2
            w, v = (
                part.astype(np.float64) / s
                for part, s in zip(both(x), (scale, 1.0), strict=True)
            )
            wide = x.astype(np.float64) / scale
            size = max(1e-30, float(np.abs(wide).sum(axis=0).max()))
            assert np.abs(wide @ v - v * w).max() <= bound * size, name
            assert np.abs(v.T @ v - np.eye(n)).max() <= bound, name
            assert np.all(np.diff(w) >= 0), name
            values = alone(x).astype(np.float64) / scale
            assert np.abs(values - w).max() <= bound * size, name


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("n", [65, 128])
def test_hard_singular_values_are_as_accurate_as_lapacks(n: int, dtype: Any) -> None:
    solve = af.jit(lambda x: tuple(af.linalg.svd(x)))
    bound = 8 * np.sqrt(n) * np.finfo(dtype).eps
    rng = np.random.default_rng(n)
    cases = dict(symmetric(n))
    cases["not symmetric"] = rng.standard_normal((n, n))
    cases["graded columns"] = rng.standard_normal((n, n)) * 10.0 ** -np.arange(n)
    for name, exact in cases.items():
        x = exact.astype(dtype)
        u, s, vh = (part.astype(np.float64) for part in solve(x))
        wide = x.astype(np.float64)
        size = max(1e-30, float(np.abs(wide).sum(axis=0).max()))
        assert np.abs((u * s) @ vh - wide).max() <= bound * size, name
        for part in (u, vh):
            assert np.abs(part.T @ part - np.eye(n)).max() <= bound, name
        assert np.all(np.diff(s) <= 0), name


def test_batches_have_the_spectra_of_their_matrices() -> None:
    x = np.random.default_rng(3).standard_normal((20, 24, 24))
    x = x + x.swapaxes(-1, -2)
    solve = af.jit(lambda x: tuple(af.linalg.eigh(x)))
    values, vectors = solve(x)
    for matrix, w, v in zip(x, values, vectors, strict=True):
        for one, other in zip(solve(matrix), (w, v), strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("n", [2, 3, 40])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("place", [(0, 0), (1, 0)])
def test_spectra_of_what_is_not_finite_are_nan(
    n: int, bad: float, place: tuple[int, int]
) -> None:
    x = np.eye(n)
    x[place] = x[place[::-1]] = bad

    def solve(x: Any) -> Any:
        return *af.linalg.eigh(x), af.linalg.eigvalsh(x), af.linalg.svdvals(x)

    for device in ("cpu", "reference"):
        for part in af.jit(solve, device=device)(x):
            assert np.isnan(part).all()


def test_a_number_is_its_own_eigenvalue() -> None:
    x = np.array([[-np.inf]])
    for device in ("cpu", "reference"):
        w, v = af.jit(lambda x: tuple(af.linalg.eigh(x)), device=device)(x)
        assert w == -np.inf
        assert v == 1


@pytest.mark.parametrize("dtype", [np.float32, np.complex128])
def test_eigenvectors_that_threads_divide(dtype: Any) -> None:
    n = 300
    rng = np.random.default_rng(3)
    x = rng.standard_normal((n, n)).astype(dtype)
    if x.dtype.kind == "c":
        x += 1j * rng.standard_normal((n, n))
    x += x.conj().T
    decompose = af.jit(lambda x: tuple(af.linalg.eigh(x)))
    bound = 1e-5 if dtype == np.float32 else 1e-13
    # The dtype's squares would over- and underflow.
    for scale in (1.0, 1e30, 1e-35):
        w, v = decompose((x * scale).astype(dtype))
        wide = x.astype(np.complex128)
        error = np.abs(wide @ v - v * (w.astype(np.float64) / scale)).max()
        assert error < bound * n
        assert np.abs(v.conj().T @ v - np.eye(n)).max() < bound
        assert (np.diff(w) >= 0).all()
    x[5, 7] = np.inf
    assert all(np.isnan(part).all() for part in decompose(x))
