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
    """Copy ``count`` matrices of ``size`` elements into the group ``own``, interleaved.

    Element k of matrix m goes to ``own[4 * k + m]``. If ``count`` is less than
    ``GROUP``, the group is filled up with copies of the last matrix.
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
    """Write the first ``count`` matrices of the group ``own`` to ``x``.

    This undoes the interleaving of ``read_group``. Matrices have ``size`` elements.
    """
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
    """Replace row-major n x n matrices by their lower Cholesky factors.

    Only the lower triangles are read; the upper ones become zeros. Matrices that are
    not positive definite become NaN. Items ``begin`` to ``end`` are computed, ``GROUP``
    at a time: element (i, j) of matrix m is ``own[(i * n + j) * GROUP + m]``. Step k
    computes column k of the factor and subtracts its products from the later columns.
    ``own``, ``column`` (one column of each matrix) and ``root`` (a number of each) are
    scratch.
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
        # Zeros right of the diagonal.
        for row in range(n):
            for k in range((row * n + row + 1) * GROUP, (row * n + n) * GROUP):
                own[k] = 0.0
        write_group(matrices, own, n * n, count)
        for member in range(count):
            # A factor's diagonal is positive; a NaN there fails the comparison, too.
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
    """Replace column-major ``rows`` x ``columns`` matrices by their LU factors.

    ``pivots`` gets the row exchanges, numbered from 0, and ``permutation`` the order of
    rows that they give. Items ``begin`` to ``end`` are computed, ``GROUP`` at a time:
    element (i, j) of matrix m is ``own[(j * rows + i) * GROUP + m]``. Step k exchanges
    rows, divides column k by its pivot, and subtracts products from the later columns.
    ``own``, ``column`` (one column of each matrix) and ``factor`` (a number of each)
    are scratch.
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
                    absolute = abs_f64(at[row * GROUP + member])
                    if absolute > largest:
                        largest = absolute
                        pivot = row
                pivots[(first + member) * steps + k] = pivot
                if pivot != k:
                    for other in range(columns):
                        upper = (other * rows + k) * GROUP + member
                        lower = (other * rows + pivot) * GROUP + member
                        exchanged = own[upper]
                        own[upper] = own[lower]
                        own[lower] = exchanged
            for member in range(GROUP):
                # If the pivot is 0, the column is zeros: divide it by 1.
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
    """Solve triangular systems ``op(A) X = B`` by substitution; X replaces B.

    ``a`` are ``rows`` x ``rows`` matrices, ``b`` have ``columns`` right-hand sides.
    ``lower``, ``transpose`` and ``unit`` (a diagonal of ones) are 0 or 1. Items
    ``begin`` to ``end`` are computed, ``GROUP`` at a time: element (i, j) of matrix m
    of ``a`` is ``own[(i * rows + j) * GROUP + m]``, and likewise ``sides`` has ``b``.
    ``own``, ``sides`` and ``solved`` (one row of each ``b``) are scratch.
    """
    # Elements of ``own`` from row to row and from column to column of op(A).
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
    """Write the QR factors ``q`` and ``r`` of row-major matrices ``x``.

    ``x`` are ``rows`` x ``columns``, ``q`` have ``inner`` columns. Householder
    reflections, as LAPACK's larfg makes them, turn ``own`` (copies of ``x``) into R;
    applied to the identity in reverse order they make Q in ``vectors``. ``column``,
    ``tau`` and ``total`` are scratch for the reflections of a group. Items ``begin`` to
    ``end`` are computed, ``GROUP`` at a time: element (i, j) of matrix m is
    ``own[(i * columns + j) * GROUP + m]``.
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
    """Make the Householder reflections that map a group's columns to (x, 0, ..., 0).

    ``column`` has one column of ``rows`` elements of each matrix of the group, with
    element i of matrix m at ``i * GROUP + m``. Elements before ``k`` do not take part.
    Element ``k`` becomes x, and the elements after it become those of the vector v of
    the reflection I - tau v v^T, whose element ``k`` is 1. ``tau`` is 0 if they are
    zeros already. ``total`` is scratch: the divisor of v. Columns of very large or
    small numbers are scaled before their squares are added.
    """
    for member in range(GROUP):
        largest = 0.0
        for row in range(k + 1, rows):
            largest = max_f64(largest, abs_f64(column[row * GROUP + member]))
        head = column[k * GROUP + member]
        tau[member] = 0.0
        total[member] = 1.0
        if largest != 0.0:
            largest = max_f64(largest, abs_f64(head))
            scale = 1.0
            if largest < SMALL:
                scale = SCALE
            if largest > LARGE:
                scale = 1.0 / SCALE
            squares = 0.0
            for row in range(k, rows):
                scaled = column[row * GROUP + member] * scale
                squares = squares + scaled * scaled
            reflected = -copysign_f64(sqrt_f64(squares) / scale, head)
            tau[member] = (reflected - head) / reflected
            total[member] = head - reflected
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
    """Apply a group's reflections to its matrices ``x``, in place.

    The matrices have ``rows`` rows and ``columns`` columns: element (i, j) of matrix m
    is ``x[(i * columns + j) * GROUP + m]``. Columns from ``first`` on and rows from
    ``k`` on are changed. The reflection is I - tau v v^T, with v in ``column``, but for
    element ``k`` of v, which is 1. ``total`` is scratch.
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
    """Return no first arguments, whatever the dtype is."""
    return ()


PROVIDERS: Final = {
    "small_cholesky": Provider(small_cholesky, no_arguments, factors.unjitted_cholesky),
    "small_lu": Provider(small_lu, no_arguments, factors.unjitted_lu),
    "small_qr": Provider(small_qr, no_arguments, factors.unjitted_qr),
    "small_triangular_solve": Provider(
        small_triangular_solve, no_arguments, triangular.unjitted
    ),
}
