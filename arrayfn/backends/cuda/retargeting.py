"""Graphs of a few kernels, which are told before each launch where their arrays are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from arrayfn.backends.cuda.captures import Access
from arrayfn.backends.cuda.image import Image
from arrayfn.backends.cuda.kernel_nodes import Kernel, graph_of
from arrayfn.backends.cuda.nodes import NativeRun, Node
from arrayfn.backends.cuda.runner import Plan

_MOST_KERNELS: Final = 32
_ALL_MEMORY: Final[Access] = (0, 1 << 63, True)


class Retargeting:
    """The graph of a plan's ``nodes``, where that ``is_possible``; ``plan`` runs it."""

    def __init__(self, image: Image, nodes: Sequence[Node], addresses: Any) -> None:
        """Which buffers overlap each other is seen at ``addresses``."""
        rows = image.kernels(nodes)
        (run,) = nodes
        assert rows is not None
        assert isinstance(run, NativeRun)
        steps = [NativeRun(run.first + k, 1) for k in range(run.count)]
        # Small ones side by side: what is large has the GPU to itself.
        accesses = [
            image.accesses(step, addresses) if image.is_small(step) else (_ALL_MEMORY,)
            for step in steps
        ]
        self._kernels = [Kernel.of(row) for row in rows]
        self._graph, graph_nodes = graph_of(self._kernels, accesses)
        told = list(zip(graph_nodes, self._kernels, strict=True))
        self.plan: Plan = image.plan.of(self._graph.steps(told))


def is_possible(image: Image, nodes: Sequence[Node]) -> bool:
    """Whether ``nodes`` are a few ordinary kernels."""
    rows = image.kernels(nodes)
    return rows is not None and len(rows) <= _MOST_KERNELS
