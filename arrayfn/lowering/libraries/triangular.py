"""Triangular systems by BLAS. A work item is some right-hand sides of one matrix."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from arrayfn import dtypes
from arrayfn.ir import Equation
from arrayfn.lowering.libraries.calls import (
    START,
    LibraryCall,
    Pointer,
    grain_of,
    pointer_of,
)
from arrayfn.lowering.libraries.factorizations import is_small, lanes
from arrayfn.passes.reads import Reads

CHUNK: Final = 128  # right-hand sides of an item: enough to amortise packing the matrix
FEWEST: Final = 64  # the same with few matrices, so that each thread has some
FEW: Final = 16  # matrices
PARTS: Final = 8  # of few matrices' right-hand sides, for the threads


def triangular_solve(equation: Equation, reads: Reads) -> Iterable[LibraryCall]:
    """Yield the call of trsm, in place on the right-hand sides.

    BLAS is column-major, so it sees the matrix and the right-hand sides transposed. An
    item is ``chunk`` right-hand sides of one matrix.
    """
    params = equation.params
    type = equation.outputs[0].type
    rows, columns = type.shape[-2:]
    # The matrix has n rows; there are ``sides`` right-hand sides for each.
    n, sides = (rows, columns) if params["left"] else (columns, rows)
    count = math.prod(type.shape[:-2])
    chunk = CHUNK if count >= FEW else min(CHUNK, max(FEWEST, -(-sides // PARTS)))
    chunk = max(1, min(sides, chunk))
    chunks = -(-sides // chunk)
    name, scratch = "trsm", dict[str, int]()
    integers = {
        "rows": rows,
        "columns": columns,
        "lower": int(params["lower"]),
        # 1 is transposed, 2 transposed and conjugated.
        "transpose": int(params["transpose"]) + int(params["conjugate"]),
        "unit": int(params["unit"]),
    }
    if params["left"] and is_small(type, rows):
        name = "small_triangular_solve"
        scratch = lanes(own=rows * rows, sides=rows * columns, solved=columns)
    else:
        integers |= {"left": int(params["left"]), "chunk": chunk, "chunks": chunks}
    yield LibraryCall(
        provider=f"{name}_{dtypes.short_name(type.dtype)}",
        reads={"a": pointer_of(equation.inputs[1], reads)},
        writes={"b": Pointer(equation.outputs[0])},
        scratch=scratch,
        integers=integers,
        items=count * chunks if n else 0,
        grain=grain_of(n * n * (chunk / 2 + START) + START),
        library="BLAS",
    )
