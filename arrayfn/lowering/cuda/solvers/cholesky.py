"""Cholesky factors by kernels: of small matrices by one block each, else by tiles.

A block factors a tile in shared memory, eight columns (a *panel*) at a time. Four lanes
share a row, of which each has every fourth element in registers. Every thread has the
whole 8 by 8 *corner* in which the panel meets the diagonal: it factors the corner
redundantly, and with it its own row, so that a panel needs only two barriers. Then the
trailing columns are updated, and move up in the registers, so that one text serves all
panels.

Where a pivot is not positive, all elements from there on become NaN, so the last one
shows whether the matrix has a factor.
"""

from __future__ import annotations

import math
from typing import Final

from arrayfn import dtypes
from arrayfn.dtypes import DType, short_name
from arrayfn.ir import Var
from arrayfn.lowering.cuda.handwritten import Handwritten, HandwrittenCall, indented
from arrayfn.lowering.cuda.schedule import power_of_two
from arrayfn.lowering.cuda.vocabulary import vector_lanes
from arrayfn.lowering.libraries.calls import Pointer

LANES: Final = 4
"""Lanes that share a row, and hold its elements round-robin."""
MIN_TILE: Final = 8
"""Rows of the smallest tile."""
PANEL: Final = 8
"""Columns that are factored at a time."""
_PANEL_SHARE: Final = PANEL // LANES
"""Elements of a panel's row that a lane holds."""
MAX_SMALL: Final = {dtypes.float32: 128, dtypes.float64: 64}
"""Rows of the largest matrix that one block factors, with its tile in shared memory."""


def is_small(dtype: DType, n: int) -> bool:
    """Return whether one block factors a whole matrix of ``n`` rows."""
    return 0 < n <= MAX_SMALL.get(dtype, 0)


def small_factors(matrices: Var) -> HandwrittenCall:
    """Return the call that factors ``matrices`` [..., n, n] in place.

    They become lower triangles, with zeros above. A matrix that is not positive
    definite becomes NaN.
    """
    dtype, n = matrices.type.dtype, matrices.type.shape[-1]
    size = max(MIN_TILE, power_of_two(n))
    count = math.prod(matrices.type.shape[:-2])
    return HandwrittenCall(
        _kernel(dtype, size),
        reads={},
        writes={"a": Pointer(matrices)},
        integers={"n": n},
        blocks=count,
    )


def _kernel(dtype: DType, size: int) -> Handwritten:
    """Write the kernel for matrices of up to ``size`` rows, a power of two."""
    # Rows of the tile are padded by an element, against bank conflicts.
    t, threads, pitch = short_name(dtype), size * LANES, size + 1
    body = f"""
thread = thread_index()
row = quotient(thread, {LANES})
lane = remainder(thread, {LANES})
begin = block_index() * n * n
tile = dynamic_shared_{t}(0, {size * pitch})
{memory(dtype, size)}
# All loads are on their way before the first is waited for.
for j in unrolled({size // LANES}):
    x = min_i64(j * {LANES} + lane, n - 1)
    own[j] = a[begin + min_i64(row, n - 1) * n + x]
{factoring(dtype, size, "n")}
for at in range(thread, n * n, {threads}):
    i = quotient(at, n)
    j = at - i * n
    value = {t}(0)
    if j <= i:
        value = tile[i * {pitch} + j]
    if failed:
        value = {t.upper()}_NAN
    a[begin + at] = value
"""
    return Handwritten(
        "cholesky",
        body,
        threads,
        f"Factors a matrix of up to {size} rows.",
        "Cholesky factors of small matrices, a block for each",
        shared=size * pitch * dtype.itemsize,
    )


def memory(dtype: DType, size: int) -> str:
    """Return lines that declare the arrays that ``factoring`` needs.

    The tile itself is declared elsewhere. It has ``size`` rows.
    """
    t = short_name(dtype)
    return f"""raw = shared_{t}({size * _raw_pitch(dtype)})
panel = shared_{t}({PANEL * LANES * lane_pitch(dtype, size)})
near = registers_{t}({_vector(dtype, size)})
own = registers_{t}({size // LANES + _PANEL_SHARE})
corner = registers_{t}({PANEL * PANEL})
mine = registers_{t}({PANEL})"""


def _raw_pitch(dtype: DType) -> int:
    """Return the distance in ``raw`` from one row of a panel to the next, in elements.

    Each row ends with a vector of padding, against bank conflicts.
    """
    return PANEL + vector_lanes(dtype)


def _vector(dtype: DType, size: int) -> int:
    """Return how many elements of a column a lane loads as one vector.

    The tile has ``size`` rows.
    """
    return min(size // LANES, vector_lanes(dtype))


def lane_pitch(dtype: DType, size: int) -> int:
    """Return the distance in ``panel`` from one lane's elements to the next lane's.

    In a column of ``panel``, the ``size // LANES`` elements that a lane reads lie side
    by side, then a vector of padding, against bank conflicts. The distance is in
    elements. The tile has ``size`` rows.
    """
    return size // LANES + _vector(dtype, size)


def factoring(dtype: DType, size: int, count: str) -> str:
    """Return lines that write ``count`` columns of a matrix's factor to ``tile``.

    ``tile`` has ``size`` rows, ``size`` + 1 elements apart; ``count`` is an expression.
    The lines share these variables:

    * ``row`` and ``lane``: the thread's row of the tile, and its lane among the row's.
    * ``first``: the number of the panel.
    * ``own``: the lane's elements of its row of the matrix, from the panel on.
    * ``raw`` (shared memory): the panel's columns before they are factored; ``panel``:
      the columns of the factor, each lane's elements side by side.
    * ``corner``: the rows in which the panel meets the diagonal; ``mine``: the panel's
      elements of the thread's row.
    * ``near``: registers for one vector.
    * ``failed``: whether there is no factor.
    """
    t, each = short_name(dtype), size // LANES
    # The last element of the diagonal is NaN if any pivot was not positive.
    return f"""for j in unrolled({_PANEL_SHARE}):
    own[{each} + j] = {t}(0)
for first in range(quotient({count} + {PANEL - 1}, {PANEL})):
{indented(_load_panel(dtype), 1)}
{indented(_factor_panel(dtype), 1)}
{indented(_store_panel(dtype, size), 1)}
{indented(_update_columns(dtype, size), 1)}
barrier()
failed = isnan_{t}(tile[({count} - 1) * {size + 2}])"""


def _load_panel(dtype: DType) -> str:
    """Return lines that exchange a panel's elements through shared memory.

    They fill ``corner`` and ``mine``, which each thread needs.
    """
    t, pitch = short_name(dtype), _raw_pitch(dtype)
    wide = vector_lanes(dtype)
    return f"""for j in unrolled({_PANEL_SHARE}):
    raw[row * {pitch} + j * {LANES} + lane] = own[j]
barrier()
for part in unrolled({PANEL // wide}):
    for i in unrolled({PANEL}):
        place = (first * {PANEL} + i) * {pitch} + part * {wide}
        load_{t}x{wide}(raw, place, corner, i * {PANEL} + part * {wide})
    load_{t}x{wide}(raw, row * {pitch} + part * {wide}, mine, part * {wide})"""


def _factor_panel(dtype: DType) -> str:
    """Return lines that factor ``corner``, and ``mine`` with it.

    Column after column of the corner is scaled by its pivot and eliminated from the
    rest of ``corner`` and of the thread's row, ``mine``.
    """
    t = short_name(dtype)
    return f"""for k in unrolled({PANEL}):
    pivot = corner[k * {PANEL} + k]
{indented(_inverse_root(dtype), 1)}
    mine[k] = mine[k] * root
    for j in unrolled({PANEL}):
        if j > k:
            below = corner[j * {PANEL} + k] * root
            corner[j * {PANEL} + k] = below
            mine[j] = fma_{t}(neg_{t}(mine[k]), below, mine[j])
            for i in unrolled({PANEL}):
                if (i > k) and (i <= j):
                    old = corner[j * {PANEL} + i]
                    above = neg_{t}(corner[i * {PANEL} + k])
                    corner[j * {PANEL} + i] = fma_{t}(below, above, old)"""


def _store_panel(dtype: DType, size: int) -> str:
    """Return lines that store ``mine`` in ``tile``, and also in ``panel``.

    ``panel`` has the rows below the corner, which ``_update_columns`` reads.
    """
    pitch = lane_pitch(dtype, size)
    return f"""ahead = quotient(row, {LANES}) - (first + 1) * {_PANEL_SHARE}
spot = remainder(row, {LANES}) * {pitch} + ahead
for part in unrolled({_PANEL_SHARE}):
    x = part * {LANES} + lane
{indented(select_lane_element(dtype), 1)}
    tile[row * {size + 1} + first * {PANEL} + x] = value
    if ahead >= 0:
        panel[x * {LANES * pitch} + spot] = value
barrier()"""


def _update_columns(dtype: DType, size: int) -> str:
    """Return lines that subtract a panel's products from the columns after it.

    Before, ``own`` moves on by a panel: its first elements are those of the next panel.
    """
    t, each, vector = short_name(dtype), size // LANES, _vector(dtype, size)
    pitch = lane_pitch(dtype, size)
    return f"""for j in unrolled({each}):
    own[j] = own[j + {_PANEL_SHARE}]
for part in unrolled({each // vector}):
    if part * {vector} + (first + 1) * {_PANEL_SHARE} < {each}:
        for k in unrolled({PANEL}):
            place = k * {LANES * pitch} + lane * {pitch} + part * {vector}
            load_{t}x{vector}(panel, place, near, 0)
            for j in unrolled({vector}):
                old = own[part * {vector} + j]
                own[part * {vector} + j] = fma_{t}(neg_{t}(mine[k]), near[j], old)"""


def select_lane_element(dtype: DType) -> str:
    """Return lines that define ``value`` as ``mine[part * 4 + lane]``.

    The lane's number is not known when the kernel is compiled, and registers cannot be
    indexed at run time: so selects go through all four.
    """
    t = short_name(dtype)
    return f"""value = mine[part * {LANES}]
for k in unrolled({LANES}):
    value = select_{t}(lane == k, mine[part * {LANES} + k], value)"""


def _inverse_root(dtype: DType) -> str:
    """Return lines that define ``root`` as 1 / sqrt(``pivot``).

    It is NaN for a negative pivot. For float32 an approximation is improved by one
    Newton step.
    """
    if dtype != dtypes.float32:
        t = short_name(dtype)
        return f"root = {t}(1) / sqrt_{t}(pivot)"
    return """root = approximate_rsqrt_f32(pivot)
error = fma_f32(neg_f32(pivot * root), root, f32(1))
root = fma_f32(root * f32(0.5), error, root)"""
