"""Rewrites argmax and argmin of long rows as one reduction of 64-bit integers.

Such an integer has the rank of an element of up to 32 bits in its high half and the
element's position in its low half, so the minimum is the first position of the
extremum. The usual form, an extremum and then the position of what equals it, reads
long rows and columns twice. Shorter rows stay in registers in between, and keep that
form.
"""

from __future__ import annotations

from typing import Final

from arrayfn import dtypes
from arrayfn.dtypes import DType
from arrayfn.ir import Atom, Equation, Program
from arrayfn.ir.builder import rewritten
from arrayfn.primitives import conversion, discrete, views
from arrayfn.primitives import elementwise as e
from arrayfn.primitives.reductions import argmax, argmin, reduce_min

MAX_REGISTER_ROW: Final = 1 << 14
"""Elements of the longest row that registers hold, so that it is read once."""
_POSITION_BITS: Final = 32
_MAX: Final = 2**31 - 1


def extremum_positions_in_one(program: Program) -> Program:
    """Rewrite argmax and argmin of long rows and columns as ``reduce_min`` of keys."""

    def packed(equation: Equation, operands: list[Atom]) -> list[Atom] | None:
        """Return the rewritten argmax or argmin of ``operands``; None to keep it.

        The equation's parameters are ``axis`` and ``dtype``.
        """
        primitive, params = equation.primitive, equation.params
        if primitive not in (argmax, argmin):
            return None
        if not _is_packed(operands[0], params["axis"]):
            return None
        return [_position(operands[0], primitive is argmax, **params)]

    if not any(e.primitive in (argmax, argmin) for e in program.equations):
        return program
    return rewritten(program, packed)


def _is_packed(x: Atom, axis: int) -> bool:
    """Whether argmax or argmin of ``x`` along ``axis`` becomes a reduction of keys.

    Elements and positions must fit into 64 bits. Rows that registers hold (an innermost
    ``axis`` of up to ``MAX_REGISTER_ROW`` elements) keep the usual form.
    """
    kept = axis == x.type.ndim - 1 and x.type.shape[axis] <= MAX_REGISTER_ROW
    return x.type.dtype.itemsize <= 4 and x.type.shape[axis] <= _MAX and not kept


def _position(x: Atom, maximum: bool, axis: int, dtype: DType) -> Atom:
    """Return the index along ``axis`` of the first maximum or minimum of ``x``.

    The first NaN counts as the extremum, if there is one. ``maximum`` says which of the
    two to find. The result has ``dtype`` and the shape of ``x`` without ``axis``.
    """

    def word(value: int) -> Atom:
        """Return ``value`` as an int64 literal."""
        return conversion.literal(value, dtypes.int64)

    # The key: the order in the high 32 bits, the position in the low 32 bits.
    order = _order_keys(x, maximum)
    high = discrete.shift_left(
        conversion.convert(order, dtypes.int64), word(_POSITION_BITS)
    )
    position = views.iota(shape=x.type.shape, axis=axis, dtype=dtypes.uint32)
    key = discrete.bitwise_or(high, conversion.convert(position, dtypes.int64))
    first = reduce_min(key, axes=(axis,))
    low = discrete.bitwise_and(first, word(2**_POSITION_BITS - 1))
    return conversion.convert(low, dtype)


def _order_keys(x: Atom, backwards: bool) -> Atom:
    """Map the elements of ``x`` to int32 keys; the extremum has the smallest key.

    Keys have the order of ``x``, or the reverse order if ``backwards``. A NaN has the
    smallest key of all, equal numbers have equal keys, and 0.0 equals -0.0.
    """

    def i32(value: int) -> Atom:
        """Return ``value`` as an int32 literal."""
        return conversion.literal(value, dtypes.int32)

    dtype = x.type.dtype
    if dtype not in dtypes.FLOATS:
        if dtype == dtypes.uint32:
            flipped = discrete.bitwise_xor(x, conversion.literal(2**31, dtypes.uint32))
            order = conversion.bitcast(flipped, dtype=dtypes.int32)
        else:
            order = conversion.convert(x, dtypes.int32)
        return discrete.bitwise_not(order) if backwards else order
    single = conversion.convert(x, dtypes.float32)
    # Adding 0.0 turns -0.0 into 0.0.
    single = e.add(single, conversion.literal(0.0, dtypes.float32))
    bits = conversion.bitcast(single, dtype=dtypes.int32)
    # The bits of positive floats have their order as integers. Those of negative floats
    # have the reverse order: flip all bits but the sign.
    sign = discrete.shift_right_arithmetic(bits, i32(31))
    order = discrete.bitwise_xor(bits, discrete.bitwise_and(sign, i32(_MAX)))
    if backwards:
        order = discrete.bitwise_not(order)
    return e.select(discrete.isnan(single), i32(-(2**31)), order)
