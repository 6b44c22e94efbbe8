"""Lowers triangular systems: to cuBLAS, or to a kernel if there are few sides.

A batch of small matrices is one call of cuBLAS, in their own layouts. For larger ones
cuBLAS is by far the fastest with a lower triangle by columns whose right-hand sides are
also columns. So a matrix and its sides are transposed to that form; an upper triangle
is a lower one from its last row to its first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from arrayfn import dtypes
from arrayfn.dtypes import short_name
from arrayfn.ir import ArrayType, Var
from arrayfn.lowering.cuda.handwritten import Lowered
from arrayfn.lowering.cuda.solvers.matrix_nests import (
    MatrixEquation,
    StridedArray,
    backward,
    matrices_of,
    transposed,
)
from arrayfn.lowering.cuda.solvers.substitution import is_substituted, substituted
from arrayfn.lowering.libraries.calls import LibraryCall, Pointer
from arrayfn.records import frozen

BATCHED: Final = 256
"""Rows and sides of the largest systems for which a batch is one call."""


@frozen(slots=True)
class System:
    """The system ``op(a) @ x = b``, or ``x @ op(a) = b`` unless ``left``.

    Args:
        left: Whether ``a`` is on the left of the unknowns.
        lower: Whether ``a`` is a lower triangle.
        transpose: Whether ``op`` transposes.
        conjugate: Whether ``op`` also conjugates.
        unit: Whether the diagonal of ``a`` is 1, and is not read.
    """

    left: bool
    lower: bool
    transpose: bool = False
    conjugate: bool = False
    unit: bool = False


def solved(op: MatrixEquation, a: Pointer, b: Var, system: System) -> Iterable[Lowered]:
    """Return the steps that solve ``system`` in place: ``b`` becomes x.

    ``a`` is the triangle, ``b`` is [..., rows, columns]; ``op`` builds the nests around
    calls. A batch of small matrices is one call of cuBLAS; others are solved by
    columns.
    """
    rows, columns = b.type.shape[-2:]
    matrices = math.prod(b.type.shape[:-2])
    if matrices > 1 and max(rows, columns) <= BATCHED:
        integers = {
            "rows": rows,
            "columns": columns,
            "left": int(system.left),
            "lower": int(system.lower),
            "transpose": int(system.transpose) + int(system.conjugate),
        }
        return (_call("trsmbatched", a, b, system, integers),)
    return _by_columns(op, a, b, system)


def _by_columns(
    op: MatrixEquation, a: Pointer, b: Var, system: System
) -> Iterable[Lowered]:
    """Yield the steps for large systems, by columns; parameters are as in ``solved``.

    A kernel solves systems with few right-hand sides. For cuBLAS, nests bring the
    triangle and the sides into the form that it is fast with, unless they have it, and
    the answers back.
    """
    left, dtype = system.left, b.type.dtype
    matrices = math.prod(b.type.shape[:-2])
    # The unknowns of one side are a column of b or, on the right, a row.
    n, sides = b.type.shape[-2:] if left else b.type.shape[:-3:-1]
    # x @ op(a) = b is op(a).T @ x.T = b.T. So the matrix on the left of the unknowns is
    # ``a`` or its transpose.
    is_transpose = left == system.transpose
    is_lower = system.lower != is_transpose
    matrix = StridedArray(a.array, dtype, (n * n, n, 1), a.offset)
    matrix = transposed(matrix) if is_transpose else matrix
    sides_of_b = matrices_of(b)
    answers = sides_of_b if left else transposed(sides_of_b)
    if not is_lower:
        # An upper triangle is a lower one from the last row and column on.
        matrix = backward(backward(matrix, n, 1), n, 2)
        answers = backward(answers, n, 1)
    if is_substituted(dtype, n, sides):
        yield substituted(matrix, answers, b, n, sides, unit=system.unit)
        return
    # The memory of ``a`` is a transposed matrix by columns, so that needs no copy.
    conjugate = system.conjugate and dtype in dtypes.COMPLEX
    if conjugate or not (is_transpose and is_lower):
        copy = Var(ArrayType((matrices, n, n), dtype))
        a = Pointer(copy)
        target = transposed(matrices_of(copy))
        reason = "a lower triangle by columns"
        yield op.moved(matrix, target, (matrices, n, n), reason, conjugate=conjugate)
    integers = {"n": n, "sides": sides}
    if is_lower and not left:
        yield _call("trsm", a, b, system, integers)
        return
    copy = Var(ArrayType((matrices, sides, n), dtype))
    columns = transposed(matrices_of(copy))
    extents = matrices, n, sides
    yield op.moved(answers, columns, extents, "sides by columns")
    yield _call("trsm", a, copy, system, integers)
    yield op.moved(columns, answers, extents, "sides as they lay")


def _call(
    form: str, a: Pointer, b: Var, system: System, integers: dict[str, int]
) -> LibraryCall:
    """Return the call of cuBLAS's ``form`` for the systems of ``b``, which becomes x.

    ``a`` are the triangles, ``system`` says their kind, ``integers`` their sizes.
    """
    matrices = math.prod(b.type.shape[:-2])
    return LibraryCall(
        provider=f"{form}_{short_name(b.type.dtype)}",
        reads={"a": a},
        writes={"b": Pointer(b)},
        integers={**integers, "matrices": matrices, "unit": int(system.unit)},
        items=1,
        library="cuBLAS",
    )
