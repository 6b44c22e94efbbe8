"""Products of a few rows, or columns, and a large matrix: kernels that read it once.

The library's take up to three times as long. Of few columns the product is transposed:
``c.T = b.T @ a.T`` has few rows.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from arrayfn.dtypes import short_name
from arrayfn.lowering.cuda.config import GpuConfig
from arrayfn.lowering.cuda.handwritten import HandwrittenCall
from arrayfn.lowering.cuda.products.skinny_half import PIECE, HalfTile, half_text
from arrayfn.lowering.cuda.products.skinny_single import LANES, SingleTile, single_text
from arrayfn.lowering.cuda.products.skinny_tiles import SkinnyTile
from arrayfn.lowering.cuda.schedule import power_of_two
from arrayfn.lowering.libraries.calls import LibraryCall, Pointer
from arrayfn.lowering.scalars.arithmetic import HALF_PRECISION

_PROVIDERS: Final = (
    *("gemm_f32", "gemm_f16", "gemm_f16_f32", "gemm_bf16", "gemm_bf16_f32"),
)
_FEWEST: Final = 2  # rows of float32: with one the library reads the matrix as fast
_STAGES: Final = 5  # of copies that are on their way
_BUSY: Final = 0.5  # of all multiprocessors: as many can read as fast as all
_BUSY_ROWS: Final = 24  # of a; of more rows more of them are needed to multiply
_BUSY_HALVES: Final = 0.3, 16  # both, of tensor cores
_BEGUN: Final = 6 << 20  # bytes that could be read while blocks begin and end
_JOINED: Final = 20 << 20  # and while clusters do
_PAIR: Final = 2  # blocks of a cluster: those of larger ones do not go everywhere
_GROUPS: Final = 1, 2, 4  # of a warp, with other parts of what is summed over
_TRANSPOSED_GROUPS: Final = (8,)  # so that 128 bytes of each line are side by side
_HALVES: Final = 2048  # of the matrix that a warp takes at a time
_MAX_HALF_BYTES: Final = 1 << 28  # bytes of it: larger ones the library reads as fast
_TRANSPOSED: Final = 32  # lines of it, so that 128 bytes of each are side by side
_STEP: Final = 8  # what is summed over is a multiple of


@dataclass(frozen=True, slots=True)
class SkinnyProduct:
    """``c[m, n] = a[m, k] @ b[k, n]`` with few rows: strides along these axes.

    The rows of b lie ``ldb`` apart; if it is ``transposed`` its columns do.
    """

    m: int
    n: int
    k: int
    a: Pointer
    a_row: int
    a_step: int
    b: Pointer
    ldb: int
    transposed: bool
    c: Pointer
    c_row: int
    c_column: int

    def fits(self, gpu: GpuConfig) -> bool:
        """Whether a kernel computes it: it is large, and of vectors."""
        fewest, most = _FEWEST, gpu.skinny_rows
        if self.is_half:
            is_faster = self.transposed or self.nbytes < _MAX_HALF_BYTES
            fewest, most = 1, most if is_faster and self.a_step == 1 else 0
        is_skinny = fewest <= self.m <= min(most, self.n - 1)
        along = (self.a.offset, self.a_row) if self.a_step == 1 else ()
        last = self.k if self.transposed else self.n
        starts = (self.b.offset, self.ldb, self.k, last, *along)
        lanes = PIECE if self.is_half else LANES
        whole = not any(start % lanes for start in starts) and not self.k % _STEP
        return is_skinny and whole and self.nbytes >= gpu.skinny_bytes

    @property
    def nbytes(self) -> int:
        """Bytes of the matrix."""
        return self.n * self.k * self.b.array.type.dtype.itemsize

    @property
    def is_half(self) -> bool:
        """Whether fp16 or bf16 is multiplied."""
        return short_name(self.b.array.type.dtype) in HALF_PRECISION

    def call(self, gpu: GpuConfig) -> HandwrittenCall:
        """Its launch."""
        tile: SkinnyTile
        if self.is_half:
            tile = half_tile(self, gpu)
            made = half_text(tile)
        else:
            tile = single_tile(self, gpu)
            made = single_text(tile)
        integers = {
            "rows": self.m,
            "n": self.n,
            "k": self.k,
            "a_row": self.a_row,
            "a_step": self.a_step,
            "ldb": self.ldb,
            "c_row": self.c_row,
            "c_column": self.c_column,
            "part": tile.part(self.k),
        }
        reads, writes = {"a_in": self.a, "b_in": self.b}, {"c_out": self.c}
        return HandwrittenCall(made, reads, writes, integers, tile.blocks(self.n))


def skinny_product(call: LibraryCall, gpu: GpuConfig) -> HandwrittenCall | None:
    """The launch for the product ``call``; None where the library is to compute it."""
    p = call.integers
    if call.provider not in _PROVIDERS or p["batch"] != 1 or not gpu.max_cluster:
        return None
    a, b, c = call.reads["a"], call.reads["b"], call.writes["c"]
    lda, ldb, ldc = p["lda"], p["ldb"], p["ldc"]
    m, n, k = p["m"], p["n"], p["k"]
    transposed_a, transposed_b = bool(p["transpose_a"]), bool(p["transpose_b"])
    a_strides = (1, lda) if transposed_a else (lda, 1)
    b_strides = (ldb, 1) if transposed_b else (1, ldb)  # as rows of b.T
    for made in (
        SkinnyProduct(m, n, k, a, *a_strides, b, ldb, transposed_b, c, ldc, 1),
        SkinnyProduct(n, m, k, b, *b_strides, a, lda, not transposed_a, c, 1, ldc),
    ):
        if made.fits(gpu):
            return made.call(gpu)
    return None


def single_tile(product: SkinnyProduct, gpu: GpuConfig) -> SingleTile:
    """The tile of a matrix of float32."""
    rows, along = power_of_two(product.m), product.a_step == 1
    if not along:
        rows = max(rows, LANES)
    starts = (product.a.offset, product.a_step, product.m)
    whole = product.a_row == 1 and not any(start % LANES for start in starts)
    tiles = (
        SingleTile(
            rows,
            cluster=cluster,
            groups=groups,
            vectors=vectors,
            transposed=product.transposed,
            along=along,
            apart=not along and not whole,
        )
        for vectors, cluster, groups in itertools.product(
            (2, 1),
            _clusters(gpu),
            _TRANSPOSED_GROUPS if product.transposed else _GROUPS,
        )
        # Of many rows, loads of a take as much time, and power, as products do.
        if vectors > 1 or product.transposed or rows < gpu.skinny_rows
    )
    best = min(tiles, key=partial(_cost, product, gpu))
    return replace(best, stages=min(_STAGES, gpu.shared_bytes // best.stage_bytes))


def half_tile(product: SkinnyProduct, gpu: GpuConfig) -> HalfTile:
    """The tile of an fp16 or bf16 matrix."""
    given, made = (short_name(x.array.type.dtype) for x in (product.b, product.c))
    tiles = (
        HalfTile(
            power_of_two(product.m),
            cluster=cluster,
            rounded=made if made in HALF_PRECISION else "",
            strip=strip,
            deep=_HALVES // strip,
            transposed=product.transposed,
            dtype=given,
        )
        for cluster, strip in itertools.product(_clusters(gpu), (64, 32))
        if not product.transposed or strip == _TRANSPOSED
    )
    best = min(tiles, key=partial(_cost, product, gpu))
    room = gpu.shared_bytes - best.held_bytes
    return replace(best, stages=min(_STAGES, room // best.stage_bytes))


def _clusters(gpu: GpuConfig) -> list[int]:
    return [size for size in (1, 2, 4, 8) if size <= max(1, gpu.max_cluster)]


def _cost(product: SkinnyProduct, gpu: GpuConfig, tile: SkinnyTile) -> float:
    """About the bytes that could be read in the time that the product takes.

    What runs at once takes as long as its part of the matrix, or, where it is less than
    it needs to be to read as fast as the card can, as that would take.
    """
    blocks = tile.blocks(product.n)
    most = (
        gpu.multiprocessors if tile.cluster <= _PAIR else gpu.clustered_multiprocessors
    )
    fewest, rows = _BUSY_HALVES if product.is_half else (_BUSY, _BUSY_ROWS)
    busy = gpu.multiprocessors * max(fewest, tile.rows / rows)
    whole, rest = divmod(blocks, most)
    took = whole * max(most, busy) + (max(rest, busy) if rest else 0)
    begun = -(-blocks // most) * _BEGUN + (_JOINED if tile.cluster > 1 else 0)
    return took / blocks * product.nbytes + begun
