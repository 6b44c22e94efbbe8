"""Plans run without a compiler: kernels as the Python functions they are.

Slow, for debugging and for tests: ``print`` and breakpoints work inside a kernel (edit
its source, and run it), and an index outside an array is an IndexError, which in
compiled code it is not. A library's kernels are done by what NumPy and SciPy have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import numpy as np
from typing_extensions import override

from arrayfn import dtypes
from arrayfn.backends.cpu.libraries import provider_of
from arrayfn.backends.cpu.pointer import Pointer
from arrayfn.backends.plan_interpreter import HostBuffer, PlanInterpreter, allocated
from arrayfn.errors import BackendError
from arrayfn.lowering.compiled import CompiledProgram, completed
from arrayfn.lowering.plan import (
    Argument,
    BufferArgument,
    Kernel,
    KernelCall,
    LibraryKernel,
    Parameter,
)

Array = np.ndarray[Any, Any]

_ELEMENTS: Final = {"bool": np.uint8, "f16": np.uint16, "bf16": np.uint16}


Watch = Callable[[KernelCall, Kernel, Sequence[Any]], AbstractContextManager[object]]
"""Surrounds a call of a kernel; its arguments are Pointers and integers."""


def not_watched(
    step: KernelCall, kernel: Kernel, arguments: Sequence[Any]
) -> AbstractContextManager[object]:
    """Return a context that does nothing; the default ``Watch``."""
    return nullcontext()


def run_unjitted(
    compiled: CompiledProgram,
    inputs: Sequence[Array],
    watch: Watch = not_watched,
    *,
    over_donors: bool = False,
) -> list[Array]:
    """Run the plan ``compiled``, calling its kernels as plain Python functions.

    Returns the outputs. ``inputs`` must have the plan's input types; they are copied.
    Each kernel's work items are run in two parts, the second first, to check that their
    order does not matter. ``watch`` surrounds each call of a generated kernel. With
    ``over_donors``, results that overwrite donated inputs share memory with the copies
    of these inputs, as in compiled code. Otherwise they have their own memory.
    """
    compiled = completed(compiled, lambda once: run_unjitted(once, ()))
    buffers = allocated(compiled, inputs, _zeros, over_donors=over_donors)
    return _Run(compiled, buffers, watch).run()


def _zeros(nbytes: int) -> Array:
    """Allocate ``nbytes`` bytes that are 0."""
    return np.zeros(nbytes, np.uint8)


class _Run(PlanInterpreter):
    """Interprets a plan, calling kernels as Python functions."""

    def __init__(
        self, compiled: CompiledProgram, buffers: list[HostBuffer], watch: Watch
    ) -> None:
        """Begin without functions; ``watch`` surrounds each call of a kernel."""
        super().__init__(compiled, buffers)
        self.watch = watch
        self.scratch = HostBuffer(_zeros(self.plan.scratch))  # that all calls share
        self.functions: dict[str, Callable[..., None]] = {}  # by the kernel's name

    @override
    def call(self, step: KernelCall) -> None:
        """Run the kernel that ``step`` calls, the second half of its items first."""
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
        # The order must not matter, as items are independent.
        middle = step.items // 2
        with self.watch(step, kernel, arguments):
            for begin, end in ((middle, step.items), (0, middle)):
                self.functions[kernel.name](*arguments, begin, end)


def function_of(kernel: Kernel) -> Callable[..., None]:
    """Execute the source of ``kernel`` and return the function that it defines.

    Raises BackendError for a kernel of a saved function, whose source is not trusted.
    """
    if kernel.from_file:
        raise BackendError(f"kernel {kernel.name} of a saved function is not executed")
    namespace: dict[str, Any] = {}
    exec(compile(kernel.source, f"<{kernel.name}>", "exec"), namespace)
    function: Callable[..., None] = namespace[kernel.name]
    return function


def _value(
    argument: Argument,
    parameter: Parameter,
    buffers: list[HostBuffer],
    scratch: HostBuffer,
) -> Any:
    """Convert a step's ``argument`` to the int64 or Pointer that a kernel takes.

    It is an integer, or a place in one of ``buffers`` or in ``scratch``.
    """
    if isinstance(argument, int):
        return np.int64(argument)
    if isinstance(argument, BufferArgument):
        return _pointer(buffers[argument.buffer], argument.offset, parameter.kind)
    return _pointer(scratch, argument.offset, parameter.kind)


def _pointer(buffer: HostBuffer, offset: int, kind: str) -> Pointer:
    """Return a Pointer to the memory ``offset`` bytes after a buffer's first element.

    ``kind`` is the kind of the kernel's parameter, such as "f32*". The Pointer's memory
    is the whole buffer, so it can also be indexed backwards.
    """
    name = kind.removesuffix("*")
    dtype = np.dtype(_ELEMENTS.get(name) or dtypes.BY_SHORT_NAME[name])
    begin = buffer.start + offset
    # Skip the first bytes, so that a whole number of elements precedes the pointer.
    lead = begin % dtype.itemsize
    size = (buffer.bytes.size - lead) // dtype.itemsize * dtype.itemsize
    view = buffer.bytes[lead : lead + size].view(dtype)
    return Pointer(view, begin // dtype.itemsize)


def _call_library(
    kernel: LibraryKernel,
    step: KernelCall,
    buffers: list[HostBuffer],
    scratch: HostBuffer,
) -> None:
    """Run all items of a library kernel by its provider's ``unjitted`` function.

    The function takes the arguments by name, with the dtype's short name as "dtype".
    """
    arguments = {
        parameter.name: _value(argument, parameter, buffers, scratch)
        for parameter, argument in zip(kernel.parameters, step.arguments, strict=True)
    }
    # A provider's name ends with a dtype, as in "gemm_f32".
    arguments["dtype"] = kernel.provider.rpartition("_")[2]
    provider_of(kernel.provider).unjitted(arguments, step.items)
