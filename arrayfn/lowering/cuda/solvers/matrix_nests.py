"""Nests around solvers' calls that transpose or cut matrices, or set them to NaN."""

from __future__ import annotations

import math
from collections.abc import Mapping

from arrayfn import dtypes
from arrayfn.dtypes import DType
from arrayfn.ir import ArrayType, Equation, Var
from arrayfn.ir.layout import Shape
from arrayfn.lowering.kernel_ir import Constant, Nest, Scalar, Value
from arrayfn.lowering.libraries.calls import Pointer, pointer_of
from arrayfn.lowering.templates.nest_builder import NestBuilder, StridedArray
from arrayfn.passes.reads import Reads
from arrayfn.records import frozen

Names = Mapping[Var, str]


@frozen
class LibraryEquation:
    """An equation that becomes calls of a library or of handwritten kernels.

    Args:
        equation: The equation.
        reads: Where each operand lies.
        names: What to call arrays in the nests around calls.
    """

    equation: Equation
    reads: Reads
    names: Names

    def operand(self, number: int = 0) -> Pointer:
        """Return where operand ``number`` lies; the operand is row-major."""
        return pointer_of(self.equation.inputs[number], self.reads)

    def builder(self) -> NestBuilder:
        """Make a builder of a nest for the equation."""
        return NestBuilder(self.equation, self.names)


@frozen
class MatrixEquation(LibraryEquation):
    """An equation of linear algebra; builds nests over [matrices, rows, columns]."""

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
        """Build the nest that copies matrices from ``source`` to ``target``.

        Args:
            source: Where the matrices are, with strides of matrices, rows and columns.
            target: Where the matrices go, with strides of the same axes.
            extents: The number of matrices, rows and columns.
            reason: What the nest is for, for the plan's text.
            status: Matrices whose status is not 0 become NaN.
            conjugate: Elements are conjugated.
            triangle: ``"lower"`` or ``"upper"``: elements outside of it become zeros.
        """
        b = self.builder()
        dtype = target.dtype
        target_operand = b.operand(target, written=True)
        same = source.array is target.array
        value: Scalar = b.load("raw", target_operand if same else b.operand(source))
        if conjugate and dtype in dtypes.COMPLEX:
            value = b.compute("conjugated", "conj", value, dtype=dtype, of=dtype)
        if triangle:
            # Axes of the nest: row >= column in a lower triangle, column >= row in an
            # upper one.
            first, second = (1, 2) if triangle == "lower" else (2, 1)
            row, column = b.count("row", first), b.count("at", second)
            inside = b.compute(
                "inside", "ge", row, column, dtype=dtypes.bool_, of=dtypes.int64
            )
            zero = Constant(0.0, dtype)
            value = select(b, "part", inside, value, zero, dtype)
        if status is not None:
            value = self._or_nan(b, value, status, dtype)
        name = self.names[self.equation.outputs[0]]
        result = b.compute(name, "identity", value, dtype=dtype, of=dtype)
        b.store(target_operand, result)
        return b.nest(extents, reason)

    def or_nan(self, output: Var, status: Var, reason: str) -> Nest:
        """Build the nest that sets matrices of ``output`` to NaN by their status.

        ``reason`` is what the nest is for, for the plan's text.
        """
        matrices = status.type.size
        elements = output.type.size // matrices
        matrices_in_memory = StridedArray(output, output.type.dtype, (elements, 1))
        b = self.builder()
        operand = b.operand(matrices_in_memory, written=True)
        dtype = output.type.dtype
        value = b.load("raw", operand)
        b.store(operand, self._or_nan(b, value, status, dtype, ndim=2))
        return b.nest((matrices, elements), reason)

    def from_one(self, raw: Var, output: Var) -> Nest:
        """Build the nest that subtracts 1 from pivots ``raw``, which count from 1."""
        b = self.builder()
        kind = dtypes.int32
        value = b.load("raw", b.operand(StridedArray(raw, kind, (1,))))
        result = b.compute(
            "pivot", "sub", value, Constant(1, kind), dtype=kind, of=kind
        )
        b.store(b.operand(StridedArray(output, kind, (1,)), written=True), result)
        return b.nest((output.type.size,), "pivots that count from 0")

    def conjugate_pairs(self, vectors: Var, w: Var, status: Var, output: Var) -> Nest:
        """Build the nest that makes complex eigenvectors of the real ones of geev.

        For a conjugate pair of eigenvalues geev stores the real and the imaginary part
        as two neighbouring vectors.

        Args:
            vectors: The real vectors, with one more before the first and after the
                last.
            w: The complex eigenvalues, which say where pairs are.
            status: Matrices whose status is not 0 become NaN.
            output: The complex vectors, [..., n, n].
        """
        b = self.builder()
        *_, n, _ = output.type.shape
        matrices = status.type.size
        dtype, real = output.type.dtype, vectors.type.dtype
        kinds = {"dtype": real, "of": real}
        strides = (n * n, n, 1)
        before, vector, after = (
            b.load(name, b.operand(StridedArray(vectors, real, strides, k * n)))
            for k, name in enumerate(("before", "own", "after"))
        )
        value = b.load("value", b.operand(StridedArray(w, dtype, (n, 1, 0))))
        imaginary = b.compute("imaginary", "imag", value, dtype=real, of=dtype)
        zero = Constant(0.0, real)
        bools = {"dtype": dtypes.bool_, "of": real}
        # The first of a pair has a positive imaginary part: its vector is own + i *
        # after. That of the second is before - i * own.
        first = b.compute("is_first", "gt", imaginary, zero, **bools)
        second = b.compute("is_second", "lt", imaginary, zero, **bools)
        minus = b.compute("minus", "neg", vector, **kinds)
        re = select(b, "re", second, before, vector, real)
        rest = select(b, "rest", second, minus, zero, real)
        im = select(b, "im", first, after, rest, real)
        complex_vector = b.compute("vector", "complex", re, im, dtype=dtype, of=real)
        target = b.operand(StridedArray(output, dtype, strides), written=True)
        b.store(target, self._or_nan(b, complex_vector, status, dtype))
        return b.nest((matrices, n, n), "vectors of conjugate pairs")

    def _or_nan(
        self, b: NestBuilder, value: Scalar, status: Var, dtype: DType, ndim: int = 3
    ) -> Value:
        """Append a select: ``value``, or NaN where the matrix's ``status`` is not 0.

        ``b`` builds the nest, which has ``ndim`` axes, matrices first; ``dtype`` is
        the dtype of the value. Returns the result.
        """
        strides = (1,) + (0,) * (ndim - 1)
        kind = dtypes.int32
        state = b.load("status", b.operand(StridedArray(status, kind, strides)))
        failed = b.compute(
            "failed", "ne", state, Constant(0, kind), dtype=dtypes.bool_, of=kind
        )
        return select(b, "result", failed, Constant(math.nan, dtype), value, dtype)


def select(
    b: NestBuilder, name: str, condition: Value, x: Scalar, y: Scalar, dtype: DType
) -> Value:
    """Append the value that is ``x`` where ``condition`` holds, else ``y``.

    ``b`` builds the nest; the value's name begins with ``name``.
    """
    return b.compute(name, "select", condition, x, y, dtype=dtype, of=dtype)


def matrices_of(array: Var) -> StridedArray:
    """View ``array`` [..., rows, columns] as row-major matrices with one batch axis."""
    return matrices_at(Pointer(array), array.type)


def matrices_at(pointer: Pointer, type: ArrayType) -> StridedArray:
    """Return the row-major matrices of the array of ``type`` at ``pointer``.

    ``type`` is [..., rows, columns]; the result has one batch axis.
    """
    rows, columns = type.shape[-2:]
    strides = (rows * columns, columns, 1)
    return StridedArray(pointer.array, type.dtype, strides, pointer.offset)


def transposed(array: StridedArray) -> StridedArray:
    """View the matrices of ``array`` with rows and columns exchanged."""
    matrix, row, column = array.strides
    return StridedArray(array.array, array.dtype, (matrix, column, row), array.offset)


def backward(array: StridedArray, extent: int, axis: int) -> StridedArray:
    """View the matrices of ``array`` in reverse order along ``axis`` of ``extent``."""
    strides = list(array.strides)
    offset = array.offset + (extent - 1) * strides[axis]
    strides[axis] = -strides[axis]
    return StridedArray(array.array, array.dtype, tuple(strides), offset)
