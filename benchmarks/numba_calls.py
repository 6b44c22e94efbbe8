"""What a call of a compiled function costs in a function of Numba, and in Python.

python -m benchmarks.numba_calls
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numba
import numpy as np

import arrayfn as af

COUNT = 100_000


@af.jit
def doubled(x: Any) -> Any:
    """The function that is called."""
    return x * 2


compiled = doubled.lower(np.zeros(4)).compile()


@numba.njit
def natively(x: Any, count: int) -> Any:
    """Calls of the compiled function by its address."""
    for _ in range(count):
        x = compiled(x)
    return x


@numba.njit
def in_object_mode(x: Any, count: int) -> Any:
    """Calls of the jitted function through the interpreter."""
    for _ in range(count):
        x = doubled(x)
    return x


def in_python(x: Any, count: int) -> Any:
    """Calls of the jitted function in a Python loop."""
    for _ in range(count):
        x = doubled(x)
    return x


def microseconds(loop: Callable[..., Any]) -> float:
    """Of CPU time for a call, the least of three runs."""
    loop(np.zeros(4), 1)
    times: list[float] = []
    for _ in range(3):
        begin = time.process_time()
        loop(np.zeros(4), COUNT)
        times.append(time.process_time() - begin)
    return 1e6 * min(times) / COUNT


def main() -> None:
    """Print the microseconds of each kind of call."""
    for loop in (natively, in_python, in_object_mode):
        print(f"{loop.__name__:16}{microseconds(loop):6.2f} us")


if __name__ == "__main__":
    main()
