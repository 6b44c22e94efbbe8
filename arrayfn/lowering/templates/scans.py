"""Cumulative primitives: a running value along one axis, stored at each element.

A single long row is cut into chunks of a fixed length. The chunks are reduced, their
totals are scanned, and each chunk is scanned from the total before it. That takes more
arithmetic, but uses all threads, and makes sums more accurate. Cumulative products stay
serial: rounding errors of products of factors near 1 accumulate with one sign.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from arrayfn import dtypes
from arrayfn.dtypes import compute_dtype
from arrayfn.ir import ArrayType, Equation, Var
from arrayfn.ir.layout import C
from arrayfn.lowering.kernel_ir import Constant, Nest, Store
from arrayfn.lowering.templates.nest_builder import (
    Names,
    NestBuilder,
    StridedArray,
    array_of,
    output_array,
)
from arrayfn.passes.reads import Reads
from arrayfn.primitives import reductions
from arrayfn.primitives.base import Primitive, Reduction

CHUNK: Final = 16384  # elements
CHUNKS: Final = 8  # chunks from which three passes are faster than one


SCANS: Final[dict[str, tuple[str, Primitive]]] = {
    "cumsum": ("add", reductions.reduce_sum),
    "cumprod": ("mul", reductions.reduce_prod),
    "cummax": ("max", reductions.reduce_max),
    "cummin": ("min", reductions.reduce_min),
}
"""The function of each primitive, and the reduction that has its identity."""


def scan(
    equation: Equation, reads: Reads, names: Names, *, cut: bool = True
) -> Iterable[Nest]:
    """Yield the nests of a cumulative primitive.

    A single long row is cut into chunks, if ``cut`` allows that: ``y = cumsum(x)`` is
    ``t[c] = sum(x[c])`` for each chunk ``c``, ``s = cumsum(t)``, and ``y[c] =
    cumsum(x[c])`` from ``s[c - 1]`` on.
    """
    function, reduction = SCANS[equation.primitive.name]
    form = reduction.kernel
    assert isinstance(form, Reduction)
    (x,) = equation.inputs
    assert isinstance(x, Var)
    if not x.type.size:
        return
    axis: int = equation.params["axis"]
    extent = x.type.shape[axis]
    source, target = array_of(x, reads), output_array(equation)
    if equation.params["reverse"]:  # scan both arrays from the end, by negative strides
        starts = [n - 1 if k == axis else 0 for k, n in enumerate(x.type.shape)]
        steps = [-1 if k == axis else 1 for k in range(x.type.ndim)]
        source = source.begin_at(starts, steps)
        target = target.begin_at(starts, steps)
    nests = _Scan(equation, names, function, form, axis)
    is_single = x.type.size == extent and extent >= CHUNKS * CHUNK
    if cut and is_single and function != "mul":
        yield from nests.in_chunks(source, target)
    else:
        yield nests.whole(source, target, x.type.shape)


class _Scan:
    """Makes the nests of one scan along ``axis``, by ``function``.

    ``function`` combines the running value and an element; ``form`` has its identity,
    and the function for totals of chunks. ``names`` has the name of each Var, and
    ``result`` the name of the scan's result.
    """

    def __init__(
        self,
        equation: Equation,
        names: Names,
        function: str,
        form: Reduction,
        axis: int,
    ) -> None:
        self.equation = equation
        self.names = names
        self.function = function
        self.form = form
        self.axis = axis
        (x,) = equation.inputs
        assert isinstance(x, Var)
        self.x = x
        self.result = names[equation.outputs[0]]

    def whole(
        self, source: StridedArray, target: StridedArray, shape: tuple[int, ...]
    ) -> Nest:
        """Return the nest that scans each row of an array of ``shape`` serially.

        A row lies along the scanned axis.
        """
        b = NestBuilder(self.equation, self.names)
        value = b.load(self.names[self.x], b.operand(source))
        total = b.reduce(self.result, self.function, value, self.form)
        b.store(b.operand(target, written=True), total)
        return b.nest(shape, "a running value along one axis", (self.axis,))

    def in_chunks(self, source: StridedArray, target: StridedArray) -> Iterable[Nest]:
        """Yield the nests that scan one long row in chunks of ``CHUNK`` elements.

        They compute the totals of the chunks, scan the totals, scan the first chunk,
        scan the other whole chunks from the totals before them, and then the remainder
        of the row.
        """
        shape, axis = self.x.type.shape, self.axis
        chunk_count, remainder = divmod(shape[axis], CHUNK)
        # The extents of the totals, and of the elements as chunks.
        counts = self.at_axis(shape, chunk_count)
        chunked_extents = (*counts, CHUNK)
        totals, scanned_totals = (
            Var(ArrayType(counts, compute_dtype(self.x.type.dtype))) for _ in range(2)
        )
        totals_array, running_totals = (
            StridedArray(v, v.type.dtype, C.strides(counts))
            for v in (totals, scanned_totals)
        )
        yield self.totals(self.cut(source), totals_array, chunked_extents)
        yield self.whole(totals_array, running_totals, counts)
        yield self.whole(source, target, self.at_axis(shape, CHUNK))
        total_before = StridedArray(
            scanned_totals, running_totals.dtype, (*running_totals.strides, 0)
        )
        yield self.continued(
            self.cut(self.later(source, CHUNK)),
            total_before,
            self.cut(self.later(target, CHUNK)),
            (*self.at_axis(shape, chunk_count - 1), CHUNK),
        )
        if remainder:
            yield self.continued(
                self.cut(self.later(source, chunk_count * CHUNK)),
                self.later(total_before, chunk_count - 1),
                self.cut(self.later(target, chunk_count * CHUNK)),
                (*self.at_axis(shape, 1), remainder),
            )

    def at_axis(self, shape: tuple[int, ...], extent: int) -> tuple[int, ...]:
        """Return ``shape`` with ``extent`` in place of the scanned axis's extent."""
        return (*shape[: self.axis], extent, *shape[self.axis + 1 :])

    def cut(self, array: StridedArray) -> StridedArray:
        """Return ``array`` with its scanned axis split into chunks.

        The axis becomes that of chunks; the elements of a chunk are a new last axis.
        """
        step = array.strides[self.axis]
        strides = self.at_axis(array.strides, step * CHUNK)
        return replace(array, strides=(*strides, step))

    def later(self, array: StridedArray, distance: int) -> StridedArray:
        """Return ``array`` from element ``distance`` of the scanned axis on."""
        return replace(array, offset=array.offset + distance * array.strides[self.axis])

    def totals(
        self, source: StridedArray, target: StridedArray, extents: tuple[int, ...]
    ) -> Nest:
        """Return the nest that computes the total of each chunk.

        ``source`` has the elements as ``cut`` returns them, with ``extents``: the last
        one is a chunk's length. ``target`` has a total for each chunk.
        """
        b = NestBuilder(self.equation, self.names)
        value = b.load(self.names[self.x], b.operand(source))
        total = b.reduce(self.result, self.form.function, value, self.form)
        operand = b.operand(replace(target, strides=(*target.strides, 0)), written=True)
        # Once for each chunk, in the stage after the reduction.
        store = Store(operand, total, "outer", stage=1, source=self.equation.source)
        b.statements.append(store)
        last = len(extents) - 1
        return b.nest(extents, "the total of each chunk of a row", in_order=(last,))

    def continued(
        self,
        source: StridedArray,
        before: StridedArray,
        target: StridedArray,
        extents: tuple[int, ...],
    ) -> Nest:
        """Return the nest that scans each chunk, beginning with the total before it.

        ``source`` and ``target`` have the elements as ``cut`` returns them, with
        ``extents``; ``before`` has the total before each chunk. The term for a chunk's
        first element is that total combined with the element.
        """
        b = NestBuilder(self.equation, self.names)
        last = len(extents) - 1
        position = b.count("position", last)
        zero = Constant(0, dtypes.int64)
        i64, bool_ = dtypes.int64, dtypes.bool_
        is_first = b.compute("is_first", "eq", position, zero, dtype=bool_, of=i64)
        value = b.load(self.names[self.x], b.operand(source))
        total_before = b.load(f"{self.result}_before", b.operand(before))
        dtype = value.dtype
        start = b.compute(
            f"{self.result}_begin", self.function, total_before, value, dtype=dtype
        )
        term = b.compute(
            f"{self.result}_term", "select", is_first, start, value, dtype=dtype
        )
        total = b.reduce(self.result, self.function, term, self.form)
        b.store(b.operand(target, written=True), total)
        reason = "a running value, from the total before each chunk"
        return b.nest(extents, reason, in_order=(last,))
