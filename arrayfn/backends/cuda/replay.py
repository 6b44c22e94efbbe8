"""How a part of a plan is enqueued: by a graph, or else step by step.

A graph is launched in half the time that one kernel takes, but is for the addresses for
which it was captured. One of a few kernels is told others before each launch
(``retargeted``). Else addresses that come again get their own (``Graphs``); for others
there may be one on memory of its own (``Staging``). A few large steps are launched one
by one: the next one begins while one ends, and between two graphs it does not. Kernels
are as they are, and what a library enqueues is as it was ``recorded``.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from arrayfn.backends.cuda import retargeting
from arrayfn.backends.cuda.call_entry import ALWAYS, CallEntry
from arrayfn.backends.cuda.conditional import conditionals
from arrayfn.backends.cuda.driver import device
from arrayfn.backends.cuda.graphs import Graphs, Segment
from arrayfn.backends.cuda.image import Image
from arrayfn.backends.cuda.nodes import BranchNode, LoopNode, launches, one_by_one
from arrayfn.backends.cuda.recording import recorded
from arrayfn.backends.cuda.retargeting import retargeted
from arrayfn.backends.cuda.runner import Plan
from arrayfn.backends.cuda.staging import Staging
from arrayfn.backends.cuda.walk import CapturingWalk, Walk

_LONG: Final = 64  # launches, beside which two copies are nothing
_FEW: Final = 4  # launches, as which a plan of large steps goes
_SHORT: Final = 4  # launches: fewer take no longer than copies and a graph
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
        self._staging: Staging | None = None
        self._entry: CallEntry | None = None
        # What the native runner runs it by, whatever the addresses are.
        self._plan = image.plan if image.is_native else None
        self._runs = 0
        self._visits = 0  # of the entry's calls, since it last got a graph
        self._is_retargeted = False
        self._patience = segment.patience
        lasts = _lasts(image, segment)
        self._is_plain = image.is_native and lasts > 0
        if not segment.by_graph or self._is_plain:
            return
        count = launches(segment.nodes)
        self._is_retargeted = retargeting.is_possible(image, segment.nodes)
        is_long = not segment.patience or count >= _LONG
        if staging is not None and (is_long or count >= _SHORT):
            self._staging = staging
        if not self._is_retargeted and not (is_long and self._staging):
            enqueue = partial(self._enqueue, addresses)
            record = partial(recorded, image.plan, enqueue, most_steps=lasts)
            self._graphs = Graphs(record, segment.patience)

    @property
    def _is_captured(self) -> bool:
        """Whether there is a graph that serves all addresses."""
        return self._plan is not None and self._plan is not self._image.plan

    def inform(self, entry: CallEntry) -> None:
        """Tell ``entry``, from now on, what it may launch by itself."""
        self._entry = entry
        if self._graphs is not None:
            self._graphs.listen(self._publish)

    def enqueue(self, addresses: bytes) -> None:
        """Enqueue it for the ``addresses`` that the buffers have now."""
        self._runs += 1
        plan = self._graphs.find(addresses) if self._graphs is not None else None
        if plan is None:
            if not self._is_captured and self._runs > self._patience:
                self._capture()
            plan = self._plan
        if plan is not None:
            self._image.run(plan, self._walk.addresses)
        else:
            self._walk.run(self._nodes, device().stream)
        self._tell()

    def _tell(self) -> None:
        """Say what the entry may run, and how often before this is asked again.

        What comes often is then seen soon, and what doesn't costs little.
        """
        if self._entry is not None and self._plan is not None:
            self._visits = min(self._visits + 1, _MOST_BETWEEN)
            is_captured = self._graphs is None and self._is_captured
            is_settled = self._is_plain or is_captured
            self._entry.run(self._plan, ALWAYS if is_settled else self._visits)

    def _publish(self, plans: dict[bytes, Plan]) -> None:
        assert self._entry is not None
        self._visits = 0
        self._entry.publish(plans)

    def _capture(self) -> None:
        """Make a graph that serves all addresses, if there is to be one."""
        addresses = self._walk.addresses
        if self._is_retargeted:
            self._plan = retargeted(self._image, self._nodes, addresses)
        elif self._staging is not None:
            plan = self._image.plan
            self._plan = self._staging.capture(addresses, plan, self._enqueue)

    def _enqueue(self, addresses: Any, stream: int) -> None:
        """Enqueue the nodes on a stream that is being captured."""
        CapturingWalk(self._image, addresses, conditionals()).run(self._nodes, stream)


def _lasts(image: Image, segment: Segment) -> int:
    """How many launches a few large steps take as long as; 0 where they are others."""
    if launches(segment.nodes) > _FEW:
        return 0
    times = [
        0 if isinstance(step, (LoopNode, BranchNode)) else image.lasts(step)
        for step in one_by_one(segment.nodes)
    ]
    return sum(times) if all(times) else 0
