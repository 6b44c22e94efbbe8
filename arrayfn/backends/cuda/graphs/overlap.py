"""Direct launches of a plan whose collectives overlap with other steps.

A collective that large steps can hide runs on a stream of its own. It begins when the
work enqueued before it has run, and the first later step that accesses its arrays waits
for it. All members of a mesh decide alike, as they have the same plan.

In the first run each node is enqueued by all members together, once nothing runs on
their GPUs: work that is done for the first time may wait for a GPU (see
``EncodedPlan.meet``).
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from arrayfn.backends.cuda.driver import device, per_device
from arrayfn.backends.cuda.encoded_plan import EncodedPlan
from arrayfn.backends.cuda.graphs.capture import conflict
from arrayfn.backends.cuda.graphs.walk import Walk
from arrayfn.backends.cuda.plan_nodes import (
    ALL_MEMORY,
    Access,
    HostCall,
    NativeRun,
    Node,
    one_by_one,
)


@dataclass(frozen=True)
class Launch:
    """A node, and how it is enqueued.

    ``concurrent`` says whether it goes to the stream of collectives; ``waits_for`` is
    the number of the collective on that stream that it waits for, -1 for none.
    """

    node: Node
    waits_for: int = -1
    concurrent: bool = False


class OverlappingLaunches:
    """Enqueues ``nodes`` of a plan with collectives, each by ``walk``."""

    def __init__(self, encoded: EncodedPlan, nodes: Sequence[Node], walk: Walk) -> None:
        self._gpu = device()
        self._encoded = encoded
        self._nodes = nodes
        self._walk = walk
        self._launches: list[Launch] | None = None  # None before the first run
        self._events: list[tuple[ctypes.c_void_p, ctypes.c_void_p]] = []
        """The events before and after each concurrent collective."""

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing():
            for event in (event for pair in self._events for event in pair):
                self._gpu.destroy_event(event)

    def run(self, stream: int) -> None:
        """Enqueue the nodes on ``stream``."""
        if self._launches is None:
            for node in self._nodes:
                self._encoded.meet()
                self._walk.enqueue(node, stream)
            self._encoded.meet()
            addresses = self._walk.addresses
            self._launches = plan_launches(self._encoded, self._nodes, addresses)
            count = sum(launch.concurrent for launch in self._launches)
            new = self._gpu.new_event
            self._events = [(new(), new()) for _ in range(count)]
            return

        gpu, events = self._gpu, iter(self._events)
        for launch in self._launches:
            if launch.waits_for >= 0:
                gpu.wait_for_event(stream, self._events[launch.waits_for][1])
            if launch.concurrent:
                before, after = next(events)
                collectives = collective_stream()
                gpu.record(before, stream)
                gpu.wait_for_event(collectives, before)
                self._walk.enqueue(launch.node, collectives)
                gpu.record(after, collectives)
            else:
                self._walk.enqueue(launch.node, stream)
        if self._events:
            gpu.wait_for_event(stream, self._events[-1][1])


@per_device
def collective_stream() -> int:
    """The GPU's stream for collectives that run concurrently with other steps."""
    return int(device().new_stream().value or 0)


def plan_launches(
    encoded: EncodedPlan, nodes: Sequence[Node], addresses: Any
) -> list[Launch]:
    """Decide how each of ``nodes`` is enqueued; successive steps become one run.

    ``addresses`` are those of the buffers in one call: which of them overlap is the
    same in all calls.
    """
    steps = list(one_by_one(nodes))
    accesses = [_accesses(encoded, step, addresses) for step in steps]
    collectives = [k for k, step in enumerate(steps) if _is_collective(step)]
    ends = {
        k: next(
            (
                j
                for j in range(k + 1, len(steps))
                if not _is_collective(steps[j]) and conflict(accesses[k], accesses[j])
            ),
            len(steps),
        )
        for k in collectives
    }

    def is_hidden(k: int) -> bool:
        """Whether large steps run between collective ``k`` and who waits for it."""
        return any(
            not isinstance(step, (NativeRun, HostCall)) or not encoded.is_small(step)
            for step in steps[k + 1 : ends[k]]
        )

    made: list[Launch] = []
    numbers: dict[int, int] = {}  # of the concurrent collectives
    running: dict[int, int] = {}  # their ends, of those that nobody has waited for
    for k, step in enumerate(steps):
        if k in ends and (running or is_hidden(k)):
            numbers[k] = len(numbers)
            running[k] = ends[k]
            made.append(Launch(step, concurrent=True))
            continue
        awaited = max((c for c, end in running.items() if end == k), default=-1)
        # Collectives end in order.
        running = {c: end for c, end in running.items() if c > awaited}
        _append(made, step, numbers.get(awaited, -1))
    return made


def _append(launches: list[Launch], step: Node, waits_for: int) -> None:
    """Append ``step``, merged with the run of native steps before it if possible."""
    last = launches[-1].node if launches else None
    if (
        waits_for < 0
        and isinstance(last, NativeRun)
        and isinstance(step, NativeRun)
        and last.first + last.count == step.first
    ):
        joined = NativeRun(last.first, last.count + step.count)
        launches[-1] = Launch(joined, launches[-1].waits_for)
    else:
        launches.append(Launch(step, waits_for))


def _is_collective(step: Node) -> bool:
    return isinstance(step, HostCall) and step.accesses.is_collective


def _accesses(encoded: EncodedPlan, step: Node, addresses: Any) -> tuple[Access, ...]:
    """The memory that ``step`` accesses; all of it for a loop or a branch."""
    if isinstance(step, (NativeRun, HostCall)):
        return encoded.accesses(step, addresses)
    return (ALL_MEMORY,)
