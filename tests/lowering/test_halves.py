"""Halves in kernels: what has 16 bits, and what keeps float32's precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import dtypes, lax
from arrayfn.backends.cpu.unjitted import run_unjitted
from arrayfn.backends.cuda.emulated_plan import run_plan
from arrayfn.lowering.lower import lower
from arrayfn.tools.oracle import oracle
from arrayfn.transforms import make_program
from tests.lowered_on_gpu import lowered

Array = np.ndarray[Any, Any]


def results(function: Callable[..., Any], *args: Array) -> dict[str, Array]:
    """What every way to compute ``function`` gives; it has one result."""
    program = make_program(function)(*args)
    with np.errstate(all="ignore"):
        alone = np.asarray(function(*args))
    (un_jitted,) = run_unjitted(lower(program), args)
    (emulated,) = run_plan(lowered(function, *args), args)
    return {
        "op by op": alone,
        "compiled": af.jit(function)(*args),
        "un-jitted": un_jitted,
        "emulated": np.asarray(emulated),
        "reference": af.jit(function, device="reference")(*args),
    }


def halves(dtype: Any, *numbers: float) -> Array:
    return np.array(numbers, np.float64).astype(dtype)


BOTH = pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16])


def test_a_product_that_overflows_is_infinite_as_another_dtype() -> None:
    x = halves(np.float16, 65504.0, 1.0, -40000.0)
    for how, have in results(lambda x: (x * 2).astype(anp.float32), x).items():
        assert have.tolist() == [np.inf, 2.0, -np.inf], how


@BOTH
def test_what_is_converted_has_16_bits(dtype: Any) -> None:
    x = halves(dtype, *np.linspace(1, 2, 50))
    product = x * x
    assert product.dtype == dtype
    for how, have in results(lambda x: (x * x).astype(anp.float32), x).items():
        np.testing.assert_array_equal(have, product.astype(np.float32), how)
    other = dtypes.float16 if dtype == dtypes.bfloat16 else dtypes.bfloat16
    want = product.astype(np.float32).astype(other)
    for how, have in results(lambda x: (x * x).astype(other), x).items():
        np.testing.assert_array_equal(
            have.astype(np.float32), want.astype(np.float32), how
        )


@BOTH
def test_what_is_compared_has_16_bits(dtype: Any) -> None:
    x = halves(dtype, *np.linspace(1, 2, 50))
    y = x * x
    for how, have in results(lambda x, y: x * x == y, x, y).items():
        assert have.all(), how


@BOTH
def test_bits_are_those_of_a_half(dtype: Any) -> None:
    x = halves(dtype, 1.1, 1.7, -2.3)
    want = (x * x).view(np.uint16)

    def bits(x: Any) -> Any:
        return lax.bitcast_convert_type(x * x, np.uint16)

    for how, have in results(bits, x).items():
        np.testing.assert_array_equal(have, want, how)


def test_infinities_of_halves_are_seen() -> None:
    x = halves(np.float16, 60000.0, 2.0, np.nan)
    for how, have in results(lambda x: anp.isinf(x + x), x).items():
        assert have.tolist() == [True, False, False], how


def test_a_half_that_is_compared_is_a_half_for_all_that_read_it() -> None:
    x = halves(np.float16, 1.0, 1.0)
    step = halves(np.float16, 2.0**-12, 2.0**-9)

    def above(x: Any, step: Any) -> Any:
        y = x + step  # 1 + 2**-12 is 1 in 16 bits
        return anp.where(y > 1, y, y - 1)

    for how, have in results(above, x, step).items():
        assert have.tolist() == [0.0, 1.0 + 2.0**-9], how


@BOTH
def test_a_positions_half_is_that_of_its_extremum(dtype: Any) -> None:
    x = halves(dtype, *np.linspace(1, 1.1, 40))
    want = int(np.argmax((x * x).astype(np.float32)))
    for how, have in results(lambda x: anp.argmax(x * x), x).items():
        assert int(have) == want, how


def test_arithmetic_of_halves_keeps_float32_inside_a_kernel() -> None:
    """Rounding after each equation would take up to 2.7 times as long."""
    a, b, c = (halves(np.float16, number) for number in (1.001, 1.002, -1.003))
    function = lambda a, b, c: a * b + c  # noqa: E731
    want = (a.astype(np.float64) * b + c).astype(np.float16)
    assert af.jit(function)(a, b, c) == want
    assert function(a, b, c) == 0.0
    rounded = lambda a, b, c: lax.reduce_precision(a * b, 5, 10) + c  # noqa: E731
    assert af.jit(rounded)(a, b, c) == 0.0
    (judged,) = oracle(make_program(function)(a, b, c), [a, b, c])
    judged.check(want)
    judged.check(np.zeros(1, np.float16))


@BOTH
def test_a_mean_takes_what_its_kernel_computes_as_a_sum_does(dtype: Any) -> None:
    x = halves(dtype, *np.linspace(1, 2, 64)).reshape(2, 32)
    function = lambda x: anp.mean(x * x, axis=1)  # noqa: E731
    (judged,) = oracle(make_program(function)(x), [x])
    for have in results(function, x).values():
        judged.check(have)
    for compiled in (lowered(function, x), af.jit(function).lower(x).compiled_program):
        (kernel,) = compiled.kernels
        assert "convert_f32_" not in kernel.source.split("accumulate_add", 1)[0]
    wide = x.astype(np.float64)
    want = (wide * wide).mean(1).astype(dtype)
    np.testing.assert_array_equal(af.jit(function)(x), want)
    slope = af.jit(af.grad(lambda x: anp.sum(function(x))))(x)
    np.testing.assert_array_equal(slope, (2 * wide / 32).astype(dtype))


def test_the_oracle_takes_both_where_a_product_in_between_overflows() -> None:
    x = halves(np.float16, 65504.0, 3.0)
    function = lambda x: x * 2 * 0.5  # noqa: E731
    (judged,) = oracle(make_program(function)(x), [x])
    judged.check(x)
    judged.check(halves(np.float16, np.inf, 3.0))
    function = lambda x: (x * 2).astype(anp.float32) * 0.5  # noqa: E731
    (judged,) = oracle(make_program(function)(x), [x])
    judged.check(np.array([np.inf, 3.0], np.float32))
    with pytest.raises(AssertionError):
        judged.check(np.array([65504.0, 3.0], np.float32))


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16], ids=str)
def test_numbers_of_a_program_have_the_value_that_the_half_has(dtype: Any) -> None:
    x = np.ones(3, dtype)
    tenth = float(np.asarray(0.01, dtype))
    scaled = lambda x: anp.multiply(x, 0.01).astype(np.float32) % 1.0  # noqa: E731
    for how, y in results(scaled, x).items():
        assert y.tolist() == [tenth] * 3, how
    chosen = lambda x: anp.where(x > 0, 0.01, x).astype(np.float32)  # noqa: E731
    for how, y in results(chosen, x).items():
        assert y.tolist() == [tenth] * 3, how


@BOTH
@pytest.mark.parametrize("extremum", [anp.max, anp.min])
def test_elements_equal_their_extremum_through_what_is_exact(
    dtype: Any, extremum: Any
) -> None:
    x = halves(dtype, *np.linspace(0.3, 2.1, 12)).reshape(3, 4)

    def loss(x: Any) -> Any:
        return anp.sum(extremum(anp.abs(x * 0.7), axis=1) ** 2)

    chosen = [0, 0, 0, 1] if extremum is anp.max else [1, 0, 0, 0]
    for how, have in results(af.grad(loss), x).items():
        assert (have != 0).tolist() == [list(map(bool, chosen))] * 3, how
        assert np.isfinite(have.astype(np.float32)).all(), how


def test_a_negated_sum_that_overflows_is_infinite_as_another_dtype() -> None:
    x = halves(np.float16, *[60000.0] * 64)
    for how, have in results(lambda x: (-anp.sum(x)).astype(np.float64), x).items():
        assert have == -np.inf, how


@BOTH
@pytest.mark.parametrize("jump", ["floor", "ceil", "trunc", "round", "sign"])
def test_functions_that_jump_take_rounded_numbers(dtype: Any, jump: str) -> None:
    x = halves(dtype, *np.linspace(-4, 4, 97))
    want = getattr(np, jump)((x * dtype.type(0.7)).astype(np.float64))
    for how, have in results(
        lambda x: getattr(anp, jump)(anp.multiply(x, 0.7)), x
    ).items():
        np.testing.assert_array_equal(have.astype(np.float64), want, how)


@BOTH
@pytest.mark.parametrize("jump", ["mod", "floor_divide", "fmod"])
def test_remainders_are_those_of_rounded_numbers(dtype: Any, jump: str) -> None:
    x = halves(dtype, *np.linspace(-4, 4, 97))
    y = halves(dtype, 0.25)
    want = getattr(np, jump)((x * dtype.type(0.7)).astype(np.float64), 0.25)
    want = want.astype(dtype).astype(np.float64)
    for how, have in results(
        lambda x, y: getattr(anp, jump)(anp.multiply(x, 0.7), y), x, y
    ).items():
        np.testing.assert_array_equal(have.astype(np.float64), want, how)
