"""Walks the nodes of an image: enqueues what they do, loops and branches included.

Two ways to go round a loop that ends by a predicate, and to choose a branch: ``Walk``
waits for the GPU and reads the number, once an iteration; ``CapturingWalk``, whose
stream is being captured, makes conditional nodes of a graph, which read it there.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from arrayfn.backends.cuda.captures import Access
from arrayfn.backends.cuda.conditional import Enqueue, Moving, Number
from arrayfn.backends.cuda.driver import device
from arrayfn.backends.cuda.image import Image
from arrayfn.backends.cuda.nodes import (
    BranchNode,
    HostCall,
    LoopNode,
    NativeRun,
    Node,
    one_by_one,
)
from arrayfn.lowering.plan import Loop

_COUNTER_BYTES: Final = 8
_SIZES: Final = {"u8": 1, "i32": 4}


class Walk:
    """Enqueues nodes of ``image`` on the buffers at ``addresses``."""

    def __init__(self, image: Image, addresses: Any) -> None:
        self.image = image
        self.addresses = addresses

    def run(self, nodes: Sequence[Node], stream: int) -> None:
        """Enqueue ``nodes`` on ``stream``."""
        addresses = self.addresses
        for node in nodes:
            if isinstance(node, NativeRun):
                self.image.launch(node, addresses, stream)
            elif isinstance(node, HostCall):
                places = (addresses[b] + offset for b, offset in node.places)
                node.enqueue(stream, *places)
            elif isinstance(node, BranchNode):
                self.branch(node, stream)
            elif node.loop.count is None:
                self.repeat(node, stream)
            else:
                self.loop(node, stream)

    def at(self, buffer: int) -> int:
        """Where a buffer is now."""
        return self.image.place(buffer, self.addresses)

    def copy(self, target: int, source: int, stream: int) -> None:
        """Bring the value of the buffer ``target`` there from an address."""
        place = self.at(target)
        if place != source:
            self.image.copy(target, place, source, stream)

    def loop(self, node: LoopNode, stream: int) -> None:
        """A loop of a known number of turns."""
        loop = node.loop
        values = [self.at(c.initial) for c in loop.carries]
        origins = [self.at(s.source) + s.offset for s in loop.slices]
        turns = range(loop.count or 0)
        values = self.turns(node, turns, values, origins, stream)
        self.leave(loop, values, stream)

    def turns(
        self,
        node: LoopNode,
        turns: Iterable[int],
        values: Sequence[int],
        origins: Sequence[int],
        stream: int,
    ) -> Sequence[int]:
        """Turns of a loop: where its values are then, which were at ``values``.

        Slices are at ``origins`` in turn 0, whether that is one of them or not.
        """
        loop = node.loop
        pairs = [(self.at(c.first), self.at(c.second)) for c in loop.carries]
        for turn in turns:
            following = [pair[turn % 2] for pair in pairs]
            self.put_carries(loop, values, following)
            for s, origin in zip(loop.slices, origins, strict=True):
                self.addresses[s.buffer] = origin + turn * s.stride
            self.run(node.body, stream)
            values = following
        return values

    def put_carries(
        self, loop: Loop, values: Sequence[int], following: Sequence[int]
    ) -> None:
        """Say where the values of a loop are, and where the next ones go."""
        places = zip(loop.carries, values, following, strict=True)
        for carry, value, place in places:
            self.addresses[carry.current] = value
            self.addresses[carry.next] = place

    def leave(self, loop: Loop, values: Sequence[int], stream: int) -> None:
        """Bring the values of a loop that has ended to its results."""
        for carry, value in zip(loop.carries, values, strict=True):
            self.copy(carry.result, value, stream)
        # Addresses are the key of a graph: those that moved are none of a call's.
        for c in loop.carries:
            self.addresses[c.current] = self.addresses[c.next] = 0
        for s in loop.slices:
            self.addresses[s.buffer] = 0

    def repeat(self, node: LoopNode, stream: int) -> None:
        """A loop that ends by its predicate, which the host reads."""
        loop = node.loop
        assert loop.predicate is not None
        turns = [(self.at(c.first), self.at(c.second)) for c in loop.carries]
        values = [self.at(c.initial) for c in loop.carries]
        turn = 0
        while _read(self.at(loop.predicate), ctypes.c_uint8):
            following = [pair[turn % 2] for pair in turns]
            self.put_carries(loop, values, following)
            self.run(node.body, stream)
            values = following
            turn += 1
        self.leave(loop, values, stream)

    def branch(self, node: BranchNode, stream: int) -> None:
        """The branch whose number the host reads."""
        index = _read(self.at(node.branch.index), ctypes.c_int32)
        last = len(node.branches) - 1
        self.run(node.branches[min(max(index, 0), last)], stream)


class Steps(Protocol):
    """The steps that are captured into a stream, in an order that they decide."""

    def add(self, accesses: Sequence[Access], step: Callable[[], None]) -> None:
        """Capture a step that touches this memory."""
        ...

    def join(self) -> None:
        """Have what is captured next come after all steps."""
        ...

    def restart(self) -> None:
        """Have all further steps come after what was captured so far."""
        ...


@dataclass(frozen=True)
class Question:
    """A condition of a graph, which is to be set to a number of 0 to ``last``."""

    condition: int
    number: Number
    last: int


class Nodes(Protocol):
    """What adds to the graph that a stream is captured into."""

    def steps(self, stream: int) -> Steps:
        """What captures steps into the stream."""
        ...

    def condition(self, stream: int) -> int:
        """What a node of that graph is to ask for."""
        ...

    def set(self, stream: int, condition: int, number: Number, last: int) -> None:
        """The condition is the number from here on: the nearest of 0 to ``last``."""
        ...

    def repeat(self, stream: int, condition: int, body: Enqueue) -> None:
        """``body``, as long as the condition is not 0."""
        ...

    def choose(self, stream: int, condition: int, branches: Sequence[Enqueue]) -> None:
        """The one of ``branches`` that the condition says."""
        ...

    def repeat_counted(
        self, stream: int, counter: int, turns: int, body: Enqueue
    ) -> None:
        """``body``, ``turns`` times; the 64 bits at ``counter`` say which it is."""
        ...

    def move(
        self, stream: int, target: Moving, source: Moving, counter: int, nbytes: int
    ) -> None:
        """A copy between places that follow from the number at ``counter``."""
        ...


class CapturingWalk(Walk):
    """Enqueues nodes on a stream that is being captured."""

    def __init__(self, image: Image, addresses: Any, nodes: Nodes) -> None:
        super().__init__(image, addresses)
        self.nodes = nodes

    def run(
        self, nodes: Sequence[Node], stream: int, question: Question | None = None
    ) -> None:
        """Enqueue ``nodes``; small steps that do not need each other run together.

        So does ``question`` with steps that its number does not come from.
        """
        steps = self.nodes.steps(stream)
        for node in one_by_one(nodes):
            is_step = isinstance(node, (NativeRun, HostCall))
            if is_step and self.image.is_small(node):
                accesses = self.image.accesses(node, self.addresses)
                steps.add(accesses, partial(super().run, (node,), stream))
            elif isinstance(node, BranchNode):
                self.choose(node, stream, steps)
            else:
                steps.join()
                super().run((node,), stream)
                steps.restart()
        if question is not None:
            self.ask(question, stream, steps)
        steps.join()

    def ask(self, question: Question, stream: int, steps: Steps) -> None:
        """Set a condition when the step that makes its number has run."""
        (kind, address) = number = question.number
        set_it = partial(
            self.nodes.set, stream, question.condition, number, question.last
        )
        steps.add(((address, address + _SIZES[kind], False),), set_it)

    def choose(self, node: BranchNode, stream: int, steps: Steps) -> None:
        """A branch of the graph, after ``steps``."""
        condition = self.nodes.condition(stream)
        number = "i32", self.at(node.branch.index)
        self.ask(Question(condition, number, len(node.branches) - 1), stream, steps)
        steps.join()
        branches = [partial(self.run, branch) for branch in node.branches]
        self.nodes.choose(stream, condition, branches)
        steps.restart()

    def loop(self, node: LoopNode, stream: int) -> None:
        """A loop of a known number of turns, written out; a long one is the graph's.

        In a graph addresses are fixed, so a turn of the graph's loop is a window of the
        plan's, whose slices are brought to memory of its own and, where they are
        written, taken back. What is left of the plan's turns is written out.
        """
        if not node.window:
            super().loop(node, stream)
            return
        loop, length, count = node.loop, node.window, node.loop.count or 0
        origins = [self.at(s.source) + s.offset for s in loop.slices]
        seconds = [self.at(c.second) for c in loop.carries]
        for c in loop.carries:
            self.copy(c.second, self.at(c.initial), stream)
        counter = self.image.own(node, 0, _COUNTER_BYTES)
        windows = [
            _Window(self.image.own(node, 1 + k, size), origin, s.stride, length, size)
            for k, (s, origin) in enumerate(zip(loop.slices, origins, strict=True))
            for size in [(length - 1) * abs(s.stride) + self.image.nbytes(s.buffer)]
        ]

        def turns(inner: int) -> None:
            for w in windows:
                self.nodes.move(inner, w.here, w.there, counter, w.nbytes)
            self.turns(node, range(length), seconds, [w.begin for w in windows], inner)
            for s, w in zip(loop.slices, windows, strict=True):
                if s.buffer in node.written:
                    self.nodes.move(inner, w.there, w.here, counter, w.nbytes)

        self.nodes.repeat_counted(stream, counter, count // length, turns)
        rest = range(count - count % length, count)
        self.leave(loop, self.turns(node, rest, seconds, origins, stream), stream)

    def repeat(self, node: LoopNode, stream: int) -> None:
        """A loop of the graph.

        Values that have two places by turns are in ``second`` at first. A turn of the
        graph's loop is two of the plan's, between which the predicate is asked too:
        where it ends the loop, ``first`` is copied to ``second``.
        """
        loop = node.loop
        assert loop.predicate is not None
        flag = "u8", self.at(loop.predicate)
        first = [self.at(c.first) for c in loop.carries]
        second = [self.at(c.second) for c in loop.carries]
        for c in loop.carries:
            self.copy(c.second, self.at(c.initial), stream)
        goes_on = Question(self.nodes.condition(stream), flag, 1)
        self.nodes.set(stream, goes_on.condition, flag, 1)

        def turn(
            values: Sequence[int],
            following: Sequence[int],
            question: Question,
            inner: int,
        ) -> None:
            self.put_carries(loop, values, following)
            self.run(node.body, inner, question)

        def end(inner: int) -> None:
            for c, value in zip(loop.carries, first, strict=True):
                self.copy(c.second, value, inner)
            self.nodes.set(inner, goes_on.condition, flag, 1)

        def turns(inner: int) -> None:
            if not loop.carries:
                turn(second, first, goes_on, inner)
                return
            again = Question(self.nodes.condition(inner), flag, 1)
            turn(second, first, again, inner)
            other = partial(turn, first, second, goes_on)
            self.nodes.choose(inner, again.condition, (end, other))

        self.nodes.repeat(stream, goes_on.condition, turns)
        self.leave(loop, second, stream)


@dataclass(frozen=True)
class _Window:
    """What ``length`` turns of a loop slice, at ``address``; it comes from ``origin``.

    A slice of the first turn is at ``origin``, and ``stride`` bytes further in each.
    """

    address: int
    origin: int
    stride: int
    length: int
    nbytes: int

    @property
    def _back(self) -> int:
        """From the first slice to the lowest address."""
        return min(0, (self.length - 1) * self.stride)

    @property
    def begin(self) -> int:
        """Where the slice of the first turn is."""
        return self.address - self._back

    @property
    def here(self) -> Moving:
        """The window, which stays."""
        return self.address, 0

    @property
    def there(self) -> Moving:
        """What it is a window of."""
        return self.origin + self._back, self.length * self.stride


def _read(address: int, kind: Any) -> int:
    """A number in the GPU's memory, once what is enqueued has run."""
    value = kind()
    device().copy_out(ctypes.addressof(value), address, ctypes.sizeof(value))
    return int(value.value)
