"""A model of what data-parallel training costs: ``python -m benchmarks.scale_model``.

A step of a device is its share of the arithmetic and the sum of gradients over all
devices. A ring sums B bytes of each of n members in 2 (n - 1) / n B bytes a link and
2 (n - 1) messages; over hosts it is a reduce_scatter inside each host, a ring (or a
tree, of log2 messages) between hosts for each part, and an all_gather inside. What the
backward pass hides is the share of the sum that other layers' gradients are computed
meanwhile: all but the last bucket, if arithmetic takes longer than the sum.
``docs/scale.md`` says what follows.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Link:
    """A way between members: seconds of a message, bytes a second of each member."""

    latency: float
    bandwidth: float


@dataclass(frozen=True)
class Machine:
    """Hosts of ``gpus`` GPUs each, and the links inside and between them."""

    gpus: int
    inside: Link
    between: Link


@dataclass(frozen=True)
class Model:
    """A model in training: parameters, bytes of a gradient, tokens of a batch.

    The batch is that of all devices together, as its quality for training asks for.
    """

    parameters: float
    gradient_bytes: float
    tokens: float
    rate: float  # floating-point operations a second of a device

    def compute(self, devices: int) -> float:
        """The seconds of a device's share: 6 operations for a weight and a token."""
        return 6 * self.parameters * self.tokens / devices / self.rate


H200: Final = Machine(8, Link(5.0e-6, 3.3e11), Link(2.0e-5, 5.0e10))
"""Eight H200 on NVLink, as sums over two of them were measured; and for each GPU a
network card of 400 Gbit/s, as its maker says."""
CALL: Final = 1.5e-5  # seconds of a call by which sums were measured
BUCKET: Final = 4 << 20
HIDDEN: Final = 0.67  # of the arithmetic that is the backward pass


def ring(nbytes: float, members: int, link: Link) -> float:
    """The seconds of an all_reduce of ``nbytes`` of each of ``members``.

    >>> link = Link(1e-5, 1e9)
    >>> round(ring(1e9, 2, link), 5), ring(1e9, 1, link)
    (1.00002, 0.0)
    """
    if members == 1:
        return 0.0
    steps = 2 * (members - 1)
    return steps * (link.latency + nbytes / members / link.bandwidth)


def tree(nbytes: float, members: int, link: Link) -> float:
    """As ``ring``, by a double binary tree: fewer messages, the same bytes."""
    if members == 1:
        return 0.0
    messages = 2 * math.ceil(math.log2(members))
    return messages * link.latency + 2 * nbytes / link.bandwidth


def summed(nbytes: float, devices: int, machine: Machine) -> float:
    """The seconds of a sum over ``devices``, host by host."""
    inside = min(devices, machine.gpus)
    hosts = math.ceil(devices / machine.gpus)
    part = nbytes / inside
    across = min(ring(part, hosts, machine.between), tree(part, hosts, machine.between))
    return ring(nbytes, inside, machine.inside) + across


def step(model: Model, devices: int, machine: Machine) -> tuple[float, float]:
    """The seconds of a step with nothing hidden, and with all that can be."""
    compute = model.compute(devices)
    sums = summed(model.parameters * model.gradient_bytes, devices, machine)
    last = summed(BUCKET, devices, machine)
    hidden = min(sums - last, HIDDEN * compute) if devices > 1 else 0.0
    return compute + sums, compute + sums - max(hidden, 0.0)


MEASURED: Final = {1: 0.029, 16: 0.080, 256: 0.905, 1024: 3.270}
"""Milliseconds of a psum of so many MiB on two H200."""
SMALL: Final = Model(5.04e7, 4, 1 << 14, 4.23e14)
"""The GPT of benchmarks.scale: 11.7 ms on one H200."""
MODELS: Final = {
    "1.3 G parameters, batch of 2 M tokens": Model(1.3e9, 2, 1 << 21, 4e14),
    "7 G parameters, batch of 4 M tokens": Model(7e9, 2, 1 << 22, 4e14),
    "70 G parameters, batch of 16 M tokens": Model(7e10, 2, 1 << 24, 4e14),
}
DEVICES: Final = (1, 8, 64, 512, 2048, 10_000)


def main() -> None:
    """Print what the model says."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    print("sums over two GPUs, ms: modelled, measured")
    for size, measured in MEASURED.items():
        modelled = (CALL + summed(size * 2**20, 2, H200)) * 1e3
        print(
            f"  {size:5} MiB {modelled:7.3f} {measured:7.3f} {modelled / measured:6.2f}"
        )
    plain, hidden = step(SMALL, 2, H200)
    alone = SMALL.compute(1)
    print(
        f"GPT step on two: {plain * 1e3:.1f} ms, overlapped {hidden * 1e3:.1f};", end=""
    )
    print(f" scaling {alone / 2 / plain:.1%}, overlapped {alone / 2 / hidden:.1%}")
    for name, model in MODELS.items():
        print(name)
        for devices in DEVICES:
            plain, hidden = step(model, devices, H200)
            compute = model.compute(devices)
            print(
                f"  {devices:6,} GPUs: compute {compute * 1e3:10,.1f} ms, sum "
                f"{(plain - compute) * 1e3:7,.1f} ms, scaling {compute / plain:6.1%}, "
                f"overlapped {compute / hidden:6.1%}"
            )


if __name__ == "__main__":
    main()
