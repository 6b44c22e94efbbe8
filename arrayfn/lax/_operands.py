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
    """Return ``operands``, with Python numbers converted to arrays of a fitting dtype.

    The dtype is that of the first operand that is not a Python number. If all are
    Python numbers, it is the dtype to which they promote. Arrays are returned
    unchanged. ``name`` is the public function, for errors.
    """
    types = [ops.type_of_operand(name, x) for x in operands]
    array_dtypes = [
        t.dtype
        for x, t in zip(operands, types, strict=True)
        if not dtypes.is_python_scalar(x)
    ]
    if array_dtypes:
        dtype = array_dtypes[0]
    else:
        # True: all of these dtypes are weak.
        dtype, _ = dtypes.promote((t.dtype, True) for t in types)
    return [
        ops.as_array(ops.scalar(x, dtype)) if dtypes.is_python_scalar(x) else x
        for x in operands
    ]


def elementwise(primitive: Primitive, *operands: ArrayLike) -> Array:
    """Apply ``primitive`` to ``operands``, with axes of extent 1 broadcast.

    Python numbers take the dtype of the first array. The primitive's type rule raises
    for other differences of dtype or shape.
    """
    arrays = typed(primitive.name, *operands)
    # One operand, or two of one shape, need no broadcasting.
    if len(arrays) > 2 or arrays[0].shape != arrays[-1].shape:
        arrays = alike(primitive.name, arrays)
    return apply(primitive, *arrays)


def alike(name: str, arrays: list[Any]) -> list[Any]:
    """Broadcast axes of extent 1, so that ``arrays`` of rank 1 or more have one shape.

    Arrays of rank 0 stay as they are. If the ranks or the extents do not fit, the
    arrays are returned unchanged, and the type rule of the primitive raises the error.
    """
    shapes = {x.shape for x in arrays if x.shape}
    ranks = {len(shape) for shape in shapes}
    if len(shapes) <= 1 or len(ranks) > 1:
        return arrays
    # An axis does not broadcast if it has two extents other than 1.
    if any(len({*extents} - {1}) > 1 for extents in zip(*shapes, strict=True)):
        return arrays
    return ops.broadcast(name, arrays, [ops.type_of_operand(name, x) for x in arrays])
