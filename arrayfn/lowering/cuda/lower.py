"""Program -> CompiledProgram for a GPU: as for a CPU, with CUDA's kernels."""

from __future__ import annotations

from dataclasses import replace

from arrayfn.errors import BackendError
from arrayfn.ir import Equation, Program
from arrayfn.lowering.compiled import CompiledProgram
from arrayfn.lowering.cuda.schedule import Columns, Elementwise, Rows, Transpose, choose
from arrayfn.lowering.cuda.source import print_kernel
from arrayfn.lowering.kernel_ir import Nest
from arrayfn.lowering.lower import _Lowering
from arrayfn.passes.pipeline import run_passes

_STEMS = {
    Elementwise: "elementwise",
    Rows: "rows",
    Columns: "columns",
    Transpose: "transpose",
}


def lower(program: Program, check: bool = False) -> CompiledProgram:
    """``program`` as kernels and an execution plan; an item is a block."""
    return replace(_CudaLowering(run_passes(program, check)).run(), target="cuda")


class _CudaLowering(_Lowering):
    def nest(self, nest: Nest) -> None:
        schedule = choose(nest)
        name = self.fresh(_STEMS[type(schedule)])
        self.scheduled(print_kernel(nest, name, schedule))

    def contraction(self, equation: Equation) -> None:
        raise BackendError(
            "dot_general has no kernel on CUDA yet; use device='cpu'", equation.source
        )
