"""Long Programs are lowered in linear time, and unrolled loops to few kernels."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import lax
from arrayfn.lowering.cuda.lower import lower as lower_for_gpu
from arrayfn.lowering.fusion import FusedGroup, fuse, fuser
from arrayfn.lowering.fusion.merging import MAX_STATEMENTS
from arrayfn.lowering.lower import lower
from arrayfn.passes.pipeline import run_passes
from tests.timed import timed

X = np.linspace(0.1, 0.9, 12)
MOST_GROWTH = 20  # of time, if a Program is 8 times as long; quadratic would be 64


def pendulum(steps: int) -> Callable[[Any, Any], Any]:
    """Runge and Kutta's method for a pendulum: some 30 equations a step."""

    def force(angle: Any, speed: Any) -> tuple[Any, Any]:
        return speed, -anp.sin(angle)

    def f(angle: Any, speed: Any) -> Any:
        h = 0.01
        for _ in range(steps):
            a, b = force(angle, speed)
            c, d = force(angle + h / 2 * a, speed + h / 2 * b)
            p, q = force(angle + h / 2 * c, speed + h / 2 * d)
            r, s = force(angle + h * p, speed + h * q)
            angle = angle + h / 6 * (a + 2 * c + 2 * p + r)
            speed = speed + h / 6 * (b + 2 * d + 2 * q + s)
        return anp.sum(angle * angle + speed * speed)

    return f


def recurrence(steps: int) -> Callable[[Any, Any], Any]:
    def f(x: Any, y: Any) -> Any:
        for _ in range(steps):
            x = x + 0.01 * anp.sin(x) * y
        return anp.sum(x)

    return f


UNROLLED: dict[str, Callable[[int], Callable[[Any, Any], Any]]] = {
    "recurrence": recurrence,
    "pendulum": pendulum,
    "gradient of a recurrence": lambda n: af.grad(recurrence(n), (0, 1)),
    "gradient of a pendulum": lambda n: af.grad(pendulum(n), (0, 1)),
}


@pytest.mark.parametrize("name", UNROLLED)
def test_an_unrolled_loop_is_as_many_kernels_however_long(name: str) -> None:
    short = af.jit(UNROLLED[name](100)).lower(X, X)
    long = af.jit(UNROLLED[name](200)).lower(X, X)
    assert len(long.plan.steps) > 1.9 * len(short.plan.steps) - 10
    assert len(long.kernels) <= min(len(short.kernels) + 2, 12)


@pytest.mark.parametrize("name", UNROLLED)
def test_pieces_of_an_unrolled_loop_give_the_bits_of_the_whole(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    function = UNROLLED[name](24)
    have = af.jit(function)(X, X * 2)
    whole = len(af.jit(function).lower(X, X).plan.steps)
    monkeypatch.setattr(fuser, "piece_starts", lambda program, most: frozenset[Any]())
    assert len(af.jit(function).lower(X, X).plan.steps) <= whole
    want = af.jit(function)(X, X * 2)
    for a, b in zip(af.tree.leaves(have), af.tree.leaves(want), strict=True):
        np.testing.assert_array_equal(a, b)


def test_no_unit_has_more_statements_than_the_limit() -> None:
    program = run_passes(af.make_program(af.grad(pendulum(40)))(X, X))
    units = [u for u in fuse(program) if isinstance(u, FusedGroup)]
    # What is computed again rather than read comes on top.
    assert max(len(u.equations) for u in units) <= MAX_STATEMENTS + 8


def test_what_fits_one_kernel_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(program: Any, most: int) -> Any:
        raise AssertionError("a short Program was cut")

    monkeypatch.setattr(fuser, "piece_starts", refused)
    assert len(af.jit(recurrence(30)).lower(X, X).plan.steps) == 2  # one sums up


def chain(length: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    def f(x: Any) -> Any:
        y = x
        for _ in range(length // 4):
            y = anp.tanh(anp.sin(y) * x + 0.5)
        return anp.sum(y)

    return f, (X,)


def gradient(length: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    f, arguments = chain(length // 3)
    return af.grad(f), arguments


def network(length: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    def f(w: Any, b: Any, x: Any) -> Any:
        for _ in range(length // 12):
            x = anp.tanh(w @ x + b)
        return anp.sum(x)

    return af.grad(f, (0, 1)), (np.eye(12) * 0.5, X, X)


def sums(length: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Running sums of many values, all of which are results."""

    def f(x: Any) -> Any:
        totals = [x]
        for k in range(length // 2):
            totals.append(totals[-1] + anp.sin(x * float(k)))
        return totals[::50]

    return f, (X,)


def inputs(length: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    def f(arrays: list[Any]) -> list[Any]:
        return [0.9 * a + 0.1 * anp.sin(a) for a in arrays]

    return f, ([X] * (length // 4),)


def branches(length: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    def f(x: Any) -> Any:
        for _ in range(length // 10):
            x = lax.cond(x[0] > 0, lambda x: x * 0.9, anp.sin, x)
        return x

    return f, (X,)


LONG = {f.__name__: f for f in (chain, gradient, network, sums, inputs, branches)}


@pytest.mark.parametrize("name", LONG)
def test_a_long_program_is_lowered_in_linear_time(name: str) -> None:
    def program_of(length: int) -> Any:
        function, arguments = LONG[name](length)
        return af.make_program(function)(*arguments)

    _, of_short = timed(partial(lower, program_of(300)))
    _, of_long = timed(partial(lower, program_of(2400)))
    assert of_long < MOST_GROWTH * of_short


def test_thousands_of_additions_need_no_recursion() -> None:
    def f(x: Any) -> Any:
        for _ in range(5000):
            x = x + X
        return x

    lowered = af.jit(f).lower(X)
    assert len(lowered.kernels) <= 4
    np.testing.assert_allclose(lowered.compile()(X), 5001 * X, rtol=1e-12)


@pytest.fixture
def collections() -> Iterator[list[str]]:
    """The phases of the garbage collector's runs meanwhile."""
    seen: list[str] = []

    def note(phase: str, info: dict[str, int]) -> None:
        seen.append(phase)

    gc.callbacks.append(note)
    yield seen
    gc.callbacks.remove(note)


def test_no_garbage_is_collected_while_a_function_is_lowered(
    collections: list[str],
) -> None:
    backend = af.jit(chain(10)[0])  # what is done once is done
    backend.lower(X)
    function = af.jit(chain(4000)[0])
    assert gc.isenabled()
    collections.clear()
    function.lower(X)
    while_traced = len(collections)
    assert gc.isenabled()
    collections.clear()
    af.make_program(chain(4000)[0])(X)
    # Lowering makes many times the objects that tracing does.
    assert while_traced <= 2 * len(collections) + 4


def test_a_collector_that_is_off_stays_off() -> None:
    gc.disable()
    try:
        af.jit(chain(10)[0]).lower(X)
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_an_unrolled_loop_is_few_kernels_on_a_gpu() -> None:
    def lowered(steps: int) -> Any:
        return lower_for_gpu(af.make_program(recurrence(steps))(X, X))

    short, long = lowered(200), lowered(400)
    assert len(long.plan.steps) > 1.8 * len(short.plan.steps)
    assert len(long.kernels) <= min(len(short.kernels) + 1, 6)
