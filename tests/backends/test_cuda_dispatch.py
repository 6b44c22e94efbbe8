"""How a segment of a plan runs from call to call, and what its native entry may run."""

import ctypes

import pytest

from arrayfn.backends.cuda.call_entry import ALWAYS
from arrayfn.backends.cuda.graphs import dispatch
from arrayfn.backends.cuda.graphs.dispatch import MemberDispatch, SegmentDispatch
from arrayfn.backends.cuda.graphs.strategy import AnyAddress, Strategy
from arrayfn.backends.cuda.plan_nodes import NativeRun
from arrayfn.backends.members import Lockstep


class Card:
    """Notes what is captured and launched."""

    stream = 6

    def __init__(self):
        self.done = []
        self.captured = 0

    def graph_or_launches(self, plan, enqueue, max_launches):
        self.captured += 1
        launches = f" or {max_launches} launches" if max_launches else ""
        return f"graph {self.captured}{launches}"

    def updated_graph(self, encoded, nodes, addresses):
        self.captured += 1
        return "updated"

    def capture(self, addresses, plan, enqueue):
        """Capture a graph on staging buffers."""
        self.captured += 1
        return "staged"


class EncodedPlan:
    """A plan that is one native run, or not."""

    has_collectives = False

    plan = "plain"

    def __init__(self, card, is_native):
        self.card = card
        self.is_native = is_native

    def run(self, plan, addresses):
        self.card.done.append(plan)


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
    monkeypatch.setattr(dispatch, "graph_or_launches", made.graph_or_launches)
    monkeypatch.setattr(dispatch, "updated_graph", made.updated_graph)

    class Walk:
        def __init__(self, encoded, addresses):
            self.addresses = addresses

        def run(self, nodes, stream):
            made.done.append("walk")

    monkeypatch.setattr(dispatch, "Walk", Walk)
    return made


def runs_of(card, any_address, *strategy, keys, is_native=False):
    """What runs at these addresses launch, and what the entry may run."""
    nodes = (NativeRun(0, 9),)
    addresses = (ctypes.c_int64 * 1)()
    chosen = Strategy(nodes, AnyAddress[any_address], *strategy)
    made = SegmentDispatch(EncodedPlan(card, is_native), addresses, chosen, card)
    entry = Entry()
    made.attach(entry)
    for key in keys:
        made.enqueue(bytes([key]))
    return card.done, entry.allowed


def members_runs(card, monkeypatch, *keys):
    """What each of two members in one process does, by calls at these addresses."""
    lockstep = Lockstep(2)
    done = []

    class Launches:
        def __init__(self, encoded, nodes, walk):
            self.segments = [(NativeRun(0, 9),), (NativeRun(10, 2),)]
            self.number = encoded.number

        def run(self, stream, graphs=()):
            done[-1][self.number].append(list(graphs))

    monkeypatch.setattr(dispatch, "OverlappingLaunches", Launches)
    strategy = Strategy((), AnyAddress.DIRECT, True, 1)
    members = []
    for number in range(2):
        encoded = EncodedPlan(card, is_native=False)
        encoded.number, encoded.lockstep = number, lockstep
        encoded.meet = lambda number=number: done[-1][number].append("meet")
        members.append(MemberDispatch(encoded, (ctypes.c_int64 * 1)(), strategy))
    for key in keys:
        lockstep.start_call()
        done.append(([], []))
        for member, address in zip(members, key, strict=True):
            member.enqueue(address.encode())
    return done


def test_members_capture_in_the_same_calls_wherever_their_addresses_repeat(
    card, monkeypatch
):
    # The first member's addresses alternate, those of the second one are always new.
    done = members_runs(card, monkeypatch, *zip("ababab", "uvwxyz", strict=True))
    direct, together = ["meet", "meet", []], ["meet", "meet", ["graph 1", None]]
    assert done[:3] == [([[]], [[]])] * 3  # asks for calls in lockstep in the third one
    later = ["meet", "meet", ["graph 2", None]]
    assert done[3:] == [(together, direct), (later, direct), (together, direct)]


def test_a_graph_s_kernel_nodes_are_updated_from_the_second_run_on(card):
    done, allowed = runs_of(card, "UPDATED", False, 1, keys=b"abcd", is_native=True)
    assert done == ["plain", "updated", "updated", "updated"]
    assert allowed == [("plain", 1), *[("updated", ALWAYS)] * 3]
    assert card.captured == 1


def test_direct_launches_stay(card):
    done, allowed = runs_of(card, "DIRECT", keys=b"aaa", is_native=True)
    assert done == ["plain"] * 3
    assert allowed == [("plain", ALWAYS)] * 3
    assert card.captured == 0


def test_addresses_that_come_again_get_graphs(card):
    done, allowed = runs_of(card, "DIRECT", True, 1, keys=b"abaab")
    assert done == ["walk", "walk", "graph 1", "graph 1", "graph 2"]
    assert allowed == [{b"a": "graph 1"}, {b"a": "graph 1", b"b": "graph 2"}]


def test_a_few_long_steps_are_recorded_launches(card):
    done, _ = runs_of(card, "DIRECT", True, 1, 10, keys=b"aaa")
    assert done == ["walk", *["graph 1 or 10 launches"] * 2]


def test_other_addresses_are_copied_to_staging_buffers(card):
    done, allowed = runs_of(card, "STAGED", True, 1, keys=b"abcab")
    assert done == ["walk", "staged", "staged", "graph 2", "graph 3"]
    assert allowed[:2] == [("staged", 1), ("staged", 2)]
    # Soon again, where there was something to capture.
    assert allowed[3] == ("staged", 1)


def test_a_long_plan_has_the_staged_graph_alone(card):
    done, allowed = runs_of(card, "STAGED", False, 2, keys=b"aaaa")
    assert done == ["walk", "walk", "staged", "staged"]
    assert allowed == [("staged", ALWAYS)] * 2
    assert card.captured == 1


def test_a_segment_without_direct_runs_is_captured_at_once(card):
    done, allowed = runs_of(card, "STAGED", False, 0, keys=b"ab")
    assert done == ["staged"] * 2
    assert allowed == [("staged", ALWAYS)] * 2
