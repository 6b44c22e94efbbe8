"""``set_mesh``: PartitionSpecs alone refer to the mesh of a block."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

import arrayfn as af
from arrayfn import PartitionSpec as P
from arrayfn import lax
from arrayfn.errors import ArgumentError

TWO, FOUR = af.Mesh((2,), ("x",)), af.Mesh((4,), ("x",))


@pytest.fixture(autouse=True)
def eight_devices() -> Iterator[None]:
    af.set_num_devices(8)
    yield
    af.set_mesh(None)


def test_a_compiled_function_is_compiled_for_each_mesh_that_it_asks_for() -> None:
    f = af.jit(lambda x: lax.with_sharding_constraint(x * 2, P("x")))
    x = np.arange(8.0)
    for mesh in (TWO, FOUR, TWO):
        with af.set_mesh(mesh):
            for _ in range(3):  # the second call takes a shortcut, where there is one
                y = f(x)
                assert y.sharding == af.NamedSharding(mesh, P("x"))
                assert np.array_equal(y, 2 * x)
    reasons = [built.reason for _, built in f.signatures()]
    assert reasons == ["", "the mesh of set_mesh is x: 4, not x: 2"]
    with pytest.raises(ArgumentError, match=r"P\('x'\) without a mesh; give one, or"):
        f(x)


def test_other_functions_are_compiled_once_for_all_meshes() -> None:
    f = af.jit(lambda x: 2 * x)
    for mesh in (None, TWO, FOUR):
        af.set_mesh(mesh)
        f.forget_last()
        assert f(3.0) == 6.0
    assert len(f.signatures()) == 1


def test_shardings_of_arguments_and_results() -> None:
    double = af.jit(lambda x: 2 * x, in_shardings=P("x"), out_shardings=P())
    with af.set_mesh(TWO):
        x = af.device_put(np.arange(4.0), P("x"))
        assert x.sharding == af.NamedSharding(TWO, P("x"))
        assert double(x).sharding == af.NamedSharding(TWO, P())


def test_shard_map_without_a_mesh_takes_that_of_its_call() -> None:
    @af.shard_map(in_specs=P("x"), out_specs=P("x"))
    def share(x):
        return x / lax.psum(x.sum(), "x")

    for mesh in (TWO, FOUR):
        with af.set_mesh(mesh):
            result = af.jit(share)(np.array([1.0, 2.0, 4.0, 1.0]))
            assert result.sharding.mesh == mesh
            assert np.array_equal(result, [0.125, 0.25, 0.5, 0.125])
    with pytest.raises(ArgumentError, match="shard_map of share without a mesh"):
        share(np.ones(4))


def test_set_mesh_holds_from_then_on_in_its_thread() -> None:
    af.set_mesh(TWO)
    with af.set_mesh(FOUR):
        assert af.device_put(np.ones(4), P("x")).sharding.mesh == FOUR
    assert af.device_put(np.ones(4), P("x")).sharding.mesh == TWO
    errors: list[Exception] = []

    def elsewhere() -> None:
        try:
            af.device_put(np.ones(4), P("x"))
        except ArgumentError as error:
            errors.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert len(errors) == 1


def test_set_mesh_refuses_traces_and_what_is_no_mesh() -> None:
    with pytest.raises(ArgumentError, match=r"while '<lambda> \(.*\)' is traced"):
        af.jit(lambda x: (af.set_mesh(TWO), x)[1])(1.0)
    with pytest.raises(ArgumentError, match=r"an arrayfn\.Mesh, not tuple"):
        af.set_mesh((2,))  # type: ignore[arg-type]
