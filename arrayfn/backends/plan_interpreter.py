"""Runs a plan in Python, in NumPy's memory: its kernel calls, loops and branches.

Backends use this to run plans without a compiler, or without their device. A subclass
of ``PlanInterpreter`` defines what a call of a kernel does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import numpy as np

from arrayfn.ir import ArrayType
from arrayfn.lowering.compiled import CompiledProgram
from arrayfn.lowering.plan import KernelCall, Loop, Step
from arrayfn.records import frozen

Array = np.ndarray[Any, Any]
Allocate = Callable[[int], Array]
"""``allocate(nbytes)`` returns memory as an array of bytes."""


@frozen
class HostBuffer:
    """The memory of a plan's buffer, as an array of bytes.

    The first element of the buffer is at byte ``start``, which is not 0 if strides are
    negative.
    """

    bytes: Array
    start: int = 0

    def part(self, offset: int, nbytes: int) -> HostBuffer:
        """Return the ``nbytes`` bytes from ``offset`` on, counted from ``start``.

        The result shares the memory.
        """
        begin = self.start + offset
        return HostBuffer(self.bytes[begin : begin + nbytes])

    def scalar(self, dtype: Any) -> int:
        """Return the first element, an integer of type ``dtype``."""
        first = self.bytes[self.start :][: np.dtype(dtype).itemsize]
        return int(first.view(dtype)[0])

    def array(self, type: ArrayType) -> Array:
        """Return the memory as an array of ``type``, which shares it."""
        size = type.dtype.itemsize
        strides = [step * size for step in type.layout.strides(type.shape)]
        if not type.size:
            return np.empty(type.shape, type.dtype)
        return np.ndarray(type.shape, type.dtype, self.bytes.data, self.start, strides)


def copy_in_layout(x: Any, type: ArrayType, allocate: Allocate) -> HostBuffer:
    """Copy ``x`` to new memory, in the layout of ``type``."""
    # The lowest element is at ``low`` (0 or negative), relative to the first one.
    low, extent = type.span()
    size = type.dtype.itemsize
    buffer = HostBuffer(allocate(extent * size), -low * size)
    buffer.array(type)[...] = x
    return buffer


def allocated(
    compiled: CompiledProgram,
    inputs: Sequence[Array],
    allocate: Allocate,
    *,
    over_donors: bool,
) -> list[HostBuffer]:
    """Return the memory of each buffer of a plan; inputs and constants are copied.

    Slices and carries of loops are empty until the loop sets them. With
    ``over_donors``, a result that overwrites a donated input gets the memory of the
    input's copy; otherwise it gets its own.
    """
    plan = compiled.plan
    arena = allocate(plan.arena)
    arrays_by_kind = {"input": inputs, "constant": compiled.constants}
    buffers: list[HostBuffer] = []
    for b in plan.buffers:
        if b.kind == "temporary":
            # Only the buffer's own bytes of the arena, so that accesses are checked.
            buffers.append(HostBuffer(arena[b.offset : b.offset + b.nbytes]))
        elif b.kind in ("slice", "carried"):
            buffers.append(HostBuffer(arena[:0]))
        elif b.donor is not None and over_donors:
            # Inputs are the plan's first buffers: ``donor`` is also a buffer's number.
            buffers.append(buffers[b.donor])
        elif b.kind in arrays_by_kind:
            array = arrays_by_kind[b.kind][b.index]
            buffers.append(copy_in_layout(array, b.type, allocate))
        else:
            buffers.append(HostBuffer(allocate(b.nbytes)))
    return buffers


class PlanInterpreter(ABC):
    """Runs the steps of a plan in Python; subclasses run the kernels.

    ``buffers`` is the memory of each buffer of the plan. Loops replace that of their
    slices and carries in each iteration.
    """

    def __init__(self, compiled: CompiledProgram, buffers: list[HostBuffer]) -> None:
        self.plan = compiled.plan
        self.kernels = {kernel.name: kernel for kernel in compiled.kernels}
        self.buffers = buffers

    @abstractmethod
    def call(self, step: KernelCall) -> None:
        """Run the kernel that ``step`` calls."""

    def run(self) -> list[Array]:
        """Run all steps; return copies of the outputs, by their index."""
        self.steps(self.plan.steps)
        outputs = {
            b.index: self.buffers[number].array(b.type).copy()
            for number, b in enumerate(self.plan.buffers)
            if b.kind == "output"
        }
        return [outputs[index] for index in sorted(outputs)]

    def steps(self, steps: Sequence[Step]) -> None:
        """Run ``steps`` in order. The index of a branch is clamped to its blocks."""
        for step in steps:
            if isinstance(step, KernelCall):
                self.call(step)
            elif isinstance(step, Loop):
                self.loop(step)
            else:
                index = self.buffers[step.index].scalar(np.int32)
                self.steps(step.branches[min(max(index, 0), len(step.branches) - 1)])

    def loop(self, loop: Loop) -> None:
        """Run a loop, whose carries are double-buffered.

        In each iteration, the body reads a carry in ``current`` and writes it in
        ``next``, which is ``first`` or ``second`` alternately. The final carries are
        copied to their results.
        """
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
