"""Values and derivatives where conventions decide: ties, bounds, NaN, overflow.

The expected numbers of derivatives at ties and of complex functions are JAX's (0.10.2).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest
import scipy.special

import arrayfn as af
from arrayfn import dtypes
from arrayfn.ir import type_of
from arrayfn.primitives import complex_numbers as c
from arrayfn.primitives import elementwise as e
from arrayfn.primitives import reductions, slicing, special, views
from arrayfn.primitives.base import Primitive
from arrayfn.primitives.calls import evaluate
from arrayfn.primitives.random_bits import threefry2x32
from arrayfn.primitives.table import TABLE
from arrayfn.transforms.forward_mode import jvp
from arrayfn.transforms.transposition import value_and_grad
from tests.programs import build

NAN, INF = float("nan"), float("inf")


def gradients(function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """The gradient of the sum of ``function`` by each argument."""
    arrays = [np.asarray(x) for x in arguments]

    def total(*operands: Any) -> Any:
        y = function(*operands)
        return reductions.reduce_sum(y, axes=tuple(range(y.type.ndim)))

    program = build(total, *[type_of(x) for x in arrays])
    return evaluate(value_and_grad(program, [True] * len(arrays)), arrays)[1:]


def value(row: Primitive, *arguments: Any, **params: Any) -> Any:
    return row.reference(*[np.asarray(x) for x in arguments], **params)


# Derivatives at ties and bounds.


@pytest.mark.parametrize(
    ("row", "arguments", "expected"),
    [
        (e.maximum, (1.0, 1.0), (0.5, 0.5)),
        (e.minimum, (1.0, 1.0), (0.5, 0.5)),
        (e.maximum, (2.0, 1.0), (1.0, 0.0)),
        (e.minimum, (2.0, 1.0), (0.0, 1.0)),
        (e.absolute, (0.0,), (1.0,)),
        (e.absolute, (-2.0,), (-1.0,)),
        (e.sign, (0.0,), (0.0,)),
        (e.clamp, (0.0, 1.0, 2.0), (0.0, 1.0, 0.0)),
        (e.clamp, (0.0, 0.0, 2.0), (0.0, 0.0, 0.0)),
        (e.clamp, (0.0, 2.0, 2.0), (0.0, 0.0, 0.0)),
        (e.clamp, (0.0, -1.0, 2.0), (1.0, 0.0, 0.0)),
        (e.clamp, (0.0, 3.0, 2.0), (0.0, 0.0, 1.0)),
        (e.pow, (0.0, 0.0), (0.0, 0.0)),
        (e.pow, (0.0, 1.0), (1.0, 0.0)),
        (e.pow, (0.0, 2.0), (0.0, 0.0)),
        (e.pow, (0.0, 0.5), (INF, 0.0)),
        (e.copysign, (0.0, -1.0), (-1.0, 0.0)),
        (e.copysign, (2.0, -1.0), (-1.0, 0.0)),
        (e.remainder, (7.0, 3.0), (1.0, -2.0)),
        (e.fmod, (-7.0, 3.0), (1.0, 2.0)),
        (e.hypot, (0.0, 0.0), (0.0, 0.0)),
        (special.sqrt, (0.0,), (INF,)),
        (special.logaddexp, (INF, 1.0), (1.0, 0.0)),
        (special.logaddexp, (1.0, -INF), (1.0, 0.0)),
        (views.stop_gradient, (2.0,), (0.0,)),
    ],
)
def test_derivatives_where_a_convention_decides(
    row: Primitive, arguments: tuple[float, ...], expected: tuple[float, ...]
) -> None:
    np.testing.assert_array_equal(gradients(row, *arguments), expected)


def test_equal_extremes_share_the_derivative() -> None:
    x = np.array([1.0, 2.0, 2.0])
    (g,) = gradients(lambda v: reductions.reduce_max(v, axes=(0,)), x)
    np.testing.assert_array_equal(g, [0.0, 0.5, 0.5])
    last = {"start": (2,), "limit": (3,), "strides": (1,)}
    (g,) = gradients(
        lambda v: slicing.slice_(TABLE["cummax"](v, axis=0, reverse=False), **last), x
    )
    np.testing.assert_array_equal(g, [0.0, 0.5, 0.5])


@pytest.mark.parametrize(
    ("factors", "expected"),
    [
        ([2.0, 3.0, 4.0], [12.0, 8.0, 6.0]),
        ([0.0, 3.0, 4.0], [12.0, 0.0, 0.0]),
        ([0.0, 0.0, 4.0], [0.0, 0.0, 0.0]),
    ],
)
def test_a_product_differentiates_exactly_at_zeros(
    factors: list[float], expected: list[float]
) -> None:
    product = TABLE["reduce_prod"]
    x = np.array(factors)
    (g,) = gradients(lambda v: product(v, axes=(0,)), x)
    np.testing.assert_array_equal(g, expected)
    # The second derivative by the first two factors is the third, whatever they are.
    program = build(lambda v: product(v, axes=(0,)), type_of(x))
    first = value_and_grad(program, [True])
    column = evaluate(jvp(first, [True]), [x, np.array([1.0, 0.0, 0.0])])[3]
    assert column[1] == factors[2]


Z = np.array([1 + 2j, -0.5 + 0.3j])


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda z: c.real(e.mul(z, c.conj(z))), 2 * np.conj(Z)),
        (lambda z: c.imag(e.mul(z, z)), -2j * Z),
        (lambda z: c.real(special.exp(z)), np.exp(Z)),
        (lambda z: c.imag(special.exp(z)), -1j * np.exp(Z)),
        (c.complex_abs, np.conj(Z) / np.abs(Z)),
        (lambda z: c.real(c.make_complex(c.imag(z), c.real(z))), [-1j, -1j]),
    ],
)
def test_gradients_by_complex_arguments_are_not_conjugated(
    function: Callable[..., Any], expected: Any
) -> None:
    np.testing.assert_allclose(gradients(function, Z)[0], expected, rtol=1e-14)


def test_the_absolute_value_of_complex_zero_has_derivative_zero() -> None:
    assert gradients(c.complex_abs, 0j)[0] == 0


def test_digamma_differentiates_on_both_sides_of_zero() -> None:
    x = np.array([0.3, 1.0, 2.5, 100.0, 1e5])
    np.testing.assert_allclose(
        gradients(special.digamma, x)[0], scipy.special.polygamma(1, x), rtol=1e-14
    )
    x = np.array([-0.5, -20.3])
    expected = [float(mpmath.psi(1, v)) for v in x]
    np.testing.assert_allclose(gradients(special.digamma, x)[0], expected, rtol=1e-14)


# Values.


def test_integers_wrap_and_divide_by_zero_to_zero() -> None:
    x = np.array([127, -128, 100], np.int8)
    np.testing.assert_array_equal(value(e.add, x, np.int8(1)), [-128, -127, 101])
    np.testing.assert_array_equal(value(e.neg, x), [-127, -128, -100])
    np.testing.assert_array_equal(value(e.floor_divide, x, np.int8(0)), [0, 0, 0])
    np.testing.assert_array_equal(value(e.remainder, x, np.int8(0)), [0, 0, 0])


def test_integer_powers_truncate() -> None:
    base = np.array([2, 1, -1, -1, 0, 3], np.int32)
    exponent = np.array([-1, -5, -5, -4, -1, 4], np.int32)
    np.testing.assert_array_equal(value(e.pow, base, exponent), [0, 1, -1, 1, 0, 81])


def test_floats_convert_to_the_nearest_integer_of_the_range() -> None:
    x = np.array([NAN, INF, -INF, 1e30, -1.9, 255.9, 300.0])
    convert = TABLE["convert"]
    for dtype, expected in (
        (dtypes.uint8, [0, 255, 0, 255, 0, 255, 255]),
        (dtypes.int8, [0, 127, -128, 127, -1, 127, 127]),
        (dtypes.int64, [0, 2**63 - 1, -(2**63), 2**63 - 1, -1, 255, 300]),
        (dtypes.uint64, [0, 2**64 - 1, 0, 2**64 - 1, 0, 255, 300]),
    ):
        have = value(convert, x, dtype=dtype)
        assert have.dtype == dtype
        assert have.tolist() == expected


def test_extrema_propagate_nan_and_arg_extrema_find_the_first() -> None:
    x = np.array([1.0, NAN, 3.0, NAN])
    assert np.isnan(value(reductions.reduce_max, x, axes=(0,)))
    assert np.isnan(value(e.maximum, np.float64(1.0), np.float64(NAN)))
    argmax = {"axis": 0, "dtype": dtypes.int64}
    assert value(reductions.argmax, x, **argmax) == 1
    ties = np.array([2, 5, 5, 1], np.int8)
    assert value(reductions.argmax, ties, **argmax) == 1


def test_halves_are_computed_in_float32_and_rounded_once() -> None:
    x = np.full(3000, 1.0, np.float16)
    assert value(reductions.reduce_sum, x, axes=(0,)) == 3000.0
    a = np.asarray(1.0009766, np.float16)
    assert value(e.mul, a, a).dtype == np.float16
    assert float(value(e.mul, a, a)) == 1.001953125


# Indexing: windows of two from 0, 1, 2, 3, 4 that begin at 3, 4 and -1.

AT = np.array([[3], [4], [-1]])
PAIRS = {
    "window_axes": (1,),
    "collapsed_axes": (),
    "indexed_axes": (0,),
    "batch": ((), ()),
}


@pytest.mark.parametrize(
    ("mode", "fill", "expected"),
    [
        ("fill", NAN, [[3, 4], [NAN, NAN], [NAN, NAN]]),
        ("fill", 7, [[3, 4], [7, 7], [7, 7]]),
        ("clip", None, [[3, 4], [3, 4], [0, 1]]),
        ("promise_in_bounds", None, [[3, 4], [3, 4], [0, 1]]),
    ],
)
def test_gather_outside_fills_or_clips_whole_windows(
    mode: str, fill: float | None, expected: Any
) -> None:
    x = np.arange(5.0)
    params = {**PAIRS, "sizes": (2,), "mode": mode, "fill_value": fill}
    np.testing.assert_array_equal(value(TABLE["gather"], x, AT, **params), expected)


@pytest.mark.parametrize(
    ("name", "mode", "expected"),
    [
        ("scatter_add", "drop", [0, 1, 2, 4, 6]),
        ("scatter_add", "clip", [5, 7, 2, 7, 10]),
        ("scatter", "drop", [0, 1, 2, 1, 2]),
        ("scatter", "clip", [5, 6, 2, 3, 4]),
        ("scatter_mul", "drop", [0, 1, 2, 3, 8]),
        ("scatter_max", "clip", [5, 6, 2, 3, 4]),
        ("scatter_min", "clip", [0, 1, 2, 1, 2]),
    ],
)
def test_scatter_outside_drops_or_clips_whole_windows(
    name: str, mode: str, expected: Any
) -> None:
    x = np.arange(5.0)
    updates = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    params = {**PAIRS, "mode": mode, "unique_indices": False}
    np.testing.assert_array_equal(
        value(TABLE[name], x, AT, updates, **params), expected
    )
    np.testing.assert_array_equal(x, np.arange(5.0))


def test_indices_of_great_unsigned_integers_are_outside() -> None:
    at = np.array([[2**64 - 1], [2**63], [1]], np.uint64)
    params = {**PAIRS, "sizes": (2,), "mode": "clip", "fill_value": None}
    have = value(TABLE["gather"], np.arange(5.0), at, **params)
    np.testing.assert_array_equal(have, [[3, 4], [3, 4], [1, 2]])


def test_dynamic_slices_are_moved_inwards() -> None:
    x = np.arange(5.0)
    cut, put = TABLE["dynamic_slice"], TABLE["dynamic_update_slice"]
    for start, expected in ((-3, [0, 1]), (2, [2, 3]), (9, [3, 4])):
        have = value(cut, x, np.int32(start), sizes=(2,))
        np.testing.assert_array_equal(have, expected)
    have = value(put, x, np.array([8.0, 9.0]), np.int32(9))
    np.testing.assert_array_equal(have, [0, 1, 2, 8, 9])


# Random bits: the test vectors of Salmon et al.


@pytest.mark.parametrize(
    ("key", "block", "expected"),
    [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((2**32 - 1,) * 2, (2**32 - 1,) * 2, (0x1CB996FC, 0xBB002BE7)),
        (
            (0x13198A2E, 0x03707344),
            (0x243F6A88, 0x85A308D3),
            (0xC4923A9C, 0x483DF7A0),
        ),
    ],
)
def test_threefry_has_the_published_values(
    key: tuple[int, int], block: tuple[int, int], expected: tuple[int, int]
) -> None:
    words = [np.array([word], np.uint32) for word in (*key, *block)]
    assert tuple(int(word[0]) for word in threefry2x32(*words)) == expected


def test_complex_numbers_keep_both_of_their_parts():
    re, im = np.float32([3.0, -0.0, np.inf]), np.float32([np.inf, 1.0, -np.inf])
    for device in ("reference", "cpu"):
        z = af.jit(af.lax.complex, device=device)(re, im)
        assert z.real.tobytes() == re.tobytes(), device
        assert z.imag.tobytes() == im.tobytes(), device
