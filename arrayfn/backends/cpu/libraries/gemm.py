"""Matrix products through BLAS: the native routine behind the ``gemm_*`` providers.

A work item is one tile of the output (``lowering.gemm_tiles``), computed by one
single-threaded call of BLAS: GEMM, or GEMV where the tile is a row or a column.
Row-major ``C = A B`` is column-major ``C^T = B^T A^T``, so the operands are swapped.
BLAS's functions are called by address, with 32-bit integers by reference as in Fortran.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from arrayfn.backends.cpu.libraries.blas import LETTERS, blas
from arrayfn.backends.cpu.libraries.provider import Provider
from arrayfn.backends.cpu.pointer import Pointer
from arrayfn.backends.native import CFunction, cast, local, native, pointer
from arrayfn.backends.native.structures import Array, Inline, Struct, f32, i32, u8
from arrayfn.dtypes import BY_SHORT_NAME, real_of

memset = CFunction[[int, i32, int], int]("memset")

LETTER_N: Final = ord("N")
LETTER_T: Final = ord("T")
LETTER_C: Final = ord("C")


class Multiplier(Struct):
    """BLAS's products of one dtype; ``words`` makes it."""

    gemm: Callable[..., None]
    gemv: Callable[..., None]
    item_bytes: int
    real_bytes: int


class Tiles(Struct):
    """The arguments of ``gemm``: those of ``lowering.libraries.products`` follow."""

    blas: Inline[Multiplier]
    a: int
    b: int
    c: int
    m: int
    n: int
    k: int
    lda: int
    ldb: int
    ldc: int
    transpose_a: int
    transpose_b: int
    batch: int
    batch_stride_a: int
    batch_stride_b: int
    batch_stride_c: int
    tile_m: int
    tile_n: int


class Product(Struct):
    """One product of matrices at addresses: ``c = a b``, m by n, of k terms."""

    blas: Multiplier
    a: int
    b: int
    c: int
    m: int
    n: int
    k: int
    lda: int
    ldb: int
    ldc: int
    transpose_a: int  # 1: transposed; 2: conjugated, too
    transpose_b: int


class Vector(Struct):
    """One product with a vector: ``y = a x``, of ``rows`` by ``columns``, as BLAS sees.

    That is column-major. Elements of vectors are ``step`` apart.
    """

    blas: Multiplier
    transposed: int
    rows: int
    columns: int
    a: int
    lda: int
    x: int
    x_step: int
    y: int
    y_step: int


@native
def letter(transpose: int) -> int:
    """BLAS's name of a transposition."""
    if transpose == 0:
        return LETTER_N
    return LETTER_T if transpose == 1 else LETTER_C


@native
def set_number(memory: Array[float], value: float, real_bytes: int) -> None:
    """Write a real number as one of a dtype, whose imaginary part is zero."""
    memory[0] = 0.0
    memory[1] = 0.0
    if real_bytes == 4:
        cast(Array[f32], memory)[0] = value
    else:
        memory[0] = value


@native
def gemm_tiles_run(tiles: Tiles, begin: int, end: int) -> None:
    """Compute tiles ``begin`` to ``end``."""
    rows = (tiles.m + tiles.tile_m - 1) // tiles.tile_m
    columns = (tiles.n + tiles.tile_n - 1) // tiles.tile_n
    for item in range(begin, end):
        row = (item // columns) % rows * tiles.tile_m
        column = item % columns * tiles.tile_n
        gemm_tile(tiles, item // (rows * columns), row, column)


@native
def gemm_tile(tiles: Tiles, problem: int, row: int, column: int) -> None:
    """Compute the tile at ``row`` and ``column``."""
    size = tiles.blas.item_bytes
    a_offset = row if tiles.transpose_a else row * tiles.lda
    b_offset = column * tiles.ldb if tiles.transpose_b else column
    c_offset = row * tiles.ldc + column
    p = local(Product, 1)[0]
    p.blas = tiles.blas
    p.a = tiles.a + (problem * tiles.batch_stride_a + a_offset) * size
    p.b = tiles.b + (problem * tiles.batch_stride_b + b_offset) * size
    p.c = tiles.c + (problem * tiles.batch_stride_c + c_offset) * size
    p.m = min(tiles.m - row, tiles.tile_m)
    p.n = min(tiles.n - column, tiles.tile_n)
    p.k = tiles.k
    p.lda = tiles.lda
    p.ldb = tiles.ldb
    p.ldc = tiles.ldc
    p.transpose_a = tiles.transpose_a
    p.transpose_b = tiles.transpose_b
    is_plain = tiles.transpose_a < 2 and tiles.transpose_b < 2
    if is_plain and p.n == 1:
        multiply_column(p)
    elif is_plain and p.m == 1:
        multiply_row(p)
    else:
        multiply(p, 0.0)


@native
def multiply(p: Product, beta: float) -> None:
    """One GEMM, added to what is there times ``beta``."""
    leading = local(int, 3)
    leading[0] = max(p.ldb, 1)
    leading[1] = max(p.lda, 1)
    leading[2] = max(p.ldc, 1)
    letters = local(u8, 2)
    letters[0] = letter(p.transpose_b)
    letters[1] = letter(p.transpose_a)
    one = local(float, 2)
    set_number(one, 1.0, p.blas.real_bytes)
    have = local(float, 2)
    set_number(have, beta, p.blas.real_bytes)
    p.blas.gemm(
        letters,
        letters + 1,
        pointer(p.n),
        pointer(p.m),
        pointer(p.k),
        one,
        p.b,
        leading,
        p.a,
        leading + 1,
        have,
        p.c,
        leading + 2,
    )


@native
def multiply_column(p: Product) -> None:
    """A product whose right side is a column."""
    v = local(Vector, 1)[0]
    v.blas = p.blas
    v.transposed = 1 - p.transpose_a
    v.rows = p.m if p.transpose_a else p.k
    v.columns = p.k if p.transpose_a else p.m
    v.a = p.a
    v.lda = p.lda
    v.x = p.b
    v.x_step = 1 if p.transpose_b else p.ldb
    v.y = p.c
    v.y_step = p.ldc
    multiply_vector(v, p.m)


@native
def multiply_row(p: Product) -> None:
    """A product whose left side is a row."""
    v = local(Vector, 1)[0]
    v.blas = p.blas
    v.transposed = p.transpose_b
    v.rows = p.k if p.transpose_b else p.n
    v.columns = p.n if p.transpose_b else p.k
    v.a = p.b
    v.lda = p.ldb
    v.x = p.a
    v.x_step = p.lda if p.transpose_a else 1
    v.y = p.c
    v.y_step = 1
    multiply_vector(v, p.n)


@native
def multiply_vector(v: Vector, length: int) -> None:
    """One GEMV: ``length`` elements of ``y``.

    They are zeroed first, for some versions of BLAS keep a NaN of the old ``y`` where
    ``beta`` is zero, and none writes them where there are no terms.
    """
    size = v.blas.item_bytes
    if v.y_step == 1:
        memset(v.y, 0, length * size)
    else:
        for i in range(length):
            memset(v.y + i * v.y_step * size, 0, size)
    if v.rows == 0 or v.columns == 0:
        return
    letters = local(u8, 1)
    letters[0] = LETTER_T if v.transposed else LETTER_N
    one = local(float, 2)
    set_number(one, 1.0, v.blas.real_bytes)
    v.lda = max(v.lda, v.rows)
    v.x_step = max(v.x_step, 1)
    v.y_step = max(v.y_step, 1)
    v.blas.gemv(
        letters,
        pointer(v.rows),
        pointer(v.columns),
        one,
        v.a,
        pointer(v.lda),
        v.x,
        pointer(v.x_step),
        one,
        v.y,
        pointer(v.y_step),
    )


def words(dtype: str) -> tuple[int, ...]:
    """The ``Multiplier`` of a dtype: GEMM, GEMV, the bytes of an element and a part."""
    letter, library = LETTERS[dtype], blas()
    gemm, gemv = library.address(letter + "gemm"), library.address(letter + "gemv")
    kind = BY_SHORT_NAME[dtype]
    return gemm, gemv, kind.itemsize, real_of(kind).itemsize


def unjitted(given: Mapping[str, Any], items: int) -> None:
    """All tiles at once, as NumPy's product."""
    m, n, k = (int(given[name]) for name in "mnk")
    if not items or not m * n:
        return

    def matrix(name: str, batch: int, rows: int, columns: int) -> Any:
        memory: Pointer = given[name]
        transposed = int(given.get(f"transpose_{name}", 0))
        stored = (columns, rows) if transposed else (rows, columns)
        begin = memory.begin + batch * int(given[f"batch_stride_{name}"])
        strides = (int(given[f"ld{name}"]), 1)
        view = Pointer(memory.memory, begin).array(stored, strides)
        if transposed == 2:
            return view.conj().T
        return view.T if transposed else view

    for batch in range(int(given["batch"])):
        product = matrix("a", batch, m, k) @ matrix("b", batch, k, n)
        matrix("c", batch, m, n)[...] = product


PROVIDERS: Final = {"gemm": Provider(gemm_tiles_run, words, unjitted, uses_blas=True)}
