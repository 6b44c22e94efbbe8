"""``Call``: a library call, prepared by a provider when a plan is loaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Call:
    """A prepared library call: ``enqueue(stream, *addresses)`` of its ``arrays``.

    ``arrays`` are their names in the call. ``capturable`` says whether a stream capture
    can include it. Collectives run one after the other, in the order of the plan, like
    those of the other members; they run concurrently with other steps that do not
    access their arrays.
    """

    enqueue: Callable[..., None]
    arrays: tuple[str, ...]
    capturable: bool = True
    is_collective: bool = False
