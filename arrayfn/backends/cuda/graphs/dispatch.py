"""Runs a plan segment by segment, each by its ``Strategy``.

``SegmentDispatch`` holds everything that changes from call to call: the plan that
serves any addresses, the plans for single sets of addresses (``AddressCache``), and the
plans that the native call entry may run without entering Python.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from arrayfn.backends.cuda.call_entry import ALWAYS, CallEntry
from arrayfn.backends.cuda.driver import device
from arrayfn.backends.cuda.encoded_plan import EncodedPlan
from arrayfn.backends.cuda.graphs.conditional import conditional_nodes
from arrayfn.backends.cuda.graphs.overlap import OverlappingLaunches
from arrayfn.backends.cuda.graphs.replay import graph_or_launches, updated_graph
from arrayfn.backends.cuda.graphs.staging import Staging, staged_buffers
from arrayfn.backends.cuda.graphs.strategy import AnyAddress, Strategy, strategies
from arrayfn.backends.cuda.graphs.walk import CapturingWalk, Walk
from arrayfn.backends.cuda.runner import Plan
from arrayfn.lowering.compiled import CompiledProgram

_MAX_PLANS: Final = 64
"""Plans of a segment at most, each for one set of addresses."""
_MAX_SEEN: Final = 256
"""Sets of addresses without a plan whose runs are counted."""
_BETWEEN_CAPTURES: Final = 16
"""Runs between captures: a capture takes about as long as so many runs."""
_MAX_CALLS: Final = 1 << 10
"""Calls that the native entry serves before it enters Python again."""


class Dispatch:
    """Runs a plan on the buffers at ``addresses``, which change from call to call.

    ``inputs`` and ``outputs`` are numbers of buffers.
    """

    def __init__(
        self,
        compiled: CompiledProgram,
        inputs: Sequence[int],
        outputs: Sequence[int],
        addresses: Any,
    ) -> None:
        plan = compiled.plan
        encoded = EncodedPlan(compiled, len(plan.buffers))
        given = compiled.input_types, inputs, outputs, plan.buffers, plan.arena
        buffers = staged_buffers(*given, has_collectives=encoded.has_collectives)
        chosen = strategies(encoded, can_stage=buffers is not None)
        staging = Staging(*buffers, plan.arena) if buffers is not None else None
        self.is_single = len(chosen) == 1
        self._segments = [
            SegmentDispatch(encoded, addresses, strategy, staging)
            for strategy in chosen
        ]

    def attach(self, entry: CallEntry) -> None:
        """Let ``entry`` run the plan, which ``is_single``, without entering Python."""
        self._segments[0].attach(entry)

    def enqueue(self, addresses: bytes) -> None:
        """Enqueue the plan; ``addresses`` are the current ones of the buffers."""
        for segment in self._segments:
            segment.enqueue(addresses)


class SegmentDispatch:
    """Runs one segment of a plan by its strategy."""

    def __init__(
        self,
        encoded: EncodedPlan,
        addresses: Any,
        strategy: Strategy,
        staging: Staging | None,
    ) -> None:
        """Prepare to run by ``strategy``; nothing is captured yet.

        ``addresses`` is the array of all buffers' addresses, which is written before
        each run. ``staging`` has the buffers of a ``STAGED`` graph.
        """
        self._encoded = encoded
        self._strategy = strategy
        self._walk = walk = Walk(encoded, addresses)
        self._enqueue_nodes = partial(walk.run, strategy.nodes)
        if encoded.has_collectives:
            launches = OverlappingLaunches(encoded, strategy.nodes, walk)
            self._enqueue_nodes = launches.run
        self._entry: CallEntry | None = None
        self._runs = 0
        self._calls_allowed = 0  # of the entry before it enters Python again
        self._plan = encoded.plan if encoded.is_native else None
        """The plan that serves any addresses; None if Python walks the nodes."""
        self._capture_plan: Callable[[], Plan] | None = None
        """Captures the graph that is to replace ``_plan``."""
        self._plans: AddressCache | None = None

        capture = partial(_capture, encoded, strategy.nodes)
        if strategy.any_address is AnyAddress.UPDATED:
            self._capture_plan = partial(
                updated_graph, encoded, strategy.nodes, addresses
            )
        elif strategy.any_address is AnyAddress.STAGED:
            assert staging is not None
            self._capture_plan = partial(
                staging.capture, addresses, encoded.plan, capture
            )
            if encoded.has_collectives:
                self._capture_plan = partial(
                    _capture_with_members, encoded, self._capture_plan
                )
        if strategy.by_address:
            make = partial(
                graph_or_launches,
                encoded.plan,
                partial(capture, addresses),
                max_launches=strategy.max_recorded,
            )
            self._plans = AddressCache(make, strategy.direct_runs)

    def attach(self, entry: CallEntry) -> None:
        """Tell ``entry``, from now on, what it may run without entering Python."""
        self._entry = entry
        if self._plans is not None:
            self._plans.on_change = self._publish

    def enqueue(self, addresses: bytes) -> None:
        """Enqueue the segment; ``addresses`` are the current ones of the buffers."""
        self._runs += 1
        plan = self._plans.find(addresses) if self._plans is not None else None
        if plan is None:
            if self._capture_plan and self._runs > self._strategy.direct_runs:
                self._plan, self._capture_plan = self._capture_plan(), None
            plan = self._plan
        if plan is not None:
            self._encoded.run(plan, self._walk.addresses)
        else:
            self._enqueue_nodes(device().stream)
        if self._entry is not None and self._plan is not None:
            self._allow(self._entry, self._plan)

    def _allow(self, entry: CallEntry, plan: Plan) -> None:
        """Let the entry run ``plan`` for a number of calls, or always if it is final.

        The number grows from call to call: addresses that repeat are seen soon, and if
        none repeat, looking for them costs little.
        """
        stays = self._capture_plan is None and self._plans is None
        self._calls_allowed = min(self._calls_allowed + 1, _MAX_CALLS)
        entry.run(plan, ALWAYS if stays else self._calls_allowed)

    def _publish(self, plans: dict[bytes, Plan]) -> None:
        """Tell the entry for which addresses there are plans."""
        assert self._entry is not None
        self._calls_allowed = 0
        self._entry.publish(plans)


def _capture(
    encoded: EncodedPlan, nodes: Sequence[Any], addresses: Any, stream: int
) -> None:
    """Enqueue ``nodes`` on ``stream``, which is being captured.

    The buffers are at ``addresses``, which the captured graph keeps.
    """
    CapturingWalk(encoded, addresses, conditional_nodes()).run(nodes, stream)


def _capture_with_members(encoded: EncodedPlan, capture: Callable[[], Plan]) -> Plan:
    """Capture a graph at the same time as all other members of a mesh.

    NCCL requires that a collective is captured by all members or by none.
    """
    encoded.meet()
    plan = capture()
    encoded.meet()
    return plan


class AddressCache:
    """Captured plans by the addresses of all buffers, for addresses that repeat.

    Freed memory is soon allocated again, so a program that repeats its calls repeats
    their addresses. A plan is captured after ``direct_runs`` runs at the same
    addresses. If there are more sets of addresses than the cache holds, most runs
    capture nothing.
    """

    def __init__(self, capture: Callable[[], Plan], direct_runs: int) -> None:
        """``capture`` makes a plan for the current addresses."""
        self._capture = capture
        self._direct_runs = direct_runs
        self._plans: dict[bytes, Plan] = {}
        self._seen: dict[bytes, int] = {}
        self._runs = 0  # since the last capture
        self.on_change: Callable[[dict[bytes, Plan]], None] = lambda _: None

    def find(self, addresses: bytes) -> Plan | None:
        """The plan for ``addresses``; None if the segment is to be launched directly.

        It is captured after ``_direct_runs`` runs at these addresses. If there are
        ``_MAX_PLANS`` already, the oldest is dropped for it, at most once in
        ``_BETWEEN_CAPTURES`` runs.
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
        if len(self._plans) >= _MAX_PLANS:
            if self._direct_runs and self._runs < _BETWEEN_CAPTURES:
                return None
            # Its memory is freed before more is asked for.
            self._plans.pop(next(iter(self._plans)))
            self.on_change(self._plans)
        self._plans[addresses] = plan = self._capture()
        self.on_change(self._plans)
        self._runs = 0
        return plan
