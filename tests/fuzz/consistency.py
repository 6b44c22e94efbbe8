"""What holds of transformations, whatever the device: checked on the reference alone.

``vmap`` is a loop. A gradient is what differences of the function in float64 tend to,
where they tend to the same from both sides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

import arrayfn as af
from arrayfn import tree
from arrayfn.primitives.calls import evaluate
from tests.fuzz.arrays import STORAGE
from tests.fuzz.case import Case
from tests.fuzz.oracle import Expected, in_float64, wide

OWN_RULES: Final = (
    "custom_",
    "stop_gradient",
    "nextafter",
    "spacing",
    "bitcast",
    "reduce_pre",
    "float8",
    "int4",
)
"""Derivatives of these are what somebody said, not limits of differences."""

STEPS: Final = (1e-4, 3e-5, 1e-5)
AGREE: Final = 1e-4
DIFFER: Final = 1e-2
BESIDE: Final = 1e-2
LARGEST: Final = 2.0**40
"""Most larger numbers are integers: differences do not see where they are rounded."""


def inconsistency(
    case: Case, scope: dict[str, Any], arguments: Sequence[Any], expected: Expected
) -> str | None:
    """What does not hold, in words; None if all does."""
    kind = case.transformation.kind
    if kind == "vmap":
        return _not_a_loop(case, scope["f"], arguments, expected)
    if kind in ("grad", "value_and_grad"):
        return _not_a_limit(case, scope["loss"], arguments, expected)
    return None


def _not_a_loop(
    case: Case, function: Any, arguments: Sequence[Any], expected: Expected
) -> str | None:
    batches = [x.batch for x in case.arguments]
    extent = next(b[1] for b in batches if b is not None)
    if not extent:
        return None
    rows: list[list[Any]] = []
    for k in range(extent):
        items = [
            x if b is None else np.take(x, k, axis=b[0])
            for x, b in zip(arguments, batches, strict=True)
        ]
        program = af.jit(function, device="reference").lower(*items).program
        types = program.input_types
        leaves = [np.asarray(x, t.dtype) for x, t in zip(items, types, strict=True)]
        rows.append([np.asarray(y) for y in evaluate(program, leaves)])
    axis = case.transformation.out_axis
    looped = [np.stack(ys, axis) for ys in zip(*rows, strict=True)]
    fault = expected.faults(looped)
    return None if fault is None else f"a loop gives something else than vmap: {fault}"


def _not_a_limit(
    case: Case, loss: Any, arguments: Sequence[Any], expected: Expected
) -> str | None:
    if any(word in case.body() for word in OWN_RULES):
        return None
    if any(x.dtype in STORAGE for x in case.arguments):
        return None  # as for bitcasts: the derivative of rounding is what we say
    names = case.parameters()
    places = [names.index(name) for name in case.transformation.wrt]
    rng = np.random.default_rng(0)
    point = [wide(np.asarray(x)) for x in tree.leaves(list(arguments))]
    for k in places:  # beside it: at a tie a gradient is what was chosen
        point[k] = point[k] + rng.uniform(-BESIDE, BESIDE, point[k].shape)
    gradients = in_float64(expected.program, point)[-len(places) :]
    directions = [rng.choice([-1.0, 1.0], point[k].shape) for k in places]
    claimed = sum(
        float(np.sum(g * d)) for g, d in zip(gradients, directions, strict=True)
    )
    terms = sum(float(np.sum(np.abs(g))) for g in gradients)
    program = af.jit(loss, device="reference").lower(*arguments).program

    def along(step: float) -> float:
        moved = list(point)
        for k, d in zip(places, directions, strict=True):
            moved[k] = moved[k] + step * d
        return float(np.real(in_float64(program, moved)[0]))

    centre = along(0.0)
    if abs(centre) > LARGEST:
        return None
    slopes: list[float] = []
    for step in STEPS:
        slopes += [(along(step) - centre) / step, (centre - along(-step)) / step]
    scale = max(map(abs, slopes), default=0.0)
    rounding = 1e-14 * abs(centre) / min(STEPS)
    noise = rounding + 1e-12 * terms
    if not np.isfinite(slopes).all() or not np.isfinite(claimed):
        return None
    if max(slopes) - min(slopes) > AGREE * scale + rounding:
        return None  # it bends or jumps here
    if abs(slopes[-1] - claimed) <= DIFFER * max(scale, abs(claimed)) + noise + 1e-9:
        return None
    return f"the gradient along a direction is {claimed}, differences give {slopes[-1]}"
