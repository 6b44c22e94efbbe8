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
    """Return whether the dtype of ``x`` has negative numbers."""
    return m.dtype(x)[0] == "i"


def absolute(m: Arithmetic, x: Value) -> Value:
    """Return the magnitude; that of the smallest number wraps to the number itself."""
    return m.select(x < 0, 0 - x, x) if is_signed(m, x) else x


def sign(m: Arithmetic, x: Value) -> Value:
    """Return the sign of ``x``: -1, 0 or 1."""
    dtype = m.dtype(x)
    positive = m.select(x > 0, m.constant(dtype, 1), 0)
    return m.select(x < 0, -1, positive) if is_signed(m, x) else positive


def trunc_div_rem(m: Arithmetic, x: Value, y: Value) -> tuple[Value, Value]:
    """Return the quotient ``x / y`` towards zero, and the remainder.

    Both are 0 for division by 0.
    """
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
    """Return the remainder with the sign of ``x``, as np.fmod; 0 where ``y`` is 0."""
    return trunc_div_rem(m, x, y)[1]


def trunc_div(m: Arithmetic, x: Value, y: Value) -> Value:
    """Return the quotient towards zero; 0 where ``y`` is 0."""
    return trunc_div_rem(m, x, y)[0]


def floordiv(m: Arithmetic, x: Value, y: Value) -> Value:
    """Return the floor of the quotient; 0 where ``y`` is 0."""
    quotient, rest = trunc_div_rem(m, x, y)
    if not is_signed(m, x):
        return quotient
    return m.select((rest != 0) & ((rest < 0) != (y < 0)), quotient - 1, quotient)


def remainder(m: Arithmetic, x: Value, y: Value) -> Value:
    """Return the remainder with the sign of ``y``; 0 where ``y`` is 0."""
    rest = trunc_rem(m, x, y)
    if not is_signed(m, x):
        return rest
    return m.select((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest)


def maximum(m: Arithmetic, x: Value, y: Value) -> Value:
    """Return the larger of two integers."""
    return m.select(x > y, x, y)


def minimum(m: Arithmetic, x: Value, y: Value) -> Value:
    """Return the smaller of two integers."""
    return m.select(x < y, x, y)


def clamp(m: Arithmetic, x: Value, low: Value, high: Value) -> Value:
    """Return ``minimum(maximum(x, low), high)``, as np.clip."""
    return minimum(m, maximum(m, x, low), high)


def _shift_count(m: Arithmetic, y: Value) -> tuple[Value, Value]:
    """Return whether the shift count ``y`` is below the width, and a safe count.

    A negative count is not below the width. The safe count is ``y``, or else 0.
    """
    n = width(m.dtype(y))
    # As an unsigned number, a negative count is large.
    within = m.reinterpret(y, "u" + m.dtype(y)[1:]) < n
    return within, m.select(within, y, 0)


def shift_left(m: Arithmetic, x: Value, y: Value) -> Value:
    """Return ``x << y``, or 0 where ``y`` is negative or not below the width."""
    within, count = _shift_count(m, y)
    return m.select(within, x << count, 0)


def shift_right(m: Arithmetic, x: Value, y: Value) -> Value:
    """Return ``x >> y``, arithmetic if signed.

    Counts that are negative or not below the width shift all bits out: the result is 0,
    or -1 for a negative ``x``.
    """
    within, count = _shift_count(m, y)
    if not is_signed(m, x):
        return m.select(within, x >> count, 0)
    return x >> m.select(within, count, width(m.dtype(x)) - 1)


def shift_right_logical(m: Arithmetic, x: Value, y: Value) -> Value:
    """Return ``x >> y``, filled with zeros; a count outside of the width gives 0."""
    within, count = _shift_count(m, y)
    return m.select(within, logical_shift_right(m, x, count), 0)


def pow(m: Arithmetic, x: Value, y: Value) -> Value:
    """Return ``x ** y``, wrapping.

    A negative exponent gives the truncated reciprocal: 1 for a base of 1, 1 or -1 for a
    base of -1, else 0.
    """
    result = m.integer_power(x, y)
    if not is_signed(m, x):
        return result
    minus = m.select((y & 1) != 0, m.constant(m.dtype(x), -1), 1)
    unit = m.select(x == 1, 1, m.select(x == -1, minus, 0))
    return m.select(y < 0, unit, result)


def threefry2x32(
    m: Arithmetic, key_0: Value, key_1: Value, counter_0: Value, counter_1: Value
) -> tuple[Value, Value]:
    """Return the two u32 words of a Threefry-2x32 block, with 20 rounds.

    The key and the counter of the block are two u32 words each.
    """
    return threefry_rounds(key_0, key_1, counter_0, counter_1)
