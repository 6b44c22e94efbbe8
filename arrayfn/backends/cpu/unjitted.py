"""Plans run without a compiler: kernels as the Python functions they are.

Slow, for debugging and for tests: ``print`` and breakpoints work inside a kernel (edit
its source, and run it), and an index outside an array is an IndexError, which in
compiled code it is not. A library's kernels are done by what NumPy and SciPy have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, Final

import numpy as np

from arrayfn import dtypes
from arrayfn.backends.cpu.libraries import provider_of
from arrayfn.backends.cpu.pointer import Pointer
from arrayfn.errors import BackendError
from arrayfn.ir import ArrayType
from arrayfn.lowering.compiled import CompiledProgram
from arrayfn.lowering.plan import (
    Argument,
    BufferArgument,
    ExecutionPlan,
    Kernel,
    KernelCall,
    LibraryKernel,
    Loop,
    Parameter,
    Step,
)

Array = np.ndarray[Any, Any]

_ELEMENTS: Final = {"bool": np.uint8, "f16": np.uint16, "bf16": np.uint16}


class _Buffer:
    """Bytes, and the offset of the first element in them."""

    def __init__(self, memory: Array, begin: int = 0) -> None:
        self.memory = memory
        self.begin = begin

    def pointer(self, offset: int, kind: str) -> Pointer:
        name = kind.removesuffix("*")
        dtype = np.dtype(_ELEMENTS.get(name) or dtypes.BY_SHORT_NAME[name])
        begin = self.begin + offset
        # What precedes the pointer must be whole elements too.
        lead = begin % dtype.itemsize
        size = (self.memory.size - lead) // dtype.itemsize * dtype.itemsize
        view = self.memory[lead : lead + size].view(dtype)
        return Pointer(view, begin // dtype.itemsize)

    def view(self, dtype: np.dtype[Any]) -> Array:
        """The elements of ``dtype`` from the first on."""
        rest = self.memory[self.begin :]
        return rest[: rest.size // dtype.itemsize * dtype.itemsize].view(dtype)

    def part(self, offset: int, nbytes: int) -> _Buffer:
        """The buffer of ``nbytes`` from ``offset`` on."""
        begin = self.begin + offset
        return _Buffer(self.memory[begin : begin + nbytes])


def run_unjitted(compiled: CompiledProgram, inputs: Sequence[Array]) -> list[Array]:
    """The outputs of ``compiled`` for ``inputs``, which must have its input types.

    Each kernel's work items are done in two parts, the second first: the result must
    not depend on it.
    """
    plan = compiled.plan
    buffers = _allocate(plan, inputs, compiled.constants)
    _Run(compiled, buffers).steps(plan.steps)
    outputs = {
        b.index: _array(buffers[number].memory, b.type)
        for number, b in enumerate(plan.buffers)
        if b.kind == "output"
    }
    return [outputs[index] for index in sorted(outputs)]


class _Run:
    """One run of a plan over ``buffers``; those that move are replaced as they do."""

    def __init__(self, compiled: CompiledProgram, buffers: list[_Buffer]) -> None:
        self.plan = compiled.plan
        self.buffers = buffers
        self.scratch = _Buffer(np.zeros(self.plan.scratch, np.uint8))
        self.kernels = {kernel.name: kernel for kernel in compiled.kernels}
        self.functions: dict[str, Callable[..., None]] = {}

    def steps(self, steps: Sequence[Step]) -> None:
        """Run ``steps``, in order."""
        for step in steps:
            if isinstance(step, KernelCall):
                self.call(step)
            elif isinstance(step, Loop):
                self.loop(step)
            else:
                index = int(self.buffers[step.index].view(np.dtype(np.int32))[0])
                self.steps(step.branches[min(max(index, 0), len(step.branches) - 1)])

    def call(self, step: KernelCall) -> None:
        """Run one kernel."""
        kernel = self.kernels[step.kernel]
        if isinstance(kernel, LibraryKernel):
            _call_library(kernel, step, self.buffers, self.scratch)
            return
        if kernel.name not in self.functions:
            self.functions[kernel.name] = function_of(kernel)
        arguments = [
            _value(argument, parameter, self.buffers, self.scratch)
            for argument, parameter in zip(
                step.arguments, kernel.parameters, strict=True
            )
        ]
        middle = step.items // 2
        for begin, end in ((middle, step.items), (0, middle)):
            self.functions[kernel.name](*arguments, begin, end)

    def loop(self, loop: Loop) -> None:
        """Run a loop."""
        buffers = self.buffers
        sizes = [b.nbytes for b in self.plan.buffers]
        values = {c.current: buffers[c.initial] for c in loop.carries}
        for iteration in count():
            for carry in loop.carries:
                buffers[carry.current] = values[carry.current]
                pair = (carry.first, carry.second)
                buffers[carry.next] = buffers[pair[iteration % 2]]
            if loop.predicate is None:
                goes_on = iteration != loop.count
            else:
                goes_on = bool(buffers[loop.predicate].view(np.dtype(np.uint8))[0])
            if not goes_on:
                break
            for s in loop.slices:
                begin = s.offset + iteration * s.stride
                buffers[s.buffer] = buffers[s.source].part(begin, sizes[s.buffer])
            self.steps(loop.body)
            values = {c.current: buffers[c.next] for c in loop.carries}
        for carry in loop.carries:
            value = values[carry.current].part(0, sizes[carry.result])
            result = buffers[carry.result].part(0, sizes[carry.result])
            if not np.shares_memory(value.memory, result.memory):
                result.memory[:] = value.memory


def function_of(kernel: Kernel) -> Callable[..., None]:
    """The Python function that ``kernel``'s source defines."""
    if kernel.from_file:
        raise BackendError(f"kernel {kernel.name} of a saved function is not executed")
    namespace: dict[str, Any] = {}
    exec(compile(kernel.source, f"<{kernel.name}>", "exec"), namespace)
    function: Callable[..., None] = namespace[kernel.name]
    return function


def _allocate(
    plan: ExecutionPlan, inputs: Sequence[Array], constants: Sequence[Array]
) -> list[_Buffer]:
    arena = np.zeros(plan.arena, np.uint8)
    buffers: list[_Buffer] = []
    for b in plan.buffers:
        if b.kind == "temporary":
            # No further than its own bytes.
            buffers.append(_Buffer(arena[b.offset : b.offset + b.nbytes]))
        elif b.kind == "output":
            buffers.append(_Buffer(np.zeros(b.nbytes, np.uint8)))
        elif b.kind in ("slice", "carried"):
            buffers.append(_Buffer(arena[:0]))  # its loop puts it somewhere
        else:
            array = (inputs if b.kind == "input" else constants)[b.index]
            buffers.append(_laid_out(np.asarray(array), b.type))
    return buffers


def _laid_out(array: Array, type: ArrayType) -> _Buffer:
    """A copy of ``array`` in memory of its own that lies as ``type`` says."""
    if not type.size:
        return _Buffer(np.zeros(0, np.uint8))
    strides = type.layout.strides(type.shape)
    ends = [(n - 1) * step for n, step in zip(type.shape, strides, strict=True)]
    before = -sum(min(end, 0) for end in ends)
    after = sum(max(end, 0) for end in ends)
    memory = np.zeros(before + after + 1, type.dtype)
    size = type.dtype.itemsize
    view = np.lib.stride_tricks.as_strided(
        memory[before:], type.shape, [step * size for step in strides]
    )
    # Where strides are 0 all elements of the axis are one.
    view[...] = array
    return _Buffer(memory.view(np.uint8), before * size)


def _array(memory: Array, type: ArrayType) -> Array:
    return memory.view(type.dtype).reshape(type.shape)


def _value(
    argument: Argument, parameter: Parameter, buffers: list[_Buffer], scratch: _Buffer
) -> Any:
    if isinstance(argument, int):
        return np.int64(argument)
    if isinstance(argument, BufferArgument):
        buffer = buffers[argument.buffer]
        return buffer.pointer(argument.offset, parameter.kind)
    return scratch.pointer(argument.offset, parameter.kind)


def _call_library(
    kernel: LibraryKernel, step: KernelCall, buffers: list[_Buffer], scratch: _Buffer
) -> None:
    """All items of a library's kernel, by what NumPy has."""
    given = {
        parameter.name: _value(argument, parameter, buffers, scratch)
        for parameter, argument in zip(kernel.parameters, step.arguments, strict=True)
    }
    given["dtype"] = kernel.provider.rpartition("_")[2]
    provider_of(kernel.provider).unjitted(given, step.items)
