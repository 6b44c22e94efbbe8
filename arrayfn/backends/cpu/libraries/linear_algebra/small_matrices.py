"""Factors of small real matrices, four at a time, one in each lane of a vector.

LAPACK's calls take longer to begin than to factor a few rows. Matrices of up to
``LIMIT`` rows and columns are computed in float64 on the stack, element by element of
all four: float32 is widened on the way in and rounded once on the way out. What is in a
lane does not depend on the others. These routines are compiled with all optimisations.
"""

from __future__ import annotations

from typing import Final

from arrayfn.backends.native import (
    LANES,
    div_f64,
    lanes_add_product,
    lanes_div,
    lanes_mul,
    lanes_sqrt,
    lanes_sub_product,
    less_f64,
    load,
    load_i32,
    narrow_f64,
    native,
    sqrt_f64,
    stack,
    store,
    store_i32,
    sub_f64,
    widen_f32,
)

LOOPS_OVER_DATA: Final = True
LIMIT: Final = 16
LANE_BYTES: Final = 8 * LANES  # of an element of all the matrices
WORDS: Final = LIMIT * LIMIT * LANES
ROW_WORDS: Final = LIMIT * LANES
ONE: Final = 1023 << 52
MAGNITUDE: Final = (1 << 63) - 1
SIGN: Final = -(1 << 63)
# Squares of numbers of other exponents may be infinite, or lose digits.
LEAST_SQUARED: Final = (1023 - 400) << 52
GREATEST_SQUARED: Final = (1023 + 400) << 52


@native
def read_lane(source: int, own: int, count: int, step: int, size: int) -> int:
    """Read ``count`` numbers of ``size`` bytes into a lane, ``step`` bytes apart."""
    if size == 8:
        for k in range(count):
            store(own + k * step, load(source + 8 * k))
    else:
        for k in range(count):
            store(own + k * step, widen_f32(load_i32(source + 4 * k)))
    return 0


@native
def write_lane(own: int, target: int, count: int, step: int, size: int) -> int:
    """Write ``count`` numbers of a lane, ``step`` bytes apart."""
    if size == 8:
        for k in range(count):
            store(target + 8 * k, load(own + k * step))
    else:
        for k in range(count):
            store_i32(target + 4 * k, narrow_f64(load(own + k * step)))
    return 0


@native
def read_matrices(
    source: int,
    own: int,
    many: int,
    stride: int,
    rows: int,
    columns: int,
    leading: int,
    size: int,
) -> int:
    """Read ``many`` matrices, ``stride`` bytes apart.

    The last one is read once more for each lane that is left.
    """
    for lane in range(LANES):
        given = lane
        if given >= many:
            given = many - 1
        for row in range(rows):
            read_lane(
                source + given * stride + row * leading * size,
                own + 8 * lane + row * columns * LANE_BYTES,
                columns,
                LANE_BYTES,
                size,
            )
    return 0


@native
def write_matrices(
    own: int,
    target: int,
    many: int,
    stride: int,
    rows: int,
    columns: int,
    leading: int,
    size: int,
) -> int:
    """Write the first ``many`` matrices."""
    for lane in range(many):
        for row in range(rows):
            write_lane(
                own + 8 * lane + row * columns * LANE_BYTES,
                target + lane * stride + row * leading * size,
                columns,
                LANE_BYTES,
                size,
            )
    return 0


@native
def clear_lanes(y: int) -> int:
    """Set all lanes to zeros."""
    for lane in range(LANES):
        store(y + 8 * lane, 0)
    return 0


@native
def swap(a: int, b: int) -> int:
    """Exchange two words."""
    kept = load(a)
    store(a, load(b))
    store(b, kept)
    return 0


@native
def small_lu(
    matrices: int,
    pivots: int,
    permutations: int,
    many: int,
    rows: int,
    columns: int,
    size: int,
) -> int:
    """Factor column-major matrices as LU, in place; pivots count from 0."""
    own = stack(WORDS)
    count = rows
    if columns < count:
        count = columns
    stride = rows * columns * size
    step = rows * LANE_BYTES
    read_matrices(matrices, own, many, stride, columns, rows, rows, size)
    for lane in range(many):
        for row in range(rows):
            store_i32(permutations + 4 * (lane * rows + row), row)
    for k in range(count):
        column = own + k * step
        for lane in range(many):
            pivot = pivot_of(column + 8 * lane, k, rows)
            store_i32(pivots + 4 * (lane * count + k), pivot)
            if pivot != k:
                for other in range(columns):
                    place = own + other * step + 8 * lane
                    swap(place + k * LANE_BYTES, place + pivot * LANE_BYTES)
                order = permutations + 4 * lane * rows
                kept = load_i32(order + 4 * k)
                store_i32(order + 4 * k, load_i32(order + 4 * pivot))
                store_i32(order + 4 * pivot, kept)
        eliminate(own, k, rows, columns)
    write_matrices(own, matrices, many, stride, columns, rows, rows, size)
    return 0


@native
def pivot_of(column: int, first: int, rows: int) -> int:
    """The row of the greatest magnitude, which are ordered as their bits."""
    pivot = first
    most = load(column + first * LANE_BYTES) & MAGNITUDE
    for row in range(first + 1, rows):
        found = load(column + row * LANE_BYTES) & MAGNITUDE
        if found > most:
            most = found
            pivot = row
    return pivot


@native
def eliminate(own: int, k: int, rows: int, columns: int) -> int:
    """Divide column k by its pivot; subtract its multiples from later columns."""
    step = rows * LANE_BYTES
    column = own + k * step
    divisor = stack(LANES)
    for lane in range(LANES):
        pivot = load(column + k * LANE_BYTES + 8 * lane)
        # A column of zeros stays one.
        if pivot & MAGNITUDE == 0:
            pivot = ONE
        store(divisor + 8 * lane, pivot)
    for row in range(k + 1, rows):
        lanes_div(column + row * LANE_BYTES, divisor)
    for other in range(k + 1, columns):
        place = own + other * step
        for row in range(k + 1, rows):
            below = row * LANE_BYTES
            lanes_sub_product(place + below, column + below, place + k * LANE_BYTES)
    return 0


@native
def small_cholesky(matrices: int, many: int, n: int, size: int) -> int:
    """Factor the lower triangles of row-major matrices in place; zero the upper.

    A bit is set for each matrix that is not positive definite.
    """
    own = stack(WORDS)
    failed = 0
    stride = n * n * size
    step = n * LANE_BYTES
    read_matrices(matrices, own, many, stride, n, n, n, size)
    for k in range(n):
        corner = own + k * step + k * LANE_BYTES
        for lane in range(LANES):
            if less_f64(0, load(corner + 8 * lane)) == 0:
                failed |= 1 << lane
        lanes_sqrt(corner)
        for row in range(k + 1, n):
            lanes_div(own + row * step + k * LANE_BYTES, corner)
            clear_lanes(own + k * step + row * LANE_BYTES)
        for row in range(k + 1, n):
            place = own + row * step
            for column in range(k + 1, row + 1):
                lanes_sub_product(
                    place + column * LANE_BYTES,
                    place + k * LANE_BYTES,
                    own + column * step + k * LANE_BYTES,
                )
    write_matrices(own, matrices, many, stride, n, n, n, size)
    return failed


@native
def small_substitution(
    a: int,
    stride_a: int,
    leading_a: int,
    b: int,
    stride_b: int,
    leading_b: int,
    many: int,
    n: int,
    sides: int,
    lower: int,
    transpose: int,
    unit: int,
    size: int,
) -> int:
    """Solve op(a) x = b for the ``sides`` columns of row-major b, in place.

    Strides are bytes between matrices, ``leading`` elements between rows.
    """
    own = stack(WORDS)
    right = stack(WORDS)
    step = n * LANE_BYTES
    turn = LANE_BYTES
    if transpose:
        step = LANE_BYTES
        turn = n * LANE_BYTES
        lower = 1 - lower
    width = sides * LANE_BYTES
    read_matrices(a, own, many, stride_a, n, n, leading_a, size)
    read_matrices(b, right, many, stride_b, n, sides, leading_b, size)
    for place in range(n):
        row = place
        if lower == 0:
            row = n - 1 - place
        x = right + row * width
        for done in range(place):
            other = done
            if lower == 0:
                other = n - 1 - done
            factor = own + row * step + other * turn
            known = right + other * width
            for side in range(sides):
                lanes_sub_product(
                    x + side * LANE_BYTES, known + side * LANE_BYTES, factor
                )
        if unit == 0:
            for side in range(sides):
                lanes_div(x + side * LANE_BYTES, own + row * step + row * turn)
    write_matrices(right, b, many, stride_b, n, sides, leading_b, size)
    return 0


@native
def small_qr(
    x: int,
    q: int,
    r: int,
    many: int,
    rows: int,
    columns: int,
    inner: int,
    size: int,
) -> int:
    """QR factors of row-major matrices: q [rows, inner], r [inner, columns].

    ``inner`` is rows, or the lesser extent. A bit is set for each matrix whose squares
    might over- or underflow: its factors are not to be used.
    """
    own = stack(WORDS)
    vectors = stack(WORDS)
    taus = stack(ROW_WORDS)
    ones = stack(LANES)
    failed = 0
    step = columns * LANE_BYTES
    count = rows
    if columns < count:
        count = columns
    for lane in range(LANES):
        store(ones + 8 * lane, ONE)
    read_matrices(x, own, many, rows * columns * size, rows, columns, columns, size)
    for k in range(count):
        v = own + k * step + k * LANE_BYTES
        tau = taus + k * LANE_BYTES
        failed |= reflection(v, step, rows - k, tau)
        for column in range(1, columns - k):
            target = v + column * LANE_BYTES
            reflect(v, step, tau, ones, target, step, rows - k)
    width = inner * LANE_BYTES
    for k in range(inner * rows):
        clear_lanes(vectors + k * LANE_BYTES)
    for k in range(inner):
        for lane in range(LANES):
            store(vectors + k * width + k * LANE_BYTES + 8 * lane, ONE)
    for place in range(count):
        k = count - 1 - place
        v = own + k * step + k * LANE_BYTES
        tau = taus + k * LANE_BYTES
        for column in range(k, inner):
            target = vectors + k * width + column * LANE_BYTES
            reflect(v, step, tau, ones, target, width, rows - k)
    for column in range(columns):
        for row in range(column + 1, inner):
            clear_lanes(own + row * step + column * LANE_BYTES)
    write_matrices(own, r, many, inner * columns * size, inner, columns, columns, size)
    write_matrices(vectors, q, many, rows * inner * size, rows, inner, inner, size)
    return failed


@native
def reflection(x: int, step: int, length: int, tau: int) -> int:
    """Make reflections of columns ``x`` onto their first elements, as LAPACK's larfg.

    ``tau`` is their factor; what follows the reflected element is the reflection, whose
    first element would be 1. A bit is set for a lane whose squares were not trusted.
    """
    squares = stack(LANES)
    divisor = stack(LANES)
    failed = 0
    clear_lanes(squares)
    for k in range(length):
        lanes_add_product(squares, x + k * step, x + k * step)
    for lane in range(LANES):
        place = x + 8 * lane
        first = load(place)
        most = 0
        for k in range(1, length):
            found = load(place + k * step) & MAGNITUDE
            if found > most:
                most = found
        store(tau + 8 * lane, 0)
        store(divisor + 8 * lane, ONE)
        if most != 0:
            if first & MAGNITUDE > most:
                most = first & MAGNITUDE
            if most < LEAST_SQUARED or most > GREATEST_SQUARED:
                failed |= 1 << lane
            beta = sqrt_f64(load(squares + 8 * lane)) | (SIGN & (first ^ SIGN))
            store(tau + 8 * lane, div_f64(sub_f64(beta, first), beta))
            store(divisor + 8 * lane, sub_f64(first, beta))
            store(place, beta)
    for k in range(1, length):
        lanes_div(x + k * step, divisor)
    return failed


@native
def reflect(
    v: int, step: int, tau: int, ones: int, x: int, step_x: int, length: int
) -> int:
    """Reflect columns ``x``: the first element meets a 1, the others those of ``v``."""
    total = stack(LANES)
    clear_lanes(total)
    lanes_add_product(total, x, ones)
    for k in range(1, length):
        lanes_add_product(total, v + k * step, x + k * step_x)
    lanes_mul(total, tau)
    lanes_sub_product(x, total, ones)
    for k in range(1, length):
        lanes_sub_product(x + k * step_x, total, v + k * step)
    return 0
