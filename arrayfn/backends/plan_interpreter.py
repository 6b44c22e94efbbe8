"""Walks a plan on the host, in NumPy's memory: its calls, loops and branches.

For backends that run plans without a compiler, or without their device. They say what a
call of a kernel does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

from arrayfn.ir import ArrayType
from arrayfn.lowering.compiled import CompiledProgram
from arrayfn.lowering.plan import KernelCall, Loop, Step

Array = np.ndarray[Any, Any]
Allocate = Callable[[int], Array]
"""Makes memory of so many bytes."""


@dataclass(frozen=True)
class HostBuffer:
    """Bytes of memory with an array whose first element is at byte ``start``.

    ``start`` is not 0 if strides are negative.
    """

    bytes: Array
    start: int = 0

    def part(self, offset: int, nbytes: int) -> HostBuffer:
        """The part of ``nbytes`` bytes that begins ``offset`` bytes after the start."""
        begin = self.start + offset
        return HostBuffer(self.bytes[begin : begin + nbytes])

    def scalar(self, dtype: Any) -> int:
        """The integer of type ``dtype`` at its beginning."""
        first = self.bytes[self.start :][: np.dtype(dtype).itemsize]
        return int(first.view(dtype)[0])

    def array(self, type: ArrayType) -> Array:
        """The memory as an array of ``type``."""
        size = type.dtype.itemsize
        strides = [step * size for step in type.layout.strides(type.shape)]
        if not type.size:
            return np.empty(type.shape, type.dtype)
        return np.ndarray(type.shape, type.dtype, self.bytes.data, self.start, strides)


def copy_in_layout(x: Any, type: ArrayType, allocate: Allocate) -> HostBuffer:
    """Copy ``x`` to new memory, in the layout of ``type``."""
    low, extent = type.span()
    size = type.dtype.itemsize
    made = HostBuffer(allocate(extent * size), -low * size)
    made.array(type)[...] = x
    return made


def allocated(
    compiled: CompiledProgram,
    inputs: Sequence[Array],
    allocate: Allocate,
    *,
    over_donors: bool,
) -> list[HostBuffer]:
    """Allocate the buffers of a plan; inputs and constants are copied.

    Slices and carries of loops are empty until the loop sets them. Results over donated
    inputs share their memory if ``over_donors``.
    """
    plan = compiled.plan
    arena = allocate(plan.arena)
    arrays_by_kind = {"input": inputs, "constant": compiled.constants}
    made: list[HostBuffer] = []
    for b in plan.buffers:
        if b.kind == "temporary":
            # No further than its own bytes.
            made.append(HostBuffer(arena[b.offset : b.offset + b.nbytes]))
        elif b.kind in ("slice", "carried"):
            made.append(HostBuffer(arena[:0]))
        elif b.donor is not None and over_donors:
            made.append(made[b.donor])  # inputs come first
        elif b.kind in arrays_by_kind:
            made.append(
                copy_in_layout(arrays_by_kind[b.kind][b.index], b.type, allocate)
            )
        else:
            made.append(HostBuffer(allocate(b.nbytes)))
    return made


class PlanInterpreter(ABC):
    """Runs a plan in Python: walks its steps and points loops' buffers at memory."""

    def __init__(self, compiled: CompiledProgram, buffers: list[HostBuffer]) -> None:
        self.plan = compiled.plan
        self.kernels = {kernel.name: kernel for kernel in compiled.kernels}
        self.buffers = buffers

    @abstractmethod
    def call(self, step: KernelCall) -> None:
        """Run one kernel."""

    def run(self) -> list[Array]:
        """Run all steps; returns copies of the outputs."""
        self.steps(self.plan.steps)
        outputs = {
            b.index: self.buffers[number].array(b.type).copy()
            for number, b in enumerate(self.plan.buffers)
            if b.kind == "output"
        }
        return [outputs[index] for index in sorted(outputs)]

    def steps(self, steps: Sequence[Step]) -> None:
        """Run ``steps``, in order."""
        for step in steps:
            if isinstance(step, KernelCall):
                self.call(step)
            elif isinstance(step, Loop):
                self.loop(step)
            else:
                index = self.buffers[step.index].scalar(np.int32)
                self.steps(step.branches[min(max(index, 0), len(step.branches) - 1)])

    def loop(self, loop: Loop) -> None:
        """Run a loop, whose carries are double-buffered."""
        buffers, sizes = self.buffers, [b.nbytes for b in self.plan.buffers]
        values = {c.current: buffers[c.initial] for c in loop.carries}
        for iteration in count():
            for c in loop.carries:
                buffers[c.current] = values[c.current]
                buffers[c.next] = buffers[(c.first, c.second)[iteration % 2]]
            if loop.predicate is None:
                goes_on = iteration != loop.count
            else:
                goes_on = bool(buffers[loop.predicate].scalar(np.uint8))
            if not goes_on:
                break
            for s in loop.slices:
                begin = s.offset + iteration * s.stride
                buffers[s.buffer] = buffers[s.source].part(begin, sizes[s.buffer])
            self.steps(loop.body)
            values = {c.current: buffers[c.next] for c in loop.carries}
        for c in loop.carries:
            value = values[c.current].part(0, sizes[c.result]).bytes
            result = buffers[c.result].part(0, sizes[c.result]).bytes
            if not np.shares_memory(value, result):
                result[:] = value
