"""QR factors of large row-major matrices: panels of LAPACK's gelqf, applied in chunks.

As in ``qr`` the work is on transposed matrices: a panel is some of their rows, and its
reflections are applied from the right, as ``I - V^H T V``. With the rows of V in the
copy of the operand and T beside it, any rows are reflected on their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from arrayfn.backends.cpu.libraries.linear_algebra.matrices import (
    FUNCTIONS,
    ITEM_BYTES,
    LETTER_C,
    LETTER_N,
    copy_real,
    lapack_words,
    least,
    memcpy,
    memset,
    real_bytes,
)
from arrayfn.backends.cpu.libraries.linear_algebra.reflections import (
    BY_ROWS,
    ONE,
    REFLECTION_WORDS,
    SQUARES,
    apply_reflector,
    form_reflector,
    panel_squares,
    reflection_words,
)
from arrayfn.backends.cpu.libraries.provider import Provider
from arrayfn.backends.native import (
    call,
    load,
    native,
    stack,
    store_i32,
)

Array = np.ndarray[Any, Any]

# copy
COPIED: Final = FUNCTIONS
COPY: Final = FUNCTIONS + 8
COPY_ELEMENTS: Final = FUNCTIONS + 16

# gelqf_panel
GELQF: Final = FUNCTIONS
PANEL_REFLECTION: Final = FUNCTIONS + 8
PANEL_A: Final = PANEL_REFLECTION + 8 * REFLECTION_WORDS
PANEL_T: Final = PANEL_A + 8
TAU: Final = PANEL_A + 16
PANEL_WORK: Final = PANEL_A + 24
PANEL_SIZES: Final = PANEL_A + 32

# gelqf_update
REFLECTION: Final = FUNCTIONS
AFTER_REFLECTION: Final = FUNCTIONS + 8 * REFLECTION_WORDS
UPDATE_T: Final = AFTER_REFLECTION
UPDATE_A: Final = AFTER_REFLECTION + 8
UPDATE_WORK: Final = AFTER_REFLECTION + 16
UPDATE_SIZES: Final = AFTER_REFLECTION + 24

# gelqf_finish
FINISH_A: Final = AFTER_REFLECTION
FINISH_T: Final = AFTER_REFLECTION + 8
Q: Final = AFTER_REFLECTION + 16
R: Final = AFTER_REFLECTION + 24
FINISH_WORK: Final = AFTER_REFLECTION + 32
FINISH_SIZES: Final = AFTER_REFLECTION + 40
FINISH_CHUNK: Final = 32

# Byte offsets into the sizes.
ROWS: Final = 0
COLUMNS: Final = 8
INNER: Final = 16
BLOCK: Final = 24
START: Final = 32
WIDTH: Final = 40
WORDS: Final = 48
CHUNK: Final = 48


@native
def copy_run(arguments: int, begin: int, end: int) -> int:
    """Copy rows ``begin`` to ``end``."""
    step = load(arguments + COPY_ELEMENTS) * load(arguments + ITEM_BYTES)
    memcpy(
        load(arguments + COPY) + begin * step,
        load(arguments + COPIED) + begin * step,
        (end - begin) * step,
    )
    return 0


@native
def triangle(t: int, sizes: int, problem: int, start: int, size: int) -> int:
    """Where the triangular factor of the panel that begins at ``start`` is."""
    block = load(sizes + BLOCK)
    k = least(load(sizes + ROWS), load(sizes + COLUMNS))
    panels = (k + block - 1) // block
    return t + (problem * panels + start // block) * panel_squares(block, size)


@native
def qr_panel_run(arguments: int, begin: int, end: int) -> int:
    """Factor the panel of matrices ``begin`` to ``end``."""
    sizes = arguments + PANEL_SIZES
    rows = load(sizes + ROWS)
    columns = load(sizes + COLUMNS)
    start = load(sizes + START)
    size = load(arguments + ITEM_BYTES)
    ints = stack(3)
    store_i32(ints, load(sizes + WIDTH))
    store_i32(ints + 4, rows - start)
    store_i32(ints + 8, columns)
    store_i32(ints + 12, load(sizes + WORDS))
    for item in range(begin, end):
        place = item * rows * columns + start * columns + start
        a = load(arguments + PANEL_A) + place * size
        call(
            load(arguments + GELQF),
            ints,
            ints + 4,
            a,
            ints + 8,
            load(arguments + TAU),
            load(arguments + PANEL_WORK),
            ints + 12,
            ints + 16,
        )
        form_reflector(
            arguments + PANEL_REFLECTION,
            BY_ROWS,
            rows - start,
            load(sizes + WIDTH),
            a,
            columns,
            load(arguments + TAU),
            triangle(load(arguments + PANEL_T), sizes, item, start, size),
            load(sizes + BLOCK),
        )
    return 0


@native
def reflect(
    words: int,
    sizes: int,
    letter: int,
    v: int,
    t: int,
    c: int,
    leading: int,
    count: int,
    start: int,
    work: int,
) -> int:
    """Apply the panel that begins at ``start`` to ``count`` rows of C."""
    rows = load(sizes + ROWS)
    columns = load(sizes + COLUMNS)
    block = load(sizes + BLOCK)
    return apply_reflector(
        words,
        BY_ROWS,
        letter,
        count,
        rows - start,
        least(block, least(rows, columns) - start),
        v,
        columns,
        t,
        block,
        c,
        leading,
        work,
    )


@native
def qr_update_run(arguments: int, begin: int, end: int) -> int:
    """Apply a panel to chunks of the columns after it."""
    sizes = arguments + UPDATE_SIZES
    rows = load(sizes + ROWS)
    columns = load(sizes + COLUMNS)
    start = load(sizes + START)
    chunk = load(sizes + CHUNK)
    size = load(arguments + ITEM_BYTES)
    after = start + load(sizes + WIDTH)
    chunks = (columns - after + chunk - 1) // chunk
    for item in range(begin, end):
        problem = item // chunks
        first = after + item % chunks * chunk
        matrix = load(arguments + UPDATE_A) + problem * rows * columns * size
        reflect(
            arguments + REFLECTION,
            sizes,
            LETTER_N,
            matrix + (start * columns + start) * size,
            triangle(load(arguments + UPDATE_T), sizes, problem, start, size),
            matrix + (start * columns + first) * size,
            columns,
            least(chunk, columns - first),
            start,
            load(arguments + UPDATE_WORK),
        )
    return 0


@native
def qr_finish_run(arguments: int, begin: int, end: int) -> int:
    """Some columns of Q, and as many rows of R."""
    sizes = arguments + FINISH_SIZES
    rows = load(sizes + ROWS)
    columns = load(sizes + COLUMNS)
    inner = load(sizes + INNER)
    chunk = load(sizes + FINISH_CHUNK)
    size = load(arguments + ITEM_BYTES)
    chunks = (inner + chunk - 1) // chunk
    for item in range(begin, end):
        problem = item // chunks
        first = item % chunks * chunk
        count = least(chunk, inner - first)
        matrix = load(arguments + FINISH_A) + problem * rows * columns * size
        q = load(arguments + Q) + problem * rows * inner * size
        r = load(arguments + R) + problem * inner * columns * size
        copy_upper(arguments, matrix, r, first, first + count)
        q_columns(arguments, problem, matrix, q, first, count)
    return 0


@native
def copy_upper(arguments: int, matrix: int, r: int, first: int, stop: int) -> int:
    """Rows ``first`` to ``stop`` of the upper triangle, zeros before them."""
    sizes = arguments + FINISH_SIZES
    columns = load(sizes + COLUMNS)
    size = load(arguments + ITEM_BYTES)
    for row in range(first, stop):
        before = least(row, columns)
        target = r + row * columns * size
        memset(target, 0, before * size)
        memcpy(
            target + before * size,
            matrix + (row * columns + before) * size,
            (columns - before) * size,
        )
    return 0


@native
def q_columns(
    arguments: int, problem: int, matrix: int, q: int, first: int, count: int
) -> int:
    """Columns of Q: those of the identity, reflected by the last panel first."""
    sizes = arguments + FINISH_SIZES
    rows = load(sizes + ROWS)
    columns = load(sizes + COLUMNS)
    inner = load(sizes + INNER)
    block = load(sizes + BLOCK)
    size = load(arguments + ITEM_BYTES)
    one = arguments + REFLECTION + ONE
    for row in range(rows):
        memset(q + (row * inner + first) * size, 0, count * size)
    for row in range(first, first + count):
        copy_real(q + (row * inner + row) * size, one, real_bytes(arguments))
    k = least(rows, columns)
    start = (k - 1) // block * block
    while start >= 0:
        if start < first + count:
            reflect(
                arguments + REFLECTION,
                sizes,
                LETTER_C,
                matrix + (start * columns + start) * size,
                triangle(load(arguments + FINISH_T), sizes, problem, start, size),
                q + (start * inner + first) * size,
                inner,
                count,
                start,
                load(arguments + FINISH_WORK),
            )
        start -= block
    return 0


def panel_words(dtype: str) -> tuple[int, ...]:
    """The words before those of ``qr_panel_run``."""
    return *lapack_words(dtype, "?gelqf"), *reflection_words(dtype)


def reflected_words(dtype: str) -> tuple[int, ...]:
    """The words before those of ``qr_update_run`` and ``qr_finish_run``."""
    return *lapack_words(dtype), *reflection_words(dtype)


# Un-jitted.


def unjitted_copy(given: Mapping[str, Any], items: int) -> None:
    """All rows."""
    shape = items, int(given["elements"])
    given["y"].array(shape)[...] = given["x"].array(shape)


class _Sizes:
    """The extents of a call, and its arrays."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        names = ("rows", "columns", "inner", "block")
        self.rows, self.columns, self.inner, self.block = (int(given[n]) for n in names)
        self.k = min(self.rows, self.columns)
        self.start = int(given.get("start", 0))
        self.stop = self.start + int(given.get("width", 0))
        self.given = given

    def turned(self, count: int) -> Array:
        """The copies of the operands, transposed."""
        shape = (count, self.rows, self.columns)
        return self.given["a"].array(shape).swapaxes(-1, -2)

    def triangles(self, count: int) -> Array:
        """The triangular factors, by columns."""
        panels = -(-self.k // self.block)
        shape = (count, panels, SQUARES, self.block, self.block)
        return self.given["t"].array(shape)[:, :, 0].swapaxes(-1, -2)

    def panel(self, matrix: Array, triangles: Array, start: int) -> tuple[Array, Array]:
        """V and T of the panel that begins at ``start``."""
        width = min(self.block, self.k - start)
        v = np.triu(matrix[start : start + width, start:], 1)
        v[np.arange(width), np.arange(width)] = 1
        return v, np.triu(triangles[start // self.block])[:width, :width]


def unjitted_panel(given: Mapping[str, Any], items: int) -> None:
    """The panels of all matrices: Householder's reflections, row by row."""
    sizes = _Sizes(given)
    start, stop = sizes.start, sizes.stop
    for matrix, triangles in zip(
        sizes.turned(items), sizes.triangles(items), strict=True
    ):
        t = triangles[start // sizes.block]
        for row in range(start, stop):
            x = matrix[row, row:].conj()
            rest = np.linalg.norm(x[1:])
            if rest == 0 and x[0].imag == 0:
                tau = x.dtype.type(0)
                x[1:] = 0
                beta = x[0].real
            else:
                beta = -np.copysign(np.hypot(abs(x[0]), rest), x[0].real)
                tau = (beta - x[0]) / beta
                x[1:] /= x[0] - beta
            x[0] = 1
            below = matrix[row + 1 : stop, row:]
            below -= tau * np.outer(below @ x, x.conj())
            matrix[row, row:] = x.conj()
            matrix[row, row] = beta
            v, _ = sizes.panel(matrix, triangles, start)
            i = row - start
            t[i, i] = tau
            t[:i, i] = -tau * (np.triu(t[:i, :i]) @ (v[:i] @ v[i].conj()))


def unjitted_update(given: Mapping[str, Any], items: int) -> None:
    """The columns after the panels of all matrices."""
    sizes = _Sizes(given)
    start, stop = sizes.start, sizes.stop
    count = items // -(-(sizes.columns - stop) // int(given["chunk"]))
    for matrix, triangles in zip(
        sizes.turned(count), sizes.triangles(count), strict=True
    ):
        v, t = sizes.panel(matrix, triangles, start)
        rest = matrix[stop:, start:]
        rest -= rest @ v.conj().T @ t @ v


def unjitted_finish(given: Mapping[str, Any], items: int) -> None:
    """Q and R of all matrices."""
    sizes = _Sizes(given)
    rows, inner = sizes.rows, sizes.inner
    count = items // -(-inner // int(given["chunk"]))
    q = given["q"].array((count, rows, inner)).swapaxes(-1, -2)
    r = given["r"].array((count, inner, sizes.columns))
    a, triangles = sizes.turned(count), sizes.triangles(count)
    for number in range(count):
        r[number] = np.triu(a[number].T[:inner])
        q[number] = np.eye(inner, rows)
        for start in reversed(range(0, sizes.k, sizes.block)):
            v, t = sizes.panel(a[number], triangles[number], start)
            rest = q[number][:, start:]
            rest -= rest @ v.conj().T @ t.conj().T @ v


PROVIDERS: Final = {
    "copy": Provider(copy_run, lapack_words, unjitted_copy),
    "gelqf_panel": Provider(qr_panel_run, panel_words, unjitted_panel, uses_blas=True),
    "gelqf_update": Provider(
        qr_update_run, reflected_words, unjitted_update, uses_blas=True
    ),
    "gelqf_finish": Provider(
        qr_finish_run, reflected_words, unjitted_finish, uses_blas=True
    ),
}
