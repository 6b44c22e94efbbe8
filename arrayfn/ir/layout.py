"""Layouts: the order of an array's elements in memory, a part of its type.

``C`` is row-major, ``F`` column-major; ``Strided`` gives each axis its stride, in
elements. Layouts are immutable. They give their strides for a shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from typing_extensions import override

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RowMajor:
    """The last axis is contiguous, and each axis encloses the axes after it."""

    def strides(self, shape: Shape) -> tuple[int, ...]:
        """Strides in elements of an array of ``shape``."""
        strides: list[int] = []
        step = 1
        for extent in reversed(shape):
            strides.append(step)
            step *= extent
        return tuple(reversed(strides))

    @override
    def __str__(self) -> str:
        return "C"


@dataclass(frozen=True, slots=True)
class ColumnMajor:
    """The first axis is contiguous, and each axis encloses the axes before it."""

    def strides(self, shape: Shape) -> tuple[int, ...]:
        """Strides in elements of an array of ``shape``."""
        strides: list[int] = []
        step = 1
        for extent in shape:
            strides.append(step)
            step *= extent
        return tuple(strides)

    @override
    def __str__(self) -> str:
        return "F"


@dataclass(frozen=True, slots=True)
class Strided:
    """Each axis has its own stride, in elements; strides may be zero or negative."""

    steps: tuple[int, ...]

    def strides(self, shape: Shape) -> tuple[int, ...]:
        """Strides in elements of an array of ``shape``."""
        if len(shape) != len(self.steps):
            raise ValueError(f"layout {self} has {len(self.steps)} axes, not {shape}")
        return self.steps

    @override
    def __str__(self) -> str:
        return "S(" + ",".join(map(str, self.steps)) + ")"


Layout = RowMajor | ColumnMajor | Strided

C = RowMajor()
F = ColumnMajor()


def from_strides(shape: Shape, strides: Sequence[int]) -> Layout:
    """The simplest layout with these strides (in elements) for an array of ``shape``.

    Axes of extent 1 do not matter. If the array is empty, no axis matters.

    >>> from_strides((2, 3), (3, 1)), from_strides((2, 3), (1, 2))
    (RowMajor(), ColumnMajor())
    """
    for layout in (C, F):
        wanted = layout.strides(shape)
        if 0 in shape or all(
            extent == 1 or have == want
            for extent, have, want in zip(shape, strides, wanted, strict=True)
        ):
            return layout
    return Strided(tuple(strides))


def transposed(layout: Layout, shape: Shape, permutation: Sequence[int]) -> Layout:
    """The layout of a transposed view of an array of ``shape`` in ``layout``.

    Axis k of the view is axis ``permutation[k]`` of the array.
    """
    strides = layout.strides(shape)
    return from_strides(
        tuple(shape[axis] for axis in permutation),
        [strides[axis] for axis in permutation],
    )
