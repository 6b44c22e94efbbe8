"""The native plan runner: one call launches all steps of a plan, or some of them.

``run(plan, buffers)`` takes a ``LaunchPlan`` and a 64-bit address for each buffer of
the plan. The driver reads a kernel's pointer argument from its *slot*, a 64-bit word
that ``run`` writes before the launches. Steps are structures that begin with their
kind.

The result is 0, or ``status * 256 + stage`` of the first call that failed: the stage is
0 for making the context current, else 1 + the step's kind.

Two threads must not write slots at once: the caller holds the GIL, or a lock of the
plan.
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
    """The kind of a step, which says of which class below it is."""

    KERNEL = 0
    PRODUCT = 1
    ZEROS = 2
    COOPERATIVE = 3  # a Kernel whose blocks all run at once
    GRAPH = 4  # GraphLaunch
    PARAMETERS = 5
    RECORDED = 6


class LaunchAttribute(Struct):
    """The driver's struct CUlaunchAttribute."""

    number: u64  # a CUlaunchAttributeID
    value: Annotated[Array[u64], 8]


class LaunchConfig(Struct):
    """The driver's struct CUlaunchConfig."""

    blocks: Annotated[Array[u32], 3]
    threads: Annotated[Array[u32], 3]
    shared: u32
    stream: int
    attributes: Array[LaunchAttribute]
    attribute_count: u32


class Slot(Struct):
    """Where ``run`` writes a pointer argument, and which.

    It writes the address ``offset`` bytes into the buffer of number ``buffer`` to
    ``address[0]``.
    """

    address: Array[int]
    buffer: int
    offset: int


class Step(Struct):
    """The head of a step, which is one of the classes below, as ``kind`` says."""

    kind: int


class Kernel(Step):
    """A launch of a kernel, cooperative if its kind is COOPERATIVE.

    The grid has ``blocks`` blocks of ``threads`` threads.
    """

    function: int  # a CUfunction
    blocks: int
    threads: int
    parameters: int  # the address of an array of pointers, one to each argument
    shared: int  # bytes of dynamic shared memory of a block


class Product(Step):
    """A matrix product: the arguments of cublasLtMatmul, in its order.

    ``alpha`` and ``beta`` are addresses of numbers. The matrices, ``bias`` and
    ``alpha_slot`` are slots, which hold the address of an array on the GPU.
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
    alpha_slot: Array[int] | None  # for an alpha on the GPU, instead of ``alpha``


class Zeros(Step):
    """A memset to zero of ``nbytes`` bytes at the address in the slot ``target``."""

    target: Array[int]
    nbytes: int


class GraphLaunch(Step):
    """A launch of the CUDA graph ``graph``, a CUgraphExec."""

    graph: int


class Parameters(Step):
    """An update of the parameters of a kernel node in an executable graph."""

    graph: int  # a CUgraphExec
    node: int  # a CUgraphNode
    parameters: int  # the address of a CUDA_KERNEL_NODE_PARAMS


class Recorded(Step):
    """A kernel's launch with the configuration and parameters of a captured node."""

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
    multiply: Callable[..., i32]  # cublasLtMatmul; all arguments have 64 bits
    # cublasLtMatmulDescSetAttribute
    set_attribute: Callable[[int, i32, Array[int], int], i32]
    attribute_count: int  # 1 if launches of kernels have ``attribute``, else 0
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
    """Write the slots of ``plan`` and launch its steps.

    ``buffers`` has the address of each buffer. Returns 0, or
    ``status * 256 + stage`` of the first failure.
    """
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
        recorded = cast(Recorded, step)
        return plan.launch(
            recorded.config, recorded.function, recorded.parameters, None
        )
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
    """Launch a matrix product on the plan's stream; return cuBLAS's status.

    The bias is an attribute of the operation, which is set before each launch. ``a``,
    ``b``, ``added`` and ``result`` point to slots, which hold the arrays' addresses.
    """
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

    ``fields`` has fields of the LaunchPlan by name, such as the driver's functions.
    ``slots`` are tuples (address, buffer, offset), as in ``Slot``. ``kept`` and
    ``code`` are only kept alive: the memory that the steps point to, and the loaded
    kernels. Variants of the plan hold its ``code`` too.
    """

    def __init__(
        self,
        fields: Mapping[str, int],
        slots: Sequence[tuple[int, int, int]],
        steps: Sequence[Step],
        kept: object = None,
        code: object = None,
    ) -> None:
        """Make the LaunchPlan, and the tables of slots and steps that it points to."""
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
        """Let each kernel begin before the previous one ends.

        That is CUDA's programmatic dependent launch: the code of each kernel waits for
        the previous one by ``griddepcontrol.wait``.
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
        """Make a plan of ``steps`` with this plan's fields and ``code``.

        ``slots`` are this plan's slots by default. ``kept`` is kept alive with the
        variant. Early launches are allowed if this plan allows them.
        """
        slots = self._slots if slots is None else slots
        plan = Plan(self._fields, slots, steps, kept, self.code)
        if self.launches.attribute_count:
            plan.allow_early_launches()
        return plan

    def select(self, first: int, count: int, stream: int) -> None:
        """Let later runs launch only ``count`` steps from ``first`` on, on ``stream``.

        This changes the plan itself.
        """
        begin = (
            ctypes.addressof(self._step_table) + ctypes.sizeof(ctypes.c_int64) * first
        )
        self.launches.set(stream=stream, steps=begin, step_count=count)


@cache
def runner(*, with_gil: bool = True) -> Callable[[int, int], int]:
    """Return the native ``run`` as a Python function of the addresses of its arguments.

    The function holds the GIL if ``with_gil``. A launch may wait for room in the
    stream's queue, and then other Python threads wait too. Callers without the GIL must
    hold a lock of the plan.
    """
    kind = ctypes.PYFUNCTYPE if with_gil else ctypes.CFUNCTYPE
    return kind(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(native_address(run))
