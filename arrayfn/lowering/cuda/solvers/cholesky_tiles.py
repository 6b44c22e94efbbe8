"""Cholesky factors of large matrices by one kernel, a block for each tile.

Blocks begin in the order of tiles, column by column and from the diagonal down. Each
waits for the tiles to the left of its own and subtracts their products from it. Then it
factors its tile, if that is on the diagonal, or solves it by the factor of the diagonal
tile. No block waits for a whole column, and only the factor is written. (Left-looking,
by tiles: Buttari, Langou, Kurzak, Dongarra, "A class of parallel tiled linear algebra
algorithms for multicore architectures", 2009.)
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
from arrayfn.lowering.cuda.solvers.cholesky import (
    LANES,
    PANEL,
    factoring,
    lane_pitch,
    memory,
    select_lane_element,
)
from arrayfn.lowering.cuda.vocabulary import WARP, vector_lanes
from arrayfn.lowering.libraries.calls import Pointer
from arrayfn.records import frozen

MAX_ROWS: Final = 2048
"""Rows of the largest matrix. For larger ones cuSOLVER is faster."""
SIZE: Final = 64
"""Rows and columns of a tile."""
_PARTS: Final = {16: (2, 2), 32: (4, 2), 64: (4, 4)}
"""By the size of tiles, the rows and columns of a product that each thread computes."""
_UNROLLED: Final = 4
"""Iterations of a product's loop that are unrolled."""


def is_tiled(dtype: DType, n: int, matrices: int) -> bool:
    """Return whether this kernel should factor ``matrices`` matrices of ``n`` rows.

    It should not factor a single matrix in float64: square roots and divisions, which
    depend on each other, are too slow there.
    """
    is_known = dtype == dtypes.float32 or (dtype == dtypes.float64 and matrices > 1)
    return is_known and n <= MAX_ROWS


def tiled_factors(matrices: Var, status: Var) -> HandwrittenCall:
    """Return the call that factors ``matrices`` [..., n, n] in place.

    Only their lower triangles are read and written. ``status`` [matrices] becomes 1 for
    a matrix that has no factor; what is written for such a matrix has no meaning.
    """
    dtype, n = matrices.type.dtype, matrices.type.shape[-1]
    count = math.prod(matrices.type.shape[:-2])
    rows = -(-n // SIZE)
    tiles = rows * (rows + 1) // 2
    return HandwrittenCall(
        _Tiles(dtype, SIZE).text(),
        reads={},
        writes={"a": Pointer(matrices), "status": Pointer(status)},
        integers={"n": n, "rows": rows, "matrices": count, "blocks": count * tiles},
        blocks=count * tiles,
        flag_buffer=flag_buffer_of(count * rows * rows, dtypes.int32),
    )


@frozen(slots=True)
class _Tiles:
    """Writes the kernel for tiles of ``size`` rows and columns.

    Besides the variables of ``cholesky.factoring``, its parts share these:

    * ``a`` and ``status``: the matrices, and their status; ``n`` is a matrix's rows.
    * ``matrix`` and ``begin``: the number of the block's matrix, and its offset in
      ``a``. ``rows``: how many rows of tiles a matrix has.
    * ``flag_buffer``: a flag for each tile, which is set once the tile is stored; those
      of the block's matrix begin at ``flags``.
    * ``line`` and ``column``: the row and column of the block's tile among the tiles.
    * ``row`` and ``lane``: the thread's row of a tile, and its lane among the row's
      lanes.
    * ``down`` and ``along``: the thread's first row and column of a product of tiles.
    * ``down_tile`` and ``along_tile``: the row and column in a tile of the first
      element that the thread copies; its other elements are further down. ``start`` is
      the offset of that element in the matrix. ``own_rows`` and ``top_rows`` are the
      offsets of the rows of tiles ``line`` and ``column``.
    * ``tile`` (shared memory): the block's tile, or a tile to its left. ``beside``: the
      tile by which that is multiplied, later the factor of the diagonal tile.
    * ``sums``: the thread's elements of the block's tile less the products. ``left``
      and ``right``: registers for the factors of a product.
    * ``fetched`` and ``others``: registers for elements on their way from memory.
    * ``pivots`` (shared memory): the reciprocals of the factor's diagonal.
    """

    dtype: DType
    size: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return LANES * self.size

    @property
    def vector(self) -> int:
        """Elements of a vector access."""
        return vector_lanes(self.dtype)

    def text(self) -> Handwritten:
        """Write the kernel."""
        size, itemsize = self.size, self.dtype.itemsize
        parts = (self._load_tile(), self._products(), self._diagonal(), self._below())
        return Handwritten(
            "cholesky",
            "\n".join(parts),
            self.threads,
            f"Factors matrices by tiles of {size} rows and columns.",
            "Cholesky factors, a block for each tile",
            shared=(size * self._pitch + self._second_size) * itemsize,
        )

    @property
    def _pitch(self) -> int:
        """The distance between rows of a tile, in elements; vectors stay aligned."""
        return self.size + self.vector

    @property
    def _column_pitch(self) -> int:
        """The distance in ``beside`` between columns of the factor, in elements."""
        return LANES * lane_pitch(self.dtype, self.size) + self.vector

    @property
    def _second_size(self) -> int:
        """How many elements ``beside`` has: a tile by rows, or a factor by columns."""
        return max(self.size * self._pitch, self.size * self._column_pitch)

    def _load_tile(self) -> str:
        """Return lines that find the block's tile, declare memory and load the tile.

        Tiles are numbered column by column, from the diagonal down, and matrix by
        matrix within a number. Outside of the matrix, a tile continues as the identity.
        """
        t, size = short_name(self.dtype), self.size
        m, k = _PARTS[size]
        tile_bytes = size * self._pitch * self.dtype.itemsize
        return f"""
thread = thread_index()
row = quotient(thread, {LANES})
lane = remainder(thread, {LANES})
number = dynamic_block_id(flag_buffer, blocks)
matrix = remainder(number, matrices)
number = quotient(number, matrices)
begin = matrix * n * n
flags = matrix * rows * rows
column = i64(0)
while number >= rows - column:
    number = number - (rows - column)
    column = column + 1
line = column + number
tile = dynamic_shared_{t}(0, {size * self._pitch})
beside = dynamic_shared_{t}({tile_bytes}, {self._second_size})
{memory(self.dtype, size)}
pivots = shared_{t}({size})
sums = registers_{t}({m * k})
left = registers_{t}({m * self.vector})
right = registers_{t}({self.vector})
fetched = registers_{t}({size // LANES})
others = registers_{t}({size // LANES})
down_tile = quotient(thread, {size})
along_tile = remainder(thread, {size})
start = down_tile * n + along_tile
own_rows = begin + line * {size} * n
top_rows = begin + column * {size} * n
down = quotient(thread, {size // k})
along = remainder(thread, {size // k})
for part in unrolled({m * k}):
    y = line * {size} + down + part // {k} * {size // m}
    x = column * {size} + along + part % {k} * {size // k}
    value = {t}(0)
    if x == y:
        value = {t}(1)
    if (y < n) and (x <= y):
        value = a[begin + y * n + x]
    sums[part] = value"""

    def _products(self) -> str:
        """Return lines that subtract from the block's tile the products to its left.

        They are the products of the tiles left of it and of the tiles left of the
        diagonal. The difference goes to ``tile``.
        """
        size = self.size
        m, k = _PARTS[size]
        return f"""
for before in range(column):
{indented(self._load_operands(), 1)}
{indented(self._multiply(), 1)}
    barrier()
for part in unrolled({m * k}):
    y = down + part // {k} * {size // m}
    tile[y * {size + 1} + along + part % {k} * {size // k}] = sums[part]
barrier()"""

    def _load_operands(self) -> str:
        """Return lines that wait for the two tiles of a product, and load them.

        They are the tiles in column ``before`` of the rows of tiles ``line`` and
        ``column``, and go to ``tile`` and ``beside``. Elements below the matrix become
        0.
        """
        t, size, pitch = short_name(self.dtype), self.size, self._pitch
        return f"""# A lane of each of two warps waits for one of the two tiles.
if (thread < {2 * WARP}) and (remainder(thread, {WARP}) == 0):
    needed = select_i64(thread == 0, line, column)
    there = wait_for_i32(flag_buffer, flags + needed * rows + before)
    fence()
barrier()
# All loads are on their way before the first is waited for.
own_at = own_rows + before * {size} + start
top_at = top_rows + before * {size} + start
if (line + 1) * {size} <= n:
    for part in unrolled({size // LANES}):
        fetched[part] = a[own_at + part * {LANES} * n]
        others[part] = a[top_at + part * {LANES} * n]
else:
    for part in unrolled({size // LANES}):
        further = part * {LANES} * n
        fetched[part] = {t}(0)
        if line * {size} + down_tile + part * {LANES} < n:
            fetched[part] = a[own_at + further]
        others[part] = {t}(0)
        if column * {size} + down_tile + part * {LANES} < n:
            others[part] = a[top_at + further]
for part in unrolled({size // LANES}):
    y = down_tile + part * {LANES}
    tile[y * {pitch} + along_tile] = fetched[part]
    beside[y * {pitch} + along_tile] = others[part]
barrier()"""

    def _multiply(self) -> str:
        """Return lines that subtract ``tile @ beside.T`` from ``sums``.

        A thread computes a grid of elements at equal distances, of the extents in
        ``_PARTS``.
        """
        t, size, vector = short_name(self.dtype), self.size, self.vector
        pitch = self._pitch
        m, k = _PARTS[size]
        return f"""for some in range({size // vector // _UNROLLED}):
    for iteration in unrolled({_UNROLLED}):
        x = (some * {_UNROLLED} + iteration) * {vector}
        for y in unrolled({m}):
            place = (down + y * {size // m}) * {pitch} + x
            load_{t}x{vector}(tile, place, left, y * {vector})
        for y in unrolled({k}):
            place = (along + y * {size // k}) * {pitch} + x
            load_{t}x{vector}(beside, place, right, 0)
            for part in unrolled({m}):
                for e in unrolled({vector}):
                    less = neg_{t}(left[part * {vector} + e])
                    old = sums[part * {k} + y]
                    sums[part * {k} + y] = fma_{t}(less, right[e], old)"""

    def _load_row_elements(self) -> str:
        """Return lines that load ``own``: a lane's elements of its row of the tile."""
        return f"""for k in unrolled({self.size // LANES}):
    own[k] = tile[row * {self.size + 1} + k * {LANES} + lane]"""

    def _diagonal(self) -> str:
        """Return lines that factor the block's tile if it is on the diagonal.

        The factor is stored in the matrix. The block of the last diagonal tile stores
        the matrix's status.
        """
        size = self.size
        factor = f"""{self._load_row_elements()}
{factoring(self.dtype, size, str(size))}
for part in unrolled({size // LANES}):
    x = column * {size} + along_tile
    place = (down_tile + part * {LANES}) * {size + 1} + along_tile
    if (line * {size} + down_tile + part * {LANES} < n) and (x < n):
        a[own_rows + column * {size} + start + part * {LANES} * n] = tile[place]
if (line == rows - 1) and (thread == 0):
    status[matrix] = select_i32(failed, i32(1), i32(0))"""
        return f"if line == column:\n{indented(factor, 1)}"

    def _below(self) -> str:
        """Return lines that solve the block's tile if it is below the diagonal.

        They multiply it by the inverse of the diagonal tile's factor, and store it. All
        blocks then publish that their tile is stored. ``base`` is the lane of the warp
        in which the lanes of the thread's row begin. After each pair of panels, ``own``
        moves on by a pair, so that the numbers of registers are constants.
        """
        size, each = self.size, self.size // LANES
        solve = f"""{self._load_factor()}
base = remainder(thread, {WARP}) - lane
for pair in range({size // (2 * PANEL)}):
    for half in unrolled(2):
        before = pair * {2 * PANEL} + half * {PANEL}
{indented(self._solve_panel(), 2)}
    for k in unrolled({each - 2 * PANEL // LANES}):
        own[k] = own[k + {2 * PANEL // LANES}]
barrier()
for part in unrolled({each}):
    place = (down_tile + part * {LANES}) * {size + 1} + along_tile
    if line * {size} + down_tile + part * {LANES} < n:
        a[own_rows + column * {size} + start + part * {LANES} * n] = tile[place]"""
        return f"""if line > column:
{indented(solve, 1)}
barrier()
if thread == 0:
    fence()
    publish_i32(flag_buffer, flags + line * rows + column, i32(1))"""

    def _load_factor(self) -> str:
        """Return lines that load the diagonal tile's factor to ``beside``.

        They wait until it is published. It lies there by columns, in which each lane's
        elements are side by side. ``pivots`` become the reciprocals of its diagonal.
        """
        t, size, each = short_name(self.dtype), self.size, self.size // LANES
        pitch, column_pitch = lane_pitch(self.dtype, size), self._column_pitch
        return f"""if thread == 0:
    there = wait_for_i32(flag_buffer, flags + column * rows + column)
    fence()
barrier()
for part in unrolled({each}):
    fetched[part] = a[top_rows + column * {size} + start + part * {LANES} * n]
for part in unrolled({each}):
    y = down_tile + part * {LANES}
    place = along_tile * {column_pitch} + remainder(y, {LANES}) * {pitch}
    beside[place + quotient(y, {LANES})] = fetched[part]
{self._load_row_elements()}
barrier()
if thread < {size}:
    place = thread * {column_pitch} + remainder(thread, {LANES}) * {pitch}
    pivots[thread] = {t}(1) / beside[place + quotient(thread, {LANES})]
barrier()"""

    def _solve_panel(self) -> str:
        """Return lines that solve the columns of a panel, which begins at ``before``.

        The panel is number ``half`` of pair ``pair``. The lanes of a row, from lane
        ``base`` of the warp on, first exchange their elements of the panel into
        ``mine``. Then each subtracts the panel's products from the rest of its row,
        ``own``.
        """
        t, vector, each = short_name(self.dtype), self.vector, self.size // LANES
        column_pitch, pitch = self._column_pitch, lane_pitch(self.dtype, self.size)
        return f"""for k in unrolled({PANEL}):
    value = own[half * {PANEL // LANES} + k // {LANES}]
    mine[k] = shuffle_from_{t}(value, base + k % {LANES})
for k in unrolled({PANEL}):
    mine[k] = mine[k] * pivots[before + k]
    for j in unrolled({PANEL}):
        if j > k:
            place = (before + k) * {column_pitch} + j % {LANES} * {pitch}
            value = beside[place + quotient(before, {LANES}) + j // {LANES}]
            mine[j] = fma_{t}(neg_{t}(mine[k]), value, mine[j])
for part in unrolled({PANEL // LANES}):
{indented(select_lane_element(self.dtype), 1)}
    tile[row * {self.size + 1} + before + part * {LANES} + lane] = value
for k in unrolled({PANEL}):
    for part in unrolled({each // vector}):
        onward = pair * {2 * PANEL // LANES} + part * {vector}
        if onward < {each}:
            place = (before + k) * {column_pitch} + lane * {pitch}
            load_{t}x{vector}(beside, place + onward, near, 0)
            for e in unrolled({vector}):
                old = own[part * {vector} + e]
                less = neg_{t}(mine[k])
                own[part * {vector} + e] = fma_{t}(less, near[e], old)"""
