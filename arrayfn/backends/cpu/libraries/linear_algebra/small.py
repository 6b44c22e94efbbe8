"""Factors of small real matrices, four at a time, one in each lane of a vector.

LAPACK's calls take longer to begin than to factor a few rows. All is computed in
float64, in scratch memory, where element ``k`` of the four matrices is at ``4 k``.
Elements of float32 are rounded once, when they are written. A lane does not depend on
the others.
"""

from __future__ import annotations

from typing import Any, Final

from arrayfn.backends.cpu.libraries.foreign import Array, Real, i32
from arrayfn.backends.cpu.libraries.linear_algebra import factors, triangular
from arrayfn.backends.cpu.libraries.linear_algebra.factors import permute
from arrayfn.backends.cpu.libraries.linear_algebra.matrices import NAN, fill
from arrayfn.backends.cpu.libraries.provider import Provider
from arrayfn.lowering.scalars import (
    abs_f64,
    copysign_f64,
    max_f64,
    min_i64,
    sqrt_f64,
)

LANES: Final = 4
# Squares of numbers outside may overflow, or lose digits. They are scaled.
SMALL: Final = 2.0**-400
LARGE: Final = 2.0**400
SCALE: Final = 2.0**600


def read(own: Array[float], x: Array[Any], size: int, count: int) -> None:
    """Read ``count`` matrices of ``size`` elements; the last fills the lanes left."""
    last = count - 1
    x1 = x + min_i64(1, last) * size
    x2 = x + min_i64(2, last) * size
    x3 = x + last * size
    for k in range(size):
        own[k * LANES] = float(x[k])
        own[k * LANES + 1] = float(x1[k])
        own[k * LANES + 2] = float(x2[k])
        own[k * LANES + 3] = float(x3[k])


def write(x: Array[Any], own: Array[float], size: int, count: int) -> None:
    """Write ``count`` matrices of ``size`` elements from the lanes of ``own``."""
    for lane in range(count):
        target = x + lane * size
        for k in range(size):
            target[k] = own[k * LANES + lane]


def small_cholesky(
    a: Array[Real],
    own: Array[float],
    column: Array[float],
    root: Array[float],
    n: int,
    begin: int,
    end: int,
) -> None:
    """Factor the lower triangles of row-major n x n matrices in place.

    The upper ones become zeros. Matrices that are not positive definite become NaN.
    Items ``begin`` to ``end`` are computed.
    """
    for first in range(begin, end, LANES):
        count = min_i64(LANES, end - first)
        matrices = a + first * n * n
        read(own, matrices, n * n, count)
        for k in range(n):
            for lane in range(LANES):
                at = (k * n + k) * LANES + lane
                x = sqrt_f64(own[at])
                own[at] = x
                root[lane] = x
            for row in range(k + 1, n):
                for lane in range(LANES):
                    at = (row * n + k) * LANES + lane
                    x = own[at] / root[lane]
                    own[at] = x
                    column[row * LANES + lane] = x
            for row in range(k + 1, n):
                for other in range(k + 1, row + 1):
                    for lane in range(LANES):
                        at = (row * n + other) * LANES + lane
                        x = column[row * LANES + lane] * column[other * LANES + lane]
                        own[at] = own[at] - x
        for row in range(n):
            for k in range((row * n + row + 1) * LANES, (row * n + n) * LANES):
                own[k] = 0.0
        write(matrices, own, n * n, count)
        for lane in range(count):
            is_factor = True
            for k in range(n):
                is_factor = is_factor & (own[(k * n + k) * LANES + lane] > 0.0)
            if not is_factor:
                fill(matrices + lane * n * n, n * n, NAN)


def small_lu(
    a: Array[Real],
    pivots: Array[i32],
    permutation: Array[i32],
    own: Array[float],
    column: Array[float],
    factor: Array[float],
    rows: int,
    columns: int,
    begin: int,
    end: int,
) -> None:
    """Factor column-major ``rows`` x ``columns`` matrices in place.

    Items ``begin`` to ``end`` are computed.
    """
    size, steps = rows * columns, min_i64(rows, columns)
    for first in range(begin, end, LANES):
        count = min_i64(LANES, end - first)
        read(own, a + first * size, size, count)
        for k in range(steps):
            at = own + k * rows * LANES
            for lane in range(count):
                pivot = k
                largest = abs_f64(at[k * LANES + lane])
                for row in range(k + 1, rows):
                    found = abs_f64(at[row * LANES + lane])
                    if found > largest:
                        largest = found
                        pivot = row
                pivots[(first + lane) * steps + k] = pivot
                if pivot != k:
                    for other in range(columns):
                        upper = (other * rows + k) * LANES + lane
                        lower = (other * rows + pivot) * LANES + lane
                        kept = own[upper]
                        own[upper] = own[lower]
                        own[lower] = kept
            for lane in range(LANES):
                # A column of zeros stays one.
                x = at[k * LANES + lane]
                factor[lane] = 1.0 if x == 0.0 else x
            for row in range(k + 1, rows):
                for lane in range(LANES):
                    x = at[row * LANES + lane] / factor[lane]
                    at[row * LANES + lane] = x
                    column[row * LANES + lane] = x
            for other in range(k + 1, columns):
                target = own + other * rows * LANES
                for lane in range(LANES):
                    factor[lane] = target[k * LANES + lane]
                for row in range(k + 1, rows):
                    for lane in range(LANES):
                        x = column[row * LANES + lane] * factor[lane]
                        target[row * LANES + lane] = target[row * LANES + lane] - x
        write(a + first * size, own, size, count)
        for lane in range(count):
            item = first + lane
            permute(permutation + item * rows, rows, pivots + item * steps, steps)


def small_triangular_solve(
    a: Array[Real],
    b: Array[Real],
    own: Array[float],
    sides: Array[float],
    solved: Array[float],
    rows: int,
    columns: int,
    lower: int,
    transpose: int,
    unit: int,
    begin: int,
    end: int,
) -> None:
    """Solve for the ``columns`` right-hand sides of each matrix, in place.

    Matrices have ``rows`` rows. ``lower``, ``transpose`` and ``unit`` (a diagonal of
    ones) are 0 or 1. Items ``begin`` to ``end`` are computed.
    """
    step, stride = rows * LANES, LANES
    if transpose != 0:
        step, stride = LANES, rows * LANES
    is_forward = (lower != 0) == (transpose == 0)
    for first in range(begin, end, LANES):
        count = min_i64(LANES, end - first)
        read(own, a + first * rows * rows, rows * rows, count)
        read(sides, b + first * rows * columns, rows * columns, count)
        for done in range(rows):
            k = done if is_forward else rows - 1 - done
            for side in range(columns):
                for lane in range(LANES):
                    x = sides[(k * columns + side) * LANES + lane]
                    if unit == 0:
                        x = x / own[k * step + k * stride + lane]
                    solved[side * LANES + lane] = x
            for side in range(columns * LANES):
                sides[k * columns * LANES + side] = solved[side]
            for later in range(done + 1, rows):
                row = later if is_forward else rows - 1 - later
                target = sides + row * columns * LANES
                factor = own + (row * step + k * stride)
                for side in range(columns):
                    for lane in range(LANES):
                        x = solved[side * LANES + lane] * factor[lane]
                        target[side * LANES + lane] = target[side * LANES + lane] - x
        write(b + first * rows * columns, sides, rows * columns, count)


def small_qr(
    x: Array[Real],
    q: Array[Real],
    r: Array[Real],
    own: Array[float],
    vectors: Array[float],
    column: Array[float],
    tau: Array[float],
    total: Array[float],
    rows: int,
    columns: int,
    inner: int,
    begin: int,
    end: int,
) -> None:
    """Factor row-major ``rows`` x ``columns`` matrices; Q has ``inner`` columns.

    By Householder's reflections, as LAPACK's larfg makes them. Items ``begin`` to
    ``end`` are computed.
    """
    steps = min_i64(rows, columns)
    for first in range(begin, end, LANES):
        count = min_i64(LANES, end - first)
        read(own, x + first * rows * columns, rows * columns, count)
        for k in range(steps):
            for row in range(k, rows):
                for lane in range(LANES):
                    at = (row * columns + k) * LANES + lane
                    column[row * LANES + lane] = own[at]
            make_reflection(column, tau + k * LANES, total, k, rows)
            for row in range(k, rows):
                for lane in range(LANES):
                    at = (row * columns + k) * LANES + lane
                    own[at] = column[row * LANES + lane]
            reflect(own, columns, k + 1, column, tau + k * LANES, total, k, rows)
        for k in range(rows * inner * LANES):
            vectors[k] = 0.0
        for k in range(inner):
            for lane in range(LANES):
                vectors[(k * inner + k) * LANES + lane] = 1.0
        for done in range(steps):
            k = steps - 1 - done
            for row in range(k, rows):
                for lane in range(LANES):
                    at = (row * columns + k) * LANES + lane
                    column[row * LANES + lane] = own[at]
            reflect(vectors, inner, k, column, tau + k * LANES, total, k, rows)
        for k in range(columns):
            for row in range(k + 1, inner):
                for lane in range(LANES):
                    own[(row * columns + k) * LANES + lane] = 0.0
        write(q + first * rows * inner, vectors, rows * inner, count)
        write(r + first * inner * columns, own, inner * columns, count)


def make_reflection(
    column: Array[float], tau: Array[float], total: Array[float], k: int, rows: int
) -> None:
    """Make the reflections of columns onto their elements ``k``, and reflect those.

    Columns have ``rows`` elements. What follows element ``k`` becomes the reflection,
    whose element ``k`` would be 1.
    """
    for lane in range(LANES):
        largest = 0.0
        for row in range(k + 1, rows):
            largest = max_f64(largest, abs_f64(column[row * LANES + lane]))
        given = column[k * LANES + lane]
        tau[lane] = 0.0
        total[lane] = 1.0
        if largest != 0.0:
            largest = max_f64(largest, abs_f64(given))
            scale = 1.0
            if largest < SMALL:
                scale = SCALE
            if largest > LARGE:
                scale = 1.0 / SCALE
            squares = 0.0
            for row in range(k, rows):
                scaled = column[row * LANES + lane] * scale
                squares = squares + scaled * scaled
            reflected = -copysign_f64(sqrt_f64(squares) / scale, given)
            tau[lane] = (reflected - given) / reflected
            total[lane] = given - reflected
            column[k * LANES + lane] = reflected
    for row in range(k + 1, rows):
        for lane in range(LANES):
            column[row * LANES + lane] = column[row * LANES + lane] / total[lane]


def reflect(
    x: Array[float],
    columns: int,
    first: int,
    column: Array[float],
    tau: Array[float],
    total: Array[float],
    k: int,
    rows: int,
) -> None:
    """Reflect columns from ``first`` on of row-major matrices, in rows from k on."""
    for other in range(first, columns):
        target = x + other * LANES
        step = columns * LANES
        for lane in range(LANES):
            total[lane] = target[k * step + lane]
        for row in range(k + 1, rows):
            for lane in range(LANES):
                term = column[row * LANES + lane] * target[row * step + lane]
                total[lane] = total[lane] + term
        for lane in range(LANES):
            total[lane] = total[lane] * tau[lane]
            target[k * step + lane] = target[k * step + lane] - total[lane]
        for row in range(k + 1, rows):
            for lane in range(LANES):
                term = column[row * LANES + lane] * total[lane]
                target[row * step + lane] = target[row * step + lane] - term


def no_words(dtype: str) -> tuple[int, ...]:
    """The first arguments: none."""
    return ()


PROVIDERS: Final = {
    "small_cholesky": Provider(small_cholesky, no_words, factors.unjitted_cholesky),
    "small_lu": Provider(small_lu, no_words, factors.unjitted_lu),
    "small_qr": Provider(small_qr, no_words, factors.unjitted_qr),
    "small_triangular_solve": Provider(
        small_triangular_solve, no_words, triangular.unjitted
    ),
}
