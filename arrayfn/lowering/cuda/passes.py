"""The passes over Programs for a GPU: the common ones, and those for its libraries."""

from __future__ import annotations

from functools import partial
from typing import Final

from arrayfn.ir import ArrayType, Equation, Program
from arrayfn.lowering.cuda.config import GpuConfig
from arrayfn.lowering.cuda.positions import extremum_positions_in_one
from arrayfn.lowering.cuda.products.names import PRODUCTS, contracts_contiguously
from arrayfn.lowering.cuda.solvers.guards import with_lapack_guards
from arrayfn.lowering.cuda.windows.convolutions import (
    for_library,
    is_library_convolution,
)
from arrayfn.lowering.cuda.windows.phases import windows_as_sums
from arrayfn.lowering.cuda.windows.pools import is_pool, with_padded_windows
from arrayfn.lowering.operator_kernels import KERNELS, OperatorKernel
from arrayfn.lowering.options import Options
from arrayfn.passes.layout_assignment import LayoutRules
from arrayfn.passes.masks import masks_of_results
from arrayfn.passes.pipeline import Pass, pipeline
from arrayfn.passes.simplify import simplify
from arrayfn.passes.small import with_sums
from arrayfn.transforms.dce import dce

MAX_PERSISTENT_MULTIPLY_ADDS: Final = 1 << 23
"""Multiply-adds of a product, up to which a persistent kernel computes it."""
MAX_LOOP_MULTIPLY_ADDS: Final = 1 << 20
"""Multiply-adds of a product, up to which a loop computes it without a library."""


def _rewrite_for_libraries(
    program: Program, gpu: GpuConfig, options: Options
) -> Program:
    """Rewrite ``program`` for NVIDIA's libraries and the handwritten kernels."""
    program = with_lapack_guards(program)
    program = windows_as_sums(with_padded_windows(program))
    program = extremum_positions_in_one(program)
    return for_library(program, gpu.choose_convolution, options.deterministic)


def passes_for(gpu: GpuConfig, options: Options) -> tuple[Pass, ...]:
    """Return the passes that ``lower`` runs, in order; the last one assigns layouts."""

    def operator_kernel(equation: Equation) -> OperatorKernel | None:
        """Return the kernel that is registered for an operator's equation."""
        return KERNELS.for_call(equation, "cuda", options.deterministic)

    def stays_whole(equation: Equation) -> bool:
        """Whether a kernel or a library computes all of ``equation``."""
        has_kernel = operator_kernel(equation) is not None
        return has_kernel or is_library_convolution(equation) or is_pool(equation)

    def takes_view(equation: Equation, type: ArrayType, offset: int) -> bool:
        """Whether an operator's kernel takes an operand of this layout and offset."""
        kernel = operator_kernel(equation)
        return kernel is not None and kernel.views(type, offset)

    *passes, layouts = pipeline(
        PRODUCTS,
        stays_whole,
        partial(_rewrite_for_libraries, gpu=gpu, options=options),
        max_summed=MAX_LOOP_MULTIPLY_ADDS,
        cuts_transforms=False,  # cuFFT has every processor do a transform
        layout_rules=LayoutRules(takes_view, contracts_contiguously, gpu.vector_bytes),
    )
    passes += [masks_of_results, dce]
    if options.mode == "persistent":
        # Small products become sums: a library call would end a persistent kernel.
        passes += [
            partial(with_sums, limit=MAX_PERSISTENT_MULTIPLY_ADDS),
            simplify,
            dce,
        ]
    return *passes, layouts
