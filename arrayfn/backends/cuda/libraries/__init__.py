"""What NVIDIA's libraries compute, besides matrix products: a provider for each name.

A provider takes the integers of a call, once, when a plan is loaded, and gives a
``Call``: what enqueues the work on a stream, given the addresses of its arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from arrayfn.errors import BackendError


@dataclass(frozen=True)
class Call:
    """``enqueue(stream, *addresses)`` of ``arrays``, by their names in the call.

    ``capturable`` says that it can be captured into a graph.
    """

    enqueue: Callable[..., None]
    arrays: tuple[str, ...]
    capturable: bool = True


Provider = Callable[[str, Mapping[str, int], int], Call]

PROVIDERS: Final[dict[str, Provider]] = {}
"""By the first word of a provider's name; the rest says the dtype."""


def call(provider: str, integers: Mapping[str, int], items: int) -> Call:
    """The call of ``items`` work items that ``provider`` prepares."""
    kind, _, dtype = provider.partition("_")
    if kind not in PROVIDERS:
        raise BackendError(f"no library on a GPU computes {provider}")
    return PROVIDERS[kind](dtype, integers, items)
