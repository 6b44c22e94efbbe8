"""Matrix products by BLAS.

A work item is one tile of the output (``lowering.gemm_tiles``), computed by one
single-threaded call of BLAS: GEMM, or GEMV where the tile is a row or a column.
Row-major ``C = A B`` is column-major ``C^T = B^T A^T``, so the operands are swapped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from arrayfn.backends.cpu.libraries.blas import constant
from arrayfn.backends.cpu.libraries.foreign import Array, Constant, Real, fortran
from arrayfn.backends.cpu.libraries.linear_algebra.matrices import (
    CONJUGATE,
    NONE,
    TRANSPOSED,
    addresses,
    parts_of,
)
from arrayfn.backends.cpu.libraries.provider import Provider
from arrayfn.backends.cpu.pointer import Pointer
from arrayfn.lowering.scalars import max_i64, min_i64


def gemm_tiles(
    gemm: int,
    gemv: int,
    one: Array[Real],
    zero: Array[Real],
    parts: Constant,
    a: Array[Real],
    b: Array[Real],
    c: Array[Real],
    m: int,
    n: int,
    k: int,
    lda: int,
    ldb: int,
    ldc: int,
    transpose_a: int,
    transpose_b: int,
    batch: int,
    batch_stride_a: int,
    batch_stride_b: int,
    batch_stride_c: int,
    tile_m: int,
    tile_n: int,
    begin: int,
    end: int,
) -> None:
    """Compute tiles of ``c = a b``, for each of ``batch`` matrices.

    A work item is a tile of ``tile_m`` rows and ``tile_n`` columns of one result; items
    ``begin`` to ``end`` are computed. A tile of one row or column is a GEMV, unless an
    operand is conjugated.

    The matrices are row-major: ``c`` is m x n with rows ``ldc`` elements apart, and
    likewise ``a`` (m x k) and ``b`` (k x n). ``transpose_a`` and ``transpose_b`` are as
    in ``option``. The matrices of a batch are ``batch_stride_a``, ``batch_stride_b``
    and ``batch_stride_c`` elements apart. An element is ``parts`` numbers, 2 if
    complex. ``gemm`` and ``gemv`` are the addresses of BLAS's functions, ``one`` and
    ``zero`` point to these numbers.
    """
    rows = (m + tile_m - 1) // tile_m
    columns = (n + tile_n - 1) // tile_n
    is_plain = transpose_a < 2 and transpose_b < 2
    for item in range(begin, end):
        # Items are numbered by matrix, row of tiles and column of tiles. ``row`` and
        # ``column`` are the tile's first row and column, ``own_...`` what it has of
        # each matrix.
        problem = item // (rows * columns)
        row = item // columns % rows * tile_m
        column = item % columns * tile_n
        a_offset = row if transpose_a != 0 else row * lda
        b_offset = column * ldb if transpose_b != 0 else column
        own_a = a + (problem * batch_stride_a + a_offset) * parts
        own_b = b + (problem * batch_stride_b + b_offset) * parts
        own_c = c + (problem * batch_stride_c + row * ldc + column) * parts
        own_m, own_n = min_i64(m - row, tile_m), min_i64(n - column, tile_n)
        is_column = own_n == 1
        if is_plain and (is_column or own_m == 1):
            # A row of c is b.T times a row of a; a column is a times a column of b.
            matrix, vector = own_b, own_a
            transposed, length = transpose_b, own_n
            leading, y_step = ldb, 1
            x_step = lda if transpose_a != 0 else 1
            if is_column:
                matrix, vector = own_a, own_b
                transposed, length = 1 - transpose_a, own_m
                leading, y_step = lda, ldc
                x_step = 1 if transpose_b != 0 else ldb
            multiply_vector(
                gemv, one, parts, transposed, length, k, matrix, leading, vector,
                x_step, own_c, y_step,
            )  # fmt: skip
        else:
            multiply(
                gemm, one, zero, own_a, own_b, own_c, own_m, own_n, k, lda, ldb, ldc,
                transpose_a, transpose_b,
            )  # fmt: skip


def multiply(
    gemm: int,
    one: Array[Any],
    beta: Array[Any],
    a: Array[Any],
    b: Array[Any],
    c: Array[Any],
    m: int,
    n: int,
    k: int,
    lda: int,
    ldb: int,
    ldc: int,
    transpose_a: int,
    transpose_b: int,
) -> None:
    """Call GEMM for row-major matrices: ``c = a b + beta c``.

    ``gemm`` is the address of BLAS's function; ``one`` and ``beta`` point to numbers.
    ``c`` is m x n, ``a`` m x k and ``b`` k x n. ``lda``, ``ldb`` and ``ldc`` are the
    elements from row to row; ``transpose_a`` and ``transpose_b`` are as in ``option``.
    The operands are swapped, because BLAS's matrices are column-major.
    """
    fortran(
        gemm, option(transpose_b), option(transpose_a), n, m, k, one, b,
        max_i64(ldb, 1), a, max_i64(lda, 1), beta, c, max_i64(ldc, 1),
    )  # fmt: skip


def option(transpose: int) -> int:
    """Return BLAS's letter for ``transpose``.

    0 is no transpose, 1 the transpose, 2 the conjugate transpose.
    """
    if transpose == 0:
        return NONE
    return TRANSPOSED if transpose == 1 else CONJUGATE


def multiply_vector(
    gemv: int,
    one: Array[Any],
    parts: int,
    transposed: int,
    length: int,
    terms: int,
    a: Array[Any],
    lda: int,
    x: Array[Any],
    x_step: int,
    y: Array[Any],
    y_step: int,
) -> None:
    """Call GEMV: ``y = a x``, or ``y = a.T x`` if ``transposed`` is not 0.

    ``y`` has ``length`` elements, each a sum of ``terms`` products. ``a`` is
    column-major; its columns are ``lda`` elements apart. ``x_step`` and ``y_step`` are
    the elements from one element of ``x`` and ``y`` to the next. An element is
    ``parts`` numbers, 2 if complex. ``gemv`` is the address of BLAS's function, ``one``
    points to 1.

    ``y`` is set to 0 and then added to: some versions of BLAS keep a NaN of the old
    ``y`` if ``beta`` is zero, and none writes ``y`` if there are no terms.
    """
    rows = terms if transposed != 0 else length
    columns = length if transposed != 0 else terms
    for row in range(length):
        for part in range(parts):
            y[row * y_step * parts + part] = 0.0
    if length > 0 and terms > 0:
        fortran(
            gemv, option(transposed), rows, columns, one, a, max_i64(lda, rows), x,
            max_i64(x_step, 1), one, y, max_i64(y_step, 1),
        )  # fmt: skip


def leading_arguments(dtype: str) -> tuple[int, ...]:
    """Return the first arguments of ``gemm_tiles`` for ``dtype``, such as "f32".

    They are GEMM, GEMV, the addresses of 1 and 0, and the numbers of an element.
    """
    gemm, gemv = addresses(dtype, "gemm", "gemv")
    return gemm, gemv, constant(dtype, 1), constant(dtype, 0), parts_of(dtype)


def unjitted(arguments: Mapping[str, Any], items: int) -> None:
    """Compute all tiles by one NumPy product for each matrix of the batch."""
    m, n, k = (int(arguments[name]) for name in "mnk")
    if not items or not m * n:
        return

    def matrix(name: str, batch: int, rows: int, columns: int) -> Any:
        """Return matrix ``name`` ("a", "b" or "c") number ``batch`` of the batch.

        It is ``rows`` x ``columns`` after it was transposed as its parameter says.
        """
        memory: Pointer = arguments[name]
        transposed = int(arguments.get(f"transpose_{name}", 0))
        stored = (columns, rows) if transposed else (rows, columns)
        begin = memory.begin + batch * int(arguments[f"batch_stride_{name}"])
        strides = (int(arguments[f"ld{name}"]), 1)
        view = Pointer(memory.memory, begin).array(stored, strides)
        if transposed == 2:
            return view.conj().T
        return view.T if transposed else view

    for batch in range(int(arguments["batch"])):
        product = matrix("a", batch, m, k) @ matrix("b", batch, k, n)
        matrix("c", batch, m, n)[...] = product


PROVIDERS: Final = {
    "gemm": Provider(gemm_tiles, leading_arguments, unjitted, uses_blas=True)
}
