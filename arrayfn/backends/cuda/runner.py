"""The native plan runner: one call launches all steps of a plan, or a run of them.

``run(plan, buffers)`` takes two addresses. ``buffers`` holds a 64-bit address for each
buffer of the plan. ``plan`` is words of 64 bits: a header, then the tables that it
points to:

* slots, ``address of the slot, buffer, offset``: a kernel's pointer argument is read
  from its slot, which is written before each run;
* steps, of ``STEP_BYTES``. The first word is the step's kind, and says what follows.

The result is 0, or ``status * 256 + stage`` of the first call that failed (``Stage``).
The caller holds the GIL, so slots are not written by two threads at once.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from functools import cache
from typing import Final

import numpy as np

from arrayfn.backends.cuda.blocks import I32
from arrayfn.backends.native import call, load, native, stack, store
from arrayfn.backends.native.code import native_address

# Byte offsets into the header.
CONTEXT: Final = 0
STREAM: Final = 8
SLOTS: Final = 16
SLOT_COUNT: Final = 24
STEPS: Final = 32
STEP_COUNT: Final = 40
SET_CURRENT: Final = 48  # addresses of functions, from here on
LAUNCH: Final = 56
FILL: Final = 64
TOGETHER: Final = 72
LAUNCH_GRAPH: Final = 80
SET_PARAMETERS: Final = 88
MULTIPLY: Final = 96
SET_ATTRIBUTE: Final = 104
ATTRIBUTES: Final = 112  # of a kernel's launch: how many, then they themselves
HEADER_BYTES: Final = 192

FUNCTIONS: Final = {
    SET_CURRENT: "cuCtxSetCurrent",
    LAUNCH: "cuLaunchKernelEx",
    FILL: "cuMemsetD8Async",
    TOGETHER: "cuLaunchCooperativeKernel",
    LAUNCH_GRAPH: "cuGraphLaunch",
    SET_PARAMETERS: "cuGraphExecKernelNodeSetParams",
}
"""The driver's, by where their addresses are."""

OVERLAPPING: Final = {ATTRIBUTES: 1, ATTRIBUTES + 8: 6, ATTRIBUTES + 16: 1}
"""Words of the header: kernels may begin before what they wait for has ended.

One attribute, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION.
"""

SLOT_BYTES: Final = 24

# Kinds of steps. A kernel: function, blocks, threads, parameters, bytes of shared
# memory, 1 if it may begin before others end; the blocks of a cooperative one all run
# at once, and it doesn't. A product: handle, operation,
# alpha, slot of a, layout of a, slot of b, layout of b, beta, slot of c, layout of c,
# algorithm, workspace, its bytes, slot of the bias or 0, slot of what is added times
# beta, its layout, slot of alpha or 0. Zeros: slot, bytes. A graph: itself. What a
# graph's kernel is given: the graph, the node, its CUDA_KERNEL_NODE_PARAMS. A kernel as
# it was recorded, without slots: CUlaunchConfig, function, parameters.
KERNEL: Final = 0
PRODUCT: Final = 1
ZEROS: Final = 2
COOPERATIVE: Final = 3
GRAPH: Final = 4
PARAMETERS: Final = 5
RECORDED: Final = 6

STEP_WORDS: Final = 18
STEP_BYTES: Final = 8 * STEP_WORDS
WORKSPACE_WORD: Final = 12  # of a product, then its bytes
BIAS_POINTER: Final = 8  # CUBLASLT_MATMUL_DESC_BIAS_POINTER


class Stage(IntEnum):
    """Which call failed: the context's, or a step's, 1 and its kind."""

    CONTEXT = 0
    KERNEL = 1
    MATMUL = 2
    FILL = 3
    COOPERATIVE = 4
    GRAPH = 5
    PARAMETERS = 6
    RECORDED = 7


@native
def run(plan: int, buffers: int) -> int:
    """Launch the steps of ``plan`` on ``buffers``."""
    status = call(load(plan + SET_CURRENT), load(plan + CONTEXT)) & I32
    if status != 0:
        return status << 8
    slot = load(plan + SLOTS)
    for _ in range(load(plan + SLOT_COUNT)):
        base = load(buffers + 8 * load(slot + 8))
        store(load(slot), base + load(slot + 16))
        slot += SLOT_BYTES
    step = load(plan + STEPS)
    for _ in range(load(plan + STEP_COUNT)):
        status = step_run(plan, step) & I32
        if status != 0:
            return (status << 8) | (load(step) + 1)
        step += STEP_BYTES
    return 0


@native
def step_run(plan: int, step: int) -> int:
    """Launch one step: the status."""
    kind = load(step)
    stream = load(plan + STREAM)
    if kind == KERNEL:
        return kernel_run(plan, step)
    if kind == PRODUCT:
        return product_run(plan, step)
    if kind == ZEROS:
        target = load(load(step + 8))
        return call(load(plan + FILL), target, 0, load(step + 16), stream)
    if kind == COOPERATIVE:
        return call(
            load(plan + TOGETHER),
            load(step + 8),
            load(step + 16),
            1,
            1,
            load(step + 24),
            1,
            1,
            load(step + 40),
            stream,
            load(step + 32),
        )
    if kind == RECORDED:
        config = load(step + 8)
        function = load(step + 16)
        return call(load(plan + LAUNCH), config, function, load(step + 24), 0)
    if kind == GRAPH:
        return call(load(plan + LAUNCH_GRAPH), load(step + 8), stream)
    set_parameters = load(plan + SET_PARAMETERS)
    return call(set_parameters, load(step + 8), load(step + 16), load(step + 24))


@native
def kernel_run(plan: int, step: int) -> int:
    """Launch a kernel."""
    config = stack(7)  # a CUlaunchConfig
    store(config, load(step + 16) | 1 << 32)
    store(config + 8, 1 | load(step + 24) << 32)
    store(config + 16, 1 | 1 << 32)
    store(config + 24, load(step + 40))
    store(config + 32, load(plan + STREAM))
    store(config + 40, plan + ATTRIBUTES + 8)
    store(config + 48, load(plan + ATTRIBUTES))
    return call(load(plan + LAUNCH), config, load(step + 8), load(step + 32), 0)


@native
def product_run(plan: int, step: int) -> int:
    """Launch a matrix product."""
    bias = load(step + 112)
    if bias != 0:
        set_attribute = load(plan + SET_ATTRIBUTE)
        status = call(set_attribute, load(step + 16), BIAS_POINTER, bias, 8) & I32
        if status != 0:
            return status
    alpha = load(step + 24)
    if load(step + 136) != 0:
        alpha = load(load(step + 136))
    return call(
        load(plan + MULTIPLY),
        load(step + 8),
        load(step + 16),
        alpha,
        load(load(step + 32)),
        load(step + 40),
        load(load(step + 48)),
        load(step + 56),
        load(step + 64),
        load(load(step + 120)),
        load(step + 128),
        load(load(step + 72)),
        load(step + 80),
        load(step + 88),
        load(step + 96),
        load(step + 104),
        load(plan + STREAM),
    )


class Plan:
    """What the runner reads: ``words``, and all that they point to.

    ``given`` are words of the header by their offsets, ``slots`` and ``rows`` what the
    slots and the steps begin with. ``kept`` lives as long: what these point to.
    """

    def __init__(
        self,
        given: Mapping[int, int],
        slots: Sequence[tuple[int, int, int]],
        rows: Sequence[Sequence[int]],
        kept: object = None,
    ) -> None:
        self._given = given
        self._kept = kept
        self._slots = slots
        self._places = np.array(slots, np.int64)
        self._steps = np.zeros((len(rows), STEP_WORDS), np.int64)
        for step, row in zip(self._steps, rows, strict=True):
            step[: len(row)] = row
        self.words = np.zeros(HEADER_BYTES // 8, np.int64)
        for word, value in {
            **given,
            SLOTS: self._places.ctypes.data,
            SLOT_COUNT: len(slots),
            STEPS: self._steps.ctypes.data,
            STEP_COUNT: len(rows),
        }.items():
            self.words[word // 8] = value
        self.address = int(self.words.ctypes.data)

    def of(
        self,
        rows: Sequence[Sequence[int]],
        slots: Sequence[tuple[int, int, int]] | None = None,
        kept: object = None,
    ) -> Plan:
        """Another one of these ``rows``, with the same ``slots`` if none are given."""
        return Plan(self._given, self._slots if slots is None else slots, rows, kept)

    def part(self, first: int, count: int, stream: int) -> None:
        """Have only some of the steps run, and on another stream."""
        self.words[STREAM // 8] = stream
        self.words[STEPS // 8] = self._steps.ctypes.data + STEP_BYTES * first
        self.words[STEP_COUNT // 8] = count


@cache
def runner() -> Callable[[int, int], int]:
    """The runner as a function of the addresses of plan and buffers."""
    kind = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
    return kind(native_address(run))
