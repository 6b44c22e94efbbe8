"""Layouts: the order of an array's elements in memory, a part of its type.

``C`` is row-major, ``F`` column-major; ``Strided`` gives each axis its stride, in
elements. Layouts are immutable. They give their strides for a shape.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from typing_extensions import override

from arrayfn.array_likes import row_major
from arrayfn.records import frozen

Shape = tuple[int, ...]


@frozen(slots=True)
class RowMajor:
    """The last axis is contiguous, and each axis encloses the axes after it."""

    def strides(self, shape: Shape) -> tuple[int, ...]:
        """Return the strides, in elements, of an array of ``shape``.

        >>> RowMajor().strides((2, 3, 4))
        (12, 4, 1)
        """
        return row_major(shape)

    @override
    def __str__(self) -> str:
        """Return the name in the text form of Programs."""
        return "C"


@frozen(slots=True)
class ColumnMajor:
    """The first axis is contiguous, and each axis encloses the axes before it."""

    def strides(self, shape: Shape) -> tuple[int, ...]:
        """Return the strides, in elements, of an array of ``shape``.

        >>> ColumnMajor().strides((2, 3, 4))
        (1, 2, 6)
        """
        return row_major(shape[::-1])[::-1]

    @override
    def __str__(self) -> str:
        """Return the name in the text form of Programs."""
        return "F"


@frozen(slots=True)
class Strided:
    """Each axis has its own stride, in elements; strides may be zero or negative."""

    steps: tuple[int, ...]

    def strides(self, shape: Shape) -> tuple[int, ...]:
        """Return ``steps``; ValueError if ``shape`` has another number of axes."""
        if len(shape) != len(self.steps):
            raise ValueError(f"layout {self} has {len(self.steps)} axes, not {shape}")
        return self.steps

    @override
    def __str__(self) -> str:
        """Return the text form, such as ``S(3,-1)``."""
        return "S(" + ",".join(map(str, self.steps)) + ")"


Layout = RowMajor | ColumnMajor | Strided

C = RowMajor()
F = ColumnMajor()


def from_strides(shape: Shape, strides: Sequence[int]) -> Layout:
    """Return the simplest layout with these strides (in elements) for ``shape``.

    C is simpler than F, and F than Strided. The strides of axes of extent 1 do not
    matter; if the array is empty, no stride matters.

    >>> from_strides((2, 3), (3, 1)), from_strides((2, 3), (1, 2))
    (RowMajor(), ColumnMajor())
    """
    for layout in (C, F):
        layout_strides = layout.strides(shape)
        if 0 in shape or all(
            extent == 1 or stride == layout_stride
            for extent, stride, layout_stride in zip(
                shape, strides, layout_strides, strict=True
            )
        ):
            return layout
    return Strided(tuple(strides))


def ascending(axes: Sequence[int]) -> tuple[int, ...]:
    """Return the positions of distinct ``axes`` in ascending order of the axes.

    For a permutation, this is its inverse.

    >>> ascending((2, 0, 1))
    (1, 2, 0)
    """
    return tuple(sorted(range(len(axes)), key=axes.__getitem__))


def other_axes(ndim: int, axes: Container[int]) -> tuple[int, ...]:
    """Return the axes of an array of ``ndim`` axes that are not among ``axes``."""
    return tuple(axis for axis in range(ndim) if axis not in axes)


def transposed(layout: Layout, shape: Shape, permutation: Sequence[int]) -> Layout:
    """Return the layout of a transposed view of an array of ``shape`` in ``layout``.

    Axis k of the view is axis ``permutation[k]`` of the array.
    """
    strides = layout.strides(shape)
    return from_strides(
        tuple(shape[axis] for axis in permutation),
        [strides[axis] for axis in permutation],
    )
