"""Which runs are captured into graphs, and where arrays come to lie, without a GPU."""

import pytest

from arrayfn.backends.cuda import graphs
from arrayfn.backends.cuda.memory import block_size
from tests.backends.cuda_driver import Driver


class Card:
    """Counts what is captured; a graph is its number."""

    def __init__(self):
        self.captured = 0
        self.forgotten = []

    def capture(self, enqueue):
        self.captured += 1
        return self.captured

    def forget(self, graph):
        self.forgotten.append(graph)


@pytest.fixture
def card(monkeypatch):
    made = Card()
    monkeypatch.setattr(graphs, "device", lambda: made)
    return made


def runs_of(found, addresses):
    return [found.find(x.to_bytes(4)) for x in addresses]


def test_addresses_that_come_again_are_captured_once(card):
    found = graphs.Graphs(lambda stream: None, patience=1)
    assert runs_of(found, [1, 2, 1, 2, 1, 2]) == [0, 0, 1, 2, 1, 2]
    assert runs_of(graphs.Graphs(lambda stream: None, patience=0), [1, 1]) == [3, 3]
    patient = graphs.Graphs(lambda stream: None, patience=3)
    assert runs_of(patient, [1, 1, 2, 1, 1, 2]) == [0, 0, 0, 0, 4, 0]


def test_more_addresses_than_graphs_are_launched_step_by_step(card):
    found = graphs.Graphs(lambda stream: None, patience=1)
    many = list(range(80))
    runs_of(found, many * 6)
    # 64 in the second round, and from then on one in 16 runs that find none.
    assert card.captured == 64 + len(card.forgotten)
    assert 5 <= len(card.forgotten) <= 5 * 80 // 16


@pytest.mark.parametrize("kept", [1, 5])
def test_steps_that_replace_their_state_repeat_their_addresses(kept):
    driver = Driver()
    memory, state, losses = driver.stock(), [], []
    seen = []
    for _ in range(60):
        after = [memory.take(1000) for _ in range(7)]
        losses.append(memory.take(4))
        for pointer in state[::-1]:
            memory.give(pointer)
        state = after
        seen.append(tuple(after))
        if len(losses) > kept:
            memory.give(losses.pop(0))
    assert len(set(seen[3:])) == 2


def test_numbers_have_blocks_of_their_own():
    assert block_size(4) != block_size(400) == block_size(512)
    assert block_size(100_000) >= 100_000
