"""What tests of GPU kernels begin with: a function, lowered for a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from arrayfn.backends.cuda.emulated_plan import checked
from arrayfn.lowering.compiled import CompiledProgram
from arrayfn.lowering.cuda.config import GPU, GpuConfig
from arrayfn.lowering.cuda.lower import lower
from arrayfn.lowering.options import DEFAULT, Options
from arrayfn.lowering.plan import Kernel
from arrayfn.transforms import trace_function


def lowered(
    function: Callable[..., Any],
    *arguments: Any,
    gpu: GpuConfig = GPU,
    options: Options = DEFAULT,
) -> CompiledProgram:
    """``function`` compiled for ``gpu``, at the types of ``arguments``.

    The text of each kernel is one that the GPU's compiler takes.
    """
    traced = trace_function(function, arguments, {}, abstract=True, with_values=False)
    compiled = lower(traced.program, check=True, gpu=gpu, options=options)
    for kernel in compiled.kernels:
        if isinstance(kernel, Kernel):
            checked(kernel)
    return compiled
