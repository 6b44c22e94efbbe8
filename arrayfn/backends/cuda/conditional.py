"""Loops and branches inside a CUDA graph: conditional nodes, made while capturing.

A conditional node has graphs of its own: one that runs again as long as a condition is
not 0, or several of which the condition's value chooses one. Kernels of a few
instructions set the value from a number in the GPU's memory, before the node and, for
a loop, at the end of its graph; so nothing waits for the host. What fills those graphs
is captured like the rest, on a stream of its own at each depth.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Final

from arrayfn.backends.cuda.captures import SideBySide, captured, go_on_from
from arrayfn.backends.cuda.driver import CAPTURE_RELAXED, Device, device

Enqueue = Callable[[int], None]
"""What puts work into the stream that it is given."""

# Names and numbers of cuda.h.
_CONDITIONAL: Final = 13  # CU_GRAPH_NODE_TYPE_CONDITIONAL
_WHILE, _SWITCH = 1, 2

# cudaGraphSetConditional is a function that the driver has for kernels. Of the number
# in memory, FLAG takes a byte, and INDEX 32 bits, moved to the nearest of 0 to `last`.
_PTX: Final = """
.version 8.0
.target sm_80
.address_size 64
.extern .func cudaGraphSetConditional(.param .b64 handle, .param .b32 value);
.visible .entry set_condition(
  .param .u64 handle, .param .u64 number, .param .u64 last)
{
  .reg .b64 %h, %p, %m;
  .reg .b32 %v, %l;
  ld.param.u64 %h, [handle];
  ld.param.u64 %p, [number];
  ld.param.u64 %m, [last];
  cvta.to.global.u64 %p, %p;
  cvt.u32.u64 %l, %m;
  LOAD
  max.s32 %v, %v, 0;
  min.s32 %v, %v, %l;
  {
  .param .b64 to;
  .param .b32 value;
  st.param.b64 [to], %h;
  st.param.b32 [value], %v;
  call.uni cudaGraphSetConditional, (to, value);
  }
  ret;
}
"""
_LOADS: Final = {"u8": "ld.global.u8 %v, [%p];", "i32": "ld.global.s32 %v, [%p];"}


def set_condition_ptx(kind: str) -> str:
    """The kernel that sets a condition to a number of ``kind``: "u8" or "i32"."""
    return _PTX.replace("LOAD", _LOADS[kind])


class _NodeParameters(ctypes.Structure):
    """CUgraphNodeParams, as far as a conditional node needs it."""

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


class Conditionals:
    """Adds conditional nodes to what a stream captures."""

    def __init__(self, gpu: Device) -> None:
        self._gpu = gpu
        self._library = gpu.library
        self._setters = {
            kind: gpu.load(set_condition_ptx(kind).encode() + b"\0", "set_condition")
            for kind in _LOADS
        }
        self._streams: list[ctypes.c_void_p] = []
        self._depth = 0

    def steps(self, stream: int) -> SideBySide:
        """What captures steps into a stream, each after those that it needs."""
        return SideBySide(stream)

    def repeat(self, stream: int, flag: int, body: Enqueue) -> None:
        """Capture a loop: ``body``, as long as the byte at ``flag`` is not 0."""
        handle = self._handle(stream)
        self._set(stream, handle, "u8", flag, 1)
        (graph,) = self._node(stream, handle, _WHILE, 1)
        with self._into(graph) as inner:
            body(inner)
            self._set(inner, handle, "u8", flag, 1)

    def choose(
        self, stream: int, kind: str, number: int, branches: Sequence[Enqueue]
    ) -> None:
        """Capture a branch: the one that the number of ``kind`` at an address says.

        A number outside is moved to the nearest branch.
        """
        handle = self._handle(stream)
        self._set(stream, handle, kind, number, len(branches) - 1)
        graphs = self._node(stream, handle, _SWITCH, len(branches))
        for graph, branch in zip(graphs, branches, strict=True):
            with self._into(graph) as inner:
                branch(inner)

    def _check(self, status: int) -> None:
        self._gpu.check(status, "in a conditional node")

    def _handle(self, stream: int) -> int:
        """A condition of the graph that ``stream`` is captured into."""
        graph, _ = captured(stream)
        handle = ctypes.c_uint64()
        status = self._library.cuGraphConditionalHandleCreate(
            ctypes.byref(handle),
            ctypes.c_void_p(graph),
            ctypes.c_void_p(self._gpu.context),
            0,
            0,
        )
        self._check(status)
        return handle.value

    def _set(self, stream: int, handle: int, kind: str, number: int, last: int) -> None:
        """Launch the kernel that sets a condition."""
        values = [ctypes.c_uint64(v) for v in (handle, number, last)]
        parameters = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        status = self._library.cuLaunchKernel(
            ctypes.c_void_p(self._setters[kind]),
            *(1, 1, 1, 1, 1, 1, 0),
            ctypes.c_void_p(stream),
            parameters,
            None,
        )
        self._check(status)

    def _node(
        self, stream: int, handle: int, kind: int, size: int
    ) -> list[ctypes.c_void_p]:
        """The graphs of a new node that follows what ``stream`` has captured."""
        graph, nodes = captured(stream)
        parameters = _NodeParameters(_CONDITIONAL)
        parameters.handle, parameters.kind = handle, kind
        parameters.size, parameters.context = size, self._gpu.context
        node = ctypes.c_void_p()
        status = self._library.cuGraphAddNode_v2(
            ctypes.byref(node),
            ctypes.c_void_p(graph),
            (ctypes.c_void_p * max(1, len(nodes)))(*nodes),
            None,
            ctypes.c_size_t(len(nodes)),
            ctypes.byref(parameters),
        )
        self._check(status)
        go_on_from(stream, [int(node.value or 0)])
        return [ctypes.c_void_p(parameters.graphs[k]) for k in range(size)]

    @contextmanager
    def _into(self, graph: ctypes.c_void_p) -> Generator[int]:
        """A stream whose work is captured into ``graph``."""
        if self._depth == len(self._streams):
            self._streams.append(self._gpu.new_stream())
        stream = self._streams[self._depth]
        self._depth += 1
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


@cache
def conditionals() -> Conditionals:
    """Those of the GPU. Captures are made one at a time, under the device's lock."""
    return Conditionals(device())
