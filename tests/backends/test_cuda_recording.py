"""Recorded launches: from a driver's graph nodes, and on a GPU."""

import ctypes
from types import SimpleNamespace

import numpy as np
import pytest

import arrayfn as af
from arrayfn import dtypes, nn
from arrayfn.backends.cuda import missing_here, runner
from arrayfn.backends.cuda.device_array import device_put
from arrayfn.backends.cuda.driver import device
from arrayfn.backends.cuda.graphs import dispatch, replay
from arrayfn.backends.cuda.runner import LaunchConfig, Plan, StepKind

needs_gpu = pytest.mark.skipif(bool(missing_here()), reason=missing_here())

STREAM, GRAPH, LAUNCHED = 6, 70, 77
KERNEL, MEMCPY, MEMSET = replay.KERNEL_NODE, 1, replay.MEMSET_NODE
CLUSTER = 4


class Card:
    """A driver with one graph: its ``nodes`` and which come after each.

    A node is a kernel, number 1000 and on, of two blocks by clusters; a fill of 96
    bytes at 500 with its ``value``; or a copy. An edge may be ``early``.
    """

    def __init__(self, nodes, after=None, *, early=False, value=0):
        self.nodes = nodes
        self.after = after or {k: [k + 1] for k in range(len(nodes) - 1)}
        self.early, self.value = early, value
        self.stream = STREAM
        self.library = SimpleNamespace(
            cuGraphDestroy=self._destroy,
            cuGraphGetRootNodes=self._roots,
            cuGraphNodeGetDependentNodes_v2=self._following,
            cuGraphNodeGetType=self._kind,
            cuGraphKernelNodeGetParams_v2=self._kernel,
            cuGraphKernelNodeGetAttribute=self._attribute,
            cuGraphMemsetNodeGetParams=self._memset,
        )
        self.destroyed = []

    def capture(self, enqueue):
        enqueue(STREAM)
        return GRAPH

    def instantiate(self, graph):
        return LAUNCHED

    def check(self, status, where):
        assert not status

    def destroy_graph(self, launched):
        self.destroyed.append(launched)

    def _destroy(self, graph):
        self.destroyed.append(graph.value)

    def _give(self, found, nodes, count):
        room = count._obj.value
        nodes[:] = [n + 1 for n in found[:room]] + [None] * (room - len(found))
        count._obj.value = min(room, len(found))
        return 0

    def _roots(self, graph, nodes, count):
        assert graph.value == GRAPH
        later = {k for following in self.after.values() for k in following}
        roots = [k for k in range(len(self.nodes)) if k not in later]
        return self._give(roots, nodes, count)

    def _following(self, node, nodes, edges, count):
        edges[0] = 1 if self.early else 0
        return self._give(self.after.get(node.value - 1, []), nodes, count)

    def _kind(self, node, kind):
        kind._obj.value = self.nodes[node.value - 1]
        return 0

    def _kernel(self, node, kernel):
        made = kernel._obj
        made.function, made.parameters = 1000 + node.value - 1, 2000 + node.value - 1
        made.blocks[:], made.threads[:], made.shared = (2, 3, 4), (32, 5, 1), 7
        return 0

    def _attribute(self, node, number, value):
        if number == CLUSTER:
            value._obj[0] = 2
        return 0

    def _memset(self, node, filled):
        made = filled._obj
        made.target, made.value, made.height = 500, self.value, 1
        made.width, made.element_bytes = 24, 4
        return 0


def words_at(address, count):
    return list((ctypes.c_int64 * count).from_address(address))


@pytest.fixture
def recorded(monkeypatch):
    """Record the graph of a card, as steps if it can be: the plan."""

    def record(card, most_steps=8):
        monkeypatch.setattr(replay, "device", lambda: card)
        seen = []
        plan = Plan({}, [(1, 2, 3)], [])
        made = replay.graph_or_launches(plan, seen.append, most_steps)
        assert seen == [STREAM]
        assert made.launches.slot_count == 0
        return made

    return record


def test_kernels_and_fills_are_launched_as_they_were_recorded(recorded):
    card = Card([MEMSET, KERNEL, KERNEL])
    plan = recorded(card)
    fill, *kernels = plan.steps
    assert fill.kind == StepKind.ZEROS
    assert (words_at(fill.target, 1), fill.nbytes) == ([500], 96)
    for number, step in enumerate(kernels, 1):
        assert step.kind == StepKind.RECORDED
        assert (step.function, step.parameters) == (1000 + number, 2000 + number)
        config = LaunchConfig.from_address(step.config)
        sizes = (*config.blocks, *config.threads, config.shared)
        assert sizes == (2, 3, 4, 32, 5, 1, 7)
        assert (config.stream, config.attribute_count) == (STREAM, 1)
        assert words_at(config.attributes, 3) == [CLUSTER, 2, 0]
    # What was recorded lives as long as the plan.
    assert card.destroyed == []
    del plan
    assert card.destroyed == [GRAPH]


@pytest.mark.parametrize(
    "card",
    [
        Card([]),
        Card([KERNEL, MEMCPY]),
        Card([MEMSET, KERNEL], value=1),
        Card([KERNEL] * 3, {0: [1, 2]}),
        Card([KERNEL] * 3, {0: [2], 1: [2]}),
        Card([KERNEL] * 2, early=True),
        Card([KERNEL] * 9),
    ],
    ids=["nothing", "copy", "ones", "fork", "two roots", "early", "many"],
)
def test_whatever_else_was_recorded_is_launched_as_a_graph(recorded, card):
    card.destroyed.clear()
    plan = recorded(card)
    (step,) = plan.steps
    assert (step.kind, step.graph) == (StepKind.GRAPH, LAUNCHED)
    del plan
    assert card.destroyed == [LAUNCHED, GRAPH]


def test_a_graph_is_one_where_that_is_asked_for(recorded):
    (step,) = recorded(Card([KERNEL]), 0).steps
    assert (step.kind, step.graph) == (StepKind.GRAPH, LAUNCHED)


@pytest.mark.cuda
@needs_gpu
def test_what_a_stream_recorded_runs_again():
    n = 1 << 20
    x = device_put(np.arange(n, dtype=np.float32))
    y = device_put(np.ones(n, np.float32))
    gpu = device()

    def enqueue(stream):
        gpu.library.cuMemsetD32Async(
            ctypes.c_uint64(y.pointer), 0, ctypes.c_size_t(n), ctypes.c_void_p(stream)
        )

    given = {
        "context": gpu.context,
        "stream": gpu.stream,
        **{field: gpu.address(name) for field, name in runner.FUNCTIONS.items()},
    }
    plan = replay.graph_or_launches(Plan(given, [], []), enqueue, 1)
    assert plan.steps[0].kind == StepKind.ZEROS
    assert runner.runner()(plan.address, 0) == 0
    np.testing.assert_array_equal(np.asarray(y), 0)
    np.testing.assert_array_equal(np.asarray(x)[-2:], [n - 2, n - 1])


@pytest.mark.cuda
@needs_gpu
@pytest.mark.parametrize("causal", [False, True])
def test_large_attention_by_cudnn_is_no_graph(monkeypatch, causal):
    pytest.importorskip("cudnn")
    plans = []

    def record(plan, enqueue, max_launches):
        plans.append(replay.graph_or_launches(plan, enqueue, max_launches))
        return plans[-1]

    monkeypatch.setattr(dispatch, "graph_or_launches", record)
    rng = np.random.default_rng(0)
    shape = 4, 1024, 8, 64
    arrays = [rng.standard_normal(shape, np.float32) for _ in range(3)]
    given = [device_put(x.astype(dtypes.bfloat16)) for x in arrays]
    attend = af.jit(
        lambda *a: nn.dot_product_attention(*a, is_causal=causal), device="cuda"
    )
    first = np.asarray(attend(*given))
    for _ in range(6):
        assert (np.asarray(attend(*given)) == first).all()
    kinds = {step.kind for plan in plans for step in plan.steps}
    assert StepKind.RECORDED in kinds
    assert kinds <= {StepKind.RECORDED, StepKind.ZEROS}
