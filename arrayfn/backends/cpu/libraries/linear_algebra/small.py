"""Factors of small real matrices, in groups of four that fill a vector of the CPU.

LAPACK's calls take longer to begin than to factor a few rows. All is computed in
float64, in scratch memory, where element ``k`` of the four matrices is at ``4 k``.
Elements of float32 are rounded once, when they are written. The members of a group do
not depend on each other.
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

GROUP: Final = 4  # matrices
# Squares of numbers outside may overflow, or lose digits. They are scaled.
SMALL: Final = 2.0**-400
LARGE: Final = 2.0**400
SCALE: Final = 2.0**600


def read_group(own: Array[float], x: Array[Any], size: int, count: int) -> None:
    """Interleave ``count`` matrices of ``size`` elements into the group ``own``.

    If ``count`` is less than ``GROUP``, the last matrix fills the others' places.
    """
    last = count - 1
    x1 = x + min_i64(1, last) * size
    x2 = x + min_i64(2, last) * size
    x3 = x + last * size
    for k in range(size):
        own[k * GROUP] = float(x[k])
        own[k * GROUP + 1] = float(x1[k])
        own[k * GROUP + 2] = float(x2[k])
        own[k * GROUP + 3] = float(x3[k])


def write_group(x: Array[Any], own: Array[float], size: int, count: int) -> None:
    """Write the first ``count`` matrices of the group ``own`` to ``x``."""
    for member in range(count):
        target = x + member * size
        for k in range(size):
            target[k] = own[k * GROUP + member]


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
    for first in range(begin, end, GROUP):
        count = min_i64(GROUP, end - first)
        matrices = a + first * n * n
        read_group(own, matrices, n * n, count)
        for k in range(n):
            for member in range(GROUP):
                at = (k * n + k) * GROUP + member
                x = sqrt_f64(own[at])
                own[at] = x
                root[member] = x
            for row in range(k + 1, n):
                for member in range(GROUP):
                    at = (row * n + k) * GROUP + member
                    x = own[at] / root[member]
                    own[at] = x
                    column[row * GROUP + member] = x
            for row in range(k + 1, n):
                for other in range(k + 1, row + 1):
                    for member in range(GROUP):
                        at = (row * n + other) * GROUP + member
                        x = (
                            column[row * GROUP + member]
                            * column[other * GROUP + member]
                        )
                        own[at] = own[at] - x
        for row in range(n):
            for k in range((row * n + row + 1) * GROUP, (row * n + n) * GROUP):
                own[k] = 0.0
        write_group(matrices, own, n * n, count)
        for member in range(count):
            is_factor = True
            for k in range(n):
                is_factor = is_factor & (own[(k * n + k) * GROUP + member] > 0.0)
            if not is_factor:
                fill(matrices + member * n * n, n * n, NAN)


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
    for first in range(begin, end, GROUP):
        count = min_i64(GROUP, end - first)
        read_group(own, a + first * size, size, count)
        for k in range(steps):
            at = own + k * rows * GROUP
            for member in range(count):
                pivot = k
                largest = abs_f64(at[k * GROUP + member])
                for row in range(k + 1, rows):
                    found = abs_f64(at[row * GROUP + member])
                    if found > largest:
                        largest = found
                        pivot = row
                pivots[(first + member) * steps + k] = pivot
                if pivot != k:
                    for other in range(columns):
                        upper = (other * rows + k) * GROUP + member
                        lower = (other * rows + pivot) * GROUP + member
                        kept = own[upper]
                        own[upper] = own[lower]
                        own[lower] = kept
            for member in range(GROUP):
                # A column of zeros stays one.
                x = at[k * GROUP + member]
                factor[member] = 1.0 if x == 0.0 else x
            for row in range(k + 1, rows):
                for member in range(GROUP):
                    x = at[row * GROUP + member] / factor[member]
                    at[row * GROUP + member] = x
                    column[row * GROUP + member] = x
            for other in range(k + 1, columns):
                target = own + other * rows * GROUP
                for member in range(GROUP):
                    factor[member] = target[k * GROUP + member]
                for row in range(k + 1, rows):
                    for member in range(GROUP):
                        x = column[row * GROUP + member] * factor[member]
                        target[row * GROUP + member] = target[row * GROUP + member] - x
        write_group(a + first * size, own, size, count)
        for member in range(count):
            item = first + member
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
    step, stride = rows * GROUP, GROUP
    if transpose != 0:
        step, stride = GROUP, rows * GROUP
    is_forward = (lower != 0) == (transpose == 0)
    for first in range(begin, end, GROUP):
        count = min_i64(GROUP, end - first)
        read_group(own, a + first * rows * rows, rows * rows, count)
        read_group(sides, b + first * rows * columns, rows * columns, count)
        for done in range(rows):
            k = done if is_forward else rows - 1 - done
            for side in range(columns):
                for member in range(GROUP):
                    x = sides[(k * columns + side) * GROUP + member]
                    if unit == 0:
                        x = x / own[k * step + k * stride + member]
                    solved[side * GROUP + member] = x
            for side in range(columns * GROUP):
                sides[k * columns * GROUP + side] = solved[side]
            for later in range(done + 1, rows):
                row = later if is_forward else rows - 1 - later
                target = sides + row * columns * GROUP
                factor = own + (row * step + k * stride)
                for side in range(columns):
                    for member in range(GROUP):
                        x = solved[side * GROUP + member] * factor[member]
                        target[side * GROUP + member] = (
                            target[side * GROUP + member] - x
                        )
        write_group(b + first * rows * columns, sides, rows * columns, count)


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
    """Factor row-major matrices ``x`` into ``q`` and ``r``, a group at a time.

    ``x`` are ``rows`` x ``columns``, ``q`` have ``inner`` columns. Householder's
    reflections, as LAPACK's larfg makes them, turn ``own`` (copies of ``x``) into R;
    applied to the identity in reverse order they make Q in ``vectors``. ``column``,
    ``tau`` and ``total`` are scratch for the reflections of a group. Items ``begin`` to
    ``end`` are computed.
    """
    steps = min_i64(rows, columns)
    for first in range(begin, end, GROUP):
        count = min_i64(GROUP, end - first)
        read_group(own, x + first * rows * columns, rows * columns, count)
        for k in range(steps):
            for row in range(k, rows):
                for member in range(GROUP):
                    at = (row * columns + k) * GROUP + member
                    column[row * GROUP + member] = own[at]
            make_reflection(column, tau + k * GROUP, total, k, rows)
            for row in range(k, rows):
                for member in range(GROUP):
                    at = (row * columns + k) * GROUP + member
                    own[at] = column[row * GROUP + member]
            reflect(own, columns, k + 1, column, tau + k * GROUP, total, k, rows)
        for k in range(rows * inner * GROUP):
            vectors[k] = 0.0
        for k in range(inner):
            for member in range(GROUP):
                vectors[(k * inner + k) * GROUP + member] = 1.0
        for done in range(steps):
            k = steps - 1 - done
            for row in range(k, rows):
                for member in range(GROUP):
                    at = (row * columns + k) * GROUP + member
                    column[row * GROUP + member] = own[at]
            reflect(vectors, inner, k, column, tau + k * GROUP, total, k, rows)
        for k in range(columns):
            for row in range(k + 1, inner):
                for member in range(GROUP):
                    own[(row * columns + k) * GROUP + member] = 0.0
        write_group(q + first * rows * inner, vectors, rows * inner, count)
        write_group(r + first * inner * columns, own, inner * columns, count)


def make_reflection(
    column: Array[float], tau: Array[float], total: Array[float], k: int, rows: int
) -> None:
    """Make the Householder reflections that map columns onto element ``k``.

    It replaces the columns of ``rows`` elements of a group: what follows element ``k``
    becomes the reflection, whose element ``k`` would be 1.
    """
    for member in range(GROUP):
        largest = 0.0
        for row in range(k + 1, rows):
            largest = max_f64(largest, abs_f64(column[row * GROUP + member]))
        arguments = column[k * GROUP + member]
        tau[member] = 0.0
        total[member] = 1.0
        if largest != 0.0:
            largest = max_f64(largest, abs_f64(arguments))
            scale = 1.0
            if largest < SMALL:
                scale = SCALE
            if largest > LARGE:
                scale = 1.0 / SCALE
            squares = 0.0
            for row in range(k, rows):
                scaled = column[row * GROUP + member] * scale
                squares = squares + scaled * scaled
            reflected = -copysign_f64(sqrt_f64(squares) / scale, arguments)
            tau[member] = (reflected - arguments) / reflected
            total[member] = arguments - reflected
            column[k * GROUP + member] = reflected
    for row in range(k + 1, rows):
        for member in range(GROUP):
            column[row * GROUP + member] = column[row * GROUP + member] / total[member]


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
    """Apply a group's reflections to columns from ``first`` on, rows from ``k`` on.

    The matrices ``x`` have ``rows`` rows and ``columns`` columns, row-major. The
    reflection is I - tau v v^T, with v in ``column`` (1 at k); ``total`` is scratch.
    """
    for other in range(first, columns):
        target = x + other * GROUP
        step = columns * GROUP
        for member in range(GROUP):
            total[member] = target[k * step + member]
        for row in range(k + 1, rows):
            for member in range(GROUP):
                term = column[row * GROUP + member] * target[row * step + member]
                total[member] = total[member] + term
        for member in range(GROUP):
            total[member] = total[member] * tau[member]
            target[k * step + member] = target[k * step + member] - total[member]
        for row in range(k + 1, rows):
            for member in range(GROUP):
                term = column[row * GROUP + member] * total[member]
                target[row * step + member] = target[row * step + member] - term


def no_arguments(dtype: str) -> tuple[int, ...]:
    """The first arguments: none."""
    return ()


PROVIDERS: Final = {
    "small_cholesky": Provider(small_cholesky, no_arguments, factors.unjitted_cholesky),
    "small_lu": Provider(small_lu, no_arguments, factors.unjitted_lu),
    "small_qr": Provider(small_qr, no_arguments, factors.unjitted_qr),
    "small_triangular_solve": Provider(
        small_triangular_solve, no_arguments, triangular.unjitted
    ),
}
