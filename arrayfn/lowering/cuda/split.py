"""Split reductions: few rows, or long ones, are reduced by chunks, then over chunks.

Chunks depend on the shapes alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Final

from arrayfn import dtypes
from arrayfn.ir import ArrayType, Var
from arrayfn.ir.layout import RowMajor
from arrayfn.lowering.build import merge_axes, order_axes, select_axes
from arrayfn.lowering.cuda.choose import SHARE, choose
from arrayfn.lowering.cuda.config import GpuConfig
from arrayfn.lowering.cuda.schedule import Columns, Rows, power_of_two
from arrayfn.lowering.cuda.stage_plan import names_of
from arrayfn.lowering.cuda.vocabulary import WARP
from arrayfn.lowering.kernel_ir import (
    Argument,
    ArrayOperand,
    Axis,
    Compute,
    Count,
    Load,
    Nest,
    Reduce,
    Statement,
    Store,
    Value,
    is_element_store,
)
from arrayfn.lowering.titles import computed

_MIN_PARTS: Final = 4  # fewer are not worth the launch of what combines them
_LONGEST: Final = 512  # terms that a thread adds up one after the other, about
_SIDE_BY_SIDE: Final = 4  # sums that a thread has of a column


def blocks_of(nest: Nest, schedule: Rows | Columns) -> int:
    """How many blocks ``nest`` would be."""
    kept = [a.extent for a in nest.axes if not a.reduced]
    if isinstance(schedule, Rows):
        return math.prod(kept) * schedule.threads_per_row // schedule.threads
    return math.prod(kept[:-1]) * -(-kept[-1] // WARP)


def parts_for_sums(nest: Nest, schedule: Rows | Columns) -> int:
    """The fewest number of parts of a row in which no thread adds up too many terms."""
    if schedule.register_resident:
        return 1
    at_once = schedule.lanes * schedule.tiles
    if isinstance(schedule, Columns):
        at_once = min(at_once, _SIDE_BY_SIDE)
    length = math.prod(a.extent for a in nest.axes if a.reduced)
    return -(-length // (_LONGEST * schedule.threads_per_row * at_once))


def is_enough(nest: Nest, schedule: Rows | Columns, gpu: GpuConfig) -> bool:
    """Whether ``nest`` has blocks for all of the GPU, or for much of it.

    Several stages of rows that blocks keep are read once: that is worth some idleness.
    Where a thread would add up too many terms, there are never enough.
    """
    if parts_for_sums(nest, schedule) > 1:
        return False
    kept = isinstance(schedule, Rows) and schedule.register_resident and nest.stages > 1
    times = SHARE if kept else 1
    return times * blocks_of(nest, schedule) >= gpu.multiprocessors


def split(nest: Nest, gpu: GpuConfig) -> list[Nest]:
    """Partial results of chunks of the longest reduced axis, and what combines them."""
    reduced = [k for k, a in enumerate(nest.axes) if a.reduced]
    length = math.prod(nest.axes[k].extent for k in reduced)
    schedule = choose(nest, gpu)
    assert isinstance(schedule, (Rows, Columns))
    per_block = length * (WARP if isinstance(schedule, Columns) else 1)
    have = max(1, blocks_of(nest, schedule))
    wanted = min(-(-gpu.multiprocessors * gpu.waves // have), per_block // gpu.chunk)
    fewest = parts_for_sums(nest, schedule)
    wanted = max(wanted, fewest)
    if wanted < (_MIN_PARTS if fewest == 1 else 2):
        return [nest]
    axis = max(reduced, key=lambda k: nest.axes[k].extent)
    extent = nest.axes[axis].extent
    size, chunks, rest = chunks_of(extent, wanted)
    strided = are_few_columns(nest, axis)
    if strided:
        # As many columns as make a block for each multiprocessor.
        wide = gpu.multiprocessors * WARP // nest.axes[-1].extent
        chunks = min(1 << wide.bit_length() - 1, extent // gpu.tiles)
        chunks = max(chunks, min(power_of_two(fewest), extent // gpu.tiles))
        size, rest = divmod(extent, max(1, chunks))
    if chunks < 2:
        return [nest]
    parts = parts_of(nest, chunks + (rest > 0))
    pieces = [partial(nest, axis, 0, size, chunks, parts, strided=strided)]
    if rest:
        pieces.append(partial(nest, axis, chunks, rest, 1, parts, size * chunks))
    return [*pieces, combination(nest, parts, chunks + (rest > 0), added_up(parts))]


def are_few_columns(nest: Nest, axis: int) -> bool:
    """Whether rows are so short that several side by side make better columns.

    Chunks along ``axis`` then have interleaved indices.
    """
    width = nest.axes[-1].extent
    if nest.axes[-1].reduced or width >= 4 * WARP or width % WARP == 0:
        return False
    loaded = [o for o in nest.operands if o.strides[axis]]
    return all(o.strides[-1] == 1 and o.strides[axis] == width for o in loaded)


def chunks_of(extent: int, wanted: int) -> tuple[int, int, int]:
    """Size and number of equal chunks, about ``wanted``, and what is left."""
    for chunks in range(wanted, wanted // 2, -1):
        if extent % chunks == 0:
            return extent // chunks, chunks, 0
    return chunks_and_rest(extent, wanted)


def chunks_and_rest(extent: int, wanted: int) -> tuple[int, int, int]:
    """The same, ``wanted`` or more, where no number of chunks divides ``extent``."""
    size = -(-extent // wanted)
    # Chunks of vectors begin where vectors may.
    size = max(1, size // 16 * 16) if size >= 64 else size
    return size, extent // size, extent % size


@dataclass(frozen=True)
class Part:
    """The partial results of one reduction: [kept axes, chunks].

    Of columns that lie side by side: [outer kept axes, chunks, last axis].
    """

    reduce: Reduce
    array: Var
    strides: tuple[int, ...]  # of the nest's axes, reduced ones 0
    stride: int  # of the chunks

    @property
    def value(self) -> Value:
        """A chunk's result, where the chunks are combined."""
        result = self.reduce.result
        return Value(f"{result.name}_part", result.dtype)


def parts_of(nest: Nest, chunks: int, chunks_innermost: bool = False) -> list[Part]:
    """Arrays for partial results of so many ``chunks``, for each reduction of ``nest``.

    The chunks of one result are contiguous if ``chunks_innermost``. Otherwise, if the
    nest has columns, neighbouring columns are.
    """
    reduces = [s for s in nest.statements if isinstance(s, Reduce)]
    columns = not nest.axes[-1].reduced and not chunks_innermost
    kept = [k for k, a in enumerate(nest.axes) if not a.reduced]
    inner = kept[-1:] if columns else []
    outer = kept[: len(kept) - len(inner)]
    shape = [nest.axes[k].extent for k in outer]
    shape += [chunks, *(nest.axes[k].extent for k in inner)]
    by_axis = RowMajor().strides(tuple(shape))
    strides = [0] * len(nest.axes)
    for k, stride in zip([*outer, None, *inner], by_axis, strict=True):
        if k is not None:
            strides[k] = stride
    return [
        Part(
            s,
            Var(ArrayType(tuple(shape), s.result.dtype)),
            tuple(strides),
            by_axis[len(outer)],
        )
        for s in reduces
    ]


def partial(
    nest: Nest,
    axis: int,
    place: int,
    size: int,
    chunks: int,
    parts: Sequence[Part],
    start: int = 0,
    strided: bool = False,
) -> Nest:
    """The nest of ``chunks`` chunks from ``start`` on; results go from ``place`` on.

    Axis ``axis`` becomes two: the chunk, which is kept, and the index within it. A
    chunk has neighbouring indices, or if ``strided`` every ``chunks``-th one.
    """
    steps = (1, chunks) if strided else (size, 1)
    axes = (
        *nest.axes[:axis],
        Axis(chunks, False),
        Axis(size, True),
        *nest.axes[axis + 1 :],
    )

    def widen(strides: Sequence[int], chunk: int, within: int = 0) -> tuple[int, ...]:
        return (*strides[:axis], chunk, within, *strides[axis + 1 :])

    roots = [s for s in nest.statements if isinstance(s, Reduce) or is_element_store(s)]
    needed = closure(nest.statements, roots)
    kept, used = only_used(nest.operands, needed)
    operands = [
        replace(
            o,
            strides=widen(o.strides, *(step * o.strides[axis] for step in steps)),
            offset=o.offset + start * o.strides[axis],
        )
        for o in kept
    ]
    statements: list[Statement] = []
    for s in used:
        if isinstance(s, Count) and s.axis is not None:
            statements += _count(s, axis, steps, start)
        else:
            statements.append(s)
    for part in parts:
        strides = widen(part.strides, part.stride)
        offset = place * part.stride
        dtype = part.array.type.dtype
        operands.append(ArrayOperand(part.array, dtype, strides, offset, True))
        statements.append(
            Store(len(operands) - 1, part.reduce.result, "outer", part.reduce.stage + 1)
        )
    made = replace(
        nest,
        axes=axes,
        operands=tuple(operands),
        statements=tuple(statements),
        primitives=computed(nest.primitives, statements),
        reason=f"partial results of chunks of {size}; {nest.reason}",
    )
    units = [k for k, a in enumerate(made.axes) if a.extent != 1]
    ordered = order_axes(select_axes(made, units))
    return merge_axes(ordered) if strided else ordered


def _count(s: Count, axis: int, steps: tuple[int, int], start: int) -> list[Statement]:
    """The index along an axis that was split, or that is behind the chunks' now."""
    assert s.axis is not None
    if s.axis != axis:
        return [replace(s, axis=s.axis + (s.axis > axis))]
    chunk, within, begin, first, inside = (
        Value(f"{s.result.name}_{part}", dtypes.int64)
        for part in ("chunk", "within", "begin", "first", "inside")
    )

    def made(result: Value, function: str, x: Value, y: Value | Argument) -> Compute:
        return Compute(result, function, (x, y), s.level, s.stage, 1, s.source)

    return [
        replace(s, result=chunk, axis=axis),
        replace(s, result=within, axis=axis + 1),
        made(begin, "mul_i64", chunk, Argument("index_size", steps[0])),
        made(first, "add_i64", begin, Argument("index_start", start)),
        made(inside, "mul_i64", within, Argument("index_step", steps[1])),
        made(s.result, "add_i64", first, inside),
    ]


def combination(
    nest: Nest,
    parts: Sequence[Part],
    chunks: int,
    combined: Sequence[Statement],
) -> Nest:
    """Does what ``combined`` says with the parts, then what is once a row of ``nest``.

    ``combined`` are statements over axes of which the first is the chunks', and the
    others are kept; their operands are the ``parts``.
    """
    kept = [k for k, a in enumerate(nest.axes) if not a.reduced]
    operands = [
        ArrayOperand(
            part.array,
            part.array.type.dtype,
            (part.stride, *(part.strides[k] for k in kept)),
            0,
            False,
        )
        for part in parts
    ]
    outer: list[Statement] = []
    for s in nest.statements:
        if isinstance(s, Reduce) or s.level != "outer":
            continue
        if isinstance(s, (Load, Store)):
            own = nest.operands[s.operand]
            operands.append(replace(own, strides=(0, *(own.strides[k] for k in kept))))
            outer.append(replace(s, operand=len(operands) - 1))
        elif isinstance(s, Count) and s.axis is not None:
            outer.append(replace(s, axis=1 + kept.index(s.axis)))
        else:
            outer.append(s)
    statements: list[Statement] = []
    for stage in range(1 + max(s.stage for s in combined)):
        # What is once a row is there before the elements of its stage need it.
        ready = [s for s in outer if s.stage <= stage]
        outer = [s for s in outer if s.stage > stage]
        statements += [*ready, *(s for s in combined if s.stage == stage)]
    statements += outer
    made = Nest(
        (Axis(chunks, True), *(nest.axes[k] for k in kept)),
        tuple(operands),
        tuple(statements),
        computed(nest.primitives, statements),
        f"combines the partial results of chunks; {nest.reason}",
    )
    return order_axes(made)


def added_up(parts: Sequence[Part]) -> list[Statement]:
    """Each part's reduction goes on over the parts."""
    statements: list[Statement] = []
    for k, part in enumerate(parts):
        value = part.value
        statements.append(Load(value, k, "element", 0))
        statements.append(replace(part.reduce, argument=value, stage=0))
    return statements


# Shared with the other splits.


def closure(
    statements: Sequence[Statement],
    roots: Iterable[Statement],
    stop: AbstractSet[str] = frozenset(),
) -> list[Statement]:
    """``roots`` and what they need, in order; what makes a name in ``stop`` ends it."""
    producers = {s.result.name: s for s in statements if not isinstance(s, Store)}
    chosen = list(roots)
    pending = [name for s in chosen for name in names_of(s)]
    found: set[str] = set()
    while pending:
        name = pending.pop()
        if name in found:
            continue
        found.add(name)
        chosen.append(producers[name])
        if name not in stop:
            pending += names_of(producers[name])
    return [s for s in statements if any(s is c for c in chosen)]


def only_used(
    operands: Sequence[ArrayOperand], statements: Sequence[Statement]
) -> tuple[tuple[ArrayOperand, ...], list[Statement]]:
    """The operands that ``statements`` touch, and the statements with their numbers."""
    used = sorted({s.operand for s in statements if isinstance(s, (Load, Store))})
    return tuple(operands[k] for k in used), [
        replace(s, operand=used.index(s.operand)) if isinstance(s, (Load, Store)) else s
        for s in statements
    ]
