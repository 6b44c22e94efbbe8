"""What dropped functions leave behind: nothing; and what ``clear_caches`` forgets."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import lax
from arrayfn.backends.native import loading
from arrayfn.backends.native.engine import ENGINE
from tests.processes import python_path

X = np.linspace(0.5, 2.0, 6)
OPERATIONS = (anp.sin, anp.cos, anp.exp, anp.tanh, anp.log1p, anp.sqrt, anp.square)


def of_number(number: int) -> Any:
    """A jitted function with a kernel of its own."""

    def function(x: Any) -> Any:
        rest = number
        for _ in range(5):
            x = OPERATIONS[rest % 7](x) + 1.0
            rest //= 7
        return x

    return af.jit(function)


@pytest.fixture
def kernels() -> int:
    """The kernels that are loaded before the test."""
    return loaded()


def loaded() -> int:
    """The kernels that somebody holds."""
    ENGINE._recent.clear()
    gc.collect()
    return ENGINE.kernels


def test_a_dropped_function_frees_its_kernels(kernels: int) -> None:
    functions = [of_number(number) for number in range(5)]
    for function in functions:
        function(X)
    assert loaded() == kernels + 5
    alive = [weakref.ref(function) for function in functions]
    del functions, function
    gc.collect()
    assert [ref() for ref in alive] == [None] * 5
    assert loaded() == kernels


def test_equal_kernels_are_shared_and_live_as_long_as_one_of_them(kernels: int) -> None:
    one, two = of_number(77), of_number(77)
    wanted = one(X)
    two(X)
    assert loaded() == kernels + 1
    del one
    assert loaded() == kernels + 1
    np.testing.assert_array_equal(two(X), wanted)
    compiled = two.lower(X).compile()
    del two
    gc.collect()
    np.testing.assert_array_equal(compiled(X), wanted)
    assert loaded() == kernels + 1


def test_a_kernel_is_freed_and_loaded_again(kernels: int) -> None:
    results = []
    for _ in range(3):
        function = of_number(4321)
        results.append(function(X))
        del function
        assert loaded() == kernels
    for result in results:
        np.testing.assert_array_equal(result, results[0])


def test_the_kernels_of_a_function_that_is_made_anew_stay(kernels: int) -> None:
    for _ in range(3):
        of_number(555)(X)
        gc.collect()
    assert ENGINE.kernels == kernels + 1
    for number in range(80):
        of_number(number)(X)
    gc.collect()
    assert ENGINE.kernels <= kernels + 64
    af.clear_caches()
    assert ENGINE.kernels <= kernels


def test_clear_caches_forgets_what_is_compiled(kernels: int) -> None:
    traces: list[int] = []

    @af.jit
    def function(x: Any) -> Any:
        traces.append(1)
        return anp.sum(anp.exp(x) * 3.25 + 0.125)

    held = of_number(1234)
    compiled = held.lower(X).compile()
    wanted = function(X), compiled(X)
    loop = lax.fori_loop(0, 3000, lambda i, c: c * 0.75 + 0.0625, X[:2])
    af.clear_caches()
    # What ``compile`` gave is held by its owner.
    assert loaded() <= kernels + 1
    np.testing.assert_array_equal(compiled(X), wanted[1])
    assert traces == [1]
    assert function(X) == wanted[0]
    assert function(X) == wanted[0]
    assert traces == [1, 1]
    again = lax.fori_loop(0, 3000, lambda i, c: c * 0.75 + 0.0625, X[:2])
    np.testing.assert_array_equal(again, loop)
    function.clear_cache()
    function(X)
    assert traces == [1, 1, 1]


def test_a_captured_array_is_copied_once_as_long_as_it_stays() -> None:
    held = np.arange(4.0) + 1j * np.arange(4.0)
    function = af.jit(lambda x: x * held[0].real + held)
    first, second = (function.lower(x).program for x in (X[:1], X[:4]))
    other = af.jit(lambda x: x - held).lower(X[:4]).program
    (copy,) = first.constant_values[-1:]
    assert copy is not held
    assert second.constant_values[-1] is copy
    assert other.constant_values[-1] is copy
    held[2] = np.nan
    changed = function.lower(X[:2].sum()).program.constant_values[-1]
    assert changed is not copy
    np.testing.assert_array_equal(copy[2], 2 + 2j)
    assert (
        af.jit(lambda x: x - held).lower(X[:4]).program.constant_values[-1] is changed
    )
    held[2] = -held[2]  # a NaN of another sign is another
    other = af.jit(lambda x: x - held).lower(X[:4]).program
    assert other.constant_values[-1] is not changed


WITHOUT_ROOM = """
import resource, sys
import numpy as np, arrayfn as af
from arrayfn.backends.cpu import executable
x = np.ones(8)
f = af.jit(lambda x: x * 2 + 1)
f.lower(x)  # imports what it needs: Python may raise a SystemError without memory
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + (int(sys.argv[1]) << 10)
resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
try:
    f(x)
except MemoryError:
    print("MemoryError")
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
print(f(x)[:2])
"""


@pytest.mark.parametrize("kibibytes", [0, 64, 1 << 16, 200_000])
def test_without_address_space_for_the_compiler(kibibytes: int, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_ROOM, str(kibibytes)],
        env={
            "ARRAYFN_CACHE_DIR": str(tmp_path),
            "PYTHONPATH": python_path(),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("MemoryError\n[3. 3.]\n", 0), done.stderr


def test_without_threads_to_compile_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(self: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setenv("ARRAYFN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(loading._Compilation, "start", start)
    af.clear_caches()
    function = of_number(9999)
    np.testing.assert_allclose(function(X), function.lower(X).compile()(X))
    assert list(tmp_path.glob("??/*.o"))


SCRIPT = """
import gc, sys
import numpy as np
from tests.test_lifetime import X, of_number

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4

def use(numbers):
    for number in numbers:
        of_number(number)(X)
    gc.collect()

use(range(80))  # compiled, or loaded
use(range(80))
before = resident()
for _ in range(4):
    use(range(80))
print((resident() - before) / 320)
"""


def test_memory_does_not_grow_with_functions_that_are_dropped() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=Path(af.__file__).parents[1],
        capture_output=True,
        text=True,
        check=True,
    )
    # KiB a function; LLVM keeps the name of its library. It was 57.
    assert float(done.stdout) < 24
