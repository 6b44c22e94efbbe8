"""The nodes of an encoded plan: runs of native launches, host calls, loops, branches.

Loops and branches hold nodes themselves. ``EncodedPlan`` makes the nodes of a plan, and
the modules of ``graphs`` launch them or capture them into CUDA graphs. The functions at
the end decide which loops a graph unrolls in part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from arrayfn.lowering.plan import (
    Branch,
    BufferAllocation,
    BufferArgument,
    KernelCall,
    Loop,
)

MAX_UNROLLED: Final = 1 << 9
"""Launches of the longest loop that a graph unrolls whole."""
WINDOW_LAUNCHES: Final = 1 << 7
"""Launches that a graph unrolls of a longer loop; they are captured in some 3 ms."""

Access = tuple[int, int, bool]
"""Memory that a step accesses: its begin, its end, and whether the step writes it."""


@dataclass(frozen=True)
class StepAccesses:
    """The buffers that a step reads and writes, by number, and how long it runs.

    ``own`` is a library's workspace (begin, end), which all of its steps write. A step
    that is not ``small`` fills the GPU: running two of them concurrently would be
    slower. A step runs at least as long as ``lasts`` launches take. A collective is
    ``beside``: other steps run concurrently with it, as it needs no multiprocessor.
    """

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    own: tuple[int, int] = (0, 0)
    small: bool = True
    lasts: int = 0
    beside: bool = False


@dataclass(frozen=True)
class NativeRun:
    """``count`` encoded steps from ``first`` on: one call of the native runner."""

    first: int
    count: int


@dataclass(frozen=True)
class HostCall:
    """A library's function, called from Python: ``enqueue(stream, *addresses)``.

    ``arguments`` are buffers and byte offsets.
    """

    enqueue: Callable[..., None]
    arguments: tuple[tuple[int, int], ...]
    capturable: bool
    accesses: StepAccesses


@dataclass(frozen=True)
class LoopNode:
    """``loop``, with its body as nodes.

    A graph unrolls ``window`` iterations of it, and repeats these; if that is 0 it
    unrolls them all. ``written`` are the buffers that an iteration writes, if the loop
    has a window.
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
    """``nodes``, with each run of several steps split into runs of one."""
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


def is_capturable(node: Node) -> bool:
    """Whether a stream capture can include ``node``."""
    if isinstance(node, HostCall):
        return node.capturable
    if isinstance(node, NativeRun):
        return True
    return all(is_capturable(inner) for block in blocks(node) for inner in block)


def synchronizes(nodes: Iterable[Node]) -> bool:
    """Whether launching ``nodes`` directly waits for values from the GPU."""
    return any(
        isinstance(node, BranchNode)
        or (
            isinstance(node, LoopNode)
            and (node.loop.count is None or synchronizes(node.body))
        )
        for node in nodes
    )


def has_windows(nodes: Iterable[Node]) -> bool:
    """Whether a graph of ``nodes`` repeats a window of a loop's iterations."""
    return any(
        isinstance(node, LoopNode) and (node.window > 0 or has_windows(node.body))
        for node in nodes
    )


def launches(nodes: Iterable[Node]) -> int:
    """About how many launches a graph of ``nodes`` holds."""
    total = 0
    for node in nodes:
        if isinstance(node, NativeRun):
            total += node.count
        elif isinstance(node, HostCall):
            total += 1
        elif isinstance(node, BranchNode):
            total += 1 + sum(map(launches, node.branches))
        else:
            total += _unrolled(node) * max(1, launches(node.body))
    return total


def _unrolled(node: LoopNode) -> int:
    """How many iterations of a loop a graph holds."""
    if node.loop.count is None:
        return 2
    if node.window:
        return node.window + node.loop.count % node.window
    return node.loop.count


# A graph has fixed addresses, and a node for each launch. A long loop is therefore a
# conditional node that repeats a window of its iterations. The slices of a window lie
# in memory of its own: they are copied there before each window, and the written ones
# are copied back after it.


def window_length(count: int | None, body: Sequence[Node]) -> int:
    """How many iterations of a long loop a graph unrolls; 0 if it unrolls them all.

    The number is even, so that double-buffered carries end where they began. Loops with
    calls of libraries are unrolled whole: some calls synchronize in conditional nodes.

    >>> from arrayfn.backends.cuda.plan_nodes import NativeRun
    >>> window_length(20_000, [NativeRun(0, 3)])
    42
    >>> window_length(150, [NativeRun(0, 3)])
    0
    """
    each = max(1, launches(body))
    if count is None or count * each <= MAX_UNROLLED or calls_host(body):
        return 0
    length = max(2, WINDOW_LAUNCHES // each // 2 * 2)
    return length if count >= 2 * length else 0


def writes_of(step: KernelCall) -> tuple[int, ...]:
    """The buffers that a step writes: all of its arguments that it does not read."""
    given = [a.buffer for a in step.arguments if isinstance(a, BufferArgument)]
    return tuple({*step.writes, *given} - {*step.reads} | {*step.writes})


def writes_in(loop: Loop) -> frozenset[int]:
    """The buffers that an iteration of ``loop`` writes."""
    found = [buffer for c in loop.carries for buffer in (c.first, c.second, c.result)]
    for step in loop.body:
        found += writes_of(step) if isinstance(step, KernelCall) else step.writes
    return frozenset(found)


def is_apart(
    loop: Loop, written: AbstractSet[int], buffers: Sequence[BufferAllocation]
) -> bool:
    """Whether the slices of ``loop`` may lie in a copy while a window of it runs.

    No other slice and no step may access an array that is written in slices. No step
    may write an array that is read in slices.
    """

    def roots(numbers: Iterable[int]) -> list[int]:
        donors = ((number, buffers[number].donor) for number in numbers)
        return [number if donor is None else donor for number, donor in donors]

    changed = {*roots(written)}
    accessed = changed | {*roots(n for step in loop.body for n in step.reads)}
    sources = roots(s.source for s in loop.slices)
    return all(
        source not in accessed and sources.count(source) == 1
        if s.buffer in written
        else source not in changed
        for s, source in zip(loop.slices, sources, strict=True)
    )
