"""The native plan runner, with a driver that writes down how it is called."""

import ctypes

import numpy as np
import pytest

from arrayfn.backends.cuda.runner import (
    STEP_WORDS,
    Header,
    Phase,
    Stage,
    Step,
    run,
)

I64, I32 = ctypes.c_int64, ctypes.c_int
STREAM, POOL, CONTEXT = 6, 7, 5


class Driver:
    """Functions of the driver's signatures; ``failing`` names one that fails."""

    def __init__(self, failing=""):
        self.calls = []
        self.failing = failing
        kind = ctypes.PYFUNCTYPE
        self.functions = {
            "SET_CURRENT": kind(I32, I64)(self.noted("SET_CURRENT")),
            "ALLOCATE": kind(I32, ctypes.POINTER(I64), I64, I64, I64)(self.allocate),
            "FREE": kind(I32, I64, I64)(self.noted("FREE")),
            "LAUNCH": kind(I32, I64, *[I32] * 7, I64, I64, I64)(self.noted("LAUNCH")),
            "FILL": kind(I32, I64, ctypes.c_ubyte, I64, I64)(self.noted("FILL")),
            "MATMUL": kind(I32, *[I64] * 16)(self.noted("MATMUL")),
        }

    def noted(self, name):
        def call(*arguments):
            self.calls.append((name, *arguments))
            return 9 if name == self.failing else 0

        return call

    def allocate(self, target, nbytes, pool, stream):
        target[0] = 1000 * nbytes
        return self.noted("ALLOCATE")(nbytes, pool, stream)


def run_plan(driver, phases=Phase.ALL):
    """Buffer 0 is given, 1 allocated, 2 the arena; three steps, one of each kind."""
    slots = np.zeros(3, np.int64)
    at = [slots.ctypes.data + 8 * k for k in range(3)]
    allocations = np.array([1, 64, 2, 128], np.int64)
    table = np.array([at[0], 0, 0, at[1], 1, 5, at[2], 2, 0], np.int64)
    steps = np.zeros((3, STEP_WORDS), np.int64)
    steps[0, :5] = [Step.KERNEL, 11, 12, 13, 14]
    steps[1] = [Step.MATMUL, 1, 2, 3, at[0], 5, at[1], 7, 8, at[2], 10, 11, 12, 13]
    steps[2, :3] = [Step.FILL, at[1], 99]
    header = np.zeros(Header.WORDS, np.int64)
    words = {
        Header.CONTEXT: CONTEXT,
        Header.STREAM: STREAM,
        Header.POOL: POOL,
        Header.ALLOCATIONS: allocations.ctypes.data,
        Header.ALLOCATION_COUNT: 2,
        Header.SLOTS: table.ctypes.data,
        Header.SLOT_COUNT: 3,
        Header.STEPS: steps.ctypes.data,
        Header.STEP_COUNT: 3,
        Header.ARENA: 2,
    }
    for word, value in words.items():
        header[word] = value
    for name, function in driver.functions.items():
        header[Header[name]] = ctypes.cast(function, ctypes.c_void_p).value
    buffers = np.array([42, 0, 300], np.int64)
    status = run()(header.ctypes.data, buffers.ctypes.data, phases)
    return status, buffers.tolist(), slots.tolist()


ENTER = ("SET_CURRENT", CONTEXT)
ALLOCATIONS = [("ALLOCATE", 64, POOL, STREAM), ("ALLOCATE", 128, POOL, STREAM)]
LAUNCH = ("LAUNCH", 11, 12, 1, 1, 13, 1, 1, 0, STREAM, 14, 0)


def test_a_run_allocates_launches_and_frees():
    driver = Driver()
    assert run_plan(driver) == (0, [42, 64000, 128000], [42, 64005, 128000])
    a, b, c = 42, 64005, 128000
    product = ("MATMUL", 1, 2, 3, a, 5, b, 7, 8, c, 10, c, 10, 11, 12, 13, STREAM)
    fill = ("FILL", b, 0, 99, STREAM)
    free = ("FREE", 128000, STREAM)
    assert driver.calls == [ENTER, *ALLOCATIONS, LAUNCH, product, fill, free]


def test_phases_are_run_alone():
    driver = Driver()
    assert run_plan(driver, Phase.ALLOCATE)[2] == [0, 0, 0]
    assert driver.calls == [ENTER, *ALLOCATIONS]
    driver = Driver()
    assert run_plan(driver, Phase.LAUNCH) == (0, [42, 0, 300], [42, 5, 300])
    assert [call[0] for call in driver.calls[1:]] == ["LAUNCH", "MATMUL", "FILL"]
    driver = Driver()
    run_plan(driver, Phase.FREE)
    assert driver.calls == [ENTER, ("FREE", 300, STREAM)]


@pytest.mark.parametrize(
    ("failing", "stage", "calls"),
    [
        ("SET_CURRENT", Stage.CONTEXT, 1),
        ("ALLOCATE", Stage.ALLOCATE, 2),
        ("LAUNCH", Stage.KERNEL, 4),
        ("MATMUL", Stage.MATMUL, 5),
        ("FILL", Stage.FILL, 6),
        ("FREE", Stage.FREE, 7),
    ],
)
def test_the_first_failure_ends_a_run(failing, stage, calls):
    driver = Driver(failing)
    status, _, _ = run_plan(driver)
    assert (status >> 8, status & 255) == (9, stage)
    assert len(driver.calls) == calls
