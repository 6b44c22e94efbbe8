"""shard_map on virtual devices: against the same function on one device."""

from __future__ import annotations

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import Mesh, NamedSharding, jit, lax, shard_map, vmap
from arrayfn import PartitionSpec as P
from arrayfn.errors import ArgumentError, ShapeError

RANDOM = np.random.default_rng(7)
X = RANDOM.standard_normal((8, 16))
MESH = Mesh((2, 4), ("data", "model"))
RING = {n: [(k, (k + 1) % n) for k in range(n)] for n in (1, 2, 4, 8)}


def _shift(x):
    return lax.ppermute(x, "i", RING[lax.axis_size("i")][:-1])


# Each is a function of a member's rows of X.
COLLECTIVES = {
    "psum": lambda x: x * lax.psum(np.sin(x).sum(0), "i"),
    "pmean": lambda x: x + lax.pmean(x**2, "i"),
    "pmax": lambda x: x * lax.pmax(x.max(0), "i"),
    "pmin": lambda x: x * lax.pmin(x.min(0), "i"),
    "all_gather": lambda x: lax.all_gather(x, "i", axis=1, tiled=True)[:, :3] ** 2,
    "all_gather stacked": lambda x: x * lax.all_gather(x[0], "i").sum(0),
    "psum_scatter": lambda x: np.cos(
        lax.psum_scatter(x, "i", scatter_dimension=1, tiled=True)
    ),
    "ppermute": lambda x: x * lax.ppermute(x, "i", RING[lax.axis_size("i")]),
    "ppermute to some": lambda x: x + _shift(x**2),
    "all_to_all": lambda x: lax.all_to_all(x**2, "i", 1, 0, tiled=True),
    "axis_index": lambda x: x * (1 + lax.axis_index("i")),
    "invariant": lambda x: x * lax.psum(anp.ones(16), "i") + lax.psum(2.0, "i"),
    "scan": lambda x: lax.scan(
        lambda c, row: (c + lax.psum(row * c, "i"), c * row), anp.ones(16), x
    )[1],
    "while": lambda x: lax.while_loop(
        lambda c: c[1] < 3, lambda c: (np.tanh(lax.psum(c[0], "i")), c[1] + 1), (x, 0)
    )[0],
    "cond": lambda x: (
        lax.cond(lax.psum(x.sum(), "i") > 0, lambda x: lax.pmax(x, "i"), np.sin, x) + x
    ),
    "cond of a shared result": lambda x: (
        lax.cond(lax.psum(x.sum(), "i") > -99, lambda x: lax.pmax(x, "i"), np.sin, x)
        * x
    ),
    "scan to a shared carry": lambda x: (
        lax.scan(lambda c, _: (lax.psum(np.sin(c), "i"), None), x, None, length=2)[0]
        * x
    ),
    "checkpoint": af.checkpoint(lambda y: np.sin(lax.psum(np.sin(y), "i") * y)),
}
FORWARD_ONLY = ("while",)


def mapped(name, n, **options):
    return shard_map(
        COLLECTIVES[name],
        mesh=Mesh((n,), ("i",)),
        in_specs=P("i"),
        out_specs=P("i"),
        **options,
    )


@pytest.mark.parametrize("n", [1, 2, 4, 8])
@pytest.mark.parametrize("name", COLLECTIVES)
def test_devices_compute_what_one_computes(name, n):
    f = mapped(name, n)
    (want,) = (af.jit(f, device="cpu")(X),)
    have = af.jit(f)(X)
    assert isinstance(have, af.ShardedArray)
    assert have.sharding == NamedSharding(Mesh((n,), ("i",)), P("i"))
    np.testing.assert_allclose(have, want, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("typed", [True, False])
@pytest.mark.parametrize("name", [k for k in COLLECTIVES if k not in FORWARD_ONLY])
def test_derivatives_are_those_of_one_device_and_of_differences(name, typed):
    f = mapped(name, 4, check_vma=typed)
    direction = RANDOM.standard_normal(X.shape)

    def total(x):
        return (anp.sin(f(x))).sum()

    gradient = np.asarray(af.jit(af.grad(total))(X))
    one = af.jit(af.grad(total), device="cpu")(X)
    np.testing.assert_allclose(gradient, one, rtol=1e-11, atol=1e-12)
    step = 1e-6
    ahead, behind = total(X + step * direction), total(X - step * direction)
    slope = (float(ahead) - float(behind)) / (2 * step)
    np.testing.assert_allclose((gradient * direction).sum(), slope, rtol=2e-6)
    _, tangent = af.jvp(total, (X,), (direction,))
    np.testing.assert_allclose(tangent, slope, rtol=2e-6)


@pytest.mark.parametrize("name", COLLECTIVES)
def test_vmap_outside_and_inside(name):
    f = mapped(name, 2)
    stack = np.stack([X, X[::-1] * 0.5, X + 0.1])
    want = np.stack([np.asarray(f(x)) for x in stack])
    np.testing.assert_allclose(af.jit(af.vmap(f))(stack), want, rtol=1e-12, atol=1e-13)
    inside = shard_map(
        af.vmap(COLLECTIVES[name]),
        mesh=Mesh((2,), ("i",)),
        in_specs=P(None, "i"),
        out_specs=P(None, "i"),
    )
    np.testing.assert_allclose(inside(stack), want, rtol=1e-12, atol=1e-13)


def test_the_gradient_by_a_shared_value_is_summed_over_devices():
    w = RANDOM.standard_normal((16, 3))

    def loss(w, x):
        return (anp.tanh(x @ w) ** 2).mean()

    def each(w, x):  # the derivative is taken inside, by each device
        return af.value_and_grad(lambda w: lax.pmean(loss(w, x), "data"))(w)

    specs = {"mesh": MESH, "in_specs": (P(), P("data"))}
    value, inside = shard_map(each, out_specs=P(), **specs)(w, X)
    np.testing.assert_allclose(value, loss(w, X), rtol=1e-14)
    want = af.grad(loss)(w, X)
    np.testing.assert_allclose(inside, want, rtol=1e-10)
    whole = shard_map(
        lambda w, x: lax.pmean(loss(w, x), "data"), out_specs=P(), **specs
    )
    np.testing.assert_allclose(af.grad(whole)(w, X), want, rtol=1e-10)
    text = str(af.make_program(af.grad(whole))(w, X))
    # One sum over the devices forward, one backward.
    assert text.count("op='sum'") == 2


def test_a_sum_of_what_does_not_vary_counts_the_members():
    f = shard_map(lambda x: lax.psum(x, "data"), mesh=MESH, in_specs=P(), out_specs=P())
    assert np.asarray(f(3.0)) == 6.0
    # d/dx of 2 x: each of two members has x.
    assert np.asarray(af.grad(f)(3.0)) == 2.0


@pytest.mark.parametrize("typed", [True, False])
@pytest.mark.parametrize(
    "body",
    [
        lambda w, x: lax.cond(
            lax.axis_index("i") > 1, lambda v: v @ w, lambda v: np.sin(v @ w @ w), x
        ),
        lambda w, x: lax.while_loop(
            lambda c: c[1] < lax.axis_index("i"),
            lambda c: (np.tanh(c[0] @ w), c[1] + 1),
            (x, 0),
        )[0],
        lambda w, x: lax.switch(
            lax.axis_index("i"), [np.sin, lambda v: v @ w, lambda v: v * w[0]], x
        ),
    ],
    ids=["cond", "while", "switch"],
)
def test_devices_that_take_different_ways(body, typed):
    f = shard_map(
        body,
        mesh=Mesh((4,), ("i",)),
        in_specs=(P(), P("i")),
        out_specs=P("i"),
        check_vma=typed,
    )
    slopes = af.grad(lambda w, x: np.sin(f(w, x)).sum(), (0, 1))
    w = RANDOM.standard_normal((4, 4)) * 0.4
    have, want = af.jit(slopes)(w, X[:, :4]), af.jit(slopes, device="cpu")(w, X[:, :4])
    for one, other in zip(have, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-12)


def test_second_derivatives():
    f = mapped("psum", 4)
    want = af.hessian(lambda x: af.jit(f, device="cpu")(x).sum())(X[:4, :2])
    have = af.hessian(lambda x: f(x).sum())(X[:4, :2])
    np.testing.assert_allclose(have, want, rtol=1e-12, atol=1e-13)


def test_trees_closures_and_several_axes():
    scale = np.arange(4.0)

    def body(tree, y):
        total = lax.psum((tree["a"] * scale).sum(), ("data", "model"))
        return {"total": total, "rows": tree["a"] + y}

    f = shard_map(
        body,
        mesh=MESH,
        in_specs=({"a": P("data", "model")}, P(None, "model")),
        out_specs={"total": P(), "rows": P("data", "model")},
    )
    y = RANDOM.standard_normal((4, 16))
    have = f({"a": X}, y)
    np.testing.assert_allclose(
        have["total"], (X.reshape(8, 4, 4) * scale).sum(), rtol=1e-13
    )
    np.testing.assert_array_equal(have["rows"], X + np.concatenate([y, y]))


def test_pmap_is_vmap_over_devices():
    def f(x, y):
        return lax.psum(x * y, "devices") + x, {"index": lax.axis_index("devices")}

    x, y = X[:4], X[4:8].T
    have, index = af.pmap(f, in_axes=(0, 1))(x, y)
    want, _ = af.vmap(f, in_axes=(0, 1), axis_name="devices")(x, y)
    np.testing.assert_allclose(have, want, rtol=1e-14)
    assert np.asarray(index["index"]).tolist() == [0, 1, 2, 3]
    with pytest.raises(ShapeError, match="mapped extents are"):
        af.pmap(f)(X, X[:4])


def test_outputs_that_vary_are_refused_with_the_line():
    def f(x):
        return x.sum()

    with pytest.raises(ShapeError) as caught:
        shard_map(f, mesh=MESH, in_specs=P("data"), out_specs=P())(X)
    message = str(caught.value)
    assert "the same for all members along 'data', but it varies" in message
    assert "(computed at test_shard_map.py:" in message
    # With check_vma=False it is taken as true.
    shard_map(f, mesh=MESH, in_specs=P("data"), out_specs=P(), check_vma=False)(X)


def test_specs_that_do_not_fit_are_refused():
    def call(spec, x=X, **options):
        return shard_map(np.sin, mesh=MESH, in_specs=spec, out_specs=P(), **options)(x)

    with pytest.raises(ArgumentError, match="names each axis of the mesh"):
        call(P("rows"))
    with pytest.raises(ShapeError, match=r"argument 0: axis 0 of shape \(3, 16\)"):
        call(P("data"), X[:3])
    with pytest.raises(ShapeError, match="has 3 entries, but the array has 2 axes"):
        call(P(None, None, "data"))
    with pytest.raises(ArgumentError, match="is not a PartitionSpec"):
        call("data")
    with pytest.raises(ArgumentError, match="is not a prefix"):
        call((P(), P()))
    with pytest.raises(ArgumentError, match="no function that this is part of"):
        shard_map(lambda x: lax.psum(x, "i"), mesh=MESH, in_specs=P(), out_specs=P())(X)


def test_explicit_variance():
    def f(x):
        return lax.pvary(x, "data"), lax.pcast(x, "model", to="varying")

    specs = (P("data"), P("model"))
    twice, four = shard_map(f, mesh=MESH, in_specs=P(), out_specs=specs)(X)
    np.testing.assert_array_equal(twice, np.concatenate([X] * 2))
    np.testing.assert_array_equal(four, np.concatenate([X] * 4))
    with pytest.raises(ArgumentError, match="to must be 'varying'"):
        lax.pcast(X, "data", to="reduced")


@pytest.mark.parametrize("dtype", ["int32", "float16", "bfloat16", "complex64", "bool"])
def test_sums_keep_their_dtypes(dtype):
    x = anp.asarray(np.arange(8) % 3, dtype=dtype)
    f = shard_map(
        lambda x: lax.psum(x, "i"),
        mesh=Mesh((4,), ("i",)),
        in_specs=P("i"),
        out_specs=P(),
    )
    want = np.asarray(x, np.float32 if dtype == "bfloat16" else None)
    want = want.reshape(4, 2).sum(0)
    assert np.asarray(f(x)).astype(want.dtype).tolist() == want.tolist()


def test_large_sums_are_shared_among_devices_in_the_order_of_members():
    x = RANDOM.standard_normal((4, 40_001)).astype(np.float32)
    f = shard_map(
        lambda x: lax.psum(x, "i"),
        mesh=Mesh((4,), ("i",)),
        in_specs=P("i"),
        out_specs=P(),
    )
    want = ((x[0] + x[1]) + x[2]) + x[3]
    np.testing.assert_array_equal(np.asarray(f(x))[0], want)


# Collectives along several axes at once: members are counted in row-major order.

CUBE = Mesh((2, 2, 2), ("x", "y", "z"))
ROWS = P(("x", "y"))


def _on_cube(function, in_specs=ROWS, out_specs=ROWS, typed=True):
    specs = {"in_specs": in_specs, "out_specs": out_specs}
    return shard_map(function, mesh=CUBE, check_vma=typed, **specs)


def test_all_gather_along_several_axes():
    gather = _on_cube(lambda x: lax.all_gather(x, ("x", "y"), axis=-2, tiled=True))
    found = np.asarray(af.jit(gather)(X))
    np.testing.assert_array_equal(found, np.tile(X, (4, 1)))


def test_psum_scatter_along_several_axes():
    scatter = _on_cube(
        lambda x: lax.psum_scatter(x, ("x", "y"), scatter_dimension=0, tiled=True), P()
    )
    np.testing.assert_allclose(np.asarray(scatter(X)), 4 * X)


def test_all_to_all_along_several_axes():
    exchange = _on_cube(
        lambda x: lax.all_to_all(x, ("x", "y"), 1, -2, tiled=True),
        ROWS,
        P(None, ("x", "y")),
    )
    np.testing.assert_array_equal(np.asarray(exchange(X)), X)


def test_ppermute_along_several_axes_and_its_gradient():
    send = _on_cube(lambda x: lax.ppermute(x, ("x", "y"), RING[4][:-1]))
    shifted = np.concatenate([np.zeros((2, 16)), X[:-2]])
    np.testing.assert_array_equal(np.asarray(send(X)), shifted)
    gradient = af.grad(lambda x: (send(x) * X).sum())(X)
    expected = np.concatenate([X[2:], np.zeros((2, 16))])
    np.testing.assert_array_equal(np.asarray(gradient), expected)


def test_an_argument_without_a_spec_reaches_the_function_as_it_is():
    marker, seen = object(), []

    def function(settings, x, shape):
        seen.append(settings["marker"])
        return x + anp.ones(shape)

    added = _on_cube(function, ({"marker": None}, ROWS, None))
    found = added({"marker": marker}, X, (2, 16))
    np.testing.assert_array_equal(np.asarray(found), X + 1)
    assert seen == [marker]


def test_out_specs_may_be_a_list():
    pair = _on_cube(lambda x: [x, x + 1], out_specs=[ROWS, ROWS])
    np.testing.assert_array_equal(np.asarray(pair(X)[1]), X + 1)


def test_copy_keeps_the_sharding():
    x = af.device_put(X, NamedSharding(CUBE, ROWS))
    copied = anp.copy(x)
    assert copied.sharding == x.sharding
    assert copied.addressable_data(0) is not x.addressable_data(0)
    np.testing.assert_array_equal(np.asarray(copied), X)


def test_gradient_through_a_loop_beside_integers():
    @af.custom_vjp
    def first(x, count):
        return x

    first.defvjp(lambda x, count: (x, count), lambda count, ct: (ct, 0 * count))
    specs = (ROWS, P())

    def pair(x, count):
        doubled = _on_cube(lambda x, count: (2 * x, count), specs, specs, False)
        return doubled(x, count)

    def row_sum(x, count):
        return _on_cube(
            lambda x, count: lax.psum(first(x, count).sum(), ("x", "y")), specs, P()
        )(x, count)

    def total(x, count):
        x, count = lax.map(lambda each: pair(*each), (x, count))
        return lax.map(lambda each: row_sum(*each), (x, count)).sum()

    x, counts = np.stack([X, X]), np.arange(16).reshape(2, 8)
    gradients = af.jit(af.grad(total, (0, 1), allow_int=True))(x, counts)
    np.testing.assert_array_equal(np.asarray(gradients[0]), np.full_like(x, 2))
    assert not np.any(gradients[1])


def test_an_axis_of_the_mesh_hides_one_of_vmap_with_its_name():
    mesh, x = Mesh((2,), ("x",)), np.arange(12.0).reshape(3, 4)

    def member(row):
        inside = shard_map(
            lambda part: part - lax.pmax(part, "x") + lax.axis_index("x"),
            mesh=mesh,
            in_specs=P("x"),
            out_specs=P("x"),
        )(row)
        return inside + lax.psum(row, "x")

    halves = x.reshape(3, 2, 2)
    inside = halves - halves.max(1, keepdims=True) + np.arange(2)[:, None]
    expected = inside.reshape(3, 4) + x.sum(0)
    mapped = vmap(member, axis_name="x")
    assert np.array_equal(mapped(x), expected)
    assert np.array_equal(jit(mapped)(x), expected)


def test_some_axes_of_a_mesh_are_left_out():
    by_rows = {"mesh": MESH, "in_specs": P("data"), "axis_names": {"data"}}
    total = shard_map(lambda x: lax.psum(x.sum(0), "data"), out_specs=P(), **by_rows)
    np.testing.assert_allclose(total(X), X.sum(0), rtol=1e-14)
    np.testing.assert_allclose(jit(total)(X), X.sum(0), rtol=1e-14)
    slope = af.grad(lambda x: anp.sum(total(anp.sin(x)) ** 2))(X)
    np.testing.assert_allclose(slope, 2 * np.sin(X).sum(0) * np.cos(X), rtol=1e-12)
    for wrong, problem in (
        ({"out_specs": P("model")}, "axis_names leaves out 'model'"),
        ({"out_specs": P(), "axis_names": {"rows"}}, "the axes of the mesh are 'data'"),
    ):
        with pytest.raises(ArgumentError, match=problem):
            shard_map(lambda x: x, **by_rows | wrong)(X)
    with pytest.raises(ArgumentError, match=r"'model' \(named axes here: 'data'\)"):
        shard_map(lambda x: lax.psum(x, "model"), out_specs=P("data"), **by_rows)(X)


def test_smap_says_which_axes_of_arrays_are_cut():
    @af.smap(in_axes=(1, None), out_axes={"all": None, "own": 1}, axis_name="model")
    def scaled(x, y):
        return {"all": lax.psum(x.sum(1), "model"), "own": x * y}

    with af.set_mesh(MESH):
        found = scaled(X, 2.0)
    np.testing.assert_allclose(found["all"], X.sum(1), rtol=1e-14)
    np.testing.assert_array_equal(found["own"], 2 * X)
    for wrong in ({"axis_name": ("data", "model")}, {"in_axes": -1}, {"out_axes": "x"}):
        options = {"in_axes": 0, "out_axes": 0, "axis_name": "data"} | wrong
        with pytest.raises(ArgumentError, match="smap: a"), af.set_mesh(MESH):
            af.smap(lambda x: x, **options)(X)


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        (None, P(None, "model")),
        ("data", P("data", "model")),
        (("data",), P("data", "model")),
    ],
)
def test_a_mapped_axis_lies_along_axes_of_the_mesh(name, spec):
    own = NamedSharding(MESH, P("model"))

    def member(x):
        return lax.with_sharding_constraint(2 * x, own)

    found = jit(vmap(jit(member), spmd_axis_name=name))(X)
    assert found.sharding == NamedSharding(MESH, spec)
    np.testing.assert_array_equal(found, 2 * X)
