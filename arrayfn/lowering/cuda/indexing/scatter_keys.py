"""Computes the keys of a scatter's updates, the numbers of their targets, in a nest.

A target is numbered among all elements at which windows can begin, in row-major order
of the key axes. Windows begin where the indices say. Those that reach outside of the
operand are clipped, or their updates get the number of targets as their key.
"""

from __future__ import annotations

from collections.abc import Mapping

from arrayfn import dtypes
from arrayfn.ir import Var
from arrayfn.ir.layout import RowMajor, other_axes
from arrayfn.lowering.cuda.indexing.scatter_form import Scatter
from arrayfn.lowering.kernel_ir import Argument, Constant, Nest, Value
from arrayfn.lowering.templates.indexing import within
from arrayfn.lowering.templates.nest_builder import (
    Names,
    NestBuilder,
    StridedArray,
    array_of,
)
from arrayfn.passes.reads import Reads

_I64 = dtypes.int64


def keys_nest(s: Scatter, reads: Reads, names: Names, keys: Var) -> Nest:
    """Build the nest that computes the key of each update and stores it in ``keys``.

    ``reads`` says where operands lie, ``names`` what to call arrays.
    """
    builder = _KeyBuilder(s, reads, names)
    key = builder.key(builder.window_starts())
    b, word = builder.b, dtypes.uint32
    stored = StridedArray(keys, word, RowMajor().strides(builder.shape))
    converted = b.compute("word", "convert_i64", key, dtype=word)
    b.store(b.operand(stored, written=True), converted)
    return b.nest(builder.shape, "numbers of the targets")


class _KeyBuilder:
    """Builds the statements that compute the key of an update.

    The nest ``b`` has an axis for each of the scatter's ``number_axes``; ``shape`` are
    their extents.
    """

    def __init__(self, s: Scatter, reads: Reads, names: Names) -> None:
        """Begin a nest without statements for the scatter ``s``.

        ``reads`` says where operands lie, ``names`` what to call arrays.
        """
        self.s = s
        self.b = NestBuilder(s.equation, names)
        self.shape = tuple(s.updates.shape[k] for k in s.number_axes)
        self.nest_axis = {axis: k for k, axis in enumerate(s.number_axes)}
        """The axis of the nest for an axis of the updates array."""
        window_axes = s.windows.window_axes
        self.outer = other_axes(s.updates.ndim, window_axes)
        """Axes of the updates array that go along the indices array."""
        indices = s.equation.inputs[1]
        assert isinstance(indices, Var)
        self.indices = array_of(indices, reads)  # the memory of the indices array
        self.indices_name = names[indices]
        self.inside: Value | None = None
        """Whether the update's window lies inside the operand; None if all do."""

    def window_starts(self) -> dict[int, Value]:
        """Compute the index at which an update's window begins, for each indexed axis.

        The index is clipped to the operand; or ``inside`` is set to whether it needs no
        clipping.
        """
        s, b, indices = self.s, self.b, self.indices
        sizes = s.windows.sizes(s.operand.ndim, s.updates.shape)
        # The strides of the indices array along the nest's axes. Its last axis has the
        # components of an index.
        strides = [0] * len(self.shape)
        for axis, stride in zip(self.outer, indices.strides[:-1], strict=True):
            strides[self.nest_axis[axis]] = stride
        starts: dict[int, Value] = {}
        for component, axis in enumerate(s.windows.indexed_axes):
            offset = indices.offset + component * indices.strides[-1]
            source = StridedArray(indices.array, indices.dtype, tuple(strides), offset)
            loaded = b.load(self.indices_name, b.operand(source))
            start = b.index(loaded, indices.dtype)
            last = Argument(f"last_{axis}", s.operand.shape[axis] - sizes[axis])
            bounds = Constant(0, _I64), last
            if s.equation.params["mode"] == "clip":
                start = self.integer("clamp", start, *bounds)
            else:
                self.inside = within(b, start, bounds, self.inside)
            starts[axis] = start
        return starts

    def key(self, starts: Mapping[int, Value]) -> Value:
        """Compute the update's key: the row-major index along the operand's key axes.

        ``starts`` are the results of ``window_starts``. Along batch axes the index is
        that of the update. Where each element of a window is an update, its index in
        the window is added.
        """
        s, windows = self.s, self.s.windows
        kept = windows.kept(s.operand.ndim)
        window_axis = dict(zip(kept, windows.window_axes, strict=True))
        # Batch axes of the indices, by those of the operand.
        batch = dict(zip(*windows.batch, strict=True))
        key: Value | None = None
        for axis in s.key_axes:
            terms = [starts[axis]] if axis in starts else []
            if axis in batch:
                own = self.nest_axis[self.outer[batch[axis]]]
                terms.append(self.b.count("index", own))
            if window_axis.get(axis) in self.nest_axis:
                terms.append(self.b.count("index", self.nest_axis[window_axis[axis]]))
            if key is not None:
                extent = Argument(f"extent_{axis}", s.operand.shape[axis])
                terms.append(self.integer("mul", key, extent))
            key, *rest = terms
            for term in rest:
                key = self.integer("add", key, term)
        assert key is not None
        if self.inside is not None:
            key = self.integer("select", self.inside, key, Argument("limit", s.limit))
        return key

    def integer(self, function: str, *arguments: Value | Constant | Argument) -> Value:
        """Append a call of ``function`` with integers; return its result, an int64."""
        return self.b.compute("key", function, *arguments, dtype=_I64)
