"""Factorizations of matrices by cuSOLVER and cuBLAS: calls, and nests around them.

The libraries are column-major. Primitives whose operands lie by columns (LU, SVD, any
eigenvalues) are theirs as they stand; the others are turned by a nest, which the plan
shows. Where a library says in a status that it failed, a nest puts NaN.

A call is of all matrices of a batch; how it does them is the provider's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from arrayfn import dtypes
from arrayfn.dtypes import DType, short_name
from arrayfn.ir import ArrayType, Equation, Var
from arrayfn.ir.layout import Shape
from arrayfn.lowering.cuda.solvers import cholesky as factors
from arrayfn.lowering.cuda.solvers import cholesky_tiles, jacobi, small_svd
from arrayfn.lowering.cuda.solvers.matrix_nests import Names, Nests, matrices_of, turned
from arrayfn.lowering.cuda.solvers.permutation import Permutation
from arrayfn.lowering.cuda.solvers.triangular import System, solved
from arrayfn.lowering.cuda.written import WrittenCall
from arrayfn.lowering.kernel_ir import Nest
from arrayfn.lowering.libraries.calls import LibraryCall, Pointer, pointer_of
from arrayfn.passes.reads import Reads

Made = LibraryCall | Nest | Permutation | WrittenCall

BATCHED: Final = 128
"""Matrices of up to this many rows for each of a batch are one call."""
TURNED: Final = 128
"""From here on a single matrix is turned to be factored."""
SMALL_SVD: Final = 32
"""Matrices of up to so many rows and columns cuSOLVER decomposes as a batch."""
SMALL_EIGH: Final = 32
"""Symmetric matrices of up to so many rows, of a batch, are Jacobi's method's."""
JACOBI: Final = 128
"""Up to so many rows and columns Jacobi's method is the faster one.

Of several matrices all are its: the polar decomposition has memory on the host, which
calls that follow each other would share.
"""


def _count(type: ArrayType) -> int:
    return math.prod(type.shape[:-2])


def _provider(name: str, type: ArrayType) -> str:
    return f"{name}_{short_name(type.dtype)}"


def _status(matrices: int) -> Var:
    return Var(ArrayType((matrices,), dtypes.int32))


def cholesky(equation: Equation, reads: Reads, names: Names) -> Iterable[Made]:
    """potrf. The lower triangle is, by columns, an upper one.

    Of a large matrix cuSOLVER factors the lower triangle by columns in less than half
    the time: it is turned before and after.
    """
    output = equation.outputs[0]
    n, matrices = output.type.shape[-1], _count(output.type)
    if factors.is_small(output.type.dtype, n):
        yield factors.small_factors(output)
        return
    status, nests = _status(matrices), Nests(equation, names)
    whole = matrices_of(output.type, output)
    extents = (matrices, n, n)
    if cholesky_tiles.is_tiled(output.type.dtype, n, matrices):
        yield cholesky_tiles.tiled_factors(output, status)
        yield nests.moved(
            whole,
            whole,
            extents,
            "the lower triangle, or NaN",
            status=status,
            triangle="lower",
        )
        return
    place, factor = Pointer(output), whole
    is_turned = n > BATCHED * matrices or (matrices == 1 and n >= TURNED)
    if is_turned:
        copy = Var(ArrayType(extents, output.type.dtype))
        place, factor = Pointer(copy), turned(matrices_of(copy.type, copy))
        yield nests.moved(whole, factor, extents, "a matrix by columns")
    yield LibraryCall(
        provider=_provider("potrf", output.type),
        reads={},
        writes={"a": place, "status": Pointer(status)},
        integers={"n": n, "matrices": matrices, "upper": int(not is_turned)},
        items=1,
        library="cuSOLVER",
    )
    yield nests.moved(
        factor,
        whole,
        extents,
        "the lower triangle, or NaN",
        status=status,
        triangle="lower",
    )


def triangular_solve(equation: Equation, reads: Reads, names: Names) -> Iterable[Made]:
    """trsm in place."""
    params, output = equation.params, equation.outputs[0]
    return solved(
        Nests(equation, names),
        pointer_of(equation.inputs[1], reads),
        output,
        System(
            left=bool(params["left"]),
            lower=bool(params["lower"]),
            transpose=bool(params["transpose"]),
            conjugate=bool(params["conjugate"]),
            unit=bool(params["unit"]),
        ),
    )


def lu(equation: Equation, reads: Reads, names: Names) -> Iterable[Made]:
    """getrf in place: the operand lies by columns. A singular U is no failure."""
    factors, pivots, permutation = equation.outputs
    columns, rows = factors.type.shape[-2:]
    matrices = _count(factors.type)
    raw = Var(ArrayType(pivots.type.shape, dtypes.int32))
    yield LibraryCall(
        provider=_provider("getrf", factors.type),
        reads={},
        writes={
            "a": Pointer(factors),
            "pivots": Pointer(raw),
            "status": Pointer(_status(matrices)),
        },
        integers={"rows": rows, "columns": columns, "matrices": matrices},
        items=1,
        library="cuSOLVER, cuBLAS",
    )
    yield Nests(equation, names).from_one(raw, pivots)
    yield Permutation(pivots, 0, permutation)


def pivots_to_permutation(
    equation: Equation, reads: Reads, names: Names
) -> Iterable[Made]:
    """A kernel that swaps."""
    place = pointer_of(equation.inputs[0], reads)
    yield Permutation(place.array, place.offset, equation.outputs[0])


def eigh(equation: Equation, reads: Reads, names: Names) -> Iterable[Made]:
    """syevd or heevd in place: by columns the operand is its conjugate."""
    vectors, values = equation.outputs
    if jacobi.is_small(vectors.type.dtype, vectors.type.shape[-1]):
        yield jacobi.eigenvectors(vectors, values)
        return
    status = _status(_count(vectors.type))
    yield _syevd(vectors, values, status, vectors=True)
    nests = Nests(equation, names)
    yield nests.or_nan(vectors, status, "vectors, or NaN")
    yield nests.or_nan(values, status, "values, or NaN")


def eigvalsh(equation: Equation, reads: Reads, names: Names) -> Iterable[Made]:
    """syevd or heevd without vectors, over a copy of the operand."""
    (values,) = equation.outputs
    copy = Var(ArrayType(*_of_matrices(equation)))
    if jacobi.is_small(copy.type.dtype, copy.type.shape[-1]):
        yield jacobi.eigenvalues(copy, pointer_of(equation.inputs[0], reads), values)
        return
    yield _copied(equation, reads, names, copy)
    status = _status(copy.type.shape[0])
    yield _syevd(copy, values, status, vectors=False)
    yield Nests(equation, names).or_nan(values, status, "values, or NaN")


def _of_matrices(equation: Equation) -> tuple[Shape, DType]:
    """The operand's shape with one axis for its batch, and its dtype."""
    x = equation.inputs[0].type
    return (_count(x), *x.shape[-2:]), x.dtype


def _copied(equation: Equation, reads: Reads, names: Names, copy: Var) -> Nest:
    """The operand in memory that may be written over."""
    place = pointer_of(equation.inputs[0], reads)
    source = matrices_of(copy.type, place.array, place.offset)
    target = matrices_of(copy.type, copy)
    reason = "a copy that may be written over"
    return Nests(equation, names).moved(source, target, copy.type.shape, reason)


def _syevd(a: Var, values: Var, status: Var, *, vectors: bool) -> LibraryCall:
    many = status.type.size > 1
    small = many and a.type.shape[-1] <= SMALL_EIGH
    return LibraryCall(
        provider=_provider("syevjbatched" if small else "syevd", a.type),
        reads={},
        writes={"a": Pointer(a), "w": Pointer(values), "status": Pointer(status)},
        integers={
            "n": a.type.shape[-1],
            "matrices": status.type.size,
            "vectors": int(vectors),
        },
        items=1,
        library="cuSOLVER",
    )


def eig(equation: Equation, reads: Reads, names: Names) -> Iterable[Made]:
    """geev of a copy. Real matrices have vectors in pairs of real and imaginary."""
    vectors, values = equation.outputs
    copy = Var(ArrayType(*_of_matrices(equation)))
    yield _copied(equation, reads, names, copy)
    matrices, n, _ = copy.type.shape
    status = _status(matrices)
    nests = Nests(equation, names)
    if copy.type.dtype in dtypes.COMPLEX:
        yield _geev(copy, values, status, Pointer(vectors))
        yield nests.or_nan(vectors, status, "vectors, or NaN")
    else:
        # With a vector more at either end, so that each has two neighbours.
        raw = Var(ArrayType((matrices * n + 2, n), copy.type.dtype))
        yield _geev(copy, values, status, Pointer(raw, n))
        yield nests.paired(raw, values, status, vectors)
    yield nests.or_nan(values, status, "values, or NaN")


def eigvals(equation: Equation, reads: Reads, names: Names) -> Iterable[Made]:
    """geev of a copy, without vectors."""
    (values,) = equation.outputs
    copy = Var(ArrayType(*_of_matrices(equation)))
    yield _copied(equation, reads, names, copy)
    status = _status(copy.type.shape[0])
    yield _geev(copy, values, status, None)
    yield Nests(equation, names).or_nan(values, status, "values, or NaN")


def _geev(a: Var, values: Var, status: Var, vectors: Pointer | None) -> LibraryCall:
    writes = {"a": Pointer(a), "w": Pointer(values), "status": Pointer(status)}
    if vectors is not None:
        writes["v"] = vectors
    return LibraryCall(
        provider=_provider("geev" if vectors else "geevvalues", a.type),
        reads={},
        writes=writes,
        integers={"n": a.type.shape[-1], "matrices": status.type.size},
        items=1,
        library="cuSOLVER",
    )


@dataclass(frozen=True)
class _Svd:
    """A call of a form of gesvd, over a copy: by columns, as its U and V are."""

    call: LibraryCall
    left: Var
    right: Var
    status: Var


def _gesvd(copy: Var, s: Var, *, full: bool, vectors: bool) -> _Svd:
    matrices, columns, rows = copy.type.shape
    small, large = min(rows, columns), max(rows, columns)
    form = "gesvdj" if large <= JACOBI or matrices > 1 else "gesvdp"
    if matrices > 1 and large <= SMALL_SVD:
        form, full = "gesvdjbatched", True
    # Some forms write them where only values are asked for, too.
    left = Var(ArrayType((matrices, rows if full else small, rows), copy.type.dtype))
    kept = columns if full else small
    right = Var(ArrayType((matrices, kept, columns), copy.type.dtype))
    status = _status(matrices)
    call = LibraryCall(
        provider=_provider(form, copy.type),
        reads={},
        writes={
            "a": Pointer(copy),
            "s": Pointer(s),
            "status": Pointer(status),
            "u": Pointer(left),
            "v": Pointer(right),
        },
        integers={
            "rows": rows,
            "columns": columns,
            "matrices": matrices,
            "full": int(full),
            "vectors": int(vectors),
        },
        items=1,
        library="cuSOLVER",
    )
    return _Svd(call, left, right, status)


def _small_operand(equation: Equation, reads: Reads) -> small_svd.Operand | None:
    """The operand of a decomposition that a kernel makes, if one does."""
    x = equation.inputs[0].type
    columns, rows = x.shape[-2:]
    if not small_svd.is_small(x.dtype, rows, columns):
        return None
    place = pointer_of(equation.inputs[0], reads)
    return small_svd.Operand(place, _count(x), columns, rows)


def svd(equation: Equation, reads: Reads, names: Names) -> Iterable[Made]:
    """gesvd in one of its forms, of a copy. V^H is V turned."""
    u, s, vh = equation.outputs
    operand = _small_operand(equation, reads)
    if operand is not None:
        full = bool(equation.params["full"])
        yield small_svd.vectors(operand, s, u, vh, full=full)
        return
    copy = Var(ArrayType(*_of_matrices(equation)))
    yield _copied(equation, reads, names, copy)
    made = _gesvd(copy, s, full=bool(equation.params["full"]), vectors=True)
    yield made.call
    nests, status = Nests(equation, names), made.status
    matrices = status.type.size
    source, target = matrices_of(made.left.type, made.left), matrices_of(u.type, u)
    extents = (matrices, *u.type.shape[-2:])
    yield nests.moved(source, target, extents, "vectors, or NaN", status=status)
    # V^H by columns is the conjugate of V by rows.
    source = turned(matrices_of(made.right.type, made.right))
    target = matrices_of(vh.type, vh)
    extents = (matrices, *vh.type.shape[-2:])
    yield nests.moved(
        source, target, extents, "V^H of V, or NaN", status=status, conjugate=True
    )
    yield nests.or_nan(s, status, "values, or NaN")


def svdvals(equation: Equation, reads: Reads, names: Names) -> Iterable[Made]:
    """gesvd without vectors, of a copy: turned matrices have the same values."""
    (s,) = equation.outputs
    operand = _small_operand(equation, reads)
    if operand is not None:
        yield small_svd.values(operand, s)
        return
    copy = Var(ArrayType(*_of_matrices(equation)))
    yield _copied(equation, reads, names, copy)
    made = _gesvd(copy, s, full=False, vectors=False)
    yield made.call
    yield Nests(equation, names).or_nan(s, made.status, "values, or NaN")
