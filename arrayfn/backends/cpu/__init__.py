"""The CPU backend: compiled kernels, run over threads by a resident plan runner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from arrayfn.backends.base import BackendInfo, TimedExecutable
from arrayfn.backends.base import Executable as Callable
from arrayfn.ir import ArrayType, Equation, Program
from arrayfn.lowering.operator_kernels import KERNELS, OperatorKernel
from arrayfn.lowering.options import DEFAULT, Options
from arrayfn.lowering.plan_runners import RUNNERS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from arrayfn.lowering.compiled import CompiledProgram
    from arrayfn.lowering.libraries.calls import LibraryCall
    from arrayfn.lowering.plan import Kernel
    from arrayfn.passes.reads import Reads

# The compiler and the runtime are imported by the first function that is compiled.

__all__ = ["CpuBackend"]


def _try_plan(compiled: CompiledProgram) -> bool:
    """Run a small plan as Python in checked memory; return whether it was run."""
    from arrayfn.backends.cpu.checked_run import try_plan

    return try_plan(compiled)


def _sparse_product(equation: Equation, reads: Reads) -> Iterable[LibraryCall]:
    """Return the library call for ``equation``: sparse matrix times dense array."""
    from arrayfn.lowering.libraries.sparse import product

    return product(equation, reads)


def _has_sparse_product(*types: ArrayType, **static: Any) -> bool:
    """Return whether the library call computes a product of operands of ``types``.

    It does if it has their dtypes, and the sparse matrix has enough entries.
    """
    from arrayfn.lowering.libraries.sparse import is_computed

    return is_computed(*types, **static)


RUNNERS["cpu"] = _try_plan
# An operator's kernel is registered here, not beside the operator, so that functions
# that call it can be saved, and loaded without it.
KERNELS.register(
    OperatorKernel(
        "sparse_product", "cpu", _sparse_product, _has_sparse_product, lowered=True
    )
)


class CpuBackend:
    """The backend for CPUs: compiled kernels on all usable cores, BLAS from SciPy."""

    name = "cpu"

    def info(self) -> BackendInfo:
        """Describe the backend, which every machine has."""
        return BackendInfo(
            self.name, "compiled kernels on threads", ("llvmlite", "numba", "scipy")
        )

    def array_types(self) -> tuple[type, ...]:
        """Return the classes of arrays besides NumPy's: the CPU has none."""
        return ()

    def put(self, x: Any) -> Any:
        """Copy ``x`` to a NumPy array."""
        return np.array(x)

    def lower(
        self, program: Program, donated: frozenset[int], options: Options = DEFAULT
    ) -> CompiledProgram:
        """Lower ``program`` to kernels and a plan, in which each sum's order is fixed.

        ``donated`` are the numbers of the inputs whose memory may be overwritten.
        """
        from arrayfn.lowering.lower import lower

        return lower(program, donated, options=options)

    def load(self, compiled: CompiledProgram) -> Callable:
        """Load the kernels of ``compiled`` and return a callable of a list of inputs.

        The values that the program computes only once, such as functions of constants,
        are computed at this time. If results overwrite donated inputs, the callable
        passes the memory of these inputs as outputs.
        """
        from arrayfn.backends.cpu.donation import DonatingExecutable
        from arrayfn.backends.cpu.executable import bind
        from arrayfn.lowering.compiled import completed

        compiled = completed(compiled, lambda once: self.load(once)(()))
        executable = bind(compiled.plan, compiled.kernels, compiled.constants)
        # Number of an output -> number of the donated input that it overwrites.
        donors = {
            b.index: b.donor
            for b in compiled.plan.buffers
            if b.kind == "output" and b.donor is not None
        }
        return DonatingExecutable(executable, donors) if donors else executable

    def assembly(self, kernel: Kernel) -> str:
        """Return the assembly of ``kernel`` for this processor, as text."""
        from arrayfn.backends.cpu.code import kernel_assembly

        return kernel_assembly(kernel)

    def load_timed(self, compiled: CompiledProgram) -> TimedExecutable:
        """Load ``compiled`` with a reading of the clock after each step of its plan.

        The result runs like that of ``load`` and has the time of each step.
        """
        from arrayfn.backends.cpu.timed import ClockedExecutable
        from arrayfn.lowering.clocks import with_clocks

        timed, state = with_clocks(compiled)
        return ClockedExecutable(self.load(timed), state)
