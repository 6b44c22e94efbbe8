"""Double-double numbers: unevaluated sums of a float64 and its error.

They are for sums with cancellation. Sources: Dekker, A floating-point technique for
extending the available precision (1971); Hida, Li and Bailey, Library for double-double
and quad-double arithmetic (2007).
"""

from __future__ import annotations

from typing import NamedTuple

import arrayfn.numpy as anp
from arrayfn.numpy._operands import Array
from arrayfn.numpy.double_precision import exact_product

EPSILON = 2.0**-104  # relative error of an operation


class DoubleDouble(NamedTuple):
    """The number ``high + low``, where ``high`` is the float64 nearest to it."""

    high: Array
    low: Array

    def __add__(self, other: object) -> DoubleDouble:  # type: ignore[override]
        """Return the sum with ``other``, a DoubleDouble."""
        assert isinstance(other, DoubleDouble)
        total = sum_of(self.high, other.high)
        return _renewed(total.high, total.low + (self.low + other.low))

    def __mul__(self, other: object) -> DoubleDouble:  # type: ignore[override]
        """Return the product with ``other``, a DoubleDouble or a float64 number."""
        if not isinstance(other, DoubleDouble):
            other = exact(anp.asarray(other))
        product, error = exact_product(self.high, other.high)
        rest = self.high * other.low + self.low * other.high
        return _renewed(product, error + rest)

    def __truediv__(self, other: DoubleDouble) -> DoubleDouble:
        """Return the quotient with ``other``, a DoubleDouble.

        It is the quotient of the high parts, plus the remainder's quotient.
        """
        first = self.high / other.high
        rest = self + DoubleDouble(-first, anp.zeros_like(first)) * other
        return _renewed(first, rest.high / other.high)

    def where(self, condition: Array, other: DoubleDouble) -> DoubleDouble:
        """Return this number where the condition holds, otherwise ``other``."""
        return DoubleDouble(
            anp.where(condition, self.high, other.high),
            anp.where(condition, self.low, other.low),
        )


def exact(x: Array) -> DoubleDouble:
    """Convert a float64 number to a DoubleDouble, without error."""
    return DoubleDouble(x, anp.zeros_like(x))


def sum_of(x: Array, y: Array) -> DoubleDouble:
    """Return the exact sum of two float64 numbers (Knuth's TwoSum).

    ``high`` is the rounded sum, and ``low`` its rounding error.
    """
    total = x + y
    part = total - x
    return DoubleDouble(total, (x - (total - part)) + (y - part))


def _renewed(high: Array, low: Array) -> DoubleDouble:
    """Return the sum of ``high`` and a smaller ``low``, so that ``high`` is rounded.

    This is Dekker's Fast2Sum.
    """
    total = high + low
    return DoubleDouble(total, low - (total - high))
