"""Computes formulas with NumPy, with the bits of compiled code."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import numpy as np

from arrayfn.lowering.scalars.arithmetic import Formula, Pair, Value, two_sum

DTYPES: dict[str, np.dtype] = {
    "bool": np.dtype(np.bool_),
    **{f"i{n}": np.dtype(f"int{n}") for n in (8, 16, 32, 64)},
    **{f"u{n}": np.dtype(f"uint{n}") for n in (8, 16, 32, 64)},
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "c64": np.dtype(np.complex64),
    "c128": np.dtype(np.complex128),
}
_ACCUMULATE = {
    "add": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


class NumpyArithmetic:
    """``Arithmetic`` on NumPy scalars and arrays.

    ``arithmetic.Arithmetic`` says what each method computes.
    """

    def dtype(self, x: Value) -> str:
        """Return the name of the dtype, such as "f32"."""
        return NAMES[x.dtype]

    def constant(self, dtype: str, value: float | bool) -> Value:
        """Return ``value`` as a NumPy scalar of ``dtype``."""
        return DTYPES[dtype].type(value)

    def convert(self, x: Value, dtype: str) -> Value:
        """Return ``x`` converted to ``dtype``."""
        return x.astype(DTYPES[dtype])

    def to_half_bits(self, x: Value) -> Value:
        """Round a float32 to float16; return the bits as a uint16."""
        return x.astype(np.float16).view(np.uint16)

    def from_half_bits(self, x: Value) -> Value:
        """Return the float32 that is the float16 with the bits ``x``, a uint16."""
        return x.view(np.float16).astype(np.float32)

    def reinterpret(self, x: Value, dtype: str) -> Value:
        """Return the bits of ``x`` as a value of ``dtype``, of the same width."""
        return x.view(DTYPES[dtype])

    def select(self, condition: Value, x: Value, y: Value) -> Value:
        """Return ``x`` where ``condition`` holds, else ``y``.

        One of ``x`` and ``y`` may be a Python number, which gets the other's dtype.
        """
        dtype = x.dtype if isinstance(x, (np.generic, np.ndarray)) else y.dtype
        x, y = (
            v if isinstance(v, (np.generic, np.ndarray)) else dtype.type(v)
            for v in (x, y)
        )
        if not isinstance(condition, np.ndarray):
            return x if condition else y
        return np.where(condition, x, y)

    def fma(self, x: Value, y: Value, z: Value) -> Value:
        """Return ``x * y + z`` of floats with one rounding."""
        if x.dtype == np.float32:
            return _fma_f32(x, np.float32(y), np.float32(z))
        return _fma_f64(x, np.float64(y), np.float64(z))

    sqrt = staticmethod(np.sqrt)
    abs = staticmethod(np.abs)
    rint = staticmethod(np.rint)
    floor = staticmethod(np.floor)
    ceil = staticmethod(np.ceil)
    trunc = staticmethod(np.trunc)
    exact_fmod = staticmethod(np.fmod)

    def popcount(self, x: Value) -> Value:
        """Return the number of bits of an integer that are 1."""
        unsigned = x.view(np.dtype(f"u{x.dtype.itemsize}"))
        return np.bitwise_count(unsigned).astype(x.dtype)

    def leading_zeros(self, x: Value) -> Value:
        """Return the number of zero bits above the highest 1; the width for 0."""
        n = 8 * x.dtype.itemsize
        unsigned = x.view(np.dtype(f"u{x.dtype.itemsize}"))
        # Set all bits below the highest 1, and count the ones.
        for step in (1, 2, 4, 8, 16, 32):
            if step < n:
                unsigned = unsigned | (unsigned >> step)
        return (n - np.bitwise_count(unsigned).astype(x.dtype)).astype(x.dtype)

    def integer_quotient(self, x: Value, y: Value) -> Value:
        """Return ``x / y`` of integers, truncated towards 0."""
        quotient = x // y  # rounded down
        if x.dtype.kind == "u":
            return quotient
        # Towards 0: add 1 to an inexact negative quotient.
        inexact = quotient * y != x
        return (quotient + (inexact & ((x < 0) != (y < 0)))).astype(x.dtype)

    def integer_power(self, x: Value, y: Value) -> Value:
        """Return ``x ** y`` modulo 2**width, with ``y`` taken as unsigned."""
        unsigned = np.dtype(f"u{x.dtype.itemsize}")
        result = np.power(x.view(unsigned), y.view(unsigned))
        return result.view(x.dtype)

    def lookup(self, table: Sequence[int], index: Value) -> Value:
        """Return ``table[index]`` as a uint64."""
        return np.asarray(table, np.uint64)[index]

    def guarded(
        self, name: str, rare: Formula, slow: Formula, common: Value, *arguments: Value
    ) -> Value:
        """Return ``common``, or ``slow`` of the arguments where ``rare`` of them holds.

        Of arrays, only the rare elements are passed to ``slow``. ``name`` is not used.
        """
        condition = rare(self, *arguments)
        if not isinstance(condition, np.ndarray):
            return slow(self, *arguments) if condition else common
        result = np.array(common)
        if condition.any():
            parts = (np.broadcast_to(a, condition.shape) for a in arguments)
            result[condition] = slow(self, *(a[condition] for a in parts))
        return result

    def accumulate(self, operation: str, x: Value, y: Value) -> Value:
        """Return ``x`` and ``y`` combined by "add", "mul", "max" or "min"."""
        return _ACCUMULATE[operation](x, y)


def _round_to_odd(high: Value, low: Value) -> Value:
    """Return the sum ``high + low``, the result of ``_two_sum``, rounded to odd.

    If the sum is not exact, the result is that neighbouring float64 whose last bit is
    1. Rounding it again to a shorter format, or after adding a much larger exact term,
    equals rounding once (Boldo and Melquiond, Emulation of FMA, 2008).
    """
    odd = high.view(np.int64) & 1
    # Adding 1 to the bits of a float steps away from 0, subtracting 1 towards it.
    toward = np.where((low > 0) == (high > 0), 1, -1)
    nudge = np.where((low != 0) & (odd == 0) & np.isfinite(high), toward, 0)
    return (high.view(np.int64) + nudge).view(np.float64)[()]


def _fma_f32(x: Value, y: Value, z: Value) -> Value:
    """Return ``x * y + z`` of float32 with one rounding, by exact float64 products."""
    product = x.astype(np.float64) * y.astype(np.float64)
    high, low = two_sum(product, z.astype(np.float64))
    return _round_to_odd(high, low).astype(np.float32)


def _split(x: Value) -> Pair:
    """Split a float64 into a sum of two parts of 26 bits (Dekker)."""
    scaled = x * 134217729.0  # 2**27 + 1
    high = scaled - (scaled - x)
    return high, x - high


def two_product(x: Value, y: Value) -> Pair:
    """Return the rounded product ``x * y`` of float64 and its rounding error (Dekker).

    The error is exact unless a step overflows or underflows.
    """
    product = x * y
    x_high, x_low = _split(x)
    y_high, y_low = _split(y)
    rest = (x_high * y_high - product) + x_high * y_low + x_low * y_high
    return product, rest + x_low * y_low


def _load_exact_fma() -> Callable[[float, float, float], float]:
    """Return the C library's ``fma``, which rounds once for all arguments."""
    function = ctypes.CDLL(None).fma
    function.restype = ctypes.c_double
    function.argtypes = [ctypes.c_double] * 3
    return function


_EXACT_FMA = _load_exact_fma()
_EXACT_FMA_ARRAY = np.frompyfunc(_EXACT_FMA, 3, 1)


def _fma_f64(x: Value, y: Value, z: Value) -> Value:
    """Return ``x * y + z`` of float64 with one rounding.

    Scalars are computed by the C library. Arrays are computed by exact products and
    sums (Boldo and Melquiond's emulation), which is faster; elements for which these
    could overflow or underflow are computed by the C library.
    """
    if not any(isinstance(v, np.ndarray) for v in (x, y, z)):
        return np.float64(_EXACT_FMA(x, y, z))
    high, low = two_product(x, y)
    total_high, total_low = two_sum(z, low)
    result_high, result_low = two_sum(high, total_high)
    result = result_high + _round_to_odd(*two_sum(total_low, result_low))
    # The steps above are exact only far from overflow and underflow.
    terms = (np.abs(v) for v in (x, y, z, high))
    safe = np.logical_and.reduce(
        np.broadcast_arrays(*(((v > 1e-140) & (v < 1e140)) | (v == 0) for v in terms))
    )
    safe &= (high != 0) | (x == 0) | (y == 0)
    # An exact zero's sign follows from the signs of the terms.
    safe &= result != 0
    if not safe.all():
        x, y, z = (np.broadcast_to(v, safe.shape)[~safe] for v in (x, y, z))
        result[~safe] = np.asarray(_EXACT_FMA_ARRAY(x, y, z), np.float64)
    return result
