"""Classifies the axes of a scatter: which number its updates, and which its targets."""

from __future__ import annotations

import math

from arrayfn.ir import ArrayType, Equation
from arrayfn.ir.layout import other_axes
from arrayfn.primitives.windows import Windows
from arrayfn.records import frozen


@frozen
class Scatter:
    """The axes of a scatter by their role.

    The *key* of an update is the number of its target. An update is what goes to the
    target of one key: a whole window of elements. Where windows with different targets
    may overlap, each element of a window is an update.

    Args:
        equation: The scatter.
        windows: The scatter's dimension numbers.
        number_axes: Axes of the updates array that number updates.
        element_axes: The other axes of the updates array, along which the elements of
            an update lie.
        key_axes: Axes of the operand that a key is an index into; the elements of an
            update lie along the other axes of the operand.
    """

    equation: Equation
    windows: Windows
    number_axes: tuple[int, ...]
    element_axes: tuple[int, ...]
    key_axes: tuple[int, ...]

    @property
    def updates(self) -> ArrayType:
        """The type of the updates array."""
        return self.equation.inputs[2].type

    @property
    def operand(self) -> ArrayType:
        """The type of the operand, and the result."""
        return self.equation.outputs[0].type

    @property
    def count(self) -> int:
        """The number of updates."""
        return math.prod(self.updates.shape[axis] for axis in self.number_axes)

    @property
    def width(self) -> int:
        """The number of elements of an update."""
        return math.prod(self.updates.shape[axis] for axis in self.element_axes)

    @property
    def is_sorted(self) -> bool:
        """Whether updates are in the order of their keys.

        That is so if the user says that indices are sorted and keys ascend with them:
        by the first component, then by the next. Clipped indices keep that order only
        if they have one component.
        """
        params, windows = self.equation.params, self.windows
        # The axes of the operand in the order of the indices: ``batch`` pairs axes of
        # the operand with axes of the indices.
        axes = (*windows.batch[0], *windows.indexed_axes)
        in_order = list(axes) == sorted(axes)
        in_order &= windows.batch[1] == tuple(range(len(windows.batch[1])))
        in_order &= params["mode"] != "clip" or len(windows.indexed_axes) == 1
        outer = self.updates.ndim - len(windows.window_axes)
        are_windows = outer == len(self.number_axes)
        return params.get("indices_are_sorted", False) and in_order and are_windows

    @property
    def limit(self) -> int:
        """The number of keys; also the key of updates that are left out."""
        return math.prod(self.operand.shape[axis] for axis in self.key_axes)


def scatter_of(equation: Equation) -> Scatter:
    """Classify the axes of the scatter ``equation``.

    Axes of the operand that indices address make up the key. Window axes lie inside an
    update, unless a window is longer than 1 along an indexed axis: then each element is
    an update of its own.
    """
    params = dict(equation.params)
    for name in ("mode", "unique_indices", "indices_are_sorted"):
        params.pop(name, None)
    windows = Windows(**params)
    x, _, updates = (atom.type for atom in equation.inputs)
    sizes = windows.sizes(x.ndim, updates.shape)
    outer = other_axes(updates.ndim, windows.window_axes)
    key_axes = {*windows.indexed_axes, *windows.batch[0]}
    window_targets = windows.kept(x.ndim)
    update_axis = dict(zip(window_targets, windows.window_axes, strict=True))
    if any(sizes[axis] > 1 for axis in windows.indexed_axes):
        # Windows may overlap: each of their elements is an update.
        number_axes = tuple(range(updates.ndim))
        key_axes |= set(window_targets)
    else:
        number_axes = tuple(
            sorted([*outer, *(update_axis[a] for a in window_targets if a in key_axes)])
        )
    element_axes = tuple(
        update_axis[axis]
        for axis in window_targets
        if update_axis[axis] not in number_axes
    )
    return Scatter(
        equation, windows, number_axes, element_axes, tuple(sorted(key_axes))
    )
