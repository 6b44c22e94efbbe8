"""From fused groups to nests: orders and merges axes, makes views strides.

The group of ``b = exp(x.T); c = sum(b, axis=1)`` becomes a nest with a kept axis 0 and
a reduced axis 1, whose operand ``x`` has the strides of its transpose::

    x = load x[i0 * 1 + i1 * n0]        element, stage 0
    b = exp_f32(x)                      element, stage 0
    c = reduce add_f32 of b, from 0     stage 0
    store c                             outer, stage 1
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from arrayfn import dtypes
from arrayfn.dtypes import DType, compute_dtype, short_name
from arrayfn.ir import Atom, Equation, Literal, Var
from arrayfn.lowering.fusion import AxisIds, FusedGroup, reads_in_place
from arrayfn.lowering.half_rounding import with_rounding
from arrayfn.lowering.kernel_ir import (
    ArrayOperand,
    Axis,
    Compute,
    Constant,
    Count,
    Level,
    Load,
    Nest,
    Reduce,
    Scalar,
    Statement,
    Store,
    Value,
    constant_of,
)
from arrayfn.passes.reads import Read, identity_read
from arrayfn.primitives.base import (
    Convert,
    Reduction,
    Template,
    View,
    primitive_of,
)
from arrayfn.primitives.base import Scalar as ScalarForm


def build_nest(
    group: FusedGroup, reads: Mapping[Var, Read], names: Mapping[Var, str]
) -> Nest:
    """Build the nest that computes ``group``.

    Axes are ordered by memory traffic, the innermost last.

    Args:
        group: equations that one kernel computes, from fusion.
        reads: for each Var, the array in memory and the index map that it is read by.
        names: for each Var, its name in the Program's text, which its scalar gets.
    """
    return _Builder(group, reads, names).build()


class _Builder:
    """Builds the nest of one group, equation by equation.

    Attributes:
        operands, statements: those of the nest so far.
        own_names: names of values that are loaded at a second index.
        values: the scalar of each Var at the current index.
        levels, stages: the level and stage of each Var's scalar.
        loaded: the Var that was loaded from an array with given strides and offset.
        resolved: the Var whose scalar an operand of the current equation reads.
    """

    def __init__(
        self, group: FusedGroup, reads: Mapping[Var, Read], names: Mapping[Var, str]
    ) -> None:
        """Begin an empty nest; the arguments are those of ``build_nest``."""
        self.group = group
        self.reads = reads
        self.names = names
        self.own_names: dict[Var, str] = {}
        self.operands: list[ArrayOperand] = []
        self.statements: list[Statement] = []
        self.values: dict[Var, Value] = {}
        self.levels: dict[Var, Level] = {}
        self.stages: dict[Var, int] = {}
        self.loaded: dict[tuple[Var, tuple[int, ...], int], Var] = {}
        self.resolved: dict[Var, Var] = {}

    def build(self) -> Nest:
        """Build the nest: statements for equations, then a store for each output."""
        for equation in self.group.equations:
            self.add(equation)
        for var in self.group.outputs:
            self.store(var)
        half_dtypes = {
            value.name: var.type.dtype
            for var, value in self.values.items()
            if value.half and var.type.dtype in dtypes.HALF_PRECISION
        }
        if half_dtypes:
            self.statements = with_rounding(self.statements, half_dtypes)
        nest = Nest(
            tuple(
                Axis(n, i in self.group.reduced)
                for i, n in enumerate(self.group.extents)
            ),
            tuple(self.operands),
            tuple(self.statements),
            tuple(eq.primitive.name for eq in self.group.equations),
            self.group.reason,
        )
        return merge_axes(order_axes(drop_unit_axes(nest)))

    def name(self, var: Var) -> str:
        """Return the name of the scalar of ``var``."""
        return self.own_names.get(var) or self.names[var]

    # Operands.

    def strides(
        self, read: Read, ids: AxisIds, ndim: int
    ) -> tuple[tuple[int, ...], int]:
        """Return the strides of a value along the axes of the nest, and its offset.

        Both are in elements. ``read`` says from which array the value is read. The
        value has ``ndim`` axes; ``ids`` has the axis of the nest that each of them lies
        along, or None.
        """
        type = read.base.type
        base = type.layout.strides(type.shape)
        by_axis = read.strides(base, ndim)
        strides = [0] * len(self.group.extents)
        for axis, i in enumerate(ids):
            if i is not None:
                strides[i] += by_axis[axis]
        return tuple(strides), read.offset(base)

    def load(self, atom: Var, shape_ids: AxisIds, equation: Equation) -> Var:
        """Add a load of ``atom``, unless the same elements are loaded already.

        ``shape_ids`` has the axis of the nest for each axis of ``atom``; ``equation``
        is the one that reads it. Returns the Var whose scalar was loaded: another Var,
        if ``atom`` is loaded at a second index.
        """
        read = self.reads[atom]
        ids = shape_ids if atom.type.shape else ()
        strides, offset = self.strides(read, ids, atom.type.ndim)
        key = (read.base, strides, offset)
        existing = self.loaded.get(key)
        if existing is not None:
            return existing
        if atom in self.values:
            # The same value at another index: a scalar of its own.
            copy = Var(atom.type)
            self.own_names[copy] = f"{self.name(atom)}_{len(self.operands)}"
            atom = copy
        operand = ArrayOperand(
            read.base, atom.type.dtype, strides, offset, written=False
        )
        self.operands.append(operand)
        self.loaded[key] = atom
        level = self.level_of_strides(strides)
        self.define(atom, level, 0)
        self.statements.append(
            Load(self.values[atom], len(self.operands) - 1, level, 0, equation.source)
        )
        return atom

    def level_of_strides(self, strides: Sequence[int]) -> Level:
        """Return a load's level: "outer" if its strides along reduced axes are 0."""
        if not self.group.reduced:
            return "element"
        return "element" if any(strides[i] for i in self.group.reduced) else "outer"

    def define(self, var: Var, level: Level, stage: int) -> Value:
        """Make the scalar that holds ``var``, in its compute dtype.

        ``level`` and ``stage`` are those of the statement that defines it.
        """
        dtype = var.type.dtype
        value = Value(
            self.name(var), compute_dtype(dtype), dtype in dtypes.HALF_PRECISION
        )
        self.values[var] = value
        self.levels[var] = level
        self.stages[var] = stage
        return value

    # Statements.

    def compute(
        self,
        result: Value,
        function: str,
        arguments: Sequence[Scalar],
        at: tuple[Level, int],
        cost: int,
        equation: Equation,
    ) -> None:
        """Add the statement ``result = function(*arguments)``.

        ``at`` is its level and stage, ``cost`` its time relative to an addition, and
        ``equation`` the one whose source line it gets.
        """
        self.statements.append(
            Compute(result, function, tuple(arguments), *at, cost, equation.source)
        )

    def add(self, equation: Equation) -> None:
        """Add the statements that compute ``equation``, by its kernel form."""
        primitive = primitive_of(equation)
        output = equation.outputs[0]
        ids = self.group.domain_axes[output]
        if isinstance(primitive.kernel, Reduction):
            self.reduction(equation, primitive.kernel)
            return
        operands = [self.scalar(a, ids, equation) for a in equation.inputs]
        at = self.level_and_stage(equation.inputs, ids)
        if isinstance(primitive.kernel, Template):
            self.count(equation, ids[equation.params["axis"]], at)
            return
        if isinstance(primitive.kernel, View):
            # A copy, or a broadcast literal: the value itself.
            self.alias(output, operands[0], equation, at)
            return
        if isinstance(primitive.kernel, Convert):
            function = convert_function(
                equation.inputs[0].type.dtype, output.type.dtype
            )
            if function is None:
                self.alias(output, operands[0], equation, at)
                return
            cost = 1
        elif primitive.name == "bitcast":
            self.bitcast(equation, operands[0], at)
            return
        else:
            assert isinstance(primitive.kernel, ScalarForm)
            typed = equation.inputs[primitive.kernel.typed_by].type.dtype
            function = f"{primitive.kernel.function}_{short_name(compute_dtype(typed))}"
            cost = primitive.kernel.cost
        self.compute(self.define(output, *at), function, operands, at, cost, equation)

    def bitcast(
        self, equation: Equation, operand: Scalar, at: tuple[Level, int]
    ) -> None:
        """Add the statements that reinterpret the bits of ``operand``.

        A 16-bit float is float32 in a kernel, so it is converted to its bits (u16), or
        from them.
        """
        output = equation.outputs[0]
        source, target = equation.inputs[0].type.dtype, output.type.dtype
        bits = [
            dtypes.uint16 if d in dtypes.HALF_PRECISION else d for d in (source, target)
        ]
        names = [short_name(d) for d in bits]
        # Up to three steps: float32 to 16 bits, bits to bits, 16 bits to float32.
        functions: list[tuple[str, DType]] = []
        if source in dtypes.HALF_PRECISION:
            functions.append((f"convert_f32_{short_name(source)}", dtypes.uint16))
        if names[0] != names[1]:
            functions.append((f"bitcast_{names[0]}_{names[1]}", bits[1]))
        if target in dtypes.HALF_PRECISION:
            functions.append((f"convert_{short_name(target)}_f32", dtypes.float32))
        for number, (function, dtype) in enumerate(functions[:-1]):
            result = Value(f"{self.name(output)}_bits{number}", dtype)
            self.compute(result, function, [operand], at, cost=1, equation=equation)
            operand = result
        if not functions:
            self.alias(output, operand, equation, at)
            return
        result, function = self.define(output, *at), functions[-1][0]
        self.compute(result, function, [operand], at, cost=1, equation=equation)

    def level_and_stage(self, atoms: Sequence[Atom], ids: AxisIds) -> tuple[Level, int]:
        """Decide where a statement runs: its level, and its stage.

        The level is "element" if the statement runs for each element of the reduced
        axes, and also if the nest has none; otherwise it is "outer", once for each row.
        The stage is that of the latest operand. ``atoms`` are the operands, and ``ids``
        the axes that the result varies over.
        """
        reduced = self.group.reduced
        operands = [self.resolved[atom] for atom in atoms if isinstance(atom, Var)]
        # A reduced axis of one element may be missing in ``ids``.
        varies = any(self.levels[var] == "element" for var in operands)
        spans = not reduced or varies or any(i in reduced for i in ids)
        level: Level = "element" if spans else "outer"
        return level, max((self.stages[var] for var in operands), default=0)

    def scalar(self, atom: Atom, ids: AxisIds, equation: Equation) -> Scalar:
        """Return the scalar of ``atom`` at the current index, for ``equation``.

        ``ids`` are the axes of the nest that the equation's value varies over. If no
        scalar has the value at this index, a load is added. ``resolved`` gets the Var
        of the scalar.
        """
        if isinstance(atom, Literal):
            return constant_of(atom)
        read = self.reads[atom]
        var, base_ids = read.base, self.group.domain_axes.get(read.base)
        if (
            base_ids is None
            or var not in self.values
            or not reads_in_place(read, base_ids, ids)
        ):
            var = self.load(atom, ids, equation)
        self.resolved[atom] = var
        return self.values[var]

    def alias(
        self, output: Var, operand: Scalar, equation: Equation, at: tuple[Level, int]
    ) -> None:
        """Add a statement that makes ``output`` the same value as ``operand``."""
        dtype = compute_dtype(output.type.dtype)
        result = self.define(output, *at)
        if equation.params.get("excess"):  # what it reads need not be rounded
            result = self.values[output] = replace(result, half=True)
        function = f"identity_{short_name(dtype)}"
        self.compute(result, function, [operand], at, 0, equation)

    def count(
        self, equation: Equation, axis: int | None, at: tuple[Level, int]
    ) -> None:
        """Add the statements of an iota: the index along ``axis``, converted.

        ``at`` is their level and stage.
        """
        output = equation.outputs[0]
        dtype = compute_dtype(output.type.dtype)
        index = Value(f"{self.name(output)}_index", dtypes.int64)
        self.statements.append(Count(index, axis, *at, equation.source))
        function = convert_function(dtypes.int64, dtype) or "identity_i64"
        self.compute(
            self.define(output, *at), function, [index], at, cost=1, equation=equation
        )

    def reduction(self, equation: Equation, form: Reduction) -> None:
        """Add the statement of the reduction ``equation``, of kernel form ``form``.

        Its result is available from the next stage on.
        """
        (atom,) = equation.inputs
        output = equation.outputs[0]
        ids = self.group.operands[output]
        operand = self.scalar(atom, ids, equation)
        dtype = compute_dtype(output.type.dtype)
        stage = 0 if isinstance(atom, Literal) else self.stages[self.resolved[atom]]
        result = self.define(output, "outer", stage + 1)
        identity = Constant(form.identity(dtype), dtype)
        self.statements.append(
            Reduce(
                result,
                f"{form.function}_{short_name(dtype)}",
                operand,
                identity,
                stage,
                equation.source,
            )
        )

    def store(self, var: Var) -> None:
        """Add an operand and a statement that store ``var``."""
        ids = self.group.domain_axes[var]
        strides, offset = self.strides(identity_read(var), ids, var.type.ndim)
        self.operands.append(
            ArrayOperand(var, var.type.dtype, strides, offset, written=True)
        )
        level = self.levels[var]
        self.statements.append(
            Store(len(self.operands) - 1, self.values[var], level, self.stages[var])
        )


def convert_function(source: DType, target: DType) -> str | None:
    """Return the scalar function that converts ``source`` to ``target``, or None.

    None if the compute dtypes are equal. A conversion to a 16-bit float rounds a
    float32, which stays a float32 in the kernel.

    >>> convert_function(dtypes.int32, dtypes.float32)
    'convert_i32_f32'
    """
    if target in dtypes.HALF_PRECISION:
        return f"round_{short_name(compute_dtype(source))}_{short_name(target)}"
    source_dtype = compute_dtype(source)
    if source_dtype == target:
        return None
    return f"convert_{short_name(source_dtype)}_{short_name(target)}"


# Axes.


def drop_unit_axes(nest: Nest) -> Nest:
    """Return ``nest`` without its axes of extent 1."""
    longer_axes = [k for k, axis in enumerate(nest.axes) if axis.extent != 1]
    return select_axes(nest, longer_axes)


def select_axes(nest: Nest, order: Sequence[int]) -> Nest:
    """Return ``nest`` with only the axes that ``order`` lists, in that order.

    Axes that are left out must have extent 1.
    """
    new_axis = {axis: k for k, axis in enumerate(order)}
    return replace(
        nest,
        axes=tuple(nest.axes[k] for k in order),
        operands=tuple(
            replace(o, strides=tuple(o.strides[k] for k in order))
            for o in nest.operands
        ),
        statements=tuple(
            replace(s, axis=new_axis.get(s.axis) if s.axis is not None else None)
            if isinstance(s, Count)
            else s
            for s in nest.statements
        ),
    )


def order_axes(nest: Nest) -> Nest:
    """Order the axes of ``nest`` by memory traffic, the heaviest innermost.

    The axis with the most elements at the smallest strides becomes innermost. Written
    arrays count double: a strided write costs more than a strided read.
    """

    def elements(operand: ArrayOperand) -> int:
        """Return how many different elements of ``operand`` the nest accesses."""
        axes = zip(nest.axes, operand.strides, strict=True)
        return math.prod(axis.extent for axis, stride in axes if stride)

    def weight(axis: int) -> float:
        """Return the cost of ``axis`` as an outer axis: larger for small strides."""
        total = 0.0
        for operand in nest.operands:
            stride = abs(operand.strides[axis])
            if stride:
                times = 2.0 if operand.written else 1.0
                total += times * elements(operand) / stride
        return total

    keys = [(weight(axis), axis) for axis in range(len(nest.axes))]
    order = [axis for _, axis in sorted(keys)]
    return select_axes(nest, order)


def merge_axes(nest: Nest) -> Nest:
    """Merge neighbouring axes of ``nest`` where every operand allows it.

    Axes of 4 by 8 elements of contiguous arrays become one axis of 32. Axes that an
    iota counts along stay.
    """
    counted = {s.axis for s in nest.statements if isinstance(s, Count)}
    position = 0
    while position + 1 < len(nest.axes):
        outer, inner = nest.axes[position], nest.axes[position + 1]
        mergeable = outer.reduced == inner.reduced and not (
            counted & {position, position + 1}
        )
        if mergeable and all(
            o.strides[position] == o.strides[position + 1] * inner.extent
            for o in nest.operands
        ):
            nest = _merge_at(nest, position)
            # Axes after the merged ones move down by one.
            counted = {a - (a > position) if a is not None else None for a in counted}
        else:
            position += 1
    return nest


def _merge_at(nest: Nest, position: int) -> Nest:
    """Merge the axes ``position`` and ``position + 1`` of ``nest``.

    Operands keep the stride of the inner one. Later axes move down by one.
    """
    outer, inner = nest.axes[position], nest.axes[position + 1]
    merged = Axis(outer.extent * inner.extent, outer.reduced)
    return replace(
        nest,
        axes=(*nest.axes[:position], merged, *nest.axes[position + 2 :]),
        operands=tuple(
            replace(o, strides=o.strides[:position] + o.strides[position + 1 :])
            for o in nest.operands
        ),
        statements=tuple(
            replace(s, axis=s.axis - (s.axis > position))
            if isinstance(s, Count) and s.axis is not None
            else s
            for s in nest.statements
        ),
    )
