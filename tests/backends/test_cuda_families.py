"""Every family of CUDA kernels compiles to PTX, for Ampere and for Hopper.

Those of single families are in tests of their own too; here is one of each, as the
lowering makes them for a card of that generation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import lax, nn
from arrayfn import random as draws
from arrayfn.backends.cuda import missing_packages
from arrayfn.backends.cuda.code import kernel_ptx
from arrayfn.lowering.cuda.config import GPU, GpuConfig
from arrayfn.lowering.options import DEFAULT, Options
from arrayfn.lowering.plan import Kernel
from tests.common_functions import layernorm, random, softmax
from tests.lowered_on_gpu import lowered

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(bool(missing_packages()), reason=missing_packages()),
]

# Before Hopper no blocks share a row, and nothing copies beside a block.
CARDS: Final[dict[tuple[int, int], GpuConfig]] = {
    (8, 0): replace(GPU, max_cluster=0, multiprocessors=108),
    (9, 0): GPU,
}
ROWS: Final = (np.arange(70_000) * 7919 % 40).astype(np.int32)

Function = Callable[..., Any]


def spd(x: Any) -> Any:
    return anp.matmul(x, anp.swapaxes(x, -1, -2)) + x.shape[-1] * anp.eye(
        x.shape[-1], dtype=x.dtype
    )


def added_to_few(x: Any) -> Any:
    return anp.at(anp.zeros((40, 8), np.float32))[ROWS[:900]].add(x)


def added_to_many(x: Any) -> Any:
    return anp.at(anp.zeros(3_000_000, np.float32))[ROWS * 40].add(x)


def pooled(x: Any) -> Any:
    window = (1, 2, 2, 1)
    return lax.reduce_window(x, -np.inf, lax.max, window, window, "VALID")


def depthwise(x: Any, w: Any) -> Any:
    names = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(
        x, w, (1, 1), "SAME", dimension_numbers=names, feature_group_count=x.shape[3]
    )


def attention(q: Any) -> Any:
    q = q.astype(np.float16)
    return nn.dot_product_attention(q, q, q, is_causal=True, local_window_size=(9, 0))


def mandelbrot(c: Any) -> Any:
    goes_on = lambda s: (s[0] < 50) & (anp.abs(s[1]) < 2)  # noqa: E731
    turn = lambda s: (s[0] + 1, s[1] * s[1] + c)  # noqa: E731
    return lax.while_loop(goes_on, turn, (0, 0 * c))[0]


def recurrent(x: Any, w: Any) -> Any:
    return lax.scan(lambda h, r: (anp.tanh(h @ w + r),) * 2, x[0], x)[1]


IMAGES: Final = random(2, 12, 12, 8)
# name: function, arguments
FAMILIES: Final[dict[str, tuple[Function, tuple[Any, ...]]]] = {
    "elementwise": (lambda x: anp.exp(x) + 1, (random(4099),)),
    "rows of a block": (softmax, (random(300, 4096),)),
    "rows of a cluster": (softmax, (random(3, 65536),)),
    "rows fetched ahead": (layernorm, (random(300, 40_000), random(40_000))),
    "columns": (lambda x: softmax(x.T), (random(300, 70),)),
    "reductions to few": (anp.sum, (random(1_000_003),)),
    "positions": (lambda x: anp.argmax(x, axis=0), (random(517, 33),)),
    "transposes": (lambda x, y: x + y.T, (random(70, 100), random(100, 70))),
    "running values": (lambda x: anp.cumsum(x, axis=1), (random(5, 5001),)),
    "running values in parts": (
        lambda x: anp.cumsum(x, axis=1),
        (random(3, 300_000),),
    ),
    "gathers": (lambda x: x[ROWS], (random(40, 32),)),
    "scatters": (
        added_to_few,
        (random(900, 8),),
    ),
    "scatters to tiles": (
        added_to_many,
        (random(70_000),),
    ),
    "sorts in a block": (lambda x: anp.sort(x, axis=1), (random(70, 100),)),
    "sorts of tiles": (anp.argsort, (random(300_000),)),
    "random bits": (lambda x: x + draws.normal(draws.key(1), x.shape), (random(999),)),
    "skinny products of lines": (
        lambda x, y: x @ y.T,
        (random(3, 1304), random(4096, 1304)),
    ),
    "skinny products of columns": (
        lambda x, y: x @ y,
        (random(3, 1304), random(1304, 4096)),
    ),
    "skinny products of halves": (
        lambda x, y: x @ y,
        (random(3, 2048, dtype=np.float16), random(2048, 2048, dtype=np.float16)),
    ),
    "softmax of long rows of halves": (softmax, (random(9, 65536, dtype=np.float16),)),
    "attention": (attention, (random(1, 64, 2, 64),)),
    "windows": (pooled, (IMAGES,)),
    "windows' gradient": (af.grad(lambda x: anp.sum(pooled(x) ** 2)), (IMAGES,)),
    "depthwise": (depthwise, (IMAGES, random(3, 3, 1, 8))),
    "depthwise kernels": (
        af.grad(lambda w, x: anp.sum(depthwise(x, w) ** 2)),
        (random(3, 3, 1, 8), IMAGES),
    ),
    "Cholesky of small": (lambda x: anp.linalg.cholesky(spd(x)), (random(9, 20, 20),)),
    "Cholesky of tiles": (lambda x: anp.linalg.cholesky(spd(x)), (random(300, 300),)),
    "substitution": (
        lambda x, y: lax.linalg.triangular_solve(x, y, left_side=True, lower=True),
        (random(512, 512), random(512, 2)),
    ),
    "small spectra": (lambda x: anp.linalg.eigh(x + x.mT), (random(9, 16, 16),)),
    "small singular values": (anp.linalg.svd, (random(9, 16, 12),)),
    "permutations": (anp.linalg.det, (random(3, 20, 20),)),
    "loops of threads": (af.vmap(mandelbrot), (random(500) + 0j,)),
    "small loops": (recurrent, (random(6, 5), random(5, 5))),
}
OPTIONS: Final = {
    "scatters": [Options(deterministic=False)],
    "small loops": [Options(mode="persistent")],
}
# What copies ahead; on other cards cuBLAS computes these.
HOPPER: Final = {
    f"skinny products of {what}" for what in ("lines", "columns", "halves")
}


def kernels(name: str, gpu: GpuConfig) -> list[Kernel]:
    function, arguments = FAMILIES[name]
    made: dict[str, Kernel] = {}
    for options in (DEFAULT, *OPTIONS.get(name, ())):
        for kernel in lowered(function, *arguments, gpu=gpu, options=options).kernels:
            if isinstance(kernel, Kernel):
                made[kernel.key] = kernel
    return list(made.values())


@pytest.mark.parametrize("arch", CARDS, ids="sm_{0[0]}{0[1]}".format)
@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_compiles_to_ptx(name: str, arch: tuple[int, int]) -> None:
    """By the compiler of generated kernels: nothing is left to numba-cuda."""
    made = kernels(name, CARDS[arch])
    assert made or (name in HOPPER and arch < (9, 0))
    for kernel in made:
        ptx = kernel_ptx(kernel, arch)
        assert f".target sm_{arch[0]}{arch[1]}" in ptx
        assert ".visible .entry kernel(" in ptx
