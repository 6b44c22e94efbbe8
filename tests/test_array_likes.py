"""Arrays of other libraries as arguments, leaves, operands and captured values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import attrs
import numpy as np
import optree
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import tree
from arrayfn.dtypes import bfloat16
from arrayfn.errors import ArgumentError

X = np.arange(12.0).reshape(3, 4) / 7


@dataclass
class Tensor:
    """An array that speaks DLPack alone."""

    held: Any
    asked: int = 0

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, **options: Any) -> Any:
        self.asked += 1
        if self.held.dtype == bfloat16:
            return af.to_dlpack(self.held).__dlpack__()
        return self.held.__dlpack__(**options)


@dataclass
class Column:
    """An array that NumPy converts."""

    held: Any

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.asarray(self.held, dtype)


class Far(Tensor):
    """An array on a device that arrayfn has not."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return 10, 0


KINDS = [Tensor, Column]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["f4", "f8", "i4", "u1", "bool", "c16", bfloat16])
def test_arguments_and_leaves_of_jit(kind: Any, dtype: Any) -> None:
    x = X.astype(dtype)
    twice = af.jit(lambda tree: tree["x"] + tree["x"])
    for given in (x, x[::2, ::-1], x[:0], x[1, 1]):
        have = twice({"x": kind(np.asarray(given))})
        assert type(have) is np.ndarray
        assert have.dtype == given.dtype
        np.testing.assert_array_equal(have, given + given)


@pytest.mark.parametrize("kind", KINDS)
def test_transformations_take_them(kind: Any) -> None:
    def loss(x: Any) -> Any:
        return anp.sum(x * x)

    given = kind(X)
    np.testing.assert_array_equal(af.grad(loss)(given), 2 * X)
    np.testing.assert_array_equal(af.vmap(loss)(given), (X * X).sum(1))
    value, pull = af.vjp(loss, given)
    np.testing.assert_array_equal(pull(kind(np.asarray(value)))[0], 2 * X * value)
    assert str(af.typeof(given)) == "f64[3,4]"
    compiled = af.jit(loss).lower(given).compile()
    np.testing.assert_allclose(compiled(given), loss(X))


@pytest.mark.parametrize("kind", KINDS)
def test_captured_arrays_and_operands_of_traced_ones(kind: Any) -> None:
    given = kind(X)
    functions: list[Callable[[Any, Any], Any]] = [
        lambda x, y: x + y,
        lambda x, y: y * x,
        lambda x, y: x @ anp.transpose(y) + anp.exp(y)[0, 0],
        lambda x, y: anp.where(x > 1, y, x),
        lambda x, y: anp.concatenate([x, y]),
    ]
    for function in functions:
        traced = af.jit(lambda x, function=function: function(x, given))
        np.testing.assert_allclose(traced(X), function(X, X))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name",
    [
        "abs",
        "all",
        "any",
        "argmax",
        "argsort",
        "astype:f4",
        "atleast_2d",
        "average",
        "broadcast_to:(2,3,4)",
        "cumsum",
        "diff",
        "exp",
        "flip",
        "isnan",
        "max",
        "mean",
        "median",
        "min",
        "nonzero",
        "ones_like",
        "prod",
        "ravel",
        "repeat:2",
        "reshape:(4,3)",
        "roll:1",
        "round",
        "sort",
        "sqrt",
        "squeeze",
        "std",
        "sum",
        "tan",
        "transpose",
        "tril",
        "unique",
        "var",
        "zeros_like",
        "linalg.norm",
        "fft.fft",
        "add:1.5",
        "multiply:x",
        "matmul:(4,)",
        "dot:(4,)",
        "clip:0,1",
        "searchsorted_of",
        "take:0",
        "pad:1",
        "stack_of",
    ],
)
def test_functions_outside_a_trace(kind: Any, name: str) -> None:
    name, _, argument = name.partition(":")
    extra: list[Any] = []
    if argument == "x":
        extra = [kind(X)]
    elif argument == "(4,)":
        extra = [kind(X[0])]
    elif argument == "f4":
        extra = ["float32"]
    elif argument:
        made = eval(argument)
        extra = list(made) if argument == "0,1" else [made]
    first: Any = kind(X)
    if name.endswith("_of"):
        name = name.removesuffix("_of")
        first = [kind(X), kind(X)] if name == "stack" else kind(X[1])
        extra = [] if name == "stack" else [kind(X[1, 1:2])]
    function: Any = anp
    for part in name.split("."):
        function = getattr(function, part)
    plain = lambda x: x.held if isinstance(x, KINDS_TUPLE) else x  # noqa: E731
    want = function(
        [plain(x) for x in first] if type(first) is list else plain(first),
        *map(plain, extra),
    )
    have = function(first, *extra)
    for one, other in zip(tree.leaves(have), tree.leaves(want), strict=True):
        assert type(one) is np.ndarray
        np.testing.assert_array_equal(one, other)


KINDS_TUPLE = (Tensor, Column)


def test_memory_is_shared_until_it_is_computed_with() -> None:
    given = Tensor(X)
    assert np.shares_memory(af.from_dlpack(given), X)
    half = X.astype(bfloat16)
    shared = af.from_dlpack(Tensor(half))
    assert shared.dtype == bfloat16
    assert np.shares_memory(shared, half)
    del half
    np.testing.assert_array_equal(shared, X.astype(bfloat16))
    assert not np.shares_memory(anp.from_dlpack(given), X)
    assert np.shares_memory(anp.from_dlpack(given, copy=False), X)


def test_what_cannot_be_read_says_why() -> None:
    double = af.jit(lambda x: x * 2)
    with pytest.raises(ArgumentError, match=r"Column cannot be read: .* of object"):
        double(Column(np.array([{}])))
    with pytest.raises(ArgumentError, match="on a device of DLPack's kind 10"):
        double(Far(X))
    with pytest.raises(
        ArgumentError, match=r"Column cannot be read: could not convert"
    ):
        anp.exp(Column(_Raising()))
    with pytest.raises(ArgumentError, match="takes an object with __dlpack__"):
        af.from_dlpack([1.0])
    with pytest.raises(ArgumentError, match="is str"):
        double("a")


class _Raising:
    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise ValueError("could not convert")


@optree.dataclasses.dataclass(namespace="somewhere")
class Layer:
    w: Any
    name: str = optree.dataclasses.field(pytree_node=False, default="a")


@tree.register_dataclass
@attrs.frozen
class Model:
    _layers: Any
    rate: float = attrs.field(default=1.0, metadata={"static": True})


@attrs.define
class Plain:
    x: Any


def test_classes_of_optree_and_attrs_are_trees() -> None:
    given = Layer(X, "b")
    made = af.jit(lambda layer: tree.map(lambda x: x + 1, layer))(given)
    assert (type(made), made.name) == (Layer, "b")
    np.testing.assert_array_equal(made.w, X + 1)
    model = Model([X, 2 * X], rate=0.5)
    slope = af.grad(lambda m: sum(anp.sum(x) for x in m._layers) * m.rate)(model)
    assert (type(slope), slope.rate) == (Model, 0.5)
    np.testing.assert_array_equal(slope._layers[1], 0.5)
    assert tree.leaves(Model(1.0)) == [1.0]
    with pytest.raises(ArgumentError, match=r"is Plain .* not registered as a tree"):
        af.jit(lambda m: m.x)(Plain(X))


def test_pytorch() -> None:
    torch = pytest.importorskip("torch")
    x = torch.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(af.jit(lambda x: x * 2)(x), 2 * x.numpy())
    np.testing.assert_array_equal(anp.exp(x.T), np.exp(x.numpy().T))
    assert np.shares_memory(af.from_dlpack(x), x.numpy())
    with pytest.raises(ArgumentError, match="detach"):
        af.jit(lambda x: x)(x.requires_grad_())
    half = torch.arange(4.0).to(torch.bfloat16)
    doubled = af.jit(lambda x: x + x)(half)
    assert doubled.dtype == bfloat16
    back = torch.from_dlpack(af.to_dlpack(doubled))
    assert back.dtype == torch.bfloat16
    assert back.tolist() == [0.0, 2.0, 4.0, 6.0]


def test_jax() -> None:
    jnp = pytest.importorskip("jax.numpy")
    x = jnp.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(af.jit(lambda t: t[0] * 2)([x]), 2 * np.asarray(x))
    half = jnp.ones(3, jnp.bfloat16)
    assert af.jit(lambda x: x + x)(half).dtype == bfloat16


def test_pandas_xarray_and_h5py(tmp_path: Any) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0], "c": ["x", "y"]})
    np.testing.assert_array_equal(af.jit(anp.cumsum)(frame["a"]), [1, 3])
    np.testing.assert_array_equal(anp.sum(frame[["a", "b"]], axis=0), [3, 7])
    with pytest.raises(ArgumentError, match=r"DataFrame cannot be read: .* of object"):
        af.jit(anp.exp)(frame)
    xarray = pytest.importorskip("xarray")
    data = xarray.DataArray(X, dims=("x", "y"))
    np.testing.assert_array_equal(af.jit(anp.exp)(data), af.jit(anp.exp)(X))
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "file.h5", "w") as file:
        held = file.create_dataset("x", data=X)
        np.testing.assert_array_equal(af.jit(lambda x: x + 1)(held), X + 1)
