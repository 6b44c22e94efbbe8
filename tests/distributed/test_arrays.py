"""Devices, meshes, and arrays that lie over them."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import Mesh, NamedSharding, sparse
from arrayfn import PartitionSpec as P
from arrayfn.errors import ArgumentError, BackendError, InPlaceError, ShapeError
from arrayfn.scipy.sparse.linalg import spsolve

MESH = Mesh((2, 4), ("data", "model"))
X = np.arange(32.0).reshape(4, 8)


def test_the_cpu_counts_as_many_devices():
    cpus = [str(d) for d in af.devices() if d.platform == "cpu"]
    assert cpus == [f"cpu:{k}" for k in range(8)]
    assert af.local_devices() == af.devices()
    code = "import arrayfn as af; print(len(af.devices()), af.devices()[0].threads)"
    env = {
        **os.environ,
        "ARRAYFN_CPU_DEVICES": "3",
        "ARRAYFN_NUM_THREADS": "7",
        "CUDA_VISIBLE_DEVICES": "",
    }
    told = subprocess.run(
        [sys.executable, "-c", code],
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.split() == ["3", "2"]
    with pytest.raises(ArgumentError, match="from 1 to 256, not 0"):
        af.set_num_devices(0)
    mesh = Mesh((9,), ("i",))
    with pytest.raises(BackendError, match="set_num_devices\\(9\\)"):
        af.device_put(np.zeros(9), NamedSharding(mesh, P("i")))


def test_meshes():
    assert MESH.shape == {"data": 2, "model": 4}
    assert MESH.size == 8
    assert MESH.coordinates[6] == {"data": 1, "model": 2}
    assert MESH.group(6, "model") == (4, 5, 6, 7)
    assert MESH.group(6, "data") == (2, 6)
    assert repr(Mesh((2,), ("i",), (3, 1))) == "Mesh((2,), ('i',), (3, 1))"
    grid = np.array(af.devices()[:4]).reshape(2, 2)
    assert Mesh(grid, ("i", "j")) == Mesh((2, 2), ("i", "j"))
    assert Mesh(grid.T, ("i", "j")).device_ids == (0, 2, 1, 3)
    assert pickle.loads(pickle.dumps(MESH)) == MESH
    for wrong in [((2, 2), ("i",)), ((2, 2), ("i", "i")), ((0,), ("i",))]:
        with pytest.raises(ArgumentError, match="Mesh: "):
            Mesh(*wrong)
    with pytest.raises(ArgumentError, match="2 different devices"):
        Mesh((2,), ("i",), (1, 1))


def test_specs():
    assert P("i", None, ("j", "k")).axes() == ("i", "j", "k")
    assert P(["i", "j"]) == P(("i", "j"))
    assert hash(P("i")) == hash(P("i"))
    assert list(P("i", None)) == ["i", None]
    assert P(None, "i")[1] == "i"
    assert pickle.loads(pickle.dumps(P("i"))) == P("i")
    with pytest.raises(ArgumentError, match="an entry must be None"):
        P(3)
    with pytest.raises(ArgumentError, match="at most once"):
        NamedSharding(MESH, P("data", "data"))
    with pytest.raises(ArgumentError, match="at most once"):
        NamedSharding(MESH, P("rows"))


@pytest.mark.parametrize(
    "spec",
    [
        P(),
        P("data"),
        P(None, "model"),
        P("data", "model"),
        P(None, ("data", "model")),
        P("model", "data"),
    ],
)
def test_shards_are_parts_of_the_array(spec):
    sharding = NamedSharding(MESH, spec)
    x = af.device_put(X, sharding)
    assert x.shape == (4, 8)
    assert x.dtype == np.float64
    assert x.sharding == sharding
    assert x.is_fully_addressable
    assert x.is_fully_replicated == (spec == P())
    shards = x.addressable_shards
    assert [s.device.id for s in shards] == list(range(8))
    for shard in shards:
        np.testing.assert_array_equal(shard.data, X[shard.index])
    owners = [s for s in shards if s.replica_id == 0]
    assert sum(s.data.size for s in owners) == X.size
    np.testing.assert_array_equal(x, X)
    np.testing.assert_array_equal(af.device_get(x), X)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(x)), X)
    assert af.block_until_ready(x) is x


def test_arrays_are_immutable_and_own_their_parts():
    source = X.copy()
    x = af.device_put(source, NamedSharding(MESH, P("data")))
    source[:] = 0
    np.testing.assert_array_equal(x, X)
    with pytest.raises(InPlaceError):
        x[0] = 1
    with pytest.raises(ValueError, match="read-only"):
        x.addressable_shards[0].data[:] = 1
    whole = np.asarray(x)
    whole[:] = 0
    np.testing.assert_array_equal(x, X)


def test_pictures():
    x = af.device_put(X, NamedSharding(MESH, P("data")))
    assert x.picture() == (
        "P('data')\n"
        "[0:2, 0:8] cpu:0 cpu:1 cpu:2 cpu:3\n"
        "[2:4, 0:8] cpu:4 cpu:5 cpu:6 cpu:7"
    )
    assert repr(x).startswith(
        "ShardedArray<f64[4,8] P('data') over (data: 2, model: 4)"
    )
    html = af.device_put(X, NamedSharding(MESH, P("data", "model")))._repr_html_()
    assert html.count("<td") == 8
    assert html.count("<tr>") == 2
    assert "[2:4, 6:8]</b><br>cpu:7" in html


def test_arrays_of_callbacks():
    asked = []

    def part(index):
        asked.append(index)
        return X[index].astype(np.float32)

    sharding = NamedSharding(MESH, P(None, "model"))
    x = af.make_array_from_callback((4, 8), sharding, part)
    assert (x.dtype, len(asked)) == (np.float32, 4)
    np.testing.assert_array_equal(x, X)
    with pytest.raises(ShapeError, match=r"has shape \(4, 2\), but data_callback gave"):
        af.make_array_from_callback((4, 8), sharding, lambda index: X)


def test_keys_of_callbacks():
    keys = af.random.split(af.random.key(1), 4)
    sharding = NamedSharding(MESH, P("model"))
    found = af.make_array_from_callback((4,), sharding, lambda index: keys[index])
    assert found.shape == (4,)
    assert found.data.sharding == NamedSharding(MESH, P("model"))
    assert np.all(np.asarray(found == keys))
    with pytest.raises(ShapeError, match=r"has shape \(1,\), but .* gave \(4,\)"):
        af.make_array_from_callback((4,), sharding, lambda index: keys)


def test_numbers_and_axes_that_do_not_divide():
    one = af.device_put(3.0, NamedSharding(MESH, P()))
    assert float(one) == 3.0
    assert f"{one:.1f}" == "3.0"
    with pytest.raises(ShapeError, match="is no multiple of 4"):
        af.device_put(np.zeros((2, 6)), NamedSharding(MESH, P(None, "model")))


def test_a_mesh_of_a_list_of_devices():
    few = af.devices()[:2]
    assert Mesh(few, ("a",)) == Mesh(np.array(few), ("a",)) == Mesh((2,), ("a",))


def test_a_sparse_system_with_a_right_side_over_a_mesh():
    matrix = sparse.CSR(np.diag([1.0, 2.0, 4.0, 8.0]))
    right = af.device_put(np.ones(4), NamedSharding(Mesh((4,), ("d",)), P("d")))
    np.testing.assert_array_equal(spsolve(matrix, right), [1.0, 0.5, 0.25, 0.125])


CREATED = {
    "zeros": lambda **w: anp.zeros((4, 8), np.float32, **w),
    "ones": lambda **w: anp.ones((4, 8), **w),
    "full": lambda **w: anp.full((4, 8), np.arange(8), **w),
    "arange": lambda **w: anp.arange(1, 9, **w),
    "linspace": lambda **w: anp.linspace(0.0, 1.0, 8, **w),
    "eye": lambda **w: anp.eye(4, 8, 1, **w),
    "asarray": lambda **w: anp.asarray(X.tolist(), **w),
    "full_like": lambda **w: anp.full_like(X, 3.0, **w),
    "fftfreq": lambda **w: anp.fft.fftfreq(8, **w),
}


@pytest.mark.parametrize("name", CREATED)
def test_arrays_are_created_over_a_mesh(name):
    make = CREATED[name]
    sharding = NamedSharding(MESH, P("data"))
    for made in (make(device=sharding), af.jit(lambda: make(device=sharding))()):
        assert made.sharding == sharding
        np.testing.assert_array_equal(made, make(), strict=True)
    with af.set_mesh(MESH):
        assert make(device=P("data")).sharding == sharding
    uneven = NamedSharding(Mesh((3,), ("x",)), P("x"))
    with pytest.raises(ShapeError, match="3"):
        make(device=uneven)


def test_an_array_like_one_over_a_mesh_lies_as_that_one():
    x = af.device_put(X, NamedSharding(MESH, P(None, "model")))
    assert anp.zeros_like(x).sharding == x.sharding
    assert isinstance(anp.ones_like(x, shape=(3,)), np.ndarray)
    where = NamedSharding(MESH, P("data"))
    numbers, step = anp.linspace(0, 7, 8, retstep=True, device=where)
    assert (numbers.sharding, float(step)) == (where, 1.0)
    with pytest.raises(ArgumentError, match="over a mesh by a NamedSharding, not on 3"):
        anp.zeros(3, device=3)


def test_a_second_call_skips_the_look_up_of_its_signature(monkeypatch):
    mesh = af.Mesh((4,), ("i",))
    cut, whole = (af.NamedSharding(mesh, af.PartitionSpec(*s)) for s in (("i",), ()))
    values = np.arange(8.0)
    f = af.jit(lambda x, y: (x + y, x - y))
    given = af.device_put(values, cut), af.device_put(values, whole)
    f(*given)
    looked_up = []
    call = af.Jitted._call
    monkeypatch.setattr(
        af.Jitted, "_call", lambda *args: looked_up.append(1) or call(*args)
    )
    total, difference = f(*given)
    np.testing.assert_array_equal(total, 2 * values)
    np.testing.assert_array_equal(difference, 0 * values)
    assert not looked_up
    # Arguments of other shardings, and NumPy's, have their own signatures.
    np.testing.assert_array_equal(f(*given[::-1])[0], 2 * values)
    np.testing.assert_array_equal(f(given[0], values + 1)[1], -np.ones(8))
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        f(given[0])
    assert len(looked_up) == 3
