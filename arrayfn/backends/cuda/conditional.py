"""Loops and branches inside a CUDA graph: conditional nodes, made while capturing.

A conditional node has graphs of its own: one that runs again as long as a condition is
not 0, or several of which the condition's value chooses one. Kernels of a few
instructions set the value from a number in the GPU's memory, before the node and, for
a loop, at the end of its graph, or count the loop's turns; so nothing waits for the
host. What fills those graphs is captured like the rest, on a stream of its own at each
depth.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import cache
from math import gcd
from typing import Final

from arrayfn.backends.cuda.captures import SideBySide, captured, go_on_from
from arrayfn.backends.cuda.driver import CAPTURE_RELAXED, Device, device
from arrayfn.backends.cuda.modules import load

Enqueue = Callable[[int], None]
"""What puts work into the stream that it is given."""

Number = tuple[str, int]
"""A number in the GPU's memory: its kind, "u8" or "i32", and its address."""

Moving = tuple[int, int]
"""An address in turn 0 of a graph's loop, and the bytes that it moves in each."""

# Names and numbers of cuda.h.
_CONDITIONAL: Final = 13  # CU_GRAPH_NODE_TYPE_CONDITIONAL
_WHILE, _SWITCH = 1, 2

# cudaGraphSetConditional is a function that the driver has for kernels. Of the number
# in memory, FLAG takes a byte, and INDEX 32 bits, moved to the nearest of 0 to `last`.
_HEAD: Final = """
.version 8.0
.target sm_80
.address_size 64
"""
_SET: Final = """
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

# A turn is over, or with a step of 0 the first begins: there is another one before
# `turns`.
_COUNT: Final = """
.extern .func cudaGraphSetConditional(.param .b64 handle, .param .b32 value);
.visible .entry count_turn(
  .param .u64 handle, .param .u64 counter, .param .u64 step, .param .u64 turns)
{
  .reg .pred %more;
  .reg .b64 %h, %p, %n, %s, %m;
  .reg .b32 %v;
  ld.param.u64 %h, [handle];
  ld.param.u64 %p, [counter];
  ld.param.u64 %s, [step];
  ld.param.u64 %m, [turns];
  cvta.to.global.u64 %p, %p;
  ld.global.u64 %n, [%p];
  add.u64 %n, %n, 1;
  mul.lo.u64 %n, %n, %s;
  st.global.u64 [%p], %n;
  setp.lt.u64 %more, %n, %m;
  selp.u32 %v, 1, 0, %more;
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

# A unit of UNIT bytes a thread, from `source` to `target`, which move with the counter.
_MOVE: Final = """
.visible .entry move(
  .param .u64 target, .param .u64 source, .param .u64 counter,
  .param .u64 target_step, .param .u64 source_step, .param .u64 units)
{
  .reg .pred %over;
  .reg .b64 %t, %s, %c, %n, %i, %k, %step;
  .reg .b32 %block, %size, %thread, %a, %b, %d, %e;
  ld.param.u64 %n, [units];
  mov.u32 %block, %ctaid.x;
  mov.u32 %size, %ntid.x;
  mov.u32 %thread, %tid.x;
  mul.wide.u32 %i, %block, %size;
  cvt.u64.u32 %k, %thread;
  add.u64 %i, %i, %k;
  setp.ge.u64 %over, %i, %n;
  @%over ret;
  ld.param.u64 %t, [target];
  ld.param.u64 %s, [source];
  ld.param.u64 %c, [counter];
  cvta.to.global.u64 %t, %t;
  cvta.to.global.u64 %s, %s;
  cvta.to.global.u64 %c, %c;
  ld.global.u64 %c, [%c];
  ld.param.u64 %step, [target_step];
  mad.lo.u64 %t, %c, %step, %t;
  ld.param.u64 %step, [source_step];
  mad.lo.u64 %s, %c, %step, %s;
  mad.lo.u64 %t, %i, UNIT, %t;
  mad.lo.u64 %s, %i, UNIT, %s;
  ld.global.WORD, [%s];
  st.global.STORED;
  ret;
}
"""
_WORDS: Final = {
    16: ("v4.u32 {%a, %b, %d, %e}", "v4.u32 [%t], {%a, %b, %d, %e}"),
    4: ("u32 %a", "u32 [%t], %a"),
    1: ("u8 %a", "u8 [%t], %a"),
}
_MOVE_THREADS: Final = 256


def set_condition_ptx(kind: str) -> str:
    """The kernel that sets a condition to a number of ``kind``: "u8" or "i32"."""
    return _HEAD + _SET.replace("LOAD", _LOADS[kind])


def count_turn_ptx() -> str:
    """The kernel that counts a turn, and sets a condition: whether there is another."""
    return _HEAD + _COUNT


def move_ptx(unit: int) -> str:
    """The kernel that copies, ``unit`` bytes a thread: 16, 4 or 1."""
    load, store = _WORDS[unit]
    text = _MOVE.replace("WORD", load).replace("STORED", store)
    return _HEAD + text.replace("UNIT", str(unit))


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
        self._kernels: dict[str, int] = {}
        self._streams: list[ctypes.c_void_p] = []
        self._depth = 0

    def steps(self, stream: int) -> SideBySide:
        """What captures steps into a stream, each after those that it needs."""
        return SideBySide(stream)

    def condition(self, stream: int) -> int:
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

    def set(self, stream: int, condition: int, number: Number, last: int) -> None:
        """Capture that a condition is a number: the nearest of 0 to ``last``."""
        kind, address = number
        text = set_condition_ptx(kind)
        self._launch(stream, text, "set_condition", (condition, address, last))

    def repeat(self, stream: int, condition: int, body: Enqueue) -> None:
        """Capture a loop: ``body``, as long as a condition that it sets is not 0."""
        (graph,) = self._node(stream, condition, _WHILE, 1)
        with self._into(graph) as inner:
            body(inner)

    def choose(self, stream: int, condition: int, branches: Sequence[Enqueue]) -> None:
        """Capture a branch: the one that a condition says."""
        graphs = self._node(stream, condition, _SWITCH, len(branches))
        for graph, branch in zip(graphs, branches, strict=True):
            with self._into(graph) as inner:
                branch(inner)

    def repeat_counted(
        self, stream: int, counter: int, turns: int, body: Enqueue
    ) -> None:
        """Capture a loop: ``body``, ``turns`` times.

        The 64 bits at ``counter`` say how many of them were before.
        """
        handle = self.condition(stream)
        text = count_turn_ptx()
        self._launch(stream, text, "count_turn", (handle, counter, 0, turns))
        (graph,) = self._node(stream, handle, _WHILE, 1)
        with self._into(graph) as inner:
            body(inner)
            self._launch(inner, text, "count_turn", (handle, counter, 1, turns))

    def move(
        self, stream: int, target: Moving, source: Moving, counter: int, nbytes: int
    ) -> None:
        """Capture a copy, whose places move by some bytes for each that is counted."""
        if not nbytes:
            return
        (to, to_step), (begin, begin_step) = target, source
        common = gcd(to, to_step, begin, begin_step, nbytes)
        unit = next(unit for unit in _WORDS if not common % unit)
        units = nbytes // unit
        values = (to, begin, counter, to_step % 2**64, begin_step % 2**64, units)
        blocks = -(-units // _MOVE_THREADS)
        text = move_ptx(unit)
        self._launch(stream, text, "move", values, blocks, _MOVE_THREADS)

    def _check(self, status: int) -> None:
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
        """Launch a kernel, which is loaded when it is first needed."""
        if text not in self._kernels:
            self._kernels[text] = load(text.encode() + b"\0", entry)
        words = [ctypes.c_uint64(v) for v in values]
        parameters = (ctypes.c_void_p * len(words))(*map(ctypes.addressof, words))
        status = self._library.cuLaunchKernel(
            ctypes.c_void_p(self._kernels[text]),
            *(blocks, 1, 1, threads, 1, 1, 0),
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
