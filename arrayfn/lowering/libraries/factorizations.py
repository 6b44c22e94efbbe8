"""Factorizations of matrices by LAPACK. A work item is one matrix of a batch."""

from __future__ import annotations

import math
from collections.abc import Iterable

from arrayfn import dtypes
from arrayfn.ir import Equation
from arrayfn.lowering.libraries.calls import (
    LibraryCall,
    Place,
    Reads,
    grain_of,
)


def cholesky(equation: Equation, reads: Reads) -> Iterable[LibraryCall]:
    """potrf over the operand. Its lower triangle is, by columns, an upper one."""
    type = equation.outputs[0].type
    n = type.shape[-1]
    yield LibraryCall(
        provider=f"potrf_{dtypes.short_name(type.dtype)}",
        reads={},
        writes={"a": Place(equation.outputs[0])},
        integers={"n": n},
        items=math.prod(type.shape[:-2]) if n else 0,
        grain=grain_of(n**3 / 6),
        library="LAPACK",
    )
