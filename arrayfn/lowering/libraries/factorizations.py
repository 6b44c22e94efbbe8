"""Factorizations of matrices by LAPACK. A work item is one matrix of a batch.

Scratch memory is what LAPACK's manual says of each function's workspace, with blocks
of ``BLOCK`` columns where it says that more is faster.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from arrayfn import dtypes
from arrayfn.ir import ArrayType, Equation
from arrayfn.lowering.libraries import blocked
from arrayfn.lowering.libraries.blocked import INTEGER_BYTES
from arrayfn.lowering.libraries.calls import (
    START,
    LibraryCall,
    Place,
    grain_of,
    place_of,
)
from arrayfn.passes.reads import Reads

BLOCK: Final = 64


def _provider(name: str, type: ArrayType) -> str:
    return f"{name}_{dtypes.short_name(type.dtype)}"


def _count(type: ArrayType) -> int:
    return math.prod(type.shape[:-2])


def cholesky(equation: Equation, reads: Reads) -> Iterable[LibraryCall]:
    """potrf over the operand. Its lower triangle is, by columns, an upper one."""
    output = equation.outputs[0]
    if blocked.is_blocked(output.type):
        yield from blocked.cholesky(equation)
        return
    n = output.type.shape[-1]
    yield blocked.factor(Place(output), n, n, _count(output.type), whole=True)


def lu(equation: Equation, reads: Reads) -> Iterable[LibraryCall]:
    """getrf over the operand, which lies by columns."""
    factors, pivots, permutation = equation.outputs
    if blocked.is_blocked(factors.type):
        yield from blocked.lu(equation)
        return
    columns, rows = factors.type.shape[-2:]
    yield LibraryCall(
        provider=_provider("getrf", factors.type),
        reads={},
        writes={
            "a": Place(factors),
            "pivots": Place(pivots),
            "permutation": Place(permutation),
        },
        integers={"rows": rows, "columns": columns},
        items=_count(factors.type),
        grain=grain_of(rows * columns * (min(rows, columns) / 2 + START) + START),
        library="LAPACK",
    )


def pivots_to_permutation(equation: Equation, reads: Reads) -> Iterable[LibraryCall]:
    """As after getrf, from pivots alone."""
    pivots, order = equation.inputs[0].type, equation.outputs[0]
    yield LibraryCall(
        provider=_provider("pivots_to_permutation", pivots),
        reads={"pivots": place_of(equation.inputs[0], reads)},
        writes={"permutation": Place(order)},
        integers={"rows": order.type.shape[-1], "count": pivots.shape[-1]},
        items=math.prod(pivots.shape[:-1]),
        grain=grain_of(4 * order.type.shape[-1]),
    )


def qr(equation: Equation, reads: Reads) -> Iterable[LibraryCall]:
    """gelqf and orglq: by columns, the transposed matrix is L Q."""
    q, r = equation.outputs
    x = equation.inputs[0].type
    if blocked.is_blocked(x):
        yield from blocked.qr(equation, reads)
        return
    rows, columns = x.shape[-2:]
    inner = q.type.shape[-1]
    size = x.dtype.itemsize
    words = BLOCK * max(columns, inner, 1)
    yield LibraryCall(
        provider=_provider("gelqf", x),
        reads={"x": place_of(equation.inputs[0], reads)},
        writes={"q": Place(q), "r": Place(r)},
        scratch={
            "a": rows * columns * size,
            "tau": max(1, min(rows, columns)) * size,
            "work": words * size,
        },
        integers={"rows": rows, "columns": columns, "inner": inner, "words": words},
        items=_count(x),
        grain=grain_of(rows * columns * (2 * min(rows, columns) + START) + START),
        library="LAPACK",
    )


def column_order(equation: Equation, reads: Reads) -> Iterable[LibraryCall]:
    """geqp3 of a copy of the operand, which lies by columns, for its pivots."""
    x, order = equation.inputs[0].type, equation.outputs[0]
    columns, rows = x.shape[-2:]
    size = x.dtype.itemsize
    words = (columns + 1) * BLOCK + 2 * columns
    yield LibraryCall(
        provider=_provider("geqp3", x),
        reads={"x": place_of(equation.inputs[0], reads)},
        writes={"order": Place(order)},
        scratch={
            "a": rows * columns * size,
            "tau": max(1, min(rows, columns)) * size,
            "work": words * size,
            "real_work": 2 * max(1, columns) * size,
        },
        integers={"rows": rows, "columns": columns, "words": words},
        items=_count(x),
        grain=grain_of(2 * rows * columns * min(rows, columns)),
        library="LAPACK",
    )


def eigh(equation: Equation, reads: Reads) -> Iterable[LibraryCall]:
    """syevd with vectors, over the operand."""
    vectors, values = equation.outputs
    if blocked.is_blocked_spectrum(vectors.type):
        yield from blocked.eigh(equation)
        return
    writes = {"a": Place(vectors), "w": Place(values)}
    yield _syevd(equation.inputs[0].type, {}, writes, vectors=True)


def eigvalsh(equation: Equation, reads: Reads) -> Iterable[LibraryCall]:
    """syevd without vectors, over a copy of the operand."""
    x = equation.inputs[0]
    if blocked.is_blocked_spectrum(x.type):
        yield from blocked.eigvalsh(equation, reads)
        return
    given = {"x": place_of(x, reads)}
    yield _syevd(x.type, given, {"w": Place(equation.outputs[0])}, vectors=False)


def _syevd(
    x: ArrayType,
    given: dict[str, Place],
    written: dict[str, Place],
    *,
    vectors: bool,
) -> LibraryCall:
    n = x.shape[-1]
    is_complex = x.dtype in dtypes.COMPLEX
    real = dtypes.real_of(x.dtype).itemsize
    if is_complex:
        words = 2 * n + n * n + BLOCK * n
        real_words = 1 + 5 * n + 2 * n * n
    else:
        words = 1 + 6 * n + 2 * n * n + BLOCK * n
        real_words = 1
    integers = 3 + 5 * n
    scratch = {
        "work": words * x.dtype.itemsize,
        "real_work": real_words * real,
        "integer_work": integers * INTEGER_BYTES,
    }
    if not vectors:
        scratch["a"] = n * n * x.dtype.itemsize
    return LibraryCall(
        provider=_provider("syevd" if vectors else "syevd_values", x),
        reads=given,
        writes=written,
        scratch=scratch,
        integers={
            "n": n,
            "words": words,
            "real_words": real_words,
            "integer_words": integers,
        },
        items=_count(x) if n else 0,
        grain=grain_of(5 * n**3),
        library="LAPACK",
    )


def eig(equation: Equation, reads: Reads) -> Iterable[LibraryCall]:
    """geev with right eigenvectors."""
    vectors, values = equation.outputs
    writes = {"v": Place(vectors), "w": Place(values)}
    yield _geev(equation, reads, writes, "geev")


def eigvals(equation: Equation, reads: Reads) -> Iterable[LibraryCall]:
    """geev without vectors."""
    yield _geev(equation, reads, {"w": Place(equation.outputs[0])}, "geev_values")


def _geev(
    equation: Equation, reads: Reads, writes: dict[str, Place], name: str
) -> LibraryCall:
    x = equation.inputs[0].type
    n = x.shape[-1]
    size = x.dtype.itemsize
    words = (BLOCK + 4) * max(1, n)
    return LibraryCall(
        provider=_provider(name, x),
        reads={"x": place_of(equation.inputs[0], reads)},
        writes=writes,
        scratch={
            "a": n * n * size,
            "vectors": n * n * size,
            "values": 2 * n * size,
            "work": words * size,
        },
        integers={"n": n, "words": words},
        items=_count(x) if n else 0,
        grain=grain_of(20 * n**3),
        library="LAPACK",
    )


def svd(equation: Equation, reads: Reads) -> Iterable[LibraryCall]:
    """gesdd with vectors. The operand lies by columns, and so do they."""
    u, s, vh = equation.outputs
    if blocked.is_blocked_svd(equation.inputs[0].type):
        yield from blocked.svd(equation, reads)
        return
    full = int(equation.params["full"])
    writes = {"u": Place(u), "s": Place(s), "vh": Place(vh)}
    columns, rows = equation.inputs[0].type.shape[-2:]
    integers = {"rows": rows, "columns": columns, "full": full}
    yield _gesdd(equation, reads, writes, "gesdd", integers)


def svdvals(equation: Equation, reads: Reads) -> Iterable[LibraryCall]:
    """gesdd without vectors, of the transposed matrices: they lie by columns."""
    writes = {"s": Place(equation.outputs[0])}
    columns, rows = equation.inputs[0].type.shape[-2:]
    integers = {"rows": rows, "columns": columns}
    yield _gesdd(equation, reads, writes, "gesdd_values", integers)


def _gesdd(
    equation: Equation,
    reads: Reads,
    writes: dict[str, Place],
    name: str,
    integers: dict[str, int],
) -> LibraryCall:
    x = equation.inputs[0].type
    rows, columns = integers["rows"], integers["columns"]
    small, large = min(rows, columns), max(rows, columns)
    words = 4 * small * small + 7 * small + large + 2 * BLOCK * (small + large)
    real_words = 1
    if x.dtype in dtypes.COMPLEX:
        real_words = small * max(5 * small + 7, 2 * large + 2 * small + 1) + 1
    size = x.dtype.itemsize
    return LibraryCall(
        provider=_provider(name, x),
        reads={"x": place_of(equation.inputs[0], reads)},
        writes=writes,
        scratch={
            "a": rows * columns * size,
            "work": words * size,
            "real_work": real_words * dtypes.real_of(x.dtype).itemsize,
            "integer_work": 8 * max(1, small) * INTEGER_BYTES,
        },
        integers={"words": words, **integers},
        items=_count(x) if rows * columns else 0,
        grain=grain_of(10 * rows * columns * small),
        library="LAPACK",
    )
