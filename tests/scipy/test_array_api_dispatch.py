"""SciPy's functions for any array library on traced arrays (``SCIPY_ARRAY_API=1``)."""

import os
import subprocess
import sys
import types

import numpy as np
import pytest
import scipy

import arrayfn as af
import arrayfn.numpy as anp

# SciPy reads the variable when it is imported, so this is a process of its own.
PROGRAM = """
import numpy as np, arrayfn as af, arrayfn.numpy as anp
from scipy import fft, integrate, signal, special, stats
from scipy.spatial.transform import Rotation

import scipy
from scipy._lib._array_api import xpx
import arrayfn.scipy.fft
fft.register_backend(arrayfn.scipy.fft)

x, d, e = np.array([0.3, 0.5, 1.1, 2.3]), np.array([0.3, -0.2, 0.5, 0.1]), 1e-6
CALLS = {
    "special.logsumexp": special.logsumexp,
    "special.logsumexp of an argument used again": (
        lambda x: special.logsumexp(x) + anp.sum(x * x)
    ),
    "special.logsumexp of no elements": lambda x: (
        x[0] + anp.exp(special.logsumexp(x[:0]))
    ),
    "apply_where": lambda x: anp.sum(
        xpx.apply_where(x < 0.4, x, lambda x: x * x, lambda x: x**3)
    ),
    "special.softmax": lambda x: special.softmax(x).max(),
    "special.log_softmax": lambda x: special.log_softmax(x)[0],
    "special.gammaln": lambda x: anp.sum(special.gammaln(x)),
    "special.erf": lambda x: anp.sum(special.erf(x)),
    "special.ndtri": lambda x: anp.sum(special.ndtri(x / 5)),
    "special.xlogy": lambda x: anp.sum(special.xlogy(x, x)),
    "special.betaln": lambda x: anp.sum(special.betaln(x, x)),
    "special.rel_entr": lambda x: anp.sum(special.rel_entr(x, x + 1)),
    "stats.zscore": lambda x: anp.sum(stats.zscore(x) ** 3),
    "stats.skew": stats.skew,
    "stats.variation": stats.variation,
    "stats.pearsonr": lambda x: stats.pearsonr(x, x * x).statistic,
    "fft.dct": lambda x: fft.dct(x)[1],
    "fft.dstn": lambda x: fft.dstn(x, type=4)[1],
    "stats.kurtosis": stats.kurtosis,
    "stats.gmean": stats.gmean,
    "stats.sem": stats.sem,
    "stats.circmean": stats.circmean,
    "stats.entropy": stats.entropy,
    "stats.ttest_1samp": lambda x: stats.ttest_1samp(x, 1.0).statistic,
    "fft.rfft": lambda x: anp.abs(fft.rfft(x))[1],
    "integrate.trapezoid": lambda x: integrate.trapezoid(x, dx=0.1),
    "signal.fftconvolve": lambda x: signal.fftconvolve(x, x)[1],
    "Rotation": lambda x: Rotation.from_quat(x).as_matrix()[0, 1],
}
if tuple(map(int, scipy.__version__.split(".")[:2])) >= (1, 18):
    # To handle NaNs, SciPy 1.18 asks for the values of all arrays but JAX's.
    CALLS = {name: f for name, f in CALLS.items() if not name.startswith("stats.")}
for name, f in CALLS.items():
    difference = (f(x + e * d) - f(x - e * d)) / (2 * e)
    np.testing.assert_allclose(af.grad(f)(x) @ d, difference, 1e-4, 1e-7, err_msg=name)
    np.testing.assert_allclose(af.jit(f)(x), f(x), 1e-12, err_msg=name)
print(len(CALLS), "functions")
"""


def test_functions_of_scipy_are_traced_and_differentiated():
    environment = {**os.environ, "SCIPY_ARRAY_API": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    old = tuple(map(int, scipy.__version__.split(".")[:2])) < (1, 18)
    assert done.stdout == f"{28 if old else 18} functions\n", done.stderr


def test_special_is_where_the_array_api_expects_it():
    from arrayfn.scipy import special

    assert anp.special is special
    with pytest.raises(AttributeError, match="no attribute 'speciale'"):
        anp.speciale  # noqa: B018


def _array_api_extra():
    """A module of array_api_extra's name, with a function that updates in place."""
    module = types.ModuleType("array_api_extra._lib._at")
    exec("def update(x, index, y):\n    x[index] = y\n    return x\n", vars(module))
    return module


def test_array_api_extra_may_update_what_is_traced():
    update = _array_api_extra().update
    x = np.array([1.0, 2.0, 3.0])

    def f(x):
        y = x * 2.0
        z = update(y, 1, x[0] ** 2)
        w = update(z, z > 5.0, 0.0)  # a mask
        return anp.sum(w * w)

    assert f(x.copy()) == 2.0**2 + 1.0
    np.testing.assert_array_equal(af.jit(f)(x), 5.0)
    np.testing.assert_array_equal(af.grad(f)(x), [8.0 + 4.0, 0, 0])


def test_array_api_extra_changes_no_array_but_the_one_it_returns():
    update = _array_api_extra().update

    def f(x):
        y = x * 2.0
        z = af.vmap(lambda a: update(y, 0, a))(x)  # a value of the function around it
        return anp.sum(z * z), anp.asarray(update(x, 1, 0.0)), x, y

    x = np.array([1.0, 2.0])
    total, changed, same, y = af.jit(f)(x)
    (also, *_), _ = af.vjp(f, x)
    assert total == also == 1.0 + 4.0 + 2 * 16.0
    np.testing.assert_array_equal(changed, [1.0, 0.0])
    np.testing.assert_array_equal(same, x)
    np.testing.assert_array_equal(y, 2.0 * x)
