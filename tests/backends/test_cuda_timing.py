"""Which way is the fastest: on a GPU that only counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle

import pytest

from arrayfn.backends.cuda import cublas, timing
from arrayfn.errors import OutOfMemoryError


class Card:
    """A device whose work takes as long as it is told, longer while it is hot."""

    stream = 1

    def __init__(self) -> None:
        self.seconds = 0.0  # of all that was enqueued
        self.graphs: dict[int, list[float]] = {}
        self.captured: list[float] | None = None

    def work(self, seconds: float) -> None:
        if self.captured is not None:
            self.captured.append(seconds)
        else:
            self.seconds += seconds

    def executable_graph(self, enqueue: Callable[[int], None]) -> int:
        self.captured = []
        enqueue(2)
        self.graphs[len(self.graphs)] = self.captured
        self.captured = None
        return len(self.graphs) - 1

    def launch_graph(self, graph: int) -> None:
        self.seconds += sum(self.graphs[graph])

    def destroy_graph(self, graph: int) -> None:
        del self.graphs[graph]


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Card:
    made = Card()

    def seconds(enqueue: Callable[[], object]) -> float:
        before = made.seconds
        enqueue()
        return made.seconds - before

    monkeypatch.setattr(timing, "device", lambda: made)
    monkeypatch.setattr(timing, "_seconds", seconds)
    return made


def ways(card: Card, *times: Sequence[float]) -> list[timing.Run]:
    """Ways that take these seconds at each call, again from the first one on."""

    def way(seconds: Sequence[float]) -> timing.Run:
        turns = cycle(seconds)

        def run(stream: int) -> int:
            card.work(next(turns))
            return 0

        return run

    return [way(seconds) for seconds in times]


def test_what_is_slow_to_begin_with_may_be_the_fastest(card: Card) -> None:
    late = [5e-5, 6.5e-5, *[5e-5] * 100]
    assert timing.fastest(ways(card, late, [5.5e-5], [6e-5])) == 0


def test_another_process_may_come_into_a_first_call(card: Card) -> None:
    interrupted = [5e-5, 2e-3, *[5e-5] * 100]
    assert timing.fastest(ways(card, [8e-5], interrupted, [9e-5])) == 1


def test_of_ways_about_as_fast_the_first_is_taken(card: Card) -> None:
    assert timing.fastest(ways(card, [5.01e-5], [5e-5], [9e-5])) == 0
    assert timing.fastest(ways(card, [5.1e-5], [5e-5], [9e-5])) == 1


def test_what_fails_is_not_taken(card: Card) -> None:
    good = ways(card, [2e-5], [1e-5])
    assert timing.fastest([*good, lambda stream: 15]) == 1
    assert timing.fastest([lambda stream: 15]) == 0


def test_a_hot_card_decides_between_ways_that_take_long(card: Card) -> None:
    def heating(stream: int) -> int:
        hot = card.seconds > 0.01
        card.work(1.1e-3 if hot else 1e-3)
        return 0

    assert timing.fastest([heating, *ways(card, [1.05e-3])]) == 1


def test_short_ways_about_as_fast_as_each_other_are_tried_again(card: Card) -> None:
    seems_fast = [1.95e-5] * 33 + [2.05e-5] * 200
    assert timing.fastest(ways(card, [2e-5], seems_fast)) == 0


def test_the_order_changes_and_all_memory_is_used(card: Card) -> None:
    order: list[int] = []
    launch = card.launch_graph

    def launched(graph: int) -> None:
        order.append(graph)
        launch(graph)

    card.launch_graph = launched  # type: ignore[method-assign]
    times = timing.time_in_rounds(
        ways(card, [1e-3, 3e-3], [1e-3]), [0, 1], 8, 1e-3, sets=2
    )
    assert times == {0: pytest.approx(2e-3), 1: pytest.approx(1e-3)}
    assert {tuple(order[k : k + 2]) for k in range(0, 16, 2)} == {(0, 1), (1, 0)}


def test_what_is_clearly_slower_is_left_out_after_some_rounds(card: Card) -> None:
    three = ways(card, [1e-3], [1.001e-3], [1.1e-3])
    times = timing.time_in_rounds(
        three, [0, 1, 2], 24, 1e-2, drop_ratio=timing.CLEAR_RATIO
    )
    assert [*times] == [0, 1]
    assert card.seconds < 0.6


def test_no_graphs_are_left(card: Card) -> None:
    timing.measure(ways(card, [1e-3], [1.01e-3], [3e-3]))
    assert not card.graphs


class Memory:
    """A device with room for so many bytes, which holds nothing."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.held: dict[int, int] = {}

    def allocate(self, nbytes: int) -> int:
        if sum(self.held.values()) + nbytes > self.room:
            raise OutOfMemoryError(f"no room for {nbytes} bytes")
        self.held[max(self.held, default=0) + 1] = nbytes
        return max(self.held)

    def free(self, pointer: int) -> None:
        del self.held[pointer]

    def copy(self, to: int, source: int, nbytes: int) -> None:
        pass

    copy_in = copy


@pytest.mark.parametrize(
    ("room", "sizes", "sets"),
    [
        (1 << 30, (1 << 20, 1 << 20), cublas.MAX_SETS),
        (1 << 40, (1 << 30, 1 << 29), cublas.MIN_SETS),
        (5 << 28, (1 << 29, 1 << 29), 1),
    ],
)
def test_operands_rotate_among_what_there_is_room_for(
    room: int, sizes: tuple[int, ...], sets: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = Memory(room)
    monkeypatch.setattr(cublas, "device", lambda: memory)
    with cublas.rotating_operands(sizes, "f32") as (count, next_places):
        places = [tuple(next_places()) for _ in range(2 * sets)]
        assert count == sets == len(set(places))
        assert places[:sets] == places[sets:]
    assert not memory.held


def test_no_room_for_one_set_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory(1 << 20)
    monkeypatch.setattr(cublas, "device", lambda: memory)
    with (
        pytest.raises(OutOfMemoryError),
        cublas.rotating_operands((1 << 19, 1 << 20), "f32"),
    ):
        pass
    assert not memory.held
