"""Unitary reductions of matrices, by columns and in place: LAPACK's gehrd, sytrd, gees.

A matrix whose Schur form does not converge, or that is not finite, has NaNs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from arrayfn.backends.cpu.libraries.linear_algebra.matrices import (
    COMPLEX,
    FUNCTIONS,
    ITEM_BYTES,
    LETTER_L,
    LETTER_N,
    LETTER_V,
    NAN,
    all_finite,
    fill_words,
    lapack_words,
    real_bytes,
)
from arrayfn.backends.cpu.libraries.provider import Provider
from arrayfn.backends.native import (
    call,
    load,
    load_i32,
    native,
    stack,
    store_i32,
    store_u8,
)
from arrayfn.primitives import linalg_schur
from arrayfn.primitives.base import Primitive

FUNCTION: Final = FUNCTIONS
MATRIX: Final = FUNCTIONS + 8

# gehrd
GEHRD_TAUS: Final = FUNCTIONS + 16
GEHRD_WORK: Final = FUNCTIONS + 24
GEHRD_SIZE: Final = FUNCTIONS + 32
GEHRD_WORDS: Final = FUNCTIONS + 40

# sytrd
DIAGONAL: Final = FUNCTIONS + 16
SIDES: Final = FUNCTIONS + 24
SYTRD_TAUS: Final = FUNCTIONS + 32
SYTRD_WORK: Final = FUNCTIONS + 40
SYTRD_SIZE: Final = FUNCTIONS + 48
SYTRD_WORDS: Final = FUNCTIONS + 56

# gees
VECTORS: Final = FUNCTIONS + 16
GEES_WORK: Final = FUNCTIONS + 24
VALUES: Final = FUNCTIONS + 32
INTEGER_WORK: Final = FUNCTIONS + 40
GEES_SIZE: Final = FUNCTIONS + 48
GEES_WORDS: Final = FUNCTIONS + 56


@native
def hessenberg_run(arguments: int, begin: int, end: int) -> int:
    """Reduce matrices ``begin`` to ``end``."""
    n = load(arguments + GEHRD_SIZE)
    size = load(arguments + ITEM_BYTES)
    ints = stack(3)
    store_i32(ints, n)
    store_i32(ints + 4, 1)
    store_i32(ints + 8, load(arguments + GEHRD_WORDS))
    for item in range(begin, end):
        call(
            load(arguments + FUNCTION),
            ints,
            ints + 4,
            ints,
            load(arguments + MATRIX) + item * n * n * size,
            ints,
            load(arguments + GEHRD_TAUS) + item * (n - 1) * size,
            load(arguments + GEHRD_WORK),
            ints + 8,
            ints + 12,
        )
    return 0


@native
def tridiagonal_form_run(arguments: int, begin: int, end: int) -> int:
    """Reduce matrices ``begin`` to ``end``."""
    n = load(arguments + SYTRD_SIZE)
    size = load(arguments + ITEM_BYTES)
    real = real_bytes(arguments)
    letters = stack(1)
    ints = stack(2)
    store_u8(letters, LETTER_L)
    store_i32(ints, n)
    store_i32(ints + 4, load(arguments + SYTRD_WORDS))
    for item in range(begin, end):
        call(
            load(arguments + FUNCTION),
            letters,
            ints,
            load(arguments + MATRIX) + item * n * n * size,
            ints,
            load(arguments + DIAGONAL) + item * n * real,
            load(arguments + SIDES) + item * (n - 1) * real,
            load(arguments + SYTRD_TAUS) + item * (n - 1) * size,
            load(arguments + SYTRD_WORK),
            ints + 4,
            ints + 8,
        )
    return 0


@native
def schur_run(arguments: int, begin: int, end: int) -> int:
    """Reduce matrices ``begin`` to ``end``."""
    n = load(arguments + GEES_SIZE)
    size = load(arguments + ITEM_BYTES)
    step = n * n * size
    for item in range(begin, end):
        matrix = load(arguments + MATRIX) + item * step
        vectors = load(arguments + VECTORS) + item * step
        if schur_matrix(arguments, matrix, vectors) != 0:
            fill_words(matrix, step, load(arguments + NAN))
            fill_words(vectors, step, load(arguments + NAN))
    return 0


@native
def schur_matrix(arguments: int, matrix: int, vectors: int) -> int:
    """One matrix; not 0 if it failed."""
    n = load(arguments + GEES_SIZE)
    real = real_bytes(arguments)
    letters = stack(1)
    ints = stack(3)
    values = load(arguments + VALUES)
    parts = load(arguments + ITEM_BYTES) // real
    if not all_finite(matrix, n * n * parts, real):
        return 1
    store_u8(letters, LETTER_V)
    store_u8(letters + 1, LETTER_N)
    store_i32(ints, n)
    store_i32(ints + 4, load(arguments + GEES_WORDS))
    if load(arguments + COMPLEX):
        call(
            load(arguments + FUNCTION),
            letters,
            letters + 1,
            0,
            ints,
            matrix,
            ints,
            ints + 8,
            values,
            vectors,
            ints,
            load(arguments + GEES_WORK),
            ints + 4,
            values + n * load(arguments + ITEM_BYTES),
            load(arguments + INTEGER_WORK),
            ints + 12,
        )
    else:
        call(
            load(arguments + FUNCTION),
            letters,
            letters + 1,
            0,
            ints,
            matrix,
            ints,
            ints + 8,
            values,
            values + n * real,
            vectors,
            ints,
            load(arguments + GEES_WORK),
            ints + 4,
            load(arguments + INTEGER_WORK),
            ints + 12,
        )
    return load_i32(ints + 12)


def _words(*functions: str) -> Callable[[str], tuple[int, ...]]:
    return lambda dtype: lapack_words(dtype, *functions)


def _unjitted(row: Primitive, *names: str) -> Callable[[Mapping[str, Any], int], None]:
    """All matrices, by the row's reference; ``names`` are of its other outputs."""

    def run(given: Mapping[str, Any], items: int) -> None:
        n = int(given["n"])
        matrices = given["a"].array((items, n, n))
        parts = row.reference(matrices.copy())
        matrices[...] = parts[0]
        for name, part in zip(names, parts[1:], strict=True):
            given[name].array(part.shape)[...] = part

    return run


PROVIDERS: Final = {
    "gehrd": Provider(
        hessenberg_run,
        _words("?gehrd"),
        _unjitted(linalg_schur.hessenberg, "taus"),
        uses_blas=True,
    ),
    "tridiagonal": Provider(
        tridiagonal_form_run,
        _words("?sytrd|?hetrd"),
        _unjitted(linalg_schur.tridiagonal, "d", "e", "taus"),
        uses_blas=True,
    ),
    "gees": Provider(
        schur_run, _words("?gees"), _unjitted(linalg_schur.schur, "z"), uses_blas=True
    ),
}
