"""Staging buffers: one graph for calls whose arrays are at other addresses each time.

A graph has fixed addresses. If a call's arrays are small, beside what the graph takes,
one graph is captured on staging buffers of its own. Its first kernel copies the
arguments there, and its last one copies the results to the call's arrays. Only the
parameters of these two kernel nodes are updated before each launch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from arrayfn.backends.cuda import runner
from arrayfn.backends.cuda.driver import device, per_device
from arrayfn.backends.cuda.graphs.capture import CapturedGraph, KernelNodeParams
from arrayfn.backends.cuda.modules import LoadedKernel, load
from arrayfn.backends.cuda.runner import Plan, StepKind
from arrayfn.ir import ArrayType
from arrayfn.lowering.plan import BufferAllocation

_MAX_BYTES: Final = 16 << 20  # of arguments and results
_MAX_TEMPORARY: Final = 32 << 20
_MAX_BUFFERS: Final = 64
_THREADS: Final = 256
_UNIT: Final = 16  # bytes that a thread copies per iteration
_BLOCK_BYTES: Final = 4 * _UNIT * _THREADS
_MAX_BLOCKS: Final = 264  # per buffer

# `parts` is a table of target, source and number of bytes; `each` blocks copy one row.
_COPY: Final = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry copy_parts(.param .align 8 .b8 parts[BYTES], .param .u32 each)
{
  .reg .pred %over;
  .reg .b64 %part, %t, %s, %n, %i, %k, %step;
  .reg .b32 %block, %each, %number, %size, %thread, %a, %b, %c, %d;
  ld.param.u32 %each, [each];
  mov.u32 %block, %ctaid.x;
  div.u32 %number, %block, %each;
  rem.u32 %block, %block, %each;
  mov.b64 %part, parts;
  mul.wide.u32 %k, %number, 24;
  add.u64 %part, %part, %k;
  ld.param.u64 %t, [%part];
  ld.param.u64 %s, [%part+8];
  ld.param.u64 %n, [%part+16];
  cvta.to.global.u64 %t, %t;
  cvta.to.global.u64 %s, %s;
  mov.u32 %size, %ntid.x;
  mov.u32 %thread, %tid.x;
  mad.lo.u32 %thread, %block, %size, %thread;
  mul.wide.u32 %i, %thread, UNIT;
  mul.lo.u32 %size, %size, %each;
  mul.wide.u32 %step, %size, UNIT;
  add.u64 %t, %t, %i;
  add.u64 %s, %s, %i;
UNITS:
  add.u64 %k, %i, UNIT;
  setp.gt.u64 %over, %k, %n;
  @%over bra BYTES_LEFT;
  ld.global.v4.u32 {%a, %b, %c, %d}, [%s];
  st.global.v4.u32 [%t], {%a, %b, %c, %d};
  add.u64 %i, %i, %step;
  add.u64 %t, %t, %step;
  add.u64 %s, %s, %step;
  bra UNITS;
BYTES_LEFT:
  setp.ge.u64 %over, %i, %n;
  @%over ret;
  ld.global.u8 %a, [%s];
  st.global.u8 [%t], %a;
  add.u64 %i, %i, 1;
  add.u64 %t, %t, 1;
  add.u64 %s, %s, 1;
  bra BYTES_LEFT;
}
"""


def copy_parts_ptx(parts: int) -> str:
    """The kernel that copies so many buffers."""
    return _COPY.replace("[BYTES]", f"[{24 * parts}]").replace("UNIT;", f"{_UNIT};")


@dataclass(frozen=True)
class StagedBuffer:
    """An argument or a result: its buffer, its bytes, and whose staging buffer it has.

    ``root`` is another buffer than ``buffer`` for a result over a donated argument.
    """

    buffer: int
    nbytes: int
    root: int


def staged_buffers(
    types: Sequence[ArrayType],
    inputs: Sequence[int],
    outputs: Sequence[int],
    buffers: Sequence[BufferAllocation],
    arena: int,
) -> tuple[list[StagedBuffer], list[StagedBuffer]] | None:
    """The arguments and the results of a plan; None if it is not to be staged.

    It is not if that would copy too much, or if the first element of an argument is not
    at its lowest address. ``inputs`` and ``outputs`` are numbers of ``buffers``,
    ``types`` those of the inputs, and ``arena`` the bytes of temporaries.
    """
    arguments = [StagedBuffer(b, buffers[b].nbytes, b) for b in inputs]
    results = []
    for number in outputs:
        donor = buffers[number].donor
        root = number if donor is None else inputs[donor]
        results.append(StagedBuffer(number, buffers[number].nbytes, root))
    nbytes = sum(staged.nbytes for staged in (*arguments, *results))
    fits = (
        nbytes <= _MAX_BYTES
        and arena <= _MAX_TEMPORARY
        and max(len(arguments), len(results)) <= _MAX_BUFFERS
        and all(type.span()[0] == 0 for type in types)
    )
    return (arguments, results) if fits else None


class Staging:
    """The staging buffers of a plan's graph, which ``capture`` allocates."""

    def __init__(
        self,
        arguments: Sequence[StagedBuffer],
        results: Sequence[StagedBuffer],
        arena: int,
    ) -> None:
        """``arena`` is the bytes of temporaries."""
        self._arguments = arguments
        self._results = results
        self._arena = arena
        self._kept: list[object] = []

    def capture(
        self, addresses: Any, plan: Plan, enqueue: Callable[[Any, int], None]
    ) -> Plan:
        """A variant of ``plan`` that launches a graph of ``enqueue(staged, stream)``.

        ``staged`` are ``addresses`` with those of arguments, results and temporaries
        replaced by staging buffers.
        """
        staged = self._allocate(addresses)
        slots: list[tuple[int, int, int]] = []
        copy_in = self._copy(self._arguments, staged, slots, to_staging=True)
        copy_out = self._copy(self._results, staged, slots, to_staging=False)
        nodes: list[int] = []

        def enqueue_all(stream: int) -> None:
            """Enqueue copies to staging, the plan on it, and copies from it."""
            nodes.append(copy_in.capture(stream))
            enqueue(staged, stream)
            nodes.append(copy_out.capture(stream))

        graph = CapturedGraph(device().record(enqueue_all), plan.code)
        self._kept += [graph, copy_in, copy_out]
        updates = list(zip(nodes, (copy_in, copy_out), strict=True))
        return plan.of(graph.launch(updates), slots, self)

    def _allocate(self, addresses: Any) -> Any:
        """Allocate the staging buffers: the addresses of all buffers."""
        gpu = device()
        buffers = *self._arguments, *self._results
        staged = type(addresses)(*addresses)
        for root, nbytes in {b.root: b.nbytes for b in buffers}.items():
            staged[root], owner = gpu.block(nbytes)
            self._kept.append(owner)
        for b in buffers:
            staged[b.buffer] = staged[b.root]
        if self._arena:
            staged[len(staged) - 1], owner = gpu.block(self._arena)
            self._kept.append(owner)
        return staged

    def _copy(
        self,
        buffers: Sequence[StagedBuffer],
        staged: Any,
        slots: list[tuple[int, int, int]],
        *,
        to_staging: bool,
    ) -> KernelNodeParams:
        """The kernel that copies ``buffers`` to staging, or from it.

        ``staged`` has the addresses of their staging buffers, by number. The slots for
        a call's own addresses are appended to ``slots``.
        """
        table = np.zeros((max(1, len(buffers)), 3), np.int64)
        target, source, nbytes = range(3)
        here, there = (target, source) if to_staging else (source, target)
        for row, b in zip(table, buffers, strict=False):
            row[nbytes] = b.nbytes
            row[here] = staged[b.buffer]
            slots.append((row[there:].ctypes.data, b.buffer, 0))
        most = max((b.nbytes for b in buffers), default=0)
        each = np.array([min(_MAX_BLOCKS, max(1, most // _BLOCK_BYTES))], np.int32)
        parameters = np.array([table.ctypes.data, each.ctypes.data], np.int64)
        self._kept += [table, each, parameters]
        blocks = len(table) * int(each[0])
        kernel = _kernel(len(table)).function
        shape = blocks, _THREADS, parameters.ctypes.data
        return KernelNodeParams.of(runner.Kernel(StepKind.KERNEL, kernel, *shape))


@per_device
def _kernel(buffers: int) -> LoadedKernel:
    return load(copy_parts_ptx(buffers).encode() + b"\0", "copy_parts")
