"""What a stream records, as a plan that the runner launches for the same addresses.

A graph is one launch. But between two graphs the GPU rests for 1 to 2 us (H200), and
between two kernels of a stream it does not. So a few steps that take longer than their
launches are launched one by one, as each was recorded.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Final

from arrayfn.backends.cuda.driver import device
from arrayfn.backends.cuda.kernel_nodes import Graph, Kernel
from arrayfn.backends.cuda.runner import (
    LaunchAttribute,
    LaunchConfig,
    Plan,
    Recorded,
    Step,
    StepKind,
    Zeros,
)
from arrayfn.backends.native.structures import Struct, u32

KERNEL_NODE: Final = 0  # CUgraphNodeType
MEMSET_NODE: Final = 2
ATTRIBUTES: Final = (1, 2, 4, 5, 8, 14)
"""What a kernel's launch may say, each a CUlaunchAttributeID.

Which memory to keep in the cache, that all blocks run at once, clusters and where they
go, a priority, and how much of a multiprocessor's memory is shared.
"""


class _Memset(Struct):
    """CUDA_MEMSET_NODE_PARAMS: lines of so many elements."""

    target: int
    pitch: int
    value: u32
    element_bytes: u32
    elements: int
    lines: int


def recorded(plan: Plan, enqueue: Callable[[int], None], most_steps: int) -> Plan:
    """As ``plan``, but of what ``enqueue`` puts into the stream that it is given.

    One by one, if these are kernels and fills with zeros, ``most_steps`` of them at
    most, each after the one before; else a graph.
    """
    graph = Graph(device().record(enqueue))
    steps = _Steps()
    nodes = _chain(graph.recorded, most_steps)
    if nodes and all(map(steps.add, nodes)):
        return plan.of(steps.steps, (), (graph, steps))
    return plan.of(graph.steps(()), (), graph)


def _chain(graph: int, most: int) -> list[int]:
    """The nodes of ``graph``: none if they are more than ``most``, or not a chain.

    A node that may begin before the one before has ended does not come after it.
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
    """Room for two nodes: whether there is another one than the first."""
    return ctypes.c_size_t(2)


class _Steps:
    """The runner's steps for nodes, and what they point to."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._kept: list[object] = []

    def add(self, node: int) -> bool:
        """Add the step of a node; False if there is none."""
        kind = ctypes.c_int()
        self._ask("cuGraphNodeGetType", node, kind)
        if kind.value == KERNEL_NODE:
            self.steps.append(self._kernel(node))
            return True
        return kind.value == MEMSET_NODE and self._zeros(node)

    def _ask(self, name: str, node: int, *given: Any) -> None:
        """Have the driver say something of a node: the last of what is given."""
        *numbers, answer = given
        function = getattr(device().library, name)
        status = function(ctypes.c_void_p(node), *numbers, ctypes.byref(answer))
        device().check(status, "in a graph")

    def _kernel(self, node: int) -> Recorded:
        kernel = Kernel()
        self._ask("cuGraphKernelNodeGetParams_v2", node, kernel)
        said = (LaunchAttribute * len(ATTRIBUTES))()
        count = 0
        for number in ATTRIBUTES:
            value = (ctypes.c_uint64 * 8)()
            self._ask("cuGraphKernelNodeGetAttribute", node, number, value)
            if any(value):
                said[count] = LaunchAttribute(number, value)
                count += 1
        config = LaunchConfig(
            blocks=kernel.blocks,
            threads=kernel.threads,
            shared=kernel.shared,
            stream=device().stream,
            attributes=ctypes.addressof(said),
            attribute_count=count,
        )
        self._kept += [config, said]
        function = kernel.function or kernel.kernel
        launched = ctypes.addressof(config), function, kernel.parameters
        return Recorded(StepKind.RECORDED, *launched)

    def _zeros(self, node: int) -> bool:
        filled = _Memset()
        self._ask("cuGraphMemsetNodeGetParams", node, filled)
        if filled.value or filled.lines != 1:
            return False
        place = ctypes.c_int64(filled.target)
        self._kept.append(place)
        nbytes = filled.elements * filled.element_bytes
        self.steps.append(Zeros(StepKind.ZEROS, ctypes.addressof(place), nbytes))
        return True
