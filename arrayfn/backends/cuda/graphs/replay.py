"""Makes plans that replay a captured graph: as a whole, or its kernels one by one.

A captured graph is launched whole (``CapturedGraph``), in half the time of a kernel's
launch. ``updated_graph`` makes a plan for any addresses: it updates the parameters of
the graph's kernel nodes first, in 0.17 us a node (H200). ``graph_or_launches`` makes a
plan for the captured addresses only, which may launch the graph's kernels one by one.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, Final

from arrayfn.backends.cuda import runner
from arrayfn.backends.cuda.driver import device
from arrayfn.backends.cuda.encoded_plan import EncodedPlan
from arrayfn.backends.cuda.graphs.capture import (
    ConcurrentCapture,
    capture_info,
    launch_kernel,
)
from arrayfn.backends.cuda.plan_nodes import (
    ALL_MEMORY,
    Access,
    NativeRun,
    Node,
    one_by_one,
)
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

KERNEL_NODE: Final = 0  # CUgraphNodeType
MEMSET_NODE: Final = 2  # CUgraphNodeType
LAUNCH_ATTRIBUTES: Final = (1, 2, 4, 5, 8, 14)
"""The attributes that a recorded launch keeps, each a CUlaunchAttributeID.

They are the access policy window of the L2 cache, cooperative launch, cluster
dimensions, the scheduling policy of clusters, the priority, and the carve-out for
shared memory.
"""


class KernelNodeParams(Struct):
    """The driver's struct CUDA_KERNEL_NODE_PARAMS."""

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
        """Return the parameters of a kernel step of the runner."""
        return cls(
            function=step.function,
            blocks=(step.blocks, 1, 1),
            threads=(step.threads, 1, 1),
            shared=step.shared,
            parameters=step.parameters,
        )

    def capture(self, stream: int) -> int:
        """Launch the kernel on ``stream``, which is being captured; return its node."""
        sizes = self.blocks[0], self.threads[0]
        launch_kernel(stream, self.function, *sizes, self.parameters)
        _, (node,) = capture_info(stream)
        return node


class MemsetNodeParams(Struct):
    """The driver's struct CUDA_MEMSET_NODE_PARAMS."""

    target: int
    pitch: int
    value: u32
    element_bytes: u32
    width: int
    height: int


class CapturedGraph:
    """Owns a captured graph (CUgraph), and its executable graph.

    ``launch`` makes the executable graph. ``code`` is kept alive until the graphs are
    destroyed: the loaded kernels of the graph's nodes.
    """

    def __init__(self, handle: int, code: object) -> None:
        self._gpu = device()
        self._code = code
        self.handle = handle
        self._executable = 0

    # ``is_finalizing`` is a default argument because the module's names may be gone
    # when the interpreter ends.
    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing():
            if self._executable:
                self._gpu.destroy_graph(self._executable)
            self._gpu.library.cuGraphDestroy(ctypes.c_void_p(self.handle))

    def launch(
        self, updates: Sequence[tuple[int, KernelNodeParams]] = ()
    ) -> list[Step]:
        """Instantiate the graph, and return the runner's steps that launch it.

        First come ``updates``: pairs of a kernel node and its parameters, which the
        runner sets before each launch. The caller keeps the parameters alive.
        """
        self._executable = graph = self._gpu.instantiate(self.handle)
        steps = [
            runner.Parameters(
                StepKind.PARAMETERS, graph, node, ctypes.addressof(parameters)
            )
            for node, parameters in updates
        ]
        return [*steps, runner.GraphLaunch(StepKind.GRAPH, graph)]


def updated_graph(encoded: EncodedPlan, nodes: Sequence[Node], addresses: Any) -> Plan:
    """Capture ``nodes`` as a graph; return a plan that launches it at any addresses.

    ``nodes`` are ordinary kernels of ``encoded``. The plan updates the parameters of
    all kernel nodes before each launch. The graph is captured at ``addresses``, which
    also show which buffers overlap, and so which kernels depend on each other.
    """
    rows = encoded.kernels(nodes)
    assert rows is not None
    graph_nodes: list[int] = []

    def enqueue(stream: int) -> None:
        """Enqueue the kernels, and collect the graph's node of each."""
        steps = ConcurrentCapture(stream)
        for step in one_by_one(nodes):
            assert isinstance(step, NativeRun)
            accesses: Sequence[Access] = (ALL_MEMORY,)
            if encoded.is_small(step):
                accesses = encoded.accesses(step, addresses)
            steps.add(accesses, partial(encoded.launch, step, addresses, stream))
            graph_nodes.extend(capture_info(stream)[1])
        steps.join()

    graph = CapturedGraph(device().capture(enqueue), encoded.plan.code)
    kernels = [KernelNodeParams.of(row) for row in rows]
    updates = list(zip(graph_nodes, kernels, strict=True))
    return encoded.plan.variant(graph.launch(updates), kept=(graph, kernels))


def graph_or_launches(
    plan: Plan, enqueue: Callable[[int], None], max_launches: int
) -> Plan:
    """Make a variant of ``plan`` that replays the work of ``enqueue(stream)``.

    The work is captured as a graph. If the graph is a chain of at most ``max_launches``
    kernels and fills with zeros, the variant launches them one by one with the captured
    parameters, else it launches the graph. Between two graphs the GPU idles for 1 to 2
    us (H200), between two kernels of a stream it does not.
    """
    graph = CapturedGraph(device().capture(enqueue), plan.code)
    launches = _RecordedLaunches()
    nodes = _chain(graph.handle, max_launches)
    if nodes and all(map(launches.add, nodes)):
        return plan.variant(launches.steps, slots=(), kept=(graph, launches))
    return plan.variant(graph.launch(), slots=(), kept=graph)


def _chain(graph: int, max_nodes: int) -> list[int]:
    """Return the nodes of ``graph`` if they are a chain of at most ``max_nodes``.

    Otherwise the result is empty. In a chain each node depends on the previous one by
    an ordinary edge; an edge of programmatic dependent launch, which lets the second
    node begin before the first one ends, does not count.
    """
    gpu = device()
    nodes, edges, count = (ctypes.c_void_p * 2)(), (ctypes.c_uint64 * 2)(), _two()
    status = gpu.library.cuGraphGetRootNodes(
        ctypes.c_void_p(graph), nodes, ctypes.byref(count)
    )
    gpu.check(status, "in a graph")
    chain: list[int] = []
    # ``edges[0]`` has the type of the edge, 0 if it is ordinary.
    while count.value == 1 and not edges[0] and len(chain) < max_nodes:
        chain.append(int(nodes[0] or 0))
        count = _two()
        status = gpu.library.cuGraphNodeGetDependentNodes_v2(
            ctypes.c_void_p(chain[-1]), nodes, edges, ctypes.byref(count)
        )
        gpu.check(status, "in a graph")
    return [] if count.value else chain


def _two() -> ctypes.c_size_t:
    """Return 2, the capacity of the arrays of nodes, to pass by reference.

    The driver replaces it by the number of nodes; 2 shows that there is a second node.
    """
    return ctypes.c_size_t(2)


class _RecordedLaunches:
    """Collects the runner's steps that launch single nodes of a graph.

    It keeps alive the memory that the steps point to.
    """

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._kept: list[object] = []

    def add(self, node: int) -> bool:
        """Append the step that launches ``node``, a CUgraphNode.

        Returns False if the runner cannot launch such a node.
        """
        kind = ctypes.c_int()
        self._query("cuGraphNodeGetType", node, kind)
        if kind.value == KERNEL_NODE:
            self.steps.append(self._kernel(node))
            return True
        return kind.value == MEMSET_NODE and self._zeros(node)

    def _query(self, name: str, node: int, *arguments: Any) -> None:
        """Call the driver's function ``name`` for ``node``.

        The last of ``arguments`` is the ctypes object that receives the result.
        """
        *numbers, result = arguments
        function = getattr(device().library, name)
        status = function(ctypes.c_void_p(node), *numbers, ctypes.byref(result))
        device().check(status, "in a graph")

    def _kernel(self, node: int) -> Recorded:
        """Make the step that launches the kernel of ``node`` as it was captured."""
        kernel = KernelNodeParams()
        self._query("cuGraphKernelNodeGetParams_v2", node, kernel)
        attributes = (LaunchAttribute * len(LAUNCH_ATTRIBUTES))()
        count = 0
        for number in LAUNCH_ATTRIBUTES:
            value = (ctypes.c_uint64 * 8)()
            self._query("cuGraphKernelNodeGetAttribute", node, number, value)
            if any(value):  # not the default
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
        """Append the step of a memset ``node``.

        Returns False if the memset is not a fill of contiguous memory with zeros.
        """
        memset = MemsetNodeParams()
        self._query("cuGraphMemsetNodeGetParams", node, memset)
        if memset.value or memset.height != 1:
            return False
        target = ctypes.c_int64(memset.target)
        self._kept.append(target)
        nbytes = memset.width * memset.element_bytes
        self.steps.append(Zeros(StepKind.ZEROS, ctypes.addressof(target), nbytes))
        return True
