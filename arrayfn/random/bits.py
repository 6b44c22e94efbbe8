"""Random bits, and uniform numbers made from them, equal to JAX's.

To give JAX's numbers, the code follows JAX's steps: threefry in its partitionable
order, the mantissa of a number in [1, 2), and the remainder of twice as many bits as an
integer has.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import arrayfn.numpy as anp
from arrayfn import dtypes
from arrayfn.compilation.jit import jit
from arrayfn.dtypes import DType
from arrayfn.errors import DTypeError, ShapeError, user_location
from arrayfn.ir.layout import Shape
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike, DTypeLike
from arrayfn.numpy.index_bounds import known_value
from arrayfn.primitives import conversion
from arrayfn.random.keys import Key, block, counters, single, split
from arrayfn.tracing import apply, device_of, is_staged

AnyKey = Key | ArrayLike

UNSIGNED: dict[int, DType] = {
    1: dtypes.uint8,
    2: dtypes.uint16,
    4: dtypes.uint32,
    8: dtypes.uint64,
}
# Stored bits of a float's fraction.
MANTISSAS: dict[DType, int] = {
    dtypes.bfloat16: 7,
    dtypes.float16: 10,
    dtypes.float32: 23,
    dtypes.float64: 52,
}

# From this number of elements on, NumPy takes longer than a compiled function.
_WORTH_COMPILING = 100_000


def as_dtype(name: str, dtype: DTypeLike, default: DType, allowed: Any) -> DType:
    """Return ``dtype`` (None: ``default``) in canonical form.

    Raises DTypeError, about random.``name``, unless it is one of ``allowed``.
    """
    chosen = default if dtype is None else dtypes.canonical(dtype)
    if chosen not in allowed:
        raise DTypeError(
            f"random.{name} gives numbers like {default}, not {chosen}; convert the "
            "result with .astype",
            user_location(),
        )
    return chosen


def floating(name: str, dtype: DTypeLike) -> DType:
    """Return a real floating-point ``dtype``; float64 for None.

    Other dtypes raise DTypeError, about random.``name``.
    """
    return as_dtype(name, dtype, dtypes.float64, dtypes.FLOATS)


def integer(name: str, dtype: DTypeLike) -> DType:
    """Return an integer ``dtype``; int64 for None.

    Other dtypes raise DTypeError, about random.``name``.
    """
    return as_dtype(name, dtype, dtypes.int64, dtypes.INTEGERS)


def shape_for(name: str, shape: Any, *parameters: ArrayLike) -> Shape:
    """Return ``shape``, or the common shape of ``parameters`` if it is None.

    Raises ShapeError, about random.``name``, if the parameters do not broadcast to it.
    """
    shapes = [tuple(np.shape(x)) for x in parameters]
    common = ops.broadcast_shape(f"random.{name}", shapes)
    if shape is None:
        return common
    wanted = ops.as_shape(f"random.{name}", shape)
    if ops.broadcast_shape(f"random.{name}", [wanted, common]) != wanted:
        raise ShapeError(
            f"random.{name}: parameters of shape {common} do not broadcast to the "
            f"shape {wanted} that was asked for",
            user_location(),
        )
    return wanted


def flat(shape: Shape, *parameters: ArrayLike) -> Shape:
    """Return the shape in which samples are drawn before a reshape to ``shape``.

    It is one long axis, which gives better loops, unless array ``parameters`` need the
    axes to broadcast.
    """
    if any(np.ndim(x) for x in parameters):
        return shape
    return (math.prod(shape),)


def parameter(x: ArrayLike, dtype: DType) -> Array:
    """Convert a parameter of a distribution to an array of ``dtype``."""
    # Raises ArgumentError if x is neither an array nor a number.
    ops.type_of_operand("random", x)
    return ops.as_array(ops.convert(x, dtype))


def raw_bits(key: Key, shape: Shape, dtype: DType) -> Array:
    """Return random bits of ``shape``, in an unsigned ``dtype``.

    Many elements, or a key on a device, use a compiled function.
    """
    long = math.prod(shape) >= _WORTH_COMPILING or device_of([key.data])
    if long and not is_staged([key.data]):
        return _compiled_bits(key, shape, dtype)
    return _bits(key, shape, dtype)


def _bits(key: Key, shape: Shape, dtype: DType) -> Array:
    """Compute random bits of an unsigned ``dtype``, equal to JAX's.

    The Threefry block of each element's position gives two words of 32 bits. uint64
    uses both, and smaller dtypes the low bits of their exclusive or.
    """
    high, low = block(key, *counters(shape))
    if dtype == dtypes.uint64:
        wide = anp.left_shift(anp.astype(high, dtypes.uint64), 32)
        return anp.bitwise_or(wide, anp.astype(low, dtypes.uint64))
    mixed = anp.bitwise_xor(high, low)
    return mixed if dtype == dtypes.uint32 else anp.astype(mixed, dtype)


_compiled_bits = jit(_bits, static_argnums=(1, 2))


def bits(key: AnyKey, shape: Any = (), dtype: DTypeLike = None) -> Array:
    """Return uniform random bits, as unsigned integers (uint64 by default).

    >>> from arrayfn import random
    >>> hex(random.bits(random.key(0), dtype=np.uint32))
    '0xf29a4fa7'
    """
    kind = as_dtype("bits", dtype, dtypes.uint64, dtypes.UNSIGNED)
    wanted = ops.as_shape("random.bits", shape)
    return anp.reshape(raw_bits(single("bits", key), flat(wanted), kind), wanted)


def unit(key: Key, shape: Shape, dtype: DType) -> Array:
    """Return uniform numbers in [0, 1), all multiples of the machine epsilon.

    Random bits are the fraction of a number in [1, 2), from which 1 is subtracted.
    """
    unsigned = UNSIGNED[dtype.itemsize]
    mantissa = MANTISSAS[dtype]
    # bfloat16 has 7 bits of fraction, for which JAX draws 8 bits.
    width = 8 if mantissa < 8 else 8 * dtype.itemsize
    random_bits = raw_bits(key, shape, UNSIGNED[width // 8])
    shifted = anp.right_shift(anp.astype(random_bits, unsigned), width - mantissa)
    # The bits of 1.0: sign, exponent, and a fraction of 0.
    one = int(np.ones((), dtype).view(unsigned))
    number = apply(conversion.bitcast, anp.bitwise_or(shifted, one), dtype=dtype)
    return anp.subtract(number, ops.scalar(1.0, dtype))


def uniform(
    key: AnyKey,
    shape: Any = (),
    dtype: DTypeLike = None,
    minval: ArrayLike = 0.0,
    maxval: ArrayLike = 1.0,
) -> Array:
    """Return uniform random numbers in [minval, maxval), float64 by default.

    ``dtype`` is a floating-point type. ``minval`` and ``maxval`` broadcast to
    ``shape``. Rounding may give ``maxval``.

    >>> from arrayfn import random
    >>> random.uniform(random.key(0), (2,), np.float32)
    array([0.947667  , 0.97..., dtype=float32)
    """
    kind = floating("uniform", dtype)
    wanted = shape_for("uniform", shape, minval, maxval)
    drawn = unit(single("uniform", key), flat(wanted, minval, maxval), kind)
    return anp.reshape(between(drawn, minval, maxval, kind), wanted)


def between(drawn: Array, low: ArrayLike, high: ArrayLike, dtype: DType) -> Array:
    """Scale uniform numbers ``drawn`` in [0, 1) to [low, high)."""
    if ops.is_number(low) and ops.is_number(high) and (low, high) == (0.0, 1.0):
        return drawn
    low, high = ops.convert(low, dtype), ops.convert(high, dtype)
    with np.errstate(over="ignore"):
        span = ops.as_array(anp.subtract(high, low))
    scaled = anp.add(anp.multiply(drawn, span), low)
    in_range = anp.isfinite(span)
    if known_value(anp.all(in_range)) != np.True_:  # a span may be infinite
        # Halve the bounds: the span overflows, although both ends are finite.
        start, end = anp.multiply(low, 0.5), anp.multiply(high, 0.5)
        half = anp.add(anp.multiply(drawn, anp.subtract(end, start)), start)
        scaled = anp.where(in_range, scaled, anp.multiply(half, 2.0))
    # low if high is less. As the second operand, it is tested for NaN only once.
    return anp.maximum(scaled, low)


def randint(
    key: AnyKey,
    shape: Any,
    minval: ArrayLike,
    maxval: ArrayLike,
    dtype: DTypeLike = None,
) -> Array:
    """Return uniform random integers (int64 by default) in [minval, maxval).

    Where this interval is empty, the result is ``minval``. ``minval`` and ``maxval``
    broadcast to ``shape`` and are clamped to the range of ``dtype``. Small numbers are
    slightly more frequent, by less than 2**-32 (2**-64 for 64 bits).

    >>> from arrayfn import random
    >>> random.randint(random.key(0), (4,), 0, 10).shape
    (4,)
    """
    kind = integer("randint", dtype)
    wanted = shape_for("randint", shape, minval, maxval)
    if kind.itemsize < 4:  # use 32 bits to reduce the bias
        limits = np.iinfo(kind)
        low = _clipped(minval, dtypes.int32, limits.min, limits.max)
        high = _clipped(maxval, dtypes.int32, limits.min, limits.max + 1)
        return anp.astype(randint(key, wanted, low, high, dtypes.int32), kind)
    unsigned = UNSIGNED[kind.itemsize]
    low, span = _range(minval, maxval, kind, unsigned)
    all_numbers = anp.equal(span, 0)
    # A span of 0 stands for all numbers of the dtype; avoid a remainder by 0.
    span = anp.where(all_numbers, 1, span)
    first, second = split(single("randint", key))
    inner = flat(wanted, minval, maxval)
    upper, lower = (raw_bits(k, inner, unsigned) for k in (first, second))
    half = ops.as_array(ops.scalar(2 ** (4 * kind.itemsize), unsigned))
    # The offset is (upper * 2**bits + lower) mod span. 2**bits mod span is computed
    # from the square of ``half``, by (a * b) mod n = ((a mod n) * (b mod n)) mod n.
    multiplier = anp.remainder(half, span)
    multiplier = anp.remainder(anp.multiply(multiplier, multiplier), span)
    high_part = anp.multiply(anp.remainder(upper, span), multiplier)
    offset = anp.add(high_part, anp.remainder(lower, span))
    offset = anp.where(all_numbers, lower, anp.remainder(offset, span))
    return anp.reshape(anp.add(low, anp.astype(offset, kind)), wanted)


def _range(
    minval: ArrayLike, maxval: ArrayLike, dtype: DType, unsigned: DType
) -> tuple[Array, Array]:
    """Return the smallest integer, and the number of integers, of [minval, maxval).

    The number has the dtype ``unsigned``, and 0 stands for all integers of ``dtype``.
    The bounds are clamped to ``dtype``. An empty range counts as one number.
    """
    limits = np.iinfo(dtype)
    if isinstance(minval, int) and isinstance(maxval, int):
        low = min(max(minval, limits.min), limits.max)
        count = max(min(maxval, limits.max + 1) - low, 1)
        count %= int(np.iinfo(unsigned).max) + 1
        return np.array(low, dtype), np.array(count, unsigned)
    low = _clipped(minval, dtype, limits.min, limits.max)
    high = _clipped(maxval, dtype, limits.min, limits.max)
    valid = anp.greater(high, low)
    # The end of a range that includes the largest number does not fit into the dtype.
    beyond = anp.logical_and(_exceeds(maxval, int(limits.max)), valid)
    span = anp.where(valid, anp.astype(anp.subtract(high, low), unsigned), 1)
    return low, anp.add(span, anp.astype(beyond, unsigned))


def _clipped(x: ArrayLike, dtype: DType, low: int, high: int) -> ArrayLike:
    """Convert x to ``dtype``, clamped to [low, high]; a Python number stays one."""
    if isinstance(x, int):
        return min(max(x, low), high)
    type = ops.type_of_operand("randint", x)
    if type.dtype not in dtypes.INTEGERS:
        return _clipped(anp.astype(x, dtypes.int64), dtype, low, high)
    limits = np.iinfo(type.dtype)
    limited = anp.clip(x, max(limits.min, low), min(limits.max, high))
    return anp.astype(limited, dtype)


def _exceeds(x: ArrayLike, limit: int) -> ArrayLike:
    """Return whether x is larger than ``limit``, which its dtype may not hold."""
    if isinstance(x, int):
        return np.array(x > limit)
    type = ops.type_of_operand("randint", x)
    if type.dtype in dtypes.INTEGERS and np.iinfo(type.dtype).max <= limit:
        return np.array(False)
    return anp.greater(x, limit)


def rounds_of_shuffling(size: int) -> int:
    """Return how often to sort ``size`` elements by 32 random bits.

    So many rounds make ties unimportant. The formula is JAX's.
    """
    return math.ceil(3 * math.log(max(1, size)) / math.log(2**32 - 1))


__all__ = ["bits", "randint", "uniform"]
