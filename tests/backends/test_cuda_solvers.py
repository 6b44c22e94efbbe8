"""Linear algebra on a GPU, without one: plans whose libraries LAPACK stands for."""

import numpy as np
import pytest

import arrayfn.numpy as anp
from arrayfn.backends.cuda.emulated_plan import run_plan
from arrayfn.functions import trace_function
from arrayfn.lowering.cuda.lower import lower
from arrayfn.lowering.plan import LibraryKernel
from arrayfn.primitives.calls import evaluate
from arrayfn.primitives.table import TABLE
from arrayfn.tracing import apply
from tests.lowering.kernels import assert_near
from tests.lowering.test_kernels_of_the_table import program_of_samples

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


def lowered(function, *arguments):
    return lower(trace_function(function, arguments, {}).program)


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
        program = trace_function(
            lambda x, s=sample: apply(row, x, **s.params), (x,), {}
        )
        yield x, run_plan(lower(program.program), [x])


def test_eigenvectors_are_the_rows_of_their_adjoint():
    for x, (vh, w) in samples(TABLE["eigh"]):
        lower_part = np.tril(x, -1)
        whole = lower_part + lower_part.conj().swapaxes(-1, -2)
        whole = whole + x.real * np.eye(x.shape[-1])
        v = vh.conj().swapaxes(-1, -2)
        bound = 1e-5 if x.dtype == np.float32 else 1e-13
        np.testing.assert_allclose((v * w[..., None, :]) @ vh, whole, bound, bound)


SHAPES = [(3, 3), (5, 2), (2, 5), (3, 4, 4), (2, 3, 6), (40, 33)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("full", [False, True], ids=["thin", "full"])
@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_singular_vectors_give_the_matrix_back(shape, full, dtype):
    x = random(*shape, dtype=dtype)
    compiled = lowered(lambda x: anp.linalg.svd(x, full_matrices=full), x)
    u, s, vh = run_plan(compiled, [x])
    k = min(shape[-2:])
    bound = 1e-13 if dtype == "float64" else 2e-5
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
