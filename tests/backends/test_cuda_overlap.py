"""Random chains of kernels on a GPU: no result depends on when a kernel begins.

Kernels begin while those before them end, and memory of what died is the next kernel's
at once. Chains of short and long kernels, of library calls, loops and branches run many
times without waiting, on several arguments alternately, such that what is read too
early is another argument's; the bits are those of a run that waits after each call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, Final

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import lax, nn, random
from arrayfn.backends.cuda import missing_here

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(bool(missing_here()), reason=missing_here()),
]

SHAPES: Final = ((64, 64), (256, 512), (2048, 1024))
STEPS: Final = 10
RUNS: Final = 20
KEPT: Final = 4  # of so many runs the results of one are kept, others die at once
ARGUMENTS: Final = 3
TOGETHER: Final = 10  # runs that are enqueued while something else still runs


def solved(x: Any, y: Any) -> Any:
    """A small system of equations, whose solution moves all of ``x``."""
    a = anp.reshape(y, (-1,))[: 48 * 48].reshape(48, 48)
    b = anp.reshape(x, (-1,))[: 48 * 3].reshape(48, 3)
    found = anp.linalg.solve(a @ a.T + 48 * anp.eye(48, dtype=np.float32), b)
    return anp.tanh(x + anp.sum(found))


def factored(x: Any, y: Any) -> Any:
    a = anp.reshape(y, (-1,))[:4096].reshape(64, 64)
    factor = anp.linalg.cholesky(a @ a.T + 64 * anp.eye(64, dtype=np.float32))
    return anp.tanh(x + 0.01 * anp.sum(factor, axis=1)[:1])


def multiplied(x: Any, y: Any) -> Any:
    rows = anp.reshape(x, (-1, 64))
    return anp.reshape(anp.tanh(rows @ anp.reshape(y, (-1, 64))[:64]), x.shape)


def transformed(x: Any, y: Any) -> Any:
    spectrum = anp.fft.rfft(x, axis=1)
    return anp.fft.irfft(spectrum * 0.5, n=x.shape[1], axis=1) + 0.5 * y


def convolved(x: Any, y: Any) -> Any:
    image = anp.reshape(x, (1, 4, 16, -1))
    window = anp.reshape(y, (-1,))[: 4 * 4 * 3 * 3].reshape(4, 4, 3, 3)
    made = lax.conv_general_dilated(image, window, (1, 1), "SAME")
    return anp.tanh(anp.reshape(made, x.shape))


def scattered(x: Any, y: Any) -> Any:
    rows = anp.astype(anp.abs(y[:, 0]) * x.shape[0], np.int32) % x.shape[0]
    return anp.tanh(anp.at(anp.zeros_like(x))[rows].add(x) + 0.1 * y)


def padded_gradient(x: Any, y: Any) -> Any:
    return af.grad(lambda v: anp.sum(anp.sin(anp.pad(v, 3) * 0.5)))(x) + 0.1 * y


def looped(x: Any, y: Any) -> Any:
    """A loop whose number of turns the values decide."""

    def goes_on(state: Any) -> Any:
        turn, z = state
        return (turn < 5) & (anp.mean(z * z) > 1e-3)

    def turn(state: Any) -> Any:
        n, z = state
        return n + 1, 0.7 * z - 0.05 * anp.roll(z, 1, axis=0)

    return lax.while_loop(goes_on, turn, (0, x))[1] + 0.1 * y


def scanned(x: Any, y: Any) -> Any:
    parts = anp.reshape(x, (16, -1))
    first = anp.reshape(y, (16, -1))[0]
    _, made = lax.scan(lambda s, p: (anp.tanh(s + p),) * 2, first, parts)
    return anp.reshape(made, x.shape)


def branched(x: Any, y: Any) -> Any:
    flat = anp.sum(x) > anp.sum(y)
    return lax.cond(flat, lambda a, b: anp.sin(a) - b, lambda a, b: a + 0.5 * b, x, y)


def drawn(x: Any, y: Any) -> Any:
    return 0.5 * x + random.uniform(random.key(7), x.shape, np.float32) - 0.5 * y


def flat(x: Any) -> Any:
    return anp.reshape(x, (-1,))


def long_rows(x: Any) -> Any:
    """``x`` as rows that are too long for a block, if it has as many elements."""
    return anp.reshape(x, (-1, min(x.size, 1 << 16)))


def normalized(x: Any, y: Any) -> Any:
    rows, weights = long_rows(x), long_rows(y)[0]
    centred = rows - anp.mean(rows, axis=1, keepdims=True)
    spread = anp.sqrt(anp.mean(centred * centred, axis=1, keepdims=True) + 0.1)
    return anp.reshape(anp.tanh(centred / spread * weights), x.shape)


def counted(x: Any, y: Any) -> Any:
    """Single numbers added to as many places."""
    # Places that rounding seldom moves: of values in steps of a 64th.
    steps = anp.astype(anp.abs(flat(y)) * 64, np.int32) * 7919
    places = (anp.arange(x.size, dtype=np.int32) + steps) % x.size
    return anp.reshape(anp.tanh(anp.at(0.5 * flat(x))[places].add(flat(x))), x.shape)


def running_sum(x: Any, y: Any) -> Any:
    total = anp.cumsum(flat(x)) / (1 + anp.arange(x.size, dtype=np.float32))
    return anp.reshape(total, x.shape) - 0.2 * y


WAYS: Final[tuple[Callable[[Any, Any], Any], ...]] = (
    lambda x, y: anp.tanh(1.5 * x + y),
    lambda x, y: x.shape[1] * 0.01 * nn.softmax(x) - y,
    lambda x, y: (x - anp.mean(x, 1, keepdims=True)) / (1 + anp.std(y)),
    lambda x, y: x - anp.mean(x, axis=0) + 0.1 * anp.max(y, axis=0),
    lambda x, y: anp.cumsum(x, axis=1) / (1 + anp.arange(x.shape[1], dtype=np.float32)),
    lambda x, y: anp.tanh(0.1 * anp.cumsum(x, axis=0)) + 0.1 * y,
    lambda x, y: anp.sort(x, axis=1) + 0.1 * y,
    lambda x, y: anp.reshape(anp.transpose(x), x.shape) - 0.2 * y,
    lambda x, y: x[anp.argsort(y[:, 0])],
    lambda x, y: anp.where(x > y, x, anp.flip(y, axis=1)),
    lambda x, y: anp.reshape(nn.softmax(long_rows(x) + long_rows(y)) * 99, x.shape),
    lambda x, y: anp.reshape(anp.sort(flat(x)), x.shape) - 0.1 * y,
    lambda x, y: x - 1e-6 * anp.astype(anp.argmax(flat(y)), np.float32),
    normalized,
    counted,
    running_sum,
    solved,
    factored,
    multiplied,
    transformed,
    convolved,
    scattered,
    padded_gradient,
    looped,
    scanned,
    branched,
    drawn,
)


def brought(x: Any, shape: tuple[int, ...]) -> Any:
    """``x`` as an array of another size: sums of parts, or repeated."""
    count = int(np.prod(shape))
    if x.size >= count:
        parts = anp.reshape(x, (count, -1))
        return anp.reshape(anp.mean(parts, axis=1) * parts.shape[1] ** 0.5, shape)
    return anp.reshape(anp.tile(anp.reshape(x, (-1,)), count // x.size), shape)


Step = Callable[[Sequence[Any]], Any]


def chain(seed: int) -> list[tuple[int, Step]]:
    """Steps, each of which computes a new value of one array from all of them."""
    rng = np.random.default_rng(seed)
    steps: list[tuple[int, Step]] = []
    for _ in range(STEPS):
        target, other, way = (int(rng.integers(n)) for n in (3, 3, len(WAYS)))

        def step(
            values: Sequence[Any], target: int = target, other: int = other, way=way
        ) -> Any:
            x = values[target]
            y = values[other]
            return WAYS[way](x, y if y.shape == x.shape else brought(y, x.shape))

        steps.append((target, step))
    return steps


def whole(steps: Sequence[tuple[int, Step]]) -> Callable[..., tuple[Any, ...]]:
    """All steps as one function."""

    def run(*given: Any) -> tuple[Any, ...]:
        values = list(given)
        for target, step in steps:
            values[target] = step(values)
        return tuple(values)

    return run


def one_by_one(
    steps: Sequence[tuple[int, Step]], *, waits: bool, **options: Any
) -> Callable[..., tuple[Any, ...]]:
    """A call for each step, whose old value dies when the next one is enqueued."""
    calls = [
        (target, af.jit(lambda *v, step=step: step(v), **options))
        for target, step in steps
    ]

    def run(*given: Any) -> tuple[Any, ...]:
        values = list(given)
        for target, call in calls:
            values[target] = call(*values)
            if waits:
                af.block_until_ready(values)
        return tuple(values)

    return run


def arguments(seed: int) -> list[tuple[np.ndarray, ...]]:
    rng = np.random.default_rng(seed)
    return [
        tuple(rng.uniform(-1, 1, shape).astype(np.float32) for shape in SHAPES)
        for _ in range(ARGUMENTS)
    ]


@cache
def busy() -> tuple[Callable[..., Any], Any]:
    """Work of some milliseconds."""
    square = np.full((4096, 4096), 1e-3, np.float32)
    work = af.jit(lambda x: x @ x @ x @ x, device="cuda")
    return work, af.device_put(square)


def keep_busy() -> None:
    """Have the GPU do something, so that what is enqueued next is not waited for."""
    work, square = busy()
    work(square)


def check(
    name: str, run: Callable[..., Any], given: list[Any], wanted: list[Any]
) -> None:
    """Runs that nobody waits for have the bits that are ``wanted``."""
    kept = []
    for k in range(RUNS):
        if k % TOGETHER == 0:
            keep_busy()
        made = run(*given[k % ARGUMENTS])
        if k % KEPT == 1:
            kept.append((k, made))
        del made
    for k, made in kept:
        pairs = zip(af.device_get(made), wanted[k % ARGUMENTS], strict=True)
        for number, (value, right) in enumerate(pairs):
            differs = value.view(np.uint32) != right.view(np.uint32)
            assert not differs.any(), (
                f"{name}: run {k}, value {number}: {differs.sum()}"
            )


def check_threads(run: Callable[..., Any], given: list[Any], wanted: list[Any]) -> None:
    """So do runs of several threads at once."""

    def some(first: int) -> None:
        turned = given[first:] + given[:first], wanted[first:] + wanted[:first]
        check(f"thread {first}", run, *turned)

    with ThreadPoolExecutor(ARGUMENTS) as threads:
        list(threads.map(some, range(ARGUMENTS)))


def hunt(seed: int) -> None:
    """Check all ways to run the chain of a seed."""
    steps, host = chain(seed), arguments(seed)
    given = [af.device_put(x) for x in host]
    serial = one_by_one(steps, waits=True, device="cuda")
    wanted = [af.device_get(serial(*x)) for x in given]
    cpu = af.jit(whole(steps), device="cpu")
    for x, made in zip(host, wanted, strict=True):
        for value, right in zip(made, cpu(*x), strict=True):
            close = np.isclose(value, right, rtol=1e-2, atol=1e-2)
            assert close.mean() > 0.99, f"values: {1 - close.mean():.3f}"
    check("calls", one_by_one(steps, waits=False, device="cuda"), given, wanted)
    check(
        "calls of NumPy's arrays",
        one_by_one(steps, waits=False, device="cuda"),
        host,
        wanted,
    )
    together = af.jit(whole(steps), device="cuda")
    fused = [af.device_get(af.block_until_ready(together(*x))) for x in given]
    check("a graph", together, given, fused)
    check_threads(together, given, fused)
    donating = af.jit(whole(steps), device="cuda", donate_argnums=(0, 1, 2))

    def donated(*x: Any) -> Any:
        return donating(*(v.copy() for v in x))

    over = [af.device_get(af.block_until_ready(donated(*x))) for x in given]
    check("donated", donated, given, over)
    persistent = af.jit(whole(steps), device="cuda", mode="persistent")
    alone = [af.device_get(af.block_until_ready(persistent(*x))) for x in given]
    check("persistent", persistent, given, alone)


@pytest.mark.parametrize("seed", range(4))
def test_chains_have_the_same_bits_however_their_kernels_overlap(seed: int) -> None:
    hunt(seed)


TURNS: Final = 200


def mixed(xp: Any, x: Any) -> Any:
    """Each element from two that other threads, and mostly other blocks, have made."""
    return (xp.flip(x, axis=0) * 5 + xp.roll(x, 37)) & 0xFFFF


@pytest.mark.parametrize("size", [64, 1000, 20_000, 300_000])
def test_a_kernel_sees_all_that_the_one_before_has_written(size: int) -> None:
    first = np.random.default_rng(size).integers(0, 1 << 16, size).astype(np.int32)
    wanted = first
    for _ in range(TURNS):
        wanted = mixed(np, wanted)
    step = af.jit(lambda x: mixed(anp, x), device="cuda")

    def turns(x: Any) -> Any:
        for _ in range(TURNS):
            x = step(x)
        return x

    given = af.device_put(first)
    steps = [turns(given) for _ in range(5)]
    loop = af.jit(
        lambda x: lax.fori_loop(0, TURNS, lambda _, v: mixed(anp, v), x), device="cuda"
    )
    keep_busy()
    loops = [loop(given) for _ in range(5)]
    for made in (*steps, *loops):
        np.testing.assert_array_equal(made, wanted)
