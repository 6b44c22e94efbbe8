"""Factorizations of large matrices in blocks, so that threads share one of them.

A panel of columns is factored by LAPACK on one thread; what it means for the others is
independent work. Sizes of blocks follow from nothing but the matrix, so the bits do not
depend on the number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from arrayfn import dtypes
from arrayfn.ir import ArrayType, Equation, Var
from arrayfn.lowering.libraries.calls import (
    START,
    LibraryCall,
    Place,
    grain_of,
    place_of,
)
from arrayfn.lowering.libraries.triangular import substitution
from arrayfn.passes.reads import Reads

LEAST: Final = 384  # extent of matrices that are worth several threads each
SVD_LEAST: Final = 64  # and for their singular vectors
EIGH_LEAST: Final = 160  # and of Hermitian ones, for their spectra
# Real symmetric matrices that are made tridiagonal in a cache, and those that are
# decomposed sooner than other threads have begun to help.
CACHED_LEAST: Final = 8
CACHED_MOST: Final = 512
ALONE_MOST: Final = 192
MANY: Final = 16  # matrices of a batch from which they keep all threads busy
CHOLESKY_BLOCK: Final = 128
LU_BLOCK: Final = 64
QR_BLOCK: Final = 64
CHUNK: Final = 128  # rows or columns of an item
# Of each panel of reflections: T, and the triangle of V.
SQUARES: Final = 2
PANEL: Final = 64  # columns of a panel inside LAPACK, at most
INTEGER_BYTES: Final = 4


def is_blocked(type: ArrayType) -> bool:
    """Whether matrices of ``type`` are large and few."""
    return min(type.shape[-2:]) >= LEAST and math.prod(type.shape[:-2]) < MANY


def is_blocked_spectrum(type: ArrayType) -> bool:
    """Whether Hermitian matrices of ``type`` are reduced by us, and not by LAPACK."""
    n = type.shape[-1]
    if n < CACHED_LEAST:
        return False
    return _is_cached(type) or (n >= EIGH_LEAST and math.prod(type.shape[:-2]) < MANY)


def _is_cached(type: ArrayType) -> bool:
    """Whether a matrix is made tridiagonal in a cache, in float64."""
    if type.dtype in dtypes.COMPLEX:
        return False
    # Wide ones of float32 are read faster as they are.
    return type.shape[-1] * 8 <= CACHED_MOST * type.dtype.itemsize


def _suffix(type: ArrayType) -> str:
    return dtypes.short_name(type.dtype)


def cholesky(equation: Equation) -> Iterable[LibraryCall]:
    """A block of the diagonal; the panel below it; what is right of that, in tiles."""
    output = equation.outputs[0]
    type = output.type
    n = type.shape[-1]
    count = math.prod(type.shape[:-2])
    for k in range(0, n, CHOLESKY_BLOCK):
        width = min(CHOLESKY_BLOCK, n - k)
        corner = Place(output, k * n + k)
        yield factor(corner, width, n, count, whole=False)
        rest = n - k - width
        if not rest:
            break
        panel = Place(output, (k + width) * n + k)
        yield substitution(
            corner,
            panel,
            rows=rest,
            columns=width,
            chunk=CHUNK // 2,
            count=count,
            left=False,
            lower=True,
            transpose=1 + (type.dtype in dtypes.COMPLEX),
            leading=(n, n),
            strides=(n * n, n * n),
        )
        tiles = -(-rest // CHUNK)
        yield LibraryCall(
            provider=f"potrf_update_{_suffix(type)}",
            reads={"panel": panel},
            writes={"a": Place(output, (k + width) * (n + 1))},
            integers={
                "n": rest,
                "width": width,
                "leading": n,
                "stride": n * n,
                "tile": CHUNK,
            },
            items=count * tiles * (tiles + 1) // 2,
            grain=grain_of(CHUNK * CHUNK * width),
            library="BLAS",
        )
    rows = min(CHUNK, n)
    yield LibraryCall(
        provider=f"potrf_finish_{_suffix(type)}",
        reads={},
        writes={"a": Place(output)},
        integers={"n": n, "rows": rows},
        items=count * -(-n // rows),
        grain=grain_of(rows * n),
    )


def factor(
    place: Place, n: int, leading: int, count: int, *, whole: bool
) -> LibraryCall:
    """potrf of matrices, ``leading`` elements between rows, n of which are factored.

    ``whole``: also write zeros above the diagonal, and NaN everywhere if it fails; else
    NaN into what was to be factored.
    """
    type = place.array.type
    return LibraryCall(
        provider=f"potrf_{_suffix(type)}",
        reads={},
        writes={"a": place},
        integers={
            "n": n,
            "leading": leading,
            "stride": math.prod(type.shape[-2:]),
            "whole": int(whole),
        },
        items=count if n else 0,
        grain=grain_of(n * n * (n / 6 + START) + START),
        library="LAPACK",
    )


def lu(equation: Equation) -> Iterable[LibraryCall]:
    """A panel of columns, then the others in chunks: swapped, solved, and updated.

    The first item of an update is the next panel, which it also factors.
    """
    factors, pivots, permutation = equation.outputs
    type = factors.type
    columns, rows = type.shape[-2:]
    k = min(rows, columns)
    count = math.prod(type.shape[:-2])
    suffix = _suffix(type)
    extents = {"rows": rows, "columns": columns}
    written = {"a": Place(factors), "pivots": Place(pivots)}
    yield LibraryCall(
        provider=f"getrf_panel_{suffix}",
        reads={},
        writes=written,
        integers={**extents, "start": 0, "width": min(LU_BLOCK, k)},
        items=count,
        library="LAPACK",
    )
    for start in range(0, k, LU_BLOCK):
        width = min(LU_BLOCK, k - start)
        stop = start + width
        following = min(LU_BLOCK, k - stop)
        each = (following > 0) - (-(columns - stop - following) // CHUNK)
        if not each:
            break
        block = {"start": start, "width": width, "next": following, "chunk": CHUNK}
        yield LibraryCall(
            provider=f"getrf_update_{suffix}",
            reads={},
            writes=written,
            integers={**extents, **block, "each": each},
            items=count * each,
            library="LAPACK",
        )
    if k > LU_BLOCK:
        yield LibraryCall(
            provider=f"getrf_left_{suffix}",
            reads={},
            writes=written,
            integers={**extents, "block": LU_BLOCK},
            items=count * ((k - 1) // LU_BLOCK),
            library="LAPACK",
        )
    yield LibraryCall(
        provider=f"getrf_finish_{suffix}",
        reads={},
        writes={"pivots": Place(pivots), "permutation": Place(permutation)},
        integers=extents,
        items=count,
    )


def qr(equation: Equation, reads: Reads) -> Iterable[LibraryCall]:
    """A panel of reflections, then the other columns in chunks; Q in chunks at last.

    The reflections are kept in a copy of the operand, with the triangular factors of
    the panels beside them.
    """
    q, r = equation.outputs
    x = equation.inputs[0].type
    rows, columns = x.shape[-2:]
    k, inner = min(rows, columns), q.type.shape[-1]
    count = math.prod(x.shape[:-2])
    suffix = _suffix(x)
    copy = Var(ArrayType(x.shape, x.dtype))
    panels = -(-k // QR_BLOCK)
    triangles = Var(ArrayType((count, panels, SQUARES, QR_BLOCK, QR_BLOCK), x.dtype))
    extents = {"rows": rows, "columns": columns, "inner": inner, "block": QR_BLOCK}
    work = {"work": 2 * QR_BLOCK * CHUNK * x.dtype.itemsize}
    yield LibraryCall(
        provider=f"copy_{suffix}",
        reads={"x": place_of(equation.inputs[0], reads)},
        writes={"y": Place(copy)},
        integers={"elements": columns},
        items=count * rows,
        grain=grain_of(columns),
    )
    for start in range(0, k, QR_BLOCK):
        width = min(QR_BLOCK, k - start)
        block = {**extents, "start": start, "width": width}
        size = x.dtype.itemsize
        words = QR_BLOCK * QR_BLOCK
        yield LibraryCall(
            provider=f"gelqf_panel_{suffix}",
            reads={},
            writes={"a": Place(copy), "t": Place(triangles)},
            scratch={"tau": QR_BLOCK * size, "work": words * size},
            integers={**block, "words": words},
            items=count,
            library="LAPACK",
        )
        rest = columns - start - width
        if rest:
            yield LibraryCall(
                provider=f"gelqf_update_{suffix}",
                reads={"t": Place(triangles)},
                writes={"a": Place(copy)},
                scratch=work,
                integers={**block, "chunk": CHUNK},
                items=count * -(-rest // CHUNK),
                library="LAPACK",
            )
    yield LibraryCall(
        provider=f"gelqf_finish_{suffix}",
        reads={"a": Place(copy), "t": Place(triangles)},
        writes={"q": Place(q), "r": Place(r)},
        scratch=work,
        integers={**extents, "chunk": CHUNK},
        items=count * -(-inner // CHUNK),
        library="LAPACK",
    )


def eigh(equation: Equation) -> Iterable[LibraryCall]:
    """A tridiagonal matrix, decomposed; its eigenvectors in chunks."""
    vectors, values = equation.outputs
    type = vectors.type
    n = type.shape[-1]
    count = math.prod(type.shape[:-2])
    suffix = _suffix(type)
    size, real = type.dtype.itemsize, dtypes.real_of(type.dtype).itemsize
    reflections = Var(type)
    block = _reflections(n)
    panels = -(-(n - 1) // block)
    triangles = Var(ArrayType((count, panels, SQUARES, block, block), type.dtype))
    words = 3 * PANEL * n
    chunk = CHUNK if n >= 4 * CHUNK else CHUNK // 2
    cached = _is_cached(type)
    yield LibraryCall(
        provider=f"sytrd_{suffix}",
        reads={},
        writes={
            "a": Place(vectors),
            "w": Place(values),
            "reflections": Place(reflections),
            "t": Place(triangles),
        },
        scratch={
            "sides": n * real,
            "tau": n * size,
            "work": words * size,
            "small": n * n * real,
            "real_work": max(2 * n * (n + 2) * real, _in_lines(n)),
            "integer_work": 9 * n * INTEGER_BYTES,
        },
        integers={
            "n": n,
            "block": block,
            "words": words,
            "cached": int(cached),
            "alone": int(n <= ALONE_MOST),
        },
        items=count,
        grain=grain_of(5 * n**3),
        library="LAPACK",
    )
    yield LibraryCall(
        provider=f"larfb_eigh_{suffix}",
        reads={"reflections": Place(reflections), "t": Place(triangles)},
        writes={"a": Place(vectors)},
        scratch={"work": 2 * block * chunk * size},
        integers={"n": n, "block": block, "chunk": chunk},
        items=count * -(-n // chunk),
        grain=grain_of(chunk * n * n),
        library="LAPACK",
    )


def _reflections(n: int) -> int:
    """How many are applied at once: of few columns more are lost to triangles."""
    return QR_BLOCK if n >= LEAST else QR_BLOCK // 2


def _in_lines(n: int) -> int:
    """Bytes of a square of f64 whose rows are whole lines, and of some more."""
    whole = -(-n // 8) * 8
    return 8 * whole * (whole + 7)


def eigvalsh(equation: Equation, reads: Reads) -> Iterable[LibraryCall]:
    """A tridiagonal matrix, of a copy, and its eigenvalues."""
    x, values = equation.inputs[0].type, equation.outputs[0]
    n = x.shape[-1]
    size, real = x.dtype.itemsize, dtypes.real_of(x.dtype).itemsize
    words = 3 * PANEL * n
    cached = _is_cached(x)
    yield LibraryCall(
        provider=f"sytrd_values_{_suffix(x)}",
        reads={"x": place_of(equation.inputs[0], reads)},
        writes={"w": Place(values)},
        # Without vectors nothing is kept of reflections but their scales.
        scratch={
            "reflections": n * n * size,
            "t": 0,
            "sides": n * real,
            "tau": n * size,
            "work": words * size,
            "small": 0,
            "real_work": _in_lines(n) if cached else n * max(real, 8),
            "integer_work": 0,
        },
        integers={
            "n": n,
            "block": QR_BLOCK,
            "words": words,
            "cached": int(cached),
            "alone": int(n <= ALONE_MOST),
        },
        items=math.prod(x.shape[:-2]),
        grain=grain_of(2 * n**3),
        library="LAPACK",
    )


def is_blocked_svd(type: ArrayType) -> bool:
    """Whether LAPACK would make such matrices bidiagonal as they are, and blocks pay.

    Matrices that are much longer one way have QR factors first.
    """
    small, large = sorted(type.shape[-2:])
    few = math.prod(type.shape[:-2]) < MANY
    return small >= SVD_LEAST and few and large * 6 < small * 11


def svd(equation: Equation, reads: Reads) -> Iterable[LibraryCall]:
    """A bidiagonal matrix, decomposed; its singular vectors in chunks."""
    u, s, vh = equation.outputs
    x = equation.inputs[0].type
    columns, rows = x.shape[-2:]
    k = min(rows, columns)
    count = math.prod(x.shape[:-2])
    suffix = _suffix(x)
    size, real = x.dtype.itemsize, dtypes.real_of(x.dtype).itemsize
    reflections = Var(ArrayType(x.shape, x.dtype))
    block = _reflections(k)
    panels = -(-k // block)
    triangles = Var(ArrayType((count, 2, panels, SQUARES, block, block), x.dtype))
    extents = {
        "rows": rows,
        "columns": columns,
        "u_columns": u.type.shape[-2],
        "vh_rows": vh.type.shape[-1],
        "block": block,
    }
    words = PANEL * (rows + columns)
    yield LibraryCall(
        provider=f"gebrd_{suffix}",
        reads={"x": place_of(equation.inputs[0], reads)},
        writes={
            "u": Place(u),
            "s": Place(s),
            "vh": Place(vh),
            "reflections": Place(reflections),
            "t": Place(triangles),
        },
        scratch={
            "sides": k * real,
            "tau": 2 * k * size,
            "small_u": k * k * real,
            "small_vh": k * k * real,
            "work": max(words * size, 4 * k * (k + 5) * real),
            "integer_work": 9 * k * INTEGER_BYTES,
        },
        integers={**extents, "words": words},
        items=count,
        library="LAPACK",
    )
    yield LibraryCall(
        provider=f"larfb_svd_{suffix}",
        reads={"reflections": Place(reflections), "t": Place(triangles)},
        writes={"u": Place(u), "vh": Place(vh)},
        scratch={"work": 2 * block * CHUNK * size},
        integers={**extents, "chunk": CHUNK},
        items=count
        * (-(-extents["u_columns"] // CHUNK) - (-extents["vh_rows"] // CHUNK)),
        library="LAPACK",
    )
