"""The arena's layout: what lives at one time lies apart, and little is wasted."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from arrayfn.lowering import memory
from arrayfn.lowering.memory import ALIGNMENT, Lifetime, lay_out


@st.composite
def lifetimes(draw: st.DrawFn) -> list[Lifetime]:
    made = []
    for _ in range(draw(st.integers(0, 12))):
        first = draw(st.integers(0, 8))
        nbytes = draw(st.one_of(st.integers(0, 5), st.integers(60, 700)))
        made.append(Lifetime(nbytes, first, first + draw(st.integers(0, 5))))
    return made


def padded(life: Lifetime) -> int:
    return -(-life.nbytes // ALIGNMENT) * ALIGNMENT


def live_at(step: int, lives: list[Lifetime]) -> int:
    """The bytes that must be there during ``step``."""
    return sum(padded(x) for x in lives if x.first <= step <= x.last)


@pytest.fixture(params=["by size", "as they come"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Few lifetimes are placed with regard to all others, very many as they come."""
    if request.param == "as they come":
        monkeypatch.setattr(memory, "MAX_OVERLAPS", -1)
    return request.param


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lifetimes())
def test_lifetimes_that_meet_do_not_overlap(lives: list[Lifetime]) -> None:
    offsets, _ = lay_out(lives)
    for k, x in enumerate(lives):
        for j, y in enumerate(lives[:k]):
            if x.first <= y.last and y.first <= x.last:
                apart = (
                    offsets[k] + x.nbytes <= offsets[j]
                    or offsets[j] + y.nbytes <= offsets[k]
                )
                assert apart or 0 in (x.nbytes, y.nbytes)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lifetimes())
def test_the_arena_holds_the_peak_and_no_more_than_the_sum(
    lives: list[Lifetime],
) -> None:
    offsets, size = lay_out(lives)
    steps = range(max((x.last for x in lives), default=0) + 1)
    assert max(live_at(step, lives) for step in steps) <= size
    assert size <= sum(padded(x) for x in lives)
    ends = [o + padded(x) for o, x in zip(offsets, lives, strict=True) if x.nbytes]
    assert size == max(ends, default=0)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lifetimes())
def test_offsets_are_aligned_and_depend_on_the_lifetimes_alone(
    lives: list[Lifetime],
) -> None:
    offsets, size = lay_out(lives)
    assert all(offset >= 0 and offset % ALIGNMENT == 0 for offset in offsets)
    assert (offsets, size) == lay_out(list(lives))


def test_the_largest_lies_first_and_others_fill_what_is_free(way: str) -> None:
    lives = [
        Lifetime(100, 0, 1),  # 128 with its padding
        Lifetime(256, 1, 2),
        Lifetime(64, 0, 0),
        Lifetime(40, 2, 3),
        Lifetime(192, 3, 4),
    ]
    offsets = {
        "by size": [256, 0, 0, 256, 0],
        "as they come": [0, 128, 128, 0, 64],
    }
    assert lay_out(lives) == (offsets[way], 384)


@pytest.mark.parametrize("count", [1, 2, 7])
def test_a_chain_of_equal_temporaries_takes_two(count: int) -> None:
    lives = [Lifetime(4096, step, step + 1) for step in range(count)]
    offsets, size = lay_out(lives)
    assert size == 4096 * min(count, 2)
    assert offsets == [4096 * (step % 2) for step in range(count)]


def test_nothing_takes_nothing() -> None:
    assert lay_out([]) == ([], 0)
    assert lay_out([Lifetime(0, 0, 9)]) == ([0], 0)
