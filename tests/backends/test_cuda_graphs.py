"""Which runs are recorded, and whether addresses repeat, without a GPU."""

import weakref

import pytest

from arrayfn.backends.cuda.graphs.dispatch import AddressCache
from arrayfn.backends.cuda.memory import block_size
from tests.backends.cuda_driver import Driver


class Recorder:
    """Numbers what it records, and notes which of it is still kept."""

    def __init__(self):
        self.count = 0
        self.live = weakref.WeakSet()

    def __call__(self):
        self.count += 1
        made = Recorded(self.count)
        self.live.add(made)
        return made


class Recorded:
    """What stands for a plan."""

    def __init__(self, number):
        self.number = number


def runs_of(found, addresses):
    plans = (found.find(x.to_bytes(4)) for x in addresses)
    return [plan and plan.number for plan in plans]


def test_addresses_that_come_again_are_recorded_once():
    found = AddressCache(Recorder(), direct_runs=1)
    assert runs_of(found, [1, 2, 1, 2, 1, 2]) == [None, None, 1, 2, 1, 2]
    assert runs_of(AddressCache(Recorder(), direct_runs=0), [1, 1]) == [1, 1]
    patient = AddressCache(Recorder(), direct_runs=3)
    assert runs_of(patient, [1, 1, 2, 1, 1, 2]) == [None] * 4 + [1, None]


def test_more_addresses_than_are_kept_are_launched_step_by_step():
    record, published = Recorder(), []
    found = AddressCache(record, direct_runs=1)
    found.on_change = lambda plans: published.append(len(plans))
    runs_of(found, list(range(80)) * 6)
    # 64 in the second round, and from then on one in 16 runs that find none.
    forgotten = record.count - 64
    assert 5 <= forgotten <= 5 * 80 // 16
    assert len(record.live) == 64
    assert published == [*range(1, 65), *[63, 64] * forgotten]


@pytest.mark.parametrize("kept", [1, 5])
def test_steps_that_replace_their_state_repeat_their_addresses(kept):
    driver = Driver()
    memory, state, losses = driver.allocator(), [], []
    seen = []
    for _ in range(60):
        after = [memory.allocate(1000) for _ in range(7)]
        losses.append(memory.allocate(4))
        for pointer in state[::-1]:
            memory.free(pointer)
        state = after
        seen.append(tuple(after))
        if len(losses) > kept:
            memory.free(losses.pop(0))
    assert len(set(seen[3:])) == 2


def test_numbers_have_blocks_of_their_own():
    assert block_size(4) != block_size(400) == block_size(512)
    assert block_size(100_000) >= 100_000
