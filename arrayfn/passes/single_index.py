"""Writes gathers and scatters of one element per row as comparisons with an iota.

``x[i, index[i]]`` of a computed value becomes a reduction along the row, and adding
into zeros at ``[i, index[i]]`` becomes a select. Both fuse with their neighbours, while
a gather or scatter needs its operand in memory. A gather from an existing array stays:
it reads one element per row.

After it: no scatter_add into zeros has exactly one target per row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from arrayfn import dtypes
from arrayfn.ir import Atom, Equation, Program, Var
from arrayfn.ir.builder import rewritten
from arrayfn.ir.layout import other_axes
from arrayfn.passes.definitions import Definitions
from arrayfn.passes.reads import is_zeros
from arrayfn.primitives import conversion, discrete, reductions, views
from arrayfn.primitives import elementwise as e
from arrayfn.primitives.base import Convert, Scalar, primitive_of


def single_index(program: Program) -> Program:
    """Rewrite gathers and scatters of one element per row as masked reductions.

    ``y[i] = x[i, index[i]]`` becomes ``y = max(select(mask, x, -inf), axis=1)`` with
    ``mask[i, j] = j == index[i]``. Adding ``y[i]`` into zeros at ``[i, index[i]]``
    becomes ``select(mask, y[:, None], 0)``.
    """
    definitions = Definitions()

    def compared(equation: Equation, operands: list[Atom]) -> list[Atom] | None:
        """Emit a gather or scatter by comparisons; None leaves ``equation``."""
        result: Atom | None = None
        if equation.primitive.name == "gather":
            result = _gather(operands, equation, definitions)
        elif equation.primitive.name == "scatter_add":
            result = _scatter(operands, equation, definitions)
        return None if result is None else [result]

    return rewritten(program, compared)


def _gather(
    operands: Sequence[Atom], equation: Equation, definitions: Definitions
) -> Atom | None:
    """Emit a gather of one element per row as a masked maximum; None for others.

    Only gathers of computed floats are rewritten, and none that clips indices. In the
    mode "fill", an index outside gives the fill value.
    """
    x, indices = operands
    axis = _row_axis(x, indices, equation.params)
    if axis is None or equation.params["mode"] == "clip":
        return None
    is_float = x.type.dtype in dtypes.FLOATS - dtypes.HALF_PRECISION
    if not is_float or not _is_computed(x, definitions):
        return None
    mask = _index_mask(x, indices, axis)
    # The maximum with -inf keeps all bits of the element; 0 + x would lose -0.
    lowest = conversion.literal(-float("inf"), x.type.dtype)
    row = reductions.reduce_max(e.select(mask, x, lowest), axes=(axis,))
    if equation.params["mode"] == "fill":
        index = views.reshape(_widened(indices), shape=row.type.shape)
        inside = discrete.bitwise_and(
            discrete.ge(index, 0), discrete.lt(index, x.type.shape[axis])
        )
        fill = conversion.literal(equation.params["fill_value"], x.type.dtype)
        row = e.select(inside, row, fill)
    return views.reshape(row, shape=equation.outputs[0].type.shape)


def _scatter(
    operands: Sequence[Atom], equation: Equation, definitions: Definitions
) -> Atom | None:
    """Emit a scatter_add of one element per row into zeros as a select.

    None for other scatters, and for one that clips indices.
    """
    x, indices, updates = operands
    axis = _row_axis(x, indices, equation.params)
    target = definitions.of(x)
    if axis is None or target is None or equation.params["mode"] == "clip":
        return None
    if not is_zeros(target):
        return None
    mask = _index_mask(x, indices, axis)
    others = other_axes(x.type.ndim, (axis,))
    row = views.reshape(updates, shape=tuple(x.type.shape[k] for k in others))
    spread = views.broadcast_in_dim(row, shape=x.type.shape, axes=others)
    return e.select(mask, spread, conversion.literal(0, x.type.dtype))


def _index_mask(x: Atom, indices: Atom, axis: int) -> Atom:
    """Return a mask, shaped as ``x``, of the element that each row's index selects.

    Rows run along ``axis``: ``mask[i, j] = (j == indices[i])`` for ``axis`` 1.
    """
    shape = x.type.shape
    others = other_axes(len(shape), (axis,))
    index = views.reshape(_widened(indices), shape=tuple(shape[k] for k in others))
    count = views.iota(shape=shape, axis=axis, dtype=index.type.dtype)
    return discrete.eq(count, views.broadcast_in_dim(index, shape=shape, axes=others))


def _widened(indices: Atom) -> Atom:
    """Convert ``indices`` to int64, unless they are int32 or int64.

    A narrower dtype may not hold the extent, with which the indices are compared.
    """
    is_wide = indices.type.dtype in (dtypes.int32, dtypes.int64)
    return indices if is_wide else conversion.convert(indices, dtypes.int64)


def _row_axis(x: Atom, indices: Atom, params: Any) -> int | None:
    """Return the indexed axis if a gather or scatter has one index per row, else None.

    ``params`` are those of the gather or scatter. Rows run along the indexed axis, and
    all other axes of ``x`` are batch axes, in the same order as those of ``indices``.
    """
    if params["window_axes"] or params["collapsed_axes"] != params["indexed_axes"]:
        return None
    if len(params["indexed_axes"]) != 1 or not isinstance(indices, Var):
        return None
    (axis,) = params["indexed_axes"]
    rows, index_axes = params["batch"]
    if list(rows) != sorted(rows) or list(index_axes) != sorted(index_axes):
        return None
    if {*rows, axis} != set(range(x.type.ndim)):
        return None
    is_single = all(
        n == 1 for k, n in enumerate(indices.type.shape) if k not in index_axes
    )
    return axis if is_single else None


def _is_computed(x: Atom, definitions: Definitions) -> bool:
    """Whether ``x`` is the result of an elementwise equation."""
    definition = definitions.of(x)
    return definition is not None and isinstance(
        primitive_of(definition).kernel, (Scalar, Convert)
    )
