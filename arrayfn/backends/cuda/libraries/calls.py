"""``Call``: a library call, prepared by a provider when a plan is loaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Call:
    """``enqueue(stream, *addresses)`` of ``arrays``, by their names in the call.

    ``capturable`` says whether a stream capture can include it. A collective has a
    ``channel``: calls of one channel run one after the other. In a graph a collective
    waits for what writes its arrays and for its channel, and runs concurrently with all
    other steps, as it needs no multiprocessor.
    """

    enqueue: Callable[..., None]
    arrays: tuple[str, ...]
    capturable: bool = True
    channel: str = ""
