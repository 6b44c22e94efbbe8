"""By which graphs a part of a plan is enqueued, and what its native entry is told."""

import ctypes

import pytest

from arrayfn.backends.cuda import replay
from arrayfn.backends.cuda.call_entry import ALWAYS
from arrayfn.backends.cuda.graphs import Segment
from arrayfn.backends.cuda.nodes import NativeRun
from arrayfn.backends.cuda.replay import Replay


class Card:
    """Notes what is captured and launched."""

    stream = 6

    def __init__(self):
        self.done = []
        self.captured = 0

    def record(self, plan, enqueue, most_steps):
        self.captured += 1
        steps = f" of {most_steps} steps at most" if most_steps else ""
        return f"graph {self.captured}{steps}"

    def retarget(self, image, nodes, addresses):
        self.captured += 1
        return "told"


class Image:
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
    """A graph of its own memory, which is captured once."""

    def __init__(self, card):
        self.card = card

    def capture(self, addresses, plan, enqueue):
        self.card.captured += 1
        return "staged"


class Entry:
    """What a native entry is told."""

    def __init__(self):
        self.told = []

    def run(self, plan, left):
        self.told.append((plan, left))

    def publish(self, graphs):
        self.told.append(dict(graphs))


@pytest.fixture
def card(monkeypatch):
    made = Card()
    monkeypatch.setattr(replay, "device", lambda: made)
    monkeypatch.setattr(replay, "recorded", made.record)
    monkeypatch.setattr(replay, "retargeted", made.retarget)

    class Walk:
        def __init__(self, image, addresses):
            self.addresses = addresses

        def run(self, nodes, stream):
            made.done.append("walk")

    monkeypatch.setattr(replay, "Walk", Walk)
    return made


def replayed(card, count, patience, *, keys, kernels=None, small=99, staging=False):
    """What runs at these addresses do, and what the entry is told."""
    nodes = (NativeRun(0, count),)
    staged = Staging(card) if staging else None
    addresses = (ctypes.c_int64 * 1)()
    image = Image(card, kernels, small)
    made = Replay(image, addresses, Segment(nodes, True, patience), staged)
    entry = Entry()
    made.inform(entry)
    for key in keys:
        made.enqueue(bytes([key]))
    return card.done, entry.told


def test_a_few_kernels_are_told_their_addresses_from_the_second_run_on(card):
    done, told = replayed(card, 2, 1, kernels=[[0], [0]], keys=b"abcd")
    assert done == ["plain", "told", "told", "told"]
    assert told == [("plain", 1), *[("told", ALWAYS)] * 3]
    assert card.captured == 1


def test_large_kernels_are_launched_as_they_are(card):
    done, told = replayed(card, 2, 1, kernels=[[0], [0]], small=0, keys=b"aaa")
    assert done == ["plain"] * 3
    assert told == [("plain", ALWAYS)] * 3
    assert card.captured == 0
    done, told = replayed(card, 2, 1, kernels=[[0], [0]], small=1, keys=b"aaa")
    assert told[2] == ("told", ALWAYS)


def test_addresses_that_come_again_get_graphs(card):
    done, told = replayed(card, 2, 1, keys=b"abaab")
    assert done == ["walk", "walk", "graph 1", "graph 1", "graph 2"]
    assert told == [{b"a": "graph 1"}, {b"a": "graph 1", b"b": "graph 2"}]


def test_a_few_large_steps_are_launched_as_they_were_recorded(card):
    done, _ = replayed(card, 4, 1, small=0, keys=b"aaa")
    assert done == ["walk", *["graph 1 of 10 steps at most"] * 2]
    done, _ = replayed(card, 5, 1, small=0, keys=b"aaa")
    assert done[3:] == ["walk", "graph 2", "graph 2"]
    done, _ = replayed(card, 4, 1, small=1, keys=b"aa")
    assert done[6:] == ["walk", "graph 3"]


def test_others_are_copied_to_where_a_graph_has_them(card):
    done, told = replayed(card, 10, 1, staging=True, keys=b"abcab")
    assert done == ["walk", "staged", "staged", "graph 2", "graph 3"]
    assert told[:2] == [("staged", 1), ("staged", 2)]
    # Soon again, where there was something to capture.
    assert told[3] == ("staged", 1)


def test_a_long_plan_has_no_graph_but_that_one(card):
    done, told = replayed(card, 640, 2, staging=True, keys=b"aaaa")
    assert done == ["walk", "walk", "staged", "staged"]
    assert told == [("staged", ALWAYS)] * 2
    assert card.captured == 1


def test_what_would_wait_for_the_gpu_is_captured_at_once(card):
    done, told = replayed(card, 3, 0, staging=True, keys=b"ab")
    assert done == ["staged"] * 2
    assert told == [("staged", ALWAYS)] * 2
