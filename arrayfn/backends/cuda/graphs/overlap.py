"""Launches of a plan with collectives, which overlap with other steps.

Collectives that follow each other closely are enqueued as one *group*: NCCL runs them
as one kernel. Between two groups is a *segment* of other steps. A group that large
steps can hide runs on a stream of its own. It begins when what was enqueued before it
has run, and the first later segment that accesses its arrays waits for it. All members
of a mesh decide alike, as they have the same plan.

In the first run each node is enqueued by all members together, once nothing runs on
their GPUs: work that is done for the first time may wait for a GPU (see
``EncodedPlan.meet``).
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

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
from arrayfn.backends.cuda.runner import Plan
from arrayfn.records import frozen

_MIN_GROUP_BYTES: Final = 1 << 23
"""Operands of a group that is always large enough: some 60 us over NVLink (H200)."""
_MIN_DELAY: Final = 8
"""Large steps by which a collective may always be delayed, to be in a larger group.

So many take about as long as a group of collectives, which they could have hidden.
"""


@frozen
class Launch:
    """A segment of the plan, or a group of collectives.

    Attributes:
        nodes: in the order in which they are enqueued.
        is_group: whether they are collectives.
        concurrent: whether they are enqueued on the stream of collectives.
        waits_for: the number of the concurrent group that must have ended, -1 for none.
    """

    nodes: tuple[Node, ...]
    is_group: bool = False
    concurrent: bool = False
    waits_for: int = -1


class Limits(NamedTuple):
    """How large a group of collectives may become.

    Attributes:
        bytes: of its operands, from which on it is complete.
        delay: large steps by which its first collective may be delayed.
    """

    bytes: int
    delay: int


class OverlappingLaunches:
    """Enqueues ``nodes`` of a plan with collectives, each by ``walk``."""

    def __init__(self, encoded: EncodedPlan, nodes: Sequence[Node], walk: Walk) -> None:
        self._gpu = device()
        self._encoded = encoded
        self._nodes = nodes
        self._walk = walk
        self._launches: list[Launch] | None = None  # None before the first run
        self._events: list[tuple[ctypes.c_void_p, ctypes.c_void_p]] = []
        """The events before and after each concurrent group."""

    # ``is_finalizing`` is a default argument because the module's names may be gone
    # when the interpreter ends.
    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing():
            for event in (event for pair in self._events for event in pair):
                self._gpu.destroy_event(event)

    @property
    def segments(self) -> list[tuple[Node, ...]]:
        """The nodes of each segment; none before the first run."""
        launches = self._launches or ()
        return [launch.nodes for launch in launches if not launch.is_group]

    def run(self, stream: int, graphs: Sequence[Plan | None] = ()) -> None:
        """Enqueue the nodes on ``stream``.

        ``graphs`` has, for each segment, what launches it instead of its nodes. If it
        is empty, all nodes are launched.
        """
        if self._launches is None:
            self._run_together(stream)
            return
        gpu, events, captured = self._gpu, iter(self._events), iter(graphs)
        for launch in self._launches:
            if launch.waits_for >= 0:  # the number of a concurrent group
                _, end = self._events[launch.waits_for]
                gpu.wait_for_event(stream, end)
            if launch.concurrent:
                before, after = next(events)
                collectives = collective_stream()
                gpu.record(before, stream)
                gpu.wait_for_event(collectives, before)
                self._enqueue_group(launch.nodes, collectives)
                gpu.record(after, collectives)
            elif launch.is_group:
                self._enqueue_group(launch.nodes, stream)
            else:
                graph = next(captured, None)
                if graph is not None:
                    self._encoded.run(graph, self._walk.addresses)
                    continue
                for node in launch.nodes:
                    self._walk.enqueue(node, stream)
        if self._events:
            _, last_end = self._events[-1]
            gpu.wait_for_event(stream, last_end)

    def _run_together(self, stream: int) -> None:
        """Enqueue each node when all members are here; then decide what overlaps."""
        for node in self._nodes:
            self._encoded.meet()
            self._walk.enqueue(node, stream)
        self._encoded.meet()
        addresses = self._walk.addresses
        self._launches = plan_launches(self._encoded, self._nodes, addresses)
        count = sum(launch.concurrent for launch in self._launches)
        new = self._gpu.new_event
        self._events = [(new(), new()) for _ in range(count)]

    def _enqueue_group(self, nodes: Sequence[Node], stream: int) -> None:
        """Enqueue collectives on ``stream``, as one."""
        if len(nodes) == 1:
            self._walk.enqueue(nodes[0], stream)
            return
        with self._encoded.grouped():
            for node in nodes:
                self._walk.enqueue(node, stream)


@per_device
def collective_stream() -> int:
    """The GPU's stream for collectives that run concurrently with other steps."""
    return int(device().new_stream().value or 0)


def plan_launches(
    encoded: EncodedPlan, nodes: Sequence[Node], addresses: Any
) -> list[Launch]:
    """Return the segments and groups of ``nodes``, in the order of enqueuing.

    ``addresses`` are those of the buffers in one call: which of them overlap is the
    same in all calls.
    """
    steps = list(one_by_one(nodes))
    accesses = [_accesses(encoded, step, addresses) for step in steps]
    is_large = [_is_large(encoded, step) for step in steps]
    order = _grouped(steps, accesses, is_large)
    # For each group of collectives, by its place in ``order``: the place of the first
    # later step that accesses its arrays.
    ends = {
        k: next(
            (
                j
                for j in range(k + 1, len(order))
                if not _is_collective(steps[order[j][0]])
                and any(conflict(accesses[n], accesses[order[j][0]]) for n in group)
            ),
            len(order),
        )
        for k, group in enumerate(order)
        if _is_collective(steps[group[0]])
    }
    made: list[Launch] = []
    running: dict[int, int] = {}
    """The ends of concurrent groups that nobody has waited for, by their numbers."""
    count = 0
    for k, group in enumerate(order):
        members = tuple(steps[n] for n in group)
        if k in ends:
            between = order[k + 1 : ends[k]]
            if running or any(is_large[n] for (n, *_) in between):
                running[count] = ends[k]
                count += 1
                made.append(Launch(members, is_group=True, concurrent=True))
            else:
                made.append(Launch(members, is_group=True))
            continue
        awaited = max((n for n, end in running.items() if end == k), default=-1)
        # Groups end in order.
        running = {n: end for n, end in running.items() if n > awaited}
        _append(made, members[0], awaited)
    return made


def _grouped(
    steps: Sequence[Node],
    accesses: Sequence[Sequence[Access]],
    is_large: Sequence[bool],
) -> list[tuple[int, ...]]:
    """Return the numbers of ``steps`` in the order in which they are enqueued.

    A tuple is a group of collectives, at the place of the last of them, or a single
    other step. ``accesses`` and ``is_large`` belong to the steps by number.

    NCCL needs less time and fewer multiprocessors for larger groups, but nothing hides
    the last one. So a group gets half of the bytes that come after it, and may delay
    its first collective by half of the large steps.
    """
    order: list[tuple[int, ...]] = []
    group: list[int] = []
    collectives = [k for k, step in enumerate(steps) if _is_collective(step)]
    bytes_left = _bytes_read(accesses, collectives)
    for k, step in enumerate(steps):
        if not _is_collective(step):
            order.append((k,))
            continue
        group.append(k)
        bytes_left -= _bytes_read(accesses, [k])
        limits = Limits(
            max(_MIN_GROUP_BYTES, bytes_left // 2),
            max(_MIN_DELAY, sum(is_large[k:]) // 2),
        )
        if not _continues(group, limits, steps, accesses, is_large):
            order.append(tuple(group))
            group = []
    return order


def _continues(
    group: Sequence[int],
    limits: Limits,
    steps: Sequence[Node],
    accesses: Sequence[Sequence[Access]],
    is_large: Sequence[bool],
) -> bool:
    """Whether the next collective after ``group`` is in the group too.

    It is unless the group is large enough, or would begin too late: after a step that
    accesses its arrays, or after too many large steps.
    """
    if _bytes_read(accesses, group) >= limits.bytes:
        return False
    large_steps = sum(is_large[group[0] : group[-1]])
    for k in range(group[-1] + 1, len(steps)):
        if large_steps > limits.delay or any(_depend(accesses, n, k) for n in group):
            return False
        if _is_collective(steps[k]):
            return True
        large_steps += is_large[k]
    return False


def _bytes_read(accesses: Sequence[Sequence[Access]], steps: Sequence[int]) -> int:
    """Return the bytes that ``steps``, given by number, read from their operands.

    ``accesses`` has the ranges of addresses of each step.
    """
    return sum(
        end - begin for k in steps for begin, end, writes in accesses[k] if not writes
    )


def _depend(accesses: Sequence[Sequence[Access]], first: int, second: int) -> bool:
    """Whether two steps access the same memory, and one of them writes it.

    What begins below 0 is no memory: it makes collectives conflict with each other.
    """
    memory = [[a for a in accesses[k] if a[0] >= 0] for k in (first, second)]
    return conflict(*memory)


def _append(launches: list[Launch], step: Node, waits_for: int) -> None:
    """Append ``step``, to the segment before it if it waits for no group."""
    last = launches[-1] if launches else None
    if last is None or last.is_group or waits_for >= 0:
        launches.append(Launch((step,), waits_for=waits_for))
        return
    *before, end = last.nodes
    if (
        isinstance(end, NativeRun)
        and isinstance(step, NativeRun)
        and end.first + end.count == step.first
    ):
        nodes = (*before, NativeRun(end.first, end.count + step.count))
    else:
        nodes = (*last.nodes, step)
    launches[-1] = Launch(nodes, waits_for=last.waits_for)


def _is_collective(step: Node) -> bool:
    return isinstance(step, HostCall) and step.accesses.is_collective


def _is_large(encoded: EncodedPlan, step: Node) -> bool:
    """Whether a collective can be hidden by ``step``."""
    if isinstance(step, (NativeRun, HostCall)):
        return not _is_collective(step) and not encoded.is_small(step)
    return True


def _accesses(encoded: EncodedPlan, step: Node, addresses: Any) -> tuple[Access, ...]:
    """Return the memory that ``step`` accesses; all of it for a loop or a branch."""
    if isinstance(step, (NativeRun, HostCall)):
        return encoded.accesses(step, addresses)
    return (ALL_MEMORY,)
