"""What transformations take besides arrays, and what they refuse."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import random
from arrayfn.errors import ArgumentError, DifferentiationError, ShapeError

X = np.arange(3.0)
LIKE_X = SimpleNamespace(shape=(3,), dtype=np.dtype(np.float64))


def test_objects_with_a_shape_and_a_dtype_stand_for_arrays():
    shape = af.eval_shape(lambda x, y: x[:, None] * y, LIKE_X, LIKE_X)
    assert shape == af.ShapeDtypeStruct((3, 3), np.float64)
    assert af.make_program(lambda x: x + 2.0)(LIKE_X).input_types[0].shape == (3,)
    (transposed,) = af.linear_transpose(lambda x: 2.0 * x, LIKE_X)(X)
    assert transposed.tolist() == [0.0, 2.0, 4.0]


def test_a_traced_array_has_a_stand_in():
    like = []
    af.jit(lambda x: like.append(af.ShapeDtypeStruct.like(x)) or x)(X)
    assert like == [af.ShapeDtypeStruct((3,), np.float64)]


@pytest.mark.parametrize(
    ("make", "want"),
    [
        (lambda f, x: af.linearize(f, x)[1], 8.0),
        (lambda f, x: lambda y: af.linear_transpose(f, x)(y)[0], 8.0),
        (lambda f, x: lambda y: af.vjp(f, x)[1](y)[0], 8.0),
    ],
)
def test_linear_maps_are_trees(make, want):
    assert make(lambda x: 2.0 * x, 3.0)(4.0) == want
    for transform in (af.linearize, af.linear_transpose, af.vjp):
        made = af.jit(lambda x, t=transform: t(lambda y: 2.0 * y, x))(3.0)
        linear = made if transform is af.linear_transpose else made[1]
        moved = af.jit(lambda f, y: f(y))(linear, 4.0)
        assert af.tree.leaves(moved) == [8.0]


def test_vmap_passes_on_objects_that_are_not_mapped():
    def apply(f, x, options):
        return f(x) * options["scale"]

    axes = (None, 0, None)
    mapped = af.vmap(apply, axes)(np.square, X, {"scale": 2.0, "name": "twice"})
    assert mapped.tolist() == [0.0, 2.0, 8.0]
    with pytest.raises(ArgumentError, match="an argument of apply is str"):
        af.vmap(apply, (None, 0, {"scale": None, "name": 0}))(
            np.square, X, {"scale": 2.0, "name": "twice"}
        )


def test_axes_of_keys_are_counted_without_their_words():
    keys = random.split(random.key(0), 6).reshape(2, 3)
    draw = af.vmap(lambda k: random.uniform(k, ()))
    want = draw(keys[:, 1])
    assert af.vmap(draw, in_axes=-1, out_axes=-1)(keys)[:, 1].tolist() == want.tolist()
    turned = af.vmap(lambda k: k, in_axes=0, out_axes=-1)(keys)
    assert turned.shape == (3, 2)
    assert bool((turned == keys.T).all())
    with pytest.raises(ShapeError, match=r"axis 2 .* does not exist"):
        af.vmap(draw, in_axes=2)(keys)


def test_pmap_maps_keyword_arguments():
    f = af.pmap(lambda x, y: x - y)
    assert np.asarray(f(np.ones(1), y=np.full(1, 3.0))).tolist() == [-2.0]


class _WithoutSignature:
    @property
    def __signature__(self):
        raise TypeError

    def __call__(self, x):
        return x


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: af.vmap(np.sin, in_axes=False), "not False"),
        (lambda: af.vmap(np.sin, in_axes={"x": 0}), r"not \{'x': 0\}"),
        (lambda: af.pmap(np.sin, in_axes=True), "not True"),
        (lambda: af.ShapeDtypeStruct((), None), "needs a dtype"),
        (lambda: af.jit(staticmethod(np.sin)), "write @staticmethod above @jit"),
        (lambda: af.jit(lambda x: (yield x)), "not the generator function"),
        (
            lambda: af.jit(lambda x: x, static_argnums=0, donate_argnums=0),
            "'x' is static and donated",
        ),
        (
            lambda: af.jit(_WithoutSignature(), donate_argnames="x"),
            r"has no signature .* give donate_argnums",
        ),
        (
            lambda: af.jit(lambda x, /: x, static_argnames="x"),
            r"<lambda>\(x\) takes it by position",
        ),
    ],
)
def test_refusals_name_the_remedy(make, message):
    with pytest.raises(ArgumentError, match=message):
        make()


def test_linear_transpose_refuses_integers_beside_other_numbers():
    def f(x):
        return 2.0 * x

    with pytest.raises(DifferentiationError, match=r"of f are i64\[3\], f64\[3\]"):
        af.linear_transpose(f, np.arange(3))


@pytest.mark.parametrize("transform", [af.grad, af.jacfwd, af.jacrev])
def test_functions_branch_on_flags_beside_what_they_are_differentiated_by(transform):
    @transform
    def f(x, flag, n=1):
        return x**n if flag else 0.0 * x

    static = af.jit(f, static_argnames=("flag", "n"))
    for g in (f, static):
        assert [g(2.0, True), g(2.0, False), g(2.0, flag=True, n=3)] == [1.0, 0.0, 12.0]


def test_a_complex_cotangent_of_a_real_value_is_refused():
    with pytest.raises(
        ShapeError, match=r"is ~c128\[\], but the value that it belongs to is"
    ):
        af.linear_transpose(lambda x: x, 1.0)(1j)


@pytest.mark.parametrize("rate", [0.0, 0.5, np.float64(0.5), np.int32(0), True, 3])
def test_code_may_branch_on_numbers_that_are_neither_mapped_nor_differentiated(rate):
    def dropped(x, rate):
        return x * rate if rate > 0 else x

    want = float(rate) or 1.0
    for by_rate in (
        lambda x: af.grad(dropped)(x, rate),
        lambda x: af.value_and_grad(dropped)(x, rate=rate)[1],
        lambda x: af.vmap(dropped, (0, None))(anp.stack([x, x]), rate)[1] / x,
    ):
        assert by_rate(np.float64(2.0)) == want
        assert af.jit(by_rate)(np.float64(2.0)) == want
