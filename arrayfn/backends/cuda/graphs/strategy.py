"""Decides how a plan runs: direct launches, CUDA graphs or recorded launches.

Launching a graph takes the host half the time of launching one kernel, but a graph
holds fixed addresses, and a capture takes as long as some 16 runs. So a plan is cut
into *segments* at the steps that a graph cannot hold, and each segment gets a
``Strategy``:

=======================================  =======================  ======================
a segment                                at any addresses         at repeated addresses
=======================================  =======================  ======================
that a graph cannot hold, or of a few    direct launches          direct launches
launches, or of a few long kernels
of up to 32 ordinary kernels             graph, its kernel nodes  the same graph
                                         updated
that is a whole plan with small arrays,  graph on staging         the same graph
and has many launches or synchronizes    buffers
that is a whole plan with small arrays   graph on staging         a graph for each set
                                         buffers
all else                                 direct launches          a graph for each set
=======================================  =======================  ======================

A plan with collectives is one graph on staging buffers if its arrays are small. Else
its collectives are launched directly, with a graph for each set of addresses between
them (``dispatch.MemberDispatch``): all members of a mesh would have to capture a
collective in the same call, and their addresses repeat in different ones.

The first ``direct_runs`` runs are direct launches in any case. A graph for one set of
addresses that holds a few long kernels only is not launched: its kernels are launched
one by one, as they were recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from itertools import groupby
from typing import Final

from arrayfn.backends.cuda.encoded_plan import EncodedPlan
from arrayfn.backends.cuda.plan_nodes import (
    BranchNode,
    LoopNode,
    Node,
    count_launches,
    has_collectives,
    has_partly_unrolled_loops,
    host_calls,
    is_capturable,
    one_by_one,
    synchronizes,
)
from arrayfn.records import frozen

_MIN_GRAPH: Final = 4
"""Fewest launches for which a graph is faster than launches by Python."""
_MAX_GRAPH: Final = 1 << 14
"""Most launches that a graph holds."""
_MAX_UPDATED: Final = 32
"""Most kernel nodes of a graph whose parameters are updated before each launch."""
_MIN_STAGED: Final = 4
"""Fewest launches for which the copies to and from staging buffers pay."""
_MIN_STAGED_ONLY: Final = 64
"""From so many launches on, the time of copies to and from staging does not matter."""
_MAX_LONG: Final = 4
"""Most launches of a segment whose kernels may count as long."""
_LAUNCHES_PER_RUN: Final = 64
"""Each so many launches of a segment delay its capture by one run."""
_MAX_DELAY: Final = 16
"""Most such runs before a capture, which takes about as long as so many runs."""


class AnyAddress(Enum):
    """How a segment runs on addresses that no graph was captured for."""

    DIRECT = "direct launches"
    UPDATED = "one graph; the parameters of its kernel nodes are updated first"
    STAGED = "one graph on staging buffers; arguments and results are copied"


@frozen
class Strategy:
    """How one segment of a plan runs, chosen when the plan is loaded.

    Attributes:
        nodes: The segment: successive nodes of the plan.
        any_address: How calls at any addresses run, after ``direct_runs`` calls.
        by_address: Whether addresses that repeat get a capture of their own, after
            ``direct_runs`` calls with the same addresses.
        direct_runs: Runs without a graph before a capture: more if the capture takes
            longer; 0 if such a run would synchronize or take longer than the capture.
        max_recorded: A capture for one set of addresses that is a chain of at most so
            many launches is replayed launch by launch; all others as a graph.
    """

    nodes: tuple[Node, ...]
    any_address: AnyAddress = AnyAddress.DIRECT
    by_address: bool = False
    direct_runs: int = 0
    max_recorded: int = 0

    @property
    def captures(self) -> bool:
        """Whether a graph of the segment is captured at some time."""
        return self.by_address or self.any_address is not AnyAddress.DIRECT


def strategies(encoded: EncodedPlan, *, can_stage: bool) -> list[Strategy]:
    """Choose the strategies of a plan's segments, in the order of its nodes.

    ``can_stage`` says whether the plan's arrays are small enough for staging buffers. A
    plan with collectives is one segment. Other plans are cut where a graph can hold the
    nodes on one side only; then neighbouring segments of direct launches are joined.
    """
    if encoded.has_collectives:
        return [_strategy_of_members(encoded.nodes, can_stage)]
    groups = [(c, tuple(group)) for c, group in groupby(encoded.nodes, is_capturable)]
    is_whole = len(groups) == 1
    chosen: list[Strategy] = []
    for capturable, nodes in groups:
        strategy = Strategy(nodes)
        if capturable:
            strategy = _strategy(encoded, nodes, is_whole, can_stage and is_whole)
        if chosen and not chosen[-1].captures and not strategy.captures:
            chosen[-1] = Strategy((*chosen[-1].nodes, *nodes))
        else:
            chosen.append(strategy)
    return chosen


def _strategy(
    encoded: EncodedPlan, nodes: tuple[Node, ...], is_whole: bool, can_stage: bool
) -> Strategy:
    """Choose the strategy of ``nodes``, which a graph can hold.

    ``is_whole`` says whether they are the whole plan. A whole plan becomes a graph even
    if it has few launches, because a call then launches it without entering Python. A
    graph that avoids synchronization or very many launches is captured in the first
    call.
    """
    count = count_launches(nodes)
    at_once = synchronizes(nodes) or has_partly_unrolled_loops(nodes)
    few = count < _MIN_GRAPH and not any(host_calls(nodes))
    duration = _duration_of_long_kernels(encoded, nodes)
    if (
        count > _MAX_GRAPH
        or (few and not at_once and not is_whole)
        # Between two graphs the GPU idles, between two kernels it does not.
        or (encoded.is_native and duration)
    ):
        return Strategy(nodes)

    delay = 0 if at_once else _delay(count)
    kernels = encoded.kernels(nodes)
    if kernels is not None and len(kernels) <= _MAX_UPDATED:
        return Strategy(nodes, AnyAddress.UPDATED, direct_runs=delay)
    staged_only = can_stage and (at_once or count >= _MIN_STAGED_ONLY)
    if staged_only:
        return Strategy(nodes, AnyAddress.STAGED, direct_runs=delay)
    staged = can_stage and count >= _MIN_STAGED
    any_address = AnyAddress.STAGED if staged else AnyAddress.DIRECT
    return Strategy(
        nodes,
        any_address,
        by_address=True,
        direct_runs=delay,
        max_recorded=duration,
    )


def _strategy_of_members(nodes: tuple[Node, ...], can_stage: bool) -> Strategy:
    """Choose the strategy of a plan with collectives, whose nodes are ``nodes``.

    All members must choose alike, although their addresses differ: one graph on staging
    buffers, direct launches with graphs between collectives, or direct launches.
    """
    count = count_launches(nodes)
    if count > _MAX_GRAPH:
        return Strategy(nodes)
    if not can_stage or not all(map(is_capturable, nodes)):
        segments = groupby(nodes, lambda node: has_collectives([node]))
        if any(is_worth_a_graph(tuple(segment)) for _, segment in segments):
            return Strategy(nodes, by_address=True, direct_runs=_delay(count))
        return Strategy(nodes)
    return Strategy(nodes, AnyAddress.STAGED, direct_runs=_delay(count))


def is_worth_a_graph(nodes: Sequence[Node]) -> bool:
    """Whether a graph should launch ``nodes``, which lie between collectives.

    It should not if there are few launches, if some cannot be captured, or if there are
    collectives in loops and branches.
    """
    return (
        count_launches(nodes) >= _MIN_GRAPH
        and all(map(is_capturable, nodes))
        and not has_collectives(nodes)
    )


def _delay(count: int) -> int:
    """Return how many direct runs come before the capture of ``count`` launches."""
    return 1 + min(count // _LAUNCHES_PER_RUN, _MAX_DELAY)


def _duration_of_long_kernels(encoded: EncodedPlan, nodes: Sequence[Node]) -> int:
    """Return the summed duration of ``nodes`` if they are a few long kernels, else 0.

    It is a lower bound, in times of a kernel launch: so many launches are hidden by the
    time of the kernels. The result is 0 if a kernel is short, for loops and branches,
    and for more than ``_MAX_LONG`` launches.
    """
    if count_launches(nodes) > _MAX_LONG:
        return 0
    times = [
        0 if isinstance(step, (LoopNode, BranchNode)) else encoded.duration(step)
        for step in one_by_one(nodes)
    ]
    return sum(times) if all(times) else 0
