"""Factorizations and unitary reductions of matrices by LAPACK.

A work item is one matrix of a batch. A single large matrix is factored on threads of
LAPACK's own. Scratch memory is what LAPACK's manual says of each function's workspace,
with blocks of ``BLOCK`` columns where it says that more is faster.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from arrayfn import dtypes
from arrayfn.ir import ArrayType, Equation
from arrayfn.lowering.libraries.calls import (
    START,
    LibraryCall,
    Pointer,
    grain_of,
    pointer_of,
)
from arrayfn.passes.reads import Reads

BLOCK: Final = 64
INTEGER_BYTES: Final = 8  # at most
# The extent from which a single matrix is factored on LAPACK's own threads. These wait
# for each other at each block of columns, for spectra at each column. Where one of them
# has to wait for a core, as on two cores with other work, 1024 rows took: eigh 2000 ms
# and 460 by one thread (float64), QR 1500 and 230, Cholesky 19 to 4300 and 9 (float32).
LARGE: Final = 2048
MAX_WORKSPACE: Final = 1 << 31  # of workspace, where integers may have 32 bits


def _call(
    name: str,
    x: ArrayType,
    reads: dict[str, Pointer],
    writes: dict[str, Pointer],
    scratch: dict[str, int],
    integers: dict[str, int],
    work: float,
) -> LibraryCall:
    """One call for all matrices of ``x``; ``work`` is that of each in multiply-adds."""
    items = math.prod(x.shape[:-2])
    is_large = (
        items == 1
        and min(x.shape[-2:]) >= LARGE
        and max(integers.values()) < MAX_WORKSPACE
    )
    return LibraryCall(
        provider=f"{name}{'_large' * is_large}_{dtypes.short_name(x.dtype)}",
        reads=reads,
        writes=writes,
        scratch=scratch,
        integers=integers,
        items=items,
        grain=grain_of(work),
        library="LAPACK",
    )


def cholesky(equation: Equation, reads: Reads) -> Iterable[LibraryCall]:
    """potrf over the operand. Its lower triangle is, by columns, an upper one."""
    (x,) = equation.outputs
    n = x.type.shape[-1]
    if n:
        work = n * n * (n / 6 + START) + START
        yield _call("potrf", x.type, {}, {"a": Pointer(x)}, {}, {"n": n}, work)


def lu(equation: Equation, reads: Reads) -> Iterable[LibraryCall]:
    """getrf over the operand, which is column-major."""
    factors, pivots, permutation = equation.outputs
    columns, rows = factors.type.shape[-2:]
    k = min(rows, columns)
    yield _call(
        "getrf",
        factors.type,
        {},
        {
            "a": Pointer(factors),
            "pivots": Pointer(pivots),
            "permutation": Pointer(permutation),
        },
        {"integers": k * INTEGER_BYTES},
        {"rows": rows, "columns": columns, "leading": max(1, rows)},
        rows * columns * (k / 2 + START) + START,
    )


def pivots_to_permutation(equation: Equation, reads: Reads) -> Iterable[LibraryCall]:
    """As after getrf, from pivots alone."""
    pivots, order = equation.inputs[0].type, equation.outputs[0]
    yield LibraryCall(
        provider=f"pivots_to_permutation_{dtypes.short_name(pivots.dtype)}",
        reads={"pivots": pointer_of(equation.inputs[0], reads)},
        writes={"permutation": Pointer(order)},
        integers={"rows": order.type.shape[-1], "count": pivots.shape[-1]},
        items=math.prod(pivots.shape[:-1]),
        grain=grain_of(4 * order.type.shape[-1]),
    )


def qr(equation: Equation, reads: Reads) -> Iterable[LibraryCall]:
    """gelqf and orglq: by columns, the transposed matrix is L Q."""
    q, r = equation.outputs
    x = equation.inputs[0].type
    rows, columns = x.shape[-2:]
    inner, k = q.type.shape[-1], min(rows, columns)
    size = x.dtype.itemsize
    words = BLOCK * max(columns, inner, 1)
    yield _call(
        "gelqf",
        x,
        {"x": pointer_of(equation.inputs[0], reads)},
        {"q": Pointer(q), "r": Pointer(r)},
        {
            "a": rows * columns * size,
            "tau": max(1, k) * size,
            "work": words * size,
        },
        {
            "rows": rows,
            "columns": columns,
            "inner": inner,
            "least": k,
            "leading_a": max(1, columns),
            "leading_q": max(1, inner),
            "words": words,
        },
        rows * columns * (2 * k + START) + START,
    )


def column_order(equation: Equation, reads: Reads) -> Iterable[LibraryCall]:
    """geqp3 of a copy of the operand, which is column-major, for its pivots."""
    x, order = equation.inputs[0].type, equation.outputs[0]
    columns, rows = x.shape[-2:]
    size = x.dtype.itemsize
    words = (columns + 1) * BLOCK + 2 * columns
    yield LibraryCall(
        provider=f"geqp3_{dtypes.short_name(x.dtype)}",
        reads={"x": pointer_of(equation.inputs[0], reads)},
        writes={"order": Pointer(order)},
        scratch={
            "a": rows * columns * size,
            "tau": max(1, min(rows, columns)) * size,
            "work": words * size,
            "real_work": 2 * max(1, columns) * size,
            "integers": columns * INTEGER_BYTES,
        },
        integers={
            "rows": rows,
            "columns": columns,
            "leading": max(1, rows),
            "words": words,
        },
        items=math.prod(x.shape[:-2]),
        grain=grain_of(2 * rows * columns * min(rows, columns)),
        library="LAPACK",
    )


def eigh(equation: Equation, reads: Reads) -> Iterable[LibraryCall]:
    """syevd with vectors, over the operand."""
    vectors, values = equation.outputs
    places = {"a": Pointer(vectors), "w": Pointer(values)}
    yield from _syevd("syevd", equation.inputs[0].type, {}, places, copied=0)


def eigvalsh(equation: Equation, reads: Reads) -> Iterable[LibraryCall]:
    """syevd without vectors, over a copy of the operand."""
    x = equation.inputs[0]
    given = {"a": pointer_of(x, reads)}
    values = {"w": Pointer(equation.outputs[0])}
    yield from _syevd("syevd_values", x.type, given, values, copied=x.type.shape[-1])


def _syevd(
    name: str,
    x: ArrayType,
    given: dict[str, Pointer],
    written: dict[str, Pointer],
    *,
    copied: int,
) -> Iterable[LibraryCall]:
    n, size = x.shape[-1], x.dtype.itemsize
    if not n:
        return
    if x.dtype in dtypes.COMPLEX:
        words = 2 * n + n * n + BLOCK * n
        real_words = 1 + 5 * n + 2 * n * n
    else:
        words = 1 + 6 * n + 2 * n * n + BLOCK * n
        real_words = 1
    integers = 3 + 5 * n
    yield _call(
        name,
        x,
        given,
        written,
        {
            "copy": copied * n * size,
            "work": words * size,
            "real_work": real_words * dtypes.real_of(x.dtype).itemsize,
            "integer_work": integers * INTEGER_BYTES,
        },
        {
            "n": n,
            "words": words,
            "real_words": real_words,
            "integer_words": integers,
        },
        5 * n**3,
    )


def eig(equation: Equation, reads: Reads) -> Iterable[LibraryCall]:
    """geev with right eigenvectors."""
    vectors, values = equation.outputs
    writes = {"w": Pointer(values), "v": Pointer(vectors)}
    yield from _geev("geev", equation, reads, writes, {})


def eigvals(equation: Equation, reads: Reads) -> Iterable[LibraryCall]:
    """geev without vectors."""
    writes = {"w": Pointer(equation.outputs[0])}
    yield from _geev("geev_values", equation, reads, writes, {"v": 0})


def _geev(
    name: str,
    equation: Equation,
    reads: Reads,
    writes: dict[str, Pointer],
    more: dict[str, int],
) -> Iterable[LibraryCall]:
    x = equation.inputs[0].type
    n, size = x.shape[-1], x.dtype.itemsize
    words = (BLOCK + 4) * n
    if n:
        yield _call(
            name,
            x,
            {"x": pointer_of(equation.inputs[0], reads)},
            writes,
            {
                **more,
                "copy": n * n * size,
                "packed": n * n * size,
                "parts": 2 * n * size,
                "work": words * size,
            },
            {"n": n, "words": words},
            20 * n**3,
        )


def svd(equation: Equation, reads: Reads) -> Iterable[LibraryCall]:
    """gesdd with vectors. The operand is column-major, and so are they."""
    u, s, vh = equation.outputs
    writes = {"s": Pointer(s), "u": Pointer(u), "vh": Pointer(vh)}
    extents = {
        "u_columns": u.type.shape[-2],
        "vh_rows": vh.type.shape[-1],
        "full": int(equation.params["full"]),
    }
    yield from _gesdd("gesdd", equation, reads, writes, {}, extents)


def svdvals(equation: Equation, reads: Reads) -> Iterable[LibraryCall]:
    """gesdd without vectors, of the transposed matrices: they are column-major."""
    writes = {"s": Pointer(equation.outputs[0])}
    extents = {"u_columns": 0, "vh_rows": 0, "full": 0}
    none = {"u": 0, "vh": 0}
    yield from _gesdd("gesdd_values", equation, reads, writes, none, extents)


def _gesdd(
    name: str,
    equation: Equation,
    reads: Reads,
    writes: dict[str, Pointer],
    more: dict[str, int],
    extents: dict[str, int],
) -> Iterable[LibraryCall]:
    x = equation.inputs[0].type
    columns, rows = x.shape[-2:]
    small, large = min(rows, columns), max(rows, columns)
    words = 4 * small * small + 7 * small + large + 2 * BLOCK * (small + large)
    real_words = 1
    if x.dtype in dtypes.COMPLEX:
        real_words = small * max(5 * small + 7, 2 * large + 2 * small + 1) + 1
    size = x.dtype.itemsize
    if small:
        yield _call(
            name,
            x,
            {"x": pointer_of(equation.inputs[0], reads)},
            writes,
            {
                **more,
                "copy": rows * columns * size,
                "work": words * size,
                "real_work": real_words * dtypes.real_of(x.dtype).itemsize,
                "integer_work": 8 * small * INTEGER_BYTES,
            },
            {"rows": rows, "columns": columns, **extents, "words": words},
            10 * rows * columns * small,
        )


def hessenberg(equation: Equation, reads: Reads) -> Iterable[LibraryCall]:
    """gehrd over the operand."""
    a, taus = equation.outputs
    writes = {"a": Pointer(a), "taus": Pointer(taus)}
    yield from _reduced("gehrd", a.type, writes, 10 / 3)


def tridiagonal(equation: Equation, reads: Reads) -> Iterable[LibraryCall]:
    """sytrd over the operand."""
    a, d, e, taus = equation.outputs
    writes = {"a": Pointer(a), "d": Pointer(d), "e": Pointer(e), "taus": Pointer(taus)}
    yield from _reduced("tridiagonal", a.type, writes, 4 / 3)


def schur(equation: Equation, reads: Reads) -> Iterable[LibraryCall]:
    """gees over the operand."""
    t, z = equation.outputs
    n, size = t.type.shape[-1], t.type.dtype.itemsize
    scratch = {"values": n * size, "more": n * size, "flags": n * INTEGER_BYTES}
    yield from _reduced("gees", t.type, {"a": Pointer(t), "z": Pointer(z)}, 20, scratch)


def _reduced(
    name: str,
    x: ArrayType,
    writes: dict[str, Pointer],
    work: float,
    scratch: Mapping[str, int] = MappingProxyType({}),
) -> Iterable[LibraryCall]:
    """A unitary reduction of n by n matrices over ``x``, of ``work * n**3``."""
    n = x.shape[-1]
    words = (BLOCK + 3) * max(1, n)
    yield LibraryCall(
        provider=f"{name}_{dtypes.short_name(x.dtype)}",
        reads={},
        writes=writes,
        scratch={"work": words * x.dtype.itemsize, **scratch},
        integers={"n": n, "words": words},
        items=math.prod(x.shape[:-2]) if n else 0,
        grain=grain_of(work * n**3),
        library="LAPACK",
    )
