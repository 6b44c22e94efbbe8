"""Operands of lax functions.

Python numbers take the dtype of the others. Arrays of one rank are broadcast along axes
of extent 1.
"""

from __future__ import annotations

from typing import Any

from arrayfn import dtypes
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.primitives.base import Primitive
from arrayfn.tracing import apply


def typed(name: str, *operands: ArrayLike) -> list[Any]:
    """``operands`` with Python numbers in the dtype of the first array."""
    types = [ops.type_of_operand(name, x) for x in operands]
    strong = [
        t.dtype
        for x, t in zip(operands, types, strict=True)
        if not dtypes.is_python_scalar(x)
    ]
    dtype = strong[0] if strong else dtypes.promote((t.dtype, True) for t in types)[0]
    return [
        ops.as_array(ops.scalar(x, dtype)) if dtypes.is_python_scalar(x) else x
        for x in operands
    ]


def elementwise(primitive: Primitive, *operands: ArrayLike) -> Array:
    """Apply ``primitive`` to ``operands``, whose axes of extent 1 are broadcast."""
    given = typed(primitive.name, *operands)
    if len(given) > 2 or given[0].shape != given[-1].shape:
        given = alike(primitive.name, given)
    return apply(primitive, *given)


def alike(name: str, given: list[Any]) -> list[Any]:
    """Arrays of one rank, with their axes of extent 1 broadcast; others as they are.

    The type rule refuses arrays of several ranks.
    """
    if len({x.shape for x in given if x.shape}) <= 1:
        return given
    if len({len(x.shape) for x in given if x.shape}) > 1:
        return given
    return ops.broadcast(name, given, [ops.type_of_operand(name, x) for x in given])
