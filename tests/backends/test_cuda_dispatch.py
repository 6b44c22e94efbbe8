"""How a segment of a plan runs, and what its native entry may run."""

import ctypes

import pytest

from arrayfn.backends.cuda.call_entry import ALWAYS
from arrayfn.backends.cuda.graphs import dispatch
from arrayfn.backends.cuda.graphs.dispatch import Segment, SegmentDispatch
from arrayfn.backends.cuda.plan_nodes import NativeRun


class Card:
    """Notes what is captured and launched."""

    stream = 6

    def __init__(self):
        self.done = []
        self.captured = 0

    def record(self, plan, enqueue, max_launches):
        self.captured += 1
        launches = f" or {max_launches} launches" if max_launches else ""
        return f"graph {self.captured}{launches}"

    def update(self, encoded, nodes, addresses):
        self.captured += 1
        return "updated"


class EncodedPlan:
    """A plan, of ordinary kernels or of something else too."""

    plan = "plain"

    def __init__(self, card, kernels, small):
        self.card = card
        self.is_native = kernels is not None
        self.rows = kernels
        self.small = small

    def kernels(self, nodes):
        return self.rows

    def lasts(self, step):
        return 0 if step.first < self.small else step.first + 1

    def run(self, plan, addresses):
        self.card.done.append(plan)


class Staging:
    """A graph on staging buffers, which is captured once."""

    def __init__(self, card):
        self.card = card

    def capture(self, addresses, plan, enqueue):
        self.card.captured += 1
        return "staged"


class Entry:
    """Notes what a native entry may run."""

    def __init__(self):
        self.allowed = []

    def run(self, plan, left):
        self.allowed.append((plan, left))

    def publish(self, graphs):
        self.allowed.append(dict(graphs))


@pytest.fixture
def card(monkeypatch):
    made = Card()
    monkeypatch.setattr(dispatch, "device", lambda: made)
    monkeypatch.setattr(dispatch, "record", made.record)
    monkeypatch.setattr(dispatch, "updated_graph", made.update)

    class Walk:
        def __init__(self, encoded, addresses):
            self.addresses = addresses

        def run(self, nodes, stream):
            made.done.append("walk")

    monkeypatch.setattr(dispatch, "Walk", Walk)
    return made


def runs_of(card, count, patience, *, keys, kernels=None, small=99, staging=False):
    """What runs at these addresses launch, and what the entry may run."""
    nodes = (NativeRun(0, count),)
    staged = Staging(card) if staging else None
    addresses = (ctypes.c_int64 * 1)()
    encoded = EncodedPlan(card, kernels, small)
    made = SegmentDispatch(encoded, addresses, Segment(nodes, True, patience), staged)
    entry = Entry()
    made.attach(entry)
    for key in keys:
        made.enqueue(bytes([key]))
    return card.done, entry.allowed


def test_a_few_kernels_have_their_node_parameters_updated_from_the_second_run_on(card):
    done, allowed = runs_of(card, 2, 1, kernels=[[0], [0]], keys=b"abcd")
    assert done == ["plain", "updated", "updated", "updated"]
    assert allowed == [("plain", 1), *[("updated", ALWAYS)] * 3]
    assert card.captured == 1


def test_long_kernels_are_launched_directly(card):
    done, allowed = runs_of(card, 2, 1, kernels=[[0], [0]], small=0, keys=b"aaa")
    assert done == ["plain"] * 3
    assert allowed == [("plain", ALWAYS)] * 3
    assert card.captured == 0
    done, allowed = runs_of(card, 2, 1, kernels=[[0], [0]], small=1, keys=b"aaa")
    assert allowed[2] == ("updated", ALWAYS)


def test_addresses_that_come_again_get_graphs(card):
    done, allowed = runs_of(card, 2, 1, keys=b"abaab")
    assert done == ["walk", "walk", "graph 1", "graph 1", "graph 2"]
    assert allowed == [{b"a": "graph 1"}, {b"a": "graph 1", b"b": "graph 2"}]


def test_a_few_long_steps_are_recorded_launches(card):
    done, _ = runs_of(card, 4, 1, small=0, keys=b"aaa")
    assert done == ["walk", *["graph 1 or 10 launches"] * 2]
    done, _ = runs_of(card, 5, 1, small=0, keys=b"aaa")
    assert done[3:] == ["walk", "graph 2", "graph 2"]
    done, _ = runs_of(card, 4, 1, small=1, keys=b"aa")
    assert done[6:] == ["walk", "graph 3"]


def test_other_addresses_are_copied_to_staging_buffers(card):
    done, allowed = runs_of(card, 10, 1, staging=True, keys=b"abcab")
    assert done == ["walk", "staged", "staged", "graph 2", "graph 3"]
    assert allowed[:2] == [("staged", 1), ("staged", 2)]
    # Soon again, where there was something to capture.
    assert allowed[3] == ("staged", 1)


def test_a_long_plan_has_the_staged_graph_alone(card):
    done, allowed = runs_of(card, 640, 2, staging=True, keys=b"aaaa")
    assert done == ["walk", "walk", "staged", "staged"]
    assert allowed == [("staged", ALWAYS)] * 2
    assert card.captured == 1


def test_a_segment_that_would_synchronize_is_captured_at_once(card):
    done, allowed = runs_of(card, 3, 0, staging=True, keys=b"ab")
    assert done == ["staged"] * 2
    assert allowed == [("staged", ALWAYS)] * 2
