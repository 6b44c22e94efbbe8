"""Meshes of GPUs: each program as the CPU computes it. Needs GPUs and NCCL."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import Mesh, NamedSharding, lax, shard_map
from arrayfn import PartitionSpec as P
from arrayfn.backends.cuda.driver import gpu_count
from tests.distributed.program_of_processes import BODIES

X = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)

pytestmark = pytest.mark.skipif(
    gpu_count() == 0 or importlib.util.find_spec("nccl") is None,
    reason="needs a GPU and nccl4py",
)


@pytest.fixture(params=[1, 2, 4, 8])
def mesh(request):
    if request.param > gpu_count():
        pytest.skip(f"needs {request.param} GPUs")
    return Mesh(af.devices("cuda")[: request.param], ("i",))


def same(have, want):
    np.testing.assert_allclose(np.asarray(have), np.asarray(want), 2e-5, 2e-5)


@pytest.mark.parametrize("name", BODIES)
def test_collectives_and_their_derivatives(mesh, name):
    f = shard_map(BODIES[name], mesh=mesh, in_specs=P("i"), out_specs=P("i"))
    if name == "permute" and mesh.size == 1:
        pytest.skip("a permutation of two members")
    slope = af.grad(lambda x: (f(x) ** 2).sum())
    for g, x in ((f, X), (slope, X), (af.vmap(f), np.stack([X, 2 * X]))):
        jitted, want = af.jit(g), af.jit(g, device="cpu")(x)
        for _ in range(4):  # direct launches, and then graphs
            same(jitted(x), want)


def test_arrays_are_cut_over_the_gpus(mesh):
    cut = af.device_put(X, NamedSharding(mesh, P("i")))
    shards = cut.addressable_shards
    assert [str(s.device) for s in shards] == [f"cuda:{k}" for k in range(mesh.size)]
    assert all(isinstance(s.data, af.DeviceArray) for s in shards)
    for shard in shards:
        assert shard.data.gpu.number == shard.device.id
        np.testing.assert_array_equal(np.asarray(shard.data), X[shard.index])
    np.testing.assert_array_equal(np.asarray(cut), X)
    same(anp.exp(cut).sum(0), np.exp(X).sum(0))
    whole = af.device_put(cut, NamedSharding(mesh, P()))
    np.testing.assert_array_equal(np.asarray(whole.addressable_data(0)), X)


def test_a_profile_has_the_steps_of_one_gpu_and_adds_up(mesh):
    f = af.jit(
        shard_map(
            lambda x: lax.psum(anp.tanh(x), "i"),
            mesh=mesh,
            in_specs=P("i"),
            out_specs=P(),
        )
    )
    want = np.asarray(f(X))
    with af.profile():
        f(X)
    with af.profile() as p:
        for _ in range(3):
            have = f(X)
    assert np.asarray(have).tobytes() == want.tobytes()
    assert len(p.steps) == len(f.lower(X).plan.steps)
    assert {(row.backend, row.runs) for row in p.steps} == {("cuda", 3)}
    assert all(row.seconds > 0 for row in p.steps)
    assert p.calling > 0
    total = sum(row.seconds for row in p.steps) + p.calling + p.outside + p.compiling
    assert total == pytest.approx(p.seconds)


def test_arrays_are_put_on_each_gpu():
    for number in range(gpu_count()):
        x = af.device_put(X, f"cuda:{number}")
        assert x.device == ("cuda" if number == 0 else f"cuda:{number}")
        y = anp.tanh(x) @ x.T
        assert y.device == x.device
        same(y, np.tanh(X) @ X.T)
        f = af.jit(lambda x: anp.tanh(x) @ x.T)
        for _ in range(3):
            assert f(x).device == x.device
        back = af.device_put(x, "cuda:0")
        assert back.device == "cuda"
        np.testing.assert_array_equal(np.asarray(back), X)
    for number in range(1, gpu_count()):
        f = af.jit(lambda x: x + 1, device="cuda")
        f(af.device_put(X, "cuda"))
        with pytest.raises(af.errors.ArrayfnError, match=f"on 'cuda:{number}'"):
            f(af.device_put(X, f"cuda:{number}"))
        with pytest.raises(af.errors.ArgumentError, match="two devices"):
            af.device_put(X, "cuda") + af.device_put(X, f"cuda:{number}")


def step(params, x):
    def loss(params):
        h = anp.tanh(x @ params["up"])
        return ((h @ params["down"]) ** 2).mean()

    value, slopes = af.value_and_grad(loss)(params)
    return value, af.tree.map(lambda p, g: p - 0.1 * g, params, slopes)


@pytest.mark.parametrize("spec", [P(), P("i")])
def test_training_steps_by_specs(mesh, spec):
    random = np.random.default_rng(1)
    params = {
        "up": random.standard_normal((16, 32)).astype(np.float32),
        "down": random.standard_normal((32, 8)).astype(np.float32),
    }
    lies = dict.fromkeys(params, NamedSharding(mesh, spec))
    batch = NamedSharding(mesh, P("i"))
    whole = NamedSharding(mesh, P())
    f = af.jit(step, in_shardings=(lies, batch), out_shardings=(whole, lies))
    x, there, here = af.device_put(X, batch), params, params
    for _ in range(12):
        value, there = f(there, x)
        want, here = af.jit(step, device="cpu")(here, X)
        same(value, want)
    same(there["up"], here["up"])


def test_a_named_device_runs_on_the_mesh(mesh):
    f = shard_map(lambda x: lax.psum(x, "i"), mesh=mesh, in_specs=P("i"), out_specs=P())
    y = af.jit(f, device="cuda")(X)
    assert isinstance(y, af.ShardedArray)
    same(y, X.reshape(mesh.size, -1, 16).sum(0))


def test_gpus_that_wait_for_each_other_end(mesh, monkeypatch):
    if mesh.size == 1:
        pytest.skip("one GPU waits for nobody")
    monkeypatch.setenv("ARRAYFN_COLLECTIVE_TIMEOUT", "3")

    def uneven(x):
        first = lax.axis_index("i") == 0
        return lax.cond(first, lambda x: lax.psum(x, "i"), lambda x: 2 * x, x)

    f = shard_map(uneven, mesh=mesh, in_specs=P("i"), out_specs=P("i"), check_vma=False)
    with pytest.raises(af.errors.CollectiveError, match="has not ended within 3 s"):
        np.asarray(f(X))
    total = shard_map(
        lambda x: lax.psum(x, "i"), mesh=mesh, in_specs=P("i"), out_specs=P()
    )
    same(total(X), X.reshape(mesh.size, -1, 16).sum(0))
