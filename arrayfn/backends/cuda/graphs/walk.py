"""Walks: enqueue the nodes of a plan on a stream, loops and branches included.

``Walk`` launches directly. For the predicate of a while loop, and for the index of a
branch, it synchronizes and reads the value, once an iteration. ``CapturingWalk``
enqueues on a stream that is being captured. There loops and branches become conditional
nodes, which read the value on the GPU.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Final

from typing_extensions import override

from arrayfn.backends.cuda.driver import device
from arrayfn.backends.cuda.encoded_plan import EncodedPlan
from arrayfn.backends.cuda.graphs.capture import ConcurrentCapture
from arrayfn.backends.cuda.graphs.conditional import (
    ConditionalNodes,
    Scalar,
    StridedAddress,
)
from arrayfn.backends.cuda.plan_nodes import (
    BranchNode,
    HostCall,
    LoopNode,
    NativeRun,
    Node,
    one_by_one,
)
from arrayfn.lowering.plan import Loop
from arrayfn.records import frozen

_COUNTER_BYTES: Final = 8  # of the memory that counts a loop's iterations on the GPU
_SCALAR_BYTES: Final = {"u8": 1, "i32": 4}  # of a predicate, and of a branch's index


class Walk:
    """Enqueues nodes of the plan ``encoded``, without a graph.

    ``addresses`` is the ctypes array of all buffers' addresses. The walk sets those of
    loop carries and slices in it before each iteration.
    """

    def __init__(self, encoded: EncodedPlan, addresses: Any) -> None:
        self.encoded = encoded
        self.addresses = addresses
        # In a plan with collectives, keys of the nodes that were enqueued before.
        self._enqueued: set[object] = set()

    def run(self, nodes: Sequence[Node], stream: int) -> None:
        """Enqueue ``nodes`` on ``stream``.

        In a plan with collectives, a node that was never enqueued waits for the GPU.
        """
        for node in nodes:
            if self.encoded.has_collectives:
                self.wait_for_collectives(node)
            self.enqueue(node, stream)

    def enqueue(self, node: Node, stream: int) -> None:
        """Enqueue ``node`` on ``stream``."""
        addresses = self.addresses
        if isinstance(node, NativeRun):
            self.encoded.launch(node, addresses, stream)
        elif isinstance(node, HostCall):
            pointers = (addresses[b] + offset for b, offset in node.arguments)
            node.enqueue(stream, *pointers)
        elif isinstance(node, BranchNode):
            self.branch(node, stream)
        elif node.loop.count is None:
            self.while_loop(node, stream)
        else:
            self.counted_loop(node, stream)

    def wait_for_collectives(self, node: Node) -> None:
        """Wait for all work on the GPU before ``node`` is enqueued the first time.

        The first launch of a library's kernel loads it, and may wait for the GPU while
        it holds a lock of the process. If a collective ran at that time, it could wait
        for a member whose thread waits for that lock. A node that is not in a loop or
        branch is enqueued the first time by all members together (see ``overlap``).
        """
        key = node if isinstance(node, NativeRun) else id(node)
        if key not in self._enqueued:
            self._enqueued.add(key)
            device().synchronize()

    def address(self, buffer: int) -> int:
        """Return the current address of the buffer of number ``buffer``."""
        return self.encoded.address(buffer, self.addresses)

    def copy(self, target: int, source: int, stream: int) -> None:
        """Enqueue a copy of the value at the address ``source`` to buffer ``target``.

        Nothing is copied if the buffer is at that address.
        """
        address = self.address(target)
        if address != source:
            self.encoded.copy(target, address, source, stream)

    def counted_loop(self, node: LoopNode, stream: int) -> None:
        """Enqueue a loop with a trip count on ``stream``, iteration by iteration."""
        loop = node.loop
        values = [self.address(c.initial) for c in loop.carries]
        origins = [self.address(s.source) + s.offset for s in loop.slices]
        iterations = range(loop.count or 0)
        values = self.iterate(node, iterations, values, origins, stream)
        self.finish(loop, values, stream)

    def iterate(
        self,
        node: LoopNode,
        iterations: Iterable[int],
        values: Sequence[int],
        origins: Sequence[int],
        stream: int,
    ) -> Sequence[int]:
        """Enqueue iterations of a loop; return the addresses of the carries' results.

        ``values`` are the addresses of the carries before the first of ``iterations``.
        Iteration k writes each carry to its first buffer (k even) or to its second
        buffer (k odd). ``origins`` are the addresses of the slices in iteration 0, even
        if 0 is not one of ``iterations``.
        """
        loop = node.loop
        pairs = [(self.address(c.first), self.address(c.second)) for c in loop.carries]
        for k in iterations:
            following = [pair[k % 2] for pair in pairs]
            self.set_carries(loop, values, following)
            for s, origin in zip(loop.slices, origins, strict=True):
                self.addresses[s.buffer] = origin + k * s.stride
            self.run(node.body, stream)
            values = following
        return values

    def set_carries(
        self, loop: Loop, values: Sequence[int], following: Sequence[int]
    ) -> None:
        """Set the addresses of the carries in the next iteration that is enqueued.

        The iteration reads the carries at ``values``, and writes them at ``following``.
        """
        for carry, value, later in zip(loop.carries, values, following, strict=True):
            self.addresses[carry.current] = value
            self.addresses[carry.next] = later

    def finish(self, loop: Loop, values: Sequence[int], stream: int) -> None:
        """Copy the final values of a loop, which are at ``values``, to its results.

        Then reset the addresses of its carries and slices to 0.
        """
        for carry, value in zip(loop.carries, values, strict=True):
            self.copy(carry.result, value, stream)
        # Captured plans are looked up by all addresses at the beginning of a call, so
        # no address that a loop has set may remain.
        for c in loop.carries:
            self.addresses[c.current] = self.addresses[c.next] = 0
        for s in loop.slices:
            self.addresses[s.buffer] = 0

    def while_loop(self, node: LoopNode, stream: int) -> None:
        """Enqueue a loop with a predicate, iteration by iteration.

        Before each iteration the host waits for the GPU and reads the predicate.
        """
        loop = node.loop
        assert loop.predicate is not None
        flag = self.address(loop.predicate)
        values = [self.address(c.initial) for c in loop.carries]
        iterations = itertools.takewhile(
            lambda _: _read(flag, ctypes.c_uint8), itertools.count()
        )
        values = self.iterate(node, iterations, values, (), stream)
        self.finish(loop, values, stream)

    def branch(self, node: BranchNode, stream: int) -> None:
        """Enqueue the branch that the index selects.

        The host waits for the GPU and reads the index, which is clamped to the
        branches.
        """
        index = _read(self.address(node.branch.index), ctypes.c_int32)
        last = len(node.branches) - 1
        self.run(node.branches[min(max(index, 0), last)], stream)


@frozen
class _Condition:
    """The condition of a conditional node: its handle, and the scalar that sets it.

    The value of the scalar is clamped to 0 to ``last``.
    """

    handle: int
    scalar: Scalar
    last: int


class CapturingWalk(Walk):
    """Enqueues nodes on a stream that is being captured into a graph.

    ``graph`` adds conditional nodes to the graph, for loops and branches.
    """

    def __init__(
        self, encoded: EncodedPlan, addresses: Any, graph: ConditionalNodes
    ) -> None:
        super().__init__(encoded, addresses)
        self.graph = graph

    @override
    def wait_for_collectives(self, node: Node) -> None:
        """Do nothing: before the capture, all members have waited for their GPUs."""

    @override
    def run(
        self, nodes: Sequence[Node], stream: int, condition: _Condition | None = None
    ) -> None:
        """Enqueue ``nodes``, so that independent small steps can run concurrently.

        A small step waits only for earlier steps that access the same memory. A large
        step waits for all earlier steps, and all later ones wait for it. ``condition``
        is set at the end, and waits only for the step that writes its scalar.
        """
        steps = self.graph.concurrent(stream)
        for node in one_by_one(nodes):
            is_step = isinstance(node, (NativeRun, HostCall))
            if is_step and self.encoded.is_small(node):
                accesses = self.encoded.accesses(node, self.addresses)
                steps.add(accesses, partial(super().run, (node,), stream))
            elif isinstance(node, BranchNode):
                self._switch(node, stream, steps)
            else:
                steps.join()
                super().run((node,), stream)
                steps.restart()
        if condition is not None:
            self._set(condition, stream, steps)
        steps.join()

    def _set(
        self, condition: _Condition, stream: int, steps: ConcurrentCapture
    ) -> None:
        """Capture the kernel that sets ``condition`` as the last of ``steps``.

        In the graph the kernel waits only for the step that writes the scalar.
        """
        kind, address = condition.scalar
        # (begin, end, whether it is written)
        accesses = ((address, address + _SCALAR_BYTES[kind], False),)
        arguments = condition.handle, condition.scalar, condition.last
        steps.add(accesses, partial(self.graph.set_condition, stream, *arguments))

    def _switch(self, node: BranchNode, stream: int, steps: ConcurrentCapture) -> None:
        """Capture ``node`` as a SWITCH node, which waits for all ``steps``.

        A kernel sets its condition to the branch's index. Later steps wait for it.
        """
        handle = self.graph.create_handle(stream)
        index = "i32", self.address(node.branch.index)
        self._set(_Condition(handle, index, len(node.branches) - 1), stream, steps)
        steps.join()
        branches = [partial(self.run, branch) for branch in node.branches]
        self.graph.switch_node(stream, handle, branches)
        steps.restart()

    @override
    def counted_loop(self, node: LoopNode, stream: int) -> None:
        """Capture a loop with a trip count: all iterations, or a WHILE node of some.

        If ``node.unrolled`` is 0, all iterations are captured. Otherwise an iteration
        of the WHILE node runs ``node.unrolled`` iterations of the loop, and the
        remaining iterations are captured after the node. Addresses in a graph are
        fixed; so an iteration of the node copies its slices to memory of the loop, and
        the written slices back. It reads and leaves the carries in their second
        buffers.
        """
        if not node.unrolled:
            super().counted_loop(node, stream)
            return
        loop, length, count = node.loop, node.unrolled, node.loop.count or 0
        origins = [self.address(s.source) + s.offset for s in loop.slices]
        seconds = [self.address(c.second) for c in loop.carries]
        for c in loop.carries:
            self.copy(c.second, self.address(c.initial), stream)
        # The loop's memory number 0 is the counter, number 1 + k is for slice k.
        counter = self.encoded.loop_memory(node, 0, _COUNTER_BYTES)
        # ``size`` is the bytes from the lowest to the highest slice of an iteration of
        # the WHILE node (``for size in [...]`` only names the value).
        copies = [
            _SliceCopy(
                self.encoded.loop_memory(node, 1 + k, size),
                origin,
                s.stride,
                length,
                size,
            )
            for k, (s, origin) in enumerate(zip(loop.slices, origins, strict=True))
            for size in [(length - 1) * abs(s.stride) + self.encoded.nbytes(s.buffer)]
        ]

        def body(inner: int) -> None:
            """Enqueue an iteration of the WHILE node on the stream ``inner``.

            Copy the slices, run ``length`` iterations, copy written slices back.
            """
            for c in copies:
                self.graph.copy_strided(inner, c.target, c.source, counter, c.nbytes)
            begins = [c.begin for c in copies]
            self.iterate(node, range(length), seconds, begins, inner)
            for s, c in zip(loop.slices, copies, strict=True):
                if s.buffer in node.written:
                    self.graph.copy_strided(
                        inner, c.source, c.target, counter, c.nbytes
                    )

        self.graph.counted_loop(stream, counter, count // length, body)
        remainder = range(count - count % length, count)
        values = self.iterate(node, remainder, seconds, origins, stream)
        self.finish(loop, values, stream)

    @override
    def while_loop(self, node: LoopNode, stream: int) -> None:
        """Capture a loop with a predicate as a WHILE node.

        An iteration of the WHILE node runs two iterations of the loop: the first from
        the carries' second buffers to their first ones, the other one back. So
        addresses are fixed, and carries begin and end in the second buffers. If the
        predicate ends the loop between the two iterations, the first buffers are copied
        to the second ones. A loop without carries needs no pairs of iterations.
        """
        loop = node.loop
        assert loop.predicate is not None
        flag = "u8", self.address(loop.predicate)
        first = [self.address(c.first) for c in loop.carries]
        second = [self.address(c.second) for c in loop.carries]
        for c in loop.carries:
            self.copy(c.second, self.address(c.initial), stream)
        # The conditions are 0 or 1, like the predicate.
        outer = _Condition(self.graph.create_handle(stream), flag, 1)
        self.graph.set_condition(stream, outer.handle, flag, 1)

        def iteration(
            values: Sequence[int],
            following: Sequence[int],
            condition: _Condition,
            inner: int,
        ) -> None:
            """Enqueue an iteration of the loop on the stream ``inner``.

            It reads the carries at ``values`` and writes them at ``following``; then
            ``condition`` is set to the loop's predicate.
            """
            self.set_carries(loop, values, following)
            self.run(node.body, inner, condition)

        def end(inner: int) -> None:
            """Copy the carries to ``second``, and let the WHILE node end.

            The predicate is 0 here, and becomes the node's condition.
            """
            for c, value in zip(loop.carries, first, strict=True):
                self.copy(c.second, value, inner)
            self.graph.set_condition(inner, outer.handle, flag, 1)

        def body(inner: int) -> None:
            """Enqueue an iteration of the WHILE node on the stream ``inner``.

            A SWITCH node by the predicate after the first iteration selects ``end`` (0)
            or the second iteration (1).
            """
            if not loop.carries:
                iteration(second, first, outer, inner)
                return
            between = _Condition(self.graph.create_handle(inner), flag, 1)
            iteration(second, first, between, inner)
            other = partial(iteration, first, second, outer)
            self.graph.switch_node(inner, between.handle, (end, other))

        self.graph.while_node(stream, outer.handle, body)
        self.finish(loop, second, stream)


@frozen
class _SliceCopy:
    """Memory at ``address`` for the slices of ``length`` iterations of a loop.

    One iteration of a graph's WHILE node runs these iterations. In the array, the slice
    of the loop's iteration 0 is at ``origin``, and successive slices are ``stride``
    bytes apart, which may be negative. ``nbytes`` is the size of the memory.
    """

    address: int
    origin: int
    stride: int
    length: int
    nbytes: int

    @property
    def _lowest(self) -> int:
        """The offset of the lowest slice from the first one, in bytes, at most 0."""
        return min(0, (self.length - 1) * self.stride)

    @property
    def begin(self) -> int:
        """The address of the first iteration's slice in the loop's memory."""
        return self.address - self._lowest

    @property
    def target(self) -> StridedAddress:
        """The memory's address, the same in all iterations of the WHILE node."""
        return self.address, 0

    @property
    def source(self) -> StridedAddress:
        """The address of the lowest slice in the array, by WHILE node iteration."""
        return self.origin + self._lowest, self.length * self.stride


def _read(address: int, kind: Any) -> int:
    """Read a number in the GPU's memory, after all enqueued work has run.

    ``kind`` is the ctypes class of the number at ``address``.
    """
    value = kind()
    device().copy_out(ctypes.addressof(value), address, ctypes.sizeof(value))
    return int(value.value)
