"""A profile of a mesh of GPUs, without one: emulated GPUs whose steps are timed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from threading import Lock
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import Mesh, NamedSharding, lax, shard_map
from arrayfn import PartitionSpec as P
from arrayfn.backends.cuda.emulator import plan
from arrayfn.backends.members import LOADING, RUNNING
from arrayfn.backends.plan_interpreter import allocated
from arrayfn.distributed import gpus, programs
from arrayfn.distributed.devices import DEVICES, Device
from arrayfn.distributed.threads import Run, ThreadMember
from arrayfn.lowering.compiled import CompiledProgram
from arrayfn.lowering.plan import KernelCall, kernel_calls, numbered
from arrayfn.tools.measured import Roof

PAIR = Mesh((2,), ("i",), platform="cuda")
X = np.random.default_rng(0).standard_normal((4, 16)).astype(np.float32)
_EMULATOR = Lock()  # is one for the process


class Clocked(plan._Run):
    """Times each call of a kernel, by the number of its step."""

    def call(self, step: KernelCall) -> None:
        meets = step.kernel.startswith("collective")
        begin = time.perf_counter()
        with nullcontext() if meets else _EMULATOR:
            super().call(step)
        seconds = time.perf_counter() - begin
        number = self.numbers[id(step)]
        runs, total = self.taken.get(number, (0, 0.0))
        self.taken[number] = runs + 1, total + seconds


class EmulatedGpu:
    """What ``TimedExecutable`` is, of a GPU that is emulated."""

    run = Run(PAIR, ["cuda:0", "cuda:1"])

    def __init__(
        self, compiled: CompiledProgram, through: Callable[[Any], Any]
    ) -> None:
        self.compiled = compiled
        self.member = LOADING.member
        self.taken: dict[int, tuple[int, float]] = {}
        self.waits = 0
        self.call = through(self._call)

    def _call(self, *inputs: Any) -> Any:
        RUNNING.member = ThreadMember(self.run, self.member)
        types = zip(inputs, self.compiled.input_types, strict=True)
        arrays = [np.asarray(x, t.dtype) for x, t in types]
        buffers = allocated(self.compiled, arrays, plan._unwritten, over_donors=True)
        walk = Clocked(self.compiled, buffers, plan.emulated)
        walk.numbers = {id(s): k for k, s in numbered(self.compiled.plan.steps)}
        walk.taken = self.taken
        try:
            return walk.run()
        finally:
            RUNNING.member = None

    def wait(self) -> None:
        self.waits += 1

    def times_of_steps(self) -> Mapping[int, tuple[int, float]]:
        return self.taken


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two emulated GPUs."""
    places = tuple(Device(k, platform="cuda") for k in range(2))
    monkeypatch.setattr(DEVICES, "gpu_devices", places)
    monkeypatch.setattr(gpus, "TimedExecutable", EmulatedGpu)
    monkeypatch.setattr(gpus, "NcclMember", lambda mesh, member, barrier: member)
    monkeypatch.setattr(gpus, "gpu_of", lambda place: SimpleNamespace())
    monkeypatch.setattr(gpus, "on", lambda gpu: nullcontext())
    monkeypatch.setattr(gpus, "device_put", np.asarray)
    monkeypatch.setattr(programs, "put_sharded", parts_of)
    tops = {"cuda": Roof(4e12, 5e13)}
    monkeypatch.setattr("arrayfn.tools.profile.roof", lambda name, *_: tops[name])


def parts_of(x: Any, sharding: NamedSharding) -> Any:
    places = range(sharding.mesh.size)
    return SimpleNamespace(parts={k: x[sharding.index(x.shape, k)] for k in places})


def mean_of_squares(x: Any) -> Any:
    """On each member: a sum over its rows, and one over members."""
    return lax.pmean(anp.mean(anp.tanh(x) ** 2), "i")


@pytest.mark.usefixtures("cards")
def test_the_steps_of_a_mesh_of_gpus_have_times_and_add_up() -> None:
    f = af.jit(shard_map(mean_of_squares, mesh=PAIR, in_specs=P("i"), out_specs=P()))
    with af.profile() as p:
        for _ in range(3):
            value = f(X)
    np.testing.assert_allclose(np.asarray(value), np.mean(np.tanh(X) ** 2), rtol=1e-5)
    steps = {row.kernel: row for row in p.steps}
    collective = next(row for name, row in steps.items() if name.startswith("collec"))
    assert len(p.steps) == len(f.lower(X).plan.steps) > 1
    assert {row.runs for row in p.steps} == {3}
    assert {row.backend for row in p.steps} == {"cuda"}
    assert collective.seconds > 0
    assert collective.share_of_roof is not None
    total = sum(row.seconds for row in p.steps) + p.calling + p.outside + p.compiling
    assert total == pytest.approx(p.seconds)
    # A GPU's own operations, not those of both.
    work = max(p.steps, key=lambda row: row.operations)
    assert 3 * X.size / 2 <= work.operations < 3 * X.size * 20
    assert "mean_of_squares" in str(p)
    assert "roof of cuda" in str(p)


@pytest.mark.usefixtures("cards")
def test_a_step_that_one_gpu_takes_counts_for_the_mesh() -> None:
    def body(x: Any) -> Any:
        first = lax.axis_index("i") == 0
        return lax.cond(first, anp.sin, anp.sort, x[0])

    f = af.jit(shard_map(body, mesh=PAIR, in_specs=P("i"), out_specs=P("i")))
    with af.profile() as p:
        values = np.asarray(f(X[::2]))
    np.testing.assert_allclose(values[:16], np.sin(X[0]), rtol=1e-5)
    np.testing.assert_array_equal(values[16:], np.sort(X[2]))
    branches = f.lower(X[::2]).plan.steps
    taken = {row.kernel for row in p.steps}
    assert {c.kernel for c in kernel_calls(branches)} == taken
    assert "sort_rows_0" in taken
    assert {row.runs for row in p.steps} == {1}
