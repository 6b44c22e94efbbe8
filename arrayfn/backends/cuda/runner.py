"""The native plan runner: one call launches all steps of a plan, or some of them.

``run(plan, buffers)`` takes a ``LaunchPlan`` and a 64-bit address for each buffer of
the plan. A kernel's pointer argument is read from its *slot*, which is written before
each run. Steps are structures that begin with their kind.

The result is 0, or ``status * 256 + stage`` of the first call that failed: a stage is 0
for making the context current, else 1 + the step's kind.

Slots are not written by two threads at once: the caller holds the GIL, or a lock of the
plan's.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from functools import cache
from typing import Annotated, Final

from arrayfn.backends.native import cast, local, native
from arrayfn.backends.native.code import native_address
from arrayfn.backends.native.structures import (
    Array,
    Inline,
    Ref,
    Struct,
    i32,
    u8,
    u32,
    u64,
)

BIAS_POINTER: Final = 8  # CUBLASLT_MATMUL_DESC_BIAS_POINTER
PROGRAMMATIC_STREAM_SERIALIZATION: Final = 6  # a CUlaunchAttributeID


class StepKind(IntEnum):
    """The kind of a step, which selects the class below that has its fields."""

    KERNEL = 0
    PRODUCT = 1
    ZEROS = 2
    COOPERATIVE = 3  # a Kernel whose blocks all run at once
    GRAPH = 4
    PARAMETERS = 5
    RECORDED = 6


class LaunchAttribute(Struct):
    """CUlaunchAttribute."""

    number: u64  # a CUlaunchAttributeID
    value: Annotated[Array[u64], 8]


class LaunchConfig(Struct):
    """CUlaunchConfig."""

    blocks: Annotated[Array[u32], 3]
    threads: Annotated[Array[u32], 3]
    shared: u32
    stream: int
    attributes: Array[LaunchAttribute]
    attribute_count: u32


class Slot(Struct):
    """Where to write a kernel's pointer argument before each run, and what address.

    Before each run the address ``offset`` bytes into the buffer numbered ``buffer`` is
    written to ``address``.

    It points ``offset`` bytes into the buffer numbered ``buffer``.
    """

    address: Array[int]
    buffer: int
    offset: int


class Step(Struct):
    """The head of a step, which is one of the classes below, as ``kind`` says."""

    kind: int


class Kernel(Step):
    """A launch of ``blocks`` blocks of ``threads`` threads; cooperative by its kind."""

    function: int
    blocks: int
    threads: int
    parameters: int
    shared: int  # bytes of shared memory


class Product(Step):
    """A matrix product: the arguments of cublasLtMatmul, as it orders them.

    ``alpha`` and ``beta`` are addresses of numbers. Matrices, the bias and an alpha in
    the GPU's memory are slots: each holds the address of an array in each run.
    """

    handle: int
    operation: int
    alpha: int
    a: Array[int]
    a_layout: int
    b: Array[int]
    b_layout: int
    beta: int
    added: Array[int]  # what is added times beta
    added_layout: int
    result: Array[int]
    result_layout: int
    algorithm: int
    workspace: int
    workspace_bytes: int
    bias: Array[int] | None
    alpha_slot: Array[int] | None  # where alpha is in memory of the GPU


class Zeros(Step):
    """A memset to zero of ``nbytes`` bytes at the address in the slot ``target``."""

    target: Array[int]
    nbytes: int


class GraphLaunch(Step):
    """A launch of the CUDA graph ``graph``, a CUgraphExec."""

    graph: int


class Parameters(Step):
    """An update of a graph's kernel node to new CUDA_KERNEL_NODE_PARAMS."""

    graph: int
    node: int
    parameters: int


class Recorded(Step):
    """A launch with the configuration and parameters that a stream capture recorded."""

    config: LaunchConfig
    function: int
    parameters: int


class LaunchPlan(Struct):
    """A plan for the native runner: steps, slots, and driver functions to call."""

    context: int
    stream: int
    slots: Array[Slot]
    slot_count: int
    steps: Array[Ref[Step]]
    step_count: int
    set_current: Callable[[int], i32]
    launch: Callable[[LaunchConfig, int, int, None], i32]
    fill: Callable[[int, u8, int, int], i32]
    launch_cooperative: Callable[
        [int, u32, u32, u32, u32, u32, u32, u32, int, int], i32
    ]
    launch_graph: Callable[[int, int], i32]
    set_parameters: Callable[[int, int, int], i32]
    multiply: Callable[..., i32]  # of 64 bits each
    set_attribute: Callable[[int, i32, Array[int], int], i32]
    attribute_count: int  # of every kernel's launch
    attribute: Inline[LaunchAttribute]


FUNCTIONS: Final = {
    "set_current": "cuCtxSetCurrent",
    "launch": "cuLaunchKernelEx",
    "fill": "cuMemsetD8Async",
    "launch_cooperative": "cuLaunchCooperativeKernel",
    "launch_graph": "cuGraphLaunch",
    "set_parameters": "cuGraphExecKernelNodeSetParams",
}
"""Driver functions by the fields of ``LaunchPlan`` that hold their addresses."""


@native
def run(plan: LaunchPlan, buffers: Array[int]) -> int:
    """Launch the steps of ``plan`` on ``buffers``; return 0 or the failure's code."""
    status = plan.set_current(plan.context)
    if status != 0:
        return status << 8
    for k in range(plan.slot_count):
        slot = plan.slots[k]
        slot.address[0] = buffers[slot.buffer] + slot.offset
    for k in range(plan.step_count):
        step = plan.steps[k]
        status = run_step(plan, step)
        if status != 0:
            return (status << 8) | (step.kind + 1)
    return 0


@native
def run_step(plan: LaunchPlan, step: Step) -> int:
    """Launch one step of ``plan``, by its kind; return the library's status."""
    kind = step.kind
    if kind == StepKind.KERNEL:
        return run_kernel(plan, cast(Kernel, step))
    if kind == StepKind.RECORDED:
        made = cast(Recorded, step)
        return plan.launch(made.config, made.function, made.parameters, None)
    if kind == StepKind.PRODUCT:
        return run_product(plan, cast(Product, step))
    if kind == StepKind.ZEROS:
        zeros = cast(Zeros, step)
        return plan.fill(zeros.target[0], 0, zeros.nbytes, plan.stream)
    if kind == StepKind.COOPERATIVE:
        return run_cooperative_kernel(plan, cast(Kernel, step))
    if kind == StepKind.GRAPH:
        return plan.launch_graph(cast(GraphLaunch, step).graph, plan.stream)
    update = cast(Parameters, step)
    return plan.set_parameters(update.graph, update.node, update.parameters)


@native
def run_kernel(plan: LaunchPlan, step: Kernel) -> int:
    """Launch a kernel on the plan's stream; return the driver's status."""
    config = local(LaunchConfig, 1)[0]
    config.blocks[0] = step.blocks
    config.blocks[1] = 1
    config.blocks[2] = 1
    config.threads[0] = step.threads
    config.threads[1] = 1
    config.threads[2] = 1
    config.shared = step.shared
    config.stream = plan.stream
    config.attributes = cast(Array[LaunchAttribute], plan.attribute)
    config.attribute_count = plan.attribute_count
    return plan.launch(config, step.function, step.parameters, None)


@native
def run_cooperative_kernel(plan: LaunchPlan, step: Kernel) -> int:
    """Launch a kernel whose blocks all run at once; return the driver's status."""
    return plan.launch_cooperative(
        step.function,
        step.blocks,
        1,
        1,
        step.threads,
        1,
        1,
        step.shared,
        plan.stream,
        step.parameters,
    )


@native
def run_product(plan: LaunchPlan, step: Product) -> int:
    """Launch a matrix product on the plan's stream; return cuBLAS's status."""
    if step.bias is not None:
        status = plan.set_attribute(step.operation, BIAS_POINTER, step.bias, 8)
        if status != 0:
            return status
    alpha = step.alpha
    if step.alpha_slot is not None:
        alpha = step.alpha_slot[0]
    return plan.multiply(
        step.handle,
        step.operation,
        alpha,
        step.a[0],
        step.a_layout,
        step.b[0],
        step.b_layout,
        step.beta,
        step.added[0],
        step.added_layout,
        step.result[0],
        step.result_layout,
        step.algorithm,
        step.workspace,
        step.workspace_bytes,
        plan.stream,
    )


class Plan:
    """A ``LaunchPlan`` (``launches``) and the memory that its addresses point to.

    ``fields`` are fields of it by name; ``slots`` are (address, buffer, offset) each.
    ``kept`` and ``code`` are kept alive: what the steps point to, and the loaded
    kernels, which variants of the plan hold too.
    """

    def __init__(
        self,
        fields: Mapping[str, int],
        slots: Sequence[tuple[int, int, int]],
        steps: Sequence[Step],
        kept: object = None,
        code: object = None,
    ) -> None:
        self.steps = tuple(steps)
        self.code = code
        self._fields = fields
        self._kept = kept
        self._slots = slots
        self._slot_table = (Slot * len(slots))(*slots)
        self._step_table = (ctypes.c_int64 * len(steps))(*map(ctypes.addressof, steps))
        self.launches = LaunchPlan(
            slots=ctypes.addressof(self._slot_table),
            slot_count=len(slots),
            steps=ctypes.addressof(self._step_table),
            step_count=len(steps),
        )
        self.launches.set(**fields)
        self.address = ctypes.addressof(self.launches)

    def allow_early_launches(self) -> None:
        """Let each kernel begin before the one before it ends.

        That is CUDA's programmatic dependent launch; the kernels wait themselves.
        """
        attribute = self.launches.attribute
        attribute.number = PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value[0] = self.launches.attribute_count = 1

    def variant(
        self,
        steps: Sequence[Step],
        slots: Sequence[tuple[int, int, int]] | None = None,
        kept: object = None,
    ) -> Plan:
        """A plan of these ``steps``, with this plan's fields and ``code``.

        It has the same ``slots`` if none are given, and keeps ``kept`` alive, to which
        the steps may point.
        """
        slots = self._slots if slots is None else slots
        made = Plan(self._fields, slots, steps, kept, self.code)
        if self.launches.attribute_count:
            made.allow_early_launches()
        return made

    def select(self, first: int, count: int, stream: int) -> None:
        """Make this plan run only ``count`` steps from ``first`` on, on ``stream``."""
        begin = (
            ctypes.addressof(self._step_table) + ctypes.sizeof(ctypes.c_int64) * first
        )
        self.launches.set(stream=stream, steps=begin, step_count=count)


@cache
def runner(*, with_gil: bool = True) -> Callable[[int, int], int]:
    """The native ``run``, as a function of the addresses of plan and buffers.

    A launch waits while the stream's queue is full. ``with_gil`` says whether other
    Python threads wait then too; callers without it hold a lock of the plan's.
    """
    kind = ctypes.PYFUNCTYPE if with_gil else ctypes.CFUNCTYPE
    return kind(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(native_address(run))
