"""Real matrix products by micro-kernels, on machines with vectors of 512 bits.

There they take the place of BLAS's, unless an operand is a vector or has few rows.
Where OpenBLAS uses vectors of 512 bits too, it keeps small products and narrow ones,
for which it has kernels that do not pack.

An element of a product by micro-kernels is the sum of blocks of ``PANEL_TERMS`` terms,
each a chain of fused multiply-adds. So its bits follow only from elements of the
operands, and tiles may follow from the number of cores.

A micro-kernel multiplies ``PANEL_ROWS`` rows by the columns of two vectors. Measured on
an AMD Zen 5, one thread, GFLOP/s for products of 256, 512 and 1024, float32: 8x32 255,
250, 251; 12x32 243, 243, 240; 14x32 243, 246, 241; 8x48 224, 243, 230; 6x64 253, 251,
247; 28x16 216, 218, 224; float64: 8x16 122, 119, 112; 14x16 116, 116, 111. OpenBLAS
0.3.31 has 123, 123, 127 with its kernels for AVX2 (OPENBLAS_CORETYPE=Haswell), and 238,
250, 244 with those for AVX-512; float64: 58, 57, 60 and 100, 106, 104. On 16 cores
of an Intel Xeon, products of 256 to 2048 take 0.28 to 0.92 of the time that OpenBLAS's
kernels for AVX-512 took on tiles.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from arrayfn.lowering.cpu import machine
from arrayfn.lowering.libraries.calls import LibraryCall, grain_of

VECTOR_BYTES: Final = 64  # of AVX-512, without which BLAS multiplies
PANEL_ROWS: Final = 8  # of the left operand, in the level-1 cache
PANEL_VECTORS: Final = 2  # of columns of the right operand, in the level-2 cache
PANEL_TERMS: Final = 256  # of sums at a time, so that panels stay in the caches
PANEL_STRIDE: Final = PANEL_TERMS + 16  # from row to row, in different sets of a cache
ITEM_SIZES: Final = {"gemm_f32": 4, "gemm_f64": 8}
USED: Final = 0.6  # of the micro-kernels' work, at least; BLAS is faster with less
BLAS_ROWS: Final = 32  # and columns: with fewer, BLAS's own long vectors are faster
BLAS_WORK: Final = 1 << 21  # multiply-adds below which they are
TILE_LANES: Final = 32  # a tile has so many vectors of columns, half of an L2 cache
FEWEST_COLUMNS: Final = 64  # of a tile
TILES_PER_CORE: Final = 4  # so that cores end at about the same time
TILE_WORK: Final = 1 << 20  # multiply-adds that are worth a tile of their own


def packed_product(call: LibraryCall) -> LibraryCall:
    """Replace BLAS in the product ``call`` by micro-kernels, where these are faster."""
    if call.provider not in ITEM_SIZES:
        return call
    m, n, k, batch = (call.integers[name] for name in ("m", "n", "k", "batch"))
    if not is_packed(call.provider, m, n, k):
        return call
    size = ITEM_SIZES[call.provider]
    columns = PANEL_VECTORS * VECTOR_BYTES // size
    tile_m, tile_n = _tile(m, n, k, batch, columns, TILE_LANES * VECTOR_BYTES // size)
    return replace(
        call,
        provider=call.provider.replace("gemm", "gemm_packed"),
        integers={**call.integers, "tile_m": tile_m, "tile_n": tile_n},
        scratch={"packed": packed_bytes(size, tile_n)},
        items=batch * math.ceil(m / tile_m) * math.ceil(n / tile_n),
        grain=grain_of(tile_m * tile_n * k),
        library="micro-kernels",
    )


def is_packed(provider: str, m: int, n: int, k: int) -> bool:
    """Whether a product of ``m`` rows and ``n`` columns uses micro-kernels, not BLAS.

    ``provider`` is that of the product, as "gemm_f32"; ``k`` are the terms of a sum.
    """
    if provider not in ITEM_SIZES or machine.vector_bytes() < VECTOR_BYTES:
        return False
    if machine.blas_vector_bytes() >= VECTOR_BYTES and (
        min(m, n) < BLAS_ROWS or m * n * k < BLAS_WORK
    ):
        return False
    columns = PANEL_VECTORS * VECTOR_BYTES // ITEM_SIZES[provider]
    computed = _up(m, PANEL_ROWS) * _up(n, columns)
    return m * n * k > 0 and m * n >= USED * computed


def packed_bytes(size: int, columns: int) -> int:
    """Return the bytes of scratch for packed operands of ``columns`` columns.

    An element has ``size`` bytes. Packed are a square block of the left operand, with
    as many rows as a vector has lanes, and panels of the right one.
    """
    lanes = VECTOR_BYTES // size
    right = min(_up(columns, PANEL_VECTORS * lanes), TILE_LANES * lanes) * PANEL_TERMS
    return size * (lanes * PANEL_STRIDE + right)


def _tile(
    m: int, n: int, k: int, batch: int, columns: int, most_columns: int
) -> tuple[int, int]:
    """Return the rows and columns of a tile of each of ``batch`` products.

    Tiles are whole panels, of ``columns`` columns, and have ``most_columns`` at most.
    """
    most = batch * m * n * k // TILE_WORK
    wanted = max(1, min(TILES_PER_CORE * machine.cores(), most))
    rows, parts = 1, math.ceil(n / most_columns)
    while batch * rows * parts < wanted:
        if m // rows >= n // parts or n // parts < 2 * FEWEST_COLUMNS:
            if m // rows < 2 * PANEL_ROWS:
                break
            rows *= 2
        else:
            parts *= 2
    return _up(math.ceil(m / rows), PANEL_ROWS), _up(math.ceil(n / parts), columns)


def _up(extent: int, multiple: int) -> int:
    """Round ``extent`` up to a multiple of ``multiple``."""
    return -(-extent // multiple) * multiple
