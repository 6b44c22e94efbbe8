"""Exponents, fractions and bits of numbers; divisors; nan_to_num."""

from __future__ import annotations

from typing import Any

import numpy as np

from arrayfn import dtypes
from arrayfn.dtypes import DType
from arrayfn.errors import ArgumentError, DTypeError, ShapeError, user_location
from arrayfn.ir import ArrayType
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.arithmetic import (
    absolute,
    add,
    clip,
    copysign,
    imag,
    multiply,
    real,
    remainder,
    subtract,
    trunc,
)
from arrayfn.numpy.comparison import (
    bitwise_and,
    bitwise_or,
    equal,
    isfinite,
    isinf,
    isnan,
    left_shift,
    less,
    not_equal,
    right_shift,
    where,
)
from arrayfn.numpy.index_bounds import known_value
from arrayfn.numpy.manipulation import (
    broadcast_arrays,
    concatenate,
    expand_dims,
    moveaxis,
    ravel,
    reshape,
    slice_along,
)
from arrayfn.numpy.reductions import any as any_
from arrayfn.numpy.reductions import sum as sum_
from arrayfn.primitives import complex_numbers, conversion
from arrayfn.primitives import elementwise as e
from arrayfn.primitives.control_flow_while import while_loop
from arrayfn.tracing import apply, is_made_of_equations, trace

# The unsigned integer dtype of each width in bytes.
_UNSIGNED = {
    t.itemsize: t for t in (dtypes.uint8, dtypes.uint16, dtypes.uint32, dtypes.uint64)
}
# The integer dtype of the same width, the mantissa bits, and the bias of the exponent.
_FORMATS = {
    dtypes.float32: (dtypes.int32, 23, 127),
    dtypes.float64: (dtypes.int64, 52, 1023),
}


def _wide(name: str, x: ArrayLike) -> tuple[Array, DType]:
    """Return x in float32 or float64, and the floating-point dtype of the result.

    Raises DTypeError, about the function ``name``, for complex numbers.
    """
    dtype = ops.floating_dtype(ops.type_of_operand(name, x).dtype)
    if dtype in dtypes.COMPLEX:
        raise DTypeError(f"{name} is not defined for complex numbers", user_location())
    return ops.as_array(ops.convert(x, dtypes.compute_dtype(dtype))), dtype


def _power_of_two(exponent: ArrayLike, dtype: DType) -> Array:
    """Return 2 to an integer power as ``dtype``, for powers that are normal numbers.

    The bits of such a number are the biased exponent, followed by a mantissa of zeros.
    """
    integer, mantissa, bias = _FORMATS[dtype]
    biased = ops.convert(exponent + bias, integer)
    return apply(conversion.bitcast, biased << mantissa, dtype=dtype)


def bits_as(x: ArrayLike, dtype: DType) -> Array:
    """Return the bits of x as ``dtype``; see ``arrayfn.lax.bitcast_convert_type``.

    If the widths differ, the result has a last axis for the parts of each element,
    lowest bits first, or x has such an axis. Raises DTypeError for other widths of bool
    and complex, ShapeError if the last axis of x does not fit.
    """
    type = ops.type_of_operand("bitcast_convert_type", x)
    old_size, new_size = type.dtype.itemsize, dtype.itemsize
    if old_size == new_size:
        return apply(conversion.bitcast, x, dtype=dtype)
    if dtypes.bool_ in (type.dtype, dtype) or {type.dtype, dtype} & dtypes.COMPLEX:
        raise DTypeError(
            f"the bits of {type} are not read as {dtypes.short_name(dtype)}: bool and "
            "complex numbers keep their width",
            user_location(),
        )
    narrow, wide = (_UNSIGNED[n] for n in sorted((old_size, new_size)))
    # One wide element has ``count`` narrow parts of ``width`` bits.
    count, width = (
        max(old_size, new_size) // min(old_size, new_size),
        8 * min(old_size, new_size),
    )
    shifts = np.arange(count).astype(wide) * np.asarray(width, wide)
    pattern = apply(
        conversion.bitcast, x, dtype=narrow if old_size < new_size else wide
    )
    if old_size > new_size:
        parts = ops.convert(right_shift(expand_dims(pattern, -1), shifts), narrow)
        return apply(conversion.bitcast, parts, dtype=dtype)
    if not type.ndim or type.shape[-1] != count:
        raise ShapeError(
            f"{count} elements of {type}, along its last axis, make one of "
            f"{dtypes.short_name(dtype)}",
            user_location(),
        )
    parts = left_shift(ops.convert(pattern, wide), shifts)
    return apply(conversion.bitcast, sum_(parts, -1, wide), dtype=dtype)


def ldexp(x: ArrayLike, n: ArrayLike, /) -> Array:
    """Multiply x by 2 to the power of the integer n, and round once.

    The result has the floating-point dtype of x. Raises DTypeError if n is no integer
    or x is complex.

    >>> import numpy as np
    >>> ldexp(np.float64(0.75), 4)
    array(12.)
    """
    wide, result = _wide("ldexp", x)
    _, mantissa, bias = _FORMATS[wide.dtype]
    if ops.type_of_operand("ldexp", n).dtype not in dtypes.INTEGERS:
        raise DTypeError("ldexp takes an integer exponent", user_location())
    lowest = 1 - bias
    # Powers of two beyond the normal numbers need up to three multiplications.
    exponent: Any = clip(ops.convert(n, dtypes.int64), -4 * bias, 4 * bias)
    for _ in range(3):
        # Only the last step may give a subnormal number, so that it alone rounds.
        far = exponent < lowest
        step = where(far, lowest + mantissa + 1, where(exponent > bias, bias, exponent))
        wide = multiply(wide, _power_of_two(step, wide.dtype))
        exponent = exponent - step
    return ops.convert(wide, result)


def frexp(x: ArrayLike, /) -> tuple[Array, Array]:
    """Return the fraction and the exponent (int32) of x: x = fraction * 2**exponent.

    The absolute value of the fraction is 0, or at least 0.5 and less than 1. Infinities
    and NaN are their own fractions, with exponent 0. Integers give floats. Raises
    DTypeError for complex numbers.
    """
    wide, result = _wide("frexp", x)
    # The integer dtype of this width, the mantissa bits, and the exponent's bias.
    integer, mantissa, bias = _FORMATS[wide.dtype]
    tiny = float(np.finfo(wide.dtype).smallest_normal)
    small = less(absolute(wide), tiny)
    # Scale subnormal numbers, so that the bits of the exponent can be read.
    scaled = where(small, multiply(wide, 2.0 ** (mantissa + 1)), wide)
    pattern = apply(conversion.bitcast, scaled, dtype=integer)
    biased = bitwise_and(right_shift(pattern, mantissa), 2 * bias + 1)  # without sign
    exponent = biased - (bias - 1) - where(small, mantissa + 1, 0)
    plain = not_equal(wide, 0) & isfinite(wide)
    exponent = ops.convert(where(plain, exponent, 0), dtypes.int32)
    fraction = where(plain, ldexp(wide, -exponent), wide)
    return ops.convert(fraction, result), exponent


def modf(x: ArrayLike, /) -> tuple[Array, Array]:
    """Return the fractional and the integer part of x, both with the sign of x.

    Both are floats. The fraction of an infinite number is 0.
    """
    (x,) = ops.floated("modf", x)
    whole = trunc(ops.as_array(x))
    fraction = where(isinf(x), 0, subtract(x, whole))
    return copysign(fraction, x), whole


def nextafter(x: ArrayLike, y: ArrayLike, /) -> Array:
    """Return the next float from x in the direction of y, elementwise.

    Integers give floats.
    """
    x, y = ops.floated("nextafter", x, y)
    if ops.type_of_operand("nextafter", x).dtype in dtypes.HALF_PRECISION:
        return _next_half(ops.as_array(x), ops.as_array(y))
    return apply(e.nextafter, x, y)


def _next_half(x: Array, y: Array) -> Array:
    """Compute ``nextafter`` of 16-bit floats, by their bits as sign and magnitude."""
    dtype = x.dtype
    bits = apply(conversion.bitcast, x, dtype=dtypes.uint16)
    sign, size = bitwise_and(bits, 0x8000), bitwise_and(bits, 0x7FFF)
    # The magnitude decreases if y < x for positive x, or y > x for negative x.
    towards_zero = not_equal(less(y, x), not_equal(sign, 0))
    changed = where(towards_zero, size - 1, size + 1)
    # From 0, the smallest number with the sign of y.
    y_bits = apply(conversion.bitcast, y, dtype=dtypes.uint16)
    smallest = bitwise_or(bitwise_and(y_bits, 0x8000), 1)
    neighbour = where(equal(size, 0), smallest, bitwise_or(sign, changed))
    # For equal x and y, which may be 0 and -0, NumPy gives x for float16, else y.
    value = where(equal(x, y), bits if dtype == dtypes.float16 else y_bits, neighbour)
    nan = not_equal(x, x) | not_equal(y, y)
    result = apply(conversion.bitcast, value, dtype=dtype)
    return where(nan, add(x, y), result)


def spacing(x: ArrayLike, /) -> Array:
    """Return the distance from x to the next float away from 0, with the sign of x.

    Integers give floats, and infinities give NaN. As in NumPy, the spacing of float16
    is the distance to the next larger number. The spacing of -0 is positive, except for
    bfloat16.
    """
    (x,) = ops.floated("spacing", x)
    x = ops.as_array(x)
    outwards = float("inf")
    if x.dtype != dtypes.float16:
        sign = x if x.dtype == dtypes.bfloat16 else where(equal(x, 0), 0.0, x)
        outwards = copysign(outwards, sign)
    return where(isinf(x), float("nan"), subtract(nextafter(x, outwards), x))


def nan_to_num(
    x: ArrayLike,
    copy: bool = True,
    nan: ArrayLike = 0.0,
    posinf: ArrayLike | None = None,
    neginf: ArrayLike | None = None,
) -> Array:
    """Replace NaN, inf and -inf in x by numbers.

    By default NaN becomes 0, and inf and -inf become the finite numbers of largest
    magnitude. Shape and dtype stay, and integers are returned unchanged. Both parts of
    complex numbers are treated separately. ``copy`` has no effect.

    >>> import numpy as np
    >>> nan_to_num(np.array([np.nan, 1.0, -np.inf]), neginf=-9.0)
    array([ 0.,  1., -9.])
    """
    dtype = ops.type_of_operand("nan_to_num", x).dtype
    if dtype not in dtypes.INEXACT:
        return ops.same(x)
    if dtype in dtypes.COMPLEX:
        options: Any = {"nan": nan, "posinf": posinf, "neginf": neginf}
        parts = [nan_to_num(part, **options) for part in (real(x), imag(x))]
        return apply(complex_numbers.make_complex, *parts)
    limit = float(_largest(dtype))
    high = limit if posinf is None else posinf
    low = -limit if neginf is None else neginf
    value = where(isnan(x), ops.convert(nan, dtype), x)
    value = where(equal(x, float("inf")), ops.convert(high, dtype), value)
    return where(equal(x, -float("inf")), ops.convert(low, dtype), value)


def _largest(dtype: DType) -> Any:
    """Return the largest finite number of ``dtype``."""
    if dtype == dtypes.bfloat16:
        return np.asarray(0x7F7F, np.uint16).view(dtype)  # by its bits
    return np.finfo(dtype).max


# Integers.


def gcd(x1: ArrayLike, x2: ArrayLike) -> Array:
    """Return the greatest common divisor of integers, elementwise, as 0 or more.

    The result has the dtype to which ``x1`` and ``x2`` promote. Euclid's algorithm
    takes at most 1.45 iterations per bit. Raises DTypeError for other dtypes.
    """
    (x1, x2), types, dtype = ops.promoted("gcd", (x1, x2))
    if dtype not in dtypes.INTEGERS:
        raise DTypeError(
            f"gcd takes integers, not {dtypes.short_name(dtype)}", user_location()
        )
    a, b = (ops.as_array(v) for v in ops.broadcast("gcd", (x1, x2), types))
    if not is_made_of_equations((a, b)):
        return np.asarray(np.gcd(a, b))  # NumPy arrays
    a, b = broadcast_arrays(absolute(a), absolute(b))
    carry = [ArrayType(a.shape, dtype)] * 2
    divisor, _ = apply(
        while_loop,
        a,
        b,
        cond_program=trace(_unfinished, carry, name="unfinished").program,
        body_program=trace(_euclid, carry, name="euclid").program,
        cond_consts=0,
        body_consts=0,
    )
    # absolute(a) is negative for the smallest integer, so take it of the result, too.
    return absolute(divisor)


def _unfinished(a: Array, b: Array) -> list[Array]:
    """Return whether Euclid's algorithm must go on: any remainder b is not 0."""
    return [any_(not_equal(b, 0))]


def _euclid(a: Array, b: Array) -> list[Array]:
    """Return (b, a mod b) for each element, or (a, 0) if b is 0: a is the divisor."""
    done = equal(b, 0)
    return [where(done, a, b), where(done, 0, remainder(a, b))]


def lcm(x1: ArrayLike, x2: ArrayLike) -> Array:
    """Return the lowest common multiple of integers, elementwise, as 0 or more.

    The result has the dtype to which ``x1`` and ``x2`` promote. Raises DTypeError for
    other dtypes.
    """
    (x1, x2), types, _ = ops.promoted("lcm", (x1, x2))
    x1, x2 = (ops.as_array(v) for v in ops.broadcast("lcm", (x1, x2), types))
    divisor = gcd(x1, x2)
    safe = where(equal(divisor, 0), 1, divisor)
    return absolute(multiply(x1 // safe, x2))


def packbits(a: ArrayLike, axis: int | None = None, bitorder: str = "big") -> Array:
    """Pack every eight elements along ``axis`` into one byte (uint8).

    ``axis=None`` flattens ``a``. An element is the bit 1 if it is not 0. The last byte
    is padded with zeros. ``bitorder`` says whether the first element is the most
    ("big") or least ("little") significant bit. Raises DTypeError unless ``a`` has
    integers or bools.
    """
    type = ops.type_of_operand("packbits", a)
    if type.dtype not in dtypes.INTEGERS and type.dtype != dtypes.bool_:
        raise DTypeError("packbits takes integers or bools", user_location())
    if axis is None:
        a, axis = ravel(a), 0
    bits = moveaxis(ops.convert(not_equal(a, 0), dtypes.uint8), axis, -1)
    extent = bits.shape[-1]
    missing = -extent % 8
    if missing:
        rest = ops.full(0, (*bits.shape[:-1], missing), dtypes.uint8)
        bits = concatenate([bits, rest], -1)
    bits = reshape(bits, (*bits.shape[:-1], (extent + missing) // 8, 8))
    packed = sum_(multiply(bits, _weights(bitorder)), -1, dtypes.uint8)
    return moveaxis(packed, -1, axis)


def _weights(bitorder: str) -> Any:
    """Return the powers of two of the bits of a byte, in the order ``bitorder``.

    "big" gives 128, 64, ..., 1 and "little" 1, 2, ..., 128; ArgumentError for others.
    """
    if bitorder not in ("big", "little"):
        raise ArgumentError(
            f"bitorder must be 'big' or 'little', not {bitorder!r}", user_location()
        )
    shifts = range(7, -1, -1) if bitorder == "big" else range(8)
    return np.asarray([1 << k for k in shifts], np.uint8)


def unpackbits(
    a: ArrayLike,
    axis: int | None = None,
    count: int | None = None,
    bitorder: str = "big",
) -> Array:
    """Return the bits of bytes ``a`` (uint8) as elements 0 and 1 along ``axis``.

    The result is uint8, too, and ``axis=None`` flattens ``a``. ``count`` is the number
    of bits to return. A negative ``count`` drops bits at the end, and a larger one adds
    zeros. ``bitorder`` is as for ``packbits``. Raises DTypeError for other dtypes.
    """
    if ops.type_of_operand("unpackbits", a).dtype != dtypes.uint8:
        raise DTypeError("unpackbits takes uint8", user_location())
    if axis is None:
        a, axis = ravel(a), 0
    octets = expand_dims(moveaxis(a, axis, -1), -1)
    bits = not_equal(bitwise_and(octets, _weights(bitorder)), 0)
    bits = ops.convert(bits, dtypes.uint8)
    extent = bits.shape[-2] * 8
    bits = reshape(bits, (*bits.shape[:-2], extent))
    wanted = extent if count is None else count if count >= 0 else extent + count
    bits = slice_along(bits, 0, min(max(wanted, 0), extent), bits.ndim - 1)
    if wanted > extent:
        rest = ops.full(0, (*bits.shape[:-1], wanted - extent), dtypes.uint8)
        bits = concatenate([bits, rest], -1)
    return moveaxis(bits, -1, axis)


# Classification.


def iscomplex(x: ArrayLike) -> Array:
    """Return whether the imaginary part is not 0, elementwise, as bools."""
    return not_equal(imag(x), 0)


def isreal(x: ArrayLike) -> Array:
    """Return whether the imaginary part is 0, elementwise, as bools."""
    return equal(imag(x), 0)


def real_if_close(a: ArrayLike, tol: float = 100) -> Array:
    """Return the real part of ``a`` if all imaginary parts are close to 0, else ``a``.

    An imaginary part is close to 0 if it is known and within ``tol`` machine epsilons
    (within ``tol`` itself if that is at most 1). If the value of ``a`` is not known,
    ``a`` stays complex, because the value decides the dtype.
    """
    type = ops.type_of_operand("real_if_close", a)
    value = known_value(a)
    if type.dtype not in dtypes.COMPLEX or value is None:
        return ops.same(a)
    eps = float(np.finfo(type.dtype).eps)
    limit = tol * eps if tol > 1 else tol
    return real(a) if np.all(np.abs(np.imag(value)) < limit) else ops.same(a)
