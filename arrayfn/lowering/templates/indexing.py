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
    """The nest that reads each element of the output from its window of the operand.

    ``y = x[indices]`` is ``y[i, j] = x[clamp(indices[i], 0, last) * n1 + j]``, if
    indices are clamped. Elements of windows outside of the operand are the fill value,
    or come from the nearest window inside, by ``mode``. ``reads`` says where operands
    lie, ``names`` how values are called.
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
        result = b.compute(names[output], "select", *arguments, dtype=dtype, of=dtype)
        b.store(b.operand(target, written=True), result)
    yield b.nest(output.type.shape, "reads at computed indices")


def scatter(
    function: str | None,
) -> Callable[[Equation, Reads, Names], Iterable[Nest]]:
    """Make the template of the scatter that combines by ``function``.

    With None, updates overwrite.
    """

    def nests(equation: Equation, reads: Reads, names: Names) -> Iterable[Nest]:
        """The nests of a scatter by ``function``."""
        return _scattered(equation, reads, names, function)

    return nests


def atomic_scatter_add(
    equation: Equation,
    reads: Reads,
    names: Names,
    index_range: tuple[int, int] | None = None,
) -> Iterable[Nest]:
    """The nest of a scatter-add by atomic additions, in no fixed order, on a GPU.

    With ``index_range``, only updates whose first index lies in this closed range are
    added.
    """
    return _scattered(
        equation, reads, names, "add", atomic=True, index_range=index_range
    )


def _scattered(
    equation: Equation,
    reads: Reads,
    names: Names,
    function: str | None,
    *,
    atomic: bool = False,
    index_range: tuple[int, int] | None = None,
) -> Iterable[Nest]:
    """The nests of a scatter: for each update, combine it with its target.

    ``x.at[indices].add(u)`` is ``if inside: y[indices[i]] = y[indices[i]] + u[i]``, for
    ``i`` in order. ``function`` combines the old element and the update; None
    overwrites. Updates that may have the same target are combined in order, unless they
    are ``atomic``. That and ``index_range`` are as in ``atomic_scatter_add``. ``reads``
    says where operands lie, ``names`` how values are called.
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
        is_inside = _within(b, starts[0], bounds, is_inside)
    if is_inside is not None and function:
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
        result = b.compute(name, function, *arguments, dtype=dtype, of=dtype)
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
    """The nest over updates: axes that run in parallel, then those ``in_order``.

    A contiguous parallel axis stays innermost. ``b`` has the statements, ``target`` the
    memory that is written, ``extents`` the shape of the updates, and ``reason`` says
    for people what the kernel does.
    """
    if not in_order:
        return b.nest(extents, reason)
    strides = target.strides
    free = [k for k in range(len(extents)) if k not in in_order]
    # Axes of extent 1 first, then by falling stride: a contiguous axis comes last.
    free.sort(key=lambda k: (extents[k] > 1, -abs(strides[k])))
    inner = [k for k in free[-1:] if abs(strides[k]) == 1]
    order = [*free[: len(free) - len(inner)], *in_order, *inner]
    nest = select_axes(b.as_written(extents, reason, in_order), order)
    return merge_axes(drop_unit_axes(nest))


def dynamic_slice(equation: Equation, reads: Reads, names: Names) -> Iterable[Nest]:
    """The nest that reads a slice at computed positions."""
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
    """The nest that writes the update at computed positions."""
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
    """The slice of ``array`` at ``starts``: its memory, and computed index terms.

    Literal starts go into the memory's offset, others into index terms, by statements
    added to ``b``. All are clamped so that the slice of ``sizes`` lies inside
    ``extents``. ``reads`` says where the starts lie.
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
    """Adds the statement that clamps ``begin`` to 0 .. ``last``; returns its result.

    ``axis`` is part of the argument's name.
    """
    limit = Argument(f"last_{axis}", last)
    name = f"{begin.name}_clamped"
    return b.compute(name, "clamp", begin, _ZERO, limit, dtype=_I64, of=_I64)


def _within(
    b: NestBuilder,
    begin: Value,
    bounds: tuple[Constant | Argument, Argument],
    condition: Value | None,
) -> Value:
    """Adds the test that ``begin`` is within ``bounds``; returns its result.

    ``condition``, if there is one, must hold too.
    """
    for function, bound in zip(("ge", "le"), bounds, strict=True):
        test = b.compute("inside", function, begin, bound, dtype=_BOOL, of=_I64)
        if condition is not None:
            test = b.compute("inside", "and", condition, test, dtype=_BOOL, of=_BOOL)
        condition = test
    assert condition is not None
    return condition


def zero_outside(b: NestBuilder, begins: Sequence[Value], inside: Value) -> list[Value]:
    """The positions ``begins``, with 0 in place of those that are not ``inside``.

    ``inside`` is a bool of the nest: whether the whole window is.
    """
    return [
        b.compute(
            f"{v.name}_safe",
            "select",
            inside,
            v,
            _ZERO,
            dtype=_I64,
            of=_I64,
        )
        for v in begins
    ]


class Geometry:
    """The positions of a gather's or scatter's windows in an operand of ``extents``.

    ``ndim`` is that of the array of windows (a gather's result, a scatter's updates).
    """

    def __init__(
        self, windows: Windows, extents: Shape, sizes: Shape, ndim: int
    ) -> None:
        self.windows = windows
        self.extents = extents
        self.ndim = ndim
        self.outer = [k for k in range(ndim) if k not in windows.window_axes]
        self.last = [extents[axis] - sizes[axis] for axis in windows.indexed_axes]

    def positions(self, b: NestBuilder, indices: Atom, reads: Reads) -> list[Value]:
        """Loads the position of each window, along each indexed axis.

        ``indices`` is the array of positions; ``reads`` says where it lies.
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

    def windows_of(self, array: StridedArray) -> StridedArray:
        """``array`` as an operand of the nest over the array of windows."""
        strides = [0] * self.ndim
        kept = self.windows.kept(len(self.extents))
        for axis, window_axis in zip(kept, self.windows.window_axes, strict=True):
            strides[window_axis] = array.strides[axis]
        for axis, index_axis in zip(*self.windows.batch, strict=True):
            strides[self.outer[index_axis]] += array.strides[axis]
        return StridedArray(array.array, array.dtype, tuple(strides), array.offset)

    def index_terms(
        self, begins: Sequence[Value], array: StridedArray
    ) -> list[IndexTerm]:
        """The index terms that move from the operand's origin to ``begins``."""
        axes = zip(begins, self.windows.indexed_axes, strict=True)
        return [IndexTerm(begin, array.strides[axis]) for begin, axis in axes]

    def overlapping_axes(self) -> list[int]:
        """The axes of the array of windows along which windows may overlap.

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
