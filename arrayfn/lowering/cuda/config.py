"""The numbers of a GPU that schedules are made from, and what its libraries take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

ConvolutionAlgorithm = Literal["library", "product", "blocks", "product of blocks"]
"""cuDNN's convolution, or a matrix product of windows (im2col).

Of ``blocks``: a strided convolution is rewritten first as one of stride 1 whose
channels are blocks of the image (``windows.strided_blocks``).
"""
ChooseConvolution = Callable[[str, Mapping[str, int]], ConvolutionAlgorithm]
"""The algorithm for the convolution with this provider's name and these integers."""


def by_library(provider: str, integers: Mapping[str, int]) -> ConvolutionAlgorithm:
    """Have cuDNN compute every convolution: the choice where no GPU can time others."""
    return "library"


@dataclass(frozen=True, slots=True)
class GpuConfig:
    """Numbers of the hardware that schedules are made from: defaults are an H200's.

    A *word* is 32 bits, as a register holds. A *vector* is as in ``schedule``.
    """

    multiprocessors: int = 132
    clustered_multiprocessors: int = 120  # that clusters of 4 and more can use at once
    vector_bytes: int = 16  # the widest access of a thread
    max_lanes: int = 8  # elements that a thread computes together
    threads: int = 256  # threads of a block, where nothing else decides
    max_threads: int = 1024  # threads of the largest block
    tiles: int = 4  # vectors of a row for each thread, if there are enough threads
    gather_tiles: int = 2  # vectors at computed offsets that a thread loads at once
    row_words: int = 32  # 32-bit registers for a thread's part of a row
    split_row_words: int = 12  # the same, where the rest of the row is in shared memory
    prefetch_distance: int = 5  # vectors of weights that a thread copies ahead of use
    waves: int = 4  # blocks for each multiprocessor that a split reduction should have
    cluster_words: int = 32  # 32-bit registers for a thread's part of a cluster's row
    cluster_threads: int = 512  # threads of a block, beyond which a cluster shares rows
    merged_threads: int = 512  # threads of a row, from which on stages merge
    merged_words: int = 1 << 13  # 32-bit words of a part of a long row, if stages merge
    resident_threads: int = 1024  # of a multiprocessor, with half of row_words or more
    resident_half_threads: int = 1536  # the same for large blocks of fp16 or bf16
    cluster_bytes: int = 512 << 10  # bytes for each block, of small sums by clusters
    scan_words: int = 16  # 32-bit registers for a thread's running values, or twice it
    scan_threads: int = 512  # threads of a block, beyond which a cluster scans the row
    part_threads: int = 128  # threads of a block that scans parts of rows
    part_tiles: int = 8  # vectors of such a thread that are prefetched
    part_slots: int = 4  # parts in shared memory
    part_blocks: int = 3  # blocks of a multiprocessor that scan parts
    part_iterations: int = 8  # parts of a block, from which on prefetching pays
    scan_lag_bytes: int = 8 << 20  # bytes that are reduced before the first is scanned
    cache_bytes: int = 48 << 20  # bytes of the L2 cache that rows may take up
    chunk: int = 8192  # elements that are worth a block of a split reduction
    max_cluster: int = 8  # blocks that may share a row; before Hopper 0: no pipelines
    shared_bytes: int = 220 << 10  # shared memory of a multiprocessor's pipelines
    pipeline_from: int = 8192  # 32-bit words of a row, beyond which it is prefetched
    pipeline_words: int = 64  # 32-bit registers for a thread's part of such a row
    pipeline_bytes: int = 64 << 10  # bytes of a block's part of such a row
    pipeline_threads: int = 512  # threads of a pipeline's block, one a multiprocessor
    pipeline_shared: int = 227 << 10  # bytes of shared memory that its block may have
    prefetch_rows: int = 2  # rows that a pipeline has in shared memory at most
    broadcast_register_tiles: int = 4  # vectors of weights that registers have room for
    sort_threads: int = 256  # threads of a block that sorts a tile by a digit
    sort_row_threads: int = 512  # threads of the largest block that sorts a row
    sort_items: int = 16  # 32-bit elements of a tile for each thread; of 64 bits: half
    skinny_rows: int = 16  # rows of the largest product that is a skinny kernel
    skinny_bytes: int = 1 << 22  # bytes of the smallest matrix of such a product
    choose_convolution: ChooseConvolution = by_library


GPU: Final = GpuConfig()
SCAN_FROM: Final = 64  # elements of a row that are worth a block
