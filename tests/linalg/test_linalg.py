"""numpy.linalg against NumPy's: values, dtypes, and that jit agrees with the eager."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn.backends.cpu.libraries import leading_values
from arrayfn.backends.cpu.libraries.blas import blas, scipy_blas, threaded_blas
from arrayfn.backends.cpu.libraries.linear_algebra import factors, matrices, providers
from arrayfn.backends.cpu.runtime import runtime
from arrayfn.backends.cpu.unjitted import run_unjitted
from arrayfn.errors import ArgumentError, DTypeError, ShapeError
from arrayfn.lowering.libraries import factorizations
from arrayfn.scipy import linalg as sl
from arrayfn.scipy.linalg import solve_triangular
from tests.common_functions import same_on_threads

Array = np.ndarray[Any, Any]
theirs = np.linalg
RNG = np.random.default_rng(0)
REAL = RNG.standard_normal((3, 4, 4))
COMPLEX = REAL + 1j * RNG.standard_normal((3, 4, 4))
TALL = RNG.standard_normal((5, 3))
WIDE = RNG.standard_normal((2, 3, 5))
SQUARE = [REAL, COMPLEX]
ANY = [REAL, COMPLEX, TALL, WIDE]


def hermitian(x: Array) -> Array:
    return (x + x.conj().swapaxes(-1, -2)) / 2


def positive(x: Array) -> Array:
    return x @ x.conj().swapaxes(-1, -2) + np.eye(x.shape[-1])


def check(
    ours: Callable[..., Any], theirs: Callable[..., Any], *arguments: Array
) -> None:
    """At once and compiled, in double and in single precision."""
    single = [
        x.astype({"d": "f", "D": "F"}.get(x.dtype.char, x.dtype)) for x in arguments
    ]
    for given, bound in ((list(arguments), 1e-10), (single, 2e-3)):
        want = theirs(*given)
        wanted = want if isinstance(want, tuple) else (want,)
        for run in (ours, af.jit(ours)):
            have = run(*given)
            results = have if isinstance(have, tuple) else (have,)
            for x, y in zip(results, wanted, strict=True):
                assert np.shape(x) == np.shape(y)
                assert x.dtype == np.asarray(y).dtype
                np.testing.assert_allclose(x, y, bound, bound)


def as_complex(result: Any) -> Any:
    """NumPy's eigenvalues of a real matrix are real if all are: ours never are."""
    if isinstance(result, tuple):
        return tuple(as_complex(x) for x in result)
    return np.asarray(result).astype(np.result_type(result.dtype, np.complex64))


@pytest.mark.parametrize("x", SQUARE, ids=["real", "complex"])
def test_of_square_matrices(x: Array) -> None:
    la = anp.linalg
    check(la.cholesky, theirs.cholesky, positive(x))
    upper = positive(x)
    check(lambda a: la.cholesky(a, upper=True), lambda a: adjoint_of(theirs, a), upper)
    check(lambda a: la.eigh(a)[0], lambda a: theirs.eigh(a)[0], hermitian(x))
    check(la.eigvalsh, theirs.eigvalsh, hermitian(x))
    check(la.det, theirs.det, x)
    check(lambda a: tuple(la.slogdet(a)), lambda a: tuple(theirs.slogdet(a)), x)
    check(la.inv, theirs.inv, x)
    check(la.solve, theirs.solve, x, x[..., :2])
    check(la.solve, theirs.solve, x, x[0, 0])
    check(lambda a: la.matrix_power(a, -2), lambda a: theirs.matrix_power(a, -2), x)


def adjoint_of(module: Any, x: Array) -> Array:
    return module.cholesky(x).conj().swapaxes(-1, -2)


@pytest.mark.parametrize("x", SQUARE, ids=["real", "complex"])
def test_eigenvectors_satisfy_their_equation(x: Array) -> None:
    for run in (anp.linalg.eig, af.jit(anp.linalg.eig)):
        w, v = run(x)
        np.testing.assert_allclose(x @ v, v * w[..., None, :], 1e-10, 1e-10)
        np.testing.assert_allclose(theirs.norm(v, axis=-2), np.ones(w.shape))
        np.testing.assert_allclose(
            np.sort_complex(w), np.sort_complex(theirs.eigvals(x))
        )
    check(
        anp.linalg.eigvals, lambda a: as_complex(theirs.eigvals(a)), x[:1] + 0 * x[:1]
    )
    h = hermitian(x)
    for run in (anp.linalg.eigh, af.jit(anp.linalg.eigh)):
        w, v = run(h)
        np.testing.assert_allclose(h @ v, v * w[..., None, :], 1e-10, 1e-10)


@pytest.mark.parametrize("x", ANY, ids=["real", "complex", "tall", "wide"])
def test_of_any_matrices(x: Array) -> None:
    la = anp.linalg
    check(lambda a: tuple(la.qr(a)), lambda a: tuple(theirs.qr(a)), x)
    check(lambda a: la.qr(a, mode="r"), lambda a: theirs.qr(a, mode="r"), x)
    check(la.svdvals, theirs.svdvals, x)
    check(la.pinv, theirs.pinv, x)
    check(la.matrix_rank, theirs.matrix_rank, x)
    check(la.cond, theirs.cond, x)


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("x", ANY, ids=["real", "complex", "tall", "wide"])
def test_factors_multiply_to_the_operand(x: Array, full: bool) -> None:
    k = min(x.shape[-2:])
    for run in (anp.linalg.svd, af.jit(anp.linalg.svd, static_argnums=1)):
        u, s, vh = run(x, full)
        np.testing.assert_allclose(u[..., :k] * s[..., None, :] @ vh[..., :k, :], x)
        assert u.shape[-1] == (x.shape[-2] if full else k)
        unit = u.conj().swapaxes(-1, -2) @ u
        np.testing.assert_allclose(unit, unit * 0 + np.eye(u.shape[-1]), atol=1e-12)
    mode = "complete" if full else "reduced"
    q, r = af.jit(lambda a: anp.linalg.qr(a, mode=mode))(x)
    np.testing.assert_allclose(q @ r, x, atol=1e-12)
    assert q.shape[-1] == (x.shape[-2] if full else k)


@pytest.mark.parametrize("order", ["fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf])
def test_matrix_norms(order: Any) -> None:
    for keep in (False, True):
        check(
            lambda a, keep=keep: anp.linalg.matrix_norm(a, ord=order, keepdims=keep),
            lambda a, keep=keep: theirs.matrix_norm(a, ord=order, keepdims=keep),
            WIDE,
        )
    check(
        lambda a: anp.linalg.norm(a, order, axis=(2, 0)),
        lambda a: theirs.norm(a, order, axis=(2, 0)),
        WIDE,
    )


@pytest.mark.parametrize("order", [0, 1, 2, 3.5, -1, np.inf, -np.inf])
def test_vector_norms(order: Any) -> None:
    check(
        lambda a: anp.linalg.vector_norm(a, ord=order, axis=-1),
        lambda a: theirs.vector_norm(a, ord=order, axis=-1),
        COMPLEX,
    )
    check(
        lambda a: anp.linalg.norm(a, order, axis=0, keepdims=True),
        lambda a: theirs.norm(a, order, axis=0, keepdims=True),
        TALL,
    )


def test_least_squares() -> None:
    sides = RNG.standard_normal((5, 2))

    def solution(module: Any) -> Callable[..., Any]:
        return lambda a, b: tuple(module.lstsq(a, b)[k] for k in (0, 1, 3))

    check(solution(anp.linalg), solution(theirs), TALL, sides)
    check(
        lambda a, b: anp.linalg.lstsq(a, b)[0],
        lambda a, b: theirs.lstsq(a, b)[0],
        TALL,
        sides[:, 0],
    )
    assert anp.linalg.lstsq(TALL * [1, 1, 0], sides)[2] == 2
    for b in (sides, sides[:, 0], np.stack([sides, 2 * sides])):
        batch = np.stack([TALL, TALL * [1, 1, 0]])
        parts = af.jit(anp.linalg.lstsq)(batch, b)
        for k, matrix in enumerate(batch):
            given = b[k] if b.ndim == 3 else b
            for part, want in zip(parts, anp.linalg.lstsq(matrix, given), strict=True):
                np.testing.assert_allclose(part[k], want, atol=1e-13)
    with pytest.raises(ShapeError, match="needs 5 rows"):
        anp.linalg.lstsq(TALL, sides[:3])


@pytest.mark.parametrize("shape", [(0, 0), (3, 3), (2, 130, 130), (300, 300)])
def test_inverses_of_all_sizes(shape: tuple[int, ...]) -> None:
    for x in (RNG.standard_normal(shape), RNG.standard_normal(shape) * (1 + 1j)):
        inverse = af.jit(anp.linalg.inv)(x)
        assert inverse.dtype == x.dtype
        unit = np.broadcast_to(np.eye(shape[-1]), shape)
        np.testing.assert_allclose(inverse @ x, unit, atol=1e-9)


def test_right_hand_sides_that_begin_with_zeros() -> None:
    a, b = RNG.standard_normal((200, 200)) / 50, RNG.standard_normal((200, 150))
    for first in (1, 77, 200):
        b[:first] = 0
        for lower, trans in ((True, 0), (False, 1), (True, 1)):
            have = af.jit(
                lambda a, b, lower=lower, trans=trans: solve_triangular(
                    a, b, trans=trans, lower=lower, unit_diagonal=True
                )
            )(a, b)
            triangle = np.tril(a, -1) if lower else np.triu(a, 1)
            triangle = (triangle.T if trans else triangle) + np.eye(200)
            np.testing.assert_allclose(triangle @ have, b, atol=1e-12)


@pytest.mark.parametrize("size", [0.0, 0.1, 1.0, 30.0, 100.0, 1e9])
def test_the_exponential_takes_as_many_squarings_as_the_norm_needs(size: float) -> None:
    x = size * RNG.standard_normal((2, 4, 4)) * [[[1.0]], [[0.01]]]
    have = af.jit(anp.linalg.expm)(x)
    if size == 1e9:
        assert np.isnan(have).all()
    else:
        want = anp.linalg.expm(x)
        np.testing.assert_allclose(have, want, rtol=1e-12)


def test_products_and_tensors() -> None:
    chain = [RNG.standard_normal(s) for s in ((3, 7), (7, 2), (2, 6), (6,))]
    check(lambda *a: anp.linalg.multi_dot(a), lambda *a: theirs.multi_dot(a), *chain)
    tensor = RNG.standard_normal((2, 3, 6))
    check(
        anp.linalg.tensorsolve, theirs.tensorsolve, tensor, RNG.standard_normal((2, 3))
    )
    check(anp.linalg.tensorinv, theirs.tensorinv, RNG.standard_normal((4, 6, 8, 3)))
    check(
        lambda a: anp.linalg.trace(a, offset=1),
        lambda a: theirs.trace(a, offset=1),
        WIDE,
    )
    check(
        lambda a: anp.linalg.diagonal(a, offset=-1),
        lambda a: theirs.diagonal(a, offset=-1),
        WIDE,
    )
    check(anp.linalg.outer, theirs.outer, TALL[0], TALL[1])
    check(anp.linalg.cross, theirs.cross, TALL[0], TALL[1])


@pytest.mark.parametrize("shape", [(0, 0), (2, 0, 0), (0, 3), (3, 0)])
def test_of_empty_matrices(shape: tuple[int, ...]) -> None:
    x = np.zeros(shape)
    names = ["svdvals", "pinv"]
    if shape[-1] == shape[-2]:
        names += ["cholesky", "eigvalsh", "inv", "det"]
    for name in names:
        check(getattr(anp.linalg, name), getattr(theirs, name), x)
    for name in ("svd", "qr"):
        function, theirs_too = getattr(anp.linalg, name), getattr(theirs, name)
        check(lambda a, f=function: tuple(f(a)), lambda a, f=theirs_too: tuple(f(a)), x)


def test_integers_become_float64_and_halves_are_refused() -> None:
    assert anp.linalg.inv(np.array([[1, 2], [3, 5]])).dtype == np.float64
    with pytest.raises(DTypeError, match="convert the operand to float32"):
        anp.linalg.inv(np.eye(2, dtype=np.float16))


@pytest.mark.parametrize("jit", [False, True])
def test_what_fails_is_nan(jit: bool) -> None:
    def run(f: Callable[..., Any]) -> Callable[..., Any]:
        return af.jit(f) if jit else f

    good, bad = np.eye(3), np.diag([1.0, -1.0, 1.0])
    factors = run(anp.linalg.cholesky)(np.stack([good, bad]))
    np.testing.assert_array_equal(factors[0], good)
    assert np.isnan(factors[1]).all()
    nans = np.full((2, 2), np.nan)
    assert np.isnan(run(anp.linalg.svdvals)(nans)).all()
    assert np.isnan(run(lambda x: anp.linalg.eig(x)[1])(nans)).all()
    assert not np.isfinite(run(anp.linalg.inv)(np.zeros((2, 2)))).any()


def test_bad_operands_are_named() -> None:
    with pytest.raises(ShapeError, match="cholesky takes square matrices"):
        anp.linalg.cholesky(TALL)
    with pytest.raises(ShapeError, match="svd takes matrices"):
        anp.linalg.svd(TALL[0])
    with pytest.raises(ShapeError, match="needs 4 rows"):
        anp.linalg.solve(REAL, TALL)
    with pytest.raises(ArgumentError, match="'reduced', 'complete'"):
        anp.linalg.qr(TALL, mode="raw")
    with pytest.raises(ArgumentError, match="'fro', 'nuc'"):
        anp.linalg.matrix_norm(TALL, ord=3)
    with pytest.raises(ShapeError, match="ravel it"):
        anp.linalg.outer(TALL, TALL)


def test_numpys_functions_can_be_traced() -> None:
    def f(x: Any) -> Any:
        return np.linalg.norm(np.linalg.solve(x, np.eye(4)))

    np.testing.assert_allclose(af.jit(f)(REAL[0]), f(REAL[0]))


def test_bits_do_not_depend_on_the_thread_count() -> None:
    batch = np.random.default_rng(1).standard_normal((40, 24, 24))

    @af.jit
    def all_of(x: Any) -> Any:
        la = anp.linalg
        h = x + anp.matrix_transpose(x)
        parts = (la.qr(x)[0], la.svd(x)[0], la.eigh(h)[1], la.inv(x), la.eigvals(x))
        return (*parts, la.cholesky(x @ anp.matrix_transpose(x)))

    same_on_threads(lambda: all_of(batch), (1, 2, 3))


def test_linalg_is_one_module_under_several_names() -> None:
    assert af.linalg.solve is anp.linalg.solve
    assert set(af.linalg.__all__) == set(anp.linalg.__all__)


# Large matrices, in blocks.


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Matrices of a few rows count as large: LAPACK factors them on its threads."""
    monkeypatch.setattr(factorizations, "LARGE", 4)


def both_ways(f: Callable[..., Any], x: Array) -> list[list[Array]]:
    """The results of compiled code, and of un-jitted code."""
    compiled = af.jit(f)
    have = compiled(x)
    unjitted = run_unjitted(compiled.lower(x).compiled_program, (x,))
    return [list(have) if isinstance(have, tuple) else [have], unjitted]


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: sl.qr(x, pivoting=True),
        lambda x: tuple(anp.linalg.qr(x, mode="complete")),
        sl.lu,
        sl.schur,
        sl.hessenberg,
        lambda x: tuple(anp.linalg.eig(x)),
        anp.linalg.eigvals,
        anp.linalg.eigvalsh,
        anp.linalg.svdvals,
    ],
)
def test_unjitted_factors_are_those_of_compiled_code(
    function: Callable[..., Any], dtype: Any, one_lapack: None
) -> None:
    x = RNG.standard_normal((20, 20)).astype(dtype)
    if x.dtype.kind == "c":
        x += 1j * RNG.standard_normal((20, 20))
    have, unjitted = both_ways(function, x)
    for ours, other in zip(have, unjitted, strict=True):
        np.testing.assert_allclose(ours, other, rtol=1e-8, atol=1e-9)


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("shape", [(10, 10), (8, 11), (11, 8), (2, 9, 9)])
@pytest.mark.parametrize("dtype", [np.float64, np.complex128, np.float32])
def test_factors_of_large_matrices(shape: tuple[int, ...], dtype: Any) -> None:
    x = RNG.standard_normal(shape).astype(dtype)
    if x.dtype.kind == "c":
        x = (x + 1j * RNG.standard_normal(shape)).astype(dtype)
    bound = {"rtol": 1e-9, "atol": 1e-4 if dtype == np.float32 else 1e-10}
    for full in (False, True):
        mode = "complete" if full else "reduced"
        want = theirs.qr(x, mode=mode)
        for have in both_ways(lambda a, m=mode: tuple(anp.linalg.qr(a, mode=m)), x):
            for ours, other in zip(have, want, strict=True):
                np.testing.assert_allclose(ours, other, **bound)
    k = min(shape[-2:])
    for packed, _, order in both_ways(af.lax.linalg.lu, x):
        lower = np.tril(packed[..., :, :k], -1) + np.eye(shape[-2], k)
        permuted = np.take_along_axis(x, order[..., None], -2)
        np.testing.assert_allclose(
            lower @ np.triu(packed[..., :k, :]), permuted, **bound
        )
    if shape[-1] == shape[-2]:
        good = positive(x).astype(dtype)
        bad = good.copy()
        bad[..., -4, -4] = -100.0
        for (have,) in both_ways(anp.linalg.cholesky, good):
            np.testing.assert_allclose(have, theirs.cholesky(good), **bound)
        for (have,) in both_ways(anp.linalg.cholesky, bad):
            assert np.isnan(have).all()


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("dtype", [np.float64, np.complex128, np.float32])
@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30])
def test_spectra_of_large_matrices(dtype: Any, scale: float) -> None:
    bound = 2e-4 if dtype == np.float32 else 1e-10
    for shape in ((10, 10), (9, 8), (8, 9), (2, 6, 6)):
        x = RNG.standard_normal(shape)
        if np.dtype(dtype).kind == "c":
            x = x + 1j * RNG.standard_normal(shape)
        x = (x * scale).astype(dtype)
        for full in (True, False):
            for u, s, vh in both_ways(lambda a, f=full: tuple(anp.linalg.svd(a, f)), x):
                k = s.shape[-1]
                product = u[..., :k] * s[..., None, :] @ vh[..., :k, :]
                np.testing.assert_allclose(product / scale, x / scale, atol=bound)
                unit = u.conj().swapaxes(-1, -2) @ u
                np.testing.assert_allclose(
                    unit, unit * 0 + np.eye(u.shape[-1]), atol=bound
                )
        if shape[-1] == shape[-2]:
            h = hermitian(x)
            for w, v in both_ways(lambda a: tuple(anp.linalg.eigh(a)), h):
                error = (h @ v - v * w[..., None, :]) / scale
                np.testing.assert_allclose(error, 0 * error, atol=bound)
                np.testing.assert_allclose(
                    w / scale, theirs.eigvalsh(h / scale), atol=bound
                )


@pytest.mark.usefixtures("large")
def test_spectra_of_large_matrices_that_are_not_finite() -> None:
    x = np.eye(8)
    x[3, 3] = np.nan
    for parts in (af.jit(anp.linalg.svd)(x), af.jit(anp.linalg.eigh)(x)):
        for part in parts:
            assert np.isnan(part).all()


def test_factors_by_a_lapack_with_integers_of_32_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (factors, matrices, providers):
        monkeypatch.setattr(module, "blas", scipy_blas)
    leading_values.cache_clear()
    x = RNG.standard_normal((2, 19, 19))
    try:
        q, r, order = af.jit(lambda a: sl.qr(a, pivoting=True))(x[0])
        t, z = af.jit(sl.schur)(x[0])
        h = af.jit(sl.hessenberg)(x[0])
        w, v = af.jit(anp.linalg.eig)(x)
        solution = af.jit(anp.linalg.solve)(x, x @ x)
        w2, v2 = af.jit(anp.linalg.eigh)(hermitian(x))
    finally:
        leading_values.cache_clear()
    bound = {"rtol": 1e-9, "atol": 1e-10}
    np.testing.assert_allclose(q @ r, x[0][:, order], **bound)
    assert (np.diff(np.abs(np.diag(r))) <= 0).all()
    np.testing.assert_allclose(z @ t @ z.T, x[0], **bound)
    np.testing.assert_allclose(theirs.eigvals(h).sum(), np.trace(x[0]), **bound)
    np.testing.assert_allclose(x @ v, v * w[:, None], **bound)
    np.testing.assert_allclose(solution, x, **bound)
    np.testing.assert_allclose(hermitian(x) @ v2, v2 * w2[:, None], **bound)


@pytest.mark.skipif(blas() is scipy_blas(), reason="NumPy carries no LAPACK")
def test_products_and_factors_of_small_matrices_do_not_import_scipy() -> None:
    program = (
        "import sys, numpy as np, arrayfn as af; x = np.ones((40, 40)); "
        "print(af.jit(lambda x: x @ x)(x)[0, 0]); "
        "print(af.jit(af.linalg.cholesky)(36 * np.eye(40))[0, 0]); "
        "print([name for name in sys.modules if name.startswith('scipy')])"
    )
    command = [sys.executable, "-c", program]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert out.split() == ["40.0", "6.0", "[]"]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex128])
@pytest.mark.parametrize("n", [3, 20, 40])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_cholesky_factor_of_a_matrix_that_is_not_finite_is_nan(
    n: int, dtype: Any, bad: float
) -> None:
    x = np.tile(3 * np.eye(n, dtype=dtype), (2, 1, 1))
    x[1, 1, 0] = bad

    def factor(x: Array) -> Any:
        return anp.linalg.cholesky(x, symmetrize_input=False)

    for have in (factor(x), af.jit(factor)(x), af.jit(factor, device="reference")(x)):
        np.testing.assert_allclose(have[0], np.sqrt(3) * np.eye(n), rtol=1e-6)
        assert np.isnan(have[1]).all()


@pytest.mark.usefixtures("large")
def test_lapack_has_as_many_threads_as_arrayfn_for_one_large_matrix() -> None:
    library = threaded_blas()
    if library is blas():
        pytest.skip("NumPy and SciPy share a library, which has one thread")
    get = ctypes.CFUNCTYPE(ctypes.c_int)(library.get_threads)
    put = ctypes.CFUNCTYPE(None, ctypes.c_int)(library.set_threads)
    given: list[int] = []

    @ctypes.CFUNCTYPE(None, ctypes.c_int64)
    def record(count: int) -> None:
        given.append(count)
        put(count)

    threads_before, count = get(), af.get_num_threads()
    factor = af.jit(anp.linalg.cholesky)
    state = runtime().threaded_blas
    x = positive(RNG.standard_normal((40, 40)))
    try:
        put(5)
        af.set_num_threads(3)
        factor(x)
        kept = state.set_threads
        state.set(set_threads=ctypes.cast(record, ctypes.c_void_p).value)
        have = factor(x)
        assert given == [3, 5]
        factor(np.stack([x, x]))
        assert get() == 5
        assert given == [3, 5]
    finally:
        state.set(set_threads=kept)
        af.set_num_threads(count)
        put(threads_before)
    np.testing.assert_allclose(have @ have.T, x, atol=1e-12)


def test_single_matrices_have_the_same_bits_for_any_number_of_threads() -> None:
    x = np.random.default_rng(2).standard_normal((400, 400))
    assert len(x) < factorizations.LARGE

    @af.jit
    def all_of(x: Any) -> Any:
        p = x @ x.T + 400 * np.eye(400)
        q, r = anp.linalg.qr(x)
        u, _, vh = anp.linalg.svd(x)
        v = anp.linalg.eigh(p).eigenvectors
        w = anp.linalg.eigvalsh(p)
        return anp.linalg.cholesky(p), anp.linalg.solve(x, p), q, r, u, vh, v, w

    result = same_on_threads(lambda: all_of(x), (1, 2, 3))
    factor, solution, q, r = result[:4]
    p = x @ x.T + 400 * np.eye(400)
    np.testing.assert_allclose(factor @ factor.T, p, atol=1e-9)
    np.testing.assert_allclose(x @ solution, p, atol=1e-7)
    np.testing.assert_allclose(q @ r, x, atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(120, 120), (130, 90)])
def test_a_matrix_alone_and_in_a_batch_have_the_same_spectra(
    shape: tuple[int, int], dtype: Any
) -> None:
    x = np.random.default_rng(3).standard_normal(shape).astype(dtype)
    bound = 2e-4 if dtype == np.float32 else 1e-12
    h = x.T @ x / 400
    svd = af.jit(lambda x: tuple(anp.linalg.svd(x, full_matrices=False)))
    u, s, vh = svd(x)
    np.testing.assert_allclose(u * s @ vh, x, atol=bound)
    np.testing.assert_allclose(u.T @ u, np.eye(len(s)), atol=bound)
    w, v = af.jit(anp.linalg.eigh)(h)
    np.testing.assert_allclose(h @ v, v * w, atol=bound)
    np.testing.assert_allclose(w, np.sort(s**2 / 400), atol=bound)
    for have, want in zip(svd(np.stack([x, x])), (u, s, vh), strict=True):
        np.testing.assert_array_equal(have[1], want)
    for have, want in zip(
        af.jit(anp.linalg.eigh)(np.stack([h, h])), (w, v), strict=True
    ):
        np.testing.assert_array_equal(have[1], want)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex128])
@pytest.mark.parametrize(
    "spectrum", ["zero", "two values", "cluster", "graded", "tridiagonal"]
)
def test_eigenvectors_are_orthogonal_whatever_the_spectrum(
    spectrum: str, dtype: Any
) -> None:
    n = 130
    q = np.linalg.qr(np.random.default_rng(4).standard_normal((n, n)))[0]
    matrix = {
        "zero": np.zeros((n, n)),
        "two values": q[:, :5] @ q[:, :5].T,
        "cluster": (q * np.r_[np.ones(n - 2), 1.001, 3]) @ q.T,
        "graded": 1e-8 * (q * 10.0 ** np.linspace(0, -12, n)) @ q.T,
        "tridiagonal": np.eye(n, k=1) + np.eye(n, k=-1) - 2 * np.eye(n),
    }[spectrum]
    h = ((matrix + matrix.T) / 2).astype(dtype)
    w, v = af.jit(anp.linalg.eigh)(h)
    bound = n * np.finfo(dtype).eps
    scale = max(np.abs(w).max(), np.finfo(dtype).tiny)
    assert (np.diff(w) >= 0).all()
    np.testing.assert_allclose(v.conj().T @ v, np.eye(n), atol=bound)
    np.testing.assert_allclose(h @ v / scale, v * (w / scale), atol=bound)
    np.testing.assert_allclose(w, np.linalg.eigvalsh(h), atol=bound * scale)
    alone = af.jit(anp.linalg.eigvalsh)(h)
    np.testing.assert_allclose(alone, w, atol=bound * scale)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex128])
@pytest.mark.parametrize(
    "spectrum", ["zero", "rank one", "cluster", "graded", "nilpotent", "bidiagonal"]
)
def test_singular_vectors_are_orthogonal_whatever_the_spectrum(
    spectrum: str, dtype: Any
) -> None:
    n = 100
    rng = np.random.default_rng(4)
    p, q = np.linalg.qr(rng.standard_normal((2, n, n)))[0]
    x = {
        "zero": np.zeros((n, n)),
        "rank one": np.ones((n, n)) / n,
        "cluster": (q * np.r_[np.ones(n - 2), 1.001, 3]) @ p,
        "graded": 1e-8 * (q * 10.0 ** np.linspace(0, -12, n)) @ p,
        "nilpotent": np.eye(n, k=1),
        "bidiagonal": np.eye(n) + np.eye(n, k=1),
    }[spectrum].astype(dtype)
    u, s, vh = af.jit(lambda x: tuple(anp.linalg.svd(x)))(x)
    bound = n * np.finfo(dtype).eps
    scale = max(s.max(), np.finfo(dtype).tiny)
    assert (np.diff(s) <= 0).all()
    assert (s >= 0).all()
    np.testing.assert_allclose(u.conj().T @ u, np.eye(n), atol=bound)
    np.testing.assert_allclose(vh @ vh.conj().T, np.eye(n), atol=bound)
    np.testing.assert_allclose(u * (s / scale) @ vh, x / scale, atol=bound)


def test_workspace_is_for_the_threads_that_run() -> None:
    one = af.jit(anp.linalg.svdvals).lower(np.zeros((200, 200))).plan
    assert one.scratch == 0
    assert one.arena > 4 * 200 * 200 * 8
    many = af.jit(anp.linalg.svdvals).lower(np.zeros((50, 20, 20))).plan
    assert many.scratch > 0


@pytest.mark.parametrize("shape", [(0, 1, 1), (0, 3, 3), (2, 0, 0), (0, 0)])
@pytest.mark.parametrize("name", ["inv", "det", "slogdet", "cholesky", "pinv", "qr"])
def test_batches_of_nothing(name: str, shape: tuple[int, ...]) -> None:
    x = np.zeros(shape, np.float32)
    function = getattr(anp.linalg, name)
    given = getattr(np.linalg, name)(x)
    want = given if isinstance(given, tuple) else [given]

    def total(x: Any) -> Any:
        return sum(anp.sum(y) for y in af.tree.leaves(function(x)))

    for have in (function(x), af.jit(function)(x)):
        for one, other in zip(af.tree.leaves(have), want, strict=True):
            assert one.shape == np.shape(other)
    assert af.jit(af.grad(total))(x).shape == shape
