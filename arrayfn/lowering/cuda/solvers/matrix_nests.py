"""Nests around solvers' calls that transpose, cut or set matrices to NaN."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from arrayfn import dtypes
from arrayfn.dtypes import DType
from arrayfn.ir import ArrayType, Equation, Var
from arrayfn.ir.layout import Shape
from arrayfn.lowering.kernel_ir import Constant, Count, Nest, Scalar, Value
from arrayfn.lowering.templates.nest_builder import NestBuilder, StridedArray

Names = Mapping[Var, str]


@dataclass(frozen=True)
class Nests:
    """Builds nests over matrices [matrices, rows, columns] for one equation."""

    equation: Equation
    names: Names

    def moved(
        self,
        source: StridedArray,
        target: StridedArray,
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
            value = b.compute("conjugated", "conj", value, dtype=dtype, of=dtype)
        if triangle:
            first, second = (1, 2) if triangle == "lower" else (2, 1)
            row, column = self.counted(b, "row", first), self.counted(b, "at", second)
            inside = b.compute(
                "inside", "ge", row, column, dtype=dtypes.bool_, of=dtypes.int64
            )
            zero = Constant(0.0, dtype)
            value = select(b, "part", inside, value, zero, dtype)
        if status is not None:
            value = self._or_nan(b, value, status, dtype)
        name = self.names[self.equation.outputs[0]]
        result = b.compute(name, "identity", value, dtype=dtype, of=dtype)
        b.store(own, result)
        return b.nest(extents, reason)

    def or_nan(self, output: Var, status: Var, reason: str) -> Nest:
        """The nest that sets matrices to NaN, in place, whose ``status`` is not 0."""
        matrices = status.type.size
        each = output.type.size // matrices
        place = StridedArray(output, output.type.dtype, (each, 1))
        b = NestBuilder(self.equation, self.names)
        own = b.operand(place, written=True)
        dtype = output.type.dtype
        b.store(own, self._or_nan(b, b.load("raw", own), status, dtype, 2))
        return b.nest((matrices, each), reason)

    def from_one(self, raw: Var, output: Var) -> Nest:
        """The nest that makes pivots count from 0 instead of 1."""
        b = NestBuilder(self.equation, self.names)
        kind = dtypes.int32
        value = b.load("raw", b.operand(StridedArray(raw, kind, (1,))))
        result = b.compute(
            "pivot", "sub", value, Constant(1, kind), dtype=kind, of=kind
        )
        b.store(b.operand(StridedArray(output, kind, (1,)), written=True), result)
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
            b.load(name, b.operand(StridedArray(vectors, real, strides, k * n)))
            for k, name in enumerate(("before", "own", "after"))
        )
        value = b.load("value", b.operand(StridedArray(w, dtype, (n, 1, 0))))
        imaginary = b.compute("imaginary", "imag", value, dtype=real, of=dtype)
        zero = Constant(0.0, real)
        bools = {"dtype": dtypes.bool_, "of": real}
        first = b.compute("is_first", "gt", imaginary, zero, **bools)
        second = b.compute("is_second", "lt", imaginary, zero, **bools)
        minus = b.compute("minus", "neg", own, **kinds)
        re = select(b, "re", second, before, own, real)
        rest = select(b, "rest", second, minus, zero, real)
        im = select(b, "im", first, after, rest, real)
        whole = b.compute("vector", "complex", re, im, dtype=dtype, of=real)
        target = b.operand(StridedArray(output, dtype, strides), written=True)
        b.store(target, self._or_nan(b, whole, status, dtype))
        return b.nest((matrices, n, n), "vectors of conjugate pairs")

    def _or_nan(
        self, b: NestBuilder, value: Scalar, status: Var, dtype: DType, ndim: int = 3
    ) -> Value:
        strides = (1,) + (0,) * (ndim - 1)
        kind = dtypes.int32
        state = b.load("status", b.operand(StridedArray(status, kind, strides)))
        failed = b.compute(
            "failed", "ne", state, Constant(0, kind), dtype=dtypes.bool_, of=kind
        )
        return select(b, "result", failed, Constant(math.nan, dtype), value, dtype)

    def counted(self, b: NestBuilder, name: str, axis: int) -> Value:
        """The index along ``axis``."""
        result = b.value(name, dtypes.int64)
        b.statements.append(Count(result, axis, "element", 0, b.equation.source))
        return result


def select(
    b: NestBuilder, name: str, condition: Value, x: Scalar, y: Scalar, dtype: DType
) -> Value:
    """``x`` where ``condition`` holds, else ``y``."""
    return b.compute(name, "select", condition, x, y, dtype=dtype, of=dtype)


def matrices_of(type: ArrayType, array: Var, offset: int = 0) -> StridedArray:
    """An array of row-major matrices."""
    rows, columns = type.shape[-2:]
    return StridedArray(array, type.dtype, (rows * columns, columns, 1), offset)


def transposed(place: StridedArray) -> StridedArray:
    """The same matrices, transposed."""
    matrix, row, column = place.strides
    return StridedArray(place.array, place.dtype, (matrix, column, row), place.offset)


def backward(place: StridedArray, extent: int, axis: int) -> StridedArray:
    """The same matrices, from the last index along an axis of ``extent`` on."""
    strides = list(place.strides)
    offset = place.offset + (extent - 1) * strides[axis]
    strides[axis] = -strides[axis]
    return StridedArray(place.array, place.dtype, tuple(strides), offset)
