"""Loops and branches on a GPU, in graphs."""

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import fft, lax
from arrayfn.backends.cuda import missing_here, plan_nodes
from arrayfn.backends.cuda.driver import device
from tests.common_functions import random

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(bool(missing_here()), reason=missing_here()),
]


def power_iteration(matrix, vector, count):
    """A double-buffered carry, and a product in the loop."""

    def goes_on(state):
        return state[0] < count

    def step(state):
        k, v = state
        w = matrix @ v
        return k + 1, w / anp.sqrt(anp.sum(w * w))

    return lax.while_loop(goes_on, step, (0, vector))[1]


def alternating(x, limit):
    """A branch in a loop, of sizes that no kernel has by itself."""

    def goes_on(state):
        return anp.sum(state[1]) < limit

    def step(state):
        k, x = state
        branches = (lambda x: x + 1, lambda x: x @ x.T / 100, lambda x: x[::-1])
        return k + 1, lax.switch(k % 3, branches, x)

    return lax.while_loop(goes_on, step, (0, x))


def nested(x, limit):
    """A scan in a loop in a scan."""

    def row(carry, x):
        total = lax.while_loop(
            lambda y: anp.sum(y) < limit, lambda y: inner(y) + 1.0, x
        )
        return carry + total, anp.sum(total)

    def inner(y):
        return lax.scan(lambda c, r: (c + r, None), y[0], y)[0] + y

    return lax.scan(row, anp.zeros(x.shape[1:], x.dtype), x)


def transformed(x, count):
    """What libraries enqueue is captured at the first call already."""

    def step(state):
        k, x = state
        spectrum = fft.rfft(anp.sort(x, axis=1) * 0.9)
        return k + 1, fft.irfft(spectrum, n=x.shape[1]) + anp.cumsum(x, axis=0) / 50

    return lax.while_loop(lambda state: state[0] < count, step, (0, x))[1]


def recurrent(x, h, w, reverse):
    """A result per iteration, whose dtypes have other widths than its operands'."""

    def step(h, row):
        h = anp.tanh(h @ w / 8 + row)
        return h, (anp.sum(h, axis=1), h[0] > 0)

    return lax.scan(step, h, x, reverse=reverse)


def forwards(x, h, w):
    return recurrent(x, h, w, reverse=False)


def backwards(x, h, w):
    return recurrent(x, h, w, reverse=True)


def repeated(x, h, w, count):
    """A long scan in a loop."""

    def step(state):
        k, h, _ = state
        h, (sums, _) = recurrent(x, h, w, reverse=False)
        return k + 1, h, sums

    start = 0, h, anp.zeros(x.shape[:2], x.dtype)
    return lax.while_loop(lambda state: state[0] < count, step, start)


STATE = random(3, 33), random(33, 33, seed=1)

CASES = {
    "power iteration, even": (power_iteration, random(64, 64), random(64), 10),
    "power iteration, odd": (power_iteration, random(64, 64), random(64), 7),
    "no iteration": (power_iteration, random(64, 64), random(64), 0),
    "switch in a loop": (alternating, abs(random(50, 50)), np.float32(1e5)),
    "transforms in a loop": (transformed, random(40, 60), 3),
    "loops in loops": (nested, abs(random(5, 40, 40)), np.float32(1e5)),
    "long scan": (forwards, random(2001, 3, 33, seed=2), *STATE),
    "long scan, reversed": (backwards, random(2050, 3, 33, seed=2), *STATE),
    "longer than a graph may be": (forwards, random(40_000, 3, 33, seed=2), *STATE),
    "long scan in a loop": (repeated, random(1500, 3, 33, seed=2), *STATE, 3),
}


@pytest.mark.parametrize("mode", [None, "persistent"])
@pytest.mark.parametrize("name", CASES)
def test_loops_are_those_of_the_cpu(name, mode):
    function, *arguments = CASES[name]
    run = af.jit(function, device="cuda", mode=mode)
    want = af.tree.leaves(af.jit(function)(*arguments))
    for _ in range(3):
        have = af.tree.leaves(run(*arguments))
        for x, y in zip(have, want, strict=True):
            np.testing.assert_allclose(np.asarray(x), y, rtol=2e-4, atol=1e-5)


def test_a_persistent_kernel_gives_the_same_bits_each_time():
    def step(parameters, x, target):
        def loss(parameters):
            h = x
            for w in parameters:
                h = anp.tanh(h @ w / 11)
            return anp.mean((h - target) ** 2)

        value, gradients = af.value_and_grad(loss)(parameters)
        return value, [p - g for p, g in zip(parameters, gradients, strict=True)]

    weights = [random(128, 128, seed=k) for k in range(3)]
    x, target = random(16, 128, seed=4), random(16, 128, seed=5)
    run = af.jit(step, device="cuda", mode="persistent")
    names = [kernel.name for kernel in run.lower(weights, x, target).kernels]
    assert names == ["persistent_0"]
    results = [
        [np.asarray(y).tobytes() for y in af.tree.leaves(run(weights, x, target))]
        for _ in range(100)
    ]
    assert all(result == results[0] for result in results)
    want = af.tree.leaves(af.jit(step)(weights, x, target))
    for have, y in zip(af.tree.leaves(run(weights, x, target)), want, strict=True):
        np.testing.assert_allclose(np.asarray(have), y, rtol=1e-4, atol=1e-6)


def test_a_long_scan_has_the_bits_of_one_that_is_written_out(monkeypatch):
    arguments = random(3001, 3, 33, seed=2), *STATE
    results = []
    for most in (plan_nodes.MAX_UNROLLED_LAUNCHES, 1 << 20):
        monkeypatch.setattr(plan_nodes, "MAX_UNROLLED_LAUNCHES", most)
        run = af.jit(backwards, device="cuda")
        results.append([np.asarray(x) for x in af.tree.leaves(run(*arguments))])
    for x, y in zip(*results, strict=True):
        np.testing.assert_array_equal(x, y)


def test_a_loop_waits_for_nothing(monkeypatch):
    function, *arguments = CASES["power iteration, odd"]
    run = af.jit(function, device="cuda")
    first = np.asarray(run(*arguments))
    given = [af.device_put(x) for x in arguments[:2]]
    count = af.device_put(np.asarray(arguments[2]))
    run(*given, count)
    read = []
    monkeypatch.setattr(device(), "copy_out", lambda *a: read.append(a))
    result = run(*given, count)
    monkeypatch.undo()
    assert not read
    np.testing.assert_array_equal(np.asarray(result), first)


def test_a_loop_with_a_step_on_the_host_waits_for_it():
    seen = []

    def double(x):
        seen.append(float(x.sum()))
        return 2 * x

    def function(x):
        step = lambda x: af.pure_callback(double, x, x)  # noqa: E731
        return lax.while_loop(lambda x: anp.sum(x) < 1000, step, x)

    x = np.ones((30, 30), np.float32)
    result = af.jit(function, device="cuda")(x)
    np.testing.assert_array_equal(np.asarray(result), 2 * x)
    assert seen == [900.0]


def test_a_loop_on_other_arrays_each_time_is_one_graph(monkeypatch):
    captured = []
    capture = device().capture
    monkeypatch.setattr(
        device(), "capture", lambda enqueue: captured.append(1) or capture(enqueue)
    )
    run = af.jit(lambda matrix, x: power_iteration(matrix, x, 200), device="cuda")
    given = [(random(64, 64, seed=k), random(64, seed=k)) for k in range(20)]
    arrays = [tuple(map(af.device_put, arguments)) for arguments in given]
    first = [np.asarray(run(*arguments)) for arguments in arrays]
    again = [np.asarray(run(*arguments)) for arguments in arrays]
    np.testing.assert_array_equal(again, first)
    assert len(captured) == 1
    want = [af.jit(power_iteration)(*arguments, 200) for arguments in given]
    np.testing.assert_allclose(first, want, rtol=2e-4, atol=1e-5)
