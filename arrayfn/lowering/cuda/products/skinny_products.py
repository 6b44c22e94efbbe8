"""Chooses the skinny products to compute by kernels that read the large matrix once.

cuBLASLt's products take up to three times as long. A product with few columns is
transposed: ``c.T = b.T @ a.T`` has few rows.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial
from typing import Final

from arrayfn.dtypes import short_name
from arrayfn.lowering.cuda.config import GpuConfig
from arrayfn.lowering.cuda.handwritten import HandwrittenCall
from arrayfn.lowering.cuda.products.skinny_half import PIECE, HalfTile, half_kernel
from arrayfn.lowering.cuda.products.skinny_single import (
    LANES,
    SingleTile,
    single_kernel,
)
from arrayfn.lowering.cuda.products.skinny_tiles import SkinnyTile
from arrayfn.lowering.cuda.schedule import power_of_two
from arrayfn.lowering.libraries.calls import LibraryCall, Pointer
from arrayfn.lowering.scalars.arithmetic import HALF_PRECISION
from arrayfn.records import frozen

_PROVIDERS: Final = (
    *("gemm_f32", "gemm_f16", "gemm_f16_f32", "gemm_bf16", "gemm_bf16_f32"),
)
_MIN_ROWS: Final = 2
"""The fewest rows of float32 for which a kernel is faster than cuBLASLt."""
_STAGES: Final = 5
"""Tiles of a warp that are copied at the same time."""
_GROUPS: Final = 1, 2, 4
"""Numbers of groups of lanes in a warp that float32 kernels may have."""
_TRANSPOSED_GROUPS: Final = (8,)
"""The same for a transposed matrix: 128 bytes of each of its lines are contiguous."""
_HALF_TILE: Final = 2048
"""16-bit elements of the matrix in a warp's tile."""
_MAX_HALF_BYTES: Final = 1 << 28
"""Bytes of a 16-bit matrix up to which a kernel is faster than cuBLASLt."""
_TRANSPOSED: Final = 32
"""Columns of a tile of a transposed matrix: 128 bytes of each are contiguous."""
_STEP: Final = 8
"""What k must be a multiple of."""

# The cost model, fitted to times on an H200.
_SATURATING: Final = 0.5, 24
"""The multiprocessors that read as fast as all of them, for float32.

They are a fraction of all: ``max(0.5, rows / 24)``.
"""
_SATURATING_HALF_PRECISION: Final = 0.3, 16
"""The same for tensor cores: ``max(0.3, rows / 16)``."""
_BLOCK_BYTES: Final = 6 << 20
"""Bytes that could be read while a wave of blocks begins and ends."""
_CLUSTER_BYTES: Final = 20 << 20
"""Bytes that could be read in the time that clusters take longer to begin and end."""
_PAIR: Final = 2
"""Blocks of the largest cluster that can run on every multiprocessor."""


@frozen(slots=True)
class SkinnyProduct:
    """``c[m, n] = a[m, k] @ b[k, n]`` with few rows ``m``, and strides in elements.

    ``a_row`` and ``a_step`` are the strides of a along m and k; ``c_row`` and
    ``c_column`` are the strides of c. ``ldb`` is the stride of b's rows or, if b is
    ``transposed`` in memory, of its columns; the other stride of b is 1.
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
        """Return whether a kernel should compute the product.

        It should if m is small, b is large, and vectors of both are aligned.
        """
        fewest, largest = _MIN_ROWS, gpu.skinny_rows
        if self.is_half:
            is_faster = self.transposed or self.nbytes < _MAX_HALF_BYTES
            fewest, largest = 1, largest if is_faster and self.a_step == 1 else 0
        is_skinny = fewest <= self.m <= min(largest, self.n - 1)
        a_starts = (self.a.offset, self.a_row) if self.a_step == 1 else ()
        last = self.k if self.transposed else self.n
        starts = (self.b.offset, self.ldb, self.k, last, *a_starts)
        lanes = PIECE if self.is_half else LANES
        # Rows and columns begin and end at vectors.
        aligned = not any(start % lanes for start in starts) and not self.k % _STEP
        return is_skinny and aligned and self.nbytes >= gpu.skinny_bytes

    @property
    def nbytes(self) -> int:
        """Bytes of the matrix b."""
        return self.n * self.k * self.b.array.type.dtype.itemsize

    @property
    def is_half(self) -> bool:
        """Whether fp16 or bf16 is multiplied, on tensor cores."""
        return short_name(self.b.array.type.dtype) in HALF_PRECISION

    def call(self, gpu: GpuConfig) -> HandwrittenCall:
        """Return the call of the product's kernel, whose tile has the smallest cost."""
        tile: SkinnyTile
        if self.is_half:
            tile = half_tile(self, gpu)
            text = half_kernel(tile)
        else:
            tile = single_tile(self, gpu)
            text = single_kernel(tile)
        integers = {
            "rows": self.m,
            "n": self.n,
            "k": self.k,
            "a_row": self.a_row,
            "a_step": self.a_step,
            "ldb": self.ldb,
            "c_row": self.c_row,
            "c_column": self.c_column,
            "part": tile.k_per_block(self.k),  # of a block, along k
        }
        reads, writes = {"a_in": self.a, "b_in": self.b}, {"c_out": self.c}
        return HandwrittenCall(
            text,
            reads=reads,
            writes=writes,
            integers=integers,
            blocks=tile.blocks(self.n),
        )


def skinny_product(call: LibraryCall, gpu: GpuConfig) -> HandwrittenCall | None:
    """Return the kernel call for the product ``call``.

    The product or its transpose must be skinny. None if the library computes it.
    """
    p = call.integers
    if call.provider not in _PROVIDERS or p["batch"] != 1 or not gpu.max_cluster:
        return None
    a, b, c = call.reads["a"], call.reads["b"], call.writes["c"]
    lda, ldb, ldc = p["lda"], p["ldb"], p["ldc"]
    m, n, k = p["m"], p["n"], p["k"]
    transposed_a, transposed_b = bool(p["transpose_a"]), bool(p["transpose_b"])
    a_row, a_step = (1, lda) if transposed_a else (lda, 1)
    b_row, b_step = (ldb, 1) if transposed_b else (1, ldb)  # of rows of b.T
    product = SkinnyProduct(
        m=m,
        n=n,
        k=k,
        a=a,
        a_row=a_row,
        a_step=a_step,
        b=b,
        ldb=ldb,
        transposed=transposed_b,
        c=c,
        c_row=ldc,
        c_column=1,
    )
    # c.T = b.T @ a.T
    transpose = SkinnyProduct(
        m=n,
        n=m,
        k=k,
        a=b,
        a_row=b_row,
        a_step=b_step,
        b=a,
        ldb=lda,
        transposed=not transposed_a,
        c=c,
        c_row=1,
        c_column=ldc,
    )
    for candidate in (product, transpose):
        if candidate.fits(gpu):
            return candidate.call(gpu)
    return None


def single_tile(product: SkinnyProduct, gpu: GpuConfig) -> SingleTile:
    """Choose the tile with the smallest ``_cost`` for a product of float32."""
    rows, contiguous = power_of_two(product.m), product.a_step == 1
    if not contiguous:
        rows = max(rows, LANES)
    # An ``a`` that is contiguous along m is copied by vectors if columns are aligned.
    starts = (product.a.offset, product.a_step, product.m)
    aligned = product.a_row == 1 and not any(start % LANES for start in starts)
    tiles = (
        SingleTile(
            rows,
            cluster=cluster,
            groups=groups,
            vectors=vectors,
            transposed=product.transposed,
            contiguous=contiguous,
            unaligned=not contiguous and not aligned,
        )
        for vectors, cluster, groups in itertools.product(
            (2, 1),
            _clusters(gpu),
            _TRANSPOSED_GROUPS if product.transposed else _GROUPS,
        )
        # With many rows, loads of a take as much time, and power, as products do.
        if vectors > 1 or product.transposed or rows < gpu.skinny_rows
    )
    best = min(tiles, key=partial(_cost, product, gpu))
    return replace(best, stages=min(_STAGES, gpu.shared_bytes // best.stage_bytes))


def half_tile(product: SkinnyProduct, gpu: GpuConfig) -> HalfTile:
    """Choose the tile with the smallest ``_cost`` for a product of fp16 or bf16."""
    dtype, result = (short_name(x.array.type.dtype) for x in (product.b, product.c))
    tiles = (
        HalfTile(
            power_of_two(product.m),
            cluster=cluster,
            rounded=result if result in HALF_PRECISION else "",
            width=width,
            k_tile=_HALF_TILE // width,
            transposed=product.transposed,
            dtype=dtype,
        )
        for cluster, width in itertools.product(_clusters(gpu), (64, 32))
        if not product.transposed or width == _TRANSPOSED
    )
    best = min(tiles, key=partial(_cost, product, gpu))
    room = gpu.shared_bytes - best.sum_bytes
    return replace(best, stages=min(_STAGES, room // best.stage_bytes))


def _clusters(gpu: GpuConfig) -> list[int]:
    """Return the sizes of clusters, in blocks, to choose from."""
    return [size for size in (1, 2, 4, 8) if size <= max(1, gpu.max_cluster)]


def _cost(product: SkinnyProduct, gpu: GpuConfig, tile: SkinnyTile) -> float:
    """Estimate the time of ``product`` with ``tile``, in bytes read during it.

    Blocks run in waves of one block for each multiprocessor. A wave takes as long as
    reading its part of the matrix; a wave with too few blocks to saturate the memory
    takes as long as one that has just enough.
    """
    blocks = tile.blocks(product.n)
    wave = (
        gpu.multiprocessors if tile.cluster <= _PAIR else gpu.clustered_multiprocessors
    )
    # Blocks that saturate the memory: this fraction of the multiprocessors, or more if
    # a tile has many rows (all multiprocessors from ``rows`` on), which take time, too.
    fraction, rows = _SATURATING_HALF_PRECISION if product.is_half else _SATURATING
    saturating = gpu.multiprocessors * max(fraction, tile.rows / rows)
    full_waves, rest = divmod(blocks, wave)
    block_times = full_waves * max(wave, saturating)
    block_times += max(rest, saturating) if rest else 0
    overhead = -(-blocks // wave) * _BLOCK_BYTES
    overhead += _CLUSTER_BYTES if tile.cluster > 1 else 0
    return block_times / blocks * product.nbytes + overhead
