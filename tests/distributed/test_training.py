"""Whole training runs: checkpoints, loaders, sharded states, keys, accumulation."""

from __future__ import annotations

import json

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import Mesh, NamedSharding, dtypes, lax, optim, random, shard_map
from arrayfn import PartitionSpec as P
from arrayfn.distributed import batches, checkpoints, load, save, spread
from arrayfn.errors import ArgumentError, ShapeError


def lies(n, *spec):
    return NamedSharding(Mesh((n,), ("i",)), P(*spec))


X = np.random.default_rng(0).standard_normal((8, 12)).astype(np.float32)


@pytest.mark.parametrize("n", [1, 2, 8])
def test_what_four_devices_save_others_load(tmp_path, n):
    half = X.astype(dtypes.bfloat16)
    tree = {
        "rows": af.device_put(X, lies(4, "i")),
        "columns": af.device_put(half, lies(4, None, "i")),
        "whole": af.device_put(X, lies(4)),
        "host": X[:0],
        "state": (None, 7),
    }
    save(tmp_path / "run", tree)
    like = {
        "rows": lies(n, "i") if n < 8 else lies(8, "i"),
        "columns": lies(n) if n == 8 else lies(n, None, "i"),
        "whole": lies(n, "i"),
        "host": None,
        "state": (None, None),
    }
    found = load(tmp_path / "run", like)
    assert found["rows"].sharding == like["rows"]
    for shard in found["rows"].addressable_shards:
        np.testing.assert_array_equal(shard.data, X[shard.index])
    assert found["columns"].dtype == dtypes.bfloat16
    np.testing.assert_array_equal(np.asarray(found["columns"]), half)
    np.testing.assert_array_equal(np.asarray(found["whole"]), X)
    assert found["host"].shape == (0, 12)
    assert found["state"][0] is None
    assert found["state"][1] == 7


def test_each_part_is_written_once(tmp_path):
    square = NamedSharding(Mesh((2, 2), ("i", "j")), P("i"))
    save(tmp_path, af.device_put(X, square))
    files = sorted(path.name for path in tmp_path.rglob("*.npy"))
    assert files == ["0.0.npy", "0.2.npy"]


def test_a_save_that_fails_leaves_the_one_before(tmp_path, monkeypatch):
    save(tmp_path, {"x": X})
    written = checkpoints._write
    monkeypatch.setattr(checkpoints, "_write", lambda *a: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        save(tmp_path, {"x": X + 1})
    np.testing.assert_array_equal(load(tmp_path, {"x": None})["x"], X)
    monkeypatch.setattr(checkpoints, "_write", written)
    save(tmp_path, {"x": X + 2})
    np.testing.assert_array_equal(load(tmp_path, {"x": None})["x"], X + 2)
    assert len([p for p in tmp_path.iterdir() if p.is_dir()]) == 1


def test_checkpoints_that_do_not_fit_are_refused(tmp_path):
    with pytest.raises(ArgumentError, match="no whole checkpoint"):
        load(tmp_path / "nothing", {"x": None})
    save(tmp_path, {"x": X})
    with pytest.raises(ArgumentError, match=r"no array \['y'\]; it has \['x'\]"):
        load(tmp_path, {"y": lies(2)})
    with pytest.raises(ShapeError, match=r"shape \(8, 12\), not \(12, 8\)"):
        load(tmp_path, {"x": X.T})
    index = json.loads((tmp_path / "index.json").read_text())
    index["arrays"]["['x']"][2][0][1] = "../../secret.npy"
    (tmp_path / "index.json").write_text(json.dumps(index))
    with pytest.raises(ArgumentError, match="is not the name of a part"):
        load(tmp_path, {"x": None})


def test_batches_do_not_depend_on_the_mesh():
    data = {"x": X, "y": np.arange(8)}
    seen = []
    for n in (1, 2, 4):
        made = list(batches(data, 4, lies(n, "i"), seed=3, epochs=2))
        assert len(made) == 4
        assert made[0]["x"].sharding == lies(n, "i")
        for batch in made:
            rows = np.asarray(batch["y"])
            np.testing.assert_array_equal(np.asarray(batch["x"]), X[rows])
        seen.append([np.asarray(batch["y"]).tolist() for batch in made])
    assert seen[0] == seen[1] == seen[2]
    assert sorted(seen[0][0] + seen[0][1]) == list(range(8))
    assert seen[0][:2] != seen[0][2:]


def test_only_rows_that_are_needed_are_read():
    class Rows:
        shape, dtype = (6, 2), np.dtype(np.float64)
        read = ()

        def __len__(self):
            return 6

        def __getitem__(self, rows):
            self.read += tuple(rows)
            return np.ones((len(rows), 2))

    rows = Rows()
    next(batches(rows, 4, lies(2, "i"), seed=None))
    assert rows.read == (0, 1, 2, 3)
    with pytest.raises(ArgumentError, match="1 to 6 rows, not 7"):
        batches(rows, 7, lies(1))
    with pytest.raises(ShapeError, match=r"not \[5, 8\]"):
        batches((X, X[:5]), 2, lies(1))
    with pytest.raises(ShapeError, match="no multiple of 4"):
        batches(X, 2, lies(4, "i"))


@pytest.mark.parametrize("draw", [random.normal, random.uniform, random.bits])
def test_random_numbers_do_not_depend_on_the_mesh(draw):
    key = random.key(0)
    want = np.asarray(af.jit(lambda key: draw(random.fold_in(key, 3), (8, 4)))(key))
    for n in (1, 2, 4, 8):
        f = af.jit(
            lambda key: draw(random.fold_in(key, 3), (8, 4)),
            out_shardings=lies(n, "i"),
        )
        have = f(key)
        assert have.sharding == lies(n, "i")
        np.testing.assert_array_equal(np.asarray(have), want)


def loss(params, x):
    return ((np.tanh(x @ params["up"]) @ params["down"] + params["bias"]) ** 2).mean()


def start():
    draw = np.random.default_rng(1).standard_normal
    return {"up": draw((12, 16)), "down": draw((16, 4)), "bias": draw(3 + 1)}


@pytest.mark.parametrize("n", [2, 4])
def test_sharded_optimizer_states_train_alike(n):
    rule = optim.adamw(1e-2)

    def step(params, state, x):
        value, slopes = af.value_and_grad(loss)(params, x)
        updates, state = rule.update(slopes, state, params)
        return optim.apply_updates(params, updates), state, value

    x, params = X.astype(float), start()
    mesh = Mesh((n,), ("i",))
    whole = NamedSharding(mesh, P())
    states = spread(rule.init(params), mesh, "i")
    assert "P('i')" in str(states)
    f = af.jit(step, out_shardings=(whole, states, None))
    here, there = (params, rule.init(params)), af.device_put(params, whole)
    there = there, af.tree.map(af.device_put, rule.init(params), states)
    for _ in range(3):
        *here, want = step(*here, x)
        *there, have = f(*there, af.device_put(x, lies(n, "i")))
        np.testing.assert_allclose(np.asarray(have), want, rtol=1e-10)
    moments = [s for s in af.tree.leaves(there[1]) if s.shape == (12, 16)]
    assert moments
    assert all(m.addressable_data(0).size == 12 * 16 // n for m in moments)
    np.testing.assert_allclose(np.asarray(there[0]["up"]), here[0]["up"], rtol=1e-8)


def test_accumulated_gradients_are_summed_over_devices_once():
    def step(params, x):
        own = af.tree.map(lambda p: lax.pvary(p, "i"), params)

        def add(total, rows):
            slopes = af.grad(loss)(own, rows)
            return af.tree.map(anp.add, total, slopes), None

        zeros = af.tree.map(anp.zeros_like, own)
        total, _ = lax.scan(add, zeros, x.reshape(2, 2, 12))
        return af.tree.map(lambda g: lax.pmean(g, "i") / 2, total)

    x, params = X.astype(float), start()
    mesh = Mesh((2,), ("i",))
    f = shard_map(step, mesh=mesh, in_specs=(P(), P("i")), out_specs=P())
    have, want = f(params, x), af.grad(loss)(params, x)
    for name in params:
        np.testing.assert_allclose(np.asarray(have[name]), want[name], rtol=1e-10)


def test_small_sums_are_one_collective_with_the_same_bits():
    params = {f"b{k}": np.full((3, k + 1), float(k)) for k in range(5)}

    def f(params, x):
        return af.tree.map(lambda p: (p.sum() * x).sum(), params), (x * x).sum()

    slopes = af.grad(lambda p, x: sum(af.tree.leaves(f(p, x))))
    given = af.jit(slopes, in_shardings=(None, lies(4, "i")))
    partitioned = given.lower(params, X).compiled_program
    names = [e.primitive.name for e in partitioned.partitioned.program.equations]
    steps = [s.kernel for s in partitioned.local.plan.steps]
    assert names.count("all_reduce") >= 1
    assert sum(s.startswith("collective") for s in steps) == 1

    def several(x):
        total = lax.psum(x, "i")
        return (
            total,
            lax.psum(x[:2] * 3, "i"),
            lax.psum(total + x, "i"),
            lax.pmax(x, "i"),
        )

    mesh = Mesh((4,), ("i",))
    g = shard_map(several, mesh=mesh, in_specs=P("i"), out_specs=P(), check_vma=False)
    compiled = af.jit(g).lower(X).compiled_program
    steps = [s.kernel.partition("_")[0] for s in compiled.local.plan.steps]
    assert steps.count("collective") == 3  # two sums of one bucket, one of a sum, a max
    alone = [
        shard_map(
            lambda x, k=k: several(x)[k],
            mesh=mesh,
            in_specs=P("i"),
            out_specs=P(),
            check_vma=False,
        )(X)
        for k in range(4)
    ]
    for have, want in zip(g(X), alone, strict=True):
        np.testing.assert_array_equal(np.asarray(have), np.asarray(want))


def test_a_pipeline_trains_as_one_device_does():
    from examples import pipeline

    sizes = {"layers": 1, "width": 8, "rows": 4}
    have = list(pipeline.train(4, 4, 3, **sizes))
    want = list(pipeline.train(4, 4, 3, **sizes, device="cpu"))
    np.testing.assert_allclose(have, want, rtol=1e-5)
    assert have[-1] < have[0]
    # As the layers one after the other do.
    mesh = Mesh((4,), (pipeline.AXIS,))
    params = pipeline.init_params(4, 1, 8)
    x = np.random.default_rng(2).standard_normal((3, 4, 8)).astype(np.float32)
    y = x
    for k in range(4):
        y = pipeline.stage(af.tree.map(lambda p, k=k: p[k], params), y)
    value = pipeline.loss_of(params, x, np.zeros_like(x), mesh)
    np.testing.assert_allclose(float(value), (np.asarray(y) ** 2).mean(), rtol=1e-5)


def test_a_profile_of_a_mesh_shows_the_steps_of_a_device():
    f = af.jit(
        lambda x, w: (np.tanh(x @ w) ** 2).sum(0), in_shardings=(lies(4, "i"), None)
    )
    w = np.ones((12, 5), np.float32)
    with af.profile() as p:
        have = [f(X, w) for _ in range(3)]
    np.testing.assert_array_equal(np.asarray(have[2]), np.asarray(f(X, w)))
    kinds = {row.kernel.partition("_")[0]: row.runs for row in p.steps}
    assert kinds["gemm"] == kinds["collective"] == 3
    assert 0 < sum(row.seconds for row in p.steps) < p.seconds
    assert "collective" in str(p)
