"""Products of a few rows, or columns, and a large matrix: kernels that read it once.

The library's take up to three times as long. Of few columns the product is transposed:
``c.T = b.T @ a.T`` has few rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from arrayfn.lowering.cuda.config import GpuConfig
from arrayfn.lowering.cuda.schedule import power_of_two
from arrayfn.lowering.cuda.thin_columns import ColumnsTile, columns_text
from arrayfn.lowering.cuda.thin_lines import LinesTile, lines_text
from arrayfn.lowering.cuda.thin_tiles import LANES
from arrayfn.lowering.cuda.written import WrittenCall
from arrayfn.lowering.libraries.calls import LibraryCall, Place

_FEWEST: Final = 2  # rows: with one the library reads the matrix as fast
_STEP: Final = 8  # what is summed over is a multiple of


@dataclass(frozen=True, slots=True)
class ThinProduct:
    """``c[m, n] = a[m, k] @ b[k, n]`` with few rows: strides along these axes.

    The rows of b lie ``ldb`` apart; if it is ``turned`` its columns do.
    """

    m: int
    n: int
    k: int
    a: Place
    a_row: int
    a_step: int
    b: Place
    ldb: int
    turned: bool
    c: Place
    c_row: int
    c_column: int

    def fits(self, gpu: GpuConfig) -> bool:
        """Whether a kernel computes it: it is large, and of vectors."""
        # Rows of a that lie across are dear to copy, for each line of b anew.
        most = gpu.thin_rows // 2 if self.turned and self.a_step != 1 else gpu.thin_rows
        is_thin = _FEWEST <= self.m <= min(most, self.n - 1)
        along = (self.a.offset, self.a_row) if self.a_step == 1 else ()
        last = self.k if self.turned else self.n
        starts = (self.b.offset, self.ldb, self.k, last, *along)
        whole = not any(start % LANES for start in starts) and not self.k % _STEP
        nbytes = self.n * self.k * self.b.array.type.dtype.itemsize
        return is_thin and whole and nbytes >= gpu.thin_bytes

    def call(self, gpu: GpuConfig) -> WrittenCall:
        """Its launch."""
        tile = lines_tile(self, gpu) if self.turned else columns_tile(self, gpu)
        made = lines_text(tile) if isinstance(tile, LinesTile) else columns_text(tile)
        integers = (self.m, self.n, self.k, self.a_row, self.a_step, self.ldb)
        lies = (self.c_row, self.c_column, tile.part(self.k))
        blocks = tile.blocks(self.n)
        return WrittenCall(made, [self.a, self.b], [self.c], integers + lies, blocks)


def thin_product(call: LibraryCall, gpu: GpuConfig) -> WrittenCall | None:
    """The launch for the product ``call``; None where the library is to compute it."""
    p = call.integers
    if call.provider != "gemm_f32" or p["batch"] != 1 or gpu.most_cluster < 2:
        return None
    a, b, c = call.reads["a"], call.reads["b"], call.writes["c"]
    lda, ldb, ldc = p["lda"], p["ldb"], p["ldc"]
    m, n, k = p["m"], p["n"], p["k"]
    turned_a, turned_b = bool(p["transpose_a"]), bool(p["transpose_b"])
    a_strides = (1, lda) if turned_a else (lda, 1)
    b_strides = (ldb, 1) if turned_b else (1, ldb)  # as rows of b.T
    for made in (
        ThinProduct(m, n, k, a, *a_strides, b, ldb, turned_b, c, ldc, 1),
        ThinProduct(n, m, k, b, *b_strides, a, lda, not turned_a, c, 1, ldc),
    ):
        if made.fits(gpu):
            return made.call(gpu)
    return None


def columns_tile(product: ThinProduct, gpu: GpuConfig) -> ColumnsTile:
    """The tile of a matrix that lies across what is summed over."""
    rows, along = power_of_two(product.m), product.a_step == 1
    strips = ColumnsTile(rows, cluster=1).blocks(product.n)
    return ColumnsTile(rows, cluster=_cluster(strips, gpu), along=along)


def lines_tile(product: ThinProduct, gpu: GpuConfig) -> LinesTile:
    """The tile of a matrix that lies along what is summed over."""
    rows, along = power_of_two(product.m), product.a_step == 1
    strips = LinesTile(rows, cluster=1).blocks(product.n)
    return LinesTile(rows, cluster=_cluster(strips, gpu), along=along)


def _cluster(strips: int, gpu: GpuConfig) -> int:
    """The blocks that share columns: two where that occupies the card, else many.

    What is between, four, is slower than either.
    """
    return 2 if 2 * strips >= gpu.multiprocessors * 3 // 4 else gpu.most_cluster
