"""Products of arrays whose rows form groups of unequal sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from arrayfn import dtypes
from arrayfn.errors import ArgumentError, ShapeError, user_location
from arrayfn.ir import ArrayType
from arrayfn.ir.layout import ascending, other_axes
from arrayfn.lax.control_flow_loops import scan
from arrayfn.lax.structure import dot_general
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike, DTypeLike
from arrayfn.numpy.comparison import where
from arrayfn.numpy.creation import arange, zeros
from arrayfn.numpy.cumulative import cumsum
from arrayfn.numpy.manipulation import moveaxis, reshape
from arrayfn.records import frozen

Axes = Sequence[int]


@frozen
class RaggedDotDimensionNumbers:
    """The roles of axes in ``ragged_dot_general``.

    ``dot_dimension_numbers`` are those of ``dot_general``: ((contracted axes of lhs, of
    rhs), (batch axes of lhs, of rhs)). ``lhs_ragged_dimensions`` has the one axis of
    lhs whose indices form groups. ``rhs_group_dimensions`` has the axis of rhs that
    counts groups, or is empty.
    """

    dot_dimension_numbers: tuple[tuple[Axes, Axes], tuple[Axes, Axes]]
    lhs_ragged_dimensions: Axes
    rhs_group_dimensions: Axes


def ragged_dot(
    lhs: ArrayLike,
    rhs: ArrayLike,
    group_sizes: ArrayLike,
    precision: str | None = None,
    preferred_element_type: DTypeLike = None,
    group_offset: ArrayLike | None = None,
) -> Array:
    """Multiply each group of rows of lhs (m, k) by its matrix of rhs (g, k, n).

    The result is (m, n). The first ``group_sizes[0]`` rows are multiplied by
    ``rhs[0]``, the next ones by ``rhs[1]``, and so on. ``group_sizes`` (g,) are
    integers. Rows after the last group become zeros. Extents cannot depend on values,
    so each group multiplies all rows, with the rows of other groups set to zero. The
    function does the work of g products. ``precision`` and ``preferred_element_type``
    are those of ``dot_general``.

    Raises ShapeError if extents do not fit, ArgumentError for sizes that are not
    integers, and for ``group_offset``, which shares groups among devices.

    >>> import numpy as np
    >>> rows = np.array([[1.0], [2.0], [3.0]])
    >>> ragged_dot(rows, np.array([[[10.0]], [[100.0]]]), np.array([1, 2]))
    array([[ 10.],
           [200.],
           [300.]])
    """
    names = ("lhs", lhs), ("rhs", rhs), ("group_sizes", group_sizes)
    x, y, sizes = (ops.type_of_operand(f"ragged_dot: {n}", v) for n, v in names)
    fits = (x.ndim, y.ndim, sizes.ndim) == (2, 3, 1)
    if not fits or x.shape[1] != y.shape[1] or sizes.shape[0] != y.shape[0]:
        raise ShapeError(
            "ragged_dot takes lhs (m, k), rhs (g, k, n) and group_sizes (g,); got "
            f"shapes {x.shape}, {y.shape} and {sizes.shape}",
            user_location(),
        )
    numbers = RaggedDotDimensionNumbers(
        dot_dimension_numbers=(((1,), (1,)), ((), ())),
        lhs_ragged_dimensions=(0,),
        rhs_group_dimensions=(0,),
    )
    return ragged_dot_general(
        lhs,
        rhs,
        group_sizes,
        numbers,
        precision,
        preferred_element_type,
        group_offset,
    )


def ragged_dot_general(
    lhs: ArrayLike,
    rhs: ArrayLike,
    group_sizes: ArrayLike,
    ragged_dot_dimension_numbers: RaggedDotDimensionNumbers,
    precision: str | None = None,
    preferred_element_type: DTypeLike = None,
    group_offset: ArrayLike | None = None,
) -> Array:
    """Compute ``dot_general`` with one axis of lhs, the *ragged* axis, in groups.

    Consecutive indices along the ragged axis form groups of ``group_sizes``.
    ``group_sizes`` has shape (g,) or (..., g). The axes in front of g are the batch
    axes and the other axes of the ragged axis's kind. Each index of them has its own
    sizes. The kind of the ragged axis decides the result:

    * free: rhs has a group axis, and each group is multiplied by its own part. Elements
      after the last group become zeros.
    * contracted: each group is summed separately, along a new leading axis.
    * batch: groups have no effect.

    The function does the work of g products. See ``ragged_dot`` for this and for the
    arguments.

    Raises ShapeError if extents do not fit, ArgumentError for sizes that are not
    integers, for axes that do not fit, and for ``group_offset``.

    >>> import numpy as np
    >>> numbers = RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), (0,), ())
    >>> ragged_dot_general(np.arange(3), np.ones(3, int), np.array([1, 2]), numbers)
    array([0, 3])
    """
    if group_offset is not None:
        raise ArgumentError(
            "ragged_dot has no group_offset: pass the groups to compute",
            user_location(),
        )
    product = _Product(lhs, rhs, group_sizes, ragged_dot_dimension_numbers)

    def multiply(x: ArrayLike, y: ArrayLike) -> Array:
        """Multiply arrays without groups, with the roles of axes of ``product``."""
        numbers = product.contracted, product.batch
        return dot_general(
            x,
            y,
            numbers,
            precision=precision,
            preferred_element_type=preferred_element_type,
        )

    if product.ragged in product.batch[0]:
        return multiply(lhs, rhs)
    groups = product.bounds(group_sizes)  # (begins, ends), to scan over
    x_zero, y_zero = ops.scalar(0, product.x.dtype), ops.scalar(0, product.y.dtype)

    # Zeros in both operands of a product, so that infinities in other groups affect
    # neither it nor its gradient.
    if product.ragged in product.contracted[0]:

        def one_group(_: Any, group: tuple[Array, Array]) -> tuple[Any, Array]:
            """Multiply the slices of one group, which is a pair (begin, end)."""
            mask = product.members(*group)
            x = where(mask, lhs, x_zero)
            return (), multiply(x, where(product.as_rhs(mask), rhs, y_zero))

        return scan(one_group, (), groups)[1]

    def add_group(total: Array, group: tuple[Array, Array, Array]) -> tuple[Array, Any]:
        """Add the product of one group to ``total``, at the group's rows.

        ``group`` is (part of rhs, begin, end).
        """
        part, *bounds = group
        mask = product.members(*bounds)
        term = multiply(where(mask, lhs, x_zero), part)
        # In the rows of other groups, 0 times an infinity of ``part`` is NaN.
        mask = product.as_result(mask, term.ndim)
        return total + where(mask, term, ops.scalar(0, term.dtype)), None

    parts = moveaxis(rhs, product.group, 0)
    wanted = preferred_element_type
    dtype = product.x.dtype if wanted is None else dtypes.canonical(wanted)
    first = zeros(product.shape, dtype)
    return scan(add_group, first, (parts, *groups))[0]


class _Product:
    """The operands' types and the roles of axes in a ragged product.

    ``x`` and ``y`` are the types of lhs and rhs. ``contracted`` and ``batch`` are pairs
    of lists of axes, of lhs and of rhs. ``ragged`` is the ragged axis of lhs. ``group``
    is the axis of rhs that counts groups, and the axes of rhs in the pairs are counted
    without it. If rhs has no such axis, ``group`` is the number of its axes. ``free``
    are the free axes of lhs, ``prefix`` the axes of lhs that ``group_sizes`` may have
    before its last axis, and ``shape`` is the shape of the result with a free ragged
    axis.
    """

    def __init__(
        self,
        lhs: ArrayLike,
        rhs: ArrayLike,
        group_sizes: ArrayLike,
        numbers: RaggedDotDimensionNumbers,
    ) -> None:
        """Derive the roles from ``numbers``, and check that they and the sizes fit.

        Raises ArgumentError or ShapeError if they do not.
        """
        operands = ("lhs", lhs), ("rhs", rhs), ("group_sizes", group_sizes)
        self.x, self.y, sizes = (
            ops.type_of_operand(f"ragged_dot: {n}", v) for n, v in operands
        )
        # The contracted and the batch axes of lhs (x) and rhs (y).
        (cx, cy), (bx, by) = numbers.dot_dimension_numbers
        _check_roles(numbers, self.x, self.y)
        (self.ragged,) = numbers.lhs_ragged_dimensions
        (self.group,) = numbers.rhs_group_dimensions or (self.y.ndim,)
        self.contracted = (list(cx), self._without_group(cy))
        self.batch = (list(bx), self._without_group(by))
        self.free = other_axes(self.x.ndim, (*cx, *bx))
        # The axes that group_sizes may have in front of the groups.
        kind = list(cx) if self.ragged in cx else self.free
        before = kind[: kind.index(self.ragged)] if self.ragged in kind else []
        self.prefix = [*bx, *before]
        self._check_sizes(sizes)
        used = (*cy, *by, self.group)
        rest = [n for a, n in enumerate(self.y.shape) if a not in used]
        self.shape = (*(self.x.shape[a] for a in (*bx, *self.free)), *rest)

    def _without_group(self, axes: Axes) -> list[int]:
        """Renumber axes of rhs for a slice of rhs that lacks the axis ``group``."""
        return [a - 1 if a > self.group else a for a in axes]

    def _check_sizes(self, sizes: ArrayType) -> None:
        """Raise an error unless group_sizes (its type is ``sizes``) fits the operands.

        It has integers, of shape (groups,) or (extents of the axes ``prefix`` of lhs,
        groups). x and y are the types of lhs and rhs. Axis ``group`` of rhs, unless
        ``group`` is the number of its axes, has one element for each group. Raises
        ArgumentError for other dtypes, ShapeError for other shapes.
        """
        if sizes.dtype not in dtypes.INTEGERS:
            raise ArgumentError(
                f"ragged_dot: group_sizes must be integers, not {sizes}",
                user_location(),
            )
        count = sizes.shape[-1:]  # (number of groups,), or () for a scalar
        full = (*(self.x.shape[a] for a in self.prefix), *count)
        if not count or (sizes.ndim > 1 and sizes.shape != full):
            raise ShapeError(
                f"ragged_dot: group_sizes have shape {count or ('g',)} or {full}, not "
                f"{sizes.shape}",
                user_location(),
            )
        if self.group < self.y.ndim and (self.y.shape[self.group],) != count:
            raise ShapeError(
                f"ragged_dot: axis {self.group} of rhs ({self.y}) counts groups, and "
                f"group_sizes {sizes.shape} have {count[0]}",
                user_location(),
            )

    def bounds(self, group_sizes: ArrayLike) -> tuple[Array, Array]:
        """Return the positions at which the groups begin, and those at which they end.

        ``group_sizes`` is (..., groups), and both results are (groups, ...).
        """
        ends = cumsum(group_sizes, axis=-1)
        begins = ends - group_sizes
        return moveaxis(begins, -1, 0), moveaxis(ends, -1, 0)

    def members(self, begin: Array, end: Array) -> Array:
        """Return which indices of the ragged axis lie in [begin, end), as bools.

        ``begin`` and ``end`` are scalars, or have an axis for each axis of ``prefix``.
        The result broadcasts with lhs: it has the extents of the ragged axis and of the
        axes of ``begin``, and extent 1 along other axes.
        """
        along_ragged = [1] * self.x.ndim
        along_ragged[self.ragged] = self.x.shape[self.ragged]
        numbers = arange(self.x.shape[self.ragged], dtype=begin.dtype)
        rows = reshape(numbers, along_ragged)
        if begin.ndim:
            # The axes of begin are in the order of prefix. Put them in that of lhs.
            extents = [n if a in self.prefix else 1 for a, n in enumerate(self.x.shape)]
            order = ascending(self.prefix)
            begin, end = (reshape(v.transpose(order), extents) for v in (begin, end))
        return (rows >= begin) & (rows < end)

    def as_rhs(self, mask: Array) -> Array:
        """Rearrange ``mask``, a result of ``members``, to broadcast with rhs.

        The ragged axis must be contracted, so that rhs has no group axis. Contracted
        and batch axes move to their places in rhs.
        """
        # By axis of rhs, the axis of lhs that is contracted or batched with it.
        lhs_axis_of = dict(
            zip(
                (*self.contracted[1], *self.batch[1]),
                (*self.contracted[0], *self.batch[0]),
                strict=True,
            )
        )
        axes = [lhs_axis_of[a] for a in sorted(lhs_axis_of)]
        reordered = mask.transpose((*axes, *self.free))
        # Drop the free axes of lhs, along which the mask has extent 1, and insert axes
        # of extent 1 for the free axes of rhs.
        shape = [
            mask.shape[lhs_axis_of[a]] if a in lhs_axis_of else 1
            for a in range(self.y.ndim)
        ]
        return reshape(reordered, shape)

    def as_result(self, mask: Array, ndim: int) -> Array:
        """Rearrange ``mask``, a result of ``members``, to broadcast with a product.

        The ragged axis must be free. The product has ``ndim`` axes: batch axes, free
        axes of lhs, free axes of rhs.
        """
        reordered = mask.transpose((*self.batch[0], *self.free, *self.contracted[0]))
        count = len(self.batch[0]) + len(self.free)
        # Drop the contracted axes, along which the mask has extent 1, and append axes
        # of extent 1 for the free axes of rhs.
        return reshape(reordered, (*reordered.shape[:count], *[1] * (ndim - count)))


def _check_roles(
    numbers: RaggedDotDimensionNumbers, x: ArrayType, y: ArrayType
) -> None:
    """Raise ArgumentError unless the ragged axis and the group axis are valid.

    lhs (type ``x``) has one ragged axis. rhs (type ``y``) has one group axis if the
    ragged axis is free, and none if it is contracted or batch.
    """
    (cx, cy), (bx, by) = numbers.dot_dimension_numbers
    ragged, group = numbers.lhs_ragged_dimensions, numbers.rhs_group_dimensions
    is_free = not {*cx, *bx}.intersection(ragged)
    if (
        len(ragged) != 1
        or not 0 <= ragged[0] < x.ndim
        or len(group) != (1 if is_free else 0)
        or not all(0 <= a < y.ndim and a not in (*cy, *by) for a in group)
    ):
        raise ArgumentError(
            f"ragged_dot: one axis of lhs ({x}) is ragged, and where it is neither "
            f"contracted nor batch one such axis of rhs ({y}) counts groups; not "
            f"{numbers}",
            user_location(),
        )


__all__ = ["RaggedDotDimensionNumbers", "ragged_dot", "ragged_dot_general"]
