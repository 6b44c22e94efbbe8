"""Gather, scatter and dynamic slices: nests whose offsets are computed from indices.

An index is clamped, or tested and replaced by 0, before it is used, so no kernel
accesses memory outside its arrays. Along axes on which two updates may have the same
target, updates run in the row-major order of the updates array. Along the others they
run in parallel. So the result does not depend on the threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from arrayfn import dtypes
from arrayfn.dtypes import compute_dtype
from arrayfn.ir import Atom, Equation, Literal, Var
from arrayfn.ir.layout import Shape
from arrayfn.lowering.build import drop_unit_axes, merge_axes, select_axes
from arrayfn.lowering.kernel_ir import Argument, Constant, IndexTerm, Nest, Value
from arrayfn.lowering.templates.nest_builder import (
    NestBuilder,
    StridedArray,
    array_of,
    output_array,
    source_of,
)
from arrayfn.passes.reads import Reads
from arrayfn.primitives.windows import Windows

Names = Mapping[Var, str]

_ZERO = Constant(0, dtypes.int64)
_I64 = dtypes.int64
_BOOL = dtypes.bool_


def gather(equation: Equation, reads: Reads, names: Names) -> Iterable[Nest]:
    """Read each element from its window, or a fill value."""
    x, indices = equation.inputs
    output = equation.outputs[0]
    if not output.type.size:
        return
    params = dict(equation.params)
    sizes, mode = params.pop("sizes"), params.pop("mode")
    fill = params.pop("fill_value")
    params.pop("unique_indices", None)
    windows = Windows(**params)
    source, target = array_of(x, reads), output_array(equation)
    b = NestBuilder(equation, names)
    geometry = _Geometry(windows, x.type.shape, sizes, output.type.ndim)
    begins = geometry.begins(b, indices, reads)
    inside = None
    if mode != "fill":
        begins = geometry.clamped(b, begins)
    elif (inside := geometry.inside(b, begins)) is not None:
        begins = _or_zero(b, begins, inside)
    steps = geometry.steps(begins, source)
    source = geometry.windows_of(source)
    if inside is None:
        b.move(x, source, target, source_indices=steps)
    else:
        value = b.scalar(x, source, steps)
        dtype = compute_dtype(target.dtype)
        arguments = (inside, value, Constant(fill, dtype))
        result = b.compute(names[output], "select", *arguments, dtype=dtype, of=dtype)
        b.store(b.operand(target, written=True), result)
    yield b.nest(output.type.shape, "reads at computed indices")


def scatter(
    function: str | None,
) -> Callable[[Equation, Reads, Names], Iterable[Nest]]:
    """The scatter that combines by ``function``; without one, it overwrites."""

    def nests(equation: Equation, reads: Reads, names: Names) -> Iterable[Nest]:
        return _scattered(equation, reads, names, function)

    return nests


def added(
    equation: Equation,
    reads: Reads,
    names: Names,
    among: tuple[int, int] | None = None,
) -> Iterable[Nest]:
    """The scatter-add by atomic additions, in no fixed order, on a GPU.

    With ``among``, only updates whose first index lies in this closed range are added.
    """
    return _scattered(equation, reads, names, "add", as_they_come=True, among=among)


def _scattered(
    equation: Equation,
    reads: Reads,
    names: Names,
    function: str | None,
    *,
    as_they_come: bool = False,
    among: tuple[int, int] | None = None,
) -> Iterable[Nest]:
    x, indices, updates = equation.inputs
    if not updates.type.size or not x.type.size:
        return
    params = dict(equation.params)
    mode, unique = params.pop("mode"), params.pop("unique_indices")
    params.pop("indices_are_sorted", None)
    windows = Windows(**params)
    sizes = windows.sizes(x.type.ndim, updates.type.shape)
    geometry = _Geometry(windows, x.type.shape, sizes, updates.type.ndim)
    target = output_array(equation)
    b = NestBuilder(equation, names)
    begins = geometry.begins(b, indices, reads)
    inside = None
    if mode == "clip":
        begins = geometry.clamped(b, begins)
    else:
        inside = geometry.inside(b, begins)
    if among is not None:
        bounds = Argument("first", among[0]), Argument("last", among[1])
        inside = _within(b, begins[0], bounds, inside)
    if inside is not None and function:
        begins = _or_zero(b, begins, inside)
    steps = geometry.steps(begins, target)
    target = geometry.windows_of(target)
    source = source_of(updates, reads)
    if function is None:
        b.move(updates, source, target, target_indices=steps, where=inside)
    elif as_they_come:
        value = b.scalar(updates, source)
        own = b.operand(target, written=True)
        b.store(own, value, steps, inside, adds=True)
        yield b.nest(updates.type.shape, "atomic additions at computed indices")
        return
    else:
        dtype, name = compute_dtype(target.dtype), names[equation.outputs[0]]
        own = b.operand(target, written=True)
        before = b.load(f"{name}_before", own, steps)
        arguments = (before, b.scalar(updates, source))
        result = b.compute(name, function, *arguments, dtype=dtype, of=dtype)
        b.store(own, result, steps, inside)
    in_order = () if unique else geometry.meeting_axes()
    reason = "writes at computed indices, in the order of the updates"
    yield _updates_nest(b, target, updates.type.shape, in_order, reason)


def _updates_nest(
    b: NestBuilder,
    target: StridedArray,
    extents: Shape,
    in_order: Sequence[int],
    reason: str,
) -> Nest:
    """The nest with parallel axes outside ordered ones, a contiguous one innermost."""
    if not in_order:
        return b.nest(extents, reason)
    strides = target.strides
    free = [k for k in range(len(extents)) if k not in in_order]
    free.sort(key=lambda k: (extents[k] > 1, -abs(strides[k])))
    inner = [k for k in free[-1:] if abs(strides[k]) == 1]
    order = [*free[: len(free) - len(inner)], *in_order, *inner]
    nest = select_axes(b.as_written(extents, reason, in_order), order)
    return merge_axes(drop_unit_axes(nest))


def dynamic_slice(equation: Equation, reads: Reads, names: Names) -> Iterable[Nest]:
    """Read the slice that begins at the scalar positions."""
    x, *starts = equation.inputs
    output = equation.outputs[0]
    if not output.type.size:
        return
    b = NestBuilder(equation, names)
    shape = output.type.shape
    source, steps = source_of(x, reads), []
    if isinstance(source, StridedArray):
        source, steps = _moved(b, source, starts, x.type.shape, shape, reads)
    b.move(x, source, output_array(equation), source_indices=steps)
    yield b.nest(shape, "a slice at a computed index")


def dynamic_update_slice(
    equation: Equation, reads: Reads, names: Names
) -> Iterable[Nest]:
    """Write the update at the scalar positions."""
    x, update, *starts = equation.inputs
    if not update.type.size:
        return
    b = NestBuilder(equation, names)
    shape, target = update.type.shape, output_array(equation)
    target, steps = _moved(b, target, starts, x.type.shape, shape, reads)
    b.move(update, source_of(update, reads), target, target_indices=steps)
    yield b.nest(shape, "a slice written at a computed index")


def _moved(
    b: NestBuilder,
    place: StridedArray,
    starts: Sequence[Atom],
    extents: Shape,
    sizes: Shape,
    reads: Reads,
) -> tuple[StridedArray, list[IndexTerm]]:
    """The slice of ``sizes`` at ``starts``, as a constant offset and computed steps."""
    steps: list[IndexTerm] = []
    known = [0] * len(sizes)
    for axis, start in enumerate(starts):
        last = extents[axis] - sizes[axis]
        if isinstance(start, Literal):
            assert isinstance(start.value, int)
            known[axis] = min(max(start.value, 0), last)
        elif last:
            where = array_of(start, reads).spread(len(sizes))
            value = b.scalar(start, where)
            begin = _clamped(b, b.index(value, where.dtype), axis, last)
            steps.append(IndexTerm(begin, place.strides[axis]))
    return place.begin_at(known, (1,) * len(sizes)), steps


def _clamped(b: NestBuilder, begin: Value, axis: int, last: int) -> Value:
    limit = Argument(f"last_{axis}", last)
    name = f"{begin.name}_clamped"
    return b.compute(name, "clamp", begin, _ZERO, limit, dtype=_I64, of=_I64)


def _within(
    b: NestBuilder,
    begin: Value,
    bounds: tuple[Constant | Argument, Argument],
    known: Value | None,
) -> Value:
    """Whether a position is within bounds, and ``known`` is true."""
    for function, bound in zip(("ge", "le"), bounds, strict=True):
        test = b.compute("inside", function, begin, bound, dtype=_BOOL, of=_I64)
        if known is not None:
            test = b.compute("inside", "and", known, test, dtype=_BOOL, of=_BOOL)
        known = test
    assert known is not None
    return known


def _or_zero(b: NestBuilder, begins: Sequence[Value], inside: Value) -> list[Value]:
    """The positions, or 0 if the window is not inside."""
    return [
        b.compute(f"{v.name}_safe", "select", inside, v, _ZERO, dtype=_I64, of=_I64)
        for v in begins
    ]


class _Geometry:
    """Windows in an operand of ``extents``; the array of windows has ``ndim`` axes."""

    def __init__(
        self, windows: Windows, extents: Shape, sizes: Shape, ndim: int
    ) -> None:
        self.windows = windows
        self.extents = extents
        self.ndim = ndim
        self.outer = [k for k in range(ndim) if k not in windows.window_axes]
        self.last = [extents[axis] - sizes[axis] for axis in windows.indexed_axes]

    def begins(self, b: NestBuilder, indices: Atom, reads: Reads) -> list[Value]:
        """Load where windows begin along each indexed axis."""
        assert isinstance(indices, Var)
        where = array_of(indices, reads)
        strides = [0] * self.ndim
        for axis, stride in zip(self.outer, where.strides[:-1], strict=True):
            strides[axis] = stride
        values: list[Value] = []
        for component in range(len(self.windows.indexed_axes)):
            offset = where.offset + component * where.strides[-1]
            operand = b.operand(
                StridedArray(where.array, where.dtype, tuple(strides), offset)
            )
            value = b.load(b.names[indices], operand)
            values.append(b.index(value, where.dtype))
        return values

    def clamped(self, b: NestBuilder, begins: Sequence[Value]) -> list[Value]:
        """The positions clamped to the operand."""
        axes = zip(begins, self.windows.indexed_axes, self.last, strict=True)
        return [_clamped(b, begin, axis, last) for begin, axis, last in axes]

    def inside(self, b: NestBuilder, begins: Sequence[Value]) -> Value | None:
        """Whether the whole window is inside; None if no axis is indexed."""
        result: Value | None = None
        axes = zip(begins, self.windows.indexed_axes, self.last, strict=True)
        for begin, axis, last in axes:
            bounds = _ZERO, Argument(f"last_{axis}", last)
            result = _within(b, begin, bounds, result)
        return result

    def windows_of(self, place: StridedArray) -> StridedArray:
        """The operand with strides along the axes of the array of windows."""
        strides = [0] * self.ndim
        kept = self.windows.kept(len(self.extents))
        for axis, window_axis in zip(kept, self.windows.window_axes, strict=True):
            strides[window_axis] = place.strides[axis]
        for axis, index_axis in zip(*self.windows.batch, strict=True):
            strides[self.outer[index_axis]] += place.strides[axis]
        return StridedArray(place.array, place.dtype, tuple(strides), place.offset)

    def steps(self, begins: Sequence[Value], place: StridedArray) -> list[IndexTerm]:
        """The steps from the operand's first window to the one at ``begins``."""
        axes = zip(begins, self.windows.indexed_axes, strict=True)
        return [IndexTerm(begin, place.strides[axis]) for begin, axis in axes]

    def meeting_axes(self) -> list[int]:
        """The axes of the array of windows along which two may share an element.

        Batch axes are not among them, nor axes along which windows span the whole
        operand and have no position.
        """
        kept = self.windows.kept(len(self.extents))
        free = {
            window_axis
            for axis, window_axis in zip(kept, self.windows.window_axes, strict=True)
            if axis not in self.windows.indexed_axes
        }
        free |= {self.outer[index_axis] for index_axis in self.windows.batch[1]}
        return [axis for axis in range(self.ndim) if axis not in free]
