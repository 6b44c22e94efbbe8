"""Unitary reductions of matrices, by columns and in place: LAPACK's gehrd, sytrd, gees.

A matrix whose Schur form does not converge, or that is not finite, has NaNs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from arrayfn.backends.cpu.libraries.linear_algebra.calls import (
    CALLS,
    ITEM_BYTES,
    NAN,
    REAL_BYTES,
    fields,
    lapack,
    lapack_words,
)
from arrayfn.backends.cpu.libraries.linear_algebra.matrices import (
    all_finite,
    fill_words,
)
from arrayfn.backends.cpu.libraries.linear_algebra.references import by_reference
from arrayfn.backends.cpu.libraries.provider import Provider
from arrayfn.backends.native import load, native, stack, store
from arrayfn.primitives import linalg_schur

HESSENBERG: Final = fields(1, "a", "taus", "work", "n", "words")
TRIDIAGONAL: Final = fields(1, "a", "d", "e", "taus", "work", "n", "words")
SCHUR: Final = fields(1, "a", "z", "work", "values", "more", "flags", "n", "words")
MATRIX: Final = HESSENBERG["a"]
GEHRD_TAUS: Final = HESSENBERG["taus"]
GEHRD_SIZE: Final = HESSENBERG["n"]
DIAGONAL: Final = TRIDIAGONAL["d"]
SIDES: Final = TRIDIAGONAL["e"]
SYTRD_TAUS: Final = TRIDIAGONAL["taus"]
SYTRD_SIZE: Final = TRIDIAGONAL["n"]
VECTORS: Final = SCHUR["z"]
GEES_SIZE: Final = SCHUR["n"]


@native
def hessenberg_run(arguments: int, begin: int, end: int) -> int:
    """Reduce matrices ``begin`` to ``end``."""
    n = load(arguments + GEHRD_SIZE)
    size = load(arguments + ITEM_BYTES)
    own = stack(4)
    store(own + 16, own + 24)
    store(own + 24, 1)
    for item in range(begin, end):
        store(own, load(arguments + MATRIX) + item * n * n * size)
        store(own + 8, load(arguments + GEHRD_TAUS) + item * (n - 1) * size)
        lapack(arguments, CALLS, own)
    return 0


@native
def tridiagonal_form_run(arguments: int, begin: int, end: int) -> int:
    """Reduce matrices ``begin`` to ``end``."""
    n = load(arguments + SYTRD_SIZE)
    size = load(arguments + ITEM_BYTES)
    real = load(arguments + REAL_BYTES)
    own = stack(4)
    for item in range(begin, end):
        store(own, load(arguments + MATRIX) + item * n * n * size)
        store(own + 8, load(arguments + DIAGONAL) + item * n * real)
        store(own + 16, load(arguments + SIDES) + item * (n - 1) * real)
        store(own + 24, load(arguments + SYTRD_TAUS) + item * (n - 1) * size)
        lapack(arguments, CALLS, own)
    return 0


@native
def schur_run(arguments: int, begin: int, end: int) -> int:
    """Reduce matrices ``begin`` to ``end``."""
    n = load(arguments + GEES_SIZE)
    step = n * n * load(arguments + ITEM_BYTES)
    own = stack(4)
    # Where it writes how many eigenvalues it selected.
    store(own + 16, own + 24)
    for item in range(begin, end):
        store(own, load(arguments + MATRIX) + item * step)
        store(own + 8, load(arguments + VECTORS) + item * step)
        failed = 1
        if all_finite(load(own), step, load(arguments + REAL_BYTES)):
            failed = lapack(arguments, CALLS, own)
        if failed != 0:
            fill_words(load(own), step, load(arguments + NAN))
            fill_words(load(own + 8), step, load(arguments + NAN))
    return 0


def _words(
    places: dict[str, int], call: str | tuple[str, str]
) -> Callable[[str], tuple[int, ...]]:
    return lambda dtype: lapack_words(dtype, places, call)


PROVIDERS: Final = {
    "gehrd": Provider(
        hessenberg_run,
        _words(HESSENBERG, "?gehrd &n $2 &n $0 &n $1 work &words info"),
        by_reference(linalg_schur.hessenberg, "a", ("n", "n"), "a", "taus"),
        uses_blas=True,
    ),
    "tridiagonal": Provider(
        tridiagonal_form_run,
        _words(
            TRIDIAGONAL,
            (
                "?sytrd L &n $0 &n $1 $2 $3 work &words info",
                "?hetrd L &n $0 &n $1 $2 $3 work &words info",
            ),
        ),
        by_reference(linalg_schur.tridiagonal, "a", ("n", "n"), "a", "d", "e", "taus"),
        uses_blas=True,
    ),
    "gees": Provider(
        schur_run,
        _words(
            SCHUR,
            (
                "?gees V N null &n $0 &n $2 values more $1 &n work &words flags info",
                "?gees V N null &n $0 &n $2 values $1 &n work &words more flags info",
            ),
        ),
        by_reference(linalg_schur.schur, "a", ("n", "n"), "a", "z"),
        uses_blas=True,
    ),
}
