"""Triangular systems with few right-hand sides by a kernel, which reads a matrix once.

A block computes the unknowns of some rows. It waits for the unknowns of the rows above,
block after block, as these publish them, and subtracts their products with the matrix
from its right-hand sides. Blocks begin in the order in which they are waited for. The
remainder is multiplied by the inverse of the block's triangle on the diagonal, which
the block computes before it waits. Eight lanes share a row; each sums products for
eight sides, then they exchange sums, so that each has the whole sum of one side.
Matrices and sides are read in their own layouts, upper triangles from their last row
on.

(Higham, "Accuracy and Stability of Numerical Algorithms", 8.4: inverses of diagonal
blocks are as stable as substitution.)
"""

from __future__ import annotations

import math
from typing import Final

from arrayfn import dtypes
from arrayfn.dtypes import DType, short_name
from arrayfn.ir import Var
from arrayfn.lowering.cuda.handwritten import (
    Handwritten,
    HandwrittenCall,
    flag_buffer_of,
    indented,
)
from arrayfn.lowering.cuda.solvers.matrix_nests import StridedArray
from arrayfn.lowering.cuda.vocabulary import vector_lanes
from arrayfn.lowering.libraries.calls import Pointer

MAX_SIDES: Final = 32
"""Right-hand sides, up to which the kernel is faster than cuBLAS."""
MIN_ROWS: Final = 16
"""Rows of the smallest system: with fewer, cuBLAS is as fast."""
MAX_ROWS: Final = 8192
"""Rows of the largest system: with more, the published values take much memory."""
_ROWS: Final = {dtypes.float32: 64, dtypes.float64: 32}
"""Rows of a block."""
_SIDES: Final = 8
"""Right-hand sides of a block; also the lanes that share a row."""


def is_substituted(dtype: DType, n: int, sides: int) -> bool:
    """Return whether the kernel is faster than cuBLAS for a system of this size.

    The system has ``n`` rows and ``sides`` right-hand sides.
    """
    return dtype in _ROWS and MIN_ROWS <= n <= MAX_ROWS and sides <= MAX_SIDES


def substituted(
    matrix: StridedArray,
    answers: StridedArray,
    b: Var,
    n: int,
    sides: int,
    *,
    unit: bool,
) -> HandwrittenCall:
    """Return the call that solves ``matrix @ x = b`` in place of ``b``.

    Args:
        matrix: The lower triangles, [matrix, row, column].
        answers: How ``b`` is addressed as [matrix, row, side]. Strides of both may be
            negative: an upper triangle is a lower one backwards.
        b: The right-hand sides, which become x.
        n: Rows of a matrix.
        sides: Right-hand sides of a matrix.
        unit: The diagonal is 1 and not read.
    """
    dtype = b.type.dtype
    size = _ROWS[dtype]
    matrices = math.prod(b.type.shape[:-2])
    # Blocks of rows of a matrix, and parts of its right-hand sides.
    blocks, parts = -(-n // size), -(-sides // _SIDES)
    _, down, across = matrix.strides
    _, row, side = answers.strides
    integers = {
        "n": n,
        "sides": sides,
        "blocks": blocks,
        "parts": parts,
        "chains": matrices * parts,
        "begin": matrix.offset,
        "down": down,
        "across": across,
        "begin_sides": answers.offset,
        "down_sides": row,
        "across_sides": side,
    }
    text = Handwritten(
        "triangles",
        _text(dtype, size, unit),
        size * _SIDES,
        f"Solves systems, {size} rows and {_SIDES} sides a block.",
        "a triangular system, block by block",
    )
    flag_buffer = flag_buffer_of(matrices * parts * blocks * size * _SIDES, dtype)
    return HandwrittenCall(
        text,
        reads={"a": Pointer(matrix.array)},
        writes={"b": Pointer(b)},
        integers=integers,
        blocks=matrices * blocks * parts,
        flag_buffer=flag_buffer,
    )


def _text(dtype: DType, size: int, unit: bool) -> str:
    """Write the kernel's body, for blocks of ``size`` rows.

    With ``unit`` the diagonal is 1 and not read. The body's variables are:

    * ``chain``: the number of the matrix and of eight of its sides; ``step``: the
      block's number in its chain, from the top; ``line``: the thread's row of the
      matrix.
    * ``row`` and ``lane``: the thread's row in the block, and its lane among the eight
      of that row; ``side``: the right-hand side whose sums the thread ends up with.
    * ``at`` and ``place``: the offsets of the thread's row in the matrix, and of its
      right-hand side, which exists if ``mine``. ``flags``: where the flag buffer has
      the values that the chain's blocks publish to threads with this number.
    * ``total``: the right-hand side of the thread's row and side, less the products
      with the unknowns so far.
    * ``inverse``: the lane's elements of its row of the inverse of the diagonal block;
      ``own``: the lane's elements of a row of a block to the left.
    * ``tile`` (shared memory): the block's triangle on the diagonal. ``turned`` (shared
      memory): two rows of its inverse, used alternately.
    * ``given`` (shared memory): two buffers, used alternately from ``here`` on, of the
      unknowns of a block above, or of ``total``; ``keep`` is the thread's index there.
    * ``near``: registers for one vector. ``sums``: sums of products, for eight sides.
    """
    t, lanes, threads = short_name(dtype), _SIDES, size * _SIDES
    each, vector = size // lanes, vector_lanes(dtype)
    pitch = _lane_pitch(dtype, size)
    buffer = lanes * pitch
    return f"""
thread = thread_index()
row = quotient(thread, {lanes})
lane = remainder(thread, {lanes})
number = dynamic_block_id(flag_buffer, blocks * chains)
step = quotient(number, chains)
chain = remainder(number, chains)
matrix = quotient(chain, parts)
side = remainder(chain, parts) * {lanes} + lane
line = step * {size} + row
at = matrix * n * n + begin + min_i64(line, n - 1) * down
place = matrix * n * sides + begin_sides + line * down_sides + side * across_sides
flags = chain * blocks * {threads} + thread
keep = quotient(row, {each}) * {pitch} + remainder(row, {each}) * {lanes} + lane
mine = (line < n) and (side < sides)
tile = shared_{t}({size * (size + 1)})
turned = shared_{t}({2 * size})
given = shared_{t}({2 * buffer})
near = registers_{t}({vector})
own = registers_{t}({each})
inverse = registers_{t}({each})
sums = registers_{t}({lanes})
total = {t}(0)
if mine:
    total = b[place]
{_invert_diagonal(dtype, size, unit)}
here = i64(0)
for above in range(step):
    for k in unrolled({each}):
        own[k] = a[at + (above * {size} + lane * {each} + k) * across]
    given[here + keep] = wait_for_{t}(flag_buffer, flags + above * {threads})
    barrier()
{indented(_product(dtype, size, "own"), 1)}
    total = total - sums[0]
    here = {buffer} - here
given[here + keep] = total
barrier()
{_product(dtype, size, "inverse")}
publish_{t}(flag_buffer, flags + step * {threads}, sums[0])
if mine:
    b[place] = sums[0]
"""


def _invert_diagonal(dtype: DType, size: int, unit: bool) -> str:
    """Return lines that invert the block's triangle on the diagonal, into ``inverse``.

    ``inverse`` begins as the identity. Row after row is divided by its diagonal element
    and passed through shared memory (``turned``) to the rows below, which eliminate it.
    """
    t, pitch = short_name(dtype), size + 1
    each, vector = size // _SIDES, vector_lanes(dtype)
    diagonal = f"{t}(1)" if unit else f"tile[row * {pitch} + row]"
    return f"""
# The inverse of the triangle on the diagonal: rows below are freed of each row in turn.
for k in unrolled({each}):
    j = lane * {each} + k
    inverse[k] = select_{t}(row == j, {t}(1), {t}(0))
    # Nothing needs what is above the diagonal, or below the matrix.
    tile[row * {pitch} + j] = a[at + min_i64(step * {size} + j, n - 1) * across]
barrier()
scale = {t}(1) / {diagonal}
for k in range({size}):
    here = remainder(k, 2) * {size} + lane * {each}
    if row == k:
        for j in unrolled({each}):
            inverse[j] = inverse[j] * scale
        for j in unrolled({each // vector}):
            store_{t}x{vector}(turned, here + j * {vector}, inverse, j * {vector})
    barrier()
    if row > k:
        factor = neg_{t}(tile[row * {pitch} + k])
        for j in unrolled({each // vector}):
            load_{t}x{vector}(turned, here + j * {vector}, near, 0)
            for i in unrolled({vector}):
                old = inverse[j * {vector} + i]
                inverse[j * {vector} + i] = fma_{t}(factor, near[i], old)
"""


def _lane_pitch(dtype: DType, size: int) -> int:
    """Return the distance in ``given`` from one lane's elements to the next lane's.

    A lane reads ``size`` elements: ``size // _SIDES`` unknowns for each of ``_SIDES``
    right-hand sides. A vector of padding follows, so that the lanes of a row read
    different banks. The distance is in elements.
    """
    return size + vector_lanes(dtype)


def _product(dtype: DType, size: int, row: str) -> str:
    """Return lines that multiply a row by the lane's right-hand side.

    The product is ``sums[0]``. ``row`` names the registers with the lane's elements of
    a row of ``size`` elements. The elements of all sides are in ``given``, from
    ``here`` on. A lane sums the products of its elements for all eight sides; then
    lanes exchange sums until each has the whole sum of one side.
    """
    t, lanes = short_name(dtype), _SIDES
    each, vector = size // lanes, vector_lanes(dtype)
    pitch = _lane_pitch(dtype, size)
    sums = f"""for k in unrolled({lanes}):
    sums[k] = {t}(0)
for k in unrolled({each}):
    for part in unrolled({lanes // vector}):
        from_here = here + lane * {pitch} + k * {lanes} + part * {vector}
        load_{t}x{vector}(given, from_here, near, 0)
        for i in unrolled({vector}):
            old = sums[part * {vector} + i]
            sums[part * {vector} + i] = fma_{t}({row}[k], near[i], old)"""
    return "\n".join((sums, *(_exchange(t, apart) for apart in (4, 2, 1))))


def _exchange(t: str, apart: int) -> str:
    """Return lines by which two lanes add and share their sums.

    Each lane has ``2 * apart`` sums before, and ``apart`` afterwards. The lanes are
    ``apart`` from each other; ``t`` is the short name of the dtype. A lane keeps the
    sums of its own sides and sends the other sums.
    """
    return f"""for k in unrolled({apart}):
    mine_now = sums[k]
    others = sums[k + {apart}]
    if remainder(quotient(lane, {apart}), 2) == 1:
        mine_now = sums[k + {apart}]
        others = sums[k]
    sums[k] = mine_now + shuffle_xor_{t}(others, {apart})"""
