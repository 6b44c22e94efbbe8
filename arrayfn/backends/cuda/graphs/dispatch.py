"""Runs a plan segment by segment, each by its ``Strategy``.

``SegmentDispatch`` holds all that changes from call to call: the plan that serves any
addresses, the plans for single sets of addresses (``AddressCache``), and which plans
the native call entry may run without entering Python. ``MemberDispatch`` runs a plan
with collectives whose arrays are too large for staging buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from arrayfn.backends.cuda.call_entry import ALWAYS, CallEntry
from arrayfn.backends.cuda.driver import device
from arrayfn.backends.cuda.encoded_plan import EncodedPlan
from arrayfn.backends.cuda.graphs.address_cache import AddressCache
from arrayfn.backends.cuda.graphs.conditional import conditional_nodes
from arrayfn.backends.cuda.graphs.overlap import OverlappingLaunches
from arrayfn.backends.cuda.graphs.replay import graph_or_launches, updated_graph
from arrayfn.backends.cuda.graphs.staging import Staging, staged_buffers
from arrayfn.backends.cuda.graphs.strategy import (
    AnyAddress,
    Strategy,
    is_worth_a_graph,
    strategies,
)
from arrayfn.backends.cuda.graphs.walk import CapturingWalk, Walk
from arrayfn.backends.cuda.runner import Plan
from arrayfn.lowering.compiled import CompiledProgram

_MAX_CALLS: Final = 1 << 10
"""Most calls that the native entry runs before it enters Python again."""


class Dispatch:
    """Runs a plan on the buffers at ``addresses``, which change from call to call.

    ``inputs`` and ``outputs`` are numbers of buffers. ``is_single`` says whether the
    plan is one segment that a native call entry can run.
    """

    def __init__(
        self,
        compiled: CompiledProgram,
        inputs: Sequence[int],
        outputs: Sequence[int],
        addresses: Any,
    ) -> None:
        """Encode the plan, and choose how each of its segments runs.

        ``addresses`` is the ctypes array of all buffers' addresses, and last the
        arena's.
        """
        plan = compiled.plan
        encoded = EncodedPlan(compiled, len(plan.buffers))
        buffers = staged_buffers(
            compiled.input_types,
            inputs,
            outputs,
            plan.buffers,
            plan.arena,
            has_collectives=encoded.has_collectives,
        )
        chosen = strategies(encoded, can_stage=buffers is not None)
        staging = Staging(*buffers, plan.arena) if buffers is not None else None
        self.is_single = len(chosen) == 1
        self._segments: list[SegmentDispatch | MemberDispatch] = []
        for strategy in chosen:
            if encoded.has_collectives and strategy.any_address is AnyAddress.DIRECT:
                self.is_single = False
                self._segments.append(MemberDispatch(encoded, addresses, strategy))
            else:
                segment = SegmentDispatch(encoded, addresses, strategy, staging)
                self._segments.append(segment)

    def attach(self, entry: CallEntry) -> None:
        """Let the native ``entry`` run what this dispatch captures.

        The plan must be ``is_single``.
        """
        (segment,) = self._segments
        assert isinstance(segment, SegmentDispatch)
        segment.attach(entry)

    def enqueue(self, addresses: bytes) -> None:
        """Enqueue the plan; ``addresses`` are the bytes of the current addresses."""
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

        ``addresses`` is the ctypes array of all buffers' addresses, which is written
        before each run. ``staging`` has the buffers of a ``STAGED`` graph.
        """
        self._encoded = encoded
        self._strategy = strategy
        self._walk = walk = Walk(encoded, addresses)
        self._enqueue_nodes = partial(walk.run, strategy.nodes)
        if encoded.has_collectives:
            launches = OverlappingLaunches(encoded, strategy.nodes, walk)
            self._enqueue_nodes = launches.run
        self._entry: CallEntry | None = None  # set by ``attach``
        self._runs = 0  # of ``enqueue``
        self._calls_allowed = 0  # of the entry before it enters Python again
        self._plan = encoded.plan if encoded.is_native else None
        """The plan that serves any addresses; None if Python walks the nodes."""
        self._capture_plan: Callable[[], Plan] | None = None
        """Captures the graph that is to replace ``_plan``; None after that."""
        self._plans: AddressCache[Plan] | None = None
        """The plans that serve certain addresses only, by the bytes of these."""

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
        """Let ``entry`` run captured plans without entering Python, from now on."""
        self._entry = entry
        if self._plans is not None:
            self._plans.on_change = self._publish

    def enqueue(self, addresses: bytes) -> None:
        """Enqueue the segment; ``addresses`` are the bytes of the current addresses.

        The plan for these addresses is run, if there is one; else the plan for any
        addresses, which is captured after ``direct_runs`` runs; else Python enqueues
        the nodes one by one.
        """
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

        The number grows each time that the entry enters Python. So addresses that
        repeat are soon seen here, and if none repeat, looking for them costs little.
        """
        is_final = self._capture_plan is None and self._plans is None
        self._calls_allowed = min(self._calls_allowed + 1, _MAX_CALLS)
        entry.run(plan, ALWAYS if is_final else self._calls_allowed)

    def _publish(self, plans: dict[bytes, Plan]) -> None:
        """Let the entry run ``plans``, each for the addresses that are its key."""
        assert self._entry is not None
        self._calls_allowed = 0  # calls that the entry runs before it asks Python again
        self._entry.publish(plans)


class MemberDispatch:
    """Runs a plan with collectives: launches these directly, and graphs between them.

    The graphs hold no collective, so a member may capture when others do not. But a
    capture may wait for the GPU while it holds a lock of the driver, for which another
    member's thread may wait. So the members of one process capture in the same calls,
    when nothing runs on their GPUs (``EncodedPlan.lockstep``).
    """

    def __init__(
        self, encoded: EncodedPlan, addresses: Any, strategy: Strategy
    ) -> None:
        """Prepare to run by ``strategy``; nothing is captured yet.

        ``addresses`` is the ctypes array of all buffers' addresses, which is written
        before each run.
        """
        self._encoded = encoded
        self._addresses = addresses
        walk = Walk(encoded, addresses)
        self._launches = OverlappingLaunches(encoded, strategy.nodes, walk)
        self._graphs: AddressCache[list[Plan | None]] | None = None
        if strategy.by_address:
            may_capture = encoded.lockstep.may_capture
            self._graphs = AddressCache(
                self._capture, strategy.direct_runs, may_capture
            )

    def enqueue(self, addresses: bytes) -> None:
        """Enqueue the plan; ``addresses`` are the bytes of the current addresses.

        Members in lockstep meet before and after they look for graphs, since that may
        capture.
        """
        if self._graphs is None:
            self._launches.run(device().stream)
            return
        in_lockstep = self._encoded.lockstep.is_on
        if in_lockstep:
            self._encoded.meet()
        graphs = self._graphs.find(addresses)
        if in_lockstep:
            self._encoded.meet()
        self._launches.run(device().stream, graphs or ())

    def _capture(self) -> list[Plan | None]:
        """Capture a graph of each segment that is worth one, at the current addresses.

        A segment is the nodes between two collectives. The result has None for a
        segment that is not worth a graph.
        """
        return [
            graph_or_launches(
                self._encoded.plan,
                partial(_capture, self._encoded, nodes, self._addresses),
                max_launches=0,
            )
            if is_worth_a_graph(nodes)
            else None
            for nodes in self._launches.segments
        ]


def _capture(
    encoded: EncodedPlan, nodes: Sequence[Any], addresses: Any, stream: int
) -> None:
    """Enqueue ``nodes`` on ``stream``, which is being captured.

    The captured graph always uses the buffers at ``addresses``.
    """
    CapturingWalk(encoded, addresses, conditional_nodes()).run(nodes, stream)


def _capture_with_members(encoded: EncodedPlan, capture: Callable[[], Plan]) -> Plan:
    """Run ``capture`` at the same time as all other members of a mesh.

    NCCL requires that a collective is captured by all members or by none. The members
    wait for each other, and for their GPUs, before and after.
    """
    encoded.meet()
    plan = capture()
    encoded.meet()
    return plan
