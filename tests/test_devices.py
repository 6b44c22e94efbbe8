"""Arrays on a device outside ``jit``: what is computed of them is computed there.

The device is simulated (see ``tests/backends/device.py``), or what ``--device`` names;
functions of ``arrayfn.numpy`` are walked on it where they are compared with NumPy's.
"""

from __future__ import annotations

import copy
import operator
from typing import Any

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import lax, nn, random, tree
from arrayfn.compilation import immediate
from arrayfn.errors import ArgumentError, BackendError, InPlaceError
from arrayfn.tracing import ArrayOnDevice
from tests.backends.device import SimulatedArray

X = np.random.default_rng(0).standard_normal((3, 4))
SQUARE = X[:, :3] @ X[:, :3].T + 3 * np.eye(3)


def assert_there(result: Any, expected: Any) -> None:
    """All leaves are on the device, and have the values, shapes and dtypes."""
    leaves, wanted = tree.leaves(result), tree.leaves(expected)
    assert len(leaves) == len(wanted)
    for leaf, want in zip(leaves, wanted, strict=True):
        assert isinstance(leaf, ArrayOnDevice)
        have = np.asarray(leaf)
        assert (have.shape, have.dtype) == (np.shape(want), np.asarray(want).dtype)
        np.testing.assert_allclose(have, want, 1e-12, 1e-12)


BINARY = [
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
    operator.floordiv,
    operator.mod,
    operator.lt,
    operator.ge,
    operator.eq,
    divmod,
]


@pytest.mark.parametrize("function", BINARY)
def test_operators_take_numpys_arrays_and_numbers_on_either_side(there, function):
    x, y = X, X[0] + 2.5
    for left, right in ((x, y), (x, 1.5), (1.5, x)):
        expected = function(left, right)
        put = [there(v) if isinstance(v, np.ndarray) else v for v in (left, right)]
        assert_there(function(*put), expected)
        if isinstance(right, np.ndarray) and isinstance(left, np.ndarray):
            assert_there(function(left, put[1]), expected)
            assert_there(function(put[0], right), expected)


def test_other_operators_methods_and_properties(there):
    x = there(X)
    assert_there(x @ x.T, X @ X.T)
    assert_there(X @ x.mT, X @ X.T)
    assert_there((-x, +x, abs(x), x**2), (-X, +X, abs(X), X**2))
    assert_there(~(x > 0) & (x < 1), ~(X > 0) & (X < 1))
    assert_there((x.sum(), x.mean(0), x.max(1)), (X.sum(), X.mean(0), X.max(1)))
    assert_there((x.argmax(), x.argsort(1)), (X.argmax(), X.argsort(1)))
    assert_there((x.reshape(2, 6), x.ravel()), (X.reshape(2, 6), X.ravel()))
    assert_there(x.astype(np.float32), X.astype(np.float32))
    assert (x.ndim, x.size, x.nbytes, x.itemsize, len(x)) == (2, 12, 96, 8, 3)
    assert x.__array_namespace__() is anp


def test_promotion_is_that_of_numpys_arrays(there):
    narrow = there(X.astype(np.float32))
    assert (narrow * 2.0).dtype == np.float32
    assert (narrow + X).dtype == np.float64
    assert (narrow * np.float64(2)).dtype == np.float64
    assert (there(np.arange(3)) * 2.5).dtype == np.float64


INDICES = {
    "number": np.index_exp[1],
    "last": np.index_exp[-1, 2],
    "slice": np.index_exp[1:, :-1],
    "steps": np.index_exp[::2, ::-1],
    "part backwards": np.index_exp[:, 2:0:-1],
    "new axis": np.index_exp[None, ..., 0],
    "array": np.index_exp[np.array([2, 0, 2])],
    "arrays": np.index_exp[np.array([2, 0]), np.array([-1, 1])],
    "mask": np.index_exp[X > 0],
    "mask of rows": np.index_exp[np.array([True, False, True]), 1:],
    "nothing": np.index_exp[3:, 1:1],
}


@pytest.mark.parametrize("index", INDICES.values(), ids=INDICES)
def test_indexing(there, index):
    x = there(X)
    assert_there(x[index], X[index])
    put = tuple(there(i) if isinstance(i, np.ndarray) else i for i in index)
    assert_there(x[put], X[index])
    assert_there(anp.asarray(X)[index] + x[put], 2 * X[index])
    expected = X.copy()
    np.add.at(expected, index, 1.5)
    assert_there(x.at[put].add(1.5), expected)
    expected[index] = X[index] * 2
    assert_there(x.at[put].set(X[index] * 2), expected)


def test_known_indices_out_of_bounds_are_errors_and_others_are_filled(there):
    x = there(X)
    with pytest.raises(IndexError, match="index 3 is out of bounds for axis 0"):
        x[3]
    with pytest.raises(IndexError, match="index 7 is out of bounds for axis 1"):
        x[:, np.array([0, 7])]
    reads = SimulatedArray.reads
    beyond = x[there(np.array([0, 7]))]
    assert SimulatedArray.reads == reads
    assert np.isnan(np.asarray(beyond)[1]).all()


def test_rows_are_taken_by_one_compiled_operation(there):
    x = there(np.arange(300.0).reshape(100, 3))
    x[0]
    known = len(immediate._device_cache._executables)
    assert [row.tolist() for row in x] == np.arange(300.0).reshape(100, 3).tolist()
    assert len(immediate._device_cache._executables) == known


FUNCTIONS = {
    "where": lambda x: anp.where(x > 0, x, 0.0),
    "concatenate": lambda x: anp.concatenate([x, X]),
    "zeros_like": anp.zeros_like,
    "softmax": nn.softmax,
    "gelu": nn.gelu,
    "logsumexp": lambda x: af.scipy.special.logsumexp(x, axis=1),
    "gammaln": lambda x: af.scipy.special.gammaln(x + 5),
    "pdf": af.scipy.stats.norm.pdf,
    "rfft": af.fft.rfft,
    "solve": lambda x: af.linalg.solve(SQUARE, x),
    "cholesky": lambda x: af.linalg.cholesky(x @ x.T + 3 * np.eye(3)),
    "scan": lambda x: lax.scan(lambda c, r: (c + r, c.sum()), x[0], x),
    "while_loop": lambda x: lax.while_loop(lambda v: v.sum() < 50, lambda v: v * 2, x),
    "fori_loop": lambda x: lax.fori_loop(0, 3, lambda k, v: v + k, x),
    "cond": lambda x: lax.cond(x[0, 0] > 0, anp.sin, anp.cos, x),
    "top_k": lambda x: lax.top_k(x, 2),
    "einsum": lambda x: anp.einsum("ij,kj->ik", x, X),
    "unique": lambda x: anp.unique(anp.round(x)),
    "nonzero": lambda x: anp.nonzero(x > 0),
    "numpy": lambda x: np.exp(x) + np.sum(x, axis=0),
    "grad": af.grad(lambda v: anp.sum(anp.sin(v) * X)),
    "value_and_grad": af.value_and_grad(lambda v: (v @ X.T).sum()),
    "jvp": lambda x: af.jvp(anp.sin, (x,), (X,)),
    "vjp": lambda x: af.vjp(anp.tanh, x)[1](X),
    "vmap": af.vmap(lambda row: row / row.sum()),
    "vmap of rows": lambda x: af.vmap(lambda row, k: row * k, (0, None))(x, 2.0),
    "hessian": lambda x: af.hessian(lambda v: anp.sum(v**3))(x[0]),
    "jacfwd": lambda x: af.jacfwd(lambda v: anp.cumsum(v**2))(x[0]),
    "a path": lambda x: af.grad(lambda v: v[0] * 2 if v[0] > 0 else v[1] * 5)(x[0]),
    "checkpoint": af.grad(lambda v: af.checkpoint(anp.sin)(v).sum()),
    "closure": lambda x: af.grad(lambda v: (v * x).sum())(X),
    "tree.map": lambda x: tree.map(anp.add, {"a": x, "b": [x]}, {"a": X, "b": [x]}),
    "callback": lambda x: af.pure_callback(lambda v: 2 * v, X, x),
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_functions_compute_where_the_array_is(there, function):
    assert_there(function(there(X)), function(X))


def test_a_derivative_runs_as_a_whole(there):
    def loss(w):
        return anp.sum(anp.tanh(X @ w) ** 2)

    w = there(X.T[:, :2])
    af.grad(loss)(w)
    known = len(immediate._device_cache._executables)
    af.grad(loss)(w)
    assert len(immediate._device_cache._executables) == known


def test_operators_with_kernels_are_one_operation(there):
    @af.operator(name="test_devices_twice")
    def twice(x):
        return x + x

    known = len(immediate._device_cache._executables)
    assert_there(twice(there(X)), 2 * X)
    assert len(immediate._device_cache._executables) == known + 1


def test_jit_follows_its_arguments(device, there):
    f = af.jit(lambda x, y: x * 2 + y)
    x = there(X)
    for _ in range(2):
        assert isinstance(f(X, X), np.ndarray)
        assert_there(f(x, X), 3 * X)
        assert_there(f(X, x), 3 * X)
    assert_there(af.jit(lambda y: y + x)(X), 2 * X)
    assert isinstance(af.jit(lambda y: y * 2, device="cpu")(x), np.ndarray)
    assert_there(af.jit(lambda y: y * 2, device=device)(X), 2 * X)


def test_random_numbers_are_made_where_the_key_is(there):
    key = random.key(3)
    for draw in (random.normal, random.uniform, random.bits):
        drawn = draw(there(key), (5,))
        assert isinstance(drawn, ArrayOnDevice)
        assert_there(drawn, draw(key, (5,)))
    assert_there(random.split(there(key)).data, random.split(key).data)


def test_arrays_are_made_on_a_device(device, there):
    for make in (
        lambda **where: anp.zeros((2, 3), **where),
        lambda **where: anp.full(3, 7, **where),
        lambda **where: anp.arange(5.0, **where),
        lambda **where: anp.linspace(0, 1, 5, **where),
        lambda **where: anp.eye(3, **where),
        lambda **where: anp.asarray([1, 2], **where),
    ):
        assert_there(make(device=device), make())
    assert isinstance(anp.zeros_like(there(X), device="cpu"), np.ndarray)


def test_moves_between_devices(device, there):
    x = there({"a": X, "b": (1.5,)})
    assert isinstance(x["b"][0], ArrayOnDevice)
    assert x["a"].to_device(device) is x["a"]
    np.testing.assert_array_equal(x["a"].to_device("cpu"), X)
    np.testing.assert_array_equal(af.device_get(x)["a"], X)
    with pytest.raises(ArgumentError, match=f"between '{device}' and 'cpu', not to"):
        x["a"].to_device("tpu")
    with pytest.raises(BackendError, match="there is no backend 'tpu'"):
        af.device_put(X, "tpu")


class _Elsewhere(SimulatedArray):
    @property
    def device(self) -> str:
        return "elsewhere"


def test_arrays_on_two_devices_are_an_error(device, there):
    with pytest.raises(ArgumentError, match=f"two devices, '{device}' and 'elsewhere'"):
        there(X) + _Elsewhere(X)


def test_copies_are_other_memory(there):
    x = there(X)
    for other in (x.copy(), anp.copy(x)):
        assert other is not x
        assert_there(other, X)
    assert anp.asarray(x) is x
    assert copy.copy(x) is not None


def test_what_would_change_an_array_says_what_to_write(there):
    x = there(X)
    with pytest.raises(InPlaceError, match=r"on a .*x = x\.at\[index\]\.set\(y"):
        x[0] = 1.0
    with pytest.raises(InPlaceError, match=r"x\.at\[index\]\.add\(y\)"):
        np.add(X, x, out=X)
    with pytest.raises(InPlaceError, match=r"write x = arrayfn.numpy.sort\(x\)"):
        x.sort()
    with pytest.raises(ArgumentError, match=r"numpy.asarray\(x\) copies the array"):
        np.isnat(x)
    with pytest.raises(TypeError, match="unhashable"):
        hash(x)
    y = x
    y += 1
    assert_there(y, X + 1)
    assert_there(x, X)


def test_without_a_device_arrays_go_to_the_gpu_if_there_is_one():
    put = af.device_put({"x": [1.0, X]})
    has_gpu = af.is_backend_available("cuda")
    assert isinstance(put["x"][1], ArrayOnDevice if has_gpu else np.ndarray)
    np.testing.assert_array_equal(put["x"][1], X)
