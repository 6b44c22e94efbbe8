"""Lowers factorizations of matrices to cuSOLVER and cuBLAS calls, with nests.

The libraries are column-major. They compute primitives with column-major operands (LU,
SVD, all eigenvalues) directly; operands of others are transposed by a nest, which the
plan shows. Where a library's status says that it failed, a nest stores NaN. One call
covers all matrices of a batch; the provider chooses how.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final

from arrayfn import dtypes
from arrayfn.dtypes import DType, short_name
from arrayfn.ir import ArrayType, Var
from arrayfn.ir.layout import Shape
from arrayfn.lowering.cuda.handwritten import Lowered
from arrayfn.lowering.cuda.solvers import cholesky as factors
from arrayfn.lowering.cuda.solvers import cholesky_tiles, jacobi, small_svd
from arrayfn.lowering.cuda.solvers.matrix_nests import (
    MatrixEquation,
    matrices_at,
    matrices_of,
    transposed,
)
from arrayfn.lowering.cuda.solvers.permutation import permuted
from arrayfn.lowering.cuda.solvers.triangular import System, solved
from arrayfn.lowering.kernel_ir import Nest
from arrayfn.lowering.libraries.calls import LibraryCall, Pointer, new_array

BATCHED: Final = 128
"""A batch of m matrices of up to ``BATCHED * m`` rows is factored by a batched call."""
TRANSPOSED: Final = 128
"""A single matrix of at least so many rows is transposed before cuSOLVER factors it."""
SMALL_SVD: Final = 32
"""Rows and columns of the largest matrices for cuSOLVER's batched SVD."""
SMALL_EIGH: Final = 32
"""A batch of symmetric matrices of up to so many rows is solved by Jacobi's method."""
JACOBI: Final = 128
"""A matrix of up to so many rows and columns has its SVD by Jacobi's method.

A batch always has: the polar decomposition, which is faster for a large matrix, uses
host memory that successive calls would share.
"""


def _count(type: ArrayType) -> int:
    """How many matrices an array of ``type`` [..., rows, columns] has."""
    return math.prod(type.shape[:-2])


def _call(
    form: str,
    type: ArrayType,
    writes: Mapping[str, Pointer],
    library: str = "cuSOLVER",
    **integers: int,
) -> LibraryCall:
    """Return a call of the library's function ``form``, in place.

    It is the form for the dtype of ``type``: ``potrf_f32``. ``writes`` are its arrays
    and ``integers`` its sizes, by name; ``library`` is what the plan's text names.
    """
    provider = f"{form}_{short_name(type.dtype)}"
    return LibraryCall(provider, {}, writes, integers, items=1, library=library)


def _status(matrices: int) -> Var:
    """Make an array for the status of each of ``matrices``; 0 means success."""
    return Var(ArrayType((matrices,), dtypes.int32))


def cholesky(op: MatrixEquation) -> Iterable[Lowered]:
    """Yield the steps of a Cholesky factorization: a kernel, or potrf.

    One kernel factors small matrices, and another most larger ones by tiles. For potrf,
    the lower triangle is an upper one in column-major order. cuSOLVER factors the lower
    triangle of a large matrix by columns in less than half the time, so such a matrix
    is transposed before and after. The last step stores NaN where there is no factor.
    """
    output = op.equation.outputs[0]
    n, matrices = output.type.shape[-1], _count(output.type)
    if factors.is_small(output.type.dtype, n):
        yield factors.small_factors(output)
        return
    status = _status(matrices)
    matrices_in = matrices_of(output)
    extents = (matrices, n, n)
    pointer, factor = Pointer(output), matrices_in
    if cholesky_tiles.is_tiled(output.type.dtype, n, matrices):
        yield cholesky_tiles.tiled_factors(output, status)
    else:
        is_transposed = n > BATCHED * matrices or (matrices == 1 and n >= TRANSPOSED)
        if is_transposed:
            copy = Var(ArrayType(extents, output.type.dtype))
            pointer, factor = Pointer(copy), transposed(matrices_of(copy))
            yield op.moved(matrices_in, factor, extents, "a matrix by columns")
        writes = {"a": pointer, "status": Pointer(status)}
        upper = int(not is_transposed)
        yield _call("potrf", output.type, writes, n=n, matrices=matrices, upper=upper)
    reason = "the lower triangle, or NaN"
    yield op.moved(
        factor, matrices_in, extents, reason, status=status, triangle="lower"
    )


def triangular_solve(op: MatrixEquation) -> Iterable[Lowered]:
    """Return the steps of a triangular solve, in place: trsm, or a kernel."""
    params, output = op.equation.params, op.equation.outputs[0]
    return solved(op, op.operand(1), output, System(**params))


def lu(op: MatrixEquation) -> Iterable[Lowered]:
    """Yield the steps of an LU factorization of a column-major operand, in place.

    They are a call of getrf, the conversion of its pivots to numbers from 0, and the
    permutation. A singular U does not count as a failure, so the status is not read.
    """
    factors, pivots, permutation = op.equation.outputs
    columns, rows = factors.type.shape[-2:]
    matrices = _count(factors.type)
    raw = Var(ArrayType(pivots.type.shape, dtypes.int32))
    status = Pointer(_status(matrices))
    writes = {"a": Pointer(factors), "pivots": Pointer(raw), "status": status}
    sizes = {"rows": rows, "columns": columns, "matrices": matrices}
    yield _call("getrf", factors.type, writes, "cuSOLVER, cuBLAS", **sizes)
    yield op.from_one(raw, pivots)
    yield permuted(Pointer(pivots), permutation)


def pivots_to_permutation(op: MatrixEquation) -> Iterable[Lowered]:
    """Yield the kernel that applies swaps of rows to the identity permutation."""
    yield permuted(op.operand(), op.equation.outputs[0])


def eigh(op: MatrixEquation) -> Iterable[Lowered]:
    """Yield the steps of eigenvalues and eigenvectors of Hermitian matrices.

    A kernel computes small matrices, syevd or heevd others, both in place of the
    operand. The library reads by columns, so it sees the conjugate of the matrix; its
    eigenvectors as columns are V^H as rows. Nests store NaN where a matrix failed.
    """
    vectors, values = op.equation.outputs
    if jacobi.is_small(vectors.type.dtype, vectors.type.shape[-1]):
        yield jacobi.eigenvectors(vectors, values)
        return
    status = _status(_count(vectors.type))
    yield _syevd(vectors, values, status, vectors=True)
    yield op.or_nan(vectors, status, "vectors, or NaN")
    yield op.or_nan(values, status, "values, or NaN")


def eigvalsh(op: MatrixEquation) -> Iterable[Lowered]:
    """Yield the steps of eigenvalues of Hermitian matrices.

    A kernel computes small matrices. For others it is syevd or heevd of a copy, which
    is overwritten, and a nest that stores NaN where a matrix failed.
    """
    (values,) = op.equation.outputs
    copy, nest = _copy_of_operand(op)
    if jacobi.is_small(copy.type.dtype, copy.type.shape[-1]):
        yield jacobi.eigenvalues(copy, op.operand(), values)
        return
    yield nest
    status = _status(copy.type.shape[0])
    yield _syevd(copy, values, status, vectors=False)
    yield op.or_nan(values, status, "values, or NaN")


def _of_matrices(op: MatrixEquation) -> tuple[Shape, DType]:
    """Return the operand's shape with all batch axes as one, and its dtype."""
    x = op.equation.inputs[0].type
    return (_count(x), *x.shape[-2:]), x.dtype


def _copy_of_operand(op: MatrixEquation) -> tuple[Var, Nest]:
    """Return a new array for a copy of the operand, and the nest that copies.

    The library may overwrite the copy.
    """
    copy = Var(ArrayType(*_of_matrices(op)))
    source = matrices_at(op.operand(), copy.type)
    target = matrices_of(copy)
    reason = "a copy that may be written over"
    return copy, op.moved(source, target, copy.type.shape, reason)


def _syevd(a: Var, values: Var, status: Var, *, vectors: bool) -> LibraryCall:
    """Return the call for eigenvalues of symmetric or Hermitian matrices ``a``.

    ``a`` is overwritten, with eigenvectors if ``vectors``. The eigenvalues go to
    ``values``, and ``status`` says which matrices failed. Many small matrices are
    solved by Jacobi's method.
    """
    n, matrices = a.type.shape[-1], status.type.size
    form = "syevjbatched" if matrices > 1 and n <= SMALL_EIGH else "syevd"
    writes = {"a": Pointer(a), "w": Pointer(values), "status": Pointer(status)}
    return _call(form, a.type, writes, n=n, matrices=matrices, vectors=int(vectors))


def eig(op: MatrixEquation) -> Iterable[Lowered]:
    """Yield the steps of general eigenvalues and eigenvectors: geev of a copy.

    For real matrices geev stores a complex vector as two real ones, which a nest
    combines. Nests store NaN where a matrix failed.
    """
    vectors, values = op.equation.outputs
    copy, nest = _copy_of_operand(op)
    yield nest
    matrices, n, _ = copy.type.shape
    status = _status(matrices)
    if copy.type.dtype in dtypes.COMPLEX:
        yield _geev(copy, values, status, Pointer(vectors))
        yield op.or_nan(vectors, status, "vectors, or NaN")
    else:
        # One more vector at either end, so that each vector has two neighbours.
        raw = Var(ArrayType((matrices * n + 2, n), copy.type.dtype))
        yield _geev(copy, values, status, Pointer(raw, n))
        yield op.conjugate_pairs(raw, values, status, vectors)
    yield op.or_nan(values, status, "values, or NaN")


def eigvals(op: MatrixEquation) -> Iterable[Lowered]:
    """Yield the steps of general eigenvalues: geev of a copy, without vectors."""
    (values,) = op.equation.outputs
    copy, nest = _copy_of_operand(op)
    yield nest
    status = _status(copy.type.shape[0])
    yield _geev(copy, values, status, None)
    yield op.or_nan(values, status, "values, or NaN")


def _geev(a: Var, values: Var, status: Var, vectors: Pointer | None) -> LibraryCall:
    """Return the call for eigenvalues of general matrices ``a``.

    ``a`` is overwritten. The eigenvalues go to ``values``, eigenvectors to ``vectors``
    if that is not None, and ``status`` says which matrices failed.
    """
    writes = {"a": Pointer(a), "w": Pointer(values), "status": Pointer(status)}
    if vectors is not None:
        writes["v"] = vectors
    form, matrices = "geev" if vectors else "geevvalues", status.type.size
    return _call(form, a.type, writes, n=a.type.shape[-1], matrices=matrices)


def _gesvd(copy: Var, s: Var, *, full: bool, vectors: bool) -> LibraryCall:
    """Return the call for singular values ``s`` of the matrices ``copy``.

    ``copy`` [matrices, columns, rows] is overwritten. The call also writes the singular
    vectors ``u`` and ``v``, column-major as the operand is, and ``status``, which says
    which matrices failed. With ``full`` the vectors are whole bases. Without
    ``vectors`` only the values are computed. The form is Jacobi's method for small
    matrices and for batches, else the polar decomposition.
    """
    matrices, columns, rows = copy.type.shape
    small, large = min(rows, columns), max(rows, columns)
    form = "gesvdj" if large <= JACOBI or matrices > 1 else "gesvdp"
    if matrices > 1 and large <= SMALL_SVD:
        form, full = "gesvdjbatched", True
    # Some forms write vectors even if only values are asked for.
    left, right = (
        new_array(copy.type.dtype, matrices, n if full else small, n)
        for n in (rows, columns)
    )
    writes = {
        "a": Pointer(copy),
        "s": Pointer(s),
        "status": Pointer(_status(matrices)),
        "u": left,
        "v": right,
    }
    return _call(
        form,
        copy.type,
        writes,
        rows=rows,
        columns=columns,
        matrices=matrices,
        full=int(full),
        vectors=int(vectors),
    )


def _small_operand(op: MatrixEquation) -> small_svd.Operand | None:
    """Return the small-matrix kernel's operand; None if the library computes."""
    (matrices, columns, rows), dtype = _of_matrices(op)
    if not small_svd.is_small(dtype, rows, columns):
        return None
    return small_svd.Operand(op.operand(), matrices, columns, rows)


def svd(op: MatrixEquation) -> Iterable[Lowered]:
    """Yield the steps of a singular value decomposition.

    A kernel computes small matrices. For others it is a form of gesvd of a copy, and
    nests that transpose the vectors, and store NaN where a matrix failed.
    """
    u, s, vh = op.equation.outputs
    full = bool(op.equation.params["full"])
    operand = _small_operand(op)
    if operand is not None:
        yield small_svd.vectors(operand, s, u, vh, full=full)
        return
    copy, nest = _copy_of_operand(op)
    yield nest
    call = _gesvd(copy, s, full=full, vectors=True)
    yield call
    left, right, status = (call.writes[name].array for name in ("u", "v", "status"))
    matrices = status.type.size
    source, target = matrices_of(left), matrices_of(u)
    extents = (matrices, *u.type.shape[-2:])
    yield op.moved(source, target, extents, "vectors, or NaN", status=status)
    # V^H by columns is the conjugate of V by rows.
    source = transposed(matrices_of(right))
    target = matrices_of(vh)
    extents = (matrices, *vh.type.shape[-2:])
    yield op.moved(
        source, target, extents, "V^H of V, or NaN", status=status, conjugate=True
    )
    yield op.or_nan(s, status, "values, or NaN")


def svdvals(op: MatrixEquation) -> Iterable[Lowered]:
    """Yield the steps of singular values: a kernel, or gesvd of a copy.

    The copy's memory is read by columns, as its transpose, which has the same values.
    """
    (s,) = op.equation.outputs
    operand = _small_operand(op)
    if operand is not None:
        yield small_svd.values(operand, s)
        return
    copy, nest = _copy_of_operand(op)
    yield nest
    call = _gesvd(copy, s, full=False, vectors=False)
    yield call
    yield op.or_nan(s, call.writes["status"].array, "values, or NaN")
