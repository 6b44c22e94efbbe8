"""What plans call of the driver, and how that changes from call to call.

Each plan runs several times on a GPU that only logs, on two arguments in turn. The
golden texts show what each call enqueues: launches, captures, graph launches.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from arrayfn import dtypes
from arrayfn.backends.cuda import driver, encoded_plan, libraries
from arrayfn.backends.cuda.device_array import device_put
from arrayfn.backends.cuda.executable import Executable
from arrayfn.backends.cuda.libraries.calls import Call
from arrayfn.ir import ArrayType
from arrayfn.lowering.compiled import CompiledProgram
from arrayfn.lowering.plan import (
    Branch,
    BufferAllocation,
    BufferArgument,
    Carry,
    ExecutionPlan,
    Kernel,
    KernelCall,
    LibraryKernel,
    Loop,
    Parameter,
    Slice,
)
from tests.backends.logging_driver import LoggingGpu

NUMBERS = itertools.count(1000)  # of GPUs: what is kept for each is not shared
SMALL, LARGE, HUGE = (16, 16), (1536, 2048), (3072, 4096)
POINTERS = tuple(Parameter(name, "f32*") for name in "xy")
KERNELS = (
    Kernel("k", "", "k", POINTERS, threads=64),
    Kernel("together", "", "t", POINTERS, threads=96, cooperative=True),
    LibraryKernel("solve", "solve", POINTERS),
    LibraryKernel("callback", "callback", POINTERS),
    LibraryKernel("sum", "sum", POINTERS),
)
X, RESULT, TEMPORARY, FLAG, CURRENT, NEXT, SECOND, ROW = range(8)


def step(source=X, target=RESULT, kernel="k"):
    arguments = BufferArgument(source), BufferArgument(target)
    return KernelCall(kernel, arguments, 200, reads=(source,), writes=(target,))


def compiled(*steps, shape=SMALL, donated=False):
    """A plan of one input and one result, a temporary, and what loops need."""
    x, flag = ArrayType(shape, np.dtype("float32")), ArrayType((), dtypes.bool_)
    row = replace(x, shape=shape[1:])
    donor = 0 if donated else None
    buffers = (
        BufferAllocation("input", 0, x, x.nbytes),
        BufferAllocation("output", 0, x, x.nbytes, donor=donor),
        BufferAllocation("temporary", 0, x, x.nbytes),
        BufferAllocation("temporary", 1, flag, 4, offset=x.nbytes),
        BufferAllocation("carried", 0, x, x.nbytes),
        BufferAllocation("carried", 1, x, x.nbytes),
        BufferAllocation("temporary", 2, x, x.nbytes, offset=x.nbytes + 512),
        BufferAllocation("slice", 0, row, row.nbytes),
    )
    plan = ExecutionPlan(buffers, steps, arena=2 * x.nbytes + 512)
    return CompiledProgram("f", "cuda", "", (x,), (x,), KERNELS, plan, ())


CARRY = Carry(CURRENT, NEXT, X, RESULT, SECOND, RESULT)
WHILE = Loop((step(CURRENT, NEXT), step(NEXT, FLAG)), None, FLAG, carries=(CARRY,))
LAST_IS_CONSTANT = Loop((step(CURRENT, NEXT),), 3, carries=(CARRY,))
SWEEP = Loop((step(ROW, TEMPORARY),), 700, slices=(Slice(ROW, X, 0, 64),))
BRANCH = Branch(FLAG, ((step(),), (step(X, TEMPORARY), step(TEMPORARY, RESULT))))

PLANS = {
    "few_kernels": compiled(step(X, TEMPORARY), step(TEMPORARY)),
    "independent_kernels": compiled(
        step(X, TEMPORARY, "solve"), *[step(X, SECOND)] * 2, step(TEMPORARY)
    ),
    "long_kernels": compiled(step(X, TEMPORARY), step(TEMPORARY), shape=LARGE),
    "many_kernels": compiled(*[step()] * 40),
    "very_many_kernels": compiled(*[step()] * 70),
    "cooperative": compiled(step(X, TEMPORARY, "together"), step(TEMPORARY)),
    "donated": compiled(step(X, TEMPORARY), step(TEMPORARY), donated=True),
    "library": compiled(step(X, TEMPORARY, "solve"), *[step(TEMPORARY)] * 4),
    "long_library": compiled(step(X, TEMPORARY, "solve"), step(TEMPORARY), shape=LARGE),
    "callback": compiled(
        *[step(X, TEMPORARY)] * 5, step(TEMPORARY, X, "callback"), step(X)
    ),
    "collective": compiled(
        step(X, TEMPORARY), step(TEMPORARY, SECOND, "sum"), *[step(SECOND)] * 3
    ),
    "long_collective": compiled(
        step(X, TEMPORARY),
        step(TEMPORARY, SECOND, "sum"),
        *[step(X)] * 3,
        step(SECOND),
        step(X),
        shape=HUGE,
    ),
    "while_loop": compiled(step(X, FLAG), WHILE),
    "while_loop_on_the_host": compiled(
        step(X, FLAG), replace(WHILE, body=(*WHILE.body, step(X, X, "callback")))
    ),
    "counted_loop": compiled(LAST_IS_CONSTANT),
    "long_loop": compiled(SWEEP, step(TEMPORARY)),
    "branch": compiled(step(X, FLAG), BRANCH, shape=LARGE),
}


@pytest.fixture
def gpu(monkeypatch):
    """A GPU that logs, and waits for nothing.

    Libraries enqueue a kernel; callbacks cannot be captured; "sum" is a collective.
    """
    made = LoggingGpu(monkeypatch, next(NUMBERS))
    monkeypatch.setattr(made, "synchronize", lambda: made.library.log.append("wait"))
    monkeypatch.setattr(encoded_plan, "loaded_kernels", made.loaded)

    def call(provider, integers):
        kernel = made.library.kernel(provider)

        def enqueue(stream, *addresses):
            made.library.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, stream, 0, 0)

        return Call(
            enqueue,
            ("x", "y"),
            capturable=provider != "callback",
            is_collective=provider == "sum",
        )

    monkeypatch.setattr(libraries, "call", call)
    with driver.on(made):
        yield made


def calls_log(gpu, program, whole=False):
    """What each of eight calls makes the driver do, as text."""
    gpu.take_log()
    executable = Executable(program)
    lines = ["load:", *gpu.take_log(whole)]
    arrays = [
        device_put(np.zeros(program.input_types[0].shape, np.float32)) for _ in "ab"
    ]
    donates = any(b.donor is not None for b in program.plan.buffers)
    results = []
    for number in range(8):
        argument = arrays[number % 2]
        given = argument.copy() if donates else argument
        gpu.take_log()
        gpu.library.values = [1, 1]  # of predicates that the host reads
        results.append(executable.call_single(given))
        lines += [f"call {number} on argument {number % 2}:", *gpu.take_log(whole)]
        if number != 4:
            results.pop(0)
    return "".join(f"{x}\n" if x.endswith(":") else f"  {x}\n" for x in lines)


def shortened(text):
    """``text`` without the middle of long runs of lines that differ in numbers."""
    lines = []
    words = partial(re.sub, r"\d+", "")
    for _, run in itertools.groupby(text.splitlines(), words):
        first, *middle = run
        more = [f"  ... {len(middle) - 1} more"] if len(middle) > 3 else middle[:-1]
        lines += [first, *more, *middle[-1:]]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("name", PLANS)
def test_calls_of_the_driver(gpu, golden, name):
    golden(f"driver_calls/{name}", shortened(calls_log(gpu, PLANS[name])))
