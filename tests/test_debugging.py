"""``debug_nans``, ``debug_infs``, ``disable_jit`` and ``config``."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import lax
from arrayfn.compilation.jitted import Jitted
from arrayfn.errors import ArgumentError, NotFiniteError
from arrayfn.scipy import special

X = np.array([1.0, -2.0, 3.0])


def f(x):
    y = x + 1.0
    return anp.sum(anp.log(y) * 2.0)


def scanned(xs):
    return lax.scan(lambda total, x: (total + anp.sqrt(x), total), 0.0, xs)[0]


CASES = {
    "at once": (anp.log, "log"),
    "at once, twice": (lambda x: anp.multiply(0.0, anp.divide(x, 0.0)), "mul"),
    "jit": (af.jit(f), "log"),
    "jit of jit": (af.jit(af.jit(f)), "log"),
    "grad": (af.grad(f), "log"),
    "grad of jit": (af.grad(af.jit(f)), "log"),
    "jit of grad": (af.jit(af.value_and_grad(f)), "log"),
    "gradient alone": (
        lambda x: af.grad(lambda x: anp.sum(anp.sqrt(x - x[0])))(anp.abs(x)),
        "NaN",
    ),
    "vmap": (af.vmap(anp.log), "log"),
    "scan": (scanned, "sqrt"),
    "jit of scan": (af.jit(scanned), "sqrt"),
    "linear algebra": (lambda x: af.linalg.cholesky(anp.diag(x)), "cholesky"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_operation_that_makes_nan_is_named_with_its_line(name):
    function, word = CASES[name]
    with np.errstate(all="ignore"):
        function(X)
        with (
            af.debug_nans(),
            pytest.raises(
                FloatingPointError, match=rf"test_debugging\.py:\d+: .*{word}"
            ),
        ):
            function(X)
        function(X)


def test_what_is_no_fault():
    nan = np.array([np.nan, 1.0])
    with af.debug_nans(), af.debug_infs():
        np.testing.assert_array_equal(af.jit(anp.sin)(nan), np.sin(nan))
        np.testing.assert_array_equal(anp.sin(nan), np.sin(nan))
        assert anp.exp(np.inf) == np.inf
        assert (
            af.jit(lambda x: anp.where(x > 0, anp.log(anp.maximum(x, 1)), 0))(-1.0) == 0
        )
        anp.isnan(X)
    with af.debug_nans():
        assert af.jit(anp.exp)(1000.0) == np.inf
        with af.debug_nans(False):
            assert np.isnan(af.jit(anp.log)(-1.0))
    with af.debug_infs():
        assert np.isnan(anp.log(-1.0))
        for function in (anp.exp, af.jit(anp.exp)):
            with pytest.raises(NotFiniteError, match="exp makes an infinity"):
                function(1000.0)


@pytest.mark.parametrize("way", [lambda f: f, af.jit])
def test_the_ends_of_ndtri_are_infinities_that_it_makes(way):
    f = way(special.ndtri)
    with af.debug_nans(), af.debug_infs():
        assert f(0.5) == 0
        for p, word in ((0.0, "an infinity"), (1.0, "an infinity"), (1.5, "NaN")):
            with pytest.raises(NotFiniteError, match=f"makes {word}"):
                f(p)


def test_options_are_off_again_and_of_one_thread():
    call = Jitted.__call__
    seen = []
    with af.debug_nans():
        thread = threading.Thread(target=lambda: seen.append(af.jit(anp.log)(-1.0)))
        thread.start()
        thread.join()
        assert Jitted.__call__ is not call
    assert np.isnan(seen[0])
    assert Jitted.__call__ is call
    assert np.isnan(anp.log(-1.0))


def test_blocks_nest_with_disable_jit():
    g = af.jit(lambda x: anp.log(x) if x < 0 else x)
    with af.disable_jit(), af.debug_nans(), pytest.raises(NotFiniteError, match="log"):
        g(-1.0)
    with af.disable_jit():
        assert g(2.0) == 2.0


def test_config_sets_the_process():
    assert repr(af.config) == (
        "Config(disable_jit=False, debug_nans=False, debug_infs=False)"
    )
    af.config.update("jax_debug_nans", True)
    try:
        assert af.config.debug_nans
        with pytest.raises(NotFiniteError):
            af.jit(anp.log)(-1.0)
        with af.debug_nans(False):
            assert np.isnan(af.jit(anp.log)(-1.0))
    finally:
        af.config.debug_nans = False
    with pytest.raises(ArgumentError, match="no option 'x64'; it has disable_jit"):
        af.config.update("x64", True)
    with pytest.raises(AttributeError, match="no option 'x64'"):
        _ = af.config.x64


def test_an_environment_variable_sets_an_option():
    code = "import arrayfn as af; print(af.config.debug_nans, af.config.debug_infs)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "ARRAYFN_DEBUG_NANS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["True", "False"]


def test_debug_nans_sees_derivatives_on_a_mesh():
    af.set_num_devices(8)
    mesh = af.Mesh((2,), ("x",))
    log_of_square = af.shard_map(
        lambda x: anp.log(x**2),
        mesh=mesh,
        in_specs=af.PartitionSpec("x"),
        out_specs=af.PartitionSpec("x"),
    )
    _, pull_back = af.vjp(log_of_square, np.zeros(2))
    assert np.isnan(pull_back(np.ones(2))[0]).all()
    with af.debug_nans(), pytest.raises(NotFiniteError, match="mul makes NaN"):
        pull_back(np.ones(2))
