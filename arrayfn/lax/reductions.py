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
    commutative, and ``init_values`` (a pytree of scalars) must be its identity. The
    result is a pytree of arrays without the axes ``dimensions``, in the dtypes of the
    operands. Each axis is reduced in log2(n) steps, which combine the two halves of the
    axis. Raises ArgumentError if the pytrees' structures differ.
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
        """Call ``computation`` with flat leaves, and return the leaves of its result.

        Raises ArgumentError if the result has another structure.
        """
        result = computation(
            tree.unflatten(structure, first), tree.unflatten(structure, second)
        )
        if tree.structure(result) != structure:
            raise ArgumentError(
                f"reduce: computation combines operands of the structure {structure}, "
                f"but gave {tree.structure(result)}",
                user_location(),
            )
        return tree.leaves(result)

    values = [ops.as_array(x) for x in leaves]
    if not axes:  # the initial value enters each result
        values = [ops.as_array(v) for v in combined(starts, values)]
    # From the last axis to the first, so that the numbers of the others stay valid.
    for axis in reversed(axes):
        values = _halved([moveaxis(v, axis, -1) for v in values], starts, combined)
    return tree.unflatten(structure, values)


def _halved(
    values: list[Array],
    inits: list[Array],
    combined: Callable[[list[Any], list[Any]], list[Any]],
) -> list[Array]:
    """Reduce each array of ``values`` over its last axis, by ``combined``.

    Each step combines the first and the second half of the axis. ``inits`` are the
    identities of ``combined``; one is appended if the extent is odd.
    """
    shape = values[0].shape
    last = len(shape) - 1
    # Each identity, with an extent of 1 along the last axis.
    identities = [ops.full(v, (*shape[:-1], 1), v.dtype) for v in inits]
    if shape[-1] == 0:
        values = identities
    while (extent := values[0].shape[-1]) > 1:
        if extent % 2:
            pairs = zip(values, identities, strict=True)
            values = [concatenate(pair, -1) for pair in pairs]
            extent += 1
        half = extent // 2
        first = [slice_along(v, 0, half, last) for v in values]
        second = [slice_along(v, half, extent, last) for v in values]
        values = combined(first, second)
    # The initial value enters each result, even if it is not an identity.
    final = combined([f[..., 0] for f in identities], [v[..., 0] for v in values])
    return [ops.as_array(v) for v in final]


def reduce_xor(operand: ArrayLike, axes: Sequence[int]) -> Array:
    """Return the bits that are set in an odd number of elements over ``axes``.

    The result lacks ``axes`` and has the dtype of ``operand``, an integer or bool.
    """
    dtype = ops.type_of_operand("reduce_xor", operand).dtype
    identity = np.zeros((), dtype)
    return reduce(operand, identity, bitwise_xor, axes)


def cumlogsumexp(operand: ArrayLike, axis: int = 0, reverse: bool = False) -> Array:
    """Return the running log-sum-exp along ``axis``, in the shape of ``operand``.

    Element k is log(exp(x[0]) + ... + exp(x[k])). ``reverse`` begins at the end.
    """
    return associative_scan(logaddexp, operand, reverse=reverse, axis=axis)


# Bits.


def mulhi(x: ArrayLike, y: ArrayLike, /) -> Array:
    """Return the upper half of the bits of the product of integers x and y.

    For 32-bit integers, these are bits 32 to 63 of the 64-bit product, as an integer of
    the operands' dtype. Raises DTypeError for other dtypes.

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
    """Return the upper 64 bits of the products of ``x`` and ``y``, int64 or uint64.

    The method multiplies parts of 32 bits (Knuth, The Art of Computer Programming 2,
    4.3.1).
    """
    u64 = dtypes.uint64
    a, b = (ops.convert(v, u64) for v in (x, y))
    low = np.asarray(0xFFFFFFFF, u64)
    half = np.asarray(32, u64)
    # a = a1 2**32 + a0 and b = b1 2**32 + b0. No sum below overflows 64 bits.
    a0, a1, b0, b1 = a & low, a >> half, b & low, b >> half
    middle = a1 * b0 + ((a0 * b0) >> half)
    rest = (middle & low) + a0 * b1
    upper = a1 * b1 + (middle >> half) + (rest >> half)
    if dtype == u64:
        return upper
    # A negative x stands for a = x + 2**64, which adds 2**64 b to the product; so
    # subtract b from the upper half. The same holds for y.
    zero = np.asarray(0, u64)
    upper = upper - where(x < 0, b, zero) - where(y < 0, a, zero)
    return ops.convert(upper, dtype)


def reduce_precision(
    operand: ArrayLike, exponent_bits: int, mantissa_bits: int
) -> Array:
    """Round ``operand`` to a float with fewer bits, and keep its shape and dtype.

    The float has ``exponent_bits`` and ``mantissa_bits``. Ties are rounded to even.
    Numbers that are too large become infinite, and subnormal numbers become 0. The
    derivative is that of the identity, but tangents and cotangents are rounded in the
    same way. Raises ArgumentError for less than 1 bit of exponent or 0 of mantissa.
    """
    if exponent_bits < 1 or mantissa_bits < 0:
        raise ArgumentError(
            "reduce_precision takes at least 1 bit of exponent and 0 of mantissa",
            user_location(),
        )

    @custom_jvp
    def rounded(v: Array) -> Array:
        """Round the primal value."""
        return _rounded(v, exponent_bits, mantissa_bits)

    def alike(_: Any, t: Array) -> Array:
        """Round a tangent or cotangent; the first argument is an empty residual."""
        return _rounded(t, exponent_bits, mantissa_bits)

    def tangent(primals: Any, tangents: Any) -> Any:
        """Return the rounded primal and the rounded tangent.

        Rounding is not linear, but ``linear_call`` treats it as its own transpose.
        """
        (v,), (t,) = primals, tangents
        return rounded(v), linear_call(alike, alike, (), t)

    rounded.defjvp(tangent)
    return rounded(ops.as_array(ops.as_floating("reduce_precision", operand)))


# The integer type of the same size, and the bits of exponent and mantissa.
_FORMATS = {
    dtypes.float32: (dtypes.int32, 8, 23),
    dtypes.float64: (dtypes.int64, 11, 52),
}


def _rounded(x: Array, exponent_bits: int, mantissa_bits: int) -> Array:
    """Round x to a float with these bits of exponent and mantissa, ties to even.

    Numbers that are too large become infinite, numbers that would be subnormal become
    0, and NaN stays NaN. The result has the dtype of x. Raises DTypeError unless x is
    real.
    """
    dtype = ops.type_of_operand("reduce_precision", x).dtype
    if dtype not in dtypes.FLOATS:
        raise DTypeError("reduce_precision takes real numbers", user_location())
    wide = ops.convert(x, dtypes.compute_dtype(dtype))
    # The integer dtype of this width, and the bits of exponent and mantissa.
    integer, own_exponent, own_mantissa = _FORMATS[wide.dtype]
    bits = apply(conversion.bitcast, wide, dtype=integer)
    sign = bits & np.asarray(np.iinfo(integer).min, integer)  # only the highest bit
    size = bits ^ sign
    lost = own_mantissa - mantissa_bits
    if lost > 0:
        # Add half an ulp minus one, plus one if the last bit that stays is odd. Then
        # clear the bits that are lost. A carry moves into the exponent, as it should.
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
    is_number = wide == wide  # False for NaN
    return ops.convert(where(is_number, value, wide), dtype)


def select_n(which: ArrayLike, *cases: ArrayLike) -> Array:
    """Select each element from the case whose number is in ``which``.

    ``which`` has integers, or bools for two cases, and is a scalar or has the shape of
    the cases. The cases have one shape and dtype, those of the result. Numbers that are
    too large select the last case, negative ones the first. Raises ArgumentError if
    there is no case, or more than two for a bool, and ShapeError if the shapes differ.
    """
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
    # From the last case to the first: case k replaces later ones where which <= k.
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
    """Transform the last axes of x; ``fft_lengths`` has one length for each.

    The lengths must be the extents of the axes. For "irfft" they are the extents of the
    result, so the last axis of x has n // 2 + 1 elements for a length n. Raises
    ShapeError for other extents. Results are complex, but those of "irfft" are real.
    The functions of ``arrayfn.numpy.fft`` pad and truncate instead.
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
