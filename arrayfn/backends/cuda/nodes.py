"""What an encoded plan is made of: its steps in order, with loops and branches.

Runs of kernel launches, matrix products and fills, which one native call launches
(``NativeRun``); what a library's own function enqueues (``HostCall``); loops and
branches, whose bodies are nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from arrayfn.lowering.plan import Branch, Loop


@dataclass(frozen=True)
class Touches:
    """What a step reads and writes: numbers of buffers.

    ``own`` is memory of a library's, which its steps write in turns. A step that is not
    ``small`` has the GPU to itself: two of them side by side would be slower. It takes
    at least as long as ``lasts`` launches.
    """

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    own: tuple[int, int] = (0, 0)
    small: bool = True
    lasts: int = 0


@dataclass(frozen=True)
class NativeRun:
    """``count`` steps of the table from ``first`` on."""

    first: int
    count: int


@dataclass(frozen=True)
class HostCall:
    """``enqueue(stream, *addresses)`` of ``places``: (buffer, bytes into it)."""

    enqueue: Callable[..., None]
    places: tuple[tuple[int, int], ...]
    capturable: bool
    touches: Touches


@dataclass(frozen=True)
class LoopNode:
    """``loop``, with its body as nodes.

    A graph has ``window`` turns of it written out, and repeats these; all if it is 0.
    ``written`` are the buffers that a turn writes, as far as that is asked for.
    """

    loop: Loop
    body: tuple[Node, ...]
    window: int = 0
    written: frozenset[int] = frozenset()


@dataclass(frozen=True)
class BranchNode:
    """``branch``, with its branches as nodes."""

    branch: Branch
    branches: tuple[tuple[Node, ...], ...]


Node = NativeRun | HostCall | LoopNode | BranchNode


def blocks(node: LoopNode | BranchNode) -> tuple[tuple[Node, ...], ...]:
    """The lists of nodes inside ``node``."""
    return (node.body,) if isinstance(node, LoopNode) else node.branches


def one_by_one(nodes: Iterable[Node]) -> Iterator[Node]:
    """``nodes``, with runs of several steps as runs of one."""
    for node in nodes:
        if isinstance(node, NativeRun) and node.count > 1:
            yield from (NativeRun(node.first + k, 1) for k in range(node.count))
        else:
            yield node


def calls_host(nodes: Iterable[Node]) -> bool:
    """Whether Python enqueues some of ``nodes``."""
    return any(
        any(map(calls_host, blocks(node)))
        if isinstance(node, (LoopNode, BranchNode))
        else isinstance(node, HostCall)
        for node in nodes
    )


def launches(nodes: Iterable[Node]) -> int:
    """How many launches a graph of ``nodes`` has, about."""
    total = 0
    for node in nodes:
        if isinstance(node, NativeRun):
            total += node.count
        elif isinstance(node, HostCall):
            total += 1
        elif isinstance(node, BranchNode):
            total += 1 + sum(map(launches, node.branches))
        else:
            total += _turns(node) * max(1, launches(node.body))
    return total


def _turns(node: LoopNode) -> int:
    """How many turns of a loop are written out in a graph."""
    if node.loop.count is None:
        return 2
    if node.window:
        return node.window + node.loop.count % node.window
    return node.loop.count
