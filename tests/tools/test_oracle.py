"""The oracle: float64 with exact sums, and bounds that see what rounding can do."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import lax, random
from arrayfn.backends.reference import exact
from arrayfn.errors import ArgumentError
from arrayfn.scipy import special
from arrayfn.tools.oracle import Judged, oracle
from arrayfn.transforms import make_program

Array = np.ndarray[Any, Any]


def wide(function: Callable[..., Any], *args: Any) -> Any:
    return af.jit(function, device="reference64")(*args)


def judge(function: Callable[..., Any], *args: Any) -> Judged:
    (judged,) = oracle(make_program(function)(*args), args)
    return judged


def hard_terms(count: int) -> Array:
    """Terms that cancel: the sum is 1e-16 of the greatest."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=count // 2) * 10.0 ** rng.integers(-8, 9, count // 2)
    return rng.permutation(np.concatenate((x, -x, [1.0 / 3.0])))


# Exact sums.


@pytest.mark.parametrize("count", [40, 20_000])
def test_sums_that_cancel_are_right_to_the_last_bit(count: int) -> None:
    x = hard_terms(count)
    want = float(sum(map(Fraction, x.tolist()), Fraction(0)))
    assert exact.reduce_sum(x, axes=(0,)) == want == 1.0 / 3.0
    assert exact.reduce_sum(np.stack((x, -x), 1), axes=(0,)).tolist() == [want, -want]


def test_sums_of_nothing_are_zero() -> None:
    for shape in ((0, 3), (2, 0), (0, 0)):
        x = np.zeros(shape)
        assert np.array_equal(exact.reduce_sum(x, axes=(1,)), np.zeros(shape[:1]))
        y = np.zeros((shape[1], 2))
        product = exact.dot_general(x, y, contract=((1,), (0,)), batch=((), ()))
        assert np.array_equal(product, np.zeros((shape[0], 2)))


@pytest.mark.parametrize("count", [40, 20_000])
def test_products_that_cancel_are_right_to_the_last_bit(count: int) -> None:
    rng = np.random.default_rng(4)
    x, y = rng.normal(size=(2, count))
    a, b = np.append(x, x), np.append(y, -y)
    a, b = np.append(a, 0.1), np.append(b, 0.1)
    found = exact.dot_general(a, b, contract=((0,), (0,)), batch=((), ()))
    assert found == float(Fraction(0.1) * Fraction(0.1))


def test_cumulative_sums_are_exact_from_both_ends() -> None:
    x = np.array([1e16, 1.0, -1e16, 1.0])
    found = exact.cumsum(x, axis=0, reverse=False)
    np.testing.assert_array_equal(found, [1e16, 1e16, 1.0, 2.0])
    found = exact.cumsum(x, axis=0, reverse=True)
    np.testing.assert_array_equal(found, [2.0, 2.0 - 1e16, 1.0 - 1e16, 1.0])


def test_products_of_matrices_equal_those_of_numpy() -> None:
    rng = np.random.default_rng(5)
    x, y = rng.normal(size=(2, 3, 4, 5)), rng.normal(size=(5, 2, 6))
    pair: dict[str, Any] = {"contract": ((3,), (0,)), "batch": ((0,), (1,))}
    have = exact.dot_general(x, y, **pair)
    np.testing.assert_allclose(have, np.einsum("bijk,kbl->bijl", x, y), 1e-13, 1e-15)
    z, w = x + 1j * x[::-1], y - 2j * y
    have = exact.dot_general(z, w, **pair)
    np.testing.assert_allclose(have, np.einsum("bijk,kbl->bijl", z, w), 1e-13, 1e-14)


def test_sums_with_infinities_are_numpys() -> None:
    x = np.array([[1.0, np.inf], [np.inf, -np.inf], [1e308, 1e308]])
    found = exact.reduce_sum(x, axes=(1,))
    np.testing.assert_array_equal(found, [np.inf, np.nan, np.inf])
    long = np.zeros((2, 5000))
    long[0, 7], long[1, 8] = np.inf, np.nan
    np.testing.assert_array_equal(exact.reduce_sum(long, axes=(1,)), [np.inf, np.nan])


# reference64.


def test_results_stay_float64_and_are_not_rounded_between() -> None:
    x = np.array([65504.0, 1.0], np.float16)
    found = wide(lambda x: x * 2, x)
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, [131008.0, 2.0])
    found = wide(lambda x: anp.exp(x.astype("complex64")), np.float32(1.0))
    assert found.dtype == np.complex128
    assert found == np.exp(1.0)


def test_inputs_constants_and_literals_have_the_value_of_their_dtype() -> None:
    constant = np.float32(0.3)
    found = wide(lambda x: x * 0.1 + constant, np.float32(0.2))
    want = float(np.float32(0.2)) * float(np.float32(0.1)) + float(constant)
    assert found == want


def test_variance_of_a_large_offset_is_right_in_float32() -> None:
    x = (1e4 + np.random.default_rng(0).normal(size=(10_000, 3))).astype(np.float32)
    found = wide(lambda x: anp.var(x, axis=0), x)
    np.testing.assert_allclose(found, x.astype(np.float64).var(0), 1e-12)


def test_loops_and_branches_are_computed_in_float64() -> None:
    def loop(x: Any) -> Any:
        return lax.scan(lambda c, x: (c + 1.0 / x, c), 0.0 * x[0], x)[0]

    x = np.arange(1.0, 60.0, dtype=np.float32)
    assert wide(loop, x) == pytest.approx(float(np.sum(1.0 / np.arange(1.0, 60.0))))
    for value in (1.0, 2.0):
        found = wide(
            lambda x: lax.cond(x > 1, lambda x: x / 3, lambda x: x / 7, x),
            np.float32(value),
        )
        assert found == value / (3 if value > 1 else 7)


def test_bits_are_those_of_the_programs_dtype() -> None:
    found = wide(lambda k: random.uniform(random.key(k), (5,)), 3)
    want = af.jit(lambda k: random.uniform(random.key(k), (5,)))(3)
    np.testing.assert_array_equal(found, want.astype(np.float64))
    found = wide(lambda x: anp.nextafter(x, 2 * x), np.float32(1.0))
    assert found == 1.0 + 2.0**-23
    found = wide(lambda x: lax.bitcast_convert_type(x, np.int32), np.float32(1.0))
    assert found == 0x3F800000


def test_a_python_function_gets_arrays_of_the_programs_dtypes() -> None:
    seen: list[Any] = []

    def function(x: Array) -> Array:
        seen.append(x.dtype)
        return np.asarray(x + 1)

    shape = af.ShapeDtypeStruct((2,), np.float32)
    found = wide(lambda x: af.pure_callback(function, shape, x), np.ones(2, np.float32))
    assert seen == [np.dtype(np.float32)]
    np.testing.assert_array_equal(found, [2.0, 2.0])


# Bounds.


def test_a_bound_sees_cancellation() -> None:
    x = np.array([1e8, 1.0, -1e8], np.float32)
    judged = judge(anp.sum, x)
    assert judged.value == 1.0
    assert 10 < judged.bound < 1e4


def test_a_bound_is_small_where_nothing_cancels() -> None:
    x = np.random.default_rng(1).uniform(1, 2, 1000).astype(np.float32)
    judged = judge(anp.sum, x)
    assert judged.bound < 1e-5 * judged.value
    assert judge(anp.exp, x).bound.max() < 1e-5
    assert judge(anp.exp, x.astype(np.float64)).bound.max() < 1e-13


def test_a_naive_variance_is_out_of_bounds() -> None:
    x = (1e4 + np.random.default_rng(0).normal(size=(400_000, 2))).astype(np.float32)
    judged = judge(lambda x: anp.var(x, axis=0), x)
    judged.check(x.astype(np.float64).var(0).astype(np.float32))
    with pytest.raises(AssertionError, match="of 2 elements are out of bounds"):
        judged.check(np.var(x, axis=0))


def test_a_product_of_halves_that_overflows_is_infinite() -> None:
    x = np.array([65504.0, 3.0], np.float16)
    judged = judge(lambda x: (x * 2).astype("float32"), x)
    judged.check(np.array([np.inf, 6.0], np.float32))
    with pytest.raises(AssertionError, match="131008"):
        judged.check(np.array([131008.0, 6.0], np.float32))


def test_what_rounding_decides_has_no_bound() -> None:
    x = np.array([1.0 / 3.0, 1.25], np.float32)
    judged = judge(lambda x: anp.floor(x * 3), x)
    assert judged.bound[0] >= 1 > 1e-5 > judged.bound[1]
    judged = judge(lambda x: (x * 3 / 3 * 3) < 1, x)
    assert math.isinf(judged.bound[0])
    assert judged.bound[1] == 0.0


def test_small_integers_in_floats_are_decided() -> None:
    x = np.arange(12.0, dtype=np.float32).reshape(3, 4)
    judged = judge(lambda x: anp.argmax(anp.floor(x @ x.T * 2), axis=1), x)
    assert judged.bound.tolist() == [0.0, 0.0, 0.0]
    assert judged.value.tolist() == [2, 2, 2]


def test_integers_and_bools_are_compared_exactly() -> None:
    x = np.array([3, 250], np.uint8)
    judged = judge(lambda x: x * 2, x)
    judged.check(np.array([6, 244], np.uint8))
    with pytest.raises(AssertionError, match=r"1 of 2 .* at \[1\] it is 245, not 244"):
        judged.check(np.array([6, 245], np.uint8))
    judged = judge(lambda x: x > 5, x)
    judged.check(np.array([False, True]))
    with pytest.raises(AssertionError, match="it is True, not False"):
        judged.check(np.array([True, True]))


def test_an_ill_conditioned_inverse_has_a_wide_bound() -> None:
    index = np.arange(6.0)
    hilbert = 1 / (1 + index[:, None] + index)
    judged = judge(anp.linalg.inv, hilbert)
    assert judged.bound.max() > 1e-5
    assert judge(anp.linalg.inv, np.eye(6) + 0.1 * hilbert).bound.max() < 1e-9


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_halves_are_bounded_by_their_own_precision(dtype: Any) -> None:
    x = np.array([1.5, 2.25, 3.125]).astype(dtype)
    judged = judge(lambda x: x / 3, x)
    eps = float(ml_dtypes.finfo(dtype).eps)
    assert (judged.bound >= eps / 2 * judged.value).all()
    assert (judged.bound <= 16 * eps * judged.value).all()
    judged.check((x.astype(np.float64) / 3).astype(dtype))


def test_a_half_may_be_rounded_for_one_reader_only() -> None:
    def f(x: Any) -> Any:
        y = x * x
        return y - y * 1  # y of one kernel, or computed again

    x = np.array([1.0078125], ml_dtypes.bfloat16)  # x * x is no bfloat16
    assert judge(f, x).bound[0] > 2**-15


def test_results_of_other_types_are_refused() -> None:
    judged = judge(anp.exp, np.ones(3, np.float32))
    with pytest.raises(AssertionError, match=r"float64\[3\], not float32\[3\]"):
        judged.check(np.exp(np.ones(3)))
    with pytest.raises(ArgumentError, match="takes 1 inputs, but was given 2"):
        oracle(make_program(anp.exp)(np.ones(3)), [np.ones(3)] * 2)
    with pytest.raises(ArgumentError, match=r"f64\[3\], but was given an array"):
        oracle(make_program(anp.exp)(np.ones(3)), [np.ones(4)])


def test_what_a_solver_does_not_read_may_be_nan() -> None:
    a = np.array([[4.0, np.nan], [1.0, 3.0]], np.float32)
    b = np.array([[1.0, np.nan], [2.0, 3.0]], np.float32)
    solve = lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True, lower=True)  # noqa: E731
    judged = judge(solve, a, b)
    exact = [0.25, (2.0 - 0.25) / 3.0]
    assert judged.value[:, 0] == pytest.approx(exact)
    judged.check(af.jit(solve)(a, b))


def test_a_series_that_ends_when_its_terms_are_small_has_a_bound() -> None:
    x = np.linspace(0.5, 3, 200, dtype=np.float32)
    judged = judge(lambda x: special.gammainc(x, x), x)
    assert (judged.bound > 0).all()
    assert (judged.bound < 1e-5).all()
    judged.check(af.jit(lambda x: special.gammainc(x, x))(x))


def test_equal_terms_have_equal_errors() -> None:
    """Independent errors would leave a hundredth of a unit in the last place."""
    x = np.full(100_000, 0.3, np.float32)
    mean = lambda x: anp.mean(anp.exp(x).astype("float64"))  # noqa: E731
    assert 1.2e-7 < judge(mean, x).bound < 1e-5


def test_functions_may_be_too_great_everywhere() -> None:
    x = np.linspace(0.3, 0.31, 100_000, dtype=np.float32)
    mean = lambda x: anp.mean(anp.exp(x).astype("float64"))  # noqa: E731
    assert 1.2e-7 < judge(mean, x).bound < 1e-5


def test_a_variance_of_equal_numbers_may_be_exactly_zero() -> None:
    """Their mean is one of them or beside it."""
    x = np.repeat(np.linspace(0.1, 2, 200, dtype=np.float32)[:, None], 3, axis=1)
    program = make_program(lambda x: anp.var(anp.exp(x), axis=1) == 0)(x)
    (judged,) = oracle(program, [x], samples=40)
    assert 0 < (~judged.value).sum() < 200
    assert np.isinf(judged.bound[~judged.value]).mean() > 0.9


def test_the_sign_of_a_nan_that_is_computed_is_undecided() -> None:
    x = np.array([np.inf, 1.0], np.float32)
    assert judge(lambda x: anp.signbit(x - x), x).bound.tolist() == [np.inf, 0.0]
    assert judge(lambda x: anp.copysign(3.0, x - x), x).bound[0] >= 6
    nan = np.array([np.nan, -np.nan], np.float32)
    judged = judge(anp.signbit, nan)
    assert judged.bound.tolist() == [0.0, 0.0]
    assert judged.value.tolist() == [False, True]


def test_what_overflows_is_infinite_on_the_way_too() -> None:
    x = np.array([91.5, -91.5], np.float32)
    judge(anp.exp, x).check(np.array([np.inf, np.exp(np.float32(-91.5))], np.float32))
    judged = judge(lambda x: 1 / anp.exp(x), x)
    judged.check(np.array([0.0, np.inf], np.float32))
    with pytest.raises(AssertionError, match="1 of 2 elements"):
        judged.check(np.array([1e-30, np.inf], np.float32))


@pytest.mark.parametrize("tiny", [1e-300, 0.3])
def test_complex_infinities_are_no_nan(tiny: float) -> None:
    z = np.array([complex(np.inf, tiny), complex(tiny, -np.inf)])
    judge(lambda z: anp.abs(anp.conj(z)), z).check(np.array([np.inf, np.inf]))
    judge(lambda z: 1 / anp.conj(z), z).check(np.array([0j, 0j]))


def test_subnormal_halves_may_be_their_neighbours() -> None:
    x = np.array([3e-7], np.float16)
    least = 2.0**-24
    judged = judge(lambda x: x * np.float16(0.3), x)
    assert judged.bound >= least
    assert judged.bound <= 6 * least


def test_a_transform_of_infinities_may_be_nan_or_infinite() -> None:
    x = np.array([[np.inf, 2.0], [1.0, 2.0]], np.float32)
    judged = judge(anp.fft.ifft, x)
    assert np.isinf(judged.bound[0]).all()
    assert judged.bound[1].max() < 1e-4
    real = judge(anp.fft.irfft, np.array([[0.0, -np.inf, 0.0], [1, 2, 3]], np.float32))
    assert np.isinf(real.bound[0]).all()  # infinity times 0 on the way, or not
    assert real.bound[1].max() < 1e-4


@pytest.mark.parametrize("name", ["segment_sum", "segment_prod"])
def test_scatters_round_halves_at_each_update(name: str) -> None:
    x = (1 + np.random.default_rng(0).normal(size=3000) / 100).astype(np.float16)
    index = np.zeros(3000, np.int32)
    segments = lambda x: getattr(af.ops, name)(x, index, num_segments=2)  # noqa: E731
    judged = judge(segments, x)
    judged.check(af.jit(segments)(x))
    eps = float(np.finfo(np.float16).eps)
    assert 500 * eps < judged.bound[0] / judged.value[0] < 8000 * eps
    assert judged.bound[1] < 3 * eps


def test_a_complex_quotient_is_rounded_on_the_way_to_a_number() -> None:
    z = np.array([-0.5 - 1.25j, 3 + 4j], np.complex64)

    def f(z: Any) -> Any:
        return (z / z).astype(np.complex128)

    (judged,) = oracle(make_program(f)(z), [z])
    assert not judged.violations(np.complex128([0.99999994, 1])).any()
    assert judged.violations(np.complex128([0.9999, 1])).any()
