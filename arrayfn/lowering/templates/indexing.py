"""Gather, scatter and dynamic slices: nests whose offsets are computed from indices.

An index is clamped, or tested and replaced by 0, before it is used, so no kernel
accesses memory outside its arrays. Along axes on which two updates may have the same
target, updates run in the row-major order of the updates array. Along the others they
run in parallel. So the result does not depend on the threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from arrayfn import dtypes
from arrayfn.dtypes import compute_dtype
from arrayfn.ir import Atom, Equation, Literal, Var
from arrayfn.ir.layout import Shape, other_axes
from arrayfn.lowering.build import drop_unit_axes, merge_axes, select_axes
from arrayfn.lowering.kernel_ir import Argument, Constant, IndexTerm, Nest, Value
from arrayfn.lowering.templates.nest_builder import (
    Names,
    NestBuilder,
    StridedArray,
    array_of,
    output_array,
    source_of,
)
from arrayfn.passes.reads import Reads
from arrayfn.primitives.windows import Windows

_ZERO = Constant(0, dtypes.int64)
_I64 = dtypes.int64
_BOOL = dtypes.bool_


def gather(equation: Equation, reads: Reads, names: Names) -> Iterable[Nest]:
    """Yield the nest that reads each output element from its window of the operand.

    ``y = x[indices]`` is ``y[i, j] = x[clamp(indices[i], 0, last) * n1 + j]``, if
    indices are clamped. With mode "fill", all elements of a window that is not inside
    of the operand are the fill value. With any other mode they come from the nearest
    window inside.
    """
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
    geometry = Geometry(windows, x.type.shape, sizes, output.type.ndim)
    starts = geometry.positions(b, indices, reads)
    is_inside = None
    if mode != "fill":
        starts = geometry.clamped(b, starts)
    elif (is_inside := geometry.inside(b, starts)) is not None:
        starts = zero_outside(b, starts, is_inside)
    terms = geometry.index_terms(starts, source)
    source = geometry.windows_of(source)
    if is_inside is None:
        b.move(x, source, target, source_indices=terms)
    else:
        value = b.scalar(x, source, terms)
        dtype = compute_dtype(target.dtype)
        arguments = (is_inside, value, Constant(fill, dtype))
        result = b.compute(names[output], "select", *arguments, dtype=dtype)
        b.store(b.operand(target, written=True), result)
    yield b.nest(output.type.shape, "reads at computed indices")


def atomic_scatter_add(
    equation: Equation,
    reads: Reads,
    names: Names,
    index_range: tuple[int, int] | None = None,
) -> Iterable[Nest]:
    """Return the nest of a scatter-add by atomic additions, in any order, on a GPU.

    With ``index_range``, only updates whose first index lies in this closed range are
    added.
    """
    return scatter(equation, reads, names, "add", atomic=True, index_range=index_range)


def scatter(
    equation: Equation,
    reads: Reads,
    names: Names,
    function: str | None,
    *,
    atomic: bool = False,
    index_range: tuple[int, int] | None = None,
) -> Iterable[Nest]:
    """Yield the nest of a scatter, which combines each update with its target.

    ``x.at[indices].add(u)`` is ``if inside: y[indices[i]] = y[indices[i]] + u[i]``, for
    ``i`` in order. The output holds the operand's elements already. ``function``,
    which is "add", "mul", "min" or "max", combines the old element and the update; with
    None the update overwrites. Updates that may have the same target are combined in
    order, unless the additions are ``atomic``. ``index_range`` is as in
    ``atomic_scatter_add``.
    """
    x, indices, updates = equation.inputs
    if not updates.type.size or not x.type.size:
        return
    params = dict(equation.params)
    mode, unique = params.pop("mode"), params.pop("unique_indices")
    params.pop("indices_are_sorted", None)
    windows = Windows(**params)
    sizes = windows.sizes(x.type.ndim, updates.type.shape)
    geometry = Geometry(windows, x.type.shape, sizes, updates.type.ndim)
    target = output_array(equation)
    b = NestBuilder(equation, names)
    starts = geometry.positions(b, indices, reads)
    is_inside = None
    if mode == "clip":
        starts = geometry.clamped(b, starts)
    else:
        is_inside = geometry.inside(b, starts)
    if index_range is not None:
        bounds = Argument("first", index_range[0]), Argument("last", index_range[1])
        is_inside = within(b, starts[0], bounds, is_inside)
    if is_inside is not None and function:
        # The old element is loaded even if nothing is stored: make its index valid.
        starts = zero_outside(b, starts, is_inside)
    terms = geometry.index_terms(starts, target)
    target = geometry.windows_of(target)
    source = source_of(updates, reads)
    if function is None:
        b.move(updates, source, target, target_indices=terms, where=is_inside)
    elif atomic:
        value = b.scalar(updates, source)
        target_operand = b.operand(target, written=True)
        b.store(target_operand, value, terms, is_inside, adds=True)
        yield b.nest(updates.type.shape, "atomic additions at computed indices")
        return
    else:
        dtype, name = compute_dtype(target.dtype), names[equation.outputs[0]]
        target_operand = b.operand(target, written=True)
        old_value = b.load(f"{name}_before", target_operand, terms)
        arguments = (old_value, b.scalar(updates, source))
        result = b.compute(name, function, *arguments, dtype=dtype)
        b.store(target_operand, result, terms, is_inside)
    in_order = () if unique else geometry.overlapping_axes()
    reason = "writes at computed indices, in the order of the updates"
    yield _updates_nest(b, target, updates.type.shape, in_order, reason)


def _updates_nest(
    b: NestBuilder,
    target: StridedArray,
    extents: Shape,
    in_order: Sequence[int],
    reason: str,
) -> Nest:
    """Return the nest over updates: axes that run in parallel, then those ``in_order``.

    A contiguous parallel axis stays innermost. ``b`` has the statements, ``target`` is
    the memory that is written, and ``extents`` the shape of the updates. ``reason`` is
    as in ``NestBuilder.nest``.
    """
    if not in_order:
        return b.nest(extents, reason)
    strides = target.strides
    # Axes of extent 1 first, then by falling stride: a contiguous axis comes last.
    free = sorted(
        other_axes(len(extents), in_order),
        key=lambda k: (extents[k] > 1, -abs(strides[k])),
    )
    inner = [k for k in free[-1:] if abs(strides[k]) == 1]
    order = [*free[: len(free) - len(inner)], *in_order, *inner]
    nest = select_axes(b.as_written(extents, reason, in_order), order)
    return merge_axes(drop_unit_axes(nest))


def dynamic_slice(equation: Equation, reads: Reads, names: Names) -> Iterable[Nest]:
    """Yield the nest that copies a slice of the operand at computed positions.

    The positions are clamped so that the slice is inside of the operand.
    """
    x, *starts = equation.inputs
    output = equation.outputs[0]
    if not output.type.size:
        return
    b = NestBuilder(equation, names)
    shape = output.type.shape
    source, steps = source_of(x, reads), []
    if isinstance(source, StridedArray):
        source, steps = _slice_at(b, source, starts, x.type.shape, shape, reads)
    b.move(x, source, output_array(equation), source_indices=steps)
    yield b.nest(shape, "a slice at a computed index")


def dynamic_update_slice(
    equation: Equation, reads: Reads, names: Names
) -> Iterable[Nest]:
    """Yield the nest that writes the update into the output at computed positions.

    The output holds the operand's elements already. The positions are clamped so that
    the update is inside of it.
    """
    x, update, *starts = equation.inputs
    if not update.type.size:
        return
    b = NestBuilder(equation, names)
    shape, target = update.type.shape, output_array(equation)
    target, steps = _slice_at(b, target, starts, x.type.shape, shape, reads)
    b.move(update, source_of(update, reads), target, target_indices=steps)
    yield b.nest(shape, "a slice written at a computed index")


def _slice_at(
    b: NestBuilder,
    array: StridedArray,
    starts: Sequence[Atom],
    extents: Shape,
    sizes: Shape,
    reads: Reads,
) -> tuple[StridedArray, list[IndexTerm]]:
    """Return the memory of a slice of ``array``, and computed index terms to add.

    The slice begins at ``starts`` and has ``sizes``; ``array`` has ``extents``. Literal
    starts are added to the memory's offset. For others, statements are added to ``b``
    that load and clamp them. All are clamped so that the slice is inside. ``reads``
    says where the starts are in memory.
    """
    terms: list[IndexTerm] = []
    constant_starts = [0] * len(sizes)
    for axis, start in enumerate(starts):
        last = extents[axis] - sizes[axis]
        if isinstance(start, Literal):
            assert isinstance(start.value, int)
            constant_starts[axis] = min(max(start.value, 0), last)
        elif last:
            start_array = array_of(start, reads).spread(len(sizes))
            value = b.scalar(start, start_array)
            begin = _clamped(b, b.index(value, start_array.dtype), axis, last)
            terms.append(IndexTerm(begin, array.strides[axis]))
    return array.begin_at(constant_starts, (1,) * len(sizes)), terms


def _clamped(b: NestBuilder, begin: Value, axis: int, last: int) -> Value:
    """Add the statement that clamps ``begin`` to 0 .. ``last``; return its result.

    ``last`` becomes an argument of the kernel, named after ``axis``.
    """
    limit = Argument(f"last_{axis}", last)
    name = f"{begin.name}_clamped"
    return b.compute(name, "clamp", begin, _ZERO, limit, dtype=_I64)


def within(
    b: NestBuilder,
    begin: Value,
    bounds: tuple[Constant | Argument, Argument],
    condition: Value | None,
) -> Value:
    """Add the test that ``begin`` is within ``bounds``; return its result, a bool.

    ``bounds`` are the first and the last allowed position. If there is a ``condition``,
    the result is true only if the condition holds too.
    """
    for function, bound in zip(("ge", "le"), bounds, strict=True):
        test = b.compute("inside", function, begin, bound, dtype=_BOOL, of=_I64)
        if condition is not None:
            test = b.compute("inside", "and", condition, test, dtype=_BOOL)
        condition = test
    assert condition is not None
    return condition


def zero_outside(b: NestBuilder, begins: Sequence[Value], inside: Value) -> list[Value]:
    """Return the positions ``begins``, or 0 for all if the window is not ``inside``.

    ``inside`` is a bool of the nest. The statements that select are added to ``b``.
    """
    return [
        b.compute(f"{v.name}_safe", "select", inside, v, _ZERO, dtype=_I64)
        for v in begins
    ]


class Geometry:
    """The positions of a gather's or scatter's windows in an operand of ``extents``.

    The *array of windows* is a gather's result or a scatter's updates, with ``ndim``
    axes: those in ``windows.window_axes`` are axes of a window, and the others, in
    ``outer``, number the windows. A window has ``sizes``. ``last`` has the largest
    position of a window along each indexed axis of the operand, and ``window_axis`` the
    axis of the array of windows for each axis of the operand that windows have.
    """

    def __init__(
        self, windows: Windows, extents: Shape, sizes: Shape, ndim: int
    ) -> None:
        self.windows = windows
        self.ndim = ndim
        self.outer = other_axes(ndim, windows.window_axes)
        self.last = [extents[axis] - sizes[axis] for axis in windows.indexed_axes]
        kept = windows.kept(len(extents))
        self.window_axis = dict(zip(kept, windows.window_axes, strict=True))

    def positions(self, b: NestBuilder, indices: Atom, reads: Reads) -> list[Value]:
        """Add loads of the position of each window, along each indexed axis.

        ``indices`` is the array of positions, whose last axis has a position's
        component for each indexed axis; ``reads`` says where it lies.
        """
        assert isinstance(indices, Var)
        index_array = array_of(indices, reads)
        strides = [0] * self.ndim
        for axis, stride in zip(self.outer, index_array.strides[:-1], strict=True):
            strides[axis] = stride
        values: list[Value] = []
        for component in range(len(self.windows.indexed_axes)):
            offset = index_array.offset + component * index_array.strides[-1]
            operand = b.operand(
                StridedArray(
                    index_array.array, index_array.dtype, tuple(strides), offset
                )
            )
            value = b.load(b.names[indices], operand)
            values.append(b.index(value, index_array.dtype))
        return values

    def clamped(self, b: NestBuilder, begins: Sequence[Value]) -> list[Value]:
        """Return the positions ``begins``, clamped so that windows are inside."""
        axes = zip(begins, self.windows.indexed_axes, self.last, strict=True)
        return [_clamped(b, begin, axis, last) for begin, axis, last in axes]

    def inside(self, b: NestBuilder, begins: Sequence[Value]) -> Value | None:
        """Return a bool of the nest: whether the whole window is inside the operand.

        Returns None if no axis is indexed.
        """
        result: Value | None = None
        axes = zip(begins, self.windows.indexed_axes, self.last, strict=True)
        for begin, axis, last in axes:
            bounds = _ZERO, Argument(f"last_{axis}", last)
            result = within(b, begin, bounds, result)
        return result

    def windows_of(self, array: StridedArray) -> StridedArray:
        """Return the operand's memory as an operand of a nest over the windows' array.

        ``array`` has a stride for each axis of the operand, the result one for each
        axis of the array of windows. The result describes windows at position 0; the
        nest adds the windows' positions. A batch axis is shared with the indices.
        """
        strides = [0] * self.ndim
        for axis, window_axis in self.window_axis.items():
            strides[window_axis] = array.strides[axis]
        for axis, index_axis in zip(*self.windows.batch, strict=True):
            strides[self.outer[index_axis]] += array.strides[axis]
        return StridedArray(array.array, array.dtype, tuple(strides), array.offset)

    def index_terms(
        self, begins: Sequence[Value], array: StridedArray
    ) -> list[IndexTerm]:
        """Return the index terms that move a window from position 0 to ``begins``.

        ``array`` has the operand's strides.
        """
        axes = zip(begins, self.windows.indexed_axes, strict=True)
        return [IndexTerm(begin, array.strides[axis]) for begin, axis in axes]

    def overlapping_axes(self) -> tuple[int, ...]:
        """Return the axes of the array of windows along which windows may overlap.

        Batch axes are not among them, nor axes along which windows span the whole
        operand and have no position.
        """
        free = {
            window_axis
            for axis, window_axis in self.window_axis.items()
            if axis not in self.windows.indexed_axes
        }
        free |= {self.outer[index_axis] for index_axis in self.windows.batch[1]}
        return other_axes(self.ndim, free)
