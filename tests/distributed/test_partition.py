"""jit over a mesh: the shardings of results, what is moved, and equal values."""

from __future__ import annotations

import importlib
import re
from collections import Counter

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import Mesh, NamedSharding, lax
from arrayfn import PartitionSpec as P
from arrayfn.errors import ArgumentError, BackendError, ShapeError

MESH = Mesh((2, 4), ("data", "model"))
RANDOM = np.random.default_rng(3)
X = RANDOM.standard_normal((8, 16))
Y = RANDOM.standard_normal((16, 4))
SLOPES = np.array([1.0, 0.5, 0.25, 0.125], np.float32)


def over(*spec):
    return NamedSharding(MESH, P(*spec))


def put(x, *spec):
    return af.device_put(x, over(*spec))


def moves(f, *args):
    """How often each collective is in a device's Program."""
    program = af.jit(f).lower(*args).compiled_program.partitioned.program
    program.check()
    names = [e.primitive for e in program.equations]
    return Counter(row.name for row in names if row.is_collective)


# name: the function, the specs of its operands, the result's spec, the collectives
CASES = {
    "elementwise": (
        lambda x: np.sin(x) * 2,
        [P("data", "model")],
        P("data", "model"),
        {},
    ),
    "two operands": (
        lambda x, y: x + y[:8, :1],
        [P("data"), P("model")],
        P("data"),
        {"all_gather": 1},
    ),
    "transpose": (lambda x: x.T, [P("data", "model")], P("model", "data"), {}),
    "sum of cut axis": (
        lambda x: x.sum(0),
        [P("data", "model")],
        P("model"),
        {"all_reduce": 1},
    ),
    "max of whole axis": (lambda x: x.max(1), [P("data")], P("data"), {}),
    "max of cut axis": (lambda x: x.max(0), [P("data")], P(), {"all_reduce": 1}),
    "product by columns": (
        lambda x, y: x @ y,
        [P("data"), P(None, "model")],
        P("data", "model"),
        {},
    ),
    "product over cut axis": (
        lambda x, y: x @ y,
        [P(None, "model"), P("model")],
        P(),
        {"all_reduce": 1},
    ),
    "gathered weights": (
        lambda x, y: x @ y,
        [P("data"), P("data")],
        P("data"),
        {"all_gather": 1},
    ),
    "split axis": (lambda x: x.reshape(2, 4, 16), [P("data")], P("data"), {}),
    "merged axes": (lambda x: x.reshape(-1), [P("data")], P("data"), {}),
    "softmax": (lambda x: af.nn.softmax(x, -1), [P("data")], P("data"), {}),
    "softmax of cut axis": (
        lambda x: af.nn.softmax(x, -1),
        [P(None, "model")],
        P(None, "model"),
        {"all_reduce": 2},
    ),
    "rows by index": (
        lambda x: x[np.array([1, 5, 3, 2])],
        [P(None, "model")],
        P(None, "model"),
        {},
    ),
    "sorted along whole axis": (lambda x: np.sort(x, 1), [P("data")], P("data"), {}),
    "running sum": (lambda x: np.cumsum(x, 0), [P("data")], P(), {"all_gather": 1}),
    "scan": (
        lambda x: lax.scan(lambda c, row: (c + row, c * row), x[0], x)[1],
        [P(None, "model")],
        P(None, "model"),
        {},
    ),
    "linear algebra": (
        lambda x: anp.linalg.qr(x)[1],
        [P("data")],
        P(),
        {"all_gather": 1},
    ),
    "concatenated": (
        lambda x: np.concatenate([x, 2 * x], 1),
        [P("data")],
        P("data"),
        {},
    ),
    "transform": (anp.fft.rfft, [P("data")], P("data"), {}),
    "padded": (lambda x: np.pad(x, ((0, 0), (1, 2))), [P("data")], P("data"), {}),
}


@pytest.mark.parametrize("name", CASES)
def test_specs_follow_the_equations(name):
    f, specs, wanted, collectives = CASES[name]
    arrays = [X, Y][: len(specs)]
    given = [put(x, *spec) for x, spec in zip(arrays, specs, strict=True)]
    result = af.jit(f)(*given)
    np.testing.assert_allclose(result, f(*arrays), rtol=1e-13, atol=1e-14)
    assert result.sharding.spec == wanted
    assert moves(f, *given) == collectives


def test_operations_outside_jit_run_on_the_mesh():
    x = put(X, "data", "model")
    y = np.cos(x) + 1
    assert isinstance(y, af.ShardedArray)
    assert y.sharding == over("data", "model")
    np.testing.assert_allclose(y, np.cos(X) + 1, rtol=1e-15)
    assert float((x * 0).sum()) == 0.0
    np.testing.assert_array_equal(x[2:4], X[2:4])


@pytest.mark.parametrize(
    ("have", "want", "collectives"),
    [
        (P("data"), P("data"), {}),
        (P(), P("data", "model"), {}),
        (P("data"), P(), {"all_gather": 1}),
        (P("data"), P(None, "data"), {"all_to_all": 1}),
        (P(("data", "model")), P("data", "model"), {"all_to_all": 1}),
        (P("data", "model"), P("model", "data"), {"all_to_all": 1, "all_gather": 1}),
        (P(("model", "data")), P("data"), {"all_gather": 2}),
    ],
)
def test_arrays_move_by_few_collectives(have, want, collectives):
    f = af.jit(lambda x: x, out_shardings=NamedSharding(MESH, want))
    x = put(X, *have)
    moved = f(x)
    assert moved.sharding.spec == want
    np.testing.assert_array_equal(moved, X)
    np.testing.assert_array_equal(af.device_put(x, NamedSharding(MESH, want)), X)
    constraint = NamedSharding(MESH, want)
    found = moves(lambda x: lax.with_sharding_constraint(x, constraint), x)
    assert found == collectives


def test_shardings_of_arguments_and_results():
    def f(params, x):
        return {"y": np.tanh(x @ params["w"]) + params["b"]}

    params = {"w": Y, "b": np.arange(4.0)}
    jitted = af.jit(
        f,
        in_shardings=({"w": over(None, "model"), "b": over("model")}, over("data")),
        out_shardings=over("data"),
    )
    result = jitted(params, X)["y"]
    np.testing.assert_allclose(result, f(params, X)["y"], rtol=1e-12)
    assert result.sharding.spec == P("data")
    lowered = jitted.lower(params, X)
    # NumPy arguments are cut on the host.
    kinds = [str(t) for t in lowered.compiled_program.partitioned.in_specs]
    assert kinds == ["P('model')", "P(None, 'model')", "P('data')"]
    with pytest.raises(ArgumentError, match="in_shardings has 1 entry"):
        af.jit(f, in_shardings=(None,))(params, X)
    with pytest.raises(ArgumentError, match="without a mesh; give one"):
        af.jit(np.sin, in_shardings=P("data"))(X)
    with pytest.raises(ShapeError, match="is cut into 2 parts"):
        af.jit(np.sin, in_shardings=over("data"))(X[:3])


def test_gradients_of_cut_weights_are_scattered_sums():
    rows, whole = over("data"), over()

    def loss(w, x):
        return (np.tanh(x @ w) ** 2).sum()

    step = af.jit(af.grad(loss), in_shardings=(rows, rows), out_shardings=rows)
    gradient = step(Y, X)
    np.testing.assert_allclose(gradient, af.grad(loss)(Y, X), rtol=1e-12)
    program = step.lower(Y, X).compiled_program.partitioned.program
    assert len(re.findall("= reduce_scatter", str(program))) == 1
    assert "all_reduce" not in str(program)
    step = af.jit(af.grad(loss), in_shardings=(whole, rows), out_shardings=whole)
    program = step.lower(Y, X).compiled_program.partitioned.program
    assert len(re.findall("= all_reduce", str(program))) == 1


def test_loops_and_branches_over_a_mesh():
    def f(x):
        total, _ = lax.scan(lambda c, row: (c + np.sin(row), None), x[0] * 0, x)
        low = lax.while_loop(lambda c: (c > 0.1).any(), lambda c: c / 2, x)
        chosen = lax.cond(x.sum() > 0, lambda v: v * 2, lambda v: v - 1, x)
        return total, low, chosen

    want = af.jit(f)(X)
    for spec in (P("data"), P(None, "model"), P("data", "model")):
        have = af.jit(f)(put(X, *spec))
        for one, other in zip(have, want, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-13)
        assert have[1].sharding.spec == have[2].sharding.spec == spec


def test_shard_map_among_other_equations():
    total = af.shard_map(
        lambda x: lax.psum(x.sum(0), "data"),
        mesh=MESH,
        in_specs=P("data"),
        out_specs=P(),
    )

    def f(x):
        return np.cos(total(np.sin(x))) * 2

    np.testing.assert_allclose(af.jit(f)(X), np.cos(np.sin(X).sum(0)) * 2, rtol=1e-12)
    assert moves(f, put(X, "data")) == {"all_reduce": 1}
    assert moves(f, put(X, None, "data")) == {"all_to_all": 1, "all_reduce": 1}

    def looped(x):
        return lax.fori_loop(0, 3, lambda _, c: c + total(x * c), np.ones(16))

    want = np.ones(16)
    for _ in range(3):
        want = want + (X * want).sum(0)
    np.testing.assert_allclose(af.jit(looped)(X), want, rtol=1e-12)
    slope = af.grad(lambda x: looped(x).sum())
    one = af.jit(slope, device="cpu")(X)
    np.testing.assert_allclose(af.jit(slope)(X), one, rtol=1e-11)


def test_captured_arrays_over_a_mesh():
    y = put(Y, None, "model")
    f = af.jit(lambda x: x @ y)
    result = f(put(X, "data"))
    assert result.sharding.spec == P("data", "model")
    np.testing.assert_allclose(result, X @ Y, rtol=1e-13)


def test_a_bundle_is_for_one_device(tmp_path):
    total = af.shard_map(
        lambda x: lax.psum(x, "data"), mesh=MESH, in_specs=P("data"), out_specs=P()
    )
    with pytest.raises(ArgumentError, match="runs on a mesh of devices"):
        af.save(af.jit(total).lower(X), tmp_path / "mesh")
    af.save(af.jit(total, device="cpu").lower(X), tmp_path / "one")
    np.testing.assert_allclose(af.load(tmp_path / "one")(X), X[:4] + X[4:], rtol=1e-15)


def test_two_meshes_are_refused():
    other = NamedSharding(Mesh((8,), ("data",)), P("data"))
    x, y = put(X, "data"), af.device_put(X, other)
    with pytest.raises(ArgumentError, match="has arrays or shard_maps of two"):
        af.jit(lambda x, y: x + y)(x, y)
    with pytest.raises(ArgumentError, match="has arrays or shard_maps of two"):
        x + y


@pytest.mark.parametrize(
    ("of_x", "of_w", "result", "collectives"),
    [
        (P("data"), P(), P("data"), {}),
        (P("data"), P("model"), P("data", "model"), {}),
        (P(None, "model"), P(None, "model"), P(), {"all_reduce": 1}),
    ],
)
def test_convolutions_by_batch_and_channels(of_x, of_w, result, collectives):
    x, w = RANDOM.standard_normal((4, 4, 6, 6)), RANDOM.standard_normal((8, 4, 3, 3))

    def f(x, w):
        return lax.conv(x, w, (1, 1), "SAME")

    given = put(x, *of_x), put(w, *of_w)
    have = af.jit(f)(*given)
    np.testing.assert_allclose(have, f(x, w), rtol=1e-11, atol=1e-12)
    assert have.sharding.spec == result
    assert moves(f, *given) == collectives
    slopes = af.jit(af.grad(lambda x, w: (f(x, w) ** 2).sum(), (0, 1)))
    for one, other in zip(slopes(*given), slopes(x, w), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-11)


def test_what_is_not_cut_and_what_moves_is_listed():
    lowered = af.jit(lambda x: anp.linalg.qr(x)[1].sum()).lower(put(X, "data"))
    parts = lowered.compiled_program.partitioned
    (reason,) = parts.not_cut
    assert re.match(r"qr at test_partition.py:\d+: it has no sharding rule", reason)
    (transfer,) = parts.transfers()
    assert (transfer.name, transfer.axis_name) == ("all_gather", "data")
    assert transfer.nbytes == X.nbytes // 2
    assert transfer.source.line


def test_checks_of_a_shard_map_are_for_one_device():
    f = af.shard_map(
        lambda x, i: lax.psum(x[i], "data"),
        mesh=MESH,
        in_specs=(P("data"), P()),
        out_specs=P(),
    )
    with pytest.raises(ArgumentError, match="checked on one device"):
        af.jit(f, checks=True)(X, 1)
    with pytest.raises(IndexError, match="index 5 is out of bounds"):
        af.jit(f, checks=True, device="cpu")(X, 5)
    with pytest.raises(IndexError, match="index 9 is out of bounds"):
        af.jit(lambda x, i: x[i], checks=True)(put(X, "data"), 9)


def test_one_device_and_several_have_one_result():
    def f(x):
        return af.shard_map(
            lambda x: lax.psum(x, "data"), mesh=MESH, in_specs=P("data"), out_specs=P()
        )(x)

    on_one = af.jit(f, device="cpu")(X)
    assert isinstance(on_one, np.ndarray)
    np.testing.assert_array_equal(af.jit(f, device="reference")(X), on_one)
    np.testing.assert_array_equal(f(X), on_one)
    with pytest.raises(BackendError, match="it is not chosen by name"):
        af.jit(np.sin, device="mesh")(X)


@pytest.mark.parametrize(
    ("spec", "calls"),
    [
        (P("data"), [(4, 16)]),  # rows are cut: the kernel computes 4 of them
        (P(None, "model"), []),  # what the body reduces is cut: it needs collectives
    ],
    ids=["by rows", "by columns"],
)
def test_a_shardable_operator_stays_a_call_where_a_part_needs_no_other(spec, calls):
    @af.operator(shardable=True)
    def centred(x):
        return x - x.mean(1, keepdims=True)

    lowered = af.jit(lambda x: centred(x) * 2).lower(put(X, *spec.entries(2)))
    program = lowered.compiled_program.partitioned.program
    program.check()
    found = [e for e in program.equations if e.primitive.name == "operator_call"]
    assert [e.params["body"].inputs[0].type.shape for e in found] == calls
    values = af.jit(lambda x: centred(x) * 2)(put(X, *spec.entries(2)))
    np.testing.assert_allclose(values, 2 * (X - X.mean(1, keepdims=True)), atol=1e-12)


def test_attention_over_a_mesh_is_a_call_of_each_device_s_part():
    q = RANDOM.standard_normal((4, 8, 4, 16)).astype(np.float16)

    def loss(q):
        return anp.sum(af.nn.dot_product_attention(q, q, q, is_causal=True) ** 2)

    gradient = af.jit(af.grad(loss))
    lowered = gradient.lower(put(q, "data", None, "model"))
    program = lowered.compiled_program.partitioned.program
    calls = {
        e.params["name"]: e.inputs[0].type.shape
        for e in program.equations
        if e.primitive.name == "operator_call"
    }
    assert calls == {
        "nn.attention": (2, 8, 1, 16),
        "nn.attention_gradient": (2, 8, 1, 16),
    }
    have = gradient(put(q, "data", None, "model"))
    np.testing.assert_allclose(have, gradient(q), rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize(
    ("score_mod", "calls"),
    [
        (lambda score, b, h, q, k: anp.tanh(score), [(2, 8, 1, 16)]),
        # A part would need to know which heads it has.
        (lambda score, b, h, q, k: score * anp.asarray(SLOPES)[h], []),
    ],
    ids=["of scores", "of heads"],
)
def test_score_functions_over_a_mesh(score_mod, calls, monkeypatch):
    module = importlib.import_module("arrayfn.nn.attention")
    monkeypatch.setattr(module, "platform", lambda: "cuda")
    q = RANDOM.standard_normal((4, 8, 4, 16)).astype(np.float16)

    def attend(q):
        return af.nn.dot_product_attention(q, q, q, score_mod=score_mod)

    placed = put(q, "data", None, "model")
    program = af.jit(attend).lower(placed).compiled_program.partitioned.program
    found = [e for e in program.equations if e.primitive.name == "operator_call"]
    assert [e.inputs[0].type.shape for e in found] == calls
    want = attend(q.astype(np.float64))
    np.testing.assert_allclose(af.jit(attend)(placed), want, rtol=4e-3, atol=4e-3)


def test_side_effects_take_place_once(capfd):
    def printed(x):
        def step(k, v):
            af.debug.print("{} {}", k, v.sum())
            return v + 1

        return lax.fori_loop(0, 2, step, x)

    x = np.arange(8.0)
    assert np.array_equal(af.jit(printed, in_shardings=over("data"))(x), x + 2)
    assert capfd.readouterr().out == "0 28.0\n1 36.0\n"

    seen = []

    def on_host(x):
        seen.append(x.copy())
        if x[0] < 0:
            raise RuntimeError("negative")
        return 2 * x

    result = af.ShapeDtypeStruct((8,), x.dtype)
    doubled = af.jit(
        lambda x: af.io_callback(on_host, result, x) + 1, in_shardings=over("model")
    )
    assert np.array_equal(doubled(x), 2 * x + 1)
    assert np.array_equal(seen, [x])
    with pytest.raises(RuntimeError, match="negative"):
        doubled(-x - 1)
