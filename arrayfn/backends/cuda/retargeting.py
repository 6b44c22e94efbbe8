"""Graphs of a few kernels, which are told before each launch where their arrays are."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from arrayfn.backends.cuda.captures import Access, SideBySide, captured
from arrayfn.backends.cuda.driver import device
from arrayfn.backends.cuda.image import Image
from arrayfn.backends.cuda.kernel_nodes import Graph, Kernel
from arrayfn.backends.cuda.nodes import NativeRun, Node, one_by_one
from arrayfn.backends.cuda.runner import Plan

_MOST_KERNELS: Final = 32
_ALL_MEMORY: Final[Access] = (0, 1 << 63, True)


def retargeted(image: Image, nodes: Sequence[Node], addresses: Any) -> Plan:
    """The plan of a graph of ``nodes``, where that ``is_possible``.

    Which buffers overlap each other is seen at ``addresses``.
    """
    rows = image.kernels(nodes)
    assert rows is not None
    graph_nodes: list[int] = []

    def enqueue(stream: int) -> None:
        order = SideBySide(stream)
        for step in one_by_one(nodes):
            assert isinstance(step, NativeRun)
            touched: Sequence[Access] = (_ALL_MEMORY,)
            if image.is_small(step):
                touched = image.accesses(step, addresses)
            order.add(touched, partial(image.launch, step, addresses, stream))
            graph_nodes.extend(captured(stream)[1])
        order.join()

    graph = Graph(device().record(enqueue))
    kernels = [Kernel.of(row) for row in rows]
    told = list(zip(graph_nodes, kernels, strict=True))
    return image.plan.of(graph.steps(told), kept=(graph, kernels))


def is_possible(image: Image, nodes: Sequence[Node]) -> bool:
    """Whether ``nodes`` are a few ordinary kernels."""
    rows = image.kernels(nodes)
    return rows is not None and len(rows) <= _MOST_KERNELS
