"""Builds nests by hand: operands with strides, and scalar statements."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from arrayfn import dtypes
from arrayfn.dtypes import DType, compute_dtype, short_name
from arrayfn.ir import Atom, Equation, Literal, Var
from arrayfn.ir.layout import Shape
from arrayfn.lowering.build import drop_unit_axes, merge_axes, order_axes
from arrayfn.lowering.kernel_ir import (
    ArrayOperand,
    Axis,
    Compute,
    Constant,
    Count,
    IndexTerm,
    Load,
    Nest,
    Reduce,
    Scalar,
    Statement,
    Store,
    Value,
    constant_of,
)
from arrayfn.lowering.kernel_text import unique_name
from arrayfn.passes.reads import Read
from arrayfn.primitives.base import Reduction
from arrayfn.records import frozen

Names = Mapping[Var, str]
"""What to call values, in the text of kernels."""


@frozen
class StridedArray:
    """The memory of a value: ``array``, with a stride for each axis of the value."""

    array: Var
    dtype: DType
    strides: tuple[int, ...]
    offset: int = 0

    def raw(self) -> StridedArray:
        """Return the same memory as integers, if its dtype is a 16-bit float or bool.

        Copies then move bits, without a conversion.
        """
        return replace(self, dtype=_RAW.get(self.dtype, self.dtype))

    def spread(self, ndim: int) -> StridedArray:
        """Return the memory of a scalar, broadcast to ``ndim`` axes by strides of 0."""
        return replace(self, strides=(0,) * ndim)

    def begin_at(self, starts: Sequence[int], steps: Sequence[int]) -> StridedArray:
        """Return the slice from ``starts`` on, of every ``steps``-th element.

        Both have a number for each axis.
        """
        strides = zip(starts, self.strides, strict=True)
        offset = self.offset + sum(start * stride for start, stride in strides)
        pairs = zip(steps, self.strides, strict=True)
        return replace(
            self, strides=tuple(step * stride for step, stride in pairs), offset=offset
        )


_RAW = {
    dtypes.bool_: dtypes.uint8,
    dtypes.float16: dtypes.uint16,
    dtypes.bfloat16: dtypes.uint16,
}


def source_of(atom: Atom, reads: Mapping[Var, Read]) -> StridedArray | Constant:
    """Return the memory of the elements of ``atom``, or the Constant of a Literal."""
    if isinstance(atom, Literal):
        return constant_of(atom)
    return array_of(atom, reads)


def array_of(atom: Atom, reads: Mapping[Var, Read]) -> StridedArray:
    """Return the memory of the elements of ``atom``, an array or a view of one.

    ``reads`` has, for each Var, the array that it is read from and the index map.
    """
    assert isinstance(atom, Var)
    read = reads[atom]
    base = read.base.type
    strides = base.layout.strides(base.shape)
    return StridedArray(
        read.base,
        atom.type.dtype,
        read.strides(strides, atom.type.ndim),
        read.offset(strides),
    )


def output_array(equation: Equation) -> StridedArray:
    """Return the memory of the first output of ``equation``."""
    output = equation.outputs[0]
    strides = output.type.layout.strides(output.type.shape)
    return StridedArray(output, output.type.dtype, strides)


class NestBuilder:
    """Collects the operands and statements of a nest without stages.

    ::

        b = NestBuilder(equation, names)
        value = b.load("x", b.operand(source))
        b.store(b.operand(target, written=True), value)
        nest = b.nest(shape, "a copy")
    """

    def __init__(self, equation: Equation, names: Names) -> None:
        self.equation = equation
        self.names = names
        self.operands: list[ArrayOperand] = []
        self.statements: list[Statement] = []
        self.used_names: set[str] = set()  # of values

    def operand(self, memory: StridedArray, *, written: bool = False) -> int:
        """Add an operand with a stride for each axis of the nest; return its number."""
        self.operands.append(
            ArrayOperand(
                memory.array, memory.dtype, memory.strides, memory.offset, written
            )
        )
        return len(self.operands) - 1

    def value(self, name: str, dtype: DType) -> Value:
        """Make a new scalar; a number is appended to a name that is in use.

        The scalar has the compute dtype of ``dtype``.
        """
        unique = unique_name(name, self.used_names, number=1)
        return Value(unique, compute_dtype(dtype))

    def load(self, name: str, operand: int, indices: Sequence[IndexTerm] = ()) -> Value:
        """Add a load of ``operand`` at the current index plus ``indices``.

        Returns its result, called ``name``.
        """
        result = self.value(name, self.operands[operand].dtype)
        self.statements.append(
            Load(
                result,
                operand,
                "element",
                stage=0,
                source=self.equation.source,
                indices=tuple(indices),
            )
        )
        return result

    def scalar(
        self,
        atom: Atom,
        source: StridedArray | Constant,
        indices: Sequence[IndexTerm] = (),
    ) -> Scalar:
        """Return the scalar of ``atom``: its constant, or an element of ``source``.

        For an element, a load is added, with ``indices`` as computed terms of its
        index.
        """
        if isinstance(source, Constant):
            return source
        assert isinstance(atom, Var)
        return self.load(self.names[atom], self.operand(source), indices)

    def move(
        self,
        atom: Atom,
        source: StridedArray | Constant,
        target: StridedArray,
        *,
        source_indices: Sequence[IndexTerm] = (),
        target_indices: Sequence[IndexTerm] = (),
        where: Value | None = None,
    ) -> None:
        """Add statements that copy the bits of ``source`` to ``target``.

        Args:
            atom: the value that is copied, whose name the scalar gets.
            source: its memory, or the constant that it is.
            target: the memory that is written.
            source_indices: computed terms of the index that is read.
            target_indices: computed terms of the index that is written.
            where: a bool of the nest: whether to store.
        """
        if isinstance(source, StridedArray):
            source, target = source.raw(), target.raw()
        value = self.scalar(atom, source, source_indices)
        name, dtype = self.names[self.equation.outputs[0]], target.dtype
        result = self.compute(name, "identity", value, dtype=dtype)
        self.store(self.operand(target, written=True), result, target_indices, where)

    def compute(
        self,
        name: str,
        function: str,
        *arguments: Scalar,
        dtype: DType,
        of: DType | None = None,
    ) -> Value:
        """Add the computation of ``function`` of ``arguments``; return its result.

        The result is called ``name`` and has ``dtype``. ``of``, which gives the
        function its suffix, is the dtype of the arguments if it is another, as in a
        comparison. The bool of a ``select`` does not count, nor the argument of a
        conversion such as ``"convert_i32"``.
        """
        result = self.value(name, dtype)
        suffix = short_name(compute_dtype(dtype if of is None else of))
        self.statements.append(
            Compute(
                result,
                f"{function}_{suffix}",
                arguments,
                "element",
                stage=0,
                cost=1,
                source=self.equation.source,
            )
        )
        return result

    def reduce(
        self, name: str, function: str, argument: Value, form: Reduction
    ) -> Value:
        """Add a reduction of ``argument`` by ``function``; return its result.

        The result is called ``name``. ``form`` has the identity.
        """
        result = self.value(name, argument.dtype)
        self.statements.append(
            Reduce(
                result,
                f"{function}_{short_name(argument.dtype)}",
                argument,
                Constant(form.identity(argument.dtype), argument.dtype),
                stage=0,
                source=self.equation.source,
            )
        )
        return result

    def store(
        self,
        operand: int,
        value: Scalar,
        indices: Sequence[IndexTerm] = (),
        where: Value | None = None,
        *,
        adds: bool = False,
    ) -> None:
        """Add a store of ``value`` to ``operand`` at the index plus ``indices``.

        With ``where``, a bool of the nest, the store happens only if it is true. With
        ``adds``, the value is added atomically.
        """
        self.statements.append(
            Store(
                operand,
                value,
                "element",
                stage=0,
                source=self.equation.source,
                indices=tuple(indices),
                where=where,
                adds=adds,
            )
        )

    def index(self, scalar: Scalar, dtype: DType) -> Value:
        """Add the conversion of ``scalar``, of ``dtype``, to an int64 index.

        Returns the index. A uint64 above the range of int64 becomes its largest number.
        """
        assert isinstance(scalar, Value)
        name = f"{scalar.name}_index"
        if dtype == dtypes.uint64:
            largest = Constant(2**63 - 1, dtype)
            scalar = self.compute(name, "min", scalar, largest, dtype=dtype)
        if dtype == dtypes.int64:
            return scalar
        function = f"convert_{short_name(dtype)}"
        return self.compute(name, function, scalar, dtype=dtypes.int64)

    def count(self, name: str, axis: int) -> Value:
        """Add the index along ``axis`` of the nest, as an int64; return its value."""
        result = self.value(name, dtypes.int64)
        source = self.equation.source
        self.statements.append(Count(result, axis, "element", stage=0, source=source))
        return result

    def nest(self, extents: Shape, reason: str, in_order: Collection[int] = ()) -> Nest:
        """Return the nest over axes of ``extents``, ordered and merged as fusion does.

        At most one axis is ``in_order``: it is iterated in order, like a scan's.
        ``reason`` is a phrase for people that says what the kernel does.
        """
        nest = self.as_written(extents, reason, in_order)
        return merge_axes(order_axes(drop_unit_axes(nest)))

    def as_written(
        self, extents: Shape, reason: str, in_order: Collection[int]
    ) -> Nest:
        """Return the nest over axes of ``extents``, in this order, with unit axes.

        Axes ``in_order`` are iterated in order. ``reason`` is as in ``nest``.
        """
        # A reduced axis is iterated in order; the nest need not have a reduction.
        return Nest(
            tuple(Axis(n, reduced=k in in_order) for k, n in enumerate(extents)),
            tuple(self.operands),
            tuple(self.statements),
            (self.equation.primitive.name,),
            reason,
        )
