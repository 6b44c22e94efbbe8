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
    """Return ``program`` with copies of its captured arrays."""
    if not program.constants:
        return program
    values = program.constant_values
    copies = [x if isinstance(x, ArrayOnDevice) else _copy_of(x) for x in values]
    return replace(program, constant_values=tuple(copies))


def _copy_of(array: Array) -> Array:
    """Return a copy of ``array``, shared by all calls until the array changes."""
    key = (id(array), array.shape, array.dtype, array.strides)
    copy = _copies.get(key)
    if copy is not None and _have_same_bits(copy, array):
        return copy
    new_copy = np.array(array)
    _copies[key] = new_copy
    return new_copy


def _have_same_bits(first: Array, second: Array) -> bool:
    """Whether two arrays of equal shape and dtype have the same bits.

    0.0 and -0.0 differ.
    """
    integers = _INTEGERS.get(first.itemsize)
    if integers is None:  # complex128 has 16 bytes
        parts = ((first.real, second.real), (first.imag, second.imag))
        return all(_have_same_bits(x, y) for x, y in parts)
    return np.array_equal(first.view(integers), second.view(integers))
