"""Triangular systems: BLAS's trsm over row-major right-hand sides, in place.

Column-major ``op(A) X = B`` is ``X^T op(A)^T = B^T``: the other side, and the other
triangle. A work item is a chunk of one matrix's right-hand sides. A single one is
trsv's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from arrayfn.backends.cpu.libraries.blas import constant
from arrayfn.backends.cpu.libraries.foreign import Array, Constant, Real, fortran
from arrayfn.backends.cpu.libraries.linear_algebra.matrices import (
    CONJUGATE,
    LEFT,
    LOWER,
    NONE,
    RIGHT,
    TRANSPOSED,
    UNIT,
    UPPER,
    addresses,
    parts_of,
)
from arrayfn.backends.cpu.libraries.provider import Provider
from arrayfn.lowering.scalars import max_i64, min_i64


def triangular_solve(
    trsm: int,
    trsv: int,
    one: Array[Real],
    parts: Constant,
    a: Array[Real],
    b: Array[Real],
    rows: int,
    columns: int,
    lower: int,
    transpose: int,
    unit: int,
    left: int,
    chunk: int,
    chunks: int,
    begin: int,
    end: int,
) -> None:
    """Solve triangular systems ``op(A) X = B``, or ``X op(A) = B``; X replaces B.

    The matrices ``b`` are ``rows`` x ``columns``; ``a`` are square. ``left`` is 1 for
    ``op(A) X``, 0 for ``X op(A)``. ``lower`` is 1 if A is lower triangular, ``unit`` if
    its diagonal is ones. ``transpose`` is 0, 1, or 2 for the conjugate transpose.

    A work item is ``chunk`` right-hand sides of one system: columns of B, or rows if
    ``left`` is 0. A system has ``chunks`` items; items ``begin`` to ``end`` are
    computed. ``trsm`` and ``trsv`` are BLAS's functions, ``one`` points to 1. An
    element is ``parts`` numbers, 2 if complex.
    """
    n = rows if left != 0 else columns
    # BLAS reads row-major matrices as their transposes: a lower triangle as an upper
    # one, and ``op(A) X`` as ``X^T op(A)^T``, with A on the right.
    triangle = UPPER if lower != 0 else LOWER
    diagonal = UNIT if unit != 0 else NONE
    if left != 0 and columns == 1 and transpose < 2:
        # A is read as its transpose, so the conjugate transpose (2) would be the
        # conjugate, an option that trsv does not have.
        option = NONE if transpose != 0 else TRANSPOSED
        for item in range(begin, end):
            matrix, side = a + item * n * n * parts, b + item * n * parts
            fortran(trsv, triangle, option, diagonal, n, matrix, n, side, 1)
    else:
        option = NONE
        if transpose == 1:
            option = TRANSPOSED
        if transpose == 2:
            option = CONJUGATE
        # Leading rows of zeros stay zeros if substitution begins with them and the
        # diagonal is ones: they are skipped.
        forward = (lower != 0) == (transpose == 0)
        skips = left != 0 and forward and unit != 0
        for item in range(begin, end):
            # The number of the system, and the chunk's first right-hand side.
            problem, first = item // chunks, item % chunks * chunk
            matrix, sides = (
                a + problem * n * n * parts,
                b + problem * rows * columns * parts,
            )
            leading = max_i64(columns, 1)
            if left != 0:
                width = min_i64(columns - first, chunk)
                sides = sides + first * parts
                skipped = 0
                if skips:
                    skipped = zero_rows(sides, rows, columns * parts, width * parts)
                # From the diagonal element (skipped, skipped) on.
                matrix = matrix + skipped * (n + 1) * parts
                sides = sides + skipped * columns * parts
                fortran(
                    trsm, RIGHT, triangle, option, diagonal, width, rows - skipped,
                    one, matrix, n, sides, leading,
                )  # fmt: skip
            else:
                height = min_i64(rows - first, chunk)
                sides = sides + first * columns * parts
                fortran(
                    trsm, LEFT, triangle, option, diagonal, columns, height, one,
                    matrix, n, sides, leading,
                )  # fmt: skip


def zero_rows(b: Array[Any], rows: int, step: int, width: int) -> int:
    """Return how many of the ``rows`` rows of ``b`` are zeros, before the first other.

    A row has ``width`` numbers; rows are ``step`` numbers apart.
    """
    for row in range(rows):
        for k in range(width):
            if float(b[row * step + k]) != 0.0:
                return row
    return rows


def leading_arguments(dtype: str) -> tuple[int, ...]:
    """Return the first arguments of ``triangular_solve``, up to ``parts``.

    They are the addresses of BLAS's trsm and trsv and of the number 1, and ``parts``.
    """
    functions = addresses(dtype, "trsm", "trsv")
    return *functions, constant(dtype, 1), parts_of(dtype)


def unjitted(arguments: Mapping[str, Any], items: int) -> None:
    """Solve all systems by NumPy; ``arguments`` has the arguments by name.

    The solutions replace ``b``. A system is A X = B if ``left``, else X A = B. Each
    system has ``chunks`` of the ``items``.
    """
    if not items:
        return
    rows, columns = int(arguments["rows"]), int(arguments["columns"])
    left = bool(arguments.get("left", 1))
    n = rows if left else columns
    batch = items // int(arguments.get("chunks", 1))
    a = arguments["a"].array((batch, n, n))
    b = arguments["b"].array((batch, rows, columns))
    unit = bool(arguments["unit"])
    for matrix, sides in zip(a, b, strict=True):
        triangle = np.tril(matrix) if arguments["lower"] else np.triu(matrix)
        if unit:
            np.fill_diagonal(triangle, 1)
        if arguments["transpose"]:
            triangle = triangle.T
        if arguments["transpose"] == 2:  # conjugate transpose
            triangle = triangle.conj()
        if left:
            sides[...] = np.linalg.solve(triangle, sides)
        else:
            sides[...] = np.linalg.solve(triangle.T, sides.T).T


PROVIDERS: Final = {
    "trsm": Provider(triangular_solve, leading_arguments, unjitted, uses_blas=True)
}
