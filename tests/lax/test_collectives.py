"""Collectives over named axes of vmap: against loops, nested, differentiated."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from arrayfn import Mesh, PartitionSpec, lax, shard_map
from arrayfn.compilation.jit import jit
from arrayfn.errors import ArgumentError, ShapeError
from arrayfn.transforms import grad, jacfwd, jacrev, jvp, make_program, vmap

X = np.array([1.0, -2.0, 5.0])
M = np.random.default_rng(0).standard_normal((3, 4))


def mapped(function, **options):
    return vmap(function, axis_name="i", **options)


REDUCTIONS = {
    "psum": (lax.psum, np.sum),
    "pmean": (lax.pmean, np.mean),
    "pmax": (lax.pmax, np.max),
    "pmin": (lax.pmin, np.min),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_members_are_reduced_and_each_has_the_result(name):
    function, expected = REDUCTIONS[name]
    f = mapped(lambda x: {"all": function({"x": x}, "i")["x"] + 0 * x})
    want = np.broadcast_to(expected(M, axis=0), M.shape)
    np.testing.assert_allclose(f(M)["all"], want, rtol=1e-15)
    np.testing.assert_allclose(jit(f)(M)["all"], want, rtol=1e-15)
    alone = mapped(lambda x: function(x, "i"), out_axes=None)(M)
    np.testing.assert_allclose(alone, expected(M, axis=0), rtol=1e-15)


GROUPS = [[4, 0, 2], [1, 5, 3]]
IN_GROUPS = {
    # What a member at this place of its group gets, of all in the group.
    "psum": (lambda x, **g: lax.psum(x, "i", **g), lambda x, _: x.sum(0)),
    "pmean": (lambda x, **g: lax.pmean(x, "i", **g), lambda x, _: x.mean(0)),
    "pmax": (lambda x, **g: lax.pmax(x, "i", **g), lambda x, _: x.max(0)),
    "pmin": (lambda x, **g: lax.pmin(x, "i", **g), lambda x, _: x.min(0)),
    "all_gather": (
        lambda x, **g: lax.all_gather(x, "i", axis=1, tiled=True, **g),
        lambda x, _: np.concatenate(x, 1),
    ),
    "psum_scatter": (
        lambda x, **g: lax.psum_scatter(x, "i", **g),
        lambda x, place: x.sum(0)[place],
    ),
    "all_to_all": (
        lambda x, **g: lax.all_to_all(x, "i", 1, 0, tiled=True, **g),
        lambda x, place: np.concatenate(x[:, :, 2 * place : 2 * place + 2]),
    ),
    "pswapaxes": (
        lambda x, **g: lax.pswapaxes(x, "i", 0, **g),
        lambda x, place: x[:, place],
    ),
}


@pytest.mark.parametrize("name", IN_GROUPS)
def test_members_are_combined_in_groups(name):
    function, expected = IN_GROUPS[name]
    x = np.random.default_rng(1).standard_normal((6, 3, 6))
    want = [
        expected(x[group], group.index(k))
        for k in range(6)
        for group in GROUPS
        if k in group
    ]
    in_groups = partial(function, axis_index_groups=GROUPS)
    np.testing.assert_allclose(mapped(in_groups)(x), want, rtol=1e-15)
    mesh, spec = Mesh((6,), ("i",)), PartitionSpec("i")
    one = shard_map(
        lambda x: in_groups(x[0])[None], mesh=mesh, in_specs=spec, out_specs=spec
    )
    np.testing.assert_allclose(one(x), want, rtol=1e-15)


def test_numbers_are_counted_in_groups_and_groups_are_checked():
    x = np.arange(6.0)
    assert (
        mapped(lambda x: lax.psum(1, "i", axis_index_groups=GROUPS) + 0 * x)(x)[0] == 3
    )
    slope = mapped(grad(lambda x: lax.psum(x**2, "i", axis_index_groups=GROUPS)))(x)
    np.testing.assert_array_equal(slope, 3 * 2 * x)
    for wrong in ([[0, 1], [2, 3]], [[0, 1, 2, 3], [4, 5]], [[0, 1, 2], [2, 4, 5]]):
        with pytest.raises(ArgumentError, match="groups of one size, in which each"):
            mapped(lambda x, g=wrong: lax.pmax(x, "i", axis_index_groups=g))(x)
    both = vmap(
        vmap(
            lambda x: lax.psum(x, ("i", "j"), axis_index_groups=GROUPS), axis_name="j"
        ),
        axis_name="i",
    )
    np.testing.assert_array_equal(both(x.reshape(2, 3)), [[6.0, 9, 6], [9, 6, 9]])


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.uint16, np.float32])
def test_sums_in_groups_keep_their_dtype(dtype):
    x = np.arange(6, dtype=dtype)
    total = mapped(lambda x: lax.psum(x, "i", axis_index_groups=GROUPS))(x)
    assert total.dtype == dtype
    parts = mapped(lambda row: lax.psum_scatter(row, "i", axis_index_groups=GROUPS))(
        np.ones((6, 3), dtype)
    )
    assert (parts.dtype, parts.tolist()) == (dtype, [3] * 6)
    count = mapped(lambda x: lax.psum(x > 0, "i", axis_index_groups=GROUPS))(x)
    assert count.dtype == np.int64


def test_sums_keep_their_dtype_and_count_members():
    f = mapped(lambda x: (lax.psum(x, "i"), lax.psum(1, "i"), lax.axis_size("i")))
    total, count, size = f(np.arange(3, dtype=np.int32))
    assert (total.dtype, total.tolist()) == (np.int32, [3, 3, 3])
    assert count.tolist() == size.tolist() == [3, 3, 3]
    assert mapped(lambda x: lax.psum(x > 0, "i"))(X).tolist() == [2, 2, 2]


def test_what_is_the_same_for_all_is_summed_as_often_as_there_are_members():
    f = mapped(lambda x, y: lax.psum(y, "i") + 0 * x, in_axes=(0, None))
    assert f(X, 7.0).tolist() == [21.0] * 3
    assert mapped(lambda x: lax.psum(np.float64(2.0), "i") + x)(X)[0] == 7.0


def test_the_derivative_of_a_sum_is_the_same_for_all():
    for scale in (-1.0, 2.0):
        slope = grad(lambda x, scale=scale: scale * lax.psum(x, "i"))
        assert mapped(slope, out_axes=None)(X) == 3 * scale
    curve = grad(lambda x: lax.psum(x, "i") ** 3)
    assert mapped(curve, out_axes=None)(X) == 3 * 3 * X.sum() ** 2
    nested = vmap(mapped(curve, out_axes=None), in_axes=1)(M)
    np.testing.assert_allclose(nested, 9 * M.sum(axis=0) ** 2)
    with pytest.raises(ShapeError, match="is the same for all, but it varies"):
        mapped(grad(lambda x: lax.psum(x * x, "i")), out_axes=None)(X)


def test_one_members_value_goes_to_all():
    f = mapped(lambda x: lax.pbroadcast(x, "i", 2))
    np.testing.assert_array_equal(f(M), M[[2, 2, 2]])
    assert f(X > 0).tolist() == [True] * 3
    np.testing.assert_array_equal(grad(lambda x: (f(x) * X).sum())(X), [0, 0, X.sum()])
    with pytest.raises(ArgumentError, match="are 0 to 2, but source is 3"):
        mapped(lambda x: lax.pbroadcast(x, "i", 3))(X)


def test_indices_and_gathering():
    index = mapped(lambda x: lax.axis_index("i"))(X)
    assert (index.dtype, index.tolist()) == (np.int32, [0, 1, 2])
    every = mapped(lambda x: lax.all_gather(x, "i", axis=1))(M)
    np.testing.assert_array_equal(every, np.broadcast_to(M.T, (3, 4, 3)))
    joined = mapped(lambda x: lax.all_gather(x, "i", tiled=True))(M)
    np.testing.assert_array_equal(joined, np.broadcast_to(M.ravel(), (3, 12)))


def test_permutations_and_exchanges():
    turn = [(0, 1), (1, 2), (2, 0)]
    f = mapped(lambda x: lax.ppermute(x, "i", turn))
    np.testing.assert_array_equal(f(M), np.roll(M, 1, 0))
    shifted = mapped(lambda x: lax.ppermute(x, "i", turn[:2]))(M)
    np.testing.assert_array_equal(shifted, [0 * M[0], M[0], M[1]])
    x = np.arange(3 * 3 * 2.0).reshape(3, 3, 2)
    exchanged = mapped(lambda x: lax.all_to_all(x, "i", 0, 1))(x)
    np.testing.assert_array_equal(exchanged, x.transpose(1, 2, 0))
    y = np.arange(3 * 2 * 6.0).reshape(3, 2, 6)
    tiled = mapped(lambda x: lax.all_to_all(x, "i", 1, 0, tiled=True))(y)
    parts = y.reshape(3, 2, 3, 2).transpose(2, 0, 1, 3).reshape(3, 6, 2)
    np.testing.assert_array_equal(tiled, parts)


def test_shuffles_and_exchanged_axes():
    f = mapped(lambda x: lax.pshuffle(x, "i", [1, 2, 0]))
    np.testing.assert_array_equal(f(M), M[[1, 2, 0]])
    x = np.arange(18.0).reshape(3, 3, 2)
    turned = mapped(lambda x: lax.pswapaxes(x, "i", 0))(x)
    np.testing.assert_array_equal(turned, x.swapaxes(0, 1))


def test_scattered_sums():
    x = np.random.default_rng(1).standard_normal((3, 3, 2))
    f = mapped(lambda x: lax.psum_scatter(x, "i"))
    np.testing.assert_allclose(f(x), x.sum(0), rtol=1e-15)
    y = np.random.default_rng(2).standard_normal((3, 2, 6))
    g = mapped(lambda x: lax.psum_scatter(x, "i", scatter_dimension=1, tiled=True))
    expected = y.sum(0).reshape(2, 3, 2).transpose(1, 0, 2)
    np.testing.assert_allclose(g(y), expected, rtol=1e-14)


def softmax(x):
    shifted = np.exp(x - lax.stop_gradient(lax.pmax(x, "i")))
    return shifted / lax.psum(shifted, "i")


def test_a_function_of_members_is_one_of_the_array():
    def whole(x):
        shifted = np.exp(x - x.max())
        return shifted / shifted.sum()

    np.testing.assert_allclose(mapped(softmax)(X), whole(X), rtol=1e-15)
    for jacobian in (jacfwd, jacrev):
        expected = np.diag(whole(X)) - np.outer(whole(X), whole(X))
        np.testing.assert_allclose(jacobian(mapped(softmax))(X), expected, atol=1e-15)
    tangent = jvp(mapped(softmax), (X,), (X,))[1]
    np.testing.assert_allclose(tangent, expected @ X, rtol=1e-13)


COMBINED = {
    "gather": lambda x: (lax.all_gather(x, "i") ** 2).sum() * x,
    "permute": lambda x: lax.ppermute(x, "i", [(0, 2), (1, 0)]) * x**2,
    "extrema": lambda x: lax.pmax(x, "i") * x + lax.pmin(x**2, "i"),
    "mean": lambda x: lax.pmean(x**3, "i") * lax.axis_index("i"),
    "scatter": lambda x: lax.psum_scatter(np.sin(x * X), "i") * x,
    "exchange": lambda x: lax.all_to_all(x * X, "i", 0, 0).sum() * x,
}


@pytest.mark.parametrize("name", COMBINED)
def test_derivatives_agree_with_differences_and_nest_to_second_order(name):
    def f(x):
        return (mapped(COMBINED[name])(x) * M[:, 0]).sum()

    step = 1e-6
    rows = np.eye(3) * step
    expected = [(f(X + row) - f(X - row)) / (2 * step) for row in rows]
    np.testing.assert_allclose(grad(f)(X), expected, rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(jit(grad(f))(X), grad(f)(X), rtol=1e-13)
    second = [(grad(f)(X + row) - grad(f)(X - row)) / (2 * step) for row in rows]
    np.testing.assert_allclose(jacfwd(grad(f))(X), second, rtol=1e-6, atol=1e-7)
    stacked = np.stack([X, X + 0.5])
    np.testing.assert_allclose(
        vmap(grad(f))(stacked), [grad(f)(x) for x in stacked], rtol=1e-13
    )


def test_a_derivative_of_one_member_sums_over_all():
    # Each member's x is in every member's sum: the cotangents of all come back.
    assert mapped(grad(lambda x: lax.psum(x, "i") * 2.0))(X).tolist() == [6.0] * 3
    outer = mapped(lambda w: grad(lambda x: (lax.psum(w, "i") * x) ** 2)(w))(X)
    np.testing.assert_allclose(outer, 2 * 16.0 * X, rtol=1e-15)


def test_two_axes_by_name():
    def f(x):
        return (
            lax.psum(x, "j"),
            lax.psum(x, "i"),
            lax.psum(x, ("i", "j")),
            lax.axis_index(("i", "j")),
        )

    by_row, by_column, both, index = vmap(vmap(f, axis_name="j"), axis_name="i")(M)
    np.testing.assert_allclose(by_row, np.broadcast_to(M.sum(1)[:, None], M.shape))
    np.testing.assert_allclose(by_column, np.broadcast_to(M.sum(0), M.shape))
    np.testing.assert_allclose(both, np.full(M.shape, M.sum()))
    np.testing.assert_array_equal(index, np.arange(12).reshape(3, 4))


def test_inner_axes_hide_outer_ones_of_their_name():
    f = mapped(mapped(lambda x: lax.psum(x, "i")))
    np.testing.assert_allclose(f(M), np.broadcast_to(M.sum(1)[:, None], M.shape))


def test_inside_jit():
    def f(x):
        return jit(lambda y: lax.psum(y, "i") * x)(x)

    np.testing.assert_allclose(mapped(f)(X), X.sum() * X, rtol=1e-15)
    np.testing.assert_allclose(jit(mapped(f))(X), X.sum() * X, rtol=1e-15)


def test_inside_jit_and_control_flow():
    def f(x):
        inner = jit(lambda y: lax.psum(y, "i") * x)
        branch = lax.cond(x > 0, lambda y: lax.psum(y, "i"), lambda y: y, x)
        return inner(x) + branch

    expected = X.sum() * X + np.where(X > 0, X.sum(), X)
    np.testing.assert_allclose(mapped(f)(X), expected, rtol=1e-15)

    def walk(x):
        return lax.fori_loop(0, 3, lambda _, c: c - 0.5 * lax.pmean(c, "i"), x)

    y = X
    for _ in range(3):
        y = y - 0.5 * y.mean()
    np.testing.assert_allclose(mapped(walk)(X), y, rtol=1e-14)
    np.testing.assert_allclose(jit(mapped(walk))(X), y, rtol=1e-14)


def test_axis_size_repeats_what_has_no_mapped_argument():
    f = vmap(lambda: lax.axis_index("i"), axis_size=3, axis_name="i")
    assert f().tolist() == [0, 1, 2]
    g = vmap(lambda x: x * 2, in_axes=None, axis_size=2)
    assert g(3.0).tolist() == [6.0, 6.0]
    with pytest.raises(ShapeError, match="differ from axis_size=2"):
        vmap(lambda x: x, axis_size=2)(X)
    with pytest.raises(ShapeError, match="give axis_size for repetition"):
        vmap(lambda x: x, in_axes=None)(X)


def test_names_that_are_not_bound():
    with pytest.raises(ArgumentError, match=r"psum: .*'i' \(named axes here: none\)"):
        vmap(lambda x: lax.psum(x, "i"))(X)
    with pytest.raises(ArgumentError, match=r"'k' \(named axes here: 'i'\); map it"):
        mapped(lambda x: lax.axis_index("k"))(X)
    with pytest.raises(ArgumentError, match=r"axis_index: no function that"):
        lax.axis_index("i")


def test_parts_that_do_not_fit():
    with pytest.raises(ArgumentError, match="at most once as a source and once"):
        mapped(lambda x: lax.ppermute(x, "i", [(0, 1), (2, 1)]))(X)
    with pytest.raises(ShapeError, match=r"axis 0 of shape \(4,\) must have 3"):
        mapped(lambda x: lax.psum_scatter(x, "i"))(M)
    with pytest.raises(ShapeError, match="must have a multiple of 3 elements"):
        mapped(lambda x: lax.all_to_all(x, "i", 0, 0, tiled=True))(M)


def test_a_mapped_program_has_no_collective_left():
    program = make_program(mapped(softmax))(X)
    names = [e.primitive.name for e in program.equations]
    assert "all_gather" not in names
    assert names.count("reduce_sum") == 1


def test_collectives_along_two_axes_of_vmap():
    def both(function):
        return vmap(vmap(function, axis_name="j"), axis_name="i")

    x = np.arange(1.0, 7.0).reshape(2, 3)
    every = both(lambda v: lax.all_gather(v, ("i", "j")))(x)
    np.testing.assert_array_equal(every, np.broadcast_to(x.ravel(), (2, 3, 6)))
    sent = both(lambda v: lax.ppermute(v, ("i", "j"), [(0, 5), (5, 1)]))(x)
    np.testing.assert_array_equal(sent, [[0, 6, 0], [0, 0, 1]])
