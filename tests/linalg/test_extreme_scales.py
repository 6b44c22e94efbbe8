"""Spectra of matrices near the limits of their dtype, and below the normal numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import arrayfn as af

RNG = np.random.default_rng(5)
BOUNDS = {"f4": 3e-5, "f8": 1e-12, "c8": 3e-5, "c16": 1e-12}
EXPONENTS = {"f4": (-110, -70, 45, 70, 120), "f8": (-1000, -500, 470, 700, 1015)}


def drawn(n: int, dtype: str) -> Any:
    x = RNG.normal(size=(n, n))
    return (x + 1j * RNG.normal(size=(n, n)) if dtype[0] == "c" else x).astype(dtype)


@pytest.mark.parametrize("dtype", list(BOUNDS))
@pytest.mark.parametrize("n", [2, 5, 40])
def test_eigenvalues_scale_with_the_matrix(dtype: str, n: int) -> None:
    real = {"c8": "f4", "c16": "f8"}.get(dtype, dtype)
    x = drawn(n, dtype)
    values, vectors = af.jit(af.linalg.eig)(x)
    alone = af.jit(af.linalg.eigvals)(x)
    for exponent in EXPONENTS[real]:
        factor = np.ldexp(np.array(1, real), exponent)
        found, same = af.jit(af.linalg.eig)(x * factor)
        bound = BOUNDS[dtype] * np.abs(values).max()
        np.testing.assert_allclose(found / factor, values, atol=bound)
        np.testing.assert_allclose(same, vectors, atol=BOUNDS[dtype])
        only = af.jit(af.linalg.eigvals)(x * factor)
        np.testing.assert_allclose(only / factor, alone, atol=bound)


def test_eigenvalues_of_large_float32_matrices_are_those_of_numpy() -> None:
    a = np.array([[1, 2], [3, 4]], "f4") * np.float32(1e12)
    np.testing.assert_allclose(af.jit(af.linalg.eigvals)(a), np.linalg.eigvals(a), 1e-6)
    np.testing.assert_allclose(
        np.sort(af.jit(af.linalg.eigvals)(a).real), [-3.7228132e11, 5.3722813e12], 1e-6
    )


@pytest.mark.parametrize(("dtype", "scale"), [("f8", 1e-310), ("f4", 1e-40)])
@pytest.mark.parametrize("n", [8, 40, 100])
def test_spectra_of_subnormal_matrices(dtype: str, scale: float, n: int) -> None:
    x = RNG.normal(size=(n, n))
    x = ((x + x.T) * scale).astype(dtype)
    up = 2.0**200 if dtype == "f8" else 2.0**100
    want = np.linalg.eigvalsh(x.astype("f8") * up)
    size = np.abs(want).max()
    # What is subnormal has an absolute spacing; n roundings at most.
    bound = n * float(np.finfo(dtype).smallest_subnormal) * up / size + BOUNDS[dtype]
    for found in (af.jit(af.linalg.eigvalsh)(x), af.jit(af.linalg.eigh)(x)[0]):
        assert np.abs(found.astype("f8") * up - want).max() / size < bound
    want = np.sort(np.abs(want))[::-1]
    alone = af.jit(lambda x: af.linalg.svd(x, compute_uv=False))(x)
    for found in (alone, af.jit(af.linalg.svd)(x)[1]):
        assert np.abs(found.astype("f8") * up - want).max() / size < bound
        assert (np.diff(found) <= 0).all()
