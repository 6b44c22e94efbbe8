"""Products of arrays whose rows form groups of unequal sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from arrayfn import dtypes
from arrayfn.errors import ArgumentError, ShapeError, user_location
from arrayfn.ir import ArrayType
from arrayfn.lax.control_flow_loops import scan
from arrayfn.lax.structure import dot_general
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike, DTypeLike
from arrayfn.numpy.comparison import where
from arrayfn.numpy.creation import arange, zeros
from arrayfn.numpy.cumulative import cumsum
from arrayfn.numpy.manipulation import moveaxis, reshape

Axes = Sequence[int]


@dataclass(frozen=True)
class RaggedDotDimensionNumbers:
    """The roles of axes in ``ragged_dot_general``.

    ``dot_dimension_numbers`` are those of ``dot_general``: ((contracted of lhs, of
    rhs), (batch of lhs, of rhs)). ``lhs_ragged_dimensions`` has the axis of lhs that is
    grouped. ``rhs_group_dimensions`` has the group axis of rhs, or nothing.
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
    numbers = RaggedDotDimensionNumbers((((1,), (1,)), ((), ())), (0,), (0,))
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
        """The product of two arrays, without groups."""
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
    groups = product.bounds(group_sizes)
    x_zero, y_zero = ops.scalar(0, product.x.dtype), ops.scalar(0, product.y.dtype)

    # Zeros in both operands of a product, so that infinities in other groups affect
    # neither it nor its gradient.
    if product.ragged in product.contracted[0]:

        def one_group(_: Any, group: tuple[Array, Array]) -> tuple[Any, Array]:
            """The product of one group's rows."""
            own = product.members(*group)
            x = where(own, lhs, x_zero)
            return (), multiply(x, where(product.as_rhs(own), rhs, y_zero))

        return scan(one_group, (), groups)[1]

    def add_group(total: Array, group: tuple[Array, Array, Array]) -> tuple[Array, Any]:
        """Add the product of one group's rows to the total."""
        part, *bounds = group
        own = product.members(*bounds)
        term = multiply(where(own, lhs, x_zero), part)
        own = product.as_result(own, term.ndim)
        return total + where(own, term, ops.scalar(0, term.dtype)), None

    parts = moveaxis(rhs, product.group, 0)
    wanted = preferred_element_type
    dtype = product.x.dtype if wanted is None else dtypes.canonical(wanted)
    first = zeros(product.shape, dtype)
    return scan(add_group, first, (parts, *groups))[0]


class _Product:
    """The axes of a product: ``contracted`` and ``batch`` are pairs, of lhs and rhs.

    Where rhs has an axis of groups, they are those of rhs without it.
    """

    def __init__(
        self,
        lhs: ArrayLike,
        rhs: ArrayLike,
        group_sizes: ArrayLike,
        numbers: RaggedDotDimensionNumbers,
    ) -> None:
        given = ("lhs", lhs), ("rhs", rhs), ("group_sizes", group_sizes)
        self.x, self.y, sizes = (
            ops.type_of_operand(f"ragged_dot: {n}", v) for n, v in given
        )
        (cx, cy), (bx, by) = numbers.dot_dimension_numbers
        _check_roles(numbers, self.x, self.y)
        (self.ragged,) = numbers.lhs_ragged_dimensions
        (self.group,) = numbers.rhs_group_dimensions or (self.y.ndim,)
        self.contracted = (list(cx), self._without_group(cy))
        self.batch = (list(bx), self._without_group(by))
        self.kept = [a for a in range(self.x.ndim) if a not in (*cx, *bx)]
        # The axes that group_sizes may have in front of the groups.
        kind = list(cx) if self.ragged in cx else self.kept
        before = kind[: kind.index(self.ragged)] if self.ragged in kind else []
        self.prefix = [*bx, *before]
        self._check_sizes(sizes)
        used = (*cy, *by, self.group)
        rest = [n for a, n in enumerate(self.y.shape) if a not in used]
        self.shape = (*(self.x.shape[a] for a in (*bx, *self.kept)), *rest)

    def _without_group(self, axes: Axes) -> list[int]:
        return [a - (a > self.group) for a in axes]

    def _check_sizes(self, sizes: ArrayType) -> None:
        """Raise an error unless the sizes of groups fit the operands."""
        if sizes.dtype not in dtypes.INTEGERS:
            raise ArgumentError(
                f"ragged_dot: group_sizes must be integers, not {sizes}",
                user_location(),
            )
        count = sizes.shape[-1:]
        each = (*(self.x.shape[a] for a in self.prefix), *count)
        if not count or (sizes.ndim > 1 and sizes.shape != each):
            raise ShapeError(
                f"ragged_dot: group_sizes have shape {count or ('g',)} or {each}, not "
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
        """Where each group begins and ends: (g, ...), with the axes in front."""
        ends = cumsum(group_sizes, axis=-1)
        begins = ends - group_sizes
        return moveaxis(begins, -1, 0), moveaxis(ends, -1, 0)

    def members(self, begin: Array, end: Array) -> Array:
        """Whether elements are of the group from row ``begin`` to ``end``.

        The result has the axes of lhs, with extent 1 where it does not matter.
        """
        places = [1] * self.x.ndim
        places[self.ragged] = self.x.shape[self.ragged]
        rows = reshape(arange(self.x.shape[self.ragged], dtype=begin.dtype), places)
        if begin.ndim:
            extents = [n if a in self.prefix else 1 for a, n in enumerate(self.x.shape)]
            order = sorted(range(len(self.prefix)), key=lambda k: self.prefix[k])
            begin, end = (reshape(v.transpose(order), extents) for v in (begin, end))
        return (rows >= begin) & (rows < end)

    def as_rhs(self, own: Array) -> Array:
        """``own``, the members along the axes of lhs, along those of rhs."""
        pairs = dict(
            zip(
                (*self.contracted[1], *self.batch[1]),
                (*self.contracted[0], *self.batch[0]),
                strict=True,
            )
        )
        axes = [pairs[a] for a in sorted(pairs)]
        turned = own.transpose((*axes, *self.kept))
        shape = [own.shape[pairs[a]] if a in pairs else 1 for a in range(self.y.ndim)]
        return reshape(turned, shape)

    def as_result(self, own: Array, ndim: int) -> Array:
        """``own``, the members along the axes of lhs, along those of a product.

        It has ``ndim`` axes.
        """
        turned = own.transpose((*self.batch[0], *self.kept, *self.contracted[0]))
        count = len(self.batch[0]) + len(self.kept)
        return reshape(turned, (*turned.shape[:count], *[1] * (ndim - count)))


def _check_roles(
    numbers: RaggedDotDimensionNumbers, x: ArrayType, y: ArrayType
) -> None:
    """Raise ArgumentError unless the ragged axis and that of groups are such."""
    (cx, cy), (bx, by) = numbers.dot_dimension_numbers
    ragged, group = numbers.lhs_ragged_dimensions, numbers.rhs_group_dimensions
    is_kept = not {*cx, *bx}.intersection(ragged)
    if (
        len(ragged) != 1
        or not 0 <= ragged[0] < x.ndim
        or len(group) != is_kept
        or not all(0 <= a < y.ndim and a not in (*cy, *by) for a in group)
    ):
        raise ArgumentError(
            f"ragged_dot: one axis of lhs ({x}) is ragged, and where it is neither "
            f"contracted nor batch one such axis of rhs ({y}) counts groups; not "
            f"{numbers}",
            user_location(),
        )


__all__ = ["RaggedDotDimensionNumbers", "ragged_dot", "ragged_dot_general"]
