"""reduce, mulhi, reduce_precision, select_n and fft, under JAX's names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

import numpy as np

from arrayfn import dtypes, tree
from arrayfn.errors import ArgumentError, DTypeError, ShapeError, user_location
from arrayfn.lax._operands import typed
from arrayfn.lax.control_flow_associative import associative_scan
from arrayfn.lax.linear_calls import linear_call
from arrayfn.numpy import _operands as ops
from arrayfn.numpy import (
    bitwise_xor,
    concatenate,
    logaddexp,
    multiply,
    where,
)
from arrayfn.numpy import (
    fft as _fft,
)
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.manipulation import moveaxis, slice_along
from arrayfn.primitives import conversion, discrete
from arrayfn.tracing import apply
from arrayfn.transforms.custom import custom_jvp


def reduce(
    operands: Any,
    init_values: Any,
    computation: Callable[[Any, Any], Any],
    dimensions: Sequence[int],
) -> Any:
    """Reduce ``operands`` (a pytree) over ``dimensions`` by ``computation``.

    ``computation`` combines two such pytrees elementwise. It must be associative and
    commutative, and ``init_values`` must be its identity. The reduction is a tree of
    log2(n) steps, each combining the two halves of an axis.
    """
    leaves, structure = tree.flatten(operands)
    inits = tree.leaves(init_values)
    if not leaves or tree.structure(init_values) != structure:
        raise ArgumentError(
            f"reduce takes an initial value for each operand, but was given the "
            f"structures {structure} and {tree.structure(init_values)}",
            user_location(),
        )
    types = [ops.type_of_operand("reduce", x) for x in leaves]
    axes = ops.normalize_axes("reduce", tuple(dimensions), types[0].ndim)
    starts = [
        ops.as_array(ops.convert(v, t.dtype)) for v, t in zip(inits, types, strict=True)
    ]

    def combined(first: list[Any], second: list[Any]) -> list[Any]:
        """``computation`` of flat leaves."""
        made = computation(
            tree.unflatten(structure, first), tree.unflatten(structure, second)
        )
        if tree.structure(made) != structure:
            raise ArgumentError(
                f"reduce: computation combines operands of the structure {structure}, "
                f"but gave {tree.structure(made)}",
                user_location(),
            )
        return tree.leaves(made)

    values = [ops.as_array(x) for x in leaves]
    if not axes:
        values = [ops.as_array(v) for v in combined(starts, values)]
    for axis in reversed(axes):
        values = _halved([moveaxis(v, axis, -1) for v in values], starts, combined)
    return tree.unflatten(structure, values)


def _halved(
    values: list[Array],
    inits: list[Array],
    combined: Callable[[list[Any], list[Any]], list[Any]],
) -> list[Array]:
    """``values`` reduced along their last axes."""
    shape = values[0].shape
    last = len(shape) - 1

    def filled(count: int) -> list[Array]:
        return [ops.full(v, (*shape[:-1], count), v.dtype) for v in inits]

    if shape[-1] == 0:
        values = filled(1)
    while (extent := values[0].shape[-1]) > 1:
        if extent % 2:
            values = [
                concatenate([v, f], -1) for v, f in zip(values, filled(1), strict=True)
            ]
            extent += 1
        half = extent // 2
        first = [slice_along(v, 0, half, last) for v in values]
        second = [slice_along(v, half, extent, last) for v in values]
        values = combined(first, second)
    final = combined([f[..., 0] for f in filled(1)], [v[..., 0] for v in values])
    return [ops.as_array(v) for v in final]


def reduce_xor(operand: ArrayLike, axes: Sequence[int]) -> Array:
    """The bits that are set in an odd number of elements over ``axes``."""
    dtype = ops.type_of_operand("reduce_xor", operand).dtype
    nothing = np.zeros((), dtype)
    return reduce(operand, nothing, bitwise_xor, axes)


def cumlogsumexp(operand: ArrayLike, axis: int = 0, reverse: bool = False) -> Array:
    """The running log-sum-exp. ``reverse`` begins at the end."""
    return associative_scan(logaddexp, operand, reverse=reverse, axis=axis)


# Bits.


def mulhi(x: ArrayLike, y: ArrayLike, /) -> Array:
    """The upper half of the bits of the product of integers x and y.

    >>> import numpy as np
    >>> mulhi(np.int32(2**30), np.int32(8))
    array(2, dtype=int32)
    """
    x, y = (ops.as_array(v) for v in typed("mulhi", x, y))
    dtype = ops.common_dtype("mulhi", (x, y))
    if dtype not in dtypes.INTEGERS:
        raise DTypeError("mulhi takes integers", user_location())
    bits = 8 * dtype.itemsize
    if bits < 64:
        signed = dtype in dtypes.SIGNED
        wide = dtypes.int64 if signed else dtypes.uint64
        product = multiply(ops.convert(x, wide), ops.convert(y, wide))
        shift = (
            discrete.shift_right_arithmetic if signed else discrete.shift_right_logical
        )
        upper = apply(shift, product, np.asarray(bits, wide))
        return ops.convert(upper, dtype)
    return _upper_of_128(x, y, dtype)


def _upper_of_128(x: Array, y: Array, dtype: dtypes.DType) -> Array:
    """The upper 64 bits of the product of two int64 or uint64 arrays, ``x`` and ``y``.

    By parts of 32 bits (Knuth, The Art of Computer Programming 2, 4.3.1).
    """
    u64 = dtypes.uint64
    a, b = (ops.convert(v, u64) for v in (x, y))
    low = np.asarray(0xFFFFFFFF, u64)
    half = np.asarray(32, u64)
    a0, a1, b0, b1 = a & low, a >> half, b & low, b >> half
    middle = a1 * b0 + ((a0 * b0) >> half)
    rest = (middle & low) + a0 * b1
    upper = a1 * b1 + (middle >> half) + (rest >> half)
    if dtype == u64:
        return upper
    # Two's complement: subtract the other operand if one is negative.
    zero = np.asarray(0, u64)
    upper = upper - where(x < 0, b, zero) - where(y < 0, a, zero)
    return ops.convert(upper, dtype)


def reduce_precision(
    operand: ArrayLike, exponent_bits: int, mantissa_bits: int
) -> Array:
    """Round ``operand`` to a float of that many bits, and keep its dtype.

    Ties are rounded to even. Numbers that are too large become infinite, and subnormal
    numbers become 0. The derivative is that of the identity, but tangents and
    cotangents are rounded in the same way.
    """
    if exponent_bits < 1 or mantissa_bits < 0:
        raise ArgumentError(
            "reduce_precision takes at least 1 bit of exponent and 0 of mantissa",
            user_location(),
        )

    @custom_jvp
    def rounded(v: Array) -> Array:
        return _rounded(v, exponent_bits, mantissa_bits)

    def alike(_: Any, t: Array) -> Array:
        return _rounded(t, exponent_bits, mantissa_bits)

    def tangent(primals: Any, tangents: Any) -> Any:
        return rounded(primals[0]), linear_call(alike, alike, (), tangents[0])

    rounded.defjvp(tangent)
    return rounded(ops.as_array(ops.as_floating("reduce_precision", operand)))


_FORMATS = {
    dtypes.float32: (dtypes.int32, 8, 23),
    dtypes.float64: (dtypes.int64, 11, 52),
}


def _rounded(x: Array, exponent_bits: int, mantissa_bits: int) -> Array:
    """x rounded to so many bits of exponent and mantissa, to nearest, ties to even.

    What is too large becomes infinite, and what is too small becomes 0.
    """
    dtype = ops.type_of_operand("reduce_precision", x).dtype
    if dtype not in dtypes.FLOATS:
        raise DTypeError("reduce_precision takes real numbers", user_location())
    wide = ops.convert(x, dtypes.compute_dtype(dtype))
    integer, own_exponent, own_mantissa = _FORMATS[wide.dtype]
    bits = apply(conversion.bitcast, wide, dtype=integer)
    sign = bits & np.asarray(np.iinfo(integer).min, integer)
    size = bits ^ sign
    lost = own_mantissa - mantissa_bits
    if lost > 0:
        # Half an ulp minus one, plus one if the last bit is odd.
        odd = (size >> lost) & 1
        size = size + odd + ((1 << (lost - 1)) - 1)
        size = size & ~((1 << lost) - 1)
    if exponent_bits < own_exponent:
        own_bias = (1 << (own_exponent - 1)) - 1
        bias = (1 << (exponent_bits - 1)) - 1
        exponent = size >> own_mantissa
        infinite = ((1 << own_exponent) - 1) << own_mantissa
        size = where(exponent > own_bias + bias, infinite, size)
        size = where(exponent <= own_bias - bias, 0, size)
    value = apply(
        conversion.bitcast, ops.convert(size | sign, integer), dtype=wide.dtype
    )
    return ops.convert(where(wide == wide, value, wide), dtype)


def select_n(which: ArrayLike, *cases: ArrayLike) -> Array:
    """Select each element from the case whose number is in ``which``."""
    if not cases:
        raise ArgumentError("select_n takes at least one case", user_location())
    values = typed("select_n", *cases)
    type = ops.type_of_operand("select_n", which)
    if type.dtype == dtypes.bool_ and len(values) > 2:
        raise ArgumentError(
            f"select_n: a bool chooses between two cases, not {len(values)}",
            user_location(),
        )
    shape = ops.type_of_operand("select_n", values[0]).shape
    if type.shape not in ((), shape):
        raise ShapeError(
            f"select_n: {type} does not choose among cases of shape {shape}",
            user_location(),
        )
    result = ops.as_array(values[-1])
    for number in range(len(values) - 2, -1, -1):
        chosen = ~which if type.dtype == dtypes.bool_ else which <= number
        result = where(chosen, values[number], result)
    return result


# Fourier transforms.


class FftType(Enum):
    """The transforms of ``fft``: forward and inverse, complex and real."""

    FFT = "fft"
    IFFT = "ifft"
    RFFT = "rfft"
    IRFFT = "irfft"


def fft(x: ArrayLike, fft_type: FftType | str, fft_lengths: Sequence[int]) -> Array:
    """Transform the last axes; ``fft_lengths`` has one length for each.

    The lengths must be the extents of the axes. For "irfft" they are the extents of the
    result. The functions of ``arrayfn.numpy.fft`` pad and truncate.
    """
    kind = FftType(fft_type.lower()) if isinstance(fft_type, str) else fft_type
    lengths = tuple(ops.whole(n) for n in fft_lengths)
    type = ops.type_of_operand("lax.fft", x)
    wanted = lengths
    if kind is FftType.IRFFT and lengths:
        wanted = (*lengths[:-1], lengths[-1] // 2 + 1)
    if type.shape[type.ndim - len(lengths) :] != wanted:
        raise ShapeError(
            f"lax.fft: a transform {kind.value} of lengths {lengths} is of last axes "
            f"{wanted}, not of {type}; arrayfn.numpy.fft pads and cuts",
            user_location(),
        )
    axes = tuple(range(-len(lengths), 0))
    functions: dict[FftType, Callable[..., Array]] = {
        FftType.FFT: _fft.fftn,
        FftType.IFFT: _fft.ifftn,
        FftType.RFFT: _fft.rfftn,
        FftType.IRFFT: _fft.irfftn,
    }
    return functions[kind](x, lengths, axes)
