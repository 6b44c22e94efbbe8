"""Copies the arrays that functions capture, since their owners may change them.

Several signatures and several functions share the copy of an array as long as the array
has not changed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final
from weakref import WeakValueDictionary

import numpy as np

from arrayfn.ir import Program
from arrayfn.tracing import ArrayOnDevice

Array = np.ndarray[Any, Any]

_INTEGERS: Final = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_copies: WeakValueDictionary[tuple[Any, ...], Array] = WeakValueDictionary()


def with_own_constants(program: Program) -> Program:
    """``program`` with copies of its captured arrays."""
    if not program.constants:
        return program
    values = program.constant_values
    own = [x if isinstance(x, ArrayOnDevice) else _own(x) for x in values]
    return replace(program, constant_values=tuple(own))


def _own(array: Array) -> Array:
    """A copy of ``array``: the one made before, if the array has not changed since."""
    key = (id(array), array.shape, array.dtype, array.strides)
    known = _copies.get(key)
    if known is not None and _have_same_bits(known, array):
        return known
    made = np.array(array)
    _copies[key] = made
    return made


def _have_same_bits(one: Array, other: Array) -> bool:
    """Whether two arrays of one shape and dtype have the same bits."""
    integers = _INTEGERS.get(one.itemsize)
    if integers is None:
        parts = ((one.real, other.real), (one.imag, other.imag))
        return all(_have_same_bits(x, y) for x, y in parts)
    return np.array_equal(one.view(integers), other.view(integers))
