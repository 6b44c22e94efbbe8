"""Matrix products on a GPU: which dtypes its library has, and their names."""

from __future__ import annotations

from typing import Final

from arrayfn import dtypes
from arrayfn.dtypes import short_name
from arrayfn.ir import Equation
from arrayfn.passes.expand import BLAS, Products

PRODUCTS: Final[Products] = BLAS | {
    (dtypes.float16, dtypes.float16),
    (dtypes.float16, dtypes.float32),
    (dtypes.bfloat16, dtypes.bfloat16),
    (dtypes.bfloat16, dtypes.float32),
    (dtypes.int8, dtypes.int32),
}
"""What cuBLASLt multiplies; halves are summed in float32, bytes in int32."""


def provider_of(equation: Equation) -> str:
    """The name of the library's product for ``equation``."""
    operand = equation.inputs[0].type.dtype
    result = equation.outputs[0].type.dtype
    name = f"gemm_{short_name(operand)}"
    if result != operand:
        name += f"_{short_name(result)}"
    if equation.params.get("precision") == "tf32" and operand == dtypes.float32:
        name += "_tf32"
    return name
