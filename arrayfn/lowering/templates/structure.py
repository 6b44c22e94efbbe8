"""concatenate and pad: copy elements into parts of the output, and fill the rest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from arrayfn.ir import Atom, Equation
from arrayfn.ir.layout import Shape
from arrayfn.lowering.kernel_ir import Constant, Nest
from arrayfn.lowering.templates.nest_builder import (
    Names,
    NestBuilder,
    StridedArray,
    array_of,
    output_array,
    source_of,
)
from arrayfn.passes.reads import Reads


def concatenate(equation: Equation, reads: Reads, names: Names) -> Iterable[Nest]:
    """Yield one nest for each operand, which copies it into its part of the output.

    Empty operands have none.
    """
    axis: int = equation.params["axis"]
    target = output_array(equation)
    steps = (1,) * len(target.strides)
    begin = 0
    for number, operand in enumerate(equation.inputs):
        starts = [begin if k == axis else 0 for k in range(len(steps))]
        begin += operand.type.shape[axis]
        part = target.begin_at(starts, steps)
        if operand.type.size:
            source, extents = array_of(operand, reads), operand.type.shape
            reason = f"operand {number} into its part of the output"
            yield _copy(equation, names, operand, source, part, extents, reason)


def _copy(
    equation: Equation,
    names: Names,
    operand: Atom,
    source: StridedArray | Constant,
    target: StridedArray,
    extents: Shape,
    reason: str,
) -> Nest:
    """Return the nest that copies ``operand`` from ``source`` to ``target``.

    Both have ``extents``; ``source`` may be a constant. ``reason`` is as in
    ``NestBuilder.nest``.
    """
    b = NestBuilder(equation, names)
    b.move(operand, source, target)
    return b.nest(extents, reason)


def pad(equation: Equation, reads: Reads, names: Names) -> Iterable[Nest]:
    """Yield the nests that store the padding value, then the operand's elements.

    With interior padding, the value is first stored everywhere. Otherwise it is stored
    only around the operand's elements, in one nest for each side. Negative padding cuts
    elements off.
    """
    x, value = equation.inputs
    target = output_array(equation)
    shape = equation.outputs[0].type.shape
    config = equation.params["config"]
    # For each axis: the first element of the operand that is kept, how many are, the
    # index of the first one in the output, and the distance between them there.
    firsts, counts, offsets, steps = [], [], [], []
    for extent, n, (low, _, inner) in zip(x.type.shape, shape, config, strict=True):
        step = inner + 1
        # Element k is at index low + k * step of the output. ``first`` is the smallest
        # k with an index of at least 0; ``n`` is the output's extent.
        first = -(min(low, 0) // step)
        count = min(extent - first, -(-(n - low - first * step) // step))
        firsts.append(first)
        counts.append(max(count, 0))
        offsets.append(low + first * step)
        steps.append(step)
    if 0 in shape:
        return
    filling = source_of(value, reads)
    if isinstance(filling, StridedArray):
        filling = filling.spread(len(shape))
    if 0 in counts or any(
        step > 1 and count > 1 for step, count in zip(steps, counts, strict=True)
    ):
        reason = "the value everywhere"
        yield _copy(equation, names, value, filling, target, shape, reason)
    else:
        reason = "the value on one side"
        for starts, extents in _around(shape, offsets, counts):
            part = target.begin_at(starts, (1,) * len(shape))
            yield _copy(equation, names, value, filling, part, extents, reason)
    if 0 not in counts:
        part = target.begin_at(offsets, steps)
        source = source_of(x, reads)
        if isinstance(source, StridedArray):
            source = source.begin_at(firsts, (1,) * len(shape))
        reason = "the operand at its offset"
        yield _copy(equation, names, x, source, part, tuple(counts), reason)


def _around(
    shape: Shape, begin: Sequence[int], counts: Sequence[int]
) -> Iterator[tuple[Shape, Shape]]:
    """Yield disjoint boxes ``(starts, extents)`` that cover all outside of one box.

    The box that is left out begins at ``begin`` and has ``counts`` elements along each
    axis of ``shape``. For each axis there are up to two boxes, before and after it.
    Along earlier axes they are as long as the box, along later axes as ``shape``.
    """
    starts, extents = [0] * len(shape), list(shape)
    for axis, n in enumerate(shape):
        end = begin[axis] + counts[axis]
        for low, high in ((0, begin[axis]), (end, n)):
            if low < high:
                starts[axis], extents[axis] = low, high - low
                yield tuple(starts), tuple(extents)
        starts[axis], extents[axis] = begin[axis], counts[axis]
