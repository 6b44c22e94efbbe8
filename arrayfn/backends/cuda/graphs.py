"""What repeated runs record, by the addresses of the buffers that they touch.

``segments`` cuts a plan's nodes where a step is in between that cannot be part of a
graph, because it needs the host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from arrayfn.backends.cuda.nodes import (
    BranchNode,
    HostCall,
    LoopNode,
    NativeRun,
    Node,
    blocks,
    calls_host,
    launches,
)
from arrayfn.backends.cuda.runner import Plan

_GRAPH_LAUNCHES: Final = 4  # that Python enqueues in the time that a graph takes
_MOST_LAUNCHES: Final = 1 << 14  # of a graph
_MOST_GRAPHS: Final = 64
_MOST_SEEN: Final = 256
_BETWEEN_CAPTURES: Final = 16  # runs: a capture takes as long as so many, about
_LAUNCHES_A_RUN: Final = 64  # each so many have a run more go before a capture


@dataclass(frozen=True)
class Segment:
    """Nodes that follow each other; ``by_graph`` if they are to be one.

    ``patience`` runs on the same memory go step by step before they are captured: more
    where a capture takes long, and none where enqueueing the nodes waits for the GPU,
    or takes longer than capturing them.
    """

    nodes: tuple[Node, ...]
    by_graph: bool
    patience: int = 0


def segments(nodes: Sequence[Node]) -> list[Segment]:
    """``nodes``, cut such that as much as is possible and worth it is by graphs.

    A whole plan is worth it in any case: one launch of a graph, and no Python.
    """
    made: list[Segment] = []
    groups = [(c, tuple(part)) for c, part in groupby(nodes, _is_capturable)]
    for capturable, part in groups:
        at_once = capturable and (_waits(part) or _repeats(part))
        count = launches(part)
        few = count < _GRAPH_LAUNCHES and not calls_host(part)
        worth = at_once or not few or len(groups) == 1
        by_graph = capturable and worth and count <= _MOST_LAUNCHES
        if made and not by_graph and not made[-1].by_graph:
            made[-1] = Segment((*made[-1].nodes, *part), by_graph=False)
        else:
            patience = 1 + min(count // _LAUNCHES_A_RUN, _BETWEEN_CAPTURES)
            made.append(Segment(part, by_graph, 0 if at_once else patience))
    return made


class Graphs:
    """Plans for the addresses that buffers have, which ``record`` makes.

    Memory that is freed is soon allocated again, so a program that repeats its calls
    repeats their addresses. They are recorded after ``patience`` runs. Where they are
    more than can be kept, not every run is spent on that.
    """

    def __init__(self, record: Callable[[], Plan], patience: int) -> None:
        self._record = record
        self._patience = patience
        self._known: dict[bytes, Plan] = {}
        self._seen: dict[bytes, int] = {}
        self._runs = 0  # since the last one was recorded
        self._publish: Callable[[dict[bytes, Plan]], None] = lambda _: None

    def listen(self, publish: Callable[[dict[bytes, Plan]], None]) -> None:
        """Have ``publish`` told the plans whenever others are known."""
        self._publish = publish

    def find(self, addresses: bytes) -> Plan | None:
        """The plan for ``addresses``; None, and steps are launched as they are."""
        self._runs += 1
        plan = self._known.get(addresses)
        if plan is not None:
            return plan
        seen = self._seen.get(addresses, 0)
        if seen < self._patience:
            if len(self._seen) >= _MOST_SEEN:
                self._seen.clear()
            self._seen[addresses] = seen + 1
            return None
        if len(self._known) >= _MOST_GRAPHS:
            if self._patience and self._runs < _BETWEEN_CAPTURES:
                return None
            # Its memory goes before more is asked for.
            self._known.pop(next(iter(self._known)))
            self._publish(self._known)
        self._known[addresses] = plan = self._record()
        self._publish(self._known)
        self._runs = 0
        return plan


def _is_capturable(node: Node) -> bool:
    if isinstance(node, HostCall):
        return node.capturable
    if isinstance(node, NativeRun):
        return True
    return all(_is_capturable(inner) for block in blocks(node) for inner in block)


def _waits(nodes: Iterable[Node]) -> bool:
    """Whether to enqueue ``nodes`` one by one waits for numbers from the GPU."""
    return any(
        isinstance(node, BranchNode)
        or (
            isinstance(node, LoopNode)
            and (node.loop.count is None or _waits(node.body))
        )
        for node in nodes
    )


def _repeats(nodes: Iterable[Node]) -> bool:
    """Whether a graph of ``nodes`` repeats some of a loop's turns."""
    return any(
        isinstance(node, LoopNode) and (node.window > 0 or _repeats(node.body))
        for node in nodes
    )
