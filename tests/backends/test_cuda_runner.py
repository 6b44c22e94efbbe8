"""The native plan runner, with a driver that writes down how it is called."""

import ctypes

import pytest

from arrayfn.backends.cuda import runner
from arrayfn.backends.cuda.runner import (
    BIAS_POINTER,
    GraphLaunch,
    Kernel,
    LaunchConfig,
    Parameters,
    Plan,
    Product,
    Recorded,
    StepKind,
    Zeros,
)

I64, I32 = ctypes.c_int64, ctypes.c_int
STREAM, CONTEXT = 6, 5


class Driver:
    """Functions of the driver's signatures; ``failing`` names one that fails."""

    def __init__(self, failing=""):
        self.calls = []
        self.failing = failing
        kind = ctypes.PYFUNCTYPE
        self.functions = {
            "set_current": kind(I32, I64)(self.noted("set_current")),
            "launch": kind(I32, ctypes.POINTER(I64), I64, I64, I64)(
                lambda config, *rest: self.noted("launch")(*rest, *launched(config))
            ),
            "launch_cooperative": kind(I32, I64, *[I32] * 7, I64, I64)(
                self.noted("launch_cooperative")
            ),
            "launch_graph": kind(I32, I64, I64)(self.noted("launch_graph")),
            "set_parameters": kind(I32, I64, I64, I64)(self.noted("set_parameters")),
            "fill": kind(I32, I64, ctypes.c_ubyte, I64, I64)(self.noted("fill")),
            "multiply": kind(I32, *[I64] * 16)(self.noted("multiply")),
            "set_attribute": kind(I32, I64, I32, ctypes.POINTER(I64), I64)(
                lambda operation, attribute, value, size: self.noted("set_attribute")(
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
    given = (I64 * 9 * (count & 0xFFFFFFFF)).from_address(attributes)
    return (*sizes, stream, *(word for attribute in given for word in attribute[:2]))


def run_plan(driver, bias=False, alpha=False):
    """Buffers 0 and 2 are given, 1 lies in 2; seven steps, one of each kind."""
    values = (I64 * 3)()
    at = [ctypes.addressof(values) + 8 * k for k in range(3)]
    slots = [(at[0], 0, 0), (at[1], 1, 5), (at[2], 2, 0)]
    product = Product(StepKind.PRODUCT, 1, 2, 3, at[0], 5, at[1], 7, 8, at[0], 17)
    product.set(result=at[2], result_layout=10, algorithm=11)
    product.set(workspace=12, workspace_bytes=13)
    product.set(bias=at[1] if bias else 0, alpha_slot=at[2] if alpha else 0)
    config = LaunchConfig(blocks=(2, 3, 4), threads=(5, 6, 7), shared=8, stream=9)
    steps = [
        Kernel(StepKind.KERNEL, 11, 12, 13, 14, 15),
        product,
        Zeros(StepKind.ZEROS, at[1], 99),
        Kernel(StepKind.COOPERATIVE, 21, 22, 23, 24),
        Parameters(StepKind.PARAMETERS, 31, 32, 33),
        GraphLaunch(StepKind.GRAPH, 31),
        Recorded(StepKind.RECORDED, ctypes.addressof(config), 41, 42),
    ]
    given = {
        field: ctypes.cast(function, ctypes.c_void_p).value
        for field, function in driver.functions.items()
    }
    plan = Plan({"context": CONTEXT, "stream": STREAM, **given}, slots, steps)
    plan.allow_early_launches()
    buffers = (I64 * 3)(42, 64000, 300)
    status = runner.runner()(plan.address, ctypes.addressof(buffers))
    return status, list(values)


ENTER = ("set_current", CONTEXT)
LAUNCH = ("launch", 11, 14, 0, 12, 1, 1, 13, 1, 1, 15, STREAM, 6, 1)
TELL = ("set_parameters", 31, 32, 33)
REPLAY = ("launch_graph", 31, STREAM)
AGAIN = ("launch", 41, 42, 0, 2, 3, 4, 5, 6, 7, 8, 9)
TOGETHER = ("launch_cooperative", 21, 22, 1, 1, 23, 1, 1, 0, STREAM, 24)


A, B, C = 42, 64005, 300
PRODUCT = ("multiply", 1, 2, 3, A, 5, B, 7, 8, A, 17, C, 10, 11, 12, 13, STREAM)


def test_a_run_launches_every_step_on_the_addresses_of_the_slots():
    driver = Driver()
    assert run_plan(driver) == (0, [A, B, C])
    filled = ("fill", B, 0, 99, STREAM)
    first = [ENTER, LAUNCH, PRODUCT, filled, TOGETHER]
    assert driver.calls == [*first, TELL, REPLAY, AGAIN]


def test_a_product_is_told_where_its_bias_is():
    driver = Driver()
    assert run_plan(driver, bias=True)[0] == 0
    assert driver.calls[2:4] == [("set_attribute", 2, BIAS_POINTER, B, 8), PRODUCT]


def test_a_factor_in_memory_is_where_its_slot_says():
    driver = Driver()
    assert run_plan(driver, alpha=True)[0] == 0
    assert driver.calls[2] == (*PRODUCT[:3], C, *PRODUCT[4:])


@pytest.mark.parametrize(
    ("failing", "stage", "calls"),
    [
        ("set_current", 0, 1),
        ("launch", 1 + StepKind.KERNEL, 2),
        ("set_attribute", 1 + StepKind.PRODUCT, 3),
        ("multiply", 1 + StepKind.PRODUCT, 4),
        ("fill", 1 + StepKind.ZEROS, 5),
        ("launch_cooperative", 1 + StepKind.COOPERATIVE, 6),
        ("set_parameters", 1 + StepKind.PARAMETERS, 7),
        ("launch_graph", 1 + StepKind.GRAPH, 8),
    ],
)
def test_the_first_failure_ends_a_run(failing, stage, calls):
    driver = Driver(failing)
    status, _ = run_plan(driver, bias=True)
    assert (status >> 8, status & 255) == (9, stage)
    assert len(driver.calls) == calls
