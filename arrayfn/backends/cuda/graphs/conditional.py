"""Conditional nodes of CUDA graphs: loops and branches that a stream capture adds.

A WHILE node repeats its body graph as long as its condition is not 0; a SWITCH node
runs the body graph that its condition selects. Kernels of a few instructions set the
condition from a value in the GPU's memory: before the node and, for a loop, at the end
of its body. Loops with a trip count are counted there too. So nothing waits for the
host. Body graphs are captured on a stream of their own for each depth.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from math import gcd
from typing import Final

from arrayfn.backends.cuda.driver import CAPTURE_RELAXED, Device, device, per_device
from arrayfn.backends.cuda.graphs.capture import (
    ConcurrentCapture,
    capture_info,
    launch_kernel,
    set_dependencies,
)
from arrayfn.backends.cuda.graphs.kernels import (
    COPY_UNITS,
    copy_ptx,
    count_iteration_ptx,
    loaded,
    set_condition_ptx,
)

Enqueue = Callable[[int], None]
"""Enqueues work on a stream, its argument."""

Scalar = tuple[str, int]
"""A scalar in the GPU's memory: its dtype, "u8" or "i32", and its address."""

StridedAddress = tuple[int, int]
"""An address that depends on a loop's iteration: (origin, stride) in bytes.

In iteration k it is origin + k * stride.
"""

# Names and numbers of cuda.h.
_CONDITIONAL: Final = 13  # CU_GRAPH_NODE_TYPE_CONDITIONAL
_WHILE, _SWITCH = 1, 2  # CUgraphConditionalNodeType

_MOVE_THREADS: Final = 256
"""Threads in a block of the kernel that copies slices."""


class _NodeParams(ctypes.Structure):
    """CUgraphNodeParams of a conditional node."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("reserved", ctypes.c_int * 3),
        ("handle", ctypes.c_uint64),
        ("kind", ctypes.c_int),
        ("size", ctypes.c_uint),
        ("graphs", ctypes.POINTER(ctypes.c_void_p)),
        ("context", ctypes.c_void_p),
        ("padding", ctypes.c_longlong * 25),
        ("reserved_too", ctypes.c_longlong),
    )


class ConditionalNodes:
    """Adds conditional nodes to the graphs that streams are captured into.

    A stream argument of the methods is one that is being captured.
    """

    def __init__(self, gpu: Device) -> None:
        self._gpu = gpu
        self._library = gpu.library
        # Body graphs are captured on streams of their own: ``_streams[d]`` at depth d.
        self._streams: list[ctypes.c_void_p] = []
        self._depth = 0  # how many bodies contain the nodes that are being captured

    def concurrent(self, stream: int) -> ConcurrentCapture:
        """Begin to capture steps of ``stream`` that may run concurrently."""
        return ConcurrentCapture(stream)

    def create_handle(self, stream: int) -> int:
        """Create a condition's handle (CUgraphConditionalHandle).

        It belongs to the graph that ``stream`` is captured into.
        """
        graph, _ = capture_info(stream)
        handle = ctypes.c_uint64()
        status = self._library.cuGraphConditionalHandleCreate(
            ctypes.byref(handle),
            ctypes.c_void_p(graph),
            ctypes.c_void_p(self._gpu.context),
            0,  # the condition at launch, which flags would have to ask for
            0,  # flags
        )
        self._check(status)
        return handle.value

    def set_condition(
        self, stream: int, handle: int, scalar: Scalar, last: int
    ) -> None:
        """Capture a kernel that sets a condition to a scalar, clamped to 0 to ``last``.

        ``handle`` is the condition's.
        """
        kind, address = scalar
        text = set_condition_ptx(kind)
        self._launch(stream, text, "set_condition", (handle, address, last))

    def while_node(self, stream: int, handle: int, body: Enqueue) -> None:
        """Add a WHILE node that repeats ``body`` while its condition is not 0.

        ``body(stream)`` enqueues an iteration, and a kernel that sets the condition of
        ``handle`` at its end. The condition must also be set before the node.
        """
        (graph,) = self._add(stream, handle, _WHILE, 1)
        with self._capture_to(graph) as inner:
            body(inner)

    def switch_node(
        self, stream: int, handle: int, branches: Sequence[Enqueue]
    ) -> None:
        """Add a SWITCH node that runs ``branches[c]``, where c is its condition.

        ``handle`` is the condition's, which must be set before the node.
        """
        graphs = self._add(stream, handle, _SWITCH, len(branches))
        for graph, branch in zip(graphs, branches, strict=True):
            with self._capture_to(graph) as inner:
                branch(inner)

    def counted_loop(
        self, stream: int, counter: int, trip_count: int, body: Enqueue
    ) -> None:
        """Add a WHILE node that runs ``body`` ``trip_count`` times.

        The 64-bit word at the address ``counter`` in the GPU's memory holds the number
        of the iteration, from 0.
        """
        handle = self.create_handle(stream)
        text = count_iteration_ptx()

        def count(on: int, step: int) -> None:
            """Launch the kernel that counts, on the stream ``on``.

            A ``step`` of 1 adds 1 to the counter; a step of 0 sets the counter to 0.
            Then the condition is set: whether there is another iteration.
            """
            self._launch(
                on, text, "count_iteration", (handle, counter, step, trip_count)
            )

        def iteration(inner: int) -> None:
            """Enqueue an iteration on the stream ``inner``, and count it."""
            body(inner)
            count(inner, 1)

        count(stream, 0)
        self.while_node(stream, handle, iteration)

    def copy_strided(
        self,
        stream: int,
        target: StridedAddress,
        source: StridedAddress,
        counter: int,
        nbytes: int,
    ) -> None:
        """Capture a copy of ``nbytes`` between addresses that depend on the iteration.

        In iteration k, which is the 64-bit number at the address ``counter``, the copy
        is from ``source[0] + k * source[1]`` to ``target[0] + k * target[1]``.
        """
        if not nbytes:
            return
        (to, to_stride), (begin, begin_stride) = target, source
        # A thread copies the widest unit to which everything is aligned.
        common = gcd(to, to_stride, begin, begin_stride, nbytes)
        unit = next(unit for unit in COPY_UNITS if not common % unit)
        units = nbytes // unit
        strides = to_stride % 2**64, begin_stride % 2**64  # two's complement
        values = (to, begin, counter, *strides, units)
        blocks = -(-units // _MOVE_THREADS)
        self._launch(stream, copy_ptx(unit), "move", values, blocks, _MOVE_THREADS)

    def _check(self, status: int) -> None:
        """Raise BackendError if the driver's ``status`` is an error."""
        self._gpu.check(status, "in a conditional node")

    def _launch(
        self,
        stream: int,
        text: str,
        entry: str,
        values: Sequence[int],
        blocks: int = 1,
        threads: int = 1,
    ) -> None:
        """Launch the kernel ``entry`` of the PTX ``text`` on ``stream``.

        ``values`` are its arguments, of 64 bits each. The grid has ``blocks`` blocks of
        ``threads`` threads.
        """
        function = loaded(text, entry).function
        # The driver takes an array of pointers, one to each argument.
        arguments = (ctypes.c_uint64 * len(values))(*values)
        begin, size = ctypes.addressof(arguments), ctypes.sizeof(ctypes.c_uint64)
        pointers = [begin + size * k for k in range(len(values))]
        parameters = (ctypes.c_void_p * len(values))(*pointers)
        launch_kernel(stream, function, blocks, threads, ctypes.addressof(parameters))

    def _add(
        self, stream: int, handle: int, kind: int, size: int
    ) -> list[ctypes.c_void_p]:
        """Add a conditional node after the nodes of ``stream``; return its body graphs.

        ``handle`` is that of its condition, ``kind`` a CUgraphConditionalNodeType, and
        ``size`` the number of body graphs. Later nodes of ``stream`` depend on it.
        """
        graph, nodes = capture_info(stream)
        parameters = _NodeParams(_CONDITIONAL)
        parameters.handle, parameters.kind = handle, kind
        parameters.size, parameters.context = size, self._gpu.context
        node = ctypes.c_void_p()
        status = self._library.cuGraphAddNode_v2(
            ctypes.byref(node),
            ctypes.c_void_p(graph),
            (ctypes.c_void_p * max(1, len(nodes)))(*nodes),
            None,  # edge data: ordinary dependencies
            ctypes.c_size_t(len(nodes)),
            ctypes.byref(parameters),
        )
        self._check(status)
        set_dependencies(stream, [int(node.value or 0)])
        return [ctypes.c_void_p(parameters.graphs[k]) for k in range(size)]

    @contextmanager
    def _capture_to(self, graph: ctypes.c_void_p) -> Generator[int]:
        """Yield a stream whose work is captured into ``graph``, as a context manager.

        Nested contexts use different streams, which later contexts use again.
        """
        if self._depth == len(self._streams):
            self._streams.append(self._gpu.new_stream())
        stream = self._streams[self._depth]
        self._depth += 1
        # The graph is empty, so there are no nodes to depend on.
        status = self._library.cuStreamBeginCaptureToGraph(
            stream, graph, None, None, ctypes.c_size_t(0), CAPTURE_RELAXED
        )
        self._check(status)
        try:
            yield int(stream.value or 0)
        finally:
            self._depth -= 1
            ended = ctypes.c_void_p()
            status = self._library.cuStreamEndCapture(stream, ctypes.byref(ended))
        self._check(status)


@per_device
def conditional_nodes() -> ConditionalNodes:
    """Return the ``ConditionalNodes`` of this thread's GPU.

    Captures use it under the device's ``capture_lock``.
    """
    return ConditionalNodes(device())
