"""The operations that formulas use, independent of what computes them.

A *formula* is a function ``f(m, x, ...)`` of an :class:`Arithmetic` ``m`` and values.
The same formula computes on NumPy scalars and arrays (``NumpyArithmetic``) and emits
LLVM instructions (in ``backends``). Values carry a dtype by name (``"f32"``, ``"i64"``)
and support Python's operators between values of one dtype, or a value and a Python
number, with NumPy's meaning: integers wrap, ``>>`` is arithmetic for signed integers,
comparisons give booleans, ``& | ^ ~`` act on integers and booleans.

Formulas have no branches and no loops over data, so that a loop vectoriser sees
straight-line code. ``m.guarded`` wraps a path that is rarely needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from arrayfn.records import frozen

Value = Any
"""The arithmetic's values: NumPy scalars and arrays, or LLVM values."""

Formula = Callable[..., Value]
Pair = tuple[Value, Value]
"""An unevaluated sum ``high + low`` with ``|low| <= ulp(high) / 2``."""

SIGNED = ("i8", "i16", "i32", "i64")
UNSIGNED = ("u8", "u16", "u32", "u64")
INTEGERS = SIGNED + UNSIGNED
FLOATS = ("f32", "f64")
HALF_PRECISION = ("f16", "bf16")
COMPLEXES = ("c64", "c128")
REAL_PART = {"c64": "f32", "c128": "f64"}


@frozen(slots=True)
class FloatFormat:
    """A binary floating-point format and constants derived from it."""

    dtype: str
    bits: int  # in all
    mantissa: int  # bits of the fraction field
    integer: str  # the signed integer dtype of the same width

    @property
    def bias(self) -> int:
        """The exponent field of 1.0: 127 for f32, 1023 for f64.

        The field has ``bits - mantissa - 1`` bits, and the bias fills all but the top
        one.
        """
        return (1 << (self.bits - self.mantissa - 2)) - 1

    @property
    def one(self) -> int:
        """The bits of 1.0."""
        return self.bias << self.mantissa

    @property
    def magnitude_mask(self) -> int:
        """A mask of all bits except the sign."""
        return (1 << (self.bits - 1)) - 1

    @property
    def mantissa_mask(self) -> int:
        """The bits of the fraction field."""
        return (1 << self.mantissa) - 1

    @property
    def smallest_normal(self) -> float:
        """The smallest positive normal number."""
        return 2.0 ** (1 - self.bias)

    @property
    def rounding_shift(self) -> float:
        """1.5 * 2**mantissa: adding it rounds a float of moderate size to an integer.

        The low bits of the sum are that integer, in two's complement.
        """
        return 1.5 * 2.0**self.mantissa

    @property
    def rounding_shift_bits(self) -> int:
        """The bits of ``rounding_shift``: exponent field and highest fraction bit."""
        return ((self.bias + self.mantissa) << self.mantissa) | (
            1 << (self.mantissa - 1)
        )


FORMATS = {
    "f32": FloatFormat("f32", 32, 23, "i32"),
    "f64": FloatFormat("f64", 64, 52, "i64"),
}


def width(dtype: str) -> int:
    """Return the bits of a value of an integer, float or bool dtype: 1 for a bool."""
    return 1 if dtype == "bool" else int(dtype.lstrip("biuf"))


class Arithmetic(Protocol):
    """The operations of formulas besides Python's operators."""

    def dtype(self, x: Value) -> str:
        """Return the name of the value's dtype."""
        ...

    def constant(self, dtype: str, value: float | bool) -> Value:
        """Return ``value`` as a constant of ``dtype``, rounded to nearest if needed."""
        ...

    def convert(self, x: Value, dtype: str) -> Value:
        """Return ``x`` converted to ``dtype``: the nearest float, or an integer.

        Integers wrap; floats are truncated, and must lie in the range of an integer
        dtype.
        """
        ...

    def to_half_bits(self, x: Value) -> Value:
        """Round an f32 to float16; return the bits as a u16."""
        ...

    def from_half_bits(self, x: Value) -> Value:
        """Return the f32 that is the float16 with the bits ``x``, a u16."""
        ...

    def reinterpret(self, x: Value, dtype: str) -> Value:
        """Return the bits of ``x`` as a value of ``dtype``, of the same width."""
        ...

    def select(self, condition: Value, x: Value, y: Value) -> Value:
        """Return ``x`` where ``condition`` holds, else ``y``.

        One of ``x`` and ``y`` may be a Python number.
        """
        ...

    def fma(self, x: Value, y: Value, z: Value) -> Value:
        """Return ``x * y + z`` with one rounding; ``y`` and ``z`` may be numbers."""
        ...

    def sqrt(self, x: Value) -> Value:
        """Return the correctly rounded square root."""
        ...

    def abs(self, x: Value) -> Value:
        """Return a float without its sign."""
        ...

    def rint(self, x: Value) -> Value:
        """Return the nearest integer, ties to even, as a float."""
        ...

    def floor(self, x: Value) -> Value:
        """Return the largest integer not above ``x``, as a float."""
        ...

    def ceil(self, x: Value) -> Value:
        """Return the smallest integer not below ``x``, as a float."""
        ...

    def trunc(self, x: Value) -> Value:
        """Return ``x`` without its fraction, as a float."""
        ...

    def exact_fmod(self, x: Value, y: Value) -> Value:
        """Return C's fmod, for any quotient; slow when compiled."""
        ...

    def popcount(self, x: Value) -> Value:
        """Return the number of bits that are 1, in the dtype of ``x``."""
        ...

    def leading_zeros(self, x: Value) -> Value:
        """Return the number of zero bits above the highest 1; the width for 0."""
        ...

    def integer_quotient(self, x: Value, y: Value) -> Value:
        """Return ``x / y`` truncated; ``y`` is not 0, and there is no overflow."""
        ...

    def integer_power(self, x: Value, y: Value) -> Value:
        """Return ``x ** y`` modulo 2**width, with ``y`` taken as unsigned."""
        ...

    def lookup(self, table: Sequence[int], index: Value) -> Value:
        """Return ``table[index]`` as a u64; ``index`` is an i64 within the table."""
        ...

    def guarded(
        self, name: str, rare: Formula, slow: Formula, common: Value, *arguments: Value
    ) -> Value:
        """Return ``common``, or ``slow(m, *arguments)`` where ``rare`` of them holds.

        In compiled code the slow formula is a call that runs only where it is needed,
        and a loop around it still vectorises. ``name`` is part of the called function's
        name.
        """
        ...

    def accumulate(self, operation: str, x: Value, y: Value) -> Value:
        """Return ``x`` and ``y`` combined by "add", "mul", "max" or "min" of floats.

        It is one step of a reduction, whose steps a compiler may reorder. "max" and
        "min" propagate NaN; the sign of a zero result is unspecified.
        """
        ...


def reals(m: Arithmetic, x: Value) -> FloatFormat:
    """Return the FloatFormat of a float value."""
    return FORMATS[m.dtype(x)]


def bits(m: Arithmetic, x: Value) -> Value:
    """Return the bits of a float as a signed integer."""
    return m.reinterpret(x, reals(m, x).integer)


def power_of_two(m: Arithmetic, biased: Value) -> Value:
    """Return the float 2**(biased - bias), made from its exponent field ``biased``.

    ``biased`` is an integer of the float's width, such as an i32 for f32. Its bits that
    do not fit above the fraction field are shifted out.
    """
    f = FORMATS["f" + m.dtype(biased)[1:]]
    return m.reinterpret(biased << f.mantissa, f.dtype)


def logical_shift_right(m: Arithmetic, x: Value, count: Value | int) -> Value:
    """Return ``x >> count``, filled with zeros, for signed and unsigned ``x``."""
    dtype = m.dtype(x)
    unsigned = "u" + dtype[1:]
    if not isinstance(count, int):
        count = m.reinterpret(count, unsigned)
    return m.reinterpret(m.reinterpret(x, unsigned) >> count, dtype)


def with_sign_of(m: Arithmetic, magnitude: Value, sign: Value) -> Value:
    """Return ``magnitude``, whose sign bit is 0, with the sign bit of ``sign``."""
    f = reals(m, sign)
    sign_bit = bits(m, sign) & ~f.magnitude_mask  # all other bits are 0
    return m.reinterpret(bits(m, magnitude) | sign_bit, f.dtype)


def either_nan(m: Arithmetic, x: Value, y: Value) -> Value:
    """Return whether one of two floats is NaN: only NaN differs from itself."""
    return (x != x) | (y != y)


def polynomial(m: Arithmetic, x: Value, coefficients: Sequence[float]) -> Value:
    """Evaluate a polynomial of ``x`` by Horner's scheme, with fused multiply-adds.

    ``coefficients`` are ascending: the constant comes first.
    """
    *lower, result = coefficients
    result = m.constant(m.dtype(x), result)
    for coefficient in reversed(lower):
        result = m.fma(result, x, coefficient)
    return result


def split_constant(dtype: str, value: float) -> tuple[float, float]:
    """Return ``value`` rounded to ``dtype``, and its rounding error (0 for f64)."""
    high = float(np.float32(value)) if dtype == "f32" else value
    return high, value - high


def estrin(m: Arithmetic, x: Value, coefficients: Sequence[float]) -> Value:
    """Evaluate a polynomial of ``x`` by Estrin's scheme, with a last step of Horner's.

    ``coefficients`` are ascending. Each round joins neighbours to ``even + odd *
    power`` and squares ``power``. This takes a few operations more than ``polynomial``
    and a third of its latency; use it for 10 coefficients and more. The last step, with
    the constant, makes the errors of the others small.
    """
    dtype, power = m.dtype(x), x
    constant, *others = coefficients
    terms = [m.constant(dtype, coefficient) for coefficient in others]
    while len(terms) > 1:
        pairs = zip(terms[::2], terms[1::2], strict=False)
        last = terms[-1:] if len(terms) % 2 else []
        terms = [m.fma(odd, power, even) for even, odd in pairs] + last
        if len(terms) > 1:
            power = power * power
    return m.fma(terms[0], x, constant)


def two_sum(x: Value, y: Value) -> Pair:
    """Return the rounded sum ``x + y`` and its exact rounding error (Knuth)."""
    total = x + y
    part = total - x
    return total, (x - (total - part)) + (y - part)


def fast_two_sum(x: Value, y: Value) -> Pair:
    """Return the result of ``two_sum``, if ``|x| >= |y|`` or ``x == 0`` (Dekker)."""
    total = x + y
    return total, y - (total - x)


def two_product(m: Arithmetic, x: Value, y: Value) -> Pair:
    """Return the rounded product ``x * y`` and its exact rounding error."""
    product = x * y
    return product, m.fma(x, y, -product)


def pair_product(m: Arithmetic, x: Pair, y: Pair) -> Pair:
    """Return the product of two pairs; its low part may be 2 ulp of the high part."""
    high, low = two_product(m, x[0], y[0])
    return high, m.fma(x[0], y[1], m.fma(x[1], y[0], low))


def pair_sum(x: Pair, y: Pair) -> Pair:
    """Return the sum of two pairs; the first has the larger magnitude, or is 0."""
    high, low = fast_two_sum(x[0], y[0])
    return fast_two_sum(high, low + (x[1] + y[1]))


def pair_quotient(m: Arithmetic, x: Pair, y: Pair) -> Pair:
    """Return the quotient ``x / y`` of two pairs."""
    reciprocal = 1.0 / y[0]
    high = x[0] * reciprocal
    rest = m.fma(-high, y[0], x[0]) + (x[1] - high * y[1])
    return fast_two_sum(high, rest * reciprocal)


def pair_sqrt(m: Arithmetic, x: Pair) -> Pair:
    """Return the square root of a pair, by one Newton step; 0 for 0."""
    root = m.sqrt(x[0])
    rest = m.fma(-root, root, x[0]) + x[1]
    low = rest / (root + root)
    return root, m.select(x[0] > 0.0, low, 0.0)
