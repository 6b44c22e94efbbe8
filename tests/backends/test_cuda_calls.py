"""The native entry of calls, and its memory, with a driver that notes calls."""

import ctypes
import gc
import itertools
import random
import signal
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from arrayfn.backends.cuda import call_entry, runner
from arrayfn.backends.cuda.call_entry import CallEntry, Result
from arrayfn.backends.cuda.device_array import DeviceArray, interned
from arrayfn.backends.cuda.driver import Device
from arrayfn.backends.cuda.runner import GraphLaunch, Kernel, StepKind
from arrayfn.backends.cuda.waiting import waiter
from arrayfn.ir import ArrayType, layout
from tests.backends.cuda_driver import STREAM, Driver

F32 = interned(ArrayType((16,), np.dtype("float32"), layout.C))
I32 = interned(ArrayType((4,), np.dtype("int32"), layout.C))
ARENA_BYTES = 3000


class Plan:
    """A plan of one kernel, of a float32 and an int32 array: buffers 0 to 4.

    Results are 2 and 3, or 2 alone; temporaries 4. ``given`` notes what the fallback
    is called with.
    """

    def __init__(self, driver, results=2, max_idle=1 << 30):
        self.driver = driver
        self.allocator = driver.allocator(max_idle)
        self.given = []
        free_lists = [self.allocator.free_list(n) for n in (64, 16, ARENA_BYTES)]
        made = [Result(F32, 2, free_lists[0]), Result(I32, 3, free_lists[1])][:results]
        inputs = ((F32, 0), (I32, 1))
        self.entry = CallEntry([0] * 5, inputs, made, (4, free_lists[2]))
        self.call, self.call_single = self.entry.functions(self.note, self.note)
        self.entry.run(self.words())
        self.x, self.i = self.array(F32, 64), self.array(I32, 16)

    def note(self, *arguments):
        self.given.append(arguments)
        return 7

    def words(self):
        """The runner's plan: a kernel whose arguments are all buffers."""
        self.slots = np.zeros(5, np.int64)
        at = self.slots.ctypes.data
        given = {
            "stream": STREAM,
            "set_current": self.driver.address("cuCtxSetCurrent"),
            "launch": self.driver.address("cuLaunchKernelEx"),
            "launch_graph": self.driver.address("cuGraphLaunch"),
        }
        slots = [(at + 8 * k, k, 0) for k in range(5)]
        return runner.Plan(given, slots, [Kernel(StepKind.KERNEL, 11, 12, 13, at)])

    def array(self, type, nbytes):
        """An array in memory of the allocator."""
        return DeviceArray(type, *self.allocator.block(nbytes))


@pytest.fixture
def plan():
    return Plan(Driver())


def test_a_call_launches_the_plan_on_new_memory(plan):
    y, j = plan.call(plan.x, plan.i)
    assert (y.type, j.type) == (F32, I32)
    *arrays, arena = plan.slots.tolist()
    assert arrays == [plan.x.pointer, plan.i.pointer, y.pointer, j.pointer]
    assert len({*arrays, arena}) == 5
    assert plan.driver.calls.count("launch") == 1
    assert not y.shared
    assert not y.writable
    assert not plan.given
    live = len(plan.driver.live)
    del y, j
    kept = plan.call(plan.x, plan.i)
    # Memory of what died, and of temporaries, is given again.
    assert plan.slots.tolist() == [*arrays, arena]
    assert len(plan.driver.live) == live
    assert len(kept) == 2


def test_the_only_result_comes_alone():
    plan = Plan(Driver(), results=1)
    y = plan.call_single(plan.x, plan.i)
    assert type(y) is DeviceArray
    assert y.type is F32
    (z,) = plan.call(plan.x, plan.i)
    assert z.pointer != y.pointer


def test_whatever_does_not_fit_goes_to_the_fallback(plan):
    plan.x.pointer, kept = 0, plan.x.pointer
    unfit = [
        (),
        (plan.i,),
        (plan.i, plan.x),
        (np.zeros(16, np.float32), plan.i),
        (1.5, plan.i),
        (plan.x, plan.i),  # donated
        (plan.x, plan.i, plan.i),
    ]
    assert [plan.call(*arguments) for arguments in unfit] == [7] * len(unfit)
    assert [[*map(id, a)] for a in plan.given] == [[*map(id, a)] for a in unfit]
    assert "launch" not in plan.driver.calls
    plan.x.pointer = kept


def test_a_number_that_is_known_needs_no_python(plan):
    number, equal = float("2.5"), float("2.5")
    plan.entry.cache_address(1, number, 4096)
    assert len(plan.call(plan.x, number)) == 2
    assert plan.slots[1] == 4096
    assert plan.call(plan.x, equal) == 7
    plan.entry.cache_address(1, equal, 8192)
    assert len(plan.call(plan.x, equal)) == 2
    assert plan.slots[1] == 8192
    assert plan.call(plan.x, number) == 7


def test_a_failed_launch_gives_memory_back_and_goes_to_the_fallback(plan):
    plan.driver.launch_status = 700
    assert plan.call(plan.x, plan.i) == 7
    assert plan.given == [(plan.x, plan.i)]
    idle = plan.allocator.idle_bytes
    plan.driver.launch_status = 0
    kept = plan.call(plan.x, plan.i)
    assert plan.allocator.idle_bytes == idle - 512 - 256
    assert len(kept) == 2


@pytest.mark.parametrize("room", [2, 3, 4])
def test_a_call_without_memory_goes_to_the_fallback(room):
    plan = Plan(Driver(room))
    assert plan.call(plan.x, plan.i) == 7
    assert "launch" not in plan.driver.calls
    plan.driver.room = 5
    assert len(plan.call(plan.x, plan.i)) == 2
    assert plan.call(plan.x, plan.i)[0].pointer


def test_graphs_are_launched_for_their_addresses_alone(plan):
    result = plan.call(plan.x, plan.i)
    addresses = plan.slots.tobytes()
    other = np.array([1, 2, 3, 4, 5], np.int64).tobytes()
    first, second = (
        plan.entry.plan.variant([GraphLaunch(StepKind.GRAPH, n)], ()) for n in (88, 99)
    )
    plan.entry.publish({other: first, addresses: second})
    plan.entry.run(plan.entry.plan, 2)
    del result
    plan.driver.calls.clear()
    kept = [plan.call(plan.x, plan.i)]
    assert plan.driver.calls == ["graph 99"]
    plan.driver.calls.clear()
    kept += [plan.call(plan.x, plan.i) for _ in range(3)]
    # Two calls at other addresses run the plan, the third one is the fallback's.
    assert [c for c in plan.driver.calls if c != "allocate"] == ["launch", "launch"]
    assert kept[3] == 7
    plan.entry.publish({})
    assert plan.call(plan.x, plan.i) == 7


@pytest.mark.parametrize("recorded", [False, True])
def test_calls_leave_nothing_behind(plan, recorded):
    plan.call(plan.x, plan.i)
    if recorded:
        made = plan.entry.plan.variant([GraphLaunch(StepKind.GRAPH, 99)], ())
        plan.entry.publish({plan.slots.tobytes(): made})
    gc.collect()
    things = (F32, I32, plan.x, plan.i)
    counts, live = [sys.getrefcount(t) for t in things], dict(plan.driver.live)
    plan.driver.calls.clear()
    for _ in range(10_000):
        plan.call(plan.x, plan.i)
        plan.call(plan.i, plan.x)
    plan.given.clear()
    assert plan.driver.calls == ["graph 99" if recorded else "launch"] * 10_000
    assert [sys.getrefcount(t) for t in things] == counts
    assert plan.driver.live == live


def test_the_lowest_block_is_given_first():
    memory = Driver().allocator()
    blocks = [memory.allocate(1000) for _ in range(50)]
    shuffled = random.Random(0).sample(blocks, 50)
    for block in shuffled:
        memory.free(block)
    assert memory.idle_bytes == 50 * 1024
    assert [memory.allocate(1000) for _ in range(50)] == sorted(blocks)
    assert memory.idle_bytes == 0


def test_dead_memory_goes_back_to_the_driver_from_a_limit_on():
    driver = Driver()
    memory = driver.allocator(max_idle=2000)
    for block in [memory.allocate(1000) for _ in range(5)]:
        memory.free(block)
    assert len(driver.live) == 2
    large = memory.allocate(1 << 30)
    memory.free(large)
    assert large not in driver.live
    memory.clear()
    assert not driver.live
    assert memory.idle_bytes == 0


def test_memory_that_was_shared_waits_for_others_work():
    driver = Driver()
    memory = driver.allocator()
    _, owner = memory.block(64)
    memory.share(owner)
    memory.share(owner)
    assert "synchronize" not in driver.calls
    del owner
    assert driver.calls.count("synchronize") == 1
    assert memory.idle_bytes == 512


def stream_query(answer: Callable[[int], int]) -> tuple[Any, int]:
    """A driver's query, which gives ``answer`` of the number of the call."""
    asked = itertools.count(1)
    # Called without the GIL too: it takes it again.
    query = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int64)(
        lambda stream: answer(next(asked)) if stream == STREAM else -1
    )
    return query, ctypes.cast(query, ctypes.c_void_p).value or 0


@pytest.mark.parametrize("calls", [1, 3, 32, 33, 500])
def test_waiting_asks_until_the_stream_is_ready(calls):
    query, address = stream_query(lambda call: 600 if call < calls else 719)
    assert waiter(STREAM, address, 1 << 40)() == 719
    assert query is not None


def test_a_long_wait_lets_python_handle_signals():
    query, address = stream_query(lambda call: 600)
    assert waiter(STREAM, address, 1 << 20)() == 600
    assert query is not None


class Waiting(Device):
    """A GPU whose stream is asked by ``query``."""

    def __init__(self, stream: int, query: int) -> None:
        self._wait = waiter(stream, query, 1 << 20)


def test_synchronizing_waits_on_and_is_left_by_ctrl_c():
    query, address = stream_query(lambda call: 600 if call < 3000 else 0)
    Waiting(STREAM, address).synchronize()
    assert query is not None
    # A function of C, where no handler of Python runs: it gives 600 for ever.
    never = ctypes.cast(ctypes.CDLL(None).abs, ctypes.c_void_p).value or 0
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(KeyboardInterrupt):
            Waiting(600, never).synchronize()
    finally:
        signal.signal(signal.SIGALRM, before)


def test_an_unknown_interpreter_has_every_call_made_by_the_fallback(monkeypatch):
    monkeypatch.setattr(call_entry, "reads_objects", lambda: False)
    plan = Plan(Driver())
    assert plan.call(plan.x, plan.i) == plan.call_single(plan.x, plan.i) == 7
    assert len(plan.given) == 2
    assert "launch" not in plan.driver.calls
