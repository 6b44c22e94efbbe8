"""Products of Householder reflections, applied as one: LAPACK's larft and larfb.

``1 - V T V^H`` with reflections in the columns of V, or ``1 - V^H T V`` with them in
its rows. Neither function writes to V (its drivers ormqr and the like may), so that
threads can share it.
"""

from __future__ import annotations

from typing import Final

from arrayfn.backends.cpu.libraries.matrices import (
    LETTER_C,
    LETTER_F,
    LETTER_L,
    LETTER_R,
)
from arrayfn.backends.cpu.native import call, native, stack, store_i32, store_u8

BY_COLUMNS: Final = 0
BY_ROWS: Final = 1


@native
def form_reflector(
    larft: int,
    by_rows: int,
    length: int,
    count: int,
    v: int,
    leading: int,
    tau: int,
    t: int,
    block: int,
) -> int:
    """T of ``count`` reflections of ``length``, ``block`` elements between columns."""
    letters = stack(1)
    ints = stack(2)
    store_u8(letters, LETTER_F)
    store_u8(letters + 1, LETTER_C)
    if by_rows:
        store_u8(letters + 1, LETTER_R)
    store_i32(ints, length)
    store_i32(ints + 4, count)
    store_i32(ints + 8, leading)
    store_i32(ints + 12, block)
    return call(
        larft, letters, letters + 1, ints, ints + 4, v, ints + 8, tau, t, ints + 12
    )


@native
def apply_reflector(
    larfb: int,
    by_rows: int,
    letter: int,
    rows: int,
    columns: int,
    count: int,
    v: int,
    leading: int,
    t: int,
    block: int,
    c: int,
    leading_c: int,
    work: int,
) -> int:
    """Apply ``count`` reflections to C: from the left, or ``by_rows`` from the right.

    ``letter`` says whether transposed. Workspace: block times C's other extent.
    """
    letters = stack(1)
    ints = stack(4)
    store_u8(letters, LETTER_L)
    store_u8(letters + 1, letter)
    store_u8(letters + 2, LETTER_F)
    store_u8(letters + 3, LETTER_C)
    store_i32(ints + 24, columns)
    if by_rows:
        store_u8(letters, LETTER_R)
        store_u8(letters + 3, LETTER_R)
        store_i32(ints + 24, rows)
    store_i32(ints, rows)
    store_i32(ints + 4, columns)
    store_i32(ints + 8, count)
    store_i32(ints + 12, leading)
    store_i32(ints + 16, block)
    store_i32(ints + 20, leading_c)
    return call(
        larfb,
        letters,
        letters + 1,
        letters + 2,
        letters + 3,
        ints,
        ints + 4,
        ints + 8,
        v,
        ints + 12,
        t,
        ints + 16,
        c,
        ints + 20,
        work,
        ints + 24,
    )
