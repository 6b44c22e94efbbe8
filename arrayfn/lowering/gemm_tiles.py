"""How a GEMM is cut into tiles: the work items of its library kernel.

Tiles depend on the problem and on the machine's number of cores, never on how many
threads run them, and each is one single-threaded BLAS call: results have the same bits
for every thread count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from arrayfn.dtypes import DType

PROVIDERS: Final[dict[DType, str]] = {
    np.dtype(np.float32): "gemm_f32",
    np.dtype(np.float64): "gemm_f64",
    np.dtype(np.complex64): "gemm_c64",
    np.dtype(np.complex128): "gemm_c128",
}

TILE_WORK: Final = 1 << 18  # multiply-adds that are worth a tile of their own
BALANCED_WORK: Final = 1 << 24  # from here two tiles a core even out uneven cores
TILE_MULTIPLE: Final = 16


@dataclass(frozen=True, slots=True)
class GemmTiles:
    """Tiles of ``tile_m`` by ``tile_n``, ``items`` in all, in batch-major order."""

    items: int
    tile_m: int
    tile_n: int
    grain: int


def gemm_tiles(
    m: int, n: int, k: int, batch: int, dtype: DType, cores: int = 2
) -> GemmTiles:
    """Cut ``batch`` products of ``[m, k]`` and ``[k, n]`` into tiles.

    >>> gemm_tiles(1024, 1024, 1024, 1, np.dtype(np.float32), cores=2)
    GemmTiles(items=4, tile_m=512, tile_n=512, grain=1)
    >>> gemm_tiles(8, 8, 8, 100, np.dtype(np.float32))
    GemmTiles(items=100, tile_m=8, tile_n=8, grain=256)
    """
    weight = 4 if dtype.kind == "c" else 1
    work = max(1, m * n * k * weight)
    tiles = 2 * cores if work >= 2 * cores * BALANCED_WORK else cores
    wanted = max(1, min(-(-tiles // max(1, batch)), work // TILE_WORK))
    rows, columns = _split(m, n, wanted)
    tile_m, tile_n = _tile(m, rows), _tile(n, columns)
    items = batch * _tiles(m, tile_m) * _tiles(n, tile_n)
    tile_work = max(1, tile_m * tile_n * k * weight)
    return GemmTiles(items, tile_m, tile_n, max(1, TILE_WORK // 2 // tile_work))


def _split(m: int, n: int, wanted: int) -> tuple[int, int]:
    """Tiles along rows and columns, ``wanted`` in all, the longer extent cut first.

    Cutting rows packs all of ``b`` in every tile and none of ``a`` twice; of two cuts
    the one across the longer extent duplicates less.
    """
    rows = columns = 1
    while rows * columns < wanted:
        if m // rows >= n // columns:
            rows *= 2
        else:
            columns *= 2
    return rows, columns


def _tile(extent: int, parts: int) -> int:
    """The extent of a tile, whole micro-kernels where there is more than one."""
    if parts == 1:
        return max(1, extent)
    size = -(-extent // parts)
    return -(-size // TILE_MULTIPLE) * TILE_MULTIPLE


def _tiles(extent: int, tile: int) -> int:
    return -(-extent // tile)
