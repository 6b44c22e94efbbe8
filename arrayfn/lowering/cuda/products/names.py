"""The dtypes that cuBLASLt multiplies, and the names of its products."""

from __future__ import annotations

import math
from typing import Final

from arrayfn import dtypes
from arrayfn.dtypes import short_name
from arrayfn.ir import Equation
from arrayfn.passes.expand import BLAS, Products
from arrayfn.primitives.contraction import free_axes

PRODUCTS: Final[Products] = BLAS | {
    (dtypes.float16, dtypes.float16),
    (dtypes.float16, dtypes.float32),
    (dtypes.bfloat16, dtypes.bfloat16),
    (dtypes.bfloat16, dtypes.float32),
    (dtypes.int8, dtypes.int32),
}
"""What cuBLASLt multiplies; fp16 and bf16 are summed in float32, bytes in int32."""

MIN_COPIED_WORK: Final = 1 << 30
"""Multiply-adds of int8 from which on it pays to copy an operand to another layout."""
_MIN_SIDE: Final = 256
"""Rows and columns of the smallest product for which operands are copied."""


def contracts_contiguously(equation: Equation) -> bool:
    """Return whether to lay out both operands contiguous along the contracted axis.

    Tensor cores accept no other layout for int8. Without tensor cores a product takes
    eight times as long; for a large product that is more than copying the operands as
    well.
    """
    x, y = (a.type for a in equation.inputs)
    if x.dtype != dtypes.int8:
        return False
    contract, batch = equation.params["contract"], equation.params["batch"]
    terms = math.prod(x.shape[axis] for axis in contract[0])
    sides = [
        math.prod(t.shape[axis] for axis in free_axes(t.ndim, contracted, shared))
        for t, contracted, shared in zip((x, y), contract, batch, strict=True)
    ]
    work = math.prod(x.shape[axis] for axis in batch[0]) * math.prod(sides) * terms
    return terms % 16 == 0 and min(sides) >= _MIN_SIDE and work >= MIN_COPIED_WORK


def provider_of(equation: Equation) -> str:
    """Return the name of the library's product for ``equation``, by its dtypes.

    For example ``gemm_f32``, ``gemm_f16_f32`` (operands and result), ``gemm_f32_tf32``.
    """
    operand = equation.inputs[0].type.dtype
    result = equation.outputs[0].type.dtype
    name = f"gemm_{short_name(operand)}"
    if result != operand:
        name += f"_{short_name(result)}"
    if equation.params.get("precision") == "tf32" and operand == dtypes.float32:
        name += "_tf32"
    return name
