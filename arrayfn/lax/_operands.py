"""Operands of lax functions: Python numbers take the dtype of the others."""

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
    """Apply ``primitive`` to ``operands``."""
    return apply(primitive, *typed(primitive.name, *operands))
