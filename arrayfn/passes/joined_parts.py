"""Joins a sum of zero-padded parts that do not overlap into one array."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from arrayfn.ir import Atom, Equation, Literal
from arrayfn.passes.definitions import Definitions
from arrayfn.primitives import elementwise, slicing

MAX_PARTS = 64  # terms of a sum that becomes one array


def joined_parts(xs: Sequence[Atom], definitions: Definitions) -> Atom | None:
    """Emit the sum of ``xs``, zero-padded parts of one array, as a concatenation.

    ``pad(x, 0, (0, 2)) + pad(y, 0, (2, 0))`` of two vectors of 2 elements becomes
    ``concatenate(x, y)``. The gradient of an array that was cut into slices is such a
    sum. None if the parts overlap, or are not adjacent along one axis.
    """
    parts = _padded_parts(xs, definitions)
    if parts is None or len(parts) < 2:
        return None
    shape = parts[0].outputs[0].type.shape
    axes = {
        axis
        for part in parts
        for axis, n in enumerate(part.inputs[0].type.shape)
        if n != shape[axis]
    }
    if len(axes) != 1:
        return None
    (axis,) = axes
    # Padding is (before, after, between) for each axis. Sort by the first element.
    parts.sort(key=lambda part: part.params["config"][axis][0])
    first, last = parts[0], parts[-1]
    end = first.params["config"][axis][0]
    pieces: list[Atom] = []
    for part in parts:
        if part.params["config"][axis][0] != end:  # a gap or an overlap
            return None
        piece = part.inputs[0]
        end += piece.type.shape[axis]
        definition = definitions.of(piece)
        if (
            definition is not None
            and definition.primitive is slicing.concatenate
            and definition.params["axis"] == axis
        ):
            pieces += definition.inputs
        else:
            pieces.append(piece)
    joined_array = slicing.concatenate(*pieces, axis=axis)
    if joined_array.type.shape == shape:
        return joined_array
    config = list(first.params["config"])
    config[axis] = (config[axis][0], last.params["config"][axis][1], 0)
    return slicing.pad(joined_array, first.inputs[1], config=tuple(config))


def _padded_parts(
    xs: Sequence[Atom], definitions: Definitions
) -> list[Equation] | None:
    """Return the pad equations whose results are the terms of the sum ``xs``.

    Nested sums are entered. None if a term is anything else than an array padded with
    zeros, or if there are more than ``MAX_PARTS`` terms.
    """
    parts: list[Equation] = []
    pending = list(xs)
    while pending:
        x = pending.pop()
        definition = definitions.of(x)
        if definition is None:
            return None
        if definition.primitive is elementwise.add:  # a nested sum
            pending += definition.inputs
            if len(parts) + len(pending) > MAX_PARTS:
                return None
            continue
        if definition.primitive is not slicing.pad or not is_literal(
            definition.inputs[1], 0
        ):
            return None
        if any(
            low < 0 or high < 0 or gap for low, high, gap in definition.params["config"]
        ):
            return None
        parts.append(definition)
    return parts[::-1]


def is_literal(atom: Atom, value: complex) -> bool:
    """Whether ``atom`` is the literal ``value``; 0 does not stand for -0."""
    return (
        isinstance(atom, Literal)
        and atom.value == value
        and not (value == 0 and np.signbit(np.real(atom.value)))
    )
