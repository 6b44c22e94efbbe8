"""Factorizations of matrices by cuSOLVER and cuBLAS: calls, and nests around them.

The libraries are column-major. Primitives whose operands lie by columns (LU, SVD, any
eigenvalues) are theirs as they stand; the others are turned by a nest, which the plan
shows. Where a library says in a status that it failed, a nest puts NaN.

A call is of all matrices of a batch; how it does them is the provider's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from arrayfn import dtypes
from arrayfn.dtypes import DType, short_name
from arrayfn.ir import ArrayType, Equation, Var
from arrayfn.layout import Shape
from arrayfn.lowering.cuda.permutation import Permutation
from arrayfn.lowering.kernel_ir import Constant, Count, Nest, Scalar, Value
from arrayfn.lowering.libraries.calls import LibraryCall, Place, place_of
from arrayfn.lowering.templates.nest_builder import NestBuilder
from arrayfn.lowering.templates.nest_builder import Place as Strided
from arrayfn.passes.reads import Read

Reads = Mapping[Var, Read]
Names = Mapping[Var, str]
Made = LibraryCall | Nest | Permutation

SMALL_SVD: Final = 32
"""Matrices of up to so many rows and columns cuSOLVER decomposes as a batch."""
JACOBI: Final = 512
"""Up to so many rows and columns Jacobi's method is the faster one."""


def _count(type: ArrayType) -> int:
    return math.prod(type.shape[:-2])


def _provider(name: str, type: ArrayType) -> str:
    return f"{name}_{short_name(type.dtype)}"


def _status(matrices: int) -> Var:
    return Var(ArrayType((matrices,), dtypes.int32))


@dataclass(frozen=True)
class _Nests:
    """Nests over the matrices [matrices, rows, columns] of an equation's results."""

    equation: Equation
    names: Names

    def moved(
        self,
        source: Strided,
        target: Strided,
        extents: Shape,
        reason: str,
        *,
        status: Var | None = None,
        conjugate: bool = False,
        triangle: str = "",
    ) -> Nest:
        """``target`` from ``source``; NaN where ``status`` says that it failed.

        Strides of both are of matrices, rows and columns. Outside the ``triangle``,
        ``"lower"`` or ``"upper"``, there are zeros.
        """
        b = NestBuilder(self.equation, self.names)
        dtype = target.dtype
        own = b.operand(target, written=True)
        same = source.array is target.array
        value: Scalar = b.load("raw", own if same else b.operand(source))
        if conjugate and dtype in dtypes.COMPLEX:
            value = b.compute("turned", "conj", value, dtype=dtype, of=dtype)
        if triangle:
            first, second = (1, 2) if triangle == "lower" else (2, 1)
            row, column = self._counted(b, "row", first), self._counted(b, "at", second)
            inside = b.compute(
                "inside", "ge", row, column, dtype=dtypes.bool_, of=dtypes.int64
            )
            zero = Constant(0.0, dtype)
            value = _select(b, "part", inside, value, zero, dtype)
        if status is not None:
            value = self._or_nan(b, value, status, dtype)
        name = self.names[self.equation.outputs[0]]
        result = b.compute(name, "identity", value, dtype=dtype, of=dtype)
        b.store(own, result)
        return b.nest(extents, reason)

    def or_nan(self, output: Var, status: Var, reason: str) -> Nest:
        """``output`` in place; NaN in all of a matrix if ``status`` is not 0."""
        matrices = status.type.size
        each = output.type.size // matrices
        place = Strided(output, output.type.dtype, (each, 1))
        b = NestBuilder(self.equation, self.names)
        own = b.operand(place, written=True)
        dtype = output.type.dtype
        b.store(own, self._or_nan(b, b.load("raw", own), status, dtype, 2))
        return b.nest((matrices, each), reason)

    def from_one(self, raw: Var, output: Var) -> Nest:
        """Pivots that count from 0, of those that count from 1."""
        b = NestBuilder(self.equation, self.names)
        kind = dtypes.int32
        value = b.load("raw", b.operand(Strided(raw, kind, (1,))))
        result = b.compute(
            "pivot", "sub", value, Constant(1, kind), dtype=kind, of=kind
        )
        b.store(b.operand(Strided(output, kind, (1,)), written=True), result)
        return b.nest((output.type.size,), "pivots that count from 0")

    def paired(self, vectors: Var, w: Var, status: Var, output: Var) -> Nest:
        """Complex vectors of real ones: pairs are real and imaginary parts.

        ``vectors`` has a vector more before the first and after the last one.
        """
        b = NestBuilder(self.equation, self.names)
        *_, n, _ = output.type.shape
        matrices = status.type.size
        dtype, real = output.type.dtype, vectors.type.dtype
        kinds = {"dtype": real, "of": real}
        strides = (n * n, n, 1)
        before, own, after = (
            b.load(name, b.operand(Strided(vectors, real, strides, k * n)))
            for k, name in enumerate(("before", "own", "after"))
        )
        value = b.load("value", b.operand(Strided(w, dtype, (n, 1, 0))))
        turns = b.compute("turns", "imag", value, dtype=real, of=dtype)
        zero = Constant(0.0, real)
        bools = {"dtype": dtypes.bool_, "of": real}
        first = b.compute("is_first", "gt", turns, zero, **bools)
        second = b.compute("is_second", "lt", turns, zero, **bools)
        minus = b.compute("minus", "neg", own, **kinds)
        re = _select(b, "re", second, before, own, real)
        rest = _select(b, "rest", second, minus, zero, real)
        im = _select(b, "im", first, after, rest, real)
        whole = b.compute("vector", "complex", re, im, dtype=dtype, of=real)
        target = b.operand(Strided(output, dtype, strides), written=True)
        b.store(target, self._or_nan(b, whole, status, dtype))
        return b.nest((matrices, n, n), "vectors of conjugate pairs")

    def _or_nan(
        self, b: NestBuilder, value: Scalar, status: Var, dtype: DType, ndim: int = 3
    ) -> Value:
        strides = (1,) + (0,) * (ndim - 1)
        kind = dtypes.int32
        state = b.load("status", b.operand(Strided(status, kind, strides)))
        failed = b.compute(
            "failed", "ne", state, Constant(0, kind), dtype=dtypes.bool_, of=kind
        )
        return _select(b, "result", failed, Constant(math.nan, dtype), value, dtype)

    def _counted(self, b: NestBuilder, name: str, axis: int) -> Value:
        result = b.value(name, dtypes.int64)
        b.statements.append(Count(result, axis, "element", 0, b.equation.source))
        return result


def _select(
    b: NestBuilder, name: str, condition: Value, x: Scalar, y: Scalar, dtype: DType
) -> Value:
    return b.compute(name, "select", condition, x, y, dtype=dtype, of=dtype)


def _matrices(type: ArrayType, array: Var, offset: int = 0) -> Strided:
    """An array of row-major matrices."""
    rows, columns = type.shape[-2:]
    return Strided(array, type.dtype, (rows * columns, columns, 1), offset)


def _turned(place: Strided) -> Strided:
    matrix, row, column = place.strides
    return Strided(place.array, place.dtype, (matrix, column, row), place.offset)


def cholesky(equation: Equation, reads: Reads, names: Names) -> Iterable[Made]:
    """potrf in place. Its lower triangle is, by columns, an upper one."""
    output = equation.outputs[0]
    n, matrices = output.type.shape[-1], _count(output.type)
    status = _status(matrices)
    yield LibraryCall(
        provider=_provider("potrf", output.type),
        reads={},
        writes={"a": Place(output), "status": Place(status)},
        integers={"n": n, "matrices": matrices},
        items=1,
        library="cuSOLVER",
    )
    whole = _matrices(output.type, output)
    reason = "the lower triangle, or NaN"
    yield _Nests(equation, names).moved(
        whole, whole, (matrices, n, n), reason, status=status, triangle="lower"
    )


def triangular_solve(equation: Equation, reads: Reads, names: Names) -> Iterable[Made]:
    """trsm in place."""
    params, output = equation.params, equation.outputs[0]
    rows, columns = output.type.shape[-2:]
    yield LibraryCall(
        provider=_provider("trsm", output.type),
        reads={"a": place_of(equation.inputs[1], reads)},
        writes={"b": Place(output)},
        integers={
            "rows": rows,
            "columns": columns,
            "matrices": _count(output.type),
            "left": int(params["left"]),
            "lower": int(params["lower"]),
            "transpose": int(params["transpose"]) + int(params["conjugate"]),
            "unit": int(params["unit"]),
        },
        items=1,
        library="cuBLAS",
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
            "a": Place(factors),
            "pivots": Place(raw),
            "status": Place(_status(matrices)),
        },
        integers={"rows": rows, "columns": columns, "matrices": matrices},
        items=1,
        library="cuSOLVER, cuBLAS",
    )
    yield _Nests(equation, names).from_one(raw, pivots)
    yield Permutation(pivots, 0, permutation)


def pivots_to_permutation(
    equation: Equation, reads: Reads, names: Names
) -> Iterable[Made]:
    """A kernel that swaps."""
    place = place_of(equation.inputs[0], reads)
    yield Permutation(place.array, place.offset, equation.outputs[0])


def qr(equation: Equation, reads: Reads, names: Names) -> Iterable[Made]:
    """geqrf of the turned operand, then orgqr over it; both factors are turned back."""
    q, r = equation.outputs
    x = equation.inputs[0].type
    rows, columns = x.shape[-2:]
    inner, small, matrices = q.type.shape[-1], min(rows, columns), _count(x)
    nests = _Nests(equation, names)
    # Room for Q, which may have more columns than the operand.
    a = Var(ArrayType((matrices, max(inner, columns), rows), x.dtype))
    tau = Var(ArrayType((matrices, small), x.dtype))
    status = _status(matrices)
    place = place_of(equation.inputs[0], reads)
    turned = _turned(_matrices(a.type, a))
    source = _matrices(x, place.array, place.offset)
    yield nests.moved(source, turned, (matrices, rows, columns), "a matrix by columns")
    shape = {"rows": rows, "columns": columns, "matrices": matrices}
    yield LibraryCall(
        provider=_provider("geqrf", x),
        reads={},
        writes={"a": Place(a), "tau": Place(tau), "status": Place(status)},
        integers={**shape, "stride": max(inner, columns) * rows},
        items=1,
        library="cuSOLVER, cuBLAS",
    )
    upper = _matrices(r.type, r)
    extents = (matrices, inner, columns)
    yield nests.moved(turned, upper, extents, "the upper triangle", triangle="upper")
    yield LibraryCall(
        provider=_provider("orgqr", x),
        reads={"tau": Place(tau)},
        writes={"a": Place(a), "status": Place(status)},
        integers={
            "rows": rows,
            "inner": inner,
            "small": small,
            "matrices": matrices,
            "stride": max(inner, columns) * rows,
        },
        items=1,
        library="cuSOLVER",
    )
    whole = _matrices(q.type, q)
    yield nests.moved(turned, whole, (matrices, rows, inner), "Q by rows")


def eigh(equation: Equation, reads: Reads, names: Names) -> Iterable[Made]:
    """syevd or heevd in place: by columns the operand is its conjugate."""
    vectors, values = equation.outputs
    status = _status(_count(vectors.type))
    yield _syevd(vectors, values, status, vectors=True)
    nests = _Nests(equation, names)
    yield nests.or_nan(vectors, status, "vectors, or NaN")
    yield nests.or_nan(values, status, "values, or NaN")


def eigvalsh(equation: Equation, reads: Reads, names: Names) -> Iterable[Made]:
    """syevd or heevd without vectors, over a copy of the operand."""
    (values,) = equation.outputs
    copy = Var(ArrayType(*_of_matrices(equation)))
    yield _copied(equation, reads, names, copy)
    status = _status(copy.type.shape[0])
    yield _syevd(copy, values, status, vectors=False)
    yield _Nests(equation, names).or_nan(values, status, "values, or NaN")


def _of_matrices(equation: Equation) -> tuple[Shape, DType]:
    """The operand's shape with one axis for its batch, and its dtype."""
    x = equation.inputs[0].type
    return (_count(x), *x.shape[-2:]), x.dtype


def _copied(equation: Equation, reads: Reads, names: Names, copy: Var) -> Nest:
    """The operand in memory that may be written over."""
    place = place_of(equation.inputs[0], reads)
    source = _matrices(copy.type, place.array, place.offset)
    target = _matrices(copy.type, copy)
    reason = "a copy that may be written over"
    return _Nests(equation, names).moved(source, target, copy.type.shape, reason)


def _syevd(a: Var, values: Var, status: Var, *, vectors: bool) -> LibraryCall:
    return LibraryCall(
        provider=_provider("syevd", a.type),
        reads={},
        writes={"a": Place(a), "w": Place(values), "status": Place(status)},
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
    nests = _Nests(equation, names)
    if copy.type.dtype in dtypes.COMPLEX:
        yield _geev(copy, values, status, Place(vectors))
        yield nests.or_nan(vectors, status, "vectors, or NaN")
    else:
        # With a vector more at either end, so that each has two neighbours.
        raw = Var(ArrayType((matrices * n + 2, n), copy.type.dtype))
        yield _geev(copy, values, status, Place(raw, n))
        yield nests.paired(raw, values, status, vectors)
    yield nests.or_nan(values, status, "values, or NaN")


def eigvals(equation: Equation, reads: Reads, names: Names) -> Iterable[Made]:
    """geev of a copy, without vectors."""
    (values,) = equation.outputs
    copy = Var(ArrayType(*_of_matrices(equation)))
    yield _copied(equation, reads, names, copy)
    status = _status(copy.type.shape[0])
    yield _geev(copy, values, status, None)
    yield _Nests(equation, names).or_nan(values, status, "values, or NaN")


def _geev(a: Var, values: Var, status: Var, vectors: Place | None) -> LibraryCall:
    writes = {"a": Place(a), "w": Place(values), "status": Place(status)}
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


def svd(equation: Equation, reads: Reads, names: Names) -> Iterable[Made]:
    """gesvd in one of its forms, of a copy: by columns, as U and V are. V is turned."""
    u, s, vh = equation.outputs
    copy = Var(ArrayType(*_of_matrices(equation)))
    yield _copied(equation, reads, names, copy)
    matrices, columns, rows = copy.type.shape
    form = _svd_form(matrices, rows, columns)
    square = form == "gesvdjbatched" or bool(equation.params["full"])
    small = min(rows, columns)
    kinds = (rows if square else small, columns if square else small)
    left = Var(ArrayType((matrices, kinds[0], rows), copy.type.dtype))
    right = Var(ArrayType((matrices, kinds[1], columns), copy.type.dtype))
    status = _status(matrices)
    writes = {"u": Place(left), "v": Place(right)}
    yield _gesvd(form, copy, s, status, writes, full=square)
    nests = _Nests(equation, names)
    extents = (matrices, *u.type.shape[-2:])
    source, target = _matrices(left.type, left), _matrices(u.type, u)
    yield nests.moved(source, target, extents, "vectors, or NaN", status=status)
    # V^H by columns is the conjugate of V by rows.
    target = _matrices(vh.type, vh)
    source = _turned(_matrices(right.type, right))
    extents = (matrices, *vh.type.shape[-2:])
    yield nests.moved(
        source, target, extents, "V^H of V, or NaN", status=status, conjugate=True
    )
    yield nests.or_nan(s, status, "values, or NaN")


def svdvals(equation: Equation, reads: Reads, names: Names) -> Iterable[Made]:
    """gesvd without vectors, of a copy: turned matrices have the same values."""
    (s,) = equation.outputs
    copy = Var(ArrayType(*_of_matrices(equation)))
    yield _copied(equation, reads, names, copy)
    matrices, columns, rows = copy.type.shape
    status = _status(matrices)
    form = _svd_form(matrices, rows, columns)
    yield _gesvd(form, copy, s, status, {}, full=False)
    yield _Nests(equation, names).or_nan(s, status, "values, or NaN")


def _svd_form(matrices: int, rows: int, columns: int) -> str:
    large = max(rows, columns)
    if matrices > 1 and large <= SMALL_SVD:
        return "gesvdjbatched"
    return "gesvdj" if large <= JACOBI else "gesvdp"


def _gesvd(
    form: str,
    a: Var,
    s: Var,
    status: Var,
    writes: Mapping[str, Place],
    *,
    full: bool,
) -> LibraryCall:
    columns, rows = a.type.shape[-2:]
    return LibraryCall(
        provider=_provider(form, a.type),
        reads={},
        writes={"a": Place(a), "s": Place(s), "status": Place(status), **writes},
        integers={
            "rows": rows,
            "columns": columns,
            "matrices": status.type.size,
            "full": int(full),
            "vectors": int(bool(writes)),
        },
        items=1,
        library="cuSOLVER",
    )
