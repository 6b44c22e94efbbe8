"""dot_general as a library GEMM: axes grouped into batch, rows, columns, contracted.

The layout pass has seen to it that each operand is a matrix to BLAS; other dtypes than
the target's library multiplies are expanded before.
"""

from __future__ import annotations

import math

from arrayfn.ir import Equation
from arrayfn.passes.matrices import Matrix, as_matrix
from arrayfn.passes.reads import Read
from arrayfn.primitives.contraction import free_axes
from arrayfn.records import frozen


@frozen(slots=True)
class Gemm:
    """``c[batch, m, n] = a[batch, m, k] @ b[batch, k, n]``."""

    a: Matrix
    b: Matrix
    batch: int
    m: int
    n: int
    k: int


def as_gemm(equation: Equation, x: Read, y: Read) -> Gemm | None:
    """Describe a dot_general as a batched GEMM that copies no operand, or None.

    ``x`` and ``y`` say how the operands of ``equation`` are read from memory.
    """
    left, right = (a.type for a in equation.inputs)
    contract, batch = equation.params["contract"], equation.params["batch"]
    left_free = free_axes(left.ndim, contract[0], batch[0])
    right_free = free_axes(right.ndim, contract[1], batch[1])
    a = as_matrix(left, x, batch[0], left_free, contract[0])
    b = as_matrix(right, y, batch[1], contract[1], right_free)
    if a is None or b is None:
        return None
    return Gemm(
        a,
        b,
        batch=math.prod(left.shape[k] for k in batch[0]),
        m=math.prod(left.shape[k] for k in left_free),
        n=math.prod(right.shape[k] for k in right_free),
        k=math.prod(left.shape[k] for k in contract[0]),
    )
