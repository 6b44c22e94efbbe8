"""The CPU backend: compiled kernels, run over threads by a resident plan runner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from arrayfn.backends.base import BackendInfo, TimedExecutable
from arrayfn.backends.base import Executable as Callable
from arrayfn.ir import Program
from arrayfn.lowering.compiled import CompiledProgram, completed
from arrayfn.lowering.options import DEFAULT, Options
from arrayfn.lowering.plan_runners import RUNNERS

if TYPE_CHECKING:
    from arrayfn.lowering.plan import Kernel

# The compiler and the runtime are imported by the first function that is compiled.

__all__ = ["CpuBackend"]


def _try_plan(compiled: CompiledProgram) -> bool:
    """Run a plan once in checked memory, on a CPU."""
    from arrayfn.backends.cpu.checked_run import try_plan

    return try_plan(compiled)


RUNNERS["cpu"] = _try_plan


class CpuBackend:
    """The CPU: kernels over raw pointers on all usable cores; BLAS through SciPy."""

    name = "cpu"

    def info(self) -> BackendInfo:
        """Describe the backend, which every machine has."""
        return BackendInfo(
            self.name, "compiled kernels on threads", ("llvmlite", "numba", "scipy")
        )

    def array_types(self) -> tuple[type, ...]:
        """None but NumPy's."""
        return ()

    def put(self, x: Any) -> Any:
        """A copy of ``x`` as a NumPy array."""
        return np.array(x)

    def lower(
        self, program: Program, donated: frozenset[int], options: Options = DEFAULT
    ) -> CompiledProgram:
        """Lower ``program`` to kernels and a plan; all orders of sums are fixed."""
        from arrayfn.lowering.lower import lower

        return lower(program, donated, options=options)

    def load(self, compiled: CompiledProgram) -> Callable:
        """Make ``compiled`` callable.

        Values that are computed once, such as functions of constants, are computed
        here.
        """
        from arrayfn.backends.cpu.donation import DonatingExecutable
        from arrayfn.backends.cpu.executable import bind

        compiled = completed(compiled, lambda once: self.load(once)(()))
        executable = bind(compiled.plan, compiled.kernels, compiled.constants)
        donors = {
            b.index: b.donor
            for b in compiled.plan.buffers
            if b.kind == "output" and b.donor is not None
        }
        return DonatingExecutable(executable, donors) if donors else executable

    def assembly(self, kernel: Kernel) -> str:
        """The assembly of ``kernel`` for this processor."""
        from arrayfn.backends.cpu.code import kernel_assembly

        return kernel_assembly(kernel)

    def load_timed(self, compiled: CompiledProgram) -> TimedExecutable:
        """Make ``compiled`` callable, with a clock reading after each step."""
        from arrayfn.backends.cpu.timed import ClockedExecutable
        from arrayfn.lowering.clocks import with_clocks

        timed, state = with_clocks(compiled)
        return ClockedExecutable(self.load(timed), state)
