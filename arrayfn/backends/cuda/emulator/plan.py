"""Runs GPU plans without a GPU: emulates kernels, and calls NumPy for libraries."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
from typing_extensions import override

from arrayfn.backends.cuda.code import ENTRY, with_neutral_name
from arrayfn.backends.cuda.emulator import EmulationError, Pointer, launch
from arrayfn.backends.cuda.emulator.libraries import call_library, has_library
from arrayfn.backends.cuda.emulator.names import unassigned_names
from arrayfn.backends.cuda.requirements import missing_packages
from arrayfn.backends.members import combine
from arrayfn.backends.numba.dialect import UntypedKernelError
from arrayfn.backends.plan_interpreter import HostBuffer, PlanInterpreter, allocated
from arrayfn.dtypes import BY_SHORT_NAME
from arrayfn.ir import ArrayType
from arrayfn.lowering.compiled import CompiledProgram, completed
from arrayfn.lowering.host_steps import HOST_STEPS
from arrayfn.lowering.libraries.collectives import collective_of
from arrayfn.lowering.plan import (
    BufferArgument,
    Kernel,
    KernelCall,
    LibraryKernel,
)
from arrayfn.lowering.scalars.conversions import stored as stored_half
from arrayfn.lowering.scalars.numpy_arithmetic import DTYPES
from arrayfn.primitives.rules import as_list

Array = np.ndarray[Any, Any]

_COMPILER: Final = "arrayfn.backends.cuda.kernel_compiler"  # imports numba-cuda


Launch = Callable[[KernelCall, Kernel, Sequence[Pointer | int]], None]
"""Runs one kernel call on arrays in the host's memory: its step, kernel, arguments."""


def emulated(
    step: KernelCall, kernel: Kernel, arguments: Sequence[Pointer | int]
) -> None:
    """Run a call of ``kernel`` in the emulator, after the checks of ``checked``."""
    launch(
        checked(kernel).source,
        ENTRY,
        step.items,
        kernel.threads,
        arguments,
        kernel.cluster,
        cooperative=kernel.cooperative,
    )


def run_plan(
    compiled: CompiledProgram, inputs: Sequence[Array], launch: Launch = emulated
) -> list[Array]:
    """Run all steps of ``compiled`` on NumPy arrays; return its outputs.

    Inputs are copied in their layout, as to a GPU. An output that overwrites a donated
    input overwrites that copy. Memory that nothing has written holds NaNs, or large
    numbers. ``launch`` runs each call of a generated kernel.
    """
    compiled = completed(compiled, lambda once: run_plan(once, (), launch))
    buffers = allocated(compiled, inputs, _unwritten, over_donors=True)
    return _Run(compiled, buffers, launch).run()


def _pointer(buffer: HostBuffer, dtype: Any, offset: int) -> Pointer:
    """Make a Pointer to the element ``offset`` bytes after the first one of a buffer.

    The memory is seen as elements of ``dtype``.
    """
    whole = buffer.bytes.size // dtype.itemsize * dtype.itemsize
    elements = buffer.bytes[:whole].view(dtype)
    return Pointer(elements, (buffer.start + offset) // dtype.itemsize)


class _Run(PlanInterpreter):
    """Interprets a plan: launches kernels by ``launch``, computes library calls."""

    def __init__(
        self, compiled: CompiledProgram, buffers: list[HostBuffer], launch: Launch
    ) -> None:
        super().__init__(compiled, buffers)
        self.launch = launch

    @override
    def call(self, step: KernelCall) -> None:
        """Run one call of a kernel, a reference, a collective or a library."""
        kernel = self.kernels[step.kernel]
        arguments: list[Pointer | int] = []
        for argument, parameter in zip(step.arguments, kernel.parameters, strict=True):
            if isinstance(argument, BufferArgument):
                dtype = DTYPES[stored_dtype(parameter.kind.removesuffix("*"))]
                buffer = self.buffers[argument.buffer]
                arguments.append(_pointer(buffer, dtype, argument.offset))
            else:
                assert isinstance(argument, int)
                arguments.append(argument)
        if isinstance(kernel, Kernel):
            self.launch(step, kernel, arguments)
        elif kernel.provider.startswith("reference_"):
            self.reference(kernel, arguments)
        elif kernel.provider.startswith("collective_"):
            collective(kernel, arguments)
        else:
            names = [parameter.name for parameter in kernel.parameters]
            named = dict(zip(names, arguments, strict=True))
            if has_library(kernel.provider):
                call_library(kernel.provider, named)
            else:
                _product(kernel, named)

    def reference(
        self, kernel: LibraryKernel, arguments: Sequence[Pointer | int]
    ) -> None:
        """Run a step that computes a primitive by its NumPy reference.

        Operands are copied; results are written to their arrays.
        """
        step = HOST_STEPS.find(int(kernel.provider.rpartition("_")[2]))
        types = (*step.operands, *step.results)
        pointers = [a for a in arguments if isinstance(a, Pointer)]
        arrays = [_strided(p, type) for p, type in zip(pointers, types, strict=True)]
        count = len(step.operands)
        assert step.function is not None
        results = as_list(step.function(*(np.array(a) for a in arrays[:count])))
        for array, result in zip(arrays[count:], results, strict=True):
            array[...] = result


@lru_cache(maxsize=4096)
def checked(kernel: Kernel) -> Kernel:
    """Return ``kernel`` with the text that is compiled for a GPU, after two checks.

    Raises EmulationError if some path reads a name that is not assigned, or if
    numba-cuda is installed and cannot compile the kernel. A kernel that a user has
    edited is not compiled.
    """
    neutral = with_neutral_name(kernel)
    unassigned = unassigned_names(neutral.source)
    if unassigned:
        raise EmulationError(
            f"{kernel.name} reads what may not be assigned: {', '.join(unassigned)}"
        )
    if not kernel.is_replaced and not missing_packages():
        try:
            importlib.import_module(_COMPILER).printed_ir(neutral)
        except UntypedKernelError as error:
            raise EmulationError(f"{kernel.name} does not compile: {error}") from error
    return neutral


def collective(kernel: LibraryKernel, arguments: Sequence[Pointer | int]) -> None:
    """Run a collective of a mesh's members on the host's memory.

    ``arguments`` has the operand and the result of the member that the calling thread
    runs.
    """
    step = collective_of(kernel.provider)
    operand, result = (a for a in arguments if isinstance(a, Pointer))
    # The result may overwrite the operand, which other members' threads still read.
    x = _strided(operand, step.operand).copy()
    combine(step, x, _strided(result, step.result))


def _strided(pointer: Pointer, type: ArrayType) -> Array:
    """View the array of ``type`` whose first element is at ``pointer``."""
    steps = type.layout.strides(type.shape)
    return pointer.elements("an array", type.dtype, type.shape, steps)


def _product(kernel: LibraryKernel, arguments: dict[str, Any]) -> None:
    """Compute the library's matrix product and its epilogue by NumPy.

    ``arguments`` has the kernel's arguments by name: numbers, and Pointers for arrays.
    """
    dtypes_of = {p.name: p.kind.removesuffix("*") for p in kernel.parameters}

    def matrix(name: str, rows: int, columns: int, ld: str) -> Array:
        """View the array ``name`` as [batch, rows, columns].

        ``ld`` is the name of the parameter that has its leading dimension.
        """
        dtype = BY_SHORT_NAME[dtypes_of[name]]
        steps = (arguments[f"batch_stride_{name}"], arguments[ld], 1)
        shape = arguments["batch"], rows, columns
        pointer: Pointer = arguments[name]
        return pointer.elements(name, dtype, shape, steps)

    def factor(name: str, rows: int, columns: int, ld: str) -> Array:
        """Return the operand ``name``, "a" or "b", transposed as the call asks.

        The parameter ``transpose_a`` is 1 for the transpose, 2 for its conjugate.
        """
        transpose = arguments[f"transpose_{name}"]
        if not transpose:
            return matrix(name, rows, columns, ld)
        stored = matrix(name, columns, rows, ld).swapaxes(1, 2)
        return stored.conj() if transpose == 2 else stored

    m, n, k = arguments["m"], arguments["n"], arguments["k"]
    if not arguments["batch"] * m * n:
        return
    left, right = factor("a", m, k, "lda"), factor("b", k, n, "ldb")
    # The dtype in which it is computed: at least float32, or int64.
    wide = np.result_type(left.dtype, np.float32 if left.dtype.kind != "i" else int)
    result = left.astype(wide) @ right.astype(wide)
    alpha = arguments.get("alpha")
    if isinstance(alpha, Pointer):
        flat = alpha.array[alpha.start :].view(BY_SHORT_NAME[dtypes_of["alpha"]])
        result *= flat[0]
    elif alpha is not None:
        # Integers of a call have the bits of float64 factors.
        result *= np.int64(alpha).view(np.float64)
    if "added" in arguments:
        beta = np.int64(arguments["beta"]).view(np.float64)
        result += beta * matrix("added", m, n, "ld_added").astype(wide)
    if "bias" in arguments:
        pointer: Pointer = arguments["bias"]
        dtype = BY_SHORT_NAME[dtypes_of["bias"]]
        result += pointer.elements("bias", dtype, (n,), (1,)).astype(wide)
    if kernel.provider.endswith("relu"):
        result = np.maximum(result, 0)
    matrix("c", m, n, "ldc")[:] = result


def stored_dtype(dtype: str) -> str:
    """Return the dtype of the elements to which a kernel's pointer points.

    Bools are bytes, and half-precision floats are 16 bits.
    """
    return "u8" if dtype == "bool" else stored_half(dtype)


def _unwritten(nbytes: int) -> Array:
    """Allocate ``nbytes`` of 0xFF, which count as unwritten, aligned as on a GPU."""
    memory = np.full(nbytes + 256, 0xFF, np.uint8)
    start = -memory.ctypes.data % 256  # bytes to the next multiple of 256
    return memory[start : start + nbytes]
