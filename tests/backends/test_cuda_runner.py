"""The native plan runner, with a driver that writes down how it is called."""

import ctypes

import numpy as np
import pytest

from arrayfn.backends.cuda import runner
from arrayfn.backends.cuda.runner import BIAS_POINTER, STEP_WORDS, Stage

I64, I32 = ctypes.c_int64, ctypes.c_int
STREAM, CONTEXT = 6, 5


class Driver:
    """Functions of the driver's signatures; ``failing`` names one that fails."""

    def __init__(self, failing=""):
        self.calls = []
        self.failing = failing
        kind = ctypes.PYFUNCTYPE
        self.functions = {
            "SET_CURRENT": kind(I32, I64)(self.noted("SET_CURRENT")),
            "LAUNCH": kind(I32, ctypes.POINTER(I64), I64, I64, I64)(
                lambda config, *rest: self.noted("LAUNCH")(*rest, *launched(config))
            ),
            "TOGETHER": kind(I32, I64, *[I32] * 7, I64, I64)(self.noted("TOGETHER")),
            "LAUNCH_GRAPH": kind(I32, I64, I64)(self.noted("LAUNCH_GRAPH")),
            "SET_PARAMETERS": kind(I32, I64, I64, I64)(self.noted("SET_PARAMETERS")),
            "FILL": kind(I32, I64, ctypes.c_ubyte, I64, I64)(self.noted("FILL")),
            "MULTIPLY": kind(I32, *[I64] * 16)(self.noted("MULTIPLY")),
            "SET_ATTRIBUTE": kind(I32, I64, I32, ctypes.POINTER(I64), I64)(
                lambda operation, attribute, value, size: self.noted("SET_ATTRIBUTE")(
                    operation, attribute, value[0], size
                )
            ),
        }

    def noted(self, name):
        def call(*arguments):
            self.calls.append((name, *arguments))
            return 9 if name == self.failing else 0

        return call


def launched(config):
    """Blocks, threads, shared memory, stream and attributes of a CUlaunchConfig."""
    sizes = ctypes.cast(config, ctypes.POINTER(I32))[:7]
    stream, attributes, count = config[4:7]
    given = (I64 * 2 * count).from_address(attributes)
    return (*sizes, stream, *(word for attribute in given for word in attribute))


def run_plan(driver, bias=False, alpha=False):
    """Buffers 0 and 2 are given, 1 lies in 2; seven steps, one of each kind."""
    slots = np.zeros(3, np.int64)
    at = [slots.ctypes.data + 8 * k for k in range(3)]
    table = np.array([at[0], 0, 0, at[1], 1, 5, at[2], 2, 0], np.int64)
    steps = np.zeros((7, STEP_WORDS), np.int64)
    steps[0, :7] = [runner.KERNEL, 11, 12, 13, 14, 15, 1]
    product = [runner.PRODUCT, 1, 2, 3, at[0], 5, at[1], 7, 8, at[2], 10, 11, 12, 13]
    places = [at[1] if bias else 0, at[0], 17, at[2] if alpha else 0]
    steps[1] = [*product, *places]
    steps[2, :3] = [runner.ZEROS, at[1], 99]
    steps[3, :5] = [runner.COOPERATIVE, 21, 22, 23, 24]
    steps[4, :4] = [runner.PARAMETERS, 31, 32, 33]
    steps[5, :2] = [runner.GRAPH, 31]
    config = np.array([2 | 3 << 32, 4 | 5 << 32, 6 | 7 << 32, 8, 9, 0, 0], np.int64)
    steps[6, :4] = [runner.RECORDED, config.ctypes.data, 41, 42]
    header = np.zeros(runner.HEADER_BYTES // 8, np.int64)
    words = {
        runner.CONTEXT: CONTEXT,
        runner.STREAM: STREAM,
        runner.SLOTS: table.ctypes.data,
        runner.SLOT_COUNT: 3,
        runner.STEPS: steps.ctypes.data,
        runner.STEP_COUNT: 7,
        **runner.OVERLAPPING,
    }
    for name, function in driver.functions.items():
        words[getattr(runner, name)] = ctypes.cast(function, ctypes.c_void_p).value
    for word, value in words.items():
        header[word // 8] = value
    buffers = np.array([42, 64000, 300], np.int64)
    status = runner.runner()(header.ctypes.data, buffers.ctypes.data)
    return status, slots.tolist()


ENTER = ("SET_CURRENT", CONTEXT)
LAUNCH = ("LAUNCH", 11, 14, 0, 12, 1, 1, 13, 1, 1, 15, STREAM, 6, 1)
TELL = ("SET_PARAMETERS", 31, 32, 33)
REPLAY = ("LAUNCH_GRAPH", 31, STREAM)
AGAIN = ("LAUNCH", 41, 42, 0, 2, 3, 4, 5, 6, 7, 8, 9)
TOGETHER = ("TOGETHER", 21, 22, 1, 1, 23, 1, 1, 0, STREAM, 24)


A, B, C = 42, 64005, 300
PRODUCT = ("MULTIPLY", 1, 2, 3, A, 5, B, 7, 8, A, 17, C, 10, 11, 12, 13, STREAM)


def test_a_run_launches_every_step_on_the_addresses_of_the_slots():
    driver = Driver()
    assert run_plan(driver) == (0, [A, B, C])
    filled = ("FILL", B, 0, 99, STREAM)
    first = [ENTER, LAUNCH, PRODUCT, filled, TOGETHER]
    assert driver.calls == [*first, TELL, REPLAY, AGAIN]


def test_a_product_is_told_where_its_bias_is():
    driver = Driver()
    assert run_plan(driver, bias=True)[0] == 0
    assert driver.calls[2:4] == [("SET_ATTRIBUTE", 2, BIAS_POINTER, B, 8), PRODUCT]


def test_a_factor_in_memory_is_where_its_slot_says():
    driver = Driver()
    assert run_plan(driver, alpha=True)[0] == 0
    assert driver.calls[2] == (*PRODUCT[:3], C, *PRODUCT[4:])


@pytest.mark.parametrize(
    ("failing", "stage", "calls"),
    [
        ("SET_CURRENT", Stage.CONTEXT, 1),
        ("LAUNCH", Stage.KERNEL, 2),
        ("SET_ATTRIBUTE", Stage.MATMUL, 3),
        ("MULTIPLY", Stage.MATMUL, 4),
        ("FILL", Stage.FILL, 5),
        ("TOGETHER", Stage.COOPERATIVE, 6),
        ("SET_PARAMETERS", Stage.PARAMETERS, 7),
        ("LAUNCH_GRAPH", Stage.GRAPH, 8),
    ],
)
def test_the_first_failure_ends_a_run(failing, stage, calls):
    driver = Driver(failing)
    status, _ = run_plan(driver, bias=True)
    assert (status >> 8, status & 255) == (9, stage)
    assert len(driver.calls) == calls
