"""Triangular systems by BLAS. A work item is some right-hand sides of one matrix."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from arrayfn import dtypes
from arrayfn.ir import Equation
from arrayfn.lowering.libraries.calls import (
    LibraryCall,
    Place,
    Reads,
    grain_of,
    place_of,
)

CHUNK: Final = 128  # right-hand sides of an item: enough to amortise packing the matrix


def triangular_solve(equation: Equation, reads: Reads) -> Iterable[LibraryCall]:
    """trsm over the right-hand sides. By columns both sides are their transposes."""
    params = equation.params
    type = equation.outputs[0].type
    rows, columns = type.shape[-2:]
    n, count = (rows, columns) if params["left"] else (columns, rows)
    chunk = min(max(1, count), CHUNK)
    chunks = -(-count // chunk)
    transpose = int(params["transpose"]) + int(params["conjugate"])
    yield LibraryCall(
        provider=f"trsm_{dtypes.short_name(type.dtype)}",
        reads={"a": place_of(equation.inputs[1], reads)},
        writes={"b": Place(equation.outputs[0])},
        integers={
            "rows": rows,
            "columns": columns,
            "chunk": chunk,
            "chunks": chunks,
            "left": int(params["left"]),
            "lower": int(params["lower"]),
            "transpose": transpose,
            "unit": int(params["unit"]),
        },
        items=math.prod(type.shape[:-2]) * chunks if n else 0,
        grain=grain_of(n * n * chunk / 2),
        library="BLAS",
    )
