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

    What does not fit is left for the type rule to refuse.
    """
    shapes = {x.shape for x in given if x.shape}
    if len(shapes) <= 1 or len({len(shape) for shape in shapes}) > 1:
        return given
    if any(len({*extents} - {1}) > 1 for extents in zip(*shapes, strict=True)):
        return given
    return ops.broadcast(name, given, [ops.type_of_operand(name, x) for x in given])
