"""Which loops a graph has a window of: some turns, which it repeats and counts.

A graph has fixed addresses, and a node for each launch. So the slices of a window's
turns lie in memory of its own; they are brought there, and what is written is taken
back, between the windows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from arrayfn.backends.cuda.nodes import Node, calls_host, launches
from arrayfn.lowering.plan import BufferAllocation, BufferArgument, KernelCall, Loop

MOST_WRITTEN_OUT: Final = 1 << 9
"""Launches of a loop in a graph that has a node for each of them."""
WINDOW_LAUNCHES: Final = 1 << 7
"""And of the turns that a graph of a longer loop repeats: captured in some 3 ms."""


def window_length(count: int | None, body: Sequence[Node]) -> int:
    """How many turns of a long loop a graph is to repeat; 0 if it has all of them.

    They are an even number: values with two places by turns are then where they were.
    What libraries enqueue is only for graphs that are written out: some wait in others.

    >>> from arrayfn.backends.cuda.nodes import NativeRun
    >>> window_length(20_000, [NativeRun(0, 3)])
    42
    >>> window_length(150, [NativeRun(0, 3)])
    0
    """
    each = max(1, launches(body))
    if count is None or count * each <= MOST_WRITTEN_OUT or calls_host(body):
        return 0
    length = max(2, WINDOW_LAUNCHES // each // 2 * 2)
    return length if count >= 2 * length else 0


def writes_of(step: KernelCall) -> tuple[int, ...]:
    """The buffers that a step writes: all that it has, but those it is said to read."""
    given = [a.buffer for a in step.arguments if isinstance(a, BufferArgument)]
    return tuple({*step.writes, *given} - {*step.reads} | {*step.writes})


def writes_in(loop: Loop) -> frozenset[int]:
    """The buffers that a turn of ``loop`` writes."""
    places = [place for c in loop.carries for place in (c.first, c.second, c.result)]
    for step in loop.body:
        places += writes_of(step) if isinstance(step, KernelCall) else step.writes
    return frozenset(places)


def is_apart(
    loop: Loop, written: AbstractSet[int], buffers: Sequence[BufferAllocation]
) -> bool:
    """Whether what ``loop`` slices may be elsewhere while some of its turns run.

    What it writes in slices, no other slice and no step may touch; what it reads in
    slices, no step may write.
    """

    def roots(numbers: Iterable[int]) -> list[int]:
        donors = ((number, buffers[number].donor) for number in numbers)
        return [number if donor is None else donor for number, donor in donors]

    changed = {*roots(written)}
    touched = changed | {*roots(n for step in loop.body for n in step.reads)}
    sources = roots(s.source for s in loop.slices)
    return all(
        source not in touched and sources.count(source) == 1
        if s.buffer in written
        else source not in changed
        for s, source in zip(loop.slices, sources, strict=True)
    )
