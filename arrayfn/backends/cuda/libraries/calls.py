"""What a provider prepares when a plan is loaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Call:
    """``enqueue(stream, *addresses)`` of ``arrays``, by their names in the call.

    ``capturable`` says that it can be captured into a graph. In a graph, a call with a
    name ``beside`` waits for what writes its arrays and for calls of the same name, and
    otherwise runs beside all else.
    """

    enqueue: Callable[..., None]
    arrays: tuple[str, ...]
    capturable: bool = True
    beside: str = ""
