"""Unitary reductions of matrices by LAPACK. A work item is one matrix of a batch."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from arrayfn import dtypes
from arrayfn.ir import ArrayType, Equation
from arrayfn.lowering.libraries.calls import LibraryCall, Place, grain_of
from arrayfn.passes.reads import Reads

BLOCK: Final = 64


def _call(
    name: str,
    x: ArrayType,
    writes: dict[str, Place],
    work: float,
    scratch: dict[str, int],
) -> LibraryCall:
    n = x.shape[-1]
    words = (BLOCK + 3) * max(1, n)
    return LibraryCall(
        provider=f"{name}_{dtypes.short_name(x.dtype)}",
        reads={},
        writes=writes,
        scratch={"work": words * x.dtype.itemsize, **scratch},
        integers={"n": n, "words": words},
        items=math.prod(x.shape[:-2]) if n else 0,
        grain=grain_of(work),
        library="LAPACK",
    )


def hessenberg(equation: Equation, reads: Reads) -> Iterable[LibraryCall]:
    """gehrd over the operand."""
    a, taus = equation.outputs
    n = a.type.shape[-1]
    writes = {"a": Place(a), "taus": Place(taus)}
    yield _call("gehrd", a.type, writes, 10 / 3 * n**3, {})


def tridiagonal(equation: Equation, reads: Reads) -> Iterable[LibraryCall]:
    """sytrd over the operand."""
    a, d, e, taus = equation.outputs
    n = a.type.shape[-1]
    writes = {"a": Place(a), "d": Place(d), "e": Place(e), "taus": Place(taus)}
    yield _call("sytrd", a.type, writes, 4 / 3 * n**3, {})


def schur(equation: Equation, reads: Reads) -> Iterable[LibraryCall]:
    """gees over the operand."""
    t, z = equation.outputs
    n = t.type.shape[-1]
    scratch = {
        "values": n * t.type.dtype.itemsize,
        "more": n * t.type.dtype.itemsize,
    }
    writes = {"a": Place(t), "z": Place(z)}
    yield _call("gees", t.type, writes, 20 * n**3, scratch)
