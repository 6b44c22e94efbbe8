"""Pipeline parallelism: a deep network whose layers lie on different devices.

    ARRAYFN_CPU_DEVICES=4 python examples/pipeline.py
    python examples/pipeline.py --stages 8 --microbatches 16 --steps 50

Each device holds the layers of one stage. A batch is divided into microbatches. In each
iteration of a ``lax.scan``, a stage computes one microbatch and passes the result to
the next stage by ``lax.ppermute``. The gradient runs the same schedule backwards,
because the transpose of a scan is a scan, and the transpose of a permutation is the
inverse permutation. With m microbatches and n stages, a device is idle in n - 1 of the
m + n - 1 iterations. The schedule is that of GPipe (Huang et al., "GPipe: Efficient
Training of Giant Neural Networks using Pipeline Parallelism", 2019).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import Mesh, lax
from arrayfn import PartitionSpec as P

Array = Any
Params = dict[str, Array]
AXIS = "stage"


def init_params(stages: int, layers: int, width: int) -> Params:
    """Weights [stages, layers, width, width] and biases, float32."""
    draw = np.random.default_rng(0)
    shape = stages, layers, width, width
    weights = draw.standard_normal(shape, dtype=np.float32) / width**0.5
    return {"w": weights, "b": np.zeros(shape[:3], np.float32)}


def stage(params: Params, x: Array) -> Array:
    """Residual layers, one after the other. x: [rows, width]."""

    def layer(x: Array, p: Params) -> tuple[Array, None]:
        return x + anp.tanh(x @ p["w"] + p["b"]) / 4, None

    return lax.scan(layer, x, params)[0]


def pipelined(
    apply: Callable[[Params, Array], Array], params: Params, x: Array
) -> Array:
    """What the last stage makes of microbatches x [m, rows, width].

    Runs on each device of a mesh, with its own ``params``. Other stages than the last
    return what they have computed on the way.
    """
    count, stages, here = x.shape[0], lax.axis_size(AXIS), lax.axis_index(AXIS)
    following = [(k, k + 1) for k in range(stages - 1)]

    def tick(received: Array, time: Array) -> tuple[Array, Array]:
        first = x[anp.minimum(time, count - 1)]
        y = apply(params, anp.where(here == 0, first, received))
        return lax.ppermute(y, AXIS, following), y

    start = lax.pvary(anp.zeros_like(x[0]), AXIS)
    _, made = lax.scan(tick, start, anp.arange(count + stages - 1))
    return made[stages - 1 :]


def loss_of(params: Params, x: Array, y: Array, mesh: Mesh) -> Array:
    """The mean square error over a batch of microbatches x and y [m, rows, width]."""

    def on_each(params: Params, x: Array, y: Array) -> Array:
        own = af.tree.map(lambda p: p[0], params)
        error = ((pipelined(stage, own, x) - y) ** 2).mean()
        is_last = lax.axis_index(AXIS) == lax.axis_size(AXIS) - 1
        return lax.psum(anp.where(is_last, error, 0), AXIS)

    over = af.shard_map(on_each, mesh=mesh, in_specs=(P(AXIS), P(), P()), out_specs=P())
    return over(params, x, y)


def train(
    stages: int = 4,
    microbatches: int = 8,
    steps: int = 20,
    *,
    layers: int = 2,
    width: int = 32,
    rows: int = 16,
    rate: float = 0.5,
    device: str | None = None,
) -> Iterator[float]:
    """Yield the loss before each step; ``device="cpu"`` computes it on one device."""
    mesh = Mesh((stages,), (AXIS,))
    draw = np.random.default_rng(1)
    x = draw.standard_normal((microbatches, rows, width), dtype=np.float32)
    y = np.roll(np.sin(x), 1, axis=-1)

    def step(params: Params, x: Array, y: Array) -> tuple[Params, Array]:
        value, slopes = af.value_and_grad(partial(loss_of, mesh=mesh))(params, x, y)
        return af.tree.map(lambda p, g: p - rate * g, params, slopes), value

    run = af.jit(step, device=device)
    params: Any = init_params(stages, layers, width)
    if device is None:
        params = af.device_put(params, af.NamedSharding(mesh, P(AXIS)))
    for _ in range(steps):
        params, value = run(params, x, y)
        yield float(value)


def main() -> None:
    """Train, and show the loss."""
    parser = argparse.ArgumentParser(description="Train a network in a pipeline.")
    for name, default in (("stages", 4), ("microbatches", 8), ("steps", 20)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    if len(af.devices("cpu")) < options.stages:
        af.set_num_devices(options.stages)
    idle = (options.stages - 1) / (options.microbatches + options.stages - 1)
    print(f"{options.stages} stages, idle for {idle:.0%} of the ticks")
    losses = train(options.stages, options.microbatches, options.steps)
    for number, loss in enumerate(losses):
        if number % max(1, options.steps // 5) == 0:
            print(f"step {number:4d}  loss {loss:.5f}")


if __name__ == "__main__":
    main()
