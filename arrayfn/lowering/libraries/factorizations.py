"""Factorizations and unitary reductions of matrices by LAPACK.

A work item is one matrix of a batch. A single large matrix is factored on LAPACK's own
threads. Scratch memory is what LAPACK's manual gives for each function's workspace,
with blocks of ``BLOCK`` columns where more workspace is faster. The names in the
docstrings are LAPACK's.
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
    Pointer,
    grain_of,
    pointer_of,
)
from arrayfn.passes.reads import Reads

BLOCK: Final = 64  # columns of LAPACK's blocks, for workspace sizes
INTEGER_BYTES: Final = 8  # at most
# The extent from which a single matrix is factored on LAPACK's own threads. These wait
# for each other at each block of columns, for spectra at each column. Where one of them
# has to wait for a core, as on two cores with other work, 1024 rows took: eigh 2000 ms
# and 460 by one thread (float64), QR 1500 and 230, Cholesky 19 to 4300 and 9 (float32).
LARGE: Final = 2048
# The rows from which eigenvectors of a single matrix are divided among threads, the
# number of items, and the fewest vectors of one. Each item makes the same block
# reflections: four of 256 vectors take 1.5 % more processor time in all, eight 6 %.
PARTED: Final = 256
ITEMS: Final = 4  # of work that the eigenvectors are divided into, at most
COLUMNS: Final = 128  # eigenvectors of an item, at least
MAX_WORKSPACE: Final = 1 << 31  # of workspace, where integers may have 32 bits
# Real matrices of up to SMALL rows and columns are factored by loops, four at a time,
# in float64. LAPACK's calls take longer to begin than to factor a few rows. In batches
# of four or more loops are faster up to MEDIUM: 200 matrices of 32 rows take 0.5 to
# 0.75 times as long (processor time), but those of 64 rows as long.
SMALL: Final = 16
MEDIUM: Final = 32
LANES: Final = 4  # matrices that a vector of the CPU holds


def is_small(x: ArrayType, sides: int = 0) -> bool:
    """Whether matrices of type ``x`` are factored by arrayfn's loops, not LAPACK.

    ``sides`` is the number of right-hand sides, if there are some.
    """
    limit = MEDIUM if math.prod(x.shape[:-2]) >= LANES else SMALL
    is_real = x.dtype not in dtypes.COMPLEX
    return is_real and max(*x.shape[-2:], sides) <= min(limit, LARGE - 1)


def lanes(**counts: int) -> dict[str, int]:
    """Return the bytes of scratch for ``LANES`` small matrices at once, by name.

    ``counts`` has the numbers of float64 elements for one matrix, by name.
    """
    return {name: count * LANES * 8 for name, count in counts.items()}


def _call(
    name: str,
    x: ArrayType,
    reads: dict[str, Pointer],
    writes: dict[str, Pointer],
    scratch: dict[str, int],
    integers: dict[str, int],
    work: float,
) -> LibraryCall:
    """Return one LAPACK call for all matrices of type ``x``: an item is one matrix.

    Args:
        name: LAPACK's function, without the dtype's letter.
        x: the type of the matrices.
        reads: the arrays that it reads, by parameter.
        writes: the arrays that it writes, by parameter.
        scratch: bytes of workspace for each matrix, by parameter.
        integers: the integer arguments.
        work: the multiply-adds for each matrix.
    """
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
    """Yield the call of potrf, in place.

    LAPACK is column-major, so it sees the lower triangle as the upper one.
    """
    (x,) = equation.outputs
    n = x.type.shape[-1]
    name, scratch = "potrf", dict[str, int]()
    if is_small(x.type):
        name, scratch = "small_cholesky", lanes(own=n * n, column=n, root=1)
    if n:
        work = n * n * (n / 6 + START) + START
        yield _call(
            name,
            x.type,
            reads={},
            writes={"a": Pointer(x)},
            scratch=scratch,
            integers={"n": n},
            work=work,
        )


def lu(equation: Equation, reads: Reads) -> Iterable[LibraryCall]:
    """Yield the call of getrf, in place, on a column-major operand.

    Small matrices are factored by arrayfn's loops instead (``is_small``), ``LANES`` at
    a time.
    """
    factors, pivots, permutation = equation.outputs
    columns, rows = factors.type.shape[-2:]
    name, scratch = "getrf", {"integers": min(rows, columns) * INTEGER_BYTES}
    if is_small(factors.type):
        name = "small_lu"
        scratch = lanes(own=rows * columns, column=rows, factor=1)
    yield _call(
        name,
        factors.type,
        reads={},
        writes={
            "a": Pointer(factors),
            "pivots": Pointer(pivots),
            "permutation": Pointer(permutation),
        },
        scratch=scratch,
        integers={"rows": rows, "columns": columns},
        work=rows * columns * (min(rows, columns) / 2 + START) + START,
    )


def pivots_to_permutation(equation: Equation, reads: Reads) -> Iterable[LibraryCall]:
    """Yield the call that turns getrf's row exchanges into a permutation of rows."""
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
    """Yield the call of gelqf and orglq, which compute Q and R.

    LAPACK is column-major, so it sees the transposed matrix, which is L Q.
    """
    q, r = equation.outputs
    x = equation.inputs[0].type
    rows, columns = x.shape[-2:]
    inner, k = q.type.shape[-1], min(rows, columns)
    size = x.dtype.itemsize
    lwork = BLOCK * max(columns, inner, 1)
    name, integers = "gelqf", {"rows": rows, "columns": columns, "inner": inner}
    scratch = {
        "a": rows * columns * size,
        "tau": max(1, k) * size,
        "work": lwork * size,
    }
    if is_small(x):
        name = "small_qr"
        scratch = lanes(
            own=rows * columns, vectors=rows * inner, column=rows, tau=k, total=1
        )
    else:
        integers["lwork"] = lwork
    yield _call(
        name,
        x,
        reads={"x": pointer_of(equation.inputs[0], reads)},
        writes={"q": Pointer(q), "r": Pointer(r)},
        scratch=scratch,
        integers=integers,
        work=rows * columns * (2 * k + START) + START,
    )


def column_order(equation: Equation, reads: Reads) -> Iterable[LibraryCall]:
    """Yield the call of geqp3 on a copy of the column-major operand, for its pivots."""
    x, order = equation.inputs[0].type, equation.outputs[0]
    columns, rows = x.shape[-2:]
    size = x.dtype.itemsize
    lwork = (columns + 1) * BLOCK + 2 * columns
    yield LibraryCall(
        provider=f"geqp3_{dtypes.short_name(x.dtype)}",
        reads={"x": pointer_of(equation.inputs[0], reads)},
        writes={"order": Pointer(order)},
        scratch={
            "a": rows * columns * size,
            "tau": max(1, min(rows, columns)) * size,
            "work": lwork * size,
            "real_work": 2 * max(1, columns) * size,
            "integers": columns * INTEGER_BYTES,
        },
        integers={"rows": rows, "columns": columns, "lwork": lwork},
        items=math.prod(x.shape[:-2]),
        grain=grain_of(2 * rows * columns * min(rows, columns)),
        library="LAPACK",
    )


def eigh(equation: Equation, reads: Reads) -> Iterable[LibraryCall]:
    """Yield the call of syevd with vectors, in place.

    A single matrix of ``PARTED`` rows or more is divided among threads instead.
    """
    vectors, values = equation.outputs
    n = vectors.type.shape[-1]
    is_single = vectors.type.size == n * n  # the matrices of a batch have a thread each
    if is_single and PARTED <= n < LARGE:
        yield from _eigh_in_parts(vectors, values)
        return
    writes = {"a": Pointer(vectors), "w": Pointer(values)}
    yield from _syevd("syevd", equation.inputs[0].type, {}, writes, scratch={})


def _eigh_in_parts(vectors: Var, values: Var) -> Iterable[LibraryCall]:
    """Yield the calls of an eigh of one large matrix; threads share the last one.

    They are sytrd with stedc, then ormtr, which is divided by eigenvectors; all three
    take about equal time.
    """
    x = vectors.type
    n, size = x.shape[-1], x.dtype.itemsize
    real = dtypes.real_of(x.dtype).itemsize
    is_complex = x.dtype in dtypes.COMPLEX
    lrwork = 1 + 4 * n + 2 * n * n
    lwork = BLOCK * n if is_complex else lrwork + BLOCK * n
    integers = 3 + 5 * n
    # The first call leaves the reflectors of the reduction for the second one.
    reflectors = Var(ArrayType((n, n), x.dtype))
    taus = Var(ArrayType((n,), x.dtype))
    yield LibraryCall(
        provider=f"stedc_{dtypes.short_name(x.dtype)}",
        reads={},
        writes={
            "a": Pointer(vectors),
            "w": Pointer(values),
            "reflectors": Pointer(reflectors),
            "taus": Pointer(taus),
        },
        scratch={
            "e": n * real,
            "work": lwork * size,
            "real_work": (lrwork if is_complex else 1) * real,
            "integer_work": integers * INTEGER_BYTES,
        },
        integers={
            "n": n,
            "lwork": lwork,
            "lrwork": lrwork,
            "liwork": integers,
        },
        items=1,
        library="LAPACK",
    )
    columns = max(COLUMNS, -(-n // ITEMS))
    yield LibraryCall(
        provider=f"ormtr_{dtypes.short_name(x.dtype)}",
        reads={"reflectors": Pointer(reflectors), "taus": Pointer(taus)},
        writes={"a": Pointer(vectors)},
        scratch={"work": BLOCK * (columns + BLOCK + 1) * size},
        integers={"n": n, "columns": columns, "lwork": BLOCK * (columns + BLOCK + 1)},
        items=-(-n // columns),
        library="LAPACK",
    )


def eigvalsh(equation: Equation, reads: Reads) -> Iterable[LibraryCall]:
    """Yield the call of syevd without vectors, on a copy of the operand."""
    x = equation.inputs[0]
    operands = {"a": pointer_of(x, reads)}
    values = {"w": Pointer(equation.outputs[0])}
    # Scratch for the copy of a matrix, in bytes.
    copied = {"copied": x.type.shape[-1] ** 2 * x.type.dtype.itemsize}
    yield from _syevd("syevd_values", x.type, operands, values, scratch=copied)


def _syevd(
    name: str,
    x: ArrayType,
    reads: dict[str, Pointer],
    writes: dict[str, Pointer],
    scratch: dict[str, int],
) -> Iterable[LibraryCall]:
    """Yield the call of syevd on the square matrices ``x``, with its workspace.

    ``name`` is the provider's, ``reads`` and ``writes`` the arrays by parameter.
    ``scratch`` is needed besides the workspace, in bytes.
    """
    n, size = x.shape[-1], x.dtype.itemsize
    if not n:
        return
    if x.dtype in dtypes.COMPLEX:
        lwork = 2 * n + n * n + BLOCK * n
        lrwork = 1 + 5 * n + 2 * n * n
    else:
        lwork = 1 + 6 * n + 2 * n * n + BLOCK * n
        lrwork = 1
    integers = 3 + 5 * n
    yield _call(
        name,
        x,
        reads=reads,
        writes=writes,
        scratch={
            **scratch,
            "work": lwork * size,
            "real_work": lrwork * dtypes.real_of(x.dtype).itemsize,
            "integer_work": integers * INTEGER_BYTES,
        },
        integers={
            "n": n,
            "lwork": lwork,
            "lrwork": lrwork,
            "liwork": integers,
        },
        work=5 * n**3,
    )


def eig(equation: Equation, reads: Reads) -> Iterable[LibraryCall]:
    """Yield the call of LAPACK's geev with right eigenvectors."""
    vectors, values = equation.outputs
    writes = {"w": Pointer(values), "v": Pointer(vectors)}
    x = equation.inputs[0].type
    # Scratch for a matrix's eigenvectors in LAPACK's form, in bytes.
    packed = {"packed": x.shape[-1] ** 2 * x.dtype.itemsize}
    yield from _geev("geev", equation, reads, writes, scratch=packed)


def eigvals(equation: Equation, reads: Reads) -> Iterable[LibraryCall]:
    """Yield the call of LAPACK's geev without eigenvectors."""
    writes = {"w": Pointer(equation.outputs[0])}
    yield from _geev("geev_values", equation, reads, writes, scratch={})


def _geev(
    name: str,
    equation: Equation,
    reads: Reads,
    writes: dict[str, Pointer],
    scratch: dict[str, int],
) -> Iterable[LibraryCall]:
    """Yield the call of geev on the first operand, with its workspace.

    ``name`` is the provider's, ``writes`` the results by parameter. ``scratch`` is
    needed besides the workspace, in bytes.
    """
    x = equation.inputs[0].type
    n, size = x.shape[-1], x.dtype.itemsize
    lwork = (BLOCK + 4) * n
    if n:
        yield _call(
            name,
            x,
            reads={"x": pointer_of(equation.inputs[0], reads)},
            writes=writes,
            scratch={
                "copied": n * n * size,
                **scratch,
                "split_values": 2 * n * size,
                "work": lwork * size,
            },
            integers={"n": n, "lwork": lwork},
            work=20 * n**3,
        )


def svd(equation: Equation, reads: Reads) -> Iterable[LibraryCall]:
    """Yield the call of gesdd with vectors; operand and vectors are column-major."""
    u, s, vh = equation.outputs
    writes = {"s": Pointer(s), "u": Pointer(u), "vh": Pointer(vh)}
    extents = {
        "u_columns": u.type.shape[-2],
        "vh_rows": vh.type.shape[-1],
        "full": int(equation.params["full"]),
    }
    yield from _gesdd("gesdd", equation, reads, writes, extents=extents)


def svdvals(equation: Equation, reads: Reads) -> Iterable[LibraryCall]:
    """Yield the call of gesdd without vectors, on the transposed matrices."""
    writes = {"s": Pointer(equation.outputs[0])}
    yield from _gesdd("gesdd_values", equation, reads, writes, extents={})


def _gesdd(
    name: str,
    equation: Equation,
    reads: Reads,
    writes: dict[str, Pointer],
    extents: dict[str, int],
) -> Iterable[LibraryCall]:
    """Yield the call of gesdd on the first operand, with its workspace.

    ``name`` is the provider's, ``writes`` the results by parameter, and ``extents``
    further integer arguments.
    """
    x = equation.inputs[0].type
    columns, rows = x.shape[-2:]
    small, large = min(rows, columns), max(rows, columns)
    lwork = 4 * small * small + 7 * small + large + 2 * BLOCK * (small + large)
    lrwork = 1
    if x.dtype in dtypes.COMPLEX:
        lrwork = small * max(5 * small + 7, 2 * large + 2 * small + 1) + 1
    size = x.dtype.itemsize
    if small:
        yield _call(
            name,
            x,
            reads={"x": pointer_of(equation.inputs[0], reads)},
            writes=writes,
            scratch={
                "copied": rows * columns * size,
                "work": lwork * size,
                "real_work": lrwork * dtypes.real_of(x.dtype).itemsize,
                "integer_work": 8 * small * INTEGER_BYTES,
            },
            integers={"rows": rows, "columns": columns, **extents, "lwork": lwork},
            work=10 * rows * columns * small,
        )


def hessenberg(equation: Equation, reads: Reads) -> Iterable[LibraryCall]:
    """Yield the call of gehrd, in place."""
    a, taus = equation.outputs
    writes = {"a": Pointer(a), "taus": Pointer(taus)}
    yield from _reduced("gehrd", a.type, writes, work=10 / 3)


def tridiagonal(equation: Equation, reads: Reads) -> Iterable[LibraryCall]:
    """Yield the call of sytrd, in place."""
    a, d, e, taus = equation.outputs
    writes = {"a": Pointer(a), "d": Pointer(d), "e": Pointer(e), "taus": Pointer(taus)}
    yield from _reduced("sytrd", a.type, writes, work=4 / 3)


def schur(equation: Equation, reads: Reads) -> Iterable[LibraryCall]:
    """Yield the call of gees, in place."""
    t, z = equation.outputs
    n, size = t.type.shape[-1], t.type.dtype.itemsize
    writes = {"a": Pointer(t), "z": Pointer(z)}
    yield from _reduced("gees", t.type, writes, work=20, values=n * size, more=n * size)


def _reduced(
    name: str, x: ArrayType, writes: dict[str, Pointer], work: float, **scratch: int
) -> Iterable[LibraryCall]:
    """Yield the call of a unitary reduction of square matrices ``x``, in place.

    ``name`` is LAPACK's function, ``writes`` the arrays by parameter. A matrix takes
    ``work * n**3`` operations; ``scratch`` is needed besides the workspace, in bytes.
    """
    n = x.shape[-1]
    lwork = (BLOCK + 3) * max(1, n)
    yield LibraryCall(
        provider=f"{name}_{dtypes.short_name(x.dtype)}",
        reads={},
        writes=writes,
        scratch={"work": lwork * x.dtype.itemsize, **scratch},
        integers={"n": n, "lwork": lwork},
        items=math.prod(x.shape[:-2]) if n else 0,
        grain=grain_of(work * n**3),
        library="LAPACK",
    )
