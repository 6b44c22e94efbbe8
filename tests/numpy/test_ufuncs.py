"""ufuncs: NumPy's methods of elementwise functions, traced and at once."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn.errors import (
    ArgumentError,
    DTypeError,
    InPlaceError,
    OutOfBoundsError,
    ShapeError,
)
from arrayfn.test_util import check_grads

X = np.array([[3.0, 1.0, 2.0, 5.0], [2.0, 4.0, 1.0, 3.0], [1.0, 6.0, 7.0, 2.0]])
WHOLE = X.astype(np.int32)

BINARY = ["add", "subtract", "multiply", "maximum", "fmin", "bitwise_xor", "divide"]
CALLS = {
    "reduce": lambda f, x: f.reduce(x, axis=1),
    "reduce_first": lambda f, x: f.reduce(x),
    "accumulate": lambda f, x: f.accumulate(x, axis=1),
    "reduceat": lambda f, x: f.reduceat(x, np.array([0, 3, 1]), axis=1),
    "outer": lambda f, x: f.outer(x[0], x[1]),
}


@pytest.mark.parametrize("call", list(CALLS))
@pytest.mark.parametrize("name", BINARY)
def test_methods_give_numpys_results(name: str, call: str) -> None:
    x = WHOLE if name == "bitwise_xor" else X
    wanted = CALLS[call](getattr(np, name), x)
    method = CALLS[call]
    for function in (method, af.jit(method, static_argnums=0)):
        made = function(getattr(anp, name), x)
        assert made.dtype == wanted.dtype
        np.testing.assert_allclose(made, wanted, rtol=1e-14)


@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "maximum", "divide"])
def test_at_combines_repeated_indices_in_order(name: str) -> None:
    index, other = np.array([0, 2, 0, 1]), np.array([2.0, 3.0, 4.0, 0.5])
    wanted = X[0].copy()
    getattr(np, name).at(wanted, index, other)
    ours = getattr(anp, name)

    def call(x: object, index: object, other: object) -> object:
        return ours.at(x, index, other, inplace=False)

    np.testing.assert_allclose(call(X[0], index, other), wanted)
    np.testing.assert_allclose(af.jit(call)(X[0], index, other), wanted)
    wanted = X[0].copy()
    np.negative.at(wanted, index)
    made = anp.negative.at(X[0], index, inplace=False)
    np.testing.assert_array_equal(made, wanted)


def test_numpys_ufunc_methods_are_traced() -> None:
    def f(x: object) -> object:
        return np.subtract.reduce(x, axis=1) + np.logaddexp.accumulate(x)[:, 0]

    np.testing.assert_allclose(af.jit(f)(X), f(X), rtol=1e-14)


def test_options_of_reduce() -> None:
    mask = X > 1.5
    options = {"axis": (0, 1), "keepdims": True}
    for name, more in (
        ("add", {"where": mask, "initial": 2.0, "dtype": np.float32}),
        ("maximum", {"where": mask, "initial": -1.0}),
        ("logaddexp", {"where": mask}),
        ("logical_and", {"where": mask}),
        ("hypot", {"initial": 3.0}),
    ):
        wanted = getattr(np, name).reduce(X, **options, **more)
        made = getattr(anp, name).reduce(X, **options, **more)
        assert (made.shape, made.dtype) == (wanted.shape, wanted.dtype)
        np.testing.assert_allclose(made, wanted, rtol=1e-6)
    made = anp.subtract.reduce(X, axis=1, where=mask, initial=100.0)
    wanted = np.subtract.reduce(X, axis=1, where=mask, initial=100.0)
    np.testing.assert_array_equal(made, wanted)
    assert anp.add.reduce(np.zeros((0, 2))).tolist() == [0, 0]
    assert anp.bitwise_or.reduce(np.zeros((0,), np.int32)) == 0


def test_methods_differentiate_and_map() -> None:
    index = np.array([0, 2, 0])
    for f in (
        lambda x: anp.divide.reduce(x, axis=1),
        lambda x: anp.multiply.accumulate(x, axis=1),
        lambda x: anp.logaddexp.reduceat(x, index, axis=1),
        lambda x: anp.divide.at(x, index, x[:, :4], inplace=False),
    ):
        check_grads(f, (X[:3],), order=1)
    mapped = af.vmap(anp.subtract.accumulate)(X)
    np.testing.assert_array_equal(mapped, np.subtract.accumulate(X, axis=1))


def test_frompyfunc_maps_and_combines() -> None:
    f = anp.frompyfunc(lambda x, y: 2 * x + y, 2, 1)
    theirs = np.frompyfunc(lambda x, y: 2 * x + y, 2, 1)
    assert (f.nin, f.nout, f.nargs, f.identity) == (2, 1, 3, None)
    np.testing.assert_array_equal(f(WHOLE, 1), theirs(WHOLE, 1))
    for call in CALLS.values():
        np.testing.assert_array_equal(call(f, WHOLE), call(theirs, WHOLE))
    both = anp.frompyfunc(lambda x: (x + 1, x * x), 1, 2)
    more, square = af.jit(both)(X)
    np.testing.assert_array_equal(more, X + 1)
    np.testing.assert_array_equal(square, X * X)
    with_identity = anp.frompyfunc(lambda x, y: x + y, 2, 1, identity=0)
    assert with_identity.reduce(X, axis=1, where=X > 4).tolist() == [5.0, 0.0, 13.0]


def test_ufuncs_are_ufuncs_and_pickle_by_name() -> None:
    assert isinstance(anp.exp, anp.ufunc)
    assert anp.abs is anp.absolute
    assert pickle.loads(pickle.dumps(anp.add)) is anp.add
    assert repr(anp.hypot) == "<ufunc hypot>"
    assert anp.frexp.nargs == 3


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: anp.exp.reduce(X), ArgumentError, "exp.reduce: it takes 1 array"),
        (lambda: anp.less.reduce(X), DTypeError, "gives bool"),
        (lambda: anp.subtract.reduce(X, axis=None), ArgumentError, "one axis after"),
        (lambda: anp.subtract.reduce(X[:0]), ShapeError, "give initial="),
        (lambda: anp.add.at(X, 0, 1.0), InPlaceError, "inplace=False"),
        (
            lambda: anp.add.at(X, 0, inplace=False),
            ArgumentError,
            "not given a second operand",
        ),
        (
            lambda: anp.add.reduceat(X, np.array([0, 7])),
            OutOfBoundsError,
            "index 7 is out of bounds for axis 0 with size 3",
        ),
        (
            lambda: anp.add.reduceat(X, np.array([0.5])),
            ShapeError,
            "vector of integers",
        ),
        (
            lambda: anp.frompyfunc(lambda x: x, 1, 2)(X),
            ArgumentError,
            "gave 1 result, not nout=2",
        ),
        (lambda: anp.frompyfunc(lambda x: x, 0, 1), ArgumentError, "nin is 0"),
    ],
)
def test_errors_name_the_remedy(
    call: object, error: type[Exception], words: str
) -> None:
    with pytest.raises(error) as caught:
        call()  # type: ignore[operator]
    assert words in str(caught.value)
    assert "test_ufuncs.py" in str(caught.value)
