"""Positions of extrema of elements of up to 32 bits: one reduction of one word.

An element's order and its position are one integer of 64 bits, the order above, so the
least of these is the first of the least elements. An extremum and then the position of
what equals it would be two reductions, for which long rows and columns are read twice.
"""

from __future__ import annotations

from typing import Final

from arrayfn import dtypes
from arrayfn.builder import ProgramBuilder, rename
from arrayfn.dtypes import DType
from arrayfn.ir import Atom, Program
from arrayfn.primitives import conversion, views
from arrayfn.primitives import elementwise as e
from arrayfn.primitives.base import Primitive
from arrayfn.primitives.reductions import argmax, argmin, reduce_min

_POSITION_BITS: Final = 32
_MOST: Final = 2**31 - 1


def one_reduction(program: Program) -> Program:
    """``program`` with positions of extrema as reductions of words."""
    if not any(e.primitive in (argmax, argmin) for e in program.equations):
        return program
    builder = ProgramBuilder(program.name)
    with builder:
        inputs = builder.inputs_of(program)
        environment = builder.bind_inputs(program, inputs)
        for equation in program.equations:
            builder.source = equation.source
            (x, *_), row = equation.inputs, equation.primitive
            if row not in (argmax, argmin) or not _is_packed(x, **equation.params):
                builder.replay(equation, environment)
                continue
            assert isinstance(row, Primitive)
            made = _position(rename(x, environment), row is argmax, **equation.params)
            environment[equation.outputs[0]] = made
    return builder.build([rename(a, environment) for a in program.outputs])


def _is_packed(x: Atom, axis: int, dtype: DType) -> bool:
    return x.type.dtype.itemsize <= 4 and x.type.shape[axis] <= _MOST


def _position(x: Atom, greatest: bool, axis: int, dtype: DType) -> Atom:
    """The first position along ``axis`` of the greatest, or least, or of a NaN."""

    def word(value: int) -> Atom:
        return conversion.literal(value, dtypes.int64)

    order, nans = _order(x)
    if greatest:
        order = e.bitwise_not(order)
    if nans is not None:
        order = e.select(nans, word(-(2**31)), order)
    position = views.iota(shape=x.type.shape, axis=axis, dtype=dtypes.int64)
    key = e.bitwise_or(e.shift_left(order, word(_POSITION_BITS)), position)
    first = reduce_min(key, axes=(axis,))
    low = e.bitwise_and(first, word(2**_POSITION_BITS - 1))
    return conversion.convert(low, dtype)


def _order(x: Atom) -> tuple[Atom, Atom | None]:
    """Integers of 32 bits, as i64, in the order of ``x``; and which are NaN."""
    dtype = x.type.dtype
    if dtype == dtypes.uint32:
        wide = conversion.convert(x, dtypes.int64)
        return e.sub(wide, conversion.literal(2**31, dtypes.int64)), None
    if dtype not in dtypes.FLOATS:
        return conversion.convert(x, dtypes.int64), None
    single = conversion.convert(x, dtypes.float32)
    # Zeros are equal; of what is negative, more bits are less.
    single = e.add(single, conversion.literal(0.0, dtypes.float32))
    bits = conversion.bitcast(single, dtype=dtypes.int32)
    sign = e.shift_right_arithmetic(bits, conversion.literal(31, dtypes.int32))
    below = e.shift_right_logical(sign, conversion.literal(1, dtypes.int32))
    order = e.bitwise_xor(bits, below)
    return conversion.convert(order, dtypes.int64), e.isnan(single)
