"""CompiledProgram: the plain-data result of lowering, all that a runtime needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from arrayfn.ir import ArrayType
from arrayfn.lowering.plan import ExecutionPlan, Kernel, LibraryKernel


@dataclass(frozen=True)
class CompiledProgram:
    """Signature, plan, kernels and constants of a Program lowered for one target.

    ``text`` is the Program after the passes, as text. Nothing here refers to the
    tracer, so that it can be saved, and run by a process that never traced.
    """

    name: str
    target: str
    text: str
    input_types: tuple[ArrayType, ...]
    output_types: tuple[ArrayType, ...]
    kernels: tuple[Kernel | LibraryKernel, ...]
    plan: ExecutionPlan
    constants: tuple[np.ndarray[Any, Any], ...]
