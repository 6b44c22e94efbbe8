"""Matrix products on a GPU: which dtypes its library has, and their names."""

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

BYTES_ALONG: Final = 1 << 30  # multiply-adds of bytes that pay for a transposed copy
_MIN_SIDE: Final = 256  # for each row of which a matrix is copied


def along_contracted(equation: Equation) -> bool:
    """Whether the library wants both operands contiguous along the contracted axis.

    It is faster then for bytes: tensor cores take them in no other way, and without
    these a product takes eight times as long, a large one more than a copy as well.
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
    return terms % 16 == 0 and min(sides) >= _MIN_SIDE and work >= BYTES_ALONG


def provider_of(equation: Equation) -> str:
    """The name of the library's product for ``equation``, by its dtypes."""
    operand = equation.inputs[0].type.dtype
    result = equation.outputs[0].type.dtype
    name = f"gemm_{short_name(operand)}"
    if result != operand:
        name += f"_{short_name(result)}"
    if equation.params.get("precision") == "tf32" and operand == dtypes.float32:
        name += "_tf32"
    return name
