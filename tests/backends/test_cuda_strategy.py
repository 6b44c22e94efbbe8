"""Which strategy each segment of a plan gets."""

from types import SimpleNamespace

import pytest

from arrayfn.backends.cuda.graphs.strategy import AnyAddress, Strategy, strategies
from arrayfn.backends.cuda.plan_nodes import (
    HostCall,
    LoopNode,
    NativeRun,
    StepAccesses,
)
from arrayfn.lowering.plan import Loop

RUN, HOST = NativeRun(0, 1), HostCall(print, (), False, StepAccesses((), ()))
SUM = HostCall(print, (), True, StepAccesses((), (), is_collective=True))
SOLVE = HostCall(print, (), True, StepAccesses((), (), duration=5))
DIRECT, UPDATED, STAGED = AnyAddress


def chosen(*nodes, ordinary=(), long=0, can_stage=False):
    """The strategies of a plan of ``nodes``; ``ordinary`` are kernels only.

    The first ``long`` steps of native runs are long.
    """
    encoded = SimpleNamespace(
        nodes=nodes,
        has_collectives=SUM in nodes,
        is_native=len(nodes) == 1 and isinstance(nodes[0], NativeRun),
        kernels=lambda nodes: range(nodes[0].count) if nodes in ordinary else None,
        duration=lambda step: (
            step.accesses.duration
            if isinstance(step, HostCall)
            else (step.first < long) * (step.first + 1)
        ),
    )
    return strategies(encoded, can_stage=can_stage)


def test_graphs_end_at_steps_that_need_the_host():
    repeat = LoopNode(Loop((), None, 0), (RUN,))
    by_host = LoopNode(Loop((), None, 0), (RUN, HOST))
    many = NativeRun(1, 9)
    assert chosen(RUN, repeat, HOST, RUN, by_host, many) == [
        Strategy((RUN, repeat), DIRECT, True, 0),
        Strategy((HOST, RUN, by_host)),
        Strategy((many,), DIRECT, True, 1),
    ]


def test_how_a_plan_with_collectives_runs_does_not_depend_on_addresses():
    many = NativeRun(1, 70)
    repeat = LoopNode(Loop((), None, 0), (RUN,))
    few = (RUN, HOST, SUM, LoopNode(Loop((), None, 0), (SUM, RUN)))
    for nodes in ((SUM,), few):
        assert chosen(*nodes) == [Strategy(nodes)]
    # Between the collectives there are graphs.
    for nodes in ((RUN, SUM, many), (RUN, SUM, many, repeat)):
        (have,) = chosen(*nodes)
        assert have == Strategy(nodes, by_address=True, direct_runs=2)
    assert chosen(SUM, can_stage=True) == [Strategy((SUM,), STAGED, False, 1)]
    nodes = (RUN, SUM, many)
    assert chosen(*nodes, can_stage=True) == [Strategy(nodes, STAGED, False, 2)]
    nodes = (RUN, SUM, HOST)
    assert chosen(*nodes, can_stage=True) == [Strategy(nodes)]


@pytest.mark.parametrize(
    ("count", "any_address", "delay"),
    [(1, UPDATED, 1), (32, UPDATED, 1), (33, DIRECT, 1), (640, DIRECT, 11)],
)
def test_few_ordinary_kernels_are_one_updated_graph(count, any_address, delay):
    nodes = (NativeRun(0, count),)
    by_address = any_address is DIRECT
    assert chosen(*nodes, ordinary=(nodes,)) == [
        Strategy(nodes, any_address, by_address, delay)
    ]


@pytest.mark.parametrize(
    ("count", "any_address", "by_address", "delay"),
    [(3, DIRECT, True, 1), (4, STAGED, True, 1), (64, STAGED, False, 2)],
)
def test_small_arrays_are_staged(count, any_address, by_address, delay):
    nodes = (NativeRun(0, count),)
    assert chosen(*nodes, can_stage=True) == [
        Strategy(nodes, any_address, by_address, delay)
    ]


def test_a_part_of_a_plan_is_never_staged():
    many = NativeRun(0, 100)
    first, _ = chosen(many, HOST, can_stage=True)
    assert first == Strategy((many,), DIRECT, True, 2)


def test_long_kernels_are_launched_directly_and_long_library_calls_recorded():
    nodes = (NativeRun(0, 2),)
    assert chosen(*nodes, ordinary=(nodes,), long=2) == [Strategy(nodes)]
    assert chosen(*nodes, ordinary=(nodes,), long=1) == [
        Strategy(nodes, UPDATED, False, 1)
    ]
    assert chosen(RUN, SOLVE, long=1) == [
        Strategy((RUN, SOLVE), DIRECT, True, 1, max_recorded=6)
    ]
    assert chosen(NativeRun(0, 4), SOLVE, long=4)[0].max_recorded == 0


def test_what_is_too_long_for_a_graph_is_launched_directly():
    nodes = (NativeRun(0, (1 << 14) + 1),)
    assert chosen(*nodes) == [Strategy(nodes)]
