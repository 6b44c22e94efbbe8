"""einops' functions on traced arrays."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp

einops = pytest.importorskip("einops")

X = np.arange(24.0).reshape(2, 3, 4)
CASES = {
    "rearrange": lambda x: einops.rearrange(x, "a b c -> b (a c)"),
    "stack": lambda x: einops.rearrange([x, 2.0 * x], "n a b c -> a n (b c)"),
    "reduce": lambda x: einops.reduce(x, "a (b b2) c -> c b", "mean", b2=3),
    "largest": lambda x: einops.reduce(x, "a b c -> a", "max"),
    "repeat": lambda x: einops.repeat(x, "a b c -> (a k) b c", k=2),
    "einsum": lambda x: einops.einsum(x, x, "a b c, a d c -> b d"),
    "pack": lambda x: einops.pack([x, x[:, 0]], "a * c")[0],
    "unpack": lambda x: einops.unpack(x, [[2], []], "a * c")[0],
}


@pytest.mark.parametrize("name", CASES)
def test_operations_are_traced_and_differentiated(name):
    f = CASES[name]
    np.testing.assert_array_equal(af.jit(f)(X), f(X))
    expected, pull_back = af.vjp(f, X)
    np.testing.assert_array_equal(expected, f(X))
    (slope,) = pull_back(np.ones_like(expected))
    step = 1e-6 * np.cos(X)
    change = (f(X + step) - f(X - step)).sum() / 2e-6
    np.testing.assert_allclose(np.sum(slope * np.cos(X)), change, rtol=1e-7)


def test_einops_is_imported_by_nobody_but_the_user():
    program = """
import sys, arrayfn as af, numpy as np
assert "einops" not in sys.modules
def f(x):
    from einops import rearrange
    return rearrange(x, "a b -> b a")
print(af.jit(f)(np.ones((2, 3))).shape)
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "(3, 2)\n", done.stderr


def test_a_mean_of_integers_is_refused_as_for_other_libraries():
    with pytest.raises(NotImplementedError, match="not available for non-floating"):
        af.jit(lambda x: einops.reduce(x, "a -> ", "mean"))(anp.arange(3))
