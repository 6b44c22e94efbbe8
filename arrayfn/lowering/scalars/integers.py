"""Integer functions, which wrap in their width as NumPy's do."""

from __future__ import annotations

from arrayfn.lowering.scalars.arithmetic import (
    Arithmetic,
    Value,
    logical_shift_right,
    width,
)
from arrayfn.primitives.random_bits import threefry_rounds


def is_signed(m: Arithmetic, x: Value) -> bool:
    """Whether the dtype of ``x`` has negative numbers."""
    return m.dtype(x)[0] == "i"


def absolute(m: Arithmetic, x: Value) -> Value:
    """The magnitude; the smallest number is its own magnitude."""
    return m.select(x < 0, 0 - x, x) if is_signed(m, x) else x


def sign(m: Arithmetic, x: Value) -> Value:
    """-1, 0 or 1."""
    dtype = m.dtype(x)
    positive = m.select(x > 0, m.constant(dtype, 1), 0)
    return m.select(x < 0, -1, positive) if is_signed(m, x) else positive


def trunc_div_rem(m: Arithmetic, x: Value, y: Value) -> tuple[Value, Value]:
    """Quotient towards zero and remainder; both are 0 for division by 0."""
    quotient_of = y
    overflow = None
    if is_signed(m, x):
        # The smallest number divided by -1 wraps to itself.
        overflow = y == -1
        quotient_of = m.select(overflow, 1, y)
    zero = y == 0
    quotient = m.integer_quotient(x, m.select(zero, 1, quotient_of))
    rest = x - quotient * quotient_of
    if overflow is not None:
        quotient = m.select(overflow, 0 - x, quotient)
    return m.select(zero, 0, quotient), m.select(zero, 0, rest)


def trunc_rem(m: Arithmetic, x: Value, y: Value) -> Value:
    """The remainder with the sign of ``x``, as np.fmod; 0 where ``y`` is 0."""
    return trunc_div_rem(m, x, y)[1]


def trunc_div(m: Arithmetic, x: Value, y: Value) -> Value:
    """The quotient towards zero; 0 where ``y`` is 0."""
    return trunc_div_rem(m, x, y)[0]


def floordiv(m: Arithmetic, x: Value, y: Value) -> Value:
    """The floor of the quotient; 0 where ``y`` is 0."""
    quotient, rest = trunc_div_rem(m, x, y)
    if not is_signed(m, x):
        return quotient
    return m.select((rest != 0) & ((rest < 0) != (y < 0)), quotient - 1, quotient)


def remainder(m: Arithmetic, x: Value, y: Value) -> Value:
    """The remainder with the sign of ``y``; 0 where ``y`` is 0."""
    rest = trunc_rem(m, x, y)
    if not is_signed(m, x):
        return rest
    return m.select((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest)


def maximum(m: Arithmetic, x: Value, y: Value) -> Value:
    """The greater."""
    return m.select(x > y, x, y)


def minimum(m: Arithmetic, x: Value, y: Value) -> Value:
    """The lesser."""
    return m.select(x < y, x, y)


def clamp(m: Arithmetic, x: Value, low: Value, high: Value) -> Value:
    """``minimum(maximum(x, low), high)``, as np.clip."""
    return minimum(m, maximum(m, x, low), high)


def _shift_count(m: Arithmetic, y: Value) -> tuple[Value, Value]:
    """Whether the shift count ``y`` is within the width, and the count or else 0.

    Negative counts are not.
    """
    n = width(m.dtype(y))
    within = m.reinterpret(y, "u" + m.dtype(y)[1:]) < n
    return within, m.select(within, y, 0)


def shift_left(m: Arithmetic, x: Value, y: Value) -> Value:
    """``x << y``; 0 where ``y`` is negative or not below the width."""
    within, count = _shift_count(m, y)
    return m.select(within, x << count, 0)


def shift_right(m: Arithmetic, x: Value, y: Value) -> Value:
    """``x >> y``, arithmetic if signed; larger counts shift all bits out."""
    within, count = _shift_count(m, y)
    if not is_signed(m, x):
        return m.select(within, x >> count, 0)
    return x >> m.select(within, count, width(m.dtype(x)) - 1)


def shift_right_logical(m: Arithmetic, x: Value, y: Value) -> Value:
    """``x >> y`` filling with zeros; a count outside the width gives 0."""
    within, count = _shift_count(m, y)
    return m.select(within, logical_shift_right(m, x, count), 0)


def pow(m: Arithmetic, x: Value, y: Value) -> Value:
    """``x ** y``, wrapping; negative exponents give the truncated reciprocal."""
    result = m.integer_power(x, y)
    if not is_signed(m, x):
        return result
    minus = m.select((y & 1) != 0, m.constant(m.dtype(x), -1), 1)
    unit = m.select(x == 1, 1, m.select(x == -1, minus, 0))
    return m.select(y < 0, unit, result)


def threefry2x32(
    m: Arithmetic, key_0: Value, key_1: Value, counter_0: Value, counter_1: Value
) -> tuple[Value, Value]:
    """Threefry-2x32 with 20 rounds: two u32 words of the block of two counters."""
    return threefry_rounds(key_0, key_1, counter_0, counter_1)
