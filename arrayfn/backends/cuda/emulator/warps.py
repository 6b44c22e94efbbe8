"""Emulated exchange of values between the lanes of a warp."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from arrayfn.backends.cuda.emulator.memory import EmulationError
from arrayfn.lowering.cuda.vocabulary import DeviceFunction


def exchanged(function: DeviceFunction, arguments: Sequence[tuple[Any, ...]]) -> Any:
    """The result of ``function`` for each lane, from the arguments of all."""
    if function.kind == "ballot":
        return [_lanes(truth for (truth,) in arguments)] * len(arguments)
    if function.kind in ("match_any_byte", "match_any_u32"):
        bits = 255 if function.kind == "match_any_byte" else 2**32 - 1
        words = [int(value) & bits for (value,) in arguments]
        return [_lanes(other == word for other in words) for word in words]
    values, lanes = zip(*arguments, strict=True)
    found: list[Any] = []
    for lane, k in enumerate(map(int, lanes)):
        source = {"shuffle_xor": lane ^ k, "shuffle_up": lane - k}.get(function.kind, k)
        source = lane if source < 0 else source
        if source >= len(values):
            raise EmulationError(f"lane {lane} reads lane {source}, which is not there")
        found.append(values[source])
    return found


def _lanes(truths: Any) -> Any:
    """The i32 mask of the lanes whose value in ``truths`` is true."""
    bits = sum(1 << lane for lane, truth in enumerate(truths) if truth)
    return np.uint32(bits).astype(np.int32)
