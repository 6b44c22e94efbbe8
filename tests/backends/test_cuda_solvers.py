"""Linear algebra on a GPU, without one: plans whose libraries LAPACK stands for."""

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import dtypes, lax
from arrayfn.backends.cuda import missing_here, missing_packages
from arrayfn.backends.cuda.code import kernel_ptx
from arrayfn.backends.cuda.device_array import device_put
from arrayfn.backends.cuda.emulator.plan import run_plan
from arrayfn.backends.cuda.libraries import spectra
from arrayfn.lowering.cuda.lower import lower
from arrayfn.lowering.cuda.solvers import cholesky, cholesky_tiles, substitution
from arrayfn.lowering.plan import LibraryKernel
from arrayfn.primitives.calls import evaluate
from arrayfn.primitives.table import TABLE
from arrayfn.tracing import apply
from arrayfn.transforms import trace_function
from tests.lowered_on_gpu import lowered
from tests.lowering.kernels import assert_near
from tests.lowering.test_kernels_of_the_table import program_of_samples

needs_compiler = pytest.mark.skipif(bool(missing_packages()), reason=missing_packages())

needs_gpu = pytest.mark.skipif(bool(missing_here()), reason=missing_here())
ROWS = (
    "cholesky",
    "triangular_solve",
    "lu",
    "pivots_to_permutation",
    "solve",
    "qr",
    "eigvalsh",
    "eig",
    "eigvals",
    "svdvals",
)


def providers(compiled):
    return [k.provider for k in compiled.kernels if isinstance(k, LibraryKernel)]


def random(*shape, dtype=np.float64, seed=0):
    values = np.random.default_rng(seed).standard_normal((2, *shape))
    kind = np.dtype(dtype).kind
    return (values[0] + (1j * values[1] if kind == "c" else 0)).astype(dtype)


@pytest.mark.parametrize("name", ROWS)
def test_rows_of_linear_algebra_equal_the_reference(name):
    row = TABLE[name]
    program, inputs, labels = program_of_samples(row)
    results = run_plan(lower(program), [np.asarray(x) for x in inputs])
    expected = evaluate(program, inputs)
    for label, have, want in zip(labels, results, expected, strict=True):
        assert_near(have, want, row.tolerance, label)


def samples(row):
    """The samples' inputs, and what a plan without a GPU gives for each."""
    for sample in row.samples():
        x = np.asarray(sample.inputs[0])
        yield (
            x,
            run_plan(lowered(lambda x, s=sample: apply(row, x, **s.params), x), [x]),
        )


def test_eigenvectors_are_the_rows_of_their_adjoint():
    for x, (vh, w) in samples(TABLE["eigh"]):
        lower_part = np.tril(x, -1)
        whole = lower_part + lower_part.conj().swapaxes(-1, -2)
        whole = whole + x.real * np.eye(x.shape[-1])
        v = vh.conj().swapaxes(-1, -2)
        bound = 1e-5 if x.dtype == np.float32 else 1e-13
        np.testing.assert_allclose((v * w[..., None, :]) @ vh, whole, bound, bound)


SHAPES = [(3, 3), (5, 2), (2, 5), (3, 4, 4), (2, 3, 6)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("full", [False, True], ids=["thin", "full"])
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_singular_vectors_give_the_matrix_back(shape, full, dtype):
    x = random(*shape, dtype=dtype)
    compiled = lowered(lambda x: anp.linalg.svd(x, full_matrices=full), x)
    u, s, vh = run_plan(compiled, [x])
    k = min(shape[-2:])
    bound = 1e-13 if dtype == "complex128" else 2e-5
    product = (u[..., :k] * s[..., None, :]) @ vh[..., :k, :]
    np.testing.assert_allclose(product, x, bound, bound)
    np.testing.assert_allclose(
        s, run_plan(lowered(anp.linalg.svdvals, x), [x])[0], bound, bound
    )
    assert u.shape[-1] == (shape[-2] if full else k)
    for side in (u, vh.conj().swapaxes(-1, -2)):
        gram = side.conj().swapaxes(-1, -2) @ side
        np.testing.assert_allclose(
            gram, np.broadcast_to(np.eye(gram.shape[-1]), gram.shape), bound, bound
        )


def test_a_batch_of_small_matrices_is_one_call_and_names_its_form():
    def all_of(x):
        return (
            anp.linalg.svd(x, compute_uv=False),
            anp.linalg.eigvalsh(x),
            anp.linalg.qr(x, mode="r"),
        )

    x = random(9, 4, 4, dtype=np.complex128)
    names = {"geqrf_c128", "gesvdjbatched_c128", "syevjbatched_c128"}
    assert names <= set(providers(lowered(all_of, x)))
    forms = {
        (5, 4): "gesvdj",
        (9, 5, 4): "gesvdjbatched",
        (129, 4): "gesvdp",
        (9, 40, 4): "gesvdj",
        (3, 140, 4): "gesvdj",
    }
    for shape, form in forms.items():
        compiled = lowered(anp.linalg.svdvals, random(*shape, dtype=np.complex128))
        assert providers(compiled) == [f"{form}_c128"]


def test_pivots_of_long_columns_swap_in_global_memory():
    rows = 8200
    pivots = np.random.default_rng(0).integers(0, rows, 30).astype(np.int32)
    row = TABLE["pivots_to_permutation"]
    compiled = lowered(lambda p: apply(row, p, rows=rows), pivots)
    (kernel,) = compiled.kernels
    assert kernel.shared == 0
    (result,) = run_plan(compiled, [pivots])
    np.testing.assert_array_equal(result, row.reference(pivots, rows=rows))


def adjoint(x):
    return x.conj().swapaxes(-1, -2)


def lower_upper(x):
    """x again, of its LU factors."""
    factors, _, permutation = lax.linalg.lu(x)
    k = min(x.shape)
    unit = anp.tril(factors, -1)[:, :k] + anp.eye(x.shape[0], k, dtype=x.dtype)
    product = unit @ anp.triu(factors)[:k]
    return product[anp.argsort(permutation)]


def by_qr(mode):
    def again(x):
        q, r = anp.linalg.qr(x, mode=mode)
        return q @ r

    return again


def by_svd(x):
    u, s, vh = anp.linalg.svd(x, full_matrices=False)
    return (u * s[..., None, :].astype(x.dtype)) @ vh


def by_eigenvectors(x):
    w, v = anp.linalg.eig(x)
    return v * w[..., None, :] @ anp.linalg.inv(v)


def by_cholesky(x):
    a = x @ adjoint(x) + 9 * anp.eye(x.shape[-1], dtype=x.dtype)
    factor = anp.linalg.cholesky(a)
    return factor @ adjoint(factor) - a + x


def by_solution(x):
    return x @ anp.linalg.solve(x, x)


SQUARE = [(1, 1), (5, 5), (33, 33), (70, 5, 5), (9, 40, 40), (3, 140, 140)]
ANY = [(5, 3), (3, 5), (150, 33), (33, 150), (40, 7, 5), (11, 32, 20), (3, 50, 60)]
AGAIN = {
    "lu": (lower_upper, [(5, 5), (7, 3), (3, 7), (200, 200)]),
    "qr": (by_qr("reduced"), SQUARE + ANY),
    "complete qr": (by_qr("complete"), ANY),
    "svd": (by_svd, SQUARE + ANY),
    "eig": (by_eigenvectors, SQUARE),
    "cholesky": (by_cholesky, SQUARE),
    "solve": (by_solution, SQUARE),
}


@pytest.mark.cuda
@needs_gpu
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("name", AGAIN)
def test_on_a_gpu_factors_give_the_matrix_back(name, dtype):
    function, shapes = AGAIN[name]
    bound = 3e-4 if dtype in ("float32", "complex64") else 1e-11
    for shape in shapes:
        x = random(*shape, dtype=dtype)
        again = np.asarray(af.jit(function, device="cuda")(x))
        assert np.linalg.norm(again - x) <= bound * np.linalg.norm(x), shape


@pytest.mark.cuda
@needs_gpu
def test_on_a_gpu_what_has_no_factors_is_nan():
    good = random(6, 6)
    bad = good.copy()
    bad[2, 3] = np.nan
    functions = (
        anp.linalg.cholesky,
        anp.linalg.eigvalsh,
        anp.linalg.svdvals,
        anp.linalg.eigvals,
    )
    for function in functions:
        result = np.asarray(af.jit(function, device="cuda")(np.stack([bad, good])))
        assert np.isnan(result[0]).all(), function


@pytest.mark.parametrize("shape", [(5, 5), (1, 4, 4)], ids=str)
@pytest.mark.parametrize("dtype", [np.float64, np.complex128], ids=str)
@pytest.mark.parametrize("lower_triangle", [True, False], ids=["lower", "upper"])
@pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
def test_triangular_systems_are_solved_down_the_columns(
    left, lower_triangle, dtype, shape
):
    a = random(*shape, dtype=dtype) + 4 * np.eye(shape[-1])
    b = random(*shape[:-1], 3, dtype=dtype, seed=1)
    b = b if left else b.swapaxes(-1, -2).copy()

    def solutions(a, b):
        options = {"left_side": left, "lower": lower_triangle}
        return tuple(
            lax.linalg.triangular_solve(a, b, **options, **more)
            for more in (
                {},
                {"transpose_a": True},
                {"transpose_a": True, "conjugate_a": True},
                {"unit_diagonal": True},
            )
        )

    program = trace_function(solutions, (a, b), {}).program
    compiled = lower(program)
    assert all(name.startswith("trsm_") for name in providers(compiled))
    results = run_plan(compiled, (a, b))
    for have, want in zip(results, evaluate(program, (a, b)), strict=True):
        np.testing.assert_allclose(have, want, 1e-12, 1e-12)


def test_a_lower_triangle_by_columns_is_not_copied():
    solve = lax.linalg.triangular_solve
    (kernel,) = [
        k
        for k in lowered(solve, random(4, 4), random(99, 4)).kernels
        if isinstance(k, LibraryKernel)
    ]
    assert kernel.provider == "trsm_f64"


@pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
def test_systems_with_few_sides_are_solved_by_one_kernel(left, monkeypatch):
    monkeypatch.setattr(substitution, "MIN_ROWS", 1)
    monkeypatch.setattr(substitution, "_ROWS", {dtypes.float64: 16})
    a = random(34, 34) + 20 * np.eye(34)
    b = random(34, 9, seed=1)
    b = b if left else b.T.copy()

    def solution(a, b):
        options = {"left_side": left, "lower": left}
        return lax.linalg.triangular_solve(a, b, **options)

    program = trace_function(solution, (a, b), {}).program
    compiled = lower(program)
    (solve,) = [s for s in compiled.plan.steps if s.kernel.startswith("triangles")]
    assert solve.items == 3 * 2  # blocks of 16 rows, and of 8 sides
    (result,) = run_plan(compiled, (a, b))
    np.testing.assert_allclose(result, evaluate(program, (a, b))[0], 1e-12, 1e-12)


@needs_compiler
def test_the_kernel_of_triangular_systems_keeps_sums_in_registers():
    solve = lax.linalg.triangular_solve
    x = random(130, 130, dtype=np.float32)
    (kernel,) = [
        k for k in lowered(solve, x, x[:3]).kernels if k.name.startswith("triangles")
    ]
    assert ".local" not in kernel_ptx(kernel, (9, 0))


def test_large_matrices_are_factored_by_tiles(monkeypatch):
    n = 33
    monkeypatch.setattr(cholesky, "MAX_SMALL", {})
    monkeypatch.setattr(cholesky_tiles, "SIZE", 16)
    x = random(2, n, n)
    x = x @ x.swapaxes(-1, -2) + n * np.eye(n)
    x[1, n - 1, n - 1] = -1  # the very last pivot
    compiled = lowered(anp.linalg.cholesky, x)
    assert providers(compiled) == []
    (factor,) = run_plan(compiled, [x])
    np.testing.assert_allclose(factor[0], np.linalg.cholesky(x[0]), 1e-12, 1e-12)
    assert np.isnan(factor[1]).all()


@needs_compiler
def test_the_kernel_of_tiles_keeps_its_part_of_them_in_registers():
    x = positive_definite(200)
    (kernel, *_) = lowered(anp.linalg.cholesky, x).kernels
    assert kernel.name.startswith("cholesky")
    ptx = kernel_ptx(kernel, (9, 0))
    assert ".local" not in ptx
    assert ptx.count("fence.acq_rel.gpu") == 3


def positive_definite(n, dtype=np.float32):
    x = random(n, n)
    return (x @ x.T + n * np.eye(n)).astype(dtype)


@pytest.mark.cuda
@needs_gpu
@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=str)
def test_on_a_gpu_large_matrices_are_factored_by_tiles(dtype):
    run = af.jit(anp.linalg.cholesky, device="cuda")
    bound = 100 * np.finfo(dtype).eps
    for n in (129, 300, 1024):
        x = positive_definite(n, dtype)
        factor = np.asarray(run(x))
        wide = factor.astype(np.float64)
        assert np.linalg.norm(wide @ wide.T - x) <= bound * np.linalg.norm(x)
        assert all(np.asarray(run(x)).tobytes() == factor.tobytes() for _ in range(5))
        x[n // 2, n // 2] = -1
        assert np.isnan(np.asarray(run(x))).all()


@pytest.mark.cuda
@needs_gpu
@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=str)
@pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
def test_on_a_gpu_systems_with_few_sides_are_solved(left, dtype, monkeypatch):
    monkeypatch.setattr(substitution, "MIN_ROWS", 1)
    n = 300
    a = (random(n, n) + n * np.eye(n)).astype(dtype)
    b = random(2, n, 9, seed=1).astype(dtype)
    a = np.stack([a, a + np.eye(n, dtype=dtype)])
    b = b if left else b.swapaxes(-1, -2).copy()
    bound = 1e-5 if dtype == np.float32 else 1e-13
    for way in (True, False):
        options = {"left_side": left, "lower": way}
        run = lambda a, b, o=options: lax.linalg.triangular_solve(a, b, **o)  # noqa: E731
        x, again = (np.asarray(af.jit(run, device="cuda")(a, b)) for _ in range(2))
        triangle = np.tril(a) if way else np.triu(a)
        given = triangle @ x if left else x @ triangle
        np.testing.assert_allclose(given, b, bound, bound * np.abs(b).max())
        assert x.tobytes() == again.tobytes()


@pytest.mark.cuda
@needs_gpu
def test_on_a_gpu_spectra_of_matrices_that_are_not_large_are_parts_of_graphs():
    from_n = {n: spectra.eigh("f64", _of(n)).capturable for n in (100, 512, 600)}
    assert from_n == {100: True, 512: True, 600: False}
    run = af.jit(anp.linalg.eigh, device="cuda")
    for shape in ((100, 100), (3, 200, 200), (2, 512, 512)):
        x = random(*shape)
        x = x + x.mT
        given = device_put(x)
        results = [tuple(map(np.asarray, run(given))) for _ in range(6)]
        first = [part.tobytes() for part in results[0]]
        assert all([part.tobytes() for part in r] == first for r in results)
        values, vectors = results[-1]
        again = (vectors * values[..., None, :]) @ vectors.mT
        assert np.linalg.norm(again - x) <= 1e-12 * np.linalg.norm(x)


def _of(n):
    """Two matrices of ``n`` rows and their vectors, as a call of cuSOLVER has it."""
    return {"n": n, "matrices": 2, "vectors": 1}
