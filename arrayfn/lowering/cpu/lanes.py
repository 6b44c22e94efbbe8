"""Finds loops whose elements are independent, so that each can run all iterations.

Their bodies compute elementwise on arrays of one size, and on scalars that are the same
for all elements. One kernel then takes a block of elements through all iterations while
they are in the cache; blocks run on several threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from arrayfn import dtypes
from arrayfn.ir import Var
from arrayfn.lowering.kernel_ir import Load, Nest, Reduce, Store
from arrayfn.lowering.steps import BranchStep, LoopStep, NestStep, PlanStep, walk

MAX_STATEMENTS: Final = 600  # of a loop over lanes, so that its kernel compiles quickly


def lanes_of(loop: LoopStep) -> int:
    """Return the number of elements (lanes) that ``loop`` computes independently, or 0.

    All arrays of the loop's body have this size or are scalars. Elements are
    independent if no statement of the body combines two of them: each can then run all
    iterations by itself. Returns 0 if they are not, or if the body is too long.
    """
    sizes = _extents_of_steps([loop])
    if sizes is None or len(sizes) != 1 or _length([loop]) > MAX_STATEMENTS:
        return 0
    lanes = sizes.pop()
    carries_fit = all(
        c.result.type.size in (1, lanes) and _is_plain(c.result)
        for step in _loops([loop])
        for c in step.carries
    )
    # Only one work item stores scalars. If they are stacked by an inner loop, other
    # items would read them before they are stored.
    stacks_scalars = any(
        s.outer in step.results and s.inner.type.size != lanes
        for step in _loops(loop.body)
        for s in step.slices
    )
    return lanes if carries_fit and lanes > 1 and not stacks_scalars else 0


def _length(steps: Iterable[PlanStep]) -> int:
    """Return the number of statements in the nests among ``steps``."""
    nests = (step.nest for step in walk(steps) if isinstance(step, NestStep))
    return sum(len(nest.statements) for nest in nests)


def side_by_side(loop: LoopStep, lanes: int) -> None:
    """Mark ``loop`` and its inner loops to become one kernel over ``lanes`` elements.

    Sets ``serial`` and ``lanes`` of each.
    """
    for step in _loops([loop]):
        step.serial, step.lanes = True, lanes


def _loops(steps: Iterable[PlanStep]) -> Iterator[LoopStep]:
    """Return the loops among ``steps``, nested ones too."""
    return (step for step in walk(steps) if isinstance(step, LoopStep))


def _extents_of_steps(steps: Iterable[PlanStep]) -> set[int] | None:
    """Return the extents of the axes of all nests in ``steps``.

    None if a step is not a loop, a branch or an elementwise nest of at most one axis.
    """
    lanes: set[int] = set()
    for step in walk(steps):
        if isinstance(step, (LoopStep, BranchStep)):
            continue
        if not isinstance(step, NestStep) or step.partials:
            return None
        extents = _extents_of_nest(step.nest)
        if extents is None:
            return None
        lanes |= extents
    return lanes


def _extents_of_nest(nest: Nest) -> set[int] | None:
    """Return the extent of the nest's axis as a set, empty for a nest without axes.

    None if the nest is not elementwise, has several axes, or reads or writes an array
    in another way than element by element.
    """
    if len(nest.axes) > 1 or any(axis.reduced for axis in nest.axes):
        return None
    for statement in nest.statements:
        if isinstance(statement, Reduce):
            return None
        if isinstance(statement, (Load, Store)) and statement.indices:
            return None
    extents = {axis.extent for axis in nest.axes}
    for operand in nest.operands:
        type = operand.array.type
        has_own_dtype = operand.dtype == type.dtype and _is_plain(operand.array)
        is_whole = not operand.offset and type.size in {1, *extents}
        # Stride 0 reads one element for all lanes: only an array of one element may.
        allowed_strides = {0, 1} if type.size == 1 else {1}
        if (
            not has_own_dtype
            or not is_whole
            or not set(operand.strides) <= allowed_strides
        ):
            return None
    return extents


def _is_plain(array: Var) -> bool:
    """Return whether ``array`` is not a scalar in half precision.

    Such a scalar cannot be a local variable, whose dtype would be the compute dtype.
    """
    return array.type.size != 1 or array.type.dtype not in dtypes.HALF_PRECISION
