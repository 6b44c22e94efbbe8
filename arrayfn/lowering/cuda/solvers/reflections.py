"""QR factors: reflections by cuSOLVER or cuBLAS, and Q by matrix products.

The product of reflections 1 - tau v v^H is 1 - V T V^H, where T is upper triangular: (1
+ diag(tau) striu(V^H V)) T = diag(tau) (Puglisi, "Modification of the Householder
method based on the compact WY representation", 1992). So Q is two products and a
triangular system, of any number of matrices at once, where LAPACK's orgqr would apply
one reflection after the other.
"""

from __future__ import annotations

from collections.abc import Iterable

from arrayfn import dtypes
from arrayfn.dtypes import short_name
from arrayfn.ir import ArrayType, Var
from arrayfn.lowering.cuda.handwritten import Lowered
from arrayfn.lowering.cuda.solvers.matrix_nests import (
    MatrixEquation,
    matrices_at,
    matrices_of,
    select,
    transposed,
)
from arrayfn.lowering.cuda.solvers.triangular import System, solved
from arrayfn.lowering.kernel_ir import Constant, Nest, Scalar, Value
from arrayfn.lowering.libraries.calls import LibraryCall, Pointer, new_array
from arrayfn.lowering.templates.nest_builder import NestBuilder, StridedArray
from arrayfn.records import frozen


def qr(op: MatrixEquation) -> Iterable[Lowered]:
    """Yield the steps of a QR factorization: geqrf, R's triangle, Q's product.

    geqrf is column-major, so a nest transposes the operand first.
    """
    x = op.equation.inputs[0].type
    reflections = _Reflections.of(op)
    rows, columns = x.shape[-2:]
    column_major = matrices_of(reflections.a)
    yield op.moved(
        transposed(matrices_at(op.operand(), x)),
        column_major,
        reflections.a.type.shape,
        "a matrix by columns",
    )
    yield LibraryCall(
        provider=f"geqrf_{short_name(x.dtype)}",
        reads={},
        writes={
            "a": Pointer(reflections.a),
            "tau": Pointer(reflections.tau),
            "status": new_array(dtypes.int32, reflections.matrices),
        },
        integers={"rows": rows, "columns": columns, "matrices": reflections.matrices},
        items=1,
        library="cuSOLVER, cuBLAS",
    )
    r = op.equation.outputs[1]
    yield op.moved(
        transposed(column_major),
        matrices_of(r),
        (reflections.matrices, *r.type.shape[-2:]),
        "the upper triangle",
        triangle="upper",
    )
    yield from reflections.product()


@frozen
class _Reflections:
    """Reflections as geqrf stores them, and the steps that compute Q from them.

    ``a`` [matrices, columns, rows] has the reflections' vectors, below the diagonal in
    column-major order, and ``tau`` [matrices, reflections] their scales.
    """

    op: MatrixEquation
    a: Var
    tau: Var

    @staticmethod
    def of(op: MatrixEquation) -> _Reflections:
        """Make new arrays for the reflections of the factorization ``op``."""
        q, r = op.equation.outputs
        rows, columns = q.type.shape[-2], r.type.shape[-1]
        matrices = q.type.size // (rows * q.type.shape[-1])
        a = Var(ArrayType((matrices, columns, rows), q.type.dtype))
        tau = Var(ArrayType((matrices, min(rows, columns)), q.type.dtype))
        return _Reflections(op, a, tau)

    @property
    def matrices(self) -> int:
        """The number of matrices."""
        return self.a.type.shape[0]

    def product(self) -> Iterable[Lowered]:
        """Yield the steps that compute Q.

        ``v`` is V^T, ``gram`` is (V^H V)^T. ``t`` is diag(tau) V^H, and then T V^H, the
        solution of the triangular system. ``rest`` is V T V^H, which is subtracted from
        1.
        """
        # ``small`` is the number of reflections, ``inner`` the number of columns of Q.
        (q, _), dtype = self.op.equation.outputs, self.a.type.dtype
        rows, inner = q.type.shape[-2:]
        count, small = self.matrices, self.tau.type.shape[-1]
        v = Var(ArrayType((count, small, rows), dtype))
        gram, system = (Var(ArrayType((count, small, small), dtype)) for _ in range(2))
        t = Var(ArrayType((count, small, inner), dtype))
        rest = Var(ArrayType((count, rows, inner), dtype))
        yield self._vectors(v)
        yield _product(v, v, gram, transpose_b=2)
        yield self._scaled(transposed(matrices_of(gram)), system, "a system")
        yield self._scaled(matrices_of(v), t, "its right-hand side", conjugate=True)
        upper = System(left=True, lower=False, unit=True)
        yield from solved(self.op, Pointer(system), t, upper)
        yield _product(v, t, rest, transpose_a=1)
        yield self._less(rest, q)

    def _vectors(self, v: Var) -> Nest:
        """Return the nest that stores the reflections' vectors in ``v``.

        ``v`` is [matrices, reflections, rows]. A vector is 1 on the diagonal, and 0
        before it.
        """
        b, dtype = self.op.builder(), v.type.dtype
        raw = b.load("raw", b.operand(matrices_of(self.a)))
        before, equal = self._triangle_tests(b)
        zero, one = (Constant(number, dtype) for number in (0.0, 1.0))
        part = select(b, "part", before, raw, zero, dtype)
        b.store(
            b.operand(matrices_of(v), written=True),
            select(b, "vector", equal, one, part, dtype),
        )
        return b.nest(v.type.shape, "vectors of reflections")

    def _scaled(
        self,
        source: StridedArray,
        target: Var,
        reason: str,
        *,
        conjugate: bool = False,
    ) -> Nest:
        """Build the nest that multiplies rows of ``source`` by the scales ``tau``.

        The products go to ``target``. With ``conjugate`` elements are conjugated;
        ``reason`` is for the plan's text.
        """
        b, dtype = self.op.builder(), target.type.dtype
        small = self.tau.type.shape[-1]
        value: Scalar = b.load("raw", b.operand(source))
        if conjugate and dtype in dtypes.COMPLEX:
            value = b.compute("conjugated", "conj", value, dtype=dtype, of=dtype)
        scale = b.load("scale", b.operand(StridedArray(self.tau, dtype, (small, 1, 0))))
        scaled = b.compute("scaled", "mul", scale, value, dtype=dtype, of=dtype)
        b.store(b.operand(matrices_of(target), written=True), scaled)
        return b.nest(target.type.shape, reason)

    def _less(self, rest: Var, q: Var) -> Nest:
        """Build the nest that stores the identity minus ``rest`` in ``q``."""
        b, dtype = self.op.builder(), q.type.dtype
        value = b.load("rest", b.operand(matrices_of(rest)))
        _, equal = self._triangle_tests(b)
        zero, one = (Constant(number, dtype) for number in (0.0, 1.0))
        unit = select(b, "unit", equal, one, zero, dtype)
        result = b.compute("q", "sub", unit, value, dtype=dtype, of=dtype)
        b.store(b.operand(matrices_of(q), written=True), result)
        return b.nest(rest.type.shape, "Q")

    def _triangle_tests(self, b: NestBuilder) -> tuple[Value, Value]:
        """Append two tests: is an element above the diagonal, and is it on it.

        Both are values of the nest that ``b`` builds: its row is less than its column,
        or the same.
        """
        row, column = b.count("row", 1), b.count("at", 2)
        kinds = {"dtype": dtypes.bool_, "of": dtypes.int64}
        return (
            b.compute("after", "lt", row, column, **kinds),
            b.compute("own", "eq", row, column, **kinds),
        )


def _product(
    x: Var, y: Var, result: Var, transpose_a: int = 0, transpose_b: int = 0
) -> LibraryCall:
    """Return the call that multiplies matrices of ``x`` and ``y`` into ``result``.

    All are row-major. ``transpose_a`` is 1 if the matrices of ``x`` are transposed,
    ``transpose_b`` likewise for ``y``, or 2 if they are also conjugated.
    """
    count, m, n = result.type.shape
    k = x.type.shape[1] if transpose_a else x.type.shape[2]
    return LibraryCall(
        provider=f"gemm_{short_name(x.type.dtype)}",
        reads={"a": Pointer(x), "b": Pointer(y)},
        writes={"c": Pointer(result)},
        integers={
            "m": m,
            "n": n,
            "k": k,
            "lda": x.type.shape[2],
            "ldb": y.type.shape[2],
            "ldc": n,
            "transpose_a": transpose_a,
            "transpose_b": transpose_b,
            "batch": count,
            "batch_stride_a": x.type.size // count,
            "batch_stride_b": y.type.size // count,
            "batch_stride_c": m * n,
            "tile_m": m,
            "tile_n": n,
        },
        items=1,
        library="cuBLASLt",
    )
