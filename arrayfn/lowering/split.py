"""Split reductions: partial results of fixed chunks, and what combines them.

With few results there are few work items; so the reduced axis is cut into chunks, which
run on all threads. Chunks depend on the shape only, and the partial results are
combined in order: every thread count gives the same bits.
"""

from __future__ import annotations

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
    is_element_store,
    uses,
)
from arrayfn.lowering.kernel_text import Partial
from arrayfn.lowering.titles import computed


def split(nest: Nest) -> tuple[Nest, Nest, list[Partial]]:
    """Split a reduction into chunks: ``(partial nest, combining nest, partials)``.

    ``s = sum(x)`` of 100,000 elements becomes ``p[c] = sum(x[c * size : (c + 1) *
    size])``, with a work item for each chunk ``c``, and ``s = sum(p)``. The partial
    nest has the element-level statements and the reductions of each chunk. The
    combining nest reduces ``partials``, the arrays of partial results, and has the
    statements after the reductions.
    """
    reduces = nest.reductions
    kept = nest.kept_axes
    # The outermost reduced axis is cut. A kept axis inside it is one of columns.
    cut, *inner_reduced = nest.reduced_axes
    columns = [k for k in kept if k > cut][-1:]
    outer = [k for k in kept if k not in columns]
    rows = nest.axes[cut].extent
    per_row = nest.size_along(inner_reduced)
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
        s for s in nest.statements if isinstance(s, Reduce) or is_element_store(s)
    ]
    partial_statements = with_dependencies(
        nest.statements, elements, through_reductions=True
    )
    stores = [s for s in nest.statements if isinstance(s, Store) and s.level == "outer"]
    once = with_dependencies(nest.statements, stores, through_reductions=False)
    operands = [
        ArrayOperand(
            p.array, p.array.type.dtype, C.strides(shape), offset=0, written=False
        )
        for p in partials
    ]
    order = [*outer, None, *columns]  # None stands for the axis of chunks
    return (
        restrict(nest, partial_statements),
        combination(nest, operands, order, chunks, chunk_sums(reduces), once),
        partials,
    )


def with_dependencies(
    statements: Sequence[Statement],
    roots: Sequence[Statement],
    *,
    through_reductions: bool,
) -> list[Statement]:
    """Return ``roots`` and those of ``statements`` that they depend on, in order.

    Unless ``through_reductions``, reductions are left out, with what only they depend
    on: their results are available.
    """
    read: set[str] = set()
    needed: list[Statement] = []
    for s in reversed(statements):
        is_read = not isinstance(s, Store) and s.result.name in read
        if isinstance(s, Reduce) and not through_reductions:
            is_read = False
        if is_read or any(s is root for root in roots):
            needed.append(s)
            read.update(value.name for value in uses(s))
    return needed[::-1]


def restrict(nest: Nest, statements: Sequence[Statement]) -> Nest:
    """Return ``nest`` with only ``statements``, and the operands that they access."""
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


def combination(
    nest: Nest,
    partials: Sequence[ArrayOperand],
    order: Sequence[int | None],
    chunks: int,
    combined: Sequence[Statement],
    once: Sequence[Statement],
) -> Nest:
    """Return the nest that combines partial results and then does what follows.

    Args:
        nest: The nest that was split.
        partials: The arrays of partial results: the first operands of the new nest.
        order: The new nest's axes: the kept axes of ``nest``, and None for the axis of
            chunks, which is reduced.
        chunks: How many partial results each result has.
        combined: The statements that combine the partial results.
        once: The statements of ``nest`` that run once a row.
    """
    operands = list(partials)
    outer: list[Statement] = []
    for s in once:
        if isinstance(s, (Load, Store)):
            array = nest.operands[s.operand]
            strides = tuple(0 if k is None else array.strides[k] for k in order)
            operands.append(replace(array, strides=strides))
            s = replace(s, operand=len(operands) - 1)
        elif isinstance(s, Count) and s.axis is not None:
            s = replace(s, axis=order.index(s.axis))
        outer.append(s)
    statements: list[Statement] = []
    for stage in range(1 + max(s.stage for s in combined)):
        # A statement that runs once a row comes before elements of its stage read it.
        statements += [s for s in outer if s.stage <= stage]
        outer = [s for s in outer if s.stage > stage]
        statements += [s for s in combined if s.stage == stage]
    statements += outer
    return Nest(
        tuple(Axis(chunks, reduced=True) if k is None else nest.axes[k] for k in order),
        tuple(operands),
        tuple(statements),
        computed(nest.primitives, statements),
        f"combines the partial results of chunks; {nest.reason}",
    )


def partial_value(reduce: Reduce) -> Value:
    """Return the value of ``reduce``'s partial result in the combining nest."""
    return Value(f"{reduce.result.name}_part", reduce.result.dtype)


def chunk_sums(reduces: Sequence[Reduce]) -> list[Statement]:
    """Return statements that combine partial results by the reductions that made them.

    The partial results of reduction ``k`` are loaded from operand ``k``.
    """
    statements: list[Statement] = []
    for k, reduce in enumerate(reduces):
        value = partial_value(reduce)
        statements.append(Load(value, k, "element", 0))
        statements.append(replace(reduce, argument=value, stage=0))
    return statements
