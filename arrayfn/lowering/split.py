"""Split reductions: partial results of fixed chunks, and what combines them.

With few results there are few work items; so the reduced axis is cut into chunks, which
run on all threads. Chunks depend on the shape alone, and the partial results are
combined in order: every thread count gives the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from arrayfn.ir import ArrayType, Var
from arrayfn.ir.layout import C
from arrayfn.lowering.cpu.schedule import CPU, chunk_size
from arrayfn.lowering.cpu.sums import chunk_rows
from arrayfn.lowering.kernel_ir import (
    ArrayOperand,
    Axis,
    Count,
    Load,
    Nest,
    Reduce,
    Statement,
    Store,
    Value,
    uses,
)
from arrayfn.lowering.kernel_text import Partial
from arrayfn.lowering.titles import computed


def split(nest: Nest) -> tuple[Nest, Nest, list[Partial]]:
    """Cuts a reduction into chunks: ``(partial nest, combining nest, partials)``.

    ``s = sum(x)`` of 100,000 elements becomes ``p[c] = sum(x[c * size : (c + 1) *
    size])``, with a work item for each chunk ``c``, and ``s = sum(p)``. The partial
    nest has the element-level statements and the reductions of each chunk. The
    combining nest reduces ``partials``, the arrays of partial results, and has the
    statements after the reductions.
    """
    reduces = [s for s in nest.statements if isinstance(s, Reduce)]
    kept = [k for k, axis in enumerate(nest.axes) if not axis.reduced]
    cut, *inner_reduced = (k for k, axis in enumerate(nest.axes) if axis.reduced)
    columns = [k for k in kept if k > cut][-1:]
    outer = [k for k in kept if k not in columns]
    rows = nest.axes[cut].extent
    per_row = math.prod(nest.axes[k].extent for k in inner_reduced)
    for k in columns:
        per_row *= min(CPU.column_block, max(1, nest.axes[k].extent))
    size = chunk_size(rows, per_row)
    if columns:
        size = chunk_rows(nest, [cut, *inner_reduced], size, reduces)
    chunks = -(-rows // size)
    shape = (
        *(nest.axes[k].extent for k in outer),
        chunks,
        *(nest.axes[k].extent for k in columns),
    )
    partials = [Partial(s, Var(ArrayType(shape, s.result.dtype))) for s in reduces]
    elements = [
        s
        for s in nest.statements
        if isinstance(s, Reduce) or (isinstance(s, Store) and s.level == "element")
    ]
    stores = [s for s in nest.statements if isinstance(s, Store) and s.level == "outer"]
    partial_statements = with_dependencies(
        nest.statements, elements, through_reductions=True
    )
    final_statements = with_dependencies(
        nest.statements, stores, through_reductions=False
    )
    return (
        restrict(nest, partial_statements),
        _combination(nest, partials, shape, outer, columns, final_statements),
        partials,
    )


def with_dependencies(
    statements: Sequence[Statement],
    roots: Sequence[Statement],
    *,
    through_reductions: bool,
) -> list[Statement]:
    """``roots`` and those of ``statements`` that they depend on, in order.

    Unless ``through_reductions``, reductions are left out, with what they alone depend
    on: their results are available.
    """
    read: set[str] = set()
    kept: list[Statement] = []
    for s in reversed(statements):
        is_read = not isinstance(s, Store) and s.result.name in read
        if isinstance(s, Reduce) and not through_reductions:
            is_read = False
        if is_read or any(s is root for root in roots):
            kept.append(s)
            read.update(value.name for value in uses(s))
    return kept[::-1]


def restrict(nest: Nest, statements: Sequence[Statement]) -> Nest:
    """``nest`` with only ``statements``, and the operands that they access."""
    used = sorted({s.operand for s in statements if isinstance(s, (Load, Store))})
    new_number = {k: n for n, k in enumerate(used)}
    renumbered = [
        replace(s, operand=new_number[s.operand]) if isinstance(s, (Load, Store)) else s
        for s in statements
    ]
    operands = tuple(nest.operands[k] for k in used)
    return replace(
        nest,
        operands=operands,
        statements=tuple(renumbered),
        primitives=computed(nest.primitives, renumbered),
    )


def _combination(
    nest: Nest,
    partials: Sequence[Partial],
    shape: tuple[int, ...],
    outer: Sequence[int],
    columns: Sequence[int],
    final_statements: Sequence[Statement],
) -> Nest:
    """The nest that reduces partial results over the axis of chunks.

    Args:
        nest: the nest that was split.
        partials: its reductions, with the arrays of their partial results.
        shape: the shape of those arrays.
        outer: the kept axes of ``nest`` before the axis of chunks.
        columns: the kept axes after it.
        final_statements: the statements that follow the reductions.
    """
    order: list[int | None] = [*outer, None, *columns]
    axes = tuple(
        Axis(extent, axis is None) for extent, axis in zip(shape, order, strict=True)
    )
    operands: list[ArrayOperand] = []
    statements: list[Statement] = []
    for partial in partials:
        type = partial.array.type
        strides = C.strides(type.shape)
        operands.append(ArrayOperand(partial.array, type.dtype, strides, 0, False))
        result = partial.reduce.result
        value = Value(f"{result.name}_part", result.dtype)
        statements.append(Load(value, len(operands) - 1, "element", 0))
        statements.append(replace(partial.reduce, argument=value, stage=0))
    for s in final_statements:
        if isinstance(s, (Load, Store)):
            array = nest.operands[s.operand]
            strides = tuple(0 if k is None else array.strides[k] for k in order)
            operands.append(replace(array, strides=strides))
            s = replace(s, operand=len(operands) - 1)
        elif isinstance(s, Count) and s.axis is not None:
            s = replace(s, axis=order.index(s.axis))
        statements.append(s)
    reason = f"combines the partial results of chunks; {nest.reason}"
    names = computed(nest.primitives, statements)
    return Nest(axes, tuple(operands), tuple(statements), names, reason)
