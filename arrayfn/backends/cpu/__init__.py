"""The CPU backend: Numba-compiled kernels, run over threads by a resident plan runner."""

from __future__ import annotations

from arrayfn.backends.base import BackendInfo
from arrayfn.backends.cpu.executable import Executable, bind
from arrayfn.ir import Program
from arrayfn.lowering.compiled import CompiledProgram
from arrayfn.lowering.lower import lower

__all__ = ["CpuBackend"]


class CpuBackend:
    """Kernels over raw pointers on all usable cores; BLAS through SciPy."""

    name = "cpu"

    def info(self) -> BackendInfo:
        """Always there."""
        return BackendInfo(
            self.name, "Numba-compiled kernels on threads", ("numba", "scipy")
        )

    def lower(self, program: Program, donated: frozenset[int]) -> CompiledProgram:
        """``program`` as kernels and a plan."""
        return lower(program, donated)

    def load(self, compiled: CompiledProgram) -> Executable:
        """The callable of ``compiled``."""
        return bind(compiled.plan, compiled.kernels, compiled.constants)
