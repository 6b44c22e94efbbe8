"""Ctrl-C while a compiled function runs: seen soon, and the next call is right."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import lax
from arrayfn.backends.cpu.runtime import get_num_threads, set_num_threads
from arrayfn.backends.cuda import missing_here
from tests.processes import python_path

FOREVER = 10**12
A = np.linalg.qr(np.random.default_rng(2).standard_normal((48, 48)))[0]


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGALRM)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before[0])
    signal.signal(signal.SIGALRM, before[1])


def turns(body: Callable[[Any], Any]) -> Any:
    """``n`` turns of ``body``, where ``n`` is static."""
    return af.jit(
        lambda x, n: lax.fori_loop(0, n, lambda i, c: body(c), x), static_argnums=1
    )


def until(body: Callable[[Any], Any]) -> Any:
    """``n`` turns of ``body``, whose number is not known to the compiler."""

    def function(x: Any, n: Any) -> Any:
        state = lax.while_loop(
            lambda s: s[0] < n, lambda s: (s[0] + 1, body(s[1])), (0, x)
        )
        return state[1]

    return af.jit(function)


def nested(x: Any) -> Any:
    return lax.fori_loop(0, 50, lambda i, c: anp.sin(c) + 0.5, x)


def steps(x: Any) -> Any:
    return anp.tanh(x @ A) @ A.T


def branches(x: Any) -> Any:
    return lax.cond(anp.sum(x) > 0, steps, lambda y: steps(-y), x)


CASES: dict[str, tuple[Any, Any]] = {
    "serial loop": (turns(anp.sin), 0.75),
    "serial while": (until(anp.sin), 0.75),
    "serial loop in a loop": (turns(nested), 0.75),
    "lanes on threads": (turns(lambda x: anp.sin(x) + 0.25), np.ones(200_000)),
    "steps in a loop": (turns(steps), np.ones((48, 48))),
    "steps in a while": (until(steps), np.ones((48, 48))),
    "branches in a loop": (turns(branches), np.ones((48, 48))),
    "loop in a loop": (turns(lambda x: turns(steps)(x, 20)), np.ones((48, 48))),
    "large arrays": (turns(lambda x: anp.cumsum(x) * 0.5), np.ones(100_000)),
}


def interrupt_after(seconds: float) -> threading.Timer:
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    return timer


@pytest.mark.parametrize("name", CASES)
def test_ctrl_c_ends_a_loop_and_the_next_call_is_right(name: str) -> None:
    function, x = CASES[name]
    wanted = np.array(function(x, 3))
    function.lower(x, FOREVER).compile()
    for _ in range(2):
        timer = interrupt_after(0.3)
        began = time.perf_counter()
        with pytest.raises(KeyboardInterrupt):
            function(x, FOREVER)
        timer.join()
        assert time.perf_counter() - began < 3  # 0.4 alone
        np.testing.assert_array_equal(function(x, 3), wanted)


def test_a_handler_that_raises_nothing_lets_the_call_go_on() -> None:
    seen: list[int] = []
    inside = af.jit(lambda x: x @ A)

    def handler(*_: Any) -> None:
        # A call within the call.
        seen.append(int(inside(np.ones((2, 48))).shape[0]))

    function = turns(steps)
    x = np.ones((48, 48))
    began = time.perf_counter()
    wanted = np.array(function(x, 20_000))
    duration = time.perf_counter() - began
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, duration / 8, duration / 8)
    result = function(x, 20_000)
    signal.setitimer(signal.ITIMER_REAL, 0)
    np.testing.assert_array_equal(result, wanted)
    assert set(seen) == {2}


def test_a_handlers_own_error_is_raised() -> None:
    def handler(*_: Any) -> None:
        raise TimeoutError("late")

    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    with pytest.raises(TimeoutError, match="late"):
        turns(anp.sin)(0.5, FOREVER)


@pytest.mark.parametrize("threads", [1, 2])
def test_other_threads_go_on(threads: int) -> None:
    have = get_num_threads()
    set_num_threads(threads)
    function = turns(lambda x: anp.sin(x) + 0.25)
    x = np.ones(200_000)
    wanted = np.array(function(x, 800))
    results: list[Any] = []
    other = threading.Thread(target=lambda: results.append(function(x, 800)))
    timer = interrupt_after(0.2)
    other.start()
    with pytest.raises(KeyboardInterrupt):
        function(x, FOREVER)
    other.join()
    timer.join()
    set_num_threads(have)
    np.testing.assert_array_equal(results[0], wanted)


def test_donated_arguments_of_an_interrupted_call() -> None:
    function = af.jit(
        lambda x, n: lax.fori_loop(0, n, lambda i, c: steps(c), x),
        static_argnums=1,
        donate_argnums=0,
    )
    wanted = np.array(function(np.ones((48, 48)), 3))
    given = np.ones((48, 48))
    timer = interrupt_after(0.3)
    with pytest.raises(KeyboardInterrupt):
        function(given, FOREVER)
    timer.join()
    assert np.isfinite(given).all()  # whatever it has, it is there
    np.testing.assert_array_equal(function(np.ones((48, 48)), 3), wanted)


@pytest.mark.cuda
@pytest.mark.skipif(bool(missing_here()), reason=missing_here())
@pytest.mark.parametrize("count", [1, 100_000], ids=["small", "large"])
def test_reading_what_a_gpu_is_at_is_interrupted(count: int) -> None:
    turns = 10**8  # some seconds
    function = af.jit(
        lambda x, n: lax.fori_loop(0, n, lambda i, c: anp.sin(c), x), device="cuda"
    )
    x = np.full(count, 0.5, np.float32)
    wanted = np.asarray(function(x, 3))
    slow = function(x, turns)
    begin = time.monotonic()
    timer = interrupt_after(0.3)
    with pytest.raises(KeyboardInterrupt):
        np.asarray(slow)
    assert time.monotonic() - begin < 1.3
    timer.join()
    np.testing.assert_array_equal(np.asarray(function(x, 3)), wanted)


SCRIPT = """
import os, signal, sys, time
import numpy as np, arrayfn as af, arrayfn.numpy as anp
from arrayfn import lax
f = af.jit(lambda x, n: lax.fori_loop(0, n, lambda i, c: anp.sin(c), x),
           static_argnums=1)
f(0.5, 3)
if os.fork() == 0:
    print("ready", flush=True)
    try:
        f(0.5, 10**12)
    except KeyboardInterrupt:
        print("interrupted", float(f(0.5, 3)) == float(np.sin(np.sin(np.sin(0.5)))),
              flush=True)
    os._exit(0)
signal.signal(signal.SIGINT, signal.SIG_IGN)
os.wait()
"""


def test_a_forked_child_is_interrupted_too() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": python_path()},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.4)
    os.killpg(process.pid, signal.SIGINT)
    rest, _ = process.communicate(timeout=20)
    assert rest == "interrupted True\n"
