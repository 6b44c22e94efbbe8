"""Sparse matrices beside the same dense ones: values, derivatives, mapping, looks."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import scipy.sparse

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import tree
from arrayfn.backends.cpu.unjitted import run_unjitted
from arrayfn.compilation.jit import jit
from arrayfn.errors import (
    AbstractValueError,
    ArgumentError,
    DifferentiationError,
    ShapeError,
)
from arrayfn.sparse import COO, CSC, CSR
from arrayfn.transforms import grad, jacfwd, jvp, vjp, vmap

RNG = np.random.default_rng(3)


def random(m: int, n: int) -> Any:
    return RNG.normal(size=(m, n)) * (RNG.random((m, n)) < 0.5)


A, B = random(5, 4), random(5, 4)
X, Y = RNG.normal(size=(4, 3)), RNG.normal(size=5)


@pytest.fixture(params=[CSR, CSC, COO])
def form(request: pytest.FixtureRequest) -> Any:
    return request.param


def same(have: Any, want: Any) -> None:
    have = have.toarray() if hasattr(have, "toarray") else have
    np.testing.assert_allclose(have, want, rtol=1e-12, atol=1e-14)


PRODUCTS = {
    "vector": lambda a: a @ X[:, 0],
    "matrix": lambda a: a @ X,
    "from the left": lambda a: Y @ a,
    "of the transpose": lambda a: X.T @ a.T,
    "rank 0": lambda a: 2.0 * a / 3.0,
    "dense elements": lambda a: a * X[:, 0],
    "power": lambda a: abs(a) ** 1.5,
    "ufunc": np.sin,
    "sum": lambda a: a.sum(),
    "sum of columns": lambda a: a.sum(axis=0),
    "mean of rows": lambda a: a.mean(axis=1),
    "diagonal": lambda a: a.diagonal(),
    "diagonal below": lambda a: a.diagonal(-2),
    "row": lambda a: a[-1],
    "column": lambda a: a[:, 2],
    "element": lambda a: a[2, 3],
    "transpose": lambda a: a.T,
    "dense sum": lambda a: a + B,
    "negative": lambda a: -a,
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_functions_are_those_of_the_dense_matrix(form: Any, name: str) -> None:
    function = PRODUCTS[name]
    same(function(form(A)), function(A))
    same(jit(function)(form(A)), function(A))


PAIRS = {
    "sum": lambda a, b: a + b,
    "difference": lambda a, b: a - b,
    "product of elements": lambda a, b: a * b,
    "product": lambda a, b: a @ b.T,
    "rows": lambda a, b: a[1:4],
    "chosen rows and columns": lambda a, b: a[[2, 0, 2]][:, ::2],
}


@pytest.mark.parametrize("name", PAIRS)
def test_results_with_new_patterns_are_those_of_dense_matrices(
    form: Any, name: str
) -> None:
    function = PAIRS[name]
    a, b = form(A), form(B)
    have = function(a, b)
    assert type(have) is form
    same(have, function(A, B))
    # Values may be traced where positions are known.
    of_data = jit(lambda x, y: function(a.with_data(x), b.with_data(y)).toarray())
    same(of_data(a.data, b.data), function(A, B))


def test_conversions_keep_the_matrix(form: Any) -> None:
    a = form(A)
    for name in ("tocsr", "tocsc", "tocoo"):
        same(getattr(a, name)(), A)
        same(jit(lambda a, name=name: getattr(a, name)())(a), A)
    theirs = a.toscipy()
    assert theirs.format == a.format
    same(theirs, A)
    for given in (theirs, scipy.sparse.csc_matrix(A), a.tocoo()):
        same(form(given), A)
    same(jit(lambda x: form.fromdense(x, nse=20).toarray())(A), A)
    assert form(A, dtype=np.float32).dtype == np.float32


def test_a_matrix_of_scipy_is_not_changed(form: Any) -> None:
    # One position twice, and positions out of order.
    data = np.array([4.0, 1.0, 2.0, 5.0])
    first, starts = np.array([1, 0, 0, 1]), np.array([0, 3, 4])
    theirs: Any
    if form is COO:
        second = np.array([0, 1, 1, 1])
        theirs = scipy.sparse.coo_array((data, (first, second)), shape=(2, 2))
    else:
        make = scipy.sparse.csr_array if form is CSR else scipy.sparse.csc_array
        theirs = make((data, first, starts), shape=(2, 2))
    names = ("row", "col") if form is COO else ("indices", "indptr")
    arrays = [getattr(theirs, name) for name in ("data", *names)]
    before, dense = [x.copy() for x in arrays], theirs.toarray()
    made = form(theirs)
    same(made, dense)
    assert (made.nnz, theirs.nnz) == (3, 4)
    for name, x, want in zip(("data", *names), arrays, before, strict=True):
        assert getattr(theirs, name) is x
        assert x.tolist() == want.tolist()
    # A matrix in order shares its arrays.
    ordered = form(A).toscipy()
    ordered.sum_duplicates()
    assert np.shares_memory(form(ordered).data, ordered.data)


def cubes(a: Any, x: Any) -> Any:
    return ((a @ x) ** 3).sum()


@pytest.mark.parametrize("wrap", [lambda f: f, jit])
def test_gradients_are_the_dense_ones_at_the_entries(form: Any, wrap: Any) -> None:
    a, x = form(A), X[:, 0]
    by_matrix, by_vector = wrap(grad(cubes, (0, 1)))(a, x)
    want = grad(cubes, (0, 1))(A, x)
    assert type(by_matrix) is form
    same(by_matrix, want[0] * (A != 0))
    same(by_vector, want[1])

    def second(a: Any, x: Any) -> Any:
        return (grad(cubes, 1)(a, x) ** 2).sum()

    have = wrap(grad(second, (0, 1)))(a, x)
    want = grad(second, (0, 1))(A, x)
    same(have[0], want[0] * (A != 0))
    same(have[1], want[1])


def test_directional_derivatives_keep_positions(form: Any) -> None:
    a, x = form(A), X[:, 0]
    value, (by_matrix,) = vjp(lambda a: a @ x, a)[0], vjp(lambda a: a @ x, a)[1](Y)
    same(value, A @ x)
    same(by_matrix, np.outer(Y, x) * (A != 0))
    same(jvp(lambda a: a @ x, (a,), (2 * a,))[1], 2 * A @ x)
    with pytest.raises(DifferentiationError, match="is i32"):
        jacfwd(lambda a: a @ x)(a)


def test_mapping_of_vectors_and_of_matrices(form: Any) -> None:
    a = form(A)
    same(vmap(cubes, (None, 0))(a, X.T), vmap(cubes, (None, 0))(A, X.T))
    stacked = tree.map(lambda *x: np.stack(x), a, 2 * a)
    same(vmap(cubes, (0, None))(stacked, Y[:4]), [cubes(A, Y[:4]), cubes(2 * A, Y[:4])])
    assert repr(stacked) == f"{form.__name__} f64[5,4], {a.nnz} entries (50 %)"


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("width", [None, 3])
def test_large_products_are_loops_over_entries(
    form: Any, dtype: Any, index: Any, width: Any
) -> None:
    large = scipy.sparse.random_array((90, 70), density=0.2, random_state=RNG)
    x = RNG.normal(size=70 if width is None else (70, width)).astype(dtype)
    a = form(large, dtype=dtype)
    a = a.with_arrays(a.data, tuple(p.astype(index) for p in a.positions), a.shape)
    multiply = jit(lambda a, x: a @ x)
    lowered = multiply.lower(a, x)
    (kernel,) = lowered.compiled_program.kernels
    assert kernel.provider.startswith(f"sparse_{a.format}_")
    want = large.toarray() @ x.astype(np.float64)
    near = (
        {"rtol": 1e-5, "atol": 1e-5}
        if dtype == np.float32
        else {"rtol": 1e-12, "atol": 1e-12}
    )
    np.testing.assert_allclose(multiply(a, x), want, **near)
    leaves = [*tree.leaves(a), x]
    (unjitted,) = run_unjitted(lowered.compiled_program, leaves)
    np.testing.assert_allclose(unjitted, want, **near)
    gradient = jit(grad(lambda x, a: ((a @ x) ** 2).sum()))(x, a)
    np.testing.assert_allclose(gradient, 2 * large.toarray().T @ want, **near)


def test_a_saved_product_is_loaded_without_the_module(tmp_path: Any) -> None:
    a = CSR(2.0 * np.eye(600))
    af.save(jit(lambda x: a @ x).lower(np.ones(600)), tmp_path / "product")
    code = (
        "import sys, numpy, arrayfn\n"
        f"product = arrayfn.load({str(tmp_path / 'product')!r})\n"
        "print(product(numpy.ones(600))[:2], 'arrayfn.sparse' in sys.modules)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert run.stdout == "[2. 2.] False\n"


def test_loops_leave_padding_out_and_touch_nothing_outside(form: Any) -> None:
    count, rng = 2000, np.random.default_rng(1)
    first, second = (rng.integers(-3, 40, count, np.int32) for _ in range(2))
    if form is not COO:
        # Pointers that go past the entries, and down.
        second = np.concatenate([[0], rng.integers(0, 2 * count, 29), [count]])
        second = second.astype(np.int32)
    a = CSR(np.eye(30)).asformat(form.format)
    a = a.with_arrays(rng.normal(size=count), (first, second), (30, 30))
    have = jit(lambda a: a @ np.ones(30))(a)
    assert np.isfinite(have).all()
    if form is COO:
        kept = (first >= 0) & (first < 30) & (second >= 0) & (second < 30)
        want = np.zeros(30)
        np.add.at(want, first[kept], a.data[kept])
        same(have, want)


def test_entries_outside_of_the_matrix_are_padding() -> None:
    rows, columns = np.array([0, 1, 2, 1]), np.array([1, 3, 0, -1])
    a = COO((np.ones(4), (rows, columns)), (2, 3))
    want = np.array([[0.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    for f in (lambda a: a.toarray(), lambda a: a @ np.eye(3), lambda a: a.tocsr()):
        same(f(a), want)
        same(jit(f)(a), want)
    short = CSR((np.ones(3), np.array([1, 0, 0]), np.array([0, 1, 1])), (2, 3))
    same(short.toarray(), want)
    same(jit(lambda a: a @ np.eye(3))(short), want)


def test_entries_at_one_position_add_up() -> None:
    twice = COO((np.array([2.0, 3.0, 4.0]), ([0, 0, 1], [1, 1, 0])), (2, 2))
    want = np.array([[0.0, 5.0], [4.0, 0.0]])
    same(twice, want)
    same(twice.tocsr(), want)
    assert twice.sum_duplicates().nnz == 2
    same(twice**2, want**2)
    same(jit(lambda a: a.tocsr())(twice), want)
    same(jit(lambda a: a + a)(twice), 2 * want)
    same(jit(lambda a: a**2)(twice), want**2)


def test_integers_halves_and_empty_matrices() -> None:
    whole = CSR(np.array([[1, 0], [2, 3]]))
    assert (whole @ np.array([1, 1])).tolist() == [1, 5]
    assert jit(lambda a: a @ np.array([1, 1]))(whole).tolist() == [1, 5]
    half = jit(lambda a: a @ np.ones(2, np.float16))(whole.astype(np.float16))
    assert half.dtype == np.float16
    assert half.tolist() == [1.0, 5.0]
    for shape in ((0, 3), (3, 0)):
        same(CSR(shape) @ np.ones(shape[1]), np.zeros(shape[0]))
    complexes = CSC(A * (1 + 2j))
    same(complexes @ X, A @ X * (1 + 2j))
    same(complexes.conj().T, (A * (1 - 2j)).T)


def test_a_matrix_shows_its_entries() -> None:
    small = CSR(np.array([[1.5, 0.0], [0.0, -2.0]]))
    assert repr(small) == "CSR f64[2,2], 2 entries (50 %)\n  1.5  .\n    . -2"
    large = COO((np.arange(8.0), (np.arange(8), np.arange(8))), (100, 100))
    assert repr(large).splitlines()[1:] == [
        *(f"  ({k}, {k})  {k}" for k in range(5)),
        "  ...",
        "  (7, 7)  7",
    ]
    assert small._repr_html_().count("<rect") == 2


def test_what_does_not_fit_is_refused() -> None:
    a = CSR(A)
    with pytest.raises(ShapeError, match=r"multiplies vectors \(4,\)"):
        a @ np.ones(5)
    with pytest.raises(ShapeError, match="pointers"):
        CSR((np.ones(2), np.array([0, 1]), np.array([0, 1])), (2, 2))
    with pytest.raises(ArgumentError, match="positions must be integers"):
        COO((np.ones(1), (np.zeros(1), np.zeros(1))), (2, 2))
    with pytest.raises(ArgumentError, match="indptr of a CSR matrix ascends"):
        CSR((np.ones(2), np.array([0, 1]), np.array([0, 3, 2])), (2, 2)) @ np.ones(2)
    with pytest.raises(AbstractValueError, match=r"A\.with_data"):
        jit(lambda a: a @ a.T)(a)
    with pytest.raises(ArgumentError, match="does not take a sparse"):
        np.cos(a)
    with pytest.raises(ArgumentError, match="does not become dense"):
        np.asarray(a)
    with pytest.raises(ArgumentError, match="is dense"):
        a + 1.0
    with pytest.raises(IndexError, match="row 5"):
        a[5]
    assert anp.sum((a + 0).data) == anp.sum(a.data)
