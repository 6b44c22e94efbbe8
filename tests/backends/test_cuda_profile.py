"""Profiles on a GPU: events belong to the plan's steps, and add up."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import lax
from arrayfn.backends.cuda import missing_here
from arrayfn.backends.cuda.plan_nodes import HostCall, LoopNode, NativeRun, StepAccesses
from arrayfn.backends.cuda.timed import Events, TimedWalk, step_numbers
from arrayfn.lowering.plan import KernelCall, Loop

on_gpu = pytest.mark.skipif(bool(missing_here()), reason=missing_here())


def call(items: int = 1) -> KernelCall:
    return KernelCall("k", (), items)


LOOP = Loop((call(), call()), 3)
HOST = HostCall(lambda *_: None, (), False, StepAccesses((), ()))
STEPS = (call(), call(0), call(), LOOP, call(), call())
NODES = (NativeRun(0, 2), LoopNode(LOOP, (NativeRun(2, 2),)), HOST, NativeRun(4, 1))
NUMBERS = {0: 0, 1: 2, 2: 4, 3: 5, id(HOST): 6, 4: 7}
"""Step 1 has no items, and is not launched."""


def test_nodes_have_the_numbers_of_their_steps() -> None:
    assert step_numbers(NODES, STEPS) == NUMBERS


def test_an_event_is_recorded_after_each_launch() -> None:
    happened: list[str] = []

    class Image:
        has_collectives = False

        def launch(self, node: NativeRun, addresses: Any, stream: int) -> None:
            happened.append(f"launch {node.first} {node.count}")

    class Recorder(Events):
        def record(self, step: int) -> None:
            happened.append(f"step {step}")

    image: Any = Image()
    TimedWalk(image, [], Recorder(), NUMBERS).run(NODES, 0)
    inside = ["launch 2 1", "step 4", "launch 3 1", "step 5"]
    assert happened == [
        *("launch 0 1", "step 0", "launch 1 1", "step 2"),
        *(3 * inside),
        *("step 6", "launch 4 1", "step 7"),
    ]


def chain(x: Any, w: Any) -> Any:
    for _ in range(4):
        x = anp.tanh(x @ w)
    return anp.sum(x, axis=1)


def recurrent(x: Any, w: Any) -> Any:
    return lax.scan(lambda h, _: (anp.tanh(h @ w), None), x, None, length=10)[0]


@on_gpu
@pytest.mark.skipif(
    int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) > 1,
    reason="other tests use the GPU at the same time",
)
@pytest.mark.parametrize("function", [chain, recurrent])
def test_steps_add_up_to_the_wall_clock_within_five_percent(function: Any) -> None:
    rng = np.random.default_rng(0)
    x = af.device_put(rng.standard_normal((8192, 2048)).astype(np.float32), "cuda")
    w = af.device_put(rng.standard_normal((2048, 2048)).astype(np.float32) / 50, "cuda")
    f = af.jit(function)
    wanted = np.asarray(f(x, w))
    with af.profile():
        f(x, w)  # the first calls choose among products
    shares: list[float] = []
    for _ in range(5):
        with af.profile() as p:
            for _ in range(3):
                result = f(x, w)
        assert np.asarray(result).tobytes() == wanted.tobytes()
        assert sum(row.seconds for row in p.steps) + p.calling + p.outside + (
            p.compiling
        ) == pytest.approx(p.seconds)
        shares.append(
            sum(row.seconds for row in p.steps) / sum(call.seconds for call in p.calls)
        )
    assert 0.95 < max(shares) < 1.01
    product = max(p.steps, key=lambda row: row.operations)
    assert product.operations % (2 * 8192 * 2048 * 2048) == 0
    assert product.share_of_roof is not None
    assert 0.2 < product.share_of_roof < 1.5
