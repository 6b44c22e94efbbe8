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
    Place,
    grain_of,
    place_of,
)
from arrayfn.passes.reads import Reads

CHUNK: Final = 128  # right-hand sides of an item: enough to amortise packing the matrix
LEAST: Final = 64  # where there are few matrices, and each thread is to have some sides
FEW: Final = 16
PARTS: Final = 8


def triangular_solve(equation: Equation, reads: Reads) -> Iterable[LibraryCall]:
    """trsm over the right-hand sides."""
    params = equation.params
    type = equation.outputs[0].type
    rows, columns = type.shape[-2:]
    n, sides = (rows, columns) if params["left"] else (columns, rows)
    count = math.prod(type.shape[:-2])
    chunk = CHUNK if count >= FEW else min(CHUNK, max(LEAST, -(-sides // PARTS)))
    yield substitution(
        place_of(equation.inputs[1], reads),
        Place(equation.outputs[0]),
        rows=rows,
        columns=columns,
        chunk=max(1, min(sides, chunk)),
        count=count,
        left=params["left"],
        lower=params["lower"],
        transpose=int(params["transpose"]) + int(params["conjugate"]),
        unit=params["unit"],
        leading=(n, columns),
        strides=(n * n, rows * columns),
    )


def substitution(
    a: Place,
    b: Place,
    *,
    rows: int,
    columns: int,
    chunk: int,
    count: int,
    left: bool,
    lower: bool,
    transpose: int,
    leading: tuple[int, int],
    strides: tuple[int, int],
    unit: bool = False,
) -> LibraryCall:
    """trsm over b [count, rows, columns]. By columns both sides are their transposes.

    ``leading`` and ``strides`` are elements between the rows of a and of b, and between
    their matrices; ``transpose`` is 2 for a conjugation too.
    """
    n, sides = (rows, columns) if left else (columns, rows)
    chunks = -(-sides // chunk)
    return LibraryCall(
        provider=f"trsm_{dtypes.short_name(b.array.type.dtype)}",
        reads={"a": a},
        writes={"b": b},
        integers={
            "rows": rows,
            "columns": columns,
            "chunk": chunk,
            "chunks": chunks,
            "left": int(left),
            "lower": int(lower),
            "transpose": transpose,
            "unit": int(unit),
            "leading_a": leading[0],
            "leading_b": leading[1],
            "stride_a": strides[0],
            "stride_b": strides[1],
        },
        items=count * chunks if n else 0,
        grain=grain_of(n * n * (chunk / 2 + START) + START),
        library="BLAS",
    )
