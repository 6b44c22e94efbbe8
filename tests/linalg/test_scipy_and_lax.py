"""scipy.linalg and lax.linalg against SciPy and against what they promise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.linalg as theirs

import arrayfn as af
from arrayfn.errors import ArgumentError, ShapeError
from arrayfn.lax import linalg as lax_linalg
from arrayfn.scipy import linalg as ours

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(7)
A = RNG.standard_normal((4, 4))
C = A + 1j * RNG.standard_normal((4, 4))
B = RNG.standard_normal((4, 2))
TALL = RNG.standard_normal((5, 3))


def positive(x: Array) -> Array:
    return x @ x.conj().T + np.eye(x.shape[0])


def check(f: Callable[..., Any], want: Any, *arguments: Array) -> None:
    wanted = want if isinstance(want, tuple) else (want,)
    for run in (f, af.jit(f)):
        have = run(*arguments)
        results = have if isinstance(have, tuple) else (have,)
        for x, y in zip(results, wanted, strict=True):
            np.testing.assert_allclose(x, y, 1e-9, 1e-10)


@pytest.mark.parametrize("a", [A, C], ids=["real", "complex"])
def test_factors(a: Array) -> None:
    check(ours.lu, theirs.lu(a), a)
    check(lambda x: ours.lu(x, permute_l=True), theirs.lu(a, permute_l=True), a)
    check(ours.lu_factor, theirs.lu_factor(a), a)
    check(ours.qr, theirs.qr(a), a)
    p = positive(a)
    check(ours.cholesky, theirs.cholesky(p), p)
    check(lambda x: ours.cholesky(x, lower=True), theirs.cholesky(p, lower=True), p)
    check(ours.polar, theirs.polar(a), a)
    check(lambda x: ours.polar(x, "left"), theirs.polar(a, "left"), a)
    check(ours.expm, theirs.expm(a), a)
    check(lambda x: ours.expm(30 * x), theirs.expm(30 * a), a)


def test_lu_of_matrices_that_are_not_square() -> None:
    check(ours.lu, theirs.lu(TALL), TALL)
    check(ours.lu, theirs.lu(TALL.T), TALL.T.copy())
    check(lambda x: ours.qr(x, mode="economic"), theirs.qr(TALL, mode="economic"), TALL)


@pytest.mark.parametrize("a", [A, C, TALL, TALL.T.copy(), C[:, :3].copy()])
def test_qr_factors_with_pivoting(a: Array) -> None:
    a = a * np.linspace(1, 2, a.shape[-1])
    for mode in ("full", "economic", "r"):
        want = theirs.qr(a, mode=mode, pivoting=True)
        check(lambda x, m=mode: ours.qr(x, mode=m, pivoting=True), want, a)
    c = np.eye(a.shape[0])
    want = theirs.qr_multiply(a, c, pivoting=True)
    check(lambda x: ours.qr_multiply(x, c, pivoting=True), want, a)
    batch = np.stack([a, a[:, ::-1]])
    q, r, order = af.jit(lambda x: lax_linalg.qr(x, pivoting=True))(batch)
    for x, y, z in zip(q @ r, batch, order, strict=True):
        np.testing.assert_allclose(x, y[:, z], atol=1e-13)


def test_the_gradient_of_pivoted_factors_is_that_of_their_order() -> None:
    order = theirs.qr(TALL, pivoting=True)[2]
    weights = RNG.standard_normal((3, 3))

    def pivoted(x: Array) -> Array:
        return (lax_linalg.qr(x, pivoting=True, full_matrices=False)[1] * weights).sum()

    def ordered(x: Array) -> Array:
        return (af.linalg.qr(x[:, order])[1] * weights).sum()

    have, want = af.grad(pivoted)(TALL), af.grad(ordered)(TALL)
    np.testing.assert_allclose(have, want, atol=1e-13)


@pytest.mark.parametrize("trans", [0, 1, 2])
@pytest.mark.parametrize("a", [A, C], ids=["real", "complex"])
def test_solutions(a: Array, trans: int) -> None:
    b = B.astype(a.dtype)
    lu = theirs.lu_factor(a)
    check(
        lambda x, y: ours.lu_solve(ours.lu_factor(x), y, trans),
        theirs.lu_solve(lu, b, trans),
        a,
        b,
    )
    for lower in (False, True):
        for unit in (False, True):
            options: dict[str, Any] = {"lower": lower, "unit_diagonal": unit}
            check(
                lambda x, y, o=options: ours.solve_triangular(x, y, trans, **o),
                theirs.solve_triangular(a, b, trans, **options),
                a,
                b,
            )
    check(ours.solve, theirs.solve(a, b), a, b)
    p = positive(a)
    check(lambda x, y: ours.solve(x, y, assume_a="pos"), theirs.solve(p, b), p, b)
    for lower in (False, True):
        check(
            lambda x, y, lower=lower: ours.cho_solve(ours.cho_factor(x, lower), y),
            theirs.solve(p, b),
            p,
            b,
        )


@pytest.mark.parametrize("a", [A, C], ids=["real", "complex"])
def test_reductions(a: Array) -> None:
    for run in (ours.schur, af.jit(ours.schur)):
        t, z = run(a)
        np.testing.assert_allclose(z @ t @ z.conj().T, a, atol=1e-12)
        np.testing.assert_allclose(np.tril(t, -2), np.zeros(a.shape), atol=1e-12)
    check(lambda a: ours.schur(a, "complex")[0].diagonal().sum(), np.trace(a), a)
    h, q = theirs.hessenberg(a, calc_q=True)
    check(lambda a: ours.hessenberg(a, calc_q=True), (h, q), a)
    check(ours.hessenberg, h, a)
    s = (a + a.conj().T) / 2
    _, d, e, taus = af.jit(lax_linalg.tridiagonal)(s)
    np.testing.assert_allclose(theirs.eigvalsh_tridiagonal(d, e), theirs.eigvalsh(s))
    assert taus.shape == (3,)
    nans = np.full((2, 2), np.nan)
    assert np.isnan(af.jit(ours.schur)(nans)[0]).all()


@pytest.mark.parametrize("a", [A, C], ids=["real", "complex"])
def test_functions_of_matrices(a: Array) -> None:
    p = positive(a)
    check(ours.sqrtm, theirs.sqrtm(p).astype(complex), p)
    check(
        ours.sqrtm,
        np.stack([theirs.sqrtm(p), theirs.sqrtm(2 * p)]),
        np.stack([p, 2 * p]),
    )
    check(lambda a: ours.funm(a, af.numpy.exp), theirs.expm(a), a)
    b = RNG.standard_normal((3, 3)).astype(a.dtype)
    q = RNG.standard_normal((4, 3)).astype(a.dtype)
    check(ours.solve_sylvester, theirs.solve_sylvester(a, b, q), a, b, q)
    check(ours.qr_multiply, theirs.qr_multiply(a, B.T), a, B.T.copy())
    t, z = ours.rsf2csf(*ours.schur(A))
    np.testing.assert_allclose(z @ t @ z.conj().T, A, atol=1e-12)
    np.testing.assert_allclose(np.tril(t, -1), 0 * t, atol=1e-12)


def test_derivatives_of_functions_of_matrices() -> None:
    p, d = positive(A), RNG.standard_normal((4, 4))

    def loss(x: Any) -> Any:
        root = ours.sqrtm(x)
        return af.numpy.sum(af.numpy.real(root) ** 3)

    def solution(a: Any) -> Any:
        return af.numpy.sum(ours.solve_sylvester(a, p, d) ** 3)

    for f in (loss, solution):
        slope = (f(p + 1e-5 * d) - f(p - 1e-5 * d)) / 2e-5
        gradient = af.grad(f)
        np.testing.assert_allclose(np.sum(gradient(p) * d), slope, 1e-6)
        _, second = af.jvp(gradient, (p,), (d,))
        change = (gradient(p + 1e-5 * d) - gradient(p - 1e-5 * d)) / 2e-5
        np.testing.assert_allclose(second, change, 1e-5, 1e-7)


def test_generalised_eigenvalues() -> None:
    a, b = A + A.T, positive(A)
    check(ours.eigvalsh, theirs.eigvalsh(a, b), a, b)
    w, v = af.jit(ours.eigh)(a, b)
    np.testing.assert_allclose(a @ v, b @ v * w, 1e-9, 1e-9)
    np.testing.assert_allclose(v.T @ b @ v, np.eye(4), 1e-9, 1e-9)


def test_matrices_of_a_form() -> None:
    parts = (np.ones((2, 1)), np.arange(3.0), np.array(7.0))
    check(ours.block_diag, theirs.block_diag(*parts), *parts)
    c, r = np.arange(4.0), np.arange(10.0, 13.0)
    check(ours.toeplitz, theirs.toeplitz(c, r), c, r)
    check(ours.toeplitz, theirs.toeplitz(c + 1j), c + 1j)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("hankel", (np.arange(3.0), np.arange(4.0))),
        ("hankel", (np.arange(3.0),)),
        ("circulant", (np.arange(4.0),)),
        ("companion", (np.array([2.0, -10.0, 31.0, -30.0]),)),
        ("leslie", (np.array([0.1, 2.0, 1.0]), np.array([0.2, 0.8]))),
    ],
)
def test_matrices_of_vectors(name: str, arguments: tuple[Array, ...]) -> None:
    check(getattr(ours, name), getattr(theirs, name)(*arguments), *arguments)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("hilbert", (4,)),
        ("hadamard", (8,)),
        ("helmert", (5,)),
        ("helmert", (5, True)),
        ("pascal", (5,)),
        ("pascal", (5, "lower")),
        ("pascal", (5, "upper")),
        ("dft", (5,)),
        ("dft", (6, "sqrtn")),
        ("dft", (6, "n")),
    ],
)
def test_matrices_of_an_order(name: str, arguments: tuple[Any, ...]) -> None:
    have = getattr(ours, name)(*arguments)
    want = getattr(theirs, name)(*arguments)
    assert have.dtype == want.dtype
    np.testing.assert_allclose(have, want, 1e-12, 1e-12)


def test_tridiagonal_eigenvalues() -> None:
    d, e = RNG.standard_normal(5), RNG.standard_normal(4)
    values = theirs.eigvalsh_tridiagonal(d, e)
    check(lambda d, e: ours.eigh_tridiagonal(d, e, eigvals_only=True), values, d, e)
    w, v = ours.eigh_tridiagonal(d, e)
    np.testing.assert_allclose(w, values)
    full = np.diag(d) + np.diag(e, 1) + np.diag(e, -1)
    np.testing.assert_allclose(full @ v, v * w, atol=1e-12)


def test_the_derivative_of_the_exponential() -> None:
    check(ours.expm_frechet, theirs.expm_frechet(A, B @ B.T), A, B @ B.T)


def test_batches() -> None:
    batch = np.stack([A, A + 1, A * 2])
    sides = np.stack([B, B + 1, B])
    for name in ("solve_triangular", "solve"):
        function = getattr(ours, name)
        want = np.stack([function(a, b) for a, b in zip(batch, sides, strict=True)])
        check(function, want, batch, sides)
        np.testing.assert_allclose(af.jit(af.vmap(function))(batch, sides), want)
        one = np.stack([function(A, b) for b in sides])
        np.testing.assert_allclose(
            af.jit(af.vmap(function, (None, 0)))(A, sides), one, 1e-10, 1e-12
        )
    p, lower, upper = af.jit(ours.lu)(batch)
    np.testing.assert_allclose(p @ lower @ upper, batch)


# lax


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("op", ["none", "transpose", "adjoint", "conjugate"])
def test_triangular_solve(left: bool, lower: bool, op: str) -> None:
    options: dict[str, Any] = {
        "left_side": left,
        "lower": lower,
        "transpose_a": op in ("transpose", "adjoint"),
        "conjugate_a": op in ("adjoint", "conjugate"),
    }
    a = np.tril(C) if lower else np.triu(C)
    a = a.T if options["transpose_a"] else a
    a = a.conj() if options["conjugate_a"] else a
    b = (B if left else B.T).astype(C.dtype)
    want = np.linalg.solve(a, b) if left else np.linalg.solve(a.T, b.T).T
    check(lambda x, y: lax_linalg.triangular_solve(x, y, **options), want, C, b)


def test_lu_of_lax() -> None:
    factors, pivots, permutation = af.jit(lax_linalg.lu)(A)
    lower = np.tril(factors, -1) + np.eye(4)
    np.testing.assert_allclose(lower @ np.triu(factors), A[permutation])
    order = af.jit(lambda p: lax_linalg.lu_pivots_to_permutation(p, 4))(pivots)
    np.testing.assert_array_equal(order, permutation)


def test_eigenvectors_of_lax() -> None:
    w, left, right = af.jit(lax_linalg.eig)(A)
    np.testing.assert_allclose(A @ right, right * w, 1e-9, 1e-10)
    np.testing.assert_allclose(
        left.conj().T @ A, w[:, None] * left.conj().T, 1e-9, 1e-9
    )
    v, values = lax_linalg.eigh(A + A.T)
    np.testing.assert_allclose((A + A.T) @ v, v * values, 1e-9, 1e-10)
    q, r = lax_linalg.qr(TALL)
    assert (q.shape, r.shape) == ((5, 5), (5, 3))


def test_products_and_updates_of_lax() -> None:
    c = A + A.T
    check(
        lambda a, c: lax_linalg.symmetric_product(a, c, alpha=2.0, beta=0.5),
        2.0 * A @ A.T + 0.5 * c,
        A,
        c,
    )
    r, w = np.linalg.cholesky(positive(A)).T, B[:, 0]
    updated = np.linalg.cholesky(r.T @ r + np.outer(w, w)).T
    check(lax_linalg.cholesky_update, updated, r, w)


@pytest.mark.parametrize("x", [A, C, TALL], ids=["real", "complex", "tall"])
def test_householder_product(x: Array) -> None:
    (reflections, taus), _ = theirs.qr(x, mode="raw")
    q = theirs.qr(x, mode="economic")[0]
    reflections = np.ascontiguousarray(reflections)
    check(lax_linalg.householder_product, q, reflections, taus)
    whole, c = theirs.qr(x)[0], RNG.standard_normal((len(x), len(x)))
    for left in (True, False):
        for transpose in (True, False):
            op = whole.conj().T if transpose else whole
            check(
                lambda a, taus, c, left=left, transpose=transpose: lax_linalg.ormqr(
                    a, taus, c, left=left, transpose=transpose
                ),
                op @ c if left else c @ op,
                reflections,
                taus,
                c.astype(x.dtype),
            )


def test_tridiagonal_solve() -> None:
    low, high = RNG.standard_normal((2, 3, 5))
    middle, sides = 5 + RNG.standard_normal((3, 5)), RNG.standard_normal((3, 5, 2))
    full = np.zeros((3, 5, 5))
    for k in range(5):
        full[:, k, k] = middle[:, k]
        if k:
            full[:, k, k - 1] = low[:, k]
            full[:, k - 1, k] = high[:, k - 1]
    solve = lax_linalg.tridiagonal_solve
    check(solve, np.linalg.solve(full, sides), low, middle, high, sides)

    def loss(middle: Any) -> Any:
        return af.numpy.sum(solve(low, middle, high, sides) ** 2)

    step = 1e-6 * np.eye(5)[2]
    slope = (loss(middle + step) - loss(middle - step)) / 2e-6
    np.testing.assert_allclose(af.grad(loss)(middle)[:, 2].sum(), slope, 1e-5)


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ShapeError, match="needs 4 columns"):
        lax_linalg.triangular_solve(A, B)
    with pytest.raises(ArgumentError, match="has the modes"):
        ours.qr(A, mode="raw")
    with pytest.raises(ArgumentError, match="trans must be"):
        ours.solve_triangular(A, B, "X")
    with pytest.raises(ArgumentError, match="'gen'"):
        ours.solve(A, B, assume_a="banded")
