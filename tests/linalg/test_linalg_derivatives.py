"""Derivatives of numpy.linalg's functions, to second order, against differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn.errors import DifferentiationError

Array = np.ndarray[Any, Any]
la = anp.linalg
RNG = np.random.default_rng(3)
A = RNG.standard_normal((3, 3))
C = A + 1j * RNG.standard_normal((3, 3))
TALL = RNG.standard_normal((4, 3))
B = RNG.standard_normal((3, 2))


def direction(x: Array) -> Array:
    d = np.random.default_rng(4).standard_normal(x.shape)
    if x.dtype.kind == "c":
        d = d + 1j * np.random.default_rng(5).standard_normal(x.shape)
    return d


def slope(f: Callable[[Array], Any], x: Array, d: Array, step: float = 1e-5) -> Any:
    return (f(x + step * d) - f(x - step * d)) / (2 * step)


def check_to_second_order(
    f: Callable[[Any], Any], x: Array, *, jit: bool = False
) -> None:
    """``f`` is real and scalar: its gradient, and that gradient's derivative."""
    d = direction(x)
    grad = af.jit(af.grad(f)) if jit else af.grad(f)

    def along(x: Array) -> float:
        # The pairing of gradients is without conjugation.
        return float(np.real(np.sum(grad(x) * d)))

    want = slope(lambda y: float(f(y)), x, d)
    np.testing.assert_allclose(along(x), want, 1e-6, 1e-7)
    _, second = af.jvp(af.grad(f), (x,), (d,))
    np.testing.assert_allclose(
        np.real(np.sum(second * d)), slope(along, x, d), 1e-5, 1e-6
    )
    mapped = af.vmap(af.grad(f))(np.stack([x, x + 0.1 * d]))
    np.testing.assert_allclose(mapped[1], grad(x + 0.1 * d), 1e-8, 1e-9)


def positive(x: Any) -> Any:
    return x @ anp.conj(anp.matrix_transpose(x)) + 2 * np.eye(x.shape[-1])


def weighted(x: Any) -> Any:
    """A real number in which each element of ``x`` matters on its own."""
    weights = np.arange(1, x.size + 1).reshape(x.shape)
    squares = anp.real(x * anp.conj(x))
    return anp.sum(squares * weights) + anp.sum(anp.real(x) * np.sqrt(weights))


REAL_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "cholesky": lambda x: weighted(la.cholesky(positive(x))),
    "cholesky_of_any": lambda x: weighted(la.cholesky(x + 6 * np.eye(3))),
    "qr_q": lambda x: weighted(la.qr(x).Q),
    "qr_r": lambda x: weighted(la.qr(x).R),
    "svd_u": lambda x: weighted(la.svd(x, full_matrices=False).U),
    "svd_vh": lambda x: weighted(la.svd(x, full_matrices=False).Vh),
    "svdvals": lambda x: weighted(la.svdvals(x)),
    "eigh": lambda x: weighted(la.eigh(x).eigenvectors),
    "eigvalsh": lambda x: weighted(la.eigvalsh(x)),
    "eigvals": lambda x: weighted(la.eigvals(x)),
    "det": la.det,
    "logdet": lambda x: la.slogdet(x).logabsdet,
    "inv": lambda x: weighted(la.inv(x)),
    "solve": lambda x: weighted(la.solve(x, B)),
    "pinv": lambda x: weighted(la.pinv(x)),
    "nuclear": lambda x: la.norm(x, "nuc"),
    "spectral": lambda x: la.norm(x, 2),
    "expm": lambda x: weighted(la.expm(0.3 * x, max_squarings=1)),
    "expm_squared": lambda x: weighted(la.expm(2.0 * x, max_squarings=4)),
    "expm_scaled": lambda x: 1e-4 * weighted(la.expm(2 * x, max_squarings=2)),
    "lu": lambda x: weighted(af.lax.linalg.lu(x)[0]),
}


@pytest.mark.parametrize("name", REAL_FUNCTIONS)
def test_gradients_of_real_matrices(name: str) -> None:
    check_to_second_order(REAL_FUNCTIONS[name], A, jit=True)


@pytest.mark.parametrize("name", ["qr_q", "svd_u", "svd_vh", "pinv", "lu", "qr_r"])
@pytest.mark.parametrize("transpose", [False, True])
def test_gradients_of_matrices_that_are_not_square(name: str, transpose: bool) -> None:
    check_to_second_order(REAL_FUNCTIONS[name], TALL.T.copy() if transpose else TALL)


def projector(v: Any) -> Any:
    """What of eigenvectors does not depend on their phases."""
    return v[:, :, None] * anp.conj(v)[:, None, :]


COMPLEX_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "cholesky": REAL_FUNCTIONS["cholesky"],
    "qr_q": REAL_FUNCTIONS["qr_q"],
    "qr_r": REAL_FUNCTIONS["qr_r"],
    "svdvals": REAL_FUNCTIONS["svdvals"],
    "svd_u": lambda x: weighted(projector(anp.matrix_transpose(la.svd(x)[0]))),
    "svd_both": lambda x: weighted(la.svd(x)[0] @ la.svd(x)[2]),
    "eigh": lambda x: weighted(projector(anp.matrix_transpose(la.eigh(x)[1]))),
    "eigvalsh": REAL_FUNCTIONS["eigvalsh"],
    "eig": lambda x: weighted(projector(anp.matrix_transpose(la.eig(x)[1]))),
    "eigvals": REAL_FUNCTIONS["eigvals"],
    "det": lambda x: weighted(la.det(x)),
    "slogdet": lambda x: weighted(la.slogdet(x)[0]) + la.slogdet(x)[1],
    "inv": REAL_FUNCTIONS["inv"],
    "solve": REAL_FUNCTIONS["solve"],
    "pinv": REAL_FUNCTIONS["pinv"],
    "expm": REAL_FUNCTIONS["expm"],
}


@pytest.mark.parametrize("name", COMPLEX_FUNCTIONS)
def test_gradients_of_complex_matrices(name: str) -> None:
    check_to_second_order(COMPLEX_FUNCTIONS[name], C)


def test_eigenvectors_of_a_real_matrix_keep_their_norm() -> None:
    def moduli(x: Any) -> Any:
        v = la.eig(x).eigenvectors
        return weighted(anp.real(v * anp.conj(v)))

    check_to_second_order(moduli, A)


def test_the_gradient_of_cholesky_is_symmetric() -> None:
    gradient = af.grad(REAL_FUNCTIONS["cholesky_of_any"])(A)
    np.testing.assert_allclose(gradient, gradient.T)
    triangle = af.grad(
        lambda x: weighted(la.cholesky(x + 6 * np.eye(3), symmetrize_input=False))
    )(A)
    np.testing.assert_array_equal(np.triu(triangle, 1), np.zeros((3, 3)))


def test_the_gradient_of_det_where_it_is_zero() -> None:
    x = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [2.0, 4.0, 6.0]])
    cofactors = [
        [
            (-1.0) ** (i + j)
            * np.linalg.det(np.delete(np.delete(x, i, axis=0), j, axis=1))
            for j in range(3)
        ]
        for i in range(3)
    ]
    np.testing.assert_allclose(af.grad(la.det)(x), cofactors, atol=1e-12)


def test_the_gradient_of_pinv_where_singular_values_are_equal() -> None:
    gradient = af.grad(lambda x: anp.sum(la.pinv(x)))(np.eye(2))
    np.testing.assert_allclose(gradient, -np.ones((2, 2)))


def test_derivatives_that_do_not_exist_are_refused() -> None:
    with pytest.raises(DifferentiationError, match="mode='reduced'"):
        af.grad(lambda x: anp.sum(la.qr(x, mode="complete").Q))(TALL)
    with pytest.raises(DifferentiationError, match="full_matrices=False"):
        af.grad(lambda x: anp.sum(la.svd(x).U))(TALL)


def test_equal_eigenvalues_have_a_gradient_but_their_vectors_have_none() -> None:
    values = af.grad(lambda x: anp.sum(la.eigvalsh(x)))(np.eye(2))
    np.testing.assert_allclose(values, np.eye(2))
    with np.errstate(all="ignore"):
        vectors = af.grad(lambda x: la.eigh(x).eigenvectors[0, 1])(np.eye(2))
    assert not np.isfinite(vectors).all()


def test_solve_factors_once_for_value_and_gradient() -> None:
    def loss(a: Any, b: Any) -> Any:
        return weighted(la.solve(a, b))

    compiled = af.jit(af.value_and_grad(loss, (0, 1))).lower(A, B)
    text = compiled.compiled_program.text
    assert text.count("= lu(") == 1
