"""Long sums keep their error bound: on every axis, fused or not, biased or not.

Bounds are relative to the sum of absolute values, in units of the dtype's ``eps``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import nn
from arrayfn.backends.registry import BACKENDS
from arrayfn.lowering.cpu.sums import COLUMN_BLOCK, ROW_BLOCK, RUNNING_BLOCK
from arrayfn.scipy.special import logsumexp
from arrayfn.tools.oracle import oracle
from arrayfn.transforms import make_program

Array = np.ndarray[Any, Any]

EPS = 2.0**-23
TENTH = np.float32(0.1)  # added to itself, it is always rounded to the same side


def jitted(function: Callable[..., Any], *args: Any) -> Any:
    return af.jit(function)(*args)


def units(have: Any, want: Any, mass: Any) -> float:
    """The greatest error in units of ``EPS``, relative to ``mass``."""
    wide = np.complex128 if np.iscomplexobj(have) else np.float64
    return float(np.max(np.abs(np.asarray(have, wide) - want) / mass)) / EPS


@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((1_000_000,), 0),
        ((2, 300_000), 1),
        ((300_000, 2), 0),
        ((30_000, 70), 0),
        ((300, 1000, 3), (0, 1)),
        ((300, 3, 500), (0, 2)),
        ((20, 1000, 3, 10), (0, 2)),
    ],
)
@pytest.mark.parametrize("order", ["C", "F"])
def test_sums_of_one_number_are_near(shape: Any, axis: Any, order: Any) -> None:
    x = np.full(shape, TENTH, order=order)
    want = x.astype(np.float64).sum(axis)
    assert units(jitted(lambda x: anp.sum(x, axis=axis), x), want, want) < 32


def test_sums_of_strided_rows_are_near() -> None:
    x = np.full((2, 600_000), TENTH)[:, ::2]
    want = x.astype(np.float64).sum(1)
    assert units(jitted(lambda x: anp.sum(x, axis=1), x), want, want) < 32


def test_sums_of_elements_at_computed_places_are_near() -> None:
    x, places = np.full((4, 100), TENTH), np.arange(200_000) % 100
    have = jitted(lambda x, i: anp.sum(x[:, i], axis=1), x, places)
    want = np.full(4, 200_000 * float(TENTH))
    assert units(have, want, want) < 32


def test_complex_sums_are_near() -> None:
    x = np.full((200_000, 2), TENTH + TENTH * 1j, np.complex64)
    want = x.astype(np.complex128).sum(0)
    assert units(jitted(lambda x: anp.sum(x, axis=0), x), want, abs(want)) < 32


def test_means_of_halves_are_rounded_once() -> None:
    x = np.full((200_000, 2), 0.1, np.float16)
    np.testing.assert_array_equal(jitted(lambda x: anp.mean(x, axis=0), x), x[0])


def offset_rows() -> Array:
    rng = np.random.default_rng(0)
    return (1e4 + rng.normal(size=(30_000, 5))).astype(np.float32)


@pytest.mark.parametrize("transposed", [False, True])
def test_variances_of_a_large_offset_are_right(transposed: bool) -> None:
    x = offset_rows()
    want = x.astype(np.float64).var(0)
    given, axis = (np.ascontiguousarray(x.T), 1) if transposed else (x, 0)
    for compiled in (True, False):
        var = lambda x: anp.var(x, axis=axis)  # noqa: E731
        std = lambda x: anp.std(x, axis=axis)  # noqa: E731
        f, g = (af.jit(var), af.jit(std)) if compiled else (var, std)
        np.testing.assert_allclose(f(given), want, 2e-5)
        np.testing.assert_allclose(g(given), np.sqrt(want), 1e-5)


def test_covariances_of_a_large_offset_are_right() -> None:
    x = offset_rows()
    want = np.cov(x.astype(np.float64), rowvar=False)
    have = jitted(lambda x: anp.cov(x, rowvar=False), x)
    np.testing.assert_allclose(have, want, 1e-4, 1e-5)


def test_what_is_fused_with_a_mean_is_right() -> None:
    x = offset_rows()
    wide = x.astype(np.float64)
    centred = wide - wide.mean(0)
    have = jitted(lambda x: x - anp.mean(x, axis=0), x)
    np.testing.assert_allclose(have, centred, 0, 2e-3)  # an ulp of 1e4 is 1e-3
    have = jitted(lambda x: (x - anp.mean(x, axis=0)) / anp.std(x, axis=0), x)
    np.testing.assert_allclose(have, centred / wide.std(0), 1e-4, 3e-3)


def test_a_softmax_over_many_rows_is_right() -> None:
    x = np.ones((600_000, 2), np.float32)
    have = jitted(lambda x: nn.softmax(x, axis=0), x)
    np.testing.assert_allclose(have[:2] * 600_000, np.ones((2, 2)), 1e-6)
    have = jitted(lambda x: logsumexp(x, axis=0), x * TENTH)
    np.testing.assert_allclose(have, float(TENTH) + math.log(600_000), 1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
def test_products_of_long_vectors_are_near(dtype: Any) -> None:
    x = np.full(1_000_000, TENTH, dtype)
    want = 1_000_000 * float(TENTH) ** 2
    for have in (jitted(anp.dot, x, x), jitted(lambda x: x @ (x * 1), x)):
        assert units(have, want, want) < 32


def test_norms_of_long_vectors_are_right() -> None:
    x = np.full((500_000, 2), TENTH)
    want = np.linalg.norm(x.astype(np.float64), axis=0)
    have = jitted(lambda x: anp.linalg.norm(x, axis=0), x)
    assert units(have, want, want) < 32


@pytest.mark.parametrize(
    ("shape", "axis"),
    [((500_000,), 0), ((2, 200_000), 1), ((200_000, 3), 0), ((100_003,), 0)],
)
@pytest.mark.parametrize("reverse", [False, True])
def test_cumulative_sums_are_near(shape: Any, axis: int, reverse: bool) -> None:
    x = np.full(shape, TENTH)
    want = np.cumsum(x.astype(np.float64), axis=axis)
    if reverse:
        have = jitted(lambda x: af.lax.cumsum(x, axis=axis, reverse=True), x)
        have = np.flip(have, axis)
    else:
        have = jitted(lambda x: anp.cumsum(x, axis=axis), x)
    assert units(have, want, want) < 64
    assert units(anp.cumsum(x, axis=axis), want, want) < 2


def test_gradients_sum_over_many_rows() -> None:
    x = np.full((200_000, 3), TENTH)
    gradient = af.grad(lambda g: anp.sum(x * g))
    want = x.astype(np.float64).sum(0)
    assert units(jitted(gradient, np.ones(3, np.float32)), want, want) < 32


@pytest.mark.parametrize("count", [2, 63, 64, 65, 129, 4095, 4096, 4097, 9000])
@pytest.mark.parametrize("width", [1, 3, 600])
def test_sums_around_the_sizes_of_blocks(count: int, width: int) -> None:
    if count * width > 600 * 600:
        width = 7
    rng = np.random.default_rng(count)
    x = rng.normal(size=(count, width)).astype(np.float32)

    def several(x: Any) -> Any:
        mean = anp.mean(x, axis=0)
        y = anp.exp(x - mean)
        return mean, anp.sum(y, axis=0), anp.max(x, axis=0), anp.cumsum(x, axis=0)

    program = make_program(several)(x)
    for judged, have in zip(oracle(program, [x]), jitted(several, x), strict=True):
        judged.check(have)
    program = make_program(lambda x: several(x.T))(x.T)
    results = jitted(lambda x: several(x.T), x.T)
    for judged, have in zip(oracle(program, [x.T]), results, strict=True):
        judged.check(have)


def test_the_same_bits_whatever_a_sum_is_fused_with() -> None:
    """Blocks follow from shapes and strides alone."""
    x = offset_rows()[:, :1].T.copy()
    alone = jitted(lambda x: anp.sum(x, axis=1), x)
    both, _ = jitted(lambda x: (anp.sum(x, axis=1), anp.max(x * 2, axis=1)), x)
    np.testing.assert_array_equal(alone, both)


def test_blocks_are_powers_of_two() -> None:
    """What is padded to vectors stays so in each block."""
    for block in (ROW_BLOCK, COLUMN_BLOCK, RUNNING_BLOCK):
        assert block & (block - 1) == 0


# On a GPU a thread adds up no more than some hundred terms, one after the other.


@pytest.mark.parametrize(
    ("shape", "steps"), [((65_536, 8192), 1), ((1_000_000, 8192), 2)]
)
def test_rows_that_are_too_many_for_a_thread_are_cut(
    shape: tuple[int, ...], steps: int
) -> None:
    x = af.ShapeDtypeStruct(shape, np.float32)
    program = make_program(lambda x: anp.sum(x, axis=0))(x)
    plan = BACKENDS["cuda"].lower(program, frozenset()).plan
    assert len(plan.steps) == steps
