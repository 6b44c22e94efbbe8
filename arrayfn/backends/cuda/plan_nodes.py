"""The nodes of an encoded plan: runs of native launches, host calls, loops, branches.

Loops and branches hold nodes themselves. ``EncodedPlan`` makes the nodes of a plan, and
the modules of ``graphs`` launch them or capture them into CUDA graphs. The functions at
the end decide which loops a graph unrolls in part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from arrayfn.lowering.plan import (
    Branch,
    BufferAllocation,
    BufferArgument,
    KernelCall,
    Loop,
)
from arrayfn.records import frozen

MAX_UNROLLED_LAUNCHES: Final = 1 << 9
"""Most launches of a loop that a graph unrolls completely."""
PARTLY_UNROLLED_LAUNCHES: Final = 1 << 7
"""About how many launches a graph holds of a longer loop; a capture takes some 3 ms."""

Access = tuple[int, int, bool]
"""Memory that a step accesses: (begin address, end address, whether it is written)."""
ALL_MEMORY: Final[Access] = (0, 1 << 63, True)
"""The access of a step whose memory is unknown: it conflicts with all others."""


@frozen
class StepAccesses:
    """The memory that a step accesses, and whether others may run beside it.

    Attributes:
        reads, writes: numbers of buffers.
        workspace: other memory (begin, end) that the step writes, and that steps of the
            same library share.
        small: whether the step leaves room on the GPU for another step. Two steps that
            do not would be slower if they ran concurrently.
        duration: a lower bound of the step's time, in the time of a kernel's launch by
            the host.
        is_collective: whether the step is a collective. Large steps run concurrently
            with collectives too, which need few multiprocessors.
    """

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    workspace: tuple[int, int] = (0, 0)
    small: bool = True
    duration: int = 0
    is_collective: bool = False


@frozen
class NativeRun:
    """A run of native steps, which one call of the native runner launches.

    It is ``count`` steps of an ``EncodedPlan``, from the one of number ``first`` on.
    """

    first: int
    count: int


@frozen
class HostCall:
    """A call of a library by Python: ``enqueue(stream, *addresses)``.

    ``arguments`` are pairs (buffer number, byte offset), for the addresses.
    ``capturable`` says whether a stream capture can include the call.
    """

    enqueue: Callable[..., None]
    arguments: tuple[tuple[int, int], ...]
    capturable: bool
    accesses: StepAccesses


@frozen
class LoopNode:
    """The plan's step ``loop``, with its body as nodes.

    A graph of the loop holds ``unrolled`` iterations, which a conditional node repeats;
    if ``unrolled`` is 0, the graph holds all iterations. ``written`` are the numbers of
    the buffers that an iteration writes; it is set for partly unrolled loops.
    """

    loop: Loop
    body: tuple[Node, ...]
    unrolled: int = 0
    written: frozenset[int] = frozenset()


@frozen
class BranchNode:
    """The plan's step ``branch``, with the steps of each of its branches as nodes."""

    branch: Branch
    branches: tuple[tuple[Node, ...], ...]


Node = NativeRun | HostCall | LoopNode | BranchNode


def inner_nodes(node: LoopNode | BranchNode) -> tuple[tuple[Node, ...], ...]:
    """Return the lists of nodes inside ``node``: a loop's body, or all branches."""
    return (node.body,) if isinstance(node, LoopNode) else node.branches


def one_by_one(nodes: Iterable[Node]) -> Iterator[Node]:
    """Yield ``nodes``, with each run of several steps split into runs of one step."""
    for node in nodes:
        if isinstance(node, NativeRun) and node.count > 1:
            yield from (NativeRun(node.first + k, 1) for k in range(node.count))
        else:
            yield node


def host_calls(nodes: Iterable[Node]) -> Iterator[HostCall]:
    """Yield the host calls among ``nodes`` and the nodes inside them."""
    for node in nodes:
        if isinstance(node, HostCall):
            yield node
        elif isinstance(node, (LoopNode, BranchNode)):
            for inner in inner_nodes(node):
                yield from host_calls(inner)


def has_collectives(nodes: Iterable[Node]) -> bool:
    """Whether some of ``nodes``, or nodes inside them, are collectives."""
    return any(call.accesses.is_collective for call in host_calls(nodes))


def is_capturable(node: Node) -> bool:
    """Whether a stream capture can include ``node``, with all nodes inside it."""
    return all(call.capturable for call in host_calls([node]))


def synchronizes(nodes: Iterable[Node]) -> bool:
    """Whether launching ``nodes`` without a graph waits for values from the GPU.

    The host waits for the index of a branch and for the predicate of a while loop.
    """
    return any(
        isinstance(node, BranchNode)
        or (
            isinstance(node, LoopNode)
            and (node.loop.count is None or synchronizes(node.body))
        )
        for node in nodes
    )


def has_partly_unrolled_loops(nodes: Iterable[Node]) -> bool:
    """Whether some of ``nodes``, or nodes in loop bodies, are partly unrolled loops."""
    return any(
        isinstance(node, LoopNode)
        and (node.unrolled > 0 or has_partly_unrolled_loops(node.body))
        for node in nodes
    )


def count_launches(nodes: Iterable[Node]) -> int:
    """Estimate how many launches a graph of ``nodes`` holds."""
    total = 0
    for node in nodes:
        if isinstance(node, NativeRun):
            total += node.count
        elif isinstance(node, HostCall):
            total += 1
        elif isinstance(node, BranchNode):
            total += 1 + sum(map(count_launches, node.branches))
        else:
            total += _iterations_in_graph(node) * max(1, count_launches(node.body))
    return total


def _iterations_in_graph(node: LoopNode) -> int:
    """Return for how many iterations of a loop its graph holds nodes.

    A conditional node repeats ``node.unrolled`` iterations, unless that is 0.
    """
    if node.loop.count is None:
        return 2  # one for each of the double buffers
    if node.unrolled:
        # Nodes for the remaining iterations follow those that are repeated.
        return node.unrolled + node.loop.count % node.unrolled
    return node.loop.count


# A graph has fixed addresses, and a node for each launch. A long loop is therefore a
# conditional node that repeats some unrolled iterations. The iterations read and write
# slices of arrays in memory of the loop's own: the slices are copied there before each
# repetition, and the written slices are copied back after it.


def unrolled_iterations(count: int | None, body: Sequence[Node]) -> int:
    """Return how many iterations of a long loop a graph holds and repeats.

    ``count`` is the trip count, None if the loop ends by a predicate. The number is
    even, so that double-buffered carries end in the buffer where they began.

    The result is 0 for a loop that is not repeated in this way: it has a predicate, is
    short, or calls libraries, some of which synchronize in conditional nodes.

    >>> from arrayfn.backends.cuda.plan_nodes import NativeRun
    >>> unrolled_iterations(20_000, [NativeRun(0, 3)])
    42
    >>> unrolled_iterations(150, [NativeRun(0, 3)])
    0
    """
    per_iteration = max(1, count_launches(body))
    if (
        count is None
        or count * per_iteration <= MAX_UNROLLED_LAUNCHES
        or any(host_calls(body))
    ):
        return 0
    # The largest even number of iterations with so many launches, but at least 2.
    length = max(2, PARTLY_UNROLLED_LAUNCHES // per_iteration // 2 * 2)
    return length if count >= 2 * length else 0


def buffers_written_by(step: KernelCall) -> tuple[int, ...]:
    """Return the numbers of the buffers that ``step`` writes.

    These are its ``writes``, and arguments that are not among its ``reads``.
    """
    accessed = [a.buffer for a in step.arguments if isinstance(a, BufferArgument)]
    return tuple({*step.writes, *accessed} - {*step.reads} | {*step.writes})


def buffers_written_in(loop: Loop) -> frozenset[int]:
    """Return the numbers of the buffers that ``loop`` writes.

    They are the buffers of its carries, and those that the steps of its body write.
    """
    written = [buffer for c in loop.carries for buffer in (c.first, c.second, c.result)]
    for step in loop.body:
        written += (
            buffers_written_by(step) if isinstance(step, KernelCall) else step.writes
        )
    return frozenset(written)


def slices_can_be_copied(
    loop: Loop, written: AbstractSet[int], buffers: Sequence[BufferAllocation]
) -> bool:
    """Whether a graph may copy the slices of ``loop`` to and from fixed memory.

    That is safe if no other slice and no step accesses an array that is written in
    slices, and if no step writes an array that is read in slices. ``written`` are the
    numbers of the buffers that an iteration writes.
    """

    def roots(numbers: Iterable[int]) -> list[int]:
        """Replace each buffer that overwrites a donated input by that input's buffer.

        ``donor`` is the input's number, and inputs are the first buffers.
        """
        donors = ((number, buffers[number].donor) for number in numbers)
        return [number if donor is None else donor for number, donor in donors]

    changed = {*roots(written)}
    accessed = changed | {*roots(n for step in loop.body for n in step.reads)}
    sources = roots(s.source for s in loop.slices)
    # The first condition is for slices that are written, the second for all others.
    return all(
        source not in accessed and sources.count(source) == 1
        if s.buffer in written
        else source not in changed
        for s, source in zip(loop.slices, sources, strict=True)
    )
