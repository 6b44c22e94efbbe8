"""Caches captured plans by the addresses of buffers, which repeat from call to call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar

Captured = TypeVar("Captured")

_MAX_PLANS: Final = 64  # each for a set of addresses
_MAX_SEEN: Final = 256  # sets of addresses without a plan whose runs are counted
# A full cache captures at most once in so many runs, the time that a capture takes.
_BETWEEN_CAPTURES: Final = 16


class AddressCache(Generic[Captured]):
    """A cache of captured plans, by the addresses of all buffers.

    Freed memory is soon allocated again, so a program that repeats its calls repeats
    their addresses. A plan is captured after ``direct_runs`` runs at the same
    addresses. If there are more sets of addresses than the cache holds, most runs
    capture nothing. ``on_change`` is called with all plans when they change.
    """

    def __init__(
        self,
        capture: Callable[[], Captured],
        direct_runs: int,
        may_capture: Callable[[], bool] = lambda: True,
    ) -> None:
        """Make an empty cache.

        ``capture()`` makes a plan for the current addresses. ``may_capture()`` is asked
        just before; if it says no, nothing is captured in that run.
        """
        self._capture = capture
        self._direct_runs = direct_runs
        self._may_capture = may_capture
        self._plans: dict[bytes, Captured] = {}
        self._seen: dict[bytes, int] = {}
        self._runs = 0  # since the last capture
        self.on_change: Callable[[dict[bytes, Captured]], None] = lambda _: None

    def find(self, addresses: bytes) -> Captured | None:
        """Return the plan for ``addresses``; None if the segment must run directly.

        Called once a run. The plan is captured after ``direct_runs`` runs at these
        addresses. If the cache is full, the oldest plan is dropped for it, at most once
        in ``_BETWEEN_CAPTURES`` runs.
        """
        self._runs += 1
        plan = self._plans.get(addresses)
        if plan is not None:
            return plan
        seen = self._seen.get(addresses, 0)
        if seen < self._direct_runs:
            if len(self._seen) >= _MAX_SEEN:
                self._seen.clear()
            self._seen[addresses] = seen + 1
            return None
        is_full = len(self._plans) >= _MAX_PLANS
        is_early = is_full and self._direct_runs and self._runs < _BETWEEN_CAPTURES
        if is_early or not self._may_capture():
            return None
        if is_full:
            # Drop the oldest plan before the capture, which may need its memory.
            self._plans.pop(next(iter(self._plans)))
            self.on_change(self._plans)
        self._plans[addresses] = plan = self._capture()
        self.on_change(self._plans)
        self._runs = 0
        return plan
