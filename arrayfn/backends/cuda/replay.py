"""How a part of a plan is enqueued: by a graph, or else step by step.

A graph is launched in half the time that one kernel takes, but is for the addresses for
which it was captured. Addresses that come again get their own (``Graphs``); for others
there may be one on memory of its own (``Staging``).
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from arrayfn.backends.cuda.call_entry import ALWAYS, CallEntry
from arrayfn.backends.cuda.conditional import conditionals
from arrayfn.backends.cuda.driver import device
from arrayfn.backends.cuda.graphs import Graphs, Segment
from arrayfn.backends.cuda.image import Image
from arrayfn.backends.cuda.nodes import launches
from arrayfn.backends.cuda.staging import Staging
from arrayfn.backends.cuda.walk import CapturingWalk, Walk

_LONG: Final = 64  # launches, beside which two copies are nothing
_SHORT: Final = 4  # launches, which take no longer than two copies and a graph
_MOST_BETWEEN: Final = 1 << 10


class Replay:
    """A part of a plan on buffers at ``addresses``, which change from call to call.

    ``staging`` is memory for a graph of it, if it is the whole plan and small enough.
    """

    def __init__(
        self, image: Image, addresses: Any, segment: Segment, staging: Staging | None
    ) -> None:
        self._image = image
        self._nodes = segment.nodes
        self._walk = Walk(image, addresses)
        self._graphs: Graphs | None = None
        self._entry: CallEntry | None = None
        self._staging: Staging | None = None
        # What the native runner needs to run it, whatever the addresses are.
        self._plan = image.header.copy() if image.is_native else None
        self._runs = 0
        self._staged = False
        self._visits = 0  # of the entry's calls, since it last got a graph
        if not segment.by_graph:
            return
        count = launches(segment.nodes)
        self._at_once = not segment.patience
        is_long = self._at_once or count >= _LONG
        if is_long or count >= _SHORT:
            self._staging = staging
        if self._staging is None or not is_long:
            capture = partial(self._enqueue, addresses)
            self._graphs = Graphs(capture, segment.patience)

    def inform(self, entry: CallEntry) -> None:
        """Tell ``entry``, from now on, what it may launch by itself."""
        self._entry = entry
        if self._graphs is not None:
            self._graphs.listen(self._publish)

    def enqueue(self, addresses: bytes) -> None:
        """Enqueue it for the ``addresses`` that the buffers have now."""
        graph = self._graphs.find(addresses) if self._graphs is not None else 0
        if graph:
            device().launch(graph)
        elif self._staging is not None and self._is_staged(self._staging):
            self._image.run(self._plan, self._walk.addresses)
        else:
            self._walk.run(self._nodes, device().stream)
        if self._entry is not None and self._plan is not None:
            # What comes often is seen soon, and what doesn't costs little.
            self._visits = min(self._visits + 1, _MOST_BETWEEN)
            calls = ALWAYS if self._graphs is None else self._visits
            self._entry.run(self._plan, calls)

    def _publish(self, graphs: dict[bytes, int]) -> None:
        assert self._entry is not None
        self._visits = 0
        self._entry.publish(graphs)

    def _is_staged(self, staging: Staging) -> bool:
        """Whether the plan is the graph on memory of its own, captured here if not."""
        self._runs += 1
        if not self._staged and (self._at_once or self._runs > 1):
            self._plan = staging.capture(
                self._walk.addresses, self._image.header, self._enqueue
            )
            self._staged = True
        return self._staged

    def _enqueue(self, addresses: Any, stream: int) -> None:
        """Enqueue the nodes on a stream that is being captured."""
        CapturingWalk(self._image, addresses, conditionals()).run(self._nodes, stream)
