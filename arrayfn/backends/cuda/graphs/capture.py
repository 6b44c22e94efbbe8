"""Stream capture, and what is launched of the captured graphs.

Steps that one stream captures would run one after the other. ``ConcurrentCapture`` sets
the dependencies of each step instead: it waits only for earlier steps that access the
same memory (``Hazards``), so small kernels that are independent run concurrently.

A captured graph is launched whole (``CapturedGraph``), in half the time of a kernel's
launch. Before that the parameters of its kernel nodes may be updated, in 0.17 us a node
(H200). ``record`` may instead launch the kernels of a graph one by one, with the launch
configurations that were captured.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final

from arrayfn.backends.cuda import runner
from arrayfn.backends.cuda.driver import device
from arrayfn.backends.cuda.plan_nodes import Access
from arrayfn.backends.cuda.runner import (
    LaunchAttribute,
    LaunchConfig,
    Plan,
    Recorded,
    Step,
    StepKind,
    Zeros,
)
from arrayfn.backends.native.structures import Array, Struct, u32

MAX_STEPS: Final = 64  # that are compared with each other
MAX_ORDERED: Final = 1 << 12  # where most steps wait for the one before
SET_DEPENDENCIES: Final = 1  # CU_STREAM_SET_CAPTURE_DEPENDENCIES
KERNEL_NODE: Final = 0  # CUgraphNodeType
MEMSET_NODE: Final = 2
LAUNCH_ATTRIBUTES: Final = (1, 2, 4, 5, 8, 14)
"""The attributes that a recorded launch keeps, each a CUlaunchAttributeID.

The access policy window of the L2 cache, cooperative launch, cluster dimensions, the
scheduling policy of clusters, the priority, and the carve-out for shared memory.
"""


def capture_info(stream: int) -> tuple[int, list[int]]:
    """The graph that ``stream`` is captured into, and what a next node depends on."""
    gpu = device()
    state, number = ctypes.c_int(), ctypes.c_uint64()
    graph, nodes = ctypes.c_void_p(), ctypes.POINTER(ctypes.c_void_p)()
    edges, count = ctypes.c_void_p(), ctypes.c_size_t()
    status = gpu.library.cuStreamGetCaptureInfo_v3(
        ctypes.c_void_p(stream),
        ctypes.byref(state),
        ctypes.byref(number),
        ctypes.byref(graph),
        ctypes.byref(nodes),
        ctypes.byref(edges),
        ctypes.byref(count),
    )
    gpu.check(status, "in a capture")
    return int(graph.value or 0), [int(nodes[k] or 0) for k in range(count.value)]


def set_dependencies(stream: int, nodes: Sequence[int]) -> None:
    """Make what ``stream`` captures next depend on ``nodes``, and nothing else."""
    gpu = device()
    status = gpu.library.cuStreamUpdateCaptureDependencies_v2(
        ctypes.c_void_p(stream),
        (ctypes.c_void_p * max(1, len(nodes)))(*nodes),
        None,
        ctypes.c_size_t(len(nodes)),
        SET_DEPENDENCIES,
    )
    gpu.check(status, "in a capture")


class Hazards:
    """Finds the earlier steps that each new step depends on, by their memory."""

    def __init__(self) -> None:
        self._accesses: list[Sequence[Access]] = []
        self._before: list[int] = []  # bit sets of the steps that end before each

    def __len__(self) -> int:
        return len(self._accesses)

    def add(self, accesses: Sequence[Access]) -> list[int]:
        """Add a step. The numbers of its dependencies, without those of these.

        >>> hazards = Hazards()
        >>> steps = [(0, 8, True)], [(8, 16, True)], [(4, 12, False)]
        >>> [hazards.add(accesses) for accesses in steps]
        [[], [], [1, 0]]
        """
        found: list[int] = []
        before = 0
        for k in range(len(self._accesses) - 1, -1, -1):
            if not before >> k & 1 and _conflict(self._accesses[k], accesses):
                found.append(k)
                before |= 1 << k | self._before[k]
        self._accesses.append(accesses)
        self._before.append(before)
        return found


def _conflict(first: Sequence[Access], second: Sequence[Access]) -> bool:
    """Whether two steps access the same memory, and one of them writes it."""
    return any(
        (wrote or writes) and begin < stop and start < end
        for begin, end, wrote in first
        for start, stop, writes in second
    )


class ConcurrentCapture:
    """Captures the steps of one ``stream``, each after its dependencies only."""

    def __init__(self, stream: int, most: int = MAX_STEPS) -> None:
        """Capture on ``stream``, comparing at most ``most`` steps with each other."""
        self._stream = stream
        self._most = most
        self.restart()

    def restart(self) -> None:
        """Make all further steps depend on what was captured so far."""
        _, self._begin = capture_info(self._stream)
        self._hazards = Hazards()
        self._ends: list[list[int]] = []
        self._leaves = {*self._begin}  # the nodes that no node depends on yet

    def add(self, accesses: Sequence[Access], enqueue: Callable[[], None]) -> None:
        """Capture a step, which ``enqueue`` enqueues, with these memory accesses."""
        if len(self._hazards) == self._most:
            self.join()
            self.restart()
        found = self._hazards.add(accesses)
        needed = [node for k in found for node in self._ends[k]] or self._begin
        set_dependencies(self._stream, needed)
        enqueue()
        _, ends = capture_info(self._stream)
        self._ends.append(ends)
        self._leaves.difference_update(needed)
        self._leaves.update(ends)

    def join(self) -> None:
        """Make what is captured next depend on all steps."""
        set_dependencies(self._stream, sorted(self._leaves))


class KernelNodeParams(Struct):
    """CUDA_KERNEL_NODE_PARAMS."""

    function: int
    blocks: Annotated[Array[u32], 3]
    threads: Annotated[Array[u32], 3]
    shared: u32
    parameters: int
    extra: int
    kernel: int
    context: int

    @classmethod
    def of(cls, step: runner.Kernel) -> KernelNodeParams:
        """The parameters of a kernel's step of the runner."""
        return cls(
            function=step.function,
            blocks=(step.blocks, 1, 1),
            threads=(step.threads, 1, 1),
            shared=step.shared,
            parameters=step.parameters,
        )

    def capture(self, stream: int) -> int:
        """Capture a launch of the kernel into a stream: its node."""
        gpu = device()
        status = gpu.library.cuLaunchKernel(
            ctypes.c_void_p(self.function),
            *(sizes[k] for sizes in (self.blocks, self.threads) for k in range(3)),
            self.shared,
            ctypes.c_void_p(stream),
            ctypes.c_void_p(self.parameters),
            None,
        )
        gpu.check(status, "in a capture")
        _, (node,) = capture_info(stream)
        return node


class MemsetNodeParams(Struct):
    """CUDA_MEMSET_NODE_PARAMS."""

    target: int
    pitch: int
    value: u32
    element_bytes: u32
    width: int
    height: int


class CapturedGraph:
    """A graph that was captured, and its executable graph, which ``launch`` makes.

    ``code`` are the kernels of its nodes, loaded until it is destroyed.
    """

    def __init__(self, handle: int, code: object) -> None:
        self._gpu = device()
        self._code = code
        self.handle = handle
        self._executable = 0

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing():
            if self._executable:
                self._gpu.forget(self._executable)
            self._gpu.library.cuGraphDestroy(ctypes.c_void_p(self.handle))

    def launch(
        self, updates: Sequence[tuple[int, KernelNodeParams]] = ()
    ) -> list[Step]:
        """The runner's steps: ``updates`` of kernel nodes' parameters, then a launch.

        The caller keeps the parameters alive.
        """
        self._executable = graph = self._gpu.instantiate(self.handle)
        steps = [
            runner.Parameters(
                StepKind.PARAMETERS, graph, node, ctypes.addressof(parameters)
            )
            for node, parameters in updates
        ]
        return [*steps, runner.GraphLaunch(StepKind.GRAPH, graph)]


def record(plan: Plan, enqueue: Callable[[int], None], max_launches: int) -> Plan:
    """A variant of ``plan`` that launches what ``enqueue`` puts into a stream.

    Between two graphs the GPU idles for 1 to 2 us (H200), between two kernels of a
    stream it does not. So up to ``max_launches`` kernels and fills with zeros, each
    dependent on the one before, are launched one by one; all else as a graph.
    """
    graph = CapturedGraph(device().record(enqueue), plan.code)
    launches = _RecordedLaunches()
    nodes = _chain(graph.handle, max_launches)
    if nodes and all(map(launches.add, nodes)):
        return plan.of(launches.steps, (), (graph, launches))
    return plan.of(graph.launch(), (), graph)


def _chain(graph: int, most: int) -> list[int]:
    """The nodes of ``graph``; empty if they are more than ``most``, or not a chain.

    An edge of programmatic dependent launch, whose second node may begin before the
    first one has ended, is not one of a chain.
    """
    gpu = device()
    nodes, edges, count = (ctypes.c_void_p * 2)(), (ctypes.c_uint64 * 2)(), _two()
    status = gpu.library.cuGraphGetRootNodes(
        ctypes.c_void_p(graph), nodes, ctypes.byref(count)
    )
    gpu.check(status, "in a graph")
    found: list[int] = []
    while count.value == 1 and not edges[0] and len(found) < most:
        found.append(int(nodes[0] or 0))
        count = _two()
        status = gpu.library.cuGraphNodeGetDependentNodes_v2(
            ctypes.c_void_p(found[-1]), nodes, edges, ctypes.byref(count)
        )
        gpu.check(status, "in a graph")
    return [] if count.value else found


def _two() -> ctypes.c_size_t:
    """The capacity of the arrays for nodes: two, to see if there is a second one."""
    return ctypes.c_size_t(2)


class _RecordedLaunches:
    """The runner's steps that launch nodes of a graph, and what they point to."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._kept: list[object] = []

    def add(self, node: int) -> bool:
        """Add the step of a node; False if the runner cannot launch it."""
        kind = ctypes.c_int()
        self._query("cuGraphNodeGetType", node, kind)
        if kind.value == KERNEL_NODE:
            self.steps.append(self._kernel(node))
            return True
        return kind.value == MEMSET_NODE and self._zeros(node)

    def _query(self, name: str, node: int, *arguments: Any) -> None:
        """Call the driver's ``name`` on a node; the last argument is its result."""
        *numbers, result = arguments
        function = getattr(device().library, name)
        status = function(ctypes.c_void_p(node), *numbers, ctypes.byref(result))
        device().check(status, "in a graph")

    def _kernel(self, node: int) -> Recorded:
        """The launch of the kernel that is ``node`` of the graph."""
        kernel = KernelNodeParams()
        self._query("cuGraphKernelNodeGetParams_v2", node, kernel)
        attributes = (LaunchAttribute * len(LAUNCH_ATTRIBUTES))()
        count = 0
        for number in LAUNCH_ATTRIBUTES:
            value = (ctypes.c_uint64 * 8)()
            self._query("cuGraphKernelNodeGetAttribute", node, number, value)
            if any(value):
                attributes[count] = LaunchAttribute(number, value)
                count += 1
        config = LaunchConfig(
            blocks=kernel.blocks,
            threads=kernel.threads,
            shared=kernel.shared,
            stream=device().stream,
            attributes=ctypes.addressof(attributes),
            attribute_count=count,
        )
        self._kept += [config, attributes]
        function = kernel.function or kernel.kernel
        launch = ctypes.addressof(config), function, kernel.parameters
        return Recorded(StepKind.RECORDED, *launch)

    def _zeros(self, node: int) -> bool:
        """Append the memset that is ``node``; False unless it sets zeros."""
        memset = MemsetNodeParams()
        self._query("cuGraphMemsetNodeGetParams", node, memset)
        if memset.value or memset.height != 1:
            return False
        target = ctypes.c_int64(memset.target)
        self._kept.append(target)
        nbytes = memset.width * memset.element_bytes
        self.steps.append(Zeros(StepKind.ZEROS, ctypes.addressof(target), nbytes))
        return True
