"""Decides how a plan runs: direct launches, CUDA graphs or recorded launches.

A plan is cut into segments at the steps that a graph cannot hold. Each segment runs in
one of these ways (``SegmentDispatch``):

* Direct launches. A few long kernels run so always, since between two graphs the GPU
  idles, and everything else does until it is worth a capture.
* One graph whose kernel nodes' parameters are updated before each launch: up to 32
  ordinary kernels, at any addresses.
* One graph on staging buffers, at any addresses (``staging``).
* A graph for each set of addresses that repeats (``GraphCache``). If it holds only a
  few long kernels of libraries, these are launched one by one as they were recorded.

Launching a graph takes half the time of launching a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, Final

from arrayfn.backends.cuda.call_entry import ALWAYS, CallEntry
from arrayfn.backends.cuda.driver import device
from arrayfn.backends.cuda.encoded_plan import EncodedPlan
from arrayfn.backends.cuda.graphs.capture import (
    CapturedGraph,
    ConcurrentCapture,
    KernelNodeParams,
    capture_info,
    record,
)
from arrayfn.backends.cuda.graphs.conditional import conditional_nodes
from arrayfn.backends.cuda.graphs.staging import Staging, staged_buffers
from arrayfn.backends.cuda.graphs.walk import CapturingWalk, Walk
from arrayfn.backends.cuda.plan_nodes import (
    Access,
    BranchNode,
    LoopNode,
    NativeRun,
    Node,
    calls_host,
    has_windows,
    is_capturable,
    launches,
    one_by_one,
    synchronizes,
)
from arrayfn.backends.cuda.runner import Plan
from arrayfn.lowering.compiled import CompiledProgram

# Of a segment, in launches.
_GRAPH_LAUNCHES: Final = 4  # which Python enqueues in the time that a graph takes
_MAX_LAUNCHES: Final = 1 << 14  # of a graph
_LONG: Final = 64  # beside which the copies of staging cost nothing
_SHORT: Final = 4  # fewer take no longer than the copies of staging and a graph
_FEW: Final = 4  # long kernels that are launched one by one
_MAX_UPDATED: Final = 32  # kernel nodes whose parameters are updated

_MAX_GRAPHS: Final = 64  # of a segment
_MAX_SEEN: Final = 256  # sets of addresses without a graph
_BETWEEN_CAPTURES: Final = 16  # runs: a capture takes about as long as so many
_LAUNCHES_A_RUN: Final = 64  # each so many delay the capture by a run
_MAX_CALLS: Final = 1 << 10  # of the native entry before it asks again

_ALL_MEMORY: Final[Access] = (0, 1 << 63, True)


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
        cut = segments(encoded.nodes)
        self.is_single = len(cut) == 1
        staging = None
        if self.is_single and cut[0].by_graph:
            given = compiled.input_types, inputs, outputs, plan.buffers, plan.arena
            staged = staged_buffers(*given)
            staging = Staging(*staged, plan.arena) if staged else None
        self._segments = [SegmentDispatch(encoded, addresses, s, staging) for s in cut]

    def attach(self, entry: CallEntry) -> None:
        """Keep ``entry``, of a plan that ``is_single``, informed of what it may run."""
        self._segments[0].attach(entry)

    def enqueue(self, addresses: bytes) -> None:
        """Enqueue the plan; ``addresses`` are those that the buffers have now."""
        for segment in self._segments:
            segment.enqueue(addresses)


@dataclass(frozen=True)
class Segment:
    """Nodes that follow each other; ``by_graph`` if they are to be one graph.

    They are launched directly ``patience`` times before they are captured: more often
    the longer a capture takes, and not at all if direct launches would synchronize or
    take longer than the capture.
    """

    nodes: tuple[Node, ...]
    by_graph: bool
    patience: int = 0


def segments(nodes: Sequence[Node]) -> list[Segment]:
    """``nodes``, cut into as few and as long graphs as possible.

    A few launches beside other segments are no graph. A whole plan always is one if it
    can be: then a call launches it without entering Python.
    """
    made: list[Segment] = []
    groups = [(c, tuple(part)) for c, part in groupby(nodes, is_capturable)]
    for capturable, part in groups:
        at_once = capturable and (synchronizes(part) or has_windows(part))
        count = launches(part)
        few = count < _GRAPH_LAUNCHES and not calls_host(part)
        worth = at_once or not few or len(groups) == 1
        by_graph = capturable and worth and count <= _MAX_LAUNCHES
        if made and not by_graph and not made[-1].by_graph:
            made[-1] = Segment((*made[-1].nodes, *part), by_graph=False)
        else:
            patience = 1 + min(count // _LAUNCHES_A_RUN, _BETWEEN_CAPTURES)
            made.append(Segment(part, by_graph, 0 if at_once else patience))
    return made


class SegmentDispatch:
    """Decides how a segment runs, and runs it."""

    def __init__(
        self,
        encoded: EncodedPlan,
        addresses: Any,
        segment: Segment,
        staging: Staging | None,
    ) -> None:
        """Choose how ``segment`` runs; nothing is captured yet.

        ``addresses`` is the array of all buffers' addresses, which is written before
        each run. ``staging`` is given if the segment is the whole plan and small
        enough.
        """
        self._encoded = encoded
        self._nodes = segment.nodes
        self._patience = segment.patience
        self._walk = Walk(encoded, addresses)
        self._entry: CallEntry | None = None
        self._runs = 0
        self._calls = 0  # of the entry before it asks again
        # What serves all addresses: direct launches, until there is a graph.
        self._plan = encoded.plan if encoded.is_native else None
        self._make_graph: Callable[[], Plan] | None = None
        self._cache: GraphCache | None = None

        duration = _long_kernels(encoded, segment)
        if not segment.by_graph or (encoded.is_native and duration):
            return  # direct launches

        kernels = encoded.kernels(segment.nodes)
        if kernels is not None and len(kernels) <= _MAX_UPDATED:
            self._make_graph = partial(updated_graph, encoded, segment.nodes, addresses)
            return

        capture = partial(_capture, encoded, segment.nodes)
        count = launches(segment.nodes)
        is_long = not segment.patience or count >= _LONG
        if staging is not None and (is_long or count >= _SHORT):
            self._make_graph = partial(
                staging.capture, addresses, encoded.plan, capture
            )
            if is_long:
                return

        enqueue = partial(capture, addresses)
        make = partial(record, encoded.plan, enqueue, max_launches=duration)
        self._cache = GraphCache(make, segment.patience)

    def attach(self, entry: CallEntry) -> None:
        """Keep ``entry`` informed of what it may run without entering Python."""
        self._entry = entry
        if self._cache is not None:
            self._cache.on_change = self._publish

    def enqueue(self, addresses: bytes) -> None:
        """Enqueue the segment; ``addresses`` are those that the buffers have now."""
        self._runs += 1
        plan = self._cache.find(addresses) if self._cache is not None else None
        if plan is None:
            if self._make_graph is not None and self._runs > self._patience:
                self._plan, self._make_graph = self._make_graph(), None
            plan = self._plan
        if plan is not None:
            self._encoded.run(plan, self._walk.addresses)
        else:
            self._walk.run(self._nodes, device().stream)
        if self._entry is not None and self._plan is not None:
            self._allow(self._entry, self._plan)

    def _allow(self, entry: CallEntry, plan: Plan) -> None:
        """Let the entry run ``plan`` for a number of calls, or always if it stays.

        The number grows from call to call: addresses that repeat are seen soon, and if
        none repeat, looking for them costs little.
        """
        stays = self._make_graph is None and self._cache is None
        self._calls = min(self._calls + 1, _MAX_CALLS)
        entry.run(plan, ALWAYS if stays else self._calls)

    def _publish(self, plans: dict[bytes, Plan]) -> None:
        """Tell the entry for which addresses there are plans."""
        assert self._entry is not None
        self._calls = 0
        self._entry.publish(plans)


def _capture(
    encoded: EncodedPlan, nodes: Sequence[Node], addresses: Any, stream: int
) -> None:
    """Enqueue ``nodes`` on ``stream``, which is being captured.

    The buffers are at ``addresses``, which the captured graph keeps.
    """
    CapturingWalk(encoded, addresses, conditional_nodes()).run(nodes, stream)


def _long_kernels(encoded: EncodedPlan, segment: Segment) -> int:
    """The duration of a segment of a few long kernels, in launches; 0 for all others.

    As many launches as that take no longer than the kernels, which hide them.
    """
    if launches(segment.nodes) > _FEW:
        return 0
    times = [
        0 if isinstance(step, (LoopNode, BranchNode)) else encoded.lasts(step)
        for step in one_by_one(segment.nodes)
    ]
    return sum(times) if all(times) else 0


def updated_graph(encoded: EncodedPlan, nodes: Sequence[Node], addresses: Any) -> Plan:
    """A plan that updates the kernel nodes of a graph of ``nodes``, and launches it.

    ``nodes`` are ordinary kernels. Which buffers overlap each other is taken from
    ``addresses``.
    """
    rows = encoded.kernels(nodes)
    assert rows is not None
    graph_nodes: list[int] = []

    def enqueue(stream: int) -> None:
        """Enqueue the kernels, and collect the graph's node of each."""
        steps = ConcurrentCapture(stream)
        for step in one_by_one(nodes):
            assert isinstance(step, NativeRun)
            accesses: Sequence[Access] = (_ALL_MEMORY,)
            if encoded.is_small(step):
                accesses = encoded.accesses(step, addresses)
            steps.add(accesses, partial(encoded.launch, step, addresses, stream))
            graph_nodes.extend(capture_info(stream)[1])
        steps.join()

    graph = CapturedGraph(device().record(enqueue), encoded.plan.code)
    kernels = [KernelNodeParams.of(row) for row in rows]
    updates = list(zip(graph_nodes, kernels, strict=True))
    return encoded.plan.of(graph.launch(updates), kept=(graph, kernels))


class GraphCache:
    """Plans by the addresses of all buffers, for addresses that repeat.

    Freed memory is soon allocated again, so a program that repeats its calls repeats
    their addresses. A plan is recorded after ``patience`` runs at the same addresses.
    If there are more than the cache holds, most runs record nothing.
    """

    def __init__(self, make: Callable[[], Plan], patience: int) -> None:
        """``make`` records a plan at the current addresses.

        It is called once ``patience`` runs had the same addresses.
        """
        self._make = make
        self._patience = patience
        self._plans: dict[bytes, Plan] = {}
        self._seen: dict[bytes, int] = {}
        self._runs = 0  # since the last plan was recorded
        self.on_change: Callable[[dict[bytes, Plan]], None] = lambda _: None

    def find(self, addresses: bytes) -> Plan | None:
        """The plan for ``addresses``; None if these are launched directly."""
        self._runs += 1
        plan = self._plans.get(addresses)
        if plan is not None:
            return plan
        seen = self._seen.get(addresses, 0)
        if seen < self._patience:
            if len(self._seen) >= _MAX_SEEN:
                self._seen.clear()
            self._seen[addresses] = seen + 1
            return None
        if len(self._plans) >= _MAX_GRAPHS:
            if self._patience and self._runs < _BETWEEN_CAPTURES:
                return None
            # Its memory is freed before more is asked for.
            self._plans.pop(next(iter(self._plans)))
            self.on_change(self._plans)
        self._plans[addresses] = plan = self._make()
        self.on_change(self._plans)
        self._runs = 0
        return plan
