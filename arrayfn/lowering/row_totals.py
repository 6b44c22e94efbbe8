"""Sums over rows, accumulated in the kernel that computes the rows.

A gradient often needs both: rows that are computed in stages (layernorm's), and sums of
the same arrays over all rows (its scale's and shift's). Two kernels read each array
twice. ``with_totals`` makes one of them: a work item is a chunk of rows, and while a
row is in the cache, its elements are added to the chunk's partial results.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import field, replace

from arrayfn.ir import Var
from arrayfn.lowering.in_place import Storage
from arrayfn.lowering.kernel_ir import (
    ArrayOperand,
    Axis,
    Compute,
    Count,
    Level,
    Load,
    Nest,
    Reduce,
    Scalar,
    Statement,
    Store,
    Value,
)
from arrayfn.lowering.split import restrict, with_dependencies
from arrayfn.lowering.steps import NestStep, PlanStep
from arrayfn.records import record


def with_totals(rows: Nest, totals: Nest) -> Nest | None:
    """Merge ``rows`` and the first half ``totals`` of a split reduction into one nest.

    ``y = x - mean(x, axis=1)`` and ``t = sum(x, axis=0)`` become one pass over rows: it
    reads a row, subtracts its mean, and adds the row to its chunk's part of ``t``.
    ``rows`` keeps its first axis and reduces its second; ``totals`` does the reverse,
    and its reductions become those that are ``across``. None if the nests cannot be
    merged: they have no array in common, or ``totals`` needs results of other rows.
    """
    reduced = [axis.reduced for axis in rows.axes]
    if reduced != [False, True]:
        return None
    if totals.axes != tuple(Axis(a.extent, not a.reduced) for a in rows.axes):
        return None
    if any(nest.has_computed_indices or nest.is_in_order for nest in (rows, totals)):
        return None
    if rows.has_totals:
        return None
    merged = _Merger(rows)
    if not all(merged.add(s, totals) for s in totals.statements) or not merged.shared:
        return None
    return replace(
        rows,
        operands=tuple(merged.operands),
        statements=tuple(merged.statements),
        primitives=(*rows.primitives, *totals.primitives),
        reason=f"{rows.reason}; with totals over the rows: {totals.reason}",
    )


def drop_unread(
    steps: Sequence[PlanStep], outputs: AbstractSet[Var], storage: Storage
) -> None:
    """Remove stores that nothing reads any more since totals are computed with them.

    ``outputs`` are read after ``steps``.
    """
    needed = {storage.of(var) for var in outputs}
    for step in steps:
        arrays_read = step.arrays()
        if isinstance(step, NestStep):
            arrays_read = [o.array for o in step.nest.operands if not o.written]
        needed.update(storage.of(var) for var in arrays_read)
    for step in steps:
        if not isinstance(step, NestStep) or not step.nest.has_totals:
            continue
        nest = step.nest
        roots = [
            s
            for s in nest.statements
            if (isinstance(s, Reduce) and s.across)
            or (
                isinstance(s, Store)
                and storage.of(nest.operands[s.operand].array) in needed
            )
        ]
        live = with_dependencies(nest.statements, roots, through_reductions=True)
        step.nest = restrict(nest, live)


@record
class _Merger:
    """Adds the statements of the totals to those of the rows, one by one.

    Axis 1 is along a row, and the rows reduce it. The totals reduce axis 0, across
    rows.

    Attributes:
        levels, stages: those of each value so far, by name.
        alias: the scalar of the merged nest for a value of the totals.
        shared: whether both nests use an array with an element for each place (not one
            that is broadcast along an axis).
        of_rows: the names of the values that the rows compute.
    """

    rows: Nest
    operands: list[ArrayOperand] = field(default_factory=list[ArrayOperand])
    statements: list[Statement] = field(default_factory=list[Statement])
    levels: dict[str, Level] = field(default_factory=dict[str, Level])
    stages: dict[str, int] = field(default_factory=dict[str, int])
    alias: dict[str, Scalar] = field(default_factory=dict[str, Scalar])
    shared: bool = False

    def __post_init__(self) -> None:
        self.operands = list(self.rows.operands)
        self.statements = list(self.rows.statements)
        for s in self.rows.statements:
            if isinstance(s, Reduce):
                self.define(s.result, "outer", s.stage + 1)
            elif not isinstance(s, Store):
                self.define(s.result, s.level, s.stage)
        self.of_rows = frozenset(self.levels)

    def define(self, value: Value, level: Level, stage: int) -> None:
        """Record the level and stage of ``value``."""
        self.levels[value.name], self.stages[value.name] = level, stage

    def add(self, s: Statement, totals: Nest) -> bool:
        """Add statement ``s`` of the nest ``totals``; False if it does not fit."""
        match s:
            case Load():
                return self.load(s, totals.operands[s.operand])
            case Count():
                level: Level = "element" if s.axis == 1 else "outer"
                if not self.is_computed_by_rows(s.result):
                    self.append(replace(s, level=level), s.result)
            case Compute():
                if self.is_computed_by_rows(s.result):
                    return True
                arguments = tuple(self.scalar(a) for a in s.arguments)
                values = [a for a in arguments if isinstance(a, Value)]
                spans = any(self.levels[v.name] == "element" for v in values)
                stage = max((self.stages[v.name] for v in values), default=0)
                level = "element" if spans else "outer"
                s = replace(s, arguments=arguments, level=level, stage=stage)
                self.append(s, s.result)
            case Reduce():
                argument = self.scalar(s.argument)
                stage = 0
                if isinstance(argument, Value):
                    stage = self.stages[argument.name]
                # Totals are taken in the last pass over a row.
                stage = max(stage, self.rows.stages - 1)
                s = replace(s, argument=argument, stage=stage, across=True)
                self.statements.append(s)
            case Store():  # an array of elements, which is no total
                return False
        return True

    def is_computed_by_rows(self, value: Value) -> bool:
        """Whether the rows compute ``value`` too: names are unique in the Program."""
        if value.name in self.of_rows:
            self.alias[value.name] = value
        return value.name in self.of_rows

    def append(self, s: Load | Compute | Count, value: Value) -> None:
        """Append ``s``, which computes ``value``."""
        self.statements.append(s)
        self.define(value, s.level, s.stage)

    def scalar(self, scalar: Scalar) -> Scalar:
        """Return the merged nest's scalar that replaces ``scalar`` of the totals."""
        is_value = isinstance(scalar, Value)
        return self.alias.get(scalar.name, scalar) if is_value else scalar

    def load(self, s: Load, operand: ArrayOperand) -> bool:
        """Add the load ``s``, or use what the rows load or store at the same place.

        ``operand`` is what ``s`` loads. Returns False if the value there has another
        dtype, or if the rows store other elements of the array.
        """
        location = operand.array, operand.strides, operand.offset
        # The first load or store of the rows at the same place has the value.
        for statement in self.rows.statements:
            if not isinstance(statement, (Load, Store)):
                continue
            row_operand = self.operands[statement.operand]
            if (row_operand.array, row_operand.strides, row_operand.offset) == location:
                value = (
                    statement.value
                    if isinstance(statement, Store)
                    else statement.result
                )
                if isinstance(value, Value) and value.dtype != s.result.dtype:
                    return False
                self.alias[s.result.name] = value
                self.shared |= all(operand.strides)
                return True
            if isinstance(statement, Store) and row_operand.array is operand.array:
                return False
        level: Level = "element" if operand.strides[1] else "outer"
        result = s.result
        if result.name in self.levels:
            result = replace(result, name=f"{result.name}_{len(self.operands)}")
            self.alias[s.result.name] = result
        self.operands.append(operand)
        number = len(self.operands) - 1
        self.append(replace(s, result=result, operand=number, level=level), result)
        return True
