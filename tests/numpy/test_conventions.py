"""Conventions of NumPy that are easily missed: which axis, which sign, which order."""

from __future__ import annotations

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn.errors import ArgumentError, AxisError, InPlaceError


@pytest.mark.parametrize("axis", [0, 1, -1, -2])
def test_vecdot_contracts_its_axis_of_each_operand_when_ranks_differ(axis: int) -> None:
    x = np.random.default_rng(0).normal(size=(2, 2, 2))
    y = np.random.default_rng(1).normal(size=(2, 2))
    expected = np.vecdot(x, y, axis=axis)
    np.testing.assert_allclose(anp.vecdot(x, y, axis=axis), expected, rtol=1e-14)
    found = anp.linalg.vecdot(y, x, axis=axis)
    np.testing.assert_allclose(found, np.vecdot(y, x, axis=axis), rtol=1e-14)


def test_vecdot_names_an_axis_that_one_operand_lacks() -> None:
    with pytest.raises(AxisError, match="vecdot: axis 2 is out of bounds"):
        anp.vecdot(np.ones((2, 2, 2)), np.ones((2, 2)), axis=2)


@pytest.mark.parametrize("pair", [(1.0, np.inf), (-np.inf, 1.0), (-np.inf, -np.inf)])
def test_a_median_of_one_finite_number_is_infinite(pair: tuple[float, float]) -> None:
    assert anp.median(np.array(pair)) == np.median(pair)
    assert anp.nanmedian(np.array([*pair, np.nan])) == np.median(pair)
    assert anp.quantile(np.array(pair), 0.25) == pair[0] + pair[1]
    assert np.isnan(anp.median(np.array([-np.inf, np.inf])))


@pytest.mark.parametrize("axis", range(-4, 4))
@pytest.mark.parametrize("start", range(-4, 5))
def test_rollaxis_moves_as_in_numpy(axis: int, start: int) -> None:
    x = np.zeros((1, 2, 3, 4))
    assert anp.rollaxis(x, axis, start).shape == np.rollaxis(x, axis, start).shape


def test_rollaxis_refuses_a_start_beyond_the_axes() -> None:
    with pytest.raises(AxisError, match="axis -5 is out of bounds"):
        anp.rollaxis(np.zeros((1, 2, 3, 4)), 0, -5)


@pytest.mark.parametrize("period", [0.59, -0.59, 3.3, 17.0])
def test_interp_with_a_period_takes_points_in_any_order(period: float) -> None:
    x = np.array([1.0, 2.0, 7.0, -4.2])
    points = np.array([3.0, 0.0, 2.0, 1.0])
    values = np.array([7.0, 0.0, 5.0, 10.0])
    expected = np.interp(x, points, values, period=period)
    found = anp.interp(x, points, values, period=period)
    np.testing.assert_allclose(found, expected, rtol=1e-13)
    jitted = af.jit(lambda *a: anp.interp(*a, period=period))(x, points, values)
    np.testing.assert_allclose(jitted, expected, rtol=1e-13)


def test_interp_refuses_a_period_of_0() -> None:
    with pytest.raises(ArgumentError, match="period that is not 0"):
        anp.interp(np.ones(2), np.arange(3.0), np.arange(3.0), period=0)


@pytest.mark.parametrize("mode", ["clip", "wrap"])
def test_put_takes_indices_out_of_bounds_as_numpy_does(mode: str) -> None:
    places = np.array([-2, 7, 1, -9])
    values = np.array([9.0, 8.0, 7.0, 6.0])
    expected = np.zeros(4)
    np.put(expected, places, values, mode=mode)
    found = anp.put(np.zeros(4), places, values, mode=mode)
    np.testing.assert_array_equal(found, expected)
    jitted = af.jit(lambda i: anp.put(np.zeros(4), i, values, mode=mode))(places)
    np.testing.assert_array_equal(jitted, expected)


def test_put_refuses_a_mode_that_there_is_not() -> None:
    with pytest.raises(ArgumentError, match="'raise', 'wrap' and 'clip', not 'cilp'"):
        anp.put(np.zeros(3), np.array([0]), 1.0, mode="cilp")


def test_sets_of_bfloat16_are_in_order_with_nan_last() -> None:
    x = np.array([3, np.nan, -1, np.nan, -2], anp.bfloat16)
    found = anp.unique(x)
    assert found.dtype == anp.bfloat16
    np.testing.assert_array_equal(found.astype(float), [-2, -1, 3, np.nan])
    for part in (anp.unique_all(x), anp.unique_counts(x), anp.unique_inverse(x)):
        values = part.values.astype(float)
        np.testing.assert_array_equal(values, [-2, -1, 3, np.nan, np.nan])
    np.testing.assert_array_equal(anp.unique_all(x).indices[:3], [4, 2, 0])
    union = anp.union1d(x[:1], x[2:3])
    assert union.dtype == anp.bfloat16
    np.testing.assert_array_equal(union.astype(float), [-1, 3])
    common = anp.intersect1d(x, np.array([-1, 3], anp.bfloat16))
    np.testing.assert_array_equal(common.astype(float), [-1, 3])
    rest = anp.setdiff1d(x, np.array([-1, np.nan], anp.bfloat16))
    assert rest[:2].astype(float).tolist() == [-2, 3]


def test_searchsorted_of_bfloat16_puts_nan_last() -> None:
    x = np.array([1, 2, 3, np.nan], anp.bfloat16)
    values = np.array([2.5, np.nan], anp.bfloat16)
    assert anp.searchsorted(x, values).tolist() == [2, 3]
    assert anp.searchsorted(x, values, side="right").tolist() == [2, 4]


def test_apply_at_a_repeated_index_applies_as_often() -> None:
    x = np.array([1.0, 2.0, 3.0])
    places = np.array([0, 0, 2])

    def applied(x: np.ndarray, places: np.ndarray) -> np.ndarray:
        return anp.at(x)[places].apply(anp.exp)

    expected = [np.exp(np.e), 2.0, np.exp(3.0)]
    np.testing.assert_allclose(applied(x, places), expected)
    np.testing.assert_allclose(af.jit(applied)(x, places), expected)
    slopes = af.jit(af.grad(lambda x, i: applied(x, i).sum()))(x, places)
    np.testing.assert_allclose(slopes, [np.exp(np.e + 1), 1.0, np.exp(3.0)])


def test_apply_reads_nothing_but_what_is_indexed() -> None:
    x, places = np.array([0.0, 1.5, 2.0]), np.array([1, 2])
    log = af.grad(lambda x, i: anp.at(x)[i].apply(anp.log).sum())
    np.testing.assert_allclose(af.jit(log)(x, places), [1, 1 / 1.5, 0.5])


@pytest.mark.parametrize("jitted", [False, True])
def test_apply_drops_or_clips_what_is_out_of_bounds(jitted: bool) -> None:
    x, places = np.array([1.0, 2.0, 3.0]), np.array([0, 5, -7])

    def applied(mode: str) -> list[float]:
        def function(x: np.ndarray, i: np.ndarray) -> np.ndarray:
            return anp.at(x)[i].apply(np.negative, mode=mode)

        return (af.jit(function) if jitted else function)(x, places).tolist()

    assert applied("drop") == [-1.0, 2.0, 3.0]
    assert applied("clip") == [1.0, 2.0, -3.0]


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_linspace_of_arrays_of_different_ranks(axis: int) -> None:
    start, stop = np.ones((2, 1)), np.array([3.0, 5.0, 9.0])
    for retstep in (False, True):
        found = anp.linspace(start, stop, 4, axis=axis, retstep=retstep)
        want = np.linspace(start, stop, 4, axis=axis, retstep=retstep)
        for a, b in zip(found, want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-14)


@pytest.mark.parametrize(
    ("start", "stop"), [(1j, 1000j), (-1 + 1j, 100 + 0j), (1 + 0j, -1 + 0j)]
)
def test_geomspace_of_complex_numbers(start: complex, stop: complex) -> None:
    want = np.geomspace(start, stop, 5)
    np.testing.assert_allclose(anp.geomspace(start, stop, 5), want, atol=1e-12)
    jitted = af.jit(lambda a, b: anp.geomspace(a, b, 5))(start, stop)
    np.testing.assert_allclose(jitted, want, atol=1e-12)


def test_einsum_takes_the_path_that_einsum_path_gives() -> None:
    x = [np.random.default_rng(k).normal(size=(k + 2, k + 3)) for k in range(3)]
    path = np.einsum_path("ij,jk,kl", *x)[0]
    found = anp.einsum("ij,jk,kl", *x, optimize=path)
    np.testing.assert_allclose(found, x[0] @ x[1] @ x[2], rtol=1e-13)


def test_reduce_precision_takes_a_number() -> None:
    assert af.lax.reduce_precision(np.pi, 5, 2) == 3.0
    jitted = af.jit(lambda x: af.lax.reduce_precision(x, 5, 2))
    assert jitted(np.pi) == 3.0


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8"])
def test_eager_and_jitted_eigenvectors_have_one_sign(
    dtype: str, one_lapack: None
) -> None:
    for n in (2, 4, 5, 9):
        x = np.random.default_rng(n).normal(size=(n, n)).astype(dtype)
        for scale in (1.0, 1e15, 1e-15):
            scaled = (x * scale).astype(dtype)
            values, vectors = anp.linalg.eig(scaled)
            jitted_values, jitted = af.jit(anp.linalg.eig)(scaled)
            tolerance = 1e-12 if dtype == "f8" else 1e-4
            np.testing.assert_allclose(vectors, jitted, atol=tolerance)
            size = np.abs(values).max() * tolerance
            np.testing.assert_allclose(values, jitted_values, atol=size)


def test_a_copy_that_nobody_uses_is_refused() -> None:
    x, first = np.zeros((2, 3)), np.zeros((2, 1), int)
    with pytest.raises(InPlaceError, match=r"write x = put_along_axis\(x, \.\.\.\)"):
        anp.put_along_axis(x, first, 1.0, 1)
    with pytest.raises(InPlaceError, match="fill_diagonal changes no array in place"):
        af.jit(discard)(x)
    used = [anp.put(x, first, 1.0), anp.place(x, x == 0, 1.0)]
    assert [y.sum() for y in used] == [1.0, 6.0]


def discard(x: np.ndarray) -> None:
    anp.fill_diagonal(x, 1.0)
