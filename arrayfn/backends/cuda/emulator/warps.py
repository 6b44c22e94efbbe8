"""Emulates functions that exchange values between the lanes of a warp."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from arrayfn.backends.cuda.emulator.memory import EmulationError
from arrayfn.lowering.cuda.vocabulary import DeviceFunction


def exchanged(function: DeviceFunction, arguments: Sequence[tuple[Any, ...]]) -> Any:
    """Return the result of a shuffle or a vote for each lane.

    ``arguments`` are those of each lane. Raises EmulationError if a lane reads a lane
    that does not exist.
    """
    if function.kind == "ballot":
        return [_lanes(truth for (truth,) in arguments)] * len(arguments)
    if function.kind in ("match_any_byte", "match_any_u32"):
        bits = 255 if function.kind == "match_any_byte" else 2**32 - 1
        words = [int(value) & bits for (value,) in arguments]
        return [_lanes(other == word for other in words) for word in words]
    values, operands = zip(*arguments, strict=True)  # a mask, a distance, or a lane
    results: list[Any] = []
    for lane, k in enumerate(map(int, operands)):
        source = {"shuffle_xor": lane ^ k, "shuffle_up": lane - k}.get(function.kind, k)
        # A shuffle from a lane below 0 returns the lane's own value.
        source = lane if source < 0 else source
        if source >= len(values):
            raise EmulationError(f"lane {lane} reads lane {source}, which is not there")
        results.append(values[source])
    return results


def _lanes(truths: Any) -> Any:
    """Return the i32 mask of the lanes whose value in ``truths`` is true."""
    bits = sum(1 << lane for lane, truth in enumerate(truths) if truth)
    return np.uint32(bits).astype(np.int32)
