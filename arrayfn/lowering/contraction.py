"""dot_general as a library GEMM: its axes grouped into batch, rows, columns, contracted.

Each operand must read as a matrix with one unit stride for each index of the batch
axes. What does not is copied by a ``relayout``, which the layout pass makes visible.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from arrayfn.ir import ArrayType, Equation, Var
from arrayfn.lowering.gemm_tiles import PROVIDERS
from arrayfn.passes.reads import Read
from arrayfn.primitives.contraction import free_axes


@dataclass(frozen=True, slots=True)
class Matrix:
    """One operand as BLAS sees it: stored ``rows`` apart by ``leading`` elements.

    ``transposed`` says that the stored rows run along the contracted or column axis.
    """

    base: Var
    offset: int
    leading: int
    transposed: bool
    batch_stride: int


@dataclass(frozen=True, slots=True)
class Gemm:
    """``c[batch, m, n] = a[batch, m, k] @ b[batch, k, n]``."""

    a: Matrix
    b: Matrix
    batch: int
    m: int
    n: int
    k: int


def as_gemm(equation: Equation, x: Read, y: Read) -> Gemm | None:
    """``equation`` as one batched GEMM on its operands as they lie, if it is one."""
    left, right = (a.type for a in equation.inputs)
    if left.dtype not in PROVIDERS:
        return None
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


def as_matrix(
    type: ArrayType,
    read: Read,
    batch: Sequence[int],
    rows: Sequence[int],
    columns: Sequence[int],
) -> Matrix | None:
    """The operand as a (batched) matrix of ``rows`` by ``columns``, if it lies so."""
    base = read.base.type
    base_strides = base.layout.strides(base.shape)
    strides = read.strides(base_strides, type.ndim)

    def merged(axes: Sequence[int]) -> tuple[int, int] | None:
        """Extent and stride of ``axes`` taken as one; None if they do not merge."""
        extent, stride = 1, 0
        for axis in reversed(axes):
            n = type.shape[axis]
            if n == 1:
                continue
            if extent == 1:
                extent, stride = n, strides[axis]
            elif strides[axis] == extent * stride:
                extent *= n
            else:
                return None
        return extent, stride

    groups = [merged(batch), merged(rows), merged(columns)]
    if any(g is None for g in groups):
        return None
    (_, batch_stride), (m, row_stride), (k, column_stride) = groups  # type: ignore[misc]
    if batch_stride < 0 or row_stride < 0 or column_stride < 0:
        return None
    offset = read.offset(base_strides)
    if (column_stride == 1 or k == 1) and (row_stride >= k or m == 1):
        leading = row_stride if m > 1 else max(k, 1)
        return Matrix(read.base, offset, max(leading, 1), False, batch_stride)
    if (row_stride == 1 or m == 1) and (column_stride >= m or k == 1):
        leading = column_stride if k > 1 else max(m, 1)
        return Matrix(read.base, offset, max(leading, 1), True, batch_stride)
    return None
