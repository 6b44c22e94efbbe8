"""Splits long rows with two mergeable stages into parts that fit a block's registers.

A first nest computes the reductions of both stages for each part, those of the later
stage with the part's own shift (see ``merges``). A second, small nest rescales and
combines them, and computes what is once a row. So a row is read once, however long it
is, and no block waits for another. This serves nests that store nothing for each
element: a logsumexp or a variance, not a softmax.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field, replace

import numpy as np

from arrayfn import dtypes
from arrayfn.dtypes import short_name
from arrayfn.lowering.cuda.config import GpuConfig
from arrayfn.lowering.cuda.merges import (
    Exponentials,
    Merge,
    Squares,
    merges_of,
)
from arrayfn.lowering.cuda.schedule import Columns, Rows, divisor_lanes, widest_lanes
from arrayfn.lowering.cuda.split import (
    ChunkSizes,
    PartialResults,
    block_count,
    combine_parts,
    fills_gpu,
    has_narrow_rows,
    part_arrays,
    partial_nests,
    uneven_chunks,
)
from arrayfn.lowering.cuda.stage_plan import kept_words
from arrayfn.lowering.cuda.vocabulary import WARP
from arrayfn.lowering.kernel_ir import (
    Argument,
    Compute,
    Constant,
    Count,
    Load,
    Nest,
    Reduce,
    Scalar,
    Statement,
    Value,
    is_element_store,
)
from arrayfn.lowering.split import partial_value
from arrayfn.records import record


def merged_parts(
    nest: Nest, schedule: Rows | Columns, gpu: GpuConfig
) -> list[Nest] | None:
    """Split ``nest`` into the nests of parts of rows, and the nest that combines them.

    None if one kernel for whole rows is faster; ``schedule`` is that kernel's.
    """
    merge = whole_merge(nest)
    if merge is None:
        return None
    reduced = nest.reduced_axes
    axis = max(reduced, key=lambda k: nest.axes[k].extent)
    cut = _chunks(nest, axis, merge, schedule, gpu)
    if cut is None:
        return None
    # The part is cut along one reduced axis, and is whole along the others.
    others = math.prod(nest.axes[k].extent for k in reduced if k != axis)
    elements = cut.size * others, cut.rest * others
    shifted, shifted_rest = (_with_partial_shifts(nest, merge, n) for n in elements)
    # Narrow rows have few columns: if the parts of a column are neighbours in memory,
    # they are combined as a row, by more blocks.
    innermost = not has_narrow_rows(nest, axis)
    parts = part_arrays(shifted, cut.all_chunks, chunks_innermost=innermost)
    nests = partial_nests(shifted, shifted_rest, axis, cut, parts)
    combined = _PartCombination(merge, parts, cut.chunks, elements).statements
    return [*nests, combine_parts(nest, parts, cut.all_chunks, combined)]


def whole_merge(nest: Nest) -> Merge | None:
    """Return the merge of a nest of two stages that stores no elements.

    None for other nests.
    """
    if nest.stages != 2 or any(is_element_store(s) for s in nest.statements):
        return None
    merges = merges_of(nest, squares=True)
    return merges[0] if merges else None


def _chunks(
    nest: Nest, axis: int, merge: Merge, schedule: Rows | Columns, gpu: GpuConfig
) -> ChunkSizes | None:
    """Choose the parts that rows are cut into along ``axis``; None for whole rows.

    A part fits into a block's registers, and there are enough parts for all
    multiprocessors. The parts have equal sizes if a number of parts up to twice the
    needed one divides the axis. ``merge`` is the pair of stages of ``nest``,
    ``schedule`` the one that ``nest`` has if rows stay whole.
    """
    length = nest.row_length
    room = gpu.merged_words
    if isinstance(schedule, Columns):
        rows, columns, lanes = block_count(nest, schedule), WARP, 1
        if has_narrow_rows(nest, axis):
            room *= 2  # fewer parts: few blocks combine them
    else:
        rows, columns = nest.rows, 1
        lanes = divisor_lanes(nest.axes[-1].extent, widest_lanes(nest, gpu))
        # Sums of float64 exponentials need many registers.
        if any(
            isinstance(m, Exponentials) and m.element.result.dtype.itemsize > 4
            for m in merge.rescaled
        ):
            room *= 2
    # 32-bit words of a row (or of 32 columns) in registers. A part may have ``room``.
    words = kept_words(nest, lanes) * length * columns // lanes
    if _stays_whole(nest, schedule, rows, words, gpu):
        return None
    # Enough parts for all multiprocessors, unless they would be too small then.
    target = -(-gpu.multiprocessors * gpu.split_blocks // rows)
    count = max(-(-words // room), min(target, length * columns // gpu.split_chunk))
    if count < 2:
        return None
    extent = nest.axes[axis].extent
    # Along the last axis, parts consist of whole vectors.
    unit = lanes if axis == len(nest.axes) - 1 else 1
    for parts in range(count, min(2 * count, extent)):
        if extent % (parts * unit) == 0:
            return ChunkSizes(extent // parts, parts, rest=0)
    return uneven_chunks(extent, count)


def _stays_whole(
    nest: Nest, schedule: Rows | Columns, rows: int, words: int, gpu: GpuConfig
) -> bool:
    """Return whether whole rows in the registers of a block or cluster are faster.

    Args:
        nest: The nest.
        schedule: Its schedule if rows are not cut.
        rows: The number of rows, or of groups of 32 columns.
        words: 32-bit words that such a row takes up in registers.
        gpu: The GPU.
    """
    if not schedule.register_resident:
        return False
    threads = (
        schedule.threads if isinstance(schedule, Columns) else schedule.threads_per_row
    )
    if threads > gpu.max_threads:  # a cluster
        # Clusters pay where the rows are few: all of them are in registers at once, a
        # part of at most ``merged_words`` for each multiprocessor.
        return rows * words < gpu.multiprocessors * gpu.merged_words
    # Of large blocks a multiprocessor runs only one at a time. That counts
    # if there is a row for each multiprocessor.
    runs_singly = threads > gpu.max_threads // 2 and rows >= gpu.multiprocessors
    length = nest.row_length
    # Few rows leave multiprocessors idle. Parts use them, but cost a second kernel: a
    # row must have work for four blocks.
    leaves_idle = length >= 4 * gpu.split_chunk and not fills_gpu(nest, schedule, gpu)
    return not runs_singly and not leaves_idle


# The nest of parts.


def _with_partial_shifts(nest: Nest, merge: Merge, elements: int) -> Nest:
    """Have the later stage of ``nest`` use a part's maximum or mean as its shift.

    For each sum of squares of ``merge``, a sum of the differences themselves is added:
    rescaling needs it.

    Args:
        nest: The nest of whole rows.
        merge: Its pair of stages.
        elements: Elements of the part.
    """
    # For each shift of the row: the part's own shift; and, by the earlier reduction's
    # name, the statements that compute own shifts, which follow it.
    own_shifts: dict[str, Value] = {}
    shifts_after: dict[str, dict[str, Compute]] = {}
    sums: list[Statement] = []
    for m in merge.rescaled:
        if isinstance(m, Exponentials) and m.shift == m.maximum.result:
            # -inf - -inf would be NaN in a part that has only -inf.
            first, dtype = m.maximum, m.shift.dtype
            lowest = Constant(float(np.finfo(dtype).min), dtype)
            function, argument = first.function, lowest
        elif isinstance(m, Squares):
            first = m.total
            function, argument = _mean_of(first, elements)
            sums.append(_differences(m))
        else:
            continue
        result = replace(first.result, name=f"{first.result.name}_own")
        arguments = (first.result, argument)
        shift = Compute(
            result, function, arguments, "outer", stage=merge.stage + 1, cost=1
        )
        own_shifts[m.shift.name] = result
        shifts_after.setdefault(first.result.name, {})[result.name] = shift
    statements: list[Statement] = []
    for s in nest.statements:
        if isinstance(s, Compute):
            s = replace(
                s, arguments=tuple(_renamed(a, own_shifts) for a in s.arguments)
            )
        statements.append(s)
        if isinstance(s, Reduce):
            statements += shifts_after.get(s.result.name, {}).values()
    return replace(nest, statements=(*statements, *sums))


def _renamed(x: Scalar, names: Mapping[str, Value]) -> Scalar:
    """Replace ``x`` by the value of ``names`` under its name, if there is one."""
    return names.get(x.name, x) if isinstance(x, Value) else x


def _mean_of(total: Reduce, elements: int) -> tuple[str, Constant]:
    """Return the function and the argument that make a mean of the sum ``total``.

    ``("div_f32", 512.0)`` for a float32 sum of 512 ``elements``.
    """
    dtype = total.result.dtype
    return f"div_{short_name(dtype)}", Constant(float(elements), dtype)


def _differences(m: Squares) -> Reduce:
    """Return the reduction that sums the differences whose squares ``m`` sums."""
    result = replace(m.reduce.result, name=f"{m.reduce.result.name}_first")
    return replace(m.reduce, result=result, argument=m.difference.result)


# The nest that combines parts.


@record
class _PartCombination:
    """Builds the statements that combine the partial results of parts.

    Args:
        merge: The pair of stages.
        parts: The arrays of partial results.
        count: How many parts there are, without the shorter last one.
        elements: Elements of a part, and of the shorter last one or 0.
        statements: The statements so far. They rescale the later stage's reductions to
            the row's shift.
        loaded: The value of a part's result, by the reduction's name.
    """

    merge: Merge
    parts: Sequence[PartialResults]
    count: int
    elements: tuple[int, int]
    statements: list[Statement] = field(default_factory=list[Statement])
    loaded: dict[str, Value] = field(default_factory=dict[str, Value])

    def __post_init__(self) -> None:
        """Append the loads of partial results, the reductions, and the rescaling."""
        stage = self.merge.stage
        for k, part in enumerate(self.parts):
            value = partial_value(part.reduce)
            self.loaded[part.reduce.result.name] = value
            self.statements.append(Load(value, k, "element", part.reduce.stage))
        for s in self.merge.reduces:
            self.statements.append(
                replace(s, argument=self.partial_result(s), stage=stage)
            )
        for m in self.merge.rescaled:
            term = self.partial_result(m.reduce)
            if isinstance(m, Exponentials):
                term = self.exponentials(m)
            elif isinstance(m, Squares):
                term = self.squares(m)
            self.statements.append(replace(m.reduce, argument=term))

    def partial_result(self, s: Reduce) -> Value:
        """Return the value that holds one part's result of the reduction ``s``."""
        return self.loaded[s.result.name]

    def exponentials(self, m: Exponentials) -> Value:
        """Append the rescaling of a part's sum of exponentials; return the result.

        It is ``sum * exp(min(p - shift, 0))``, where ``p`` is the part's maximum. ``p``
        exceeds the shift only in a row with an infinite or NaN maximum, for which
        Programs may take 0 as the shift. ``accumulate_min`` leaves the sign of a zero
        open, which does not change ``exp``.
        """
        zero = Constant(0.0, m.reduce.result.dtype)
        moved = self.compute(m, "moved", "sub", self.partial_result(m.maximum), m.shift)
        clamped = self.compute(m, "clamped", "accumulate_min", moved, zero)
        growth = self.compute(m, "growth", "exp", clamped)
        return self.compute(m, "term", "mul", self.partial_result(m.reduce), growth)

    def squares(self, m: Squares) -> Value:
        """Append the rescaling of a part's sum of squares; return the result.

        It is ``squares + moved * (2 * differences + n * moved)``, where ``moved`` is
        the part's mean less the shift, and ``n`` the part's number of elements (see
        ``merges``).
        """
        elements, first = self.elements_of(m), self.partial_result(_differences(m))
        mean = self.compute(m, "mean", "div", self.partial_result(m.total), elements)
        moved = self.compute(m, "moved", "sub", mean, m.shift)
        twice = self.compute(m, "twice", "add", first, first)
        all_moved = self.compute(m, "all_moved", "mul", elements, moved)
        grown = self.compute(m, "grown", "add", twice, all_moved)
        correction = self.compute(m, "more", "mul", moved, grown)
        return self.compute(m, "term", "add", self.partial_result(m.reduce), correction)

    def elements_of(self, m: Squares) -> Scalar:
        """Return the number of elements of a part, for the sum ``m``, in its dtype.

        It is a constant. If the last part is shorter, it is a value that statements
        appended here select by the part's number.
        """
        dtype = m.reduce.result.dtype
        size, rest = (Constant(float(n), dtype) for n in self.elements)
        if not rest.value:
            return size
        part = Value(f"{m.reduce.result.name}_place", dtypes.int64)
        within = Value(f"{m.reduce.result.name}_within", dtypes.bool_)
        stage, last = m.reduce.stage, Argument("parts_before_rest", self.count)
        # Axis 0 of the combining nest counts the parts.
        self.statements += [
            Count(part, 0, "element", stage),
            Compute(within, "lt_i64", (part, last), "element", stage, cost=1),
        ]
        return self.compute(m, "elements", "select", within, size, rest)

    def compute(
        self, m: Exponentials | Squares, name: str, kind: str, *of: Scalar
    ) -> Value:
        """Append a statement and return its result.

        Args:
            m: The sum that the statement is a part of.
            name: Ends the result's name.
            kind: The function without its dtype, such as ``sub``.
            of: The arguments.
        """
        result = replace(m.reduce.result, name=f"{m.reduce.result.name}_{name}")
        function = f"{kind}_{short_name(result.dtype)}"
        stage = m.reduce.stage
        self.statements.append(
            Compute(result, function, of, level="element", stage=stage, cost=1)
        )
        return result
