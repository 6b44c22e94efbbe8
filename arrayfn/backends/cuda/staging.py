"""Graphs on memory of their own, for calls whose arrays are elsewhere each time.

A graph is captured for addresses. Where a call's arrays are small, beside what the
graph takes, one graph is captured on memory that is its own, and serves all addresses:
its first kernel copies the arguments there, its last one the results to where the call
has them, and these two are told the addresses before each launch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np

from arrayfn.backends.cuda import runner
from arrayfn.backends.cuda.driver import device
from arrayfn.backends.cuda.kernel_nodes import Graph, Kernel
from arrayfn.backends.cuda.modules import load
from arrayfn.backends.cuda.runner import Plan, StepKind
from arrayfn.ir import ArrayType
from arrayfn.lowering.plan import BufferAllocation

_MOST_BYTES: Final = 16 << 20  # of arguments and results
_MOST_TEMPORARY: Final = 32 << 20
_MOST_PARTS: Final = 64
_THREADS: Final = 256
_UNIT: Final = 16  # bytes that a thread copies at a time
_BLOCK_BYTES: Final = 4 * _UNIT * _THREADS
_MOST_BLOCKS: Final = 264  # of a part

# `parts` are targets, sources and numbers of bytes, which `each` blocks have in turn.
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
    """The kernel that copies so many parts."""
    return _COPY.replace("[BYTES]", f"[{24 * parts}]").replace("UNIT;", f"{_UNIT};")


@dataclass(frozen=True)
class Part:
    """A buffer of a call, the bytes of it, and the buffer whose memory it has."""

    buffer: int
    nbytes: int
    root: int


def parts_of(
    types: Sequence[ArrayType],
    inputs: Sequence[int],
    outputs: Sequence[int],
    buffers: Sequence[BufferAllocation],
    arena: int,
) -> tuple[list[Part], list[Part]] | None:
    """What a call's arguments and results are to copy; None if that is too much.

    Arguments of ``types`` are ``inputs``. An array whose first element is not its
    lowest is not copied, so there is none of it.
    """
    given = [Part(b, buffers[b].nbytes, b) for b in inputs]
    made = []
    for number in outputs:
        donor = buffers[number].donor
        root = number if donor is None else inputs[donor]
        made.append(Part(number, buffers[number].nbytes, root))
    nbytes = sum(part.nbytes for part in (*given, *made))
    fits = (
        nbytes <= _MOST_BYTES
        and arena <= _MOST_TEMPORARY
        and max(len(given), len(made)) <= _MOST_PARTS
        and all(type.span()[0] == 0 for type in types)
    )
    return (given, made) if fits else None


class Staging:
    """The memory of one plan's graph, and what the copies there and back need."""

    def __init__(self, parts: tuple[list[Part], list[Part]], arena: int) -> None:
        """``arena`` is the bytes of temporaries. Memory is taken by ``capture``."""
        self._parts = parts
        self._arena = arena
        self._kept: list[object] = []

    def capture(
        self, addresses: Any, plan: Plan, enqueue: Callable[[Any, int], None]
    ) -> Plan:
        """As ``plan``, but by a graph of what ``enqueue`` puts into a stream.

        It is given addresses of the buffers, of which those of constants, and whatever
        else stays as it is, come from ``addresses``.
        """
        here = self._addresses(addresses)
        given, made = self._parts
        slots: list[tuple[int, int, int]] = []
        inwards = self._copy(given, here, slots, inwards=True)
        outwards = self._copy(made, here, slots, inwards=False)
        nodes: list[int] = []

        def all_of_it(stream: int) -> None:
            nodes.append(inwards.capture(stream))
            enqueue(here, stream)
            nodes.append(outwards.capture(stream))

        graph = Graph(device().record(all_of_it))
        self._kept += [graph, inwards, outwards]
        copies = list(zip(nodes, (inwards, outwards), strict=True))
        return plan.of(graph.steps(copies), slots, self)

    def _addresses(self, addresses: Any) -> Any:
        """Those of the buffers, in memory of its own."""
        gpu = device()
        parts = {part.root: part for part in (*self._parts[0], *self._parts[1])}
        here = type(addresses)(*addresses)
        for part in parts.values():
            here[part.root], owner = gpu.block(part.nbytes)
            self._kept.append(owner)
        for part in (*self._parts[0], *self._parts[1]):
            here[part.buffer] = here[part.root]
        if self._arena:
            here[len(here) - 1], owner = gpu.block(self._arena)
            self._kept.append(owner)
        return here

    def _copy(
        self,
        parts: Sequence[Part],
        here: Any,
        slots: list[tuple[int, int, int]],
        *,
        inwards: bool,
    ) -> Kernel:
        """What copies ``parts``; ``slots`` has where the call's addresses go.

        Its table has a target, a source and a number of bytes for each.
        """
        table = np.zeros((max(1, len(parts)), 3), np.int64)
        for row, part in zip(table, parts, strict=False):
            row[2] = part.nbytes
            row[0 if inwards else 1] = here[part.buffer]
            slots.append((row[1 if inwards else 0 :].ctypes.data, part.buffer, 0))
        most = max((part.nbytes for part in parts), default=0)
        each = np.array([min(_MOST_BLOCKS, max(1, most // _BLOCK_BYTES))], np.int32)
        parameters = np.array([table.ctypes.data, each.ctypes.data], np.int64)
        self._kept += [table, each, parameters]
        blocks = len(table) * int(each[0])
        kernel = _kernel(len(table))
        shape = blocks, _THREADS, parameters.ctypes.data
        return Kernel.of(runner.Kernel(StepKind.KERNEL, kernel, *shape))


@cache
def _kernel(parts: int) -> int:
    return load(copy_parts_ptx(parts).encode() + b"\0", "copy_parts")
