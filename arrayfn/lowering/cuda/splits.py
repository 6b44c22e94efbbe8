"""Splits nests of few rows, or of long rows, over the whole GPU.

How a nest is split depends only on its shapes:

* a reduction of one stage becomes partial results of chunks, and their combination
  (``split``);
* so do two stages that merge, as in ``logsumexp`` and variances: the chunks compute
  both, with a shift each (``merged_parts``);
* a nest of other stages becomes nests of fewer stages by loop distribution
  (``distribute``): results of reductions are written to memory, and read by the nests
  that follow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from arrayfn.ir import ArrayType, Var
from arrayfn.ir.layout import RowMajor
from arrayfn.lowering.build import select_axes
from arrayfn.lowering.cuda.choose import choose
from arrayfn.lowering.cuda.config import GPU, GpuConfig
from arrayfn.lowering.cuda.merged_parts import merged_parts, whole_merge
from arrayfn.lowering.cuda.merges import merges_of
from arrayfn.lowering.cuda.schedule import Columns, Pipeline, Rows
from arrayfn.lowering.cuda.split import fills_gpu, split
from arrayfn.lowering.kernel_ir import (
    ArrayOperand,
    Axis,
    Compute,
    Count,
    Level,
    Load,
    Nest,
    Reduce,
    Statement,
    Store,
    uses,
)
from arrayfn.lowering.split import restrict, with_dependencies
from arrayfn.lowering.titles import computed


def split_nest(nest: Nest, gpu: GpuConfig = GPU) -> list[Nest]:
    """Replace ``nest`` by nests that use more of the GPU, in order.

    ``[nest]`` if it fills the GPU, or cannot be split.
    """
    schedule = choose(nest, gpu)
    if not isinstance(schedule, (Rows, Columns)) or nest.is_in_order:
        return [nest]
    merged = merged_parts(nest, schedule, gpu)
    if merged is not None:
        return merged
    shared = isinstance(schedule, Rows) and schedule.cluster > 1
    in_pipeline = isinstance(schedule, Pipeline)
    if shared or in_pipeline or fills_gpu(nest, schedule, gpu):
        return [nest]
    if nest.stages == 1:
        return split(nest, gpu)
    if nest.row_length < 4 * gpu.split_chunk:  # too short for more kernels to pay
        return [nest]
    return [part for piece in distribute(nest) for part in split_nest(piece, gpu)]


def distribute(nest: Nest) -> list[Nest]:
    """Distribute the stages of ``nest`` over several nests (loop distribution).

    Each stage becomes a nest, or each two stages that merge (unless these two are all
    of ``nest``). A further nest computes and stores the elements, and the last one runs
    the statements that run once a row. Results of reductions go from nest to nest in
    arrays.
    """
    merges = () if whole_merge(nest) else merges_of(nest, squares=True)
    kept = nest.kept_axes
    reduces = nest.reductions
    results = {s.result.name: _result(nest, s, kept) for s in reduces}
    pieces: list[Nest] = []
    # A nest begins at each stage that is not the second of two that merge.
    beginnings = set(range(nest.stages)) - {m.stage + 1 for m in merges}
    for first in sorted(beginnings):
        last = first if first + 1 in beginnings else first + 1
        roots = [s for s in reduces if first <= s.stage <= last]
        if roots:
            made = _sub_nest(
                nest, roots, results, nest.axes, level=lambda s: s.level, first=first
            )
            # Store the results, which later nests load.
            operands, statements = list(made.operands), list(made.statements)
            end = made.stages
            for s in roots:
                operands.append(replace(results[s.result.name], written=True))
                statements.append(Store(len(operands) - 1, s.result, "outer", end))
            pieces.append(
                replace(made, operands=tuple(operands), statements=tuple(statements))
            )
    # The nest of elements runs over all axes in parallel, the last one over the rows.
    stores = [s for s in nest.statements if isinstance(s, Store)]
    elements = [s for s in stores if s.level == "element"]
    if elements:
        axes = tuple(replace(a, reduced=False) for a in nest.axes)
        pieces.append(
            _sub_nest(nest, elements, results, axes, level=lambda s: "element")
        )
    outer = [s for s in stores if s.level == "outer"]
    if outer:
        made = _sub_nest(nest, outer, results, nest.axes, level=lambda s: "element")
        pieces.append(select_axes(made, kept))
    return pieces


def _result(nest: Nest, s: Reduce, kept: Sequence[int]) -> ArrayOperand:
    """Make an array for the result of the reduction ``s``, as an operand of ``nest``.

    It has an element for each tuple of indices along the ``kept`` axes.
    """
    shape = [nest.axes[k].extent for k in kept]
    strides = [0] * len(nest.axes)
    for k, stride in zip(kept, RowMajor().strides(tuple(shape)), strict=True):
        strides[k] = stride
    array = Var(ArrayType(tuple(shape), s.result.dtype))
    return ArrayOperand(array, s.result.dtype, tuple(strides), offset=0, written=False)


def _sub_nest(
    nest: Nest,
    roots: Sequence[Statement],
    results: dict[str, ArrayOperand],
    axes: tuple[Axis, ...],
    level: Callable[[Load | Compute | Count | Store], Level],
    first: int | None = None,
) -> Nest:
    """Build the nest of ``roots`` and of the statements that they need.

    Args:
        nest: The nest that is distributed.
        roots: Reductions, or stores.
        results: The array of each reduction's result, by the result's name. Results of
            reductions that are not in ``roots`` are loaded.
        axes: The new nest's axes.
        level: The level of each statement in the new nest.
        first: The stage that becomes stage 0. If None, all statements are in stage 0.
    """

    def of(s: Statement) -> int:
        """Return the stage of ``s`` in the new nest."""
        return 0 if first is None else max(0, s.stage - first)

    own = {s.result.name for s in roots if isinstance(s, Reduce)}
    needed = with_dependencies(nest.statements, roots, through_reductions=False)
    read = {value.name for s in needed for value in uses(s)}
    # Keep what the roots need, and the reductions whose results are loaded.
    computing = restrict(
        nest,
        [
            s
            for s in nest.statements
            if any(s is other for other in needed)
            or (isinstance(s, Reduce) and s.result.name in read)
        ],
    )
    operands = list(computing.operands)
    statements: list[Statement] = []
    for s in computing.statements:
        if isinstance(s, Reduce):
            if s.result.name in own:
                statements.append(replace(s, stage=of(s)))
                continue
            operands.append(results[s.result.name])
            load = Load(s.result, len(operands) - 1, "outer", stage=0, source=s.source)
            # The level depends on the new nest.
            statements.append(replace(load, level=level(load)))
        else:
            statements.append(replace(s, level=level(s), stage=of(s)))
    return replace(
        nest,
        axes=axes,
        operands=tuple(operands),
        statements=tuple(statements),
        primitives=computed(nest.primitives, statements),
    )
