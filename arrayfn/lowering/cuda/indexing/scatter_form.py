"""What a scatter says of its updates: which axes number them, and their targets."""

from __future__ import annotations

import math
from dataclasses import dataclass

from arrayfn.ir import ArrayType, Equation
from arrayfn.primitives.windows import Windows


@dataclass(frozen=True)
class Scatter:
    """Which axes of the updates number them, and which lie in a window."""

    equation: Equation
    windows: Windows
    numbered: tuple[int, ...]
    inside: tuple[int, ...]
    keyed: tuple[int, ...]

    @property
    def updates(self) -> ArrayType:
        return self.equation.inputs[2].type

    @property
    def operand(self) -> ArrayType:
        return self.equation.outputs[0].type

    @property
    def count(self) -> int:
        """How many updates there are."""
        return math.prod(self.updates.shape[axis] for axis in self.numbered)

    @property
    def width(self) -> int:
        """Elements of an update."""
        return math.prod(self.updates.shape[axis] for axis in self.inside)

    @property
    def is_sorted(self) -> bool:
        """Whether the updates are said to lie in the order of their keys.

        Indices ascend by their first component, then by the next; what is moved inwards
        keeps that order only along a single axis.
        """
        params, windows = self.equation.params, self.windows
        axes = (*windows.batch[0], *windows.indexed_axes)
        in_order = list(axes) == sorted(axes)
        in_order &= windows.batch[1] == tuple(range(len(windows.batch[1])))
        in_order &= params["mode"] != "clip" or len(windows.indexed_axes) == 1
        outer = self.updates.ndim - len(windows.window_axes)
        whole = outer == len(self.numbered)
        return params.get("indices_are_sorted", False) and in_order and whole

    @property
    def limit(self) -> int:
        """The key of what is left out."""
        return math.prod(self.operand.shape[axis] for axis in self.keyed)


def scatter_of(equation: Equation) -> Scatter:
    """The form of a scatter's equation."""
    params = dict(equation.params)
    for name in ("mode", "unique_indices", "indices_are_sorted"):
        params.pop(name, None)
    windows = Windows(**params)
    x, _, updates = (atom.type for atom in equation.inputs)
    sizes = windows.sizes(x.ndim, updates.shape)
    outer = [k for k in range(updates.ndim) if k not in windows.window_axes]
    keyed = {*windows.indexed_axes, *windows.batch[0]}
    kept = windows.kept(x.ndim)
    within = dict(zip(kept, windows.window_axes, strict=True))
    if any(sizes[axis] > 1 for axis in windows.indexed_axes):
        numbered = tuple(range(updates.ndim))
        keyed |= set(kept)
    else:
        numbered = tuple(sorted([*outer, *(within[a] for a in kept if a in keyed)]))
    inside = tuple(within[axis] for axis in kept if within[axis] not in numbered)
    return Scatter(equation, windows, numbered, inside, tuple(sorted(keyed)))
