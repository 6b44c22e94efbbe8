"""The numbers of a GPU that schedules are made from, and what its libraries take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Literal

from arrayfn.records import frozen

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


@frozen(slots=True)
class GpuConfig:
    """Numbers of the hardware, and thresholds, that schedules are chosen by.

    The defaults are an H200's. Thresholds are what was fastest there in measurements. A
    *word* is 32 bits, as a register holds. A *vector* is as in ``schedule``.
    """

    # Hardware.
    multiprocessors: int = 132
    clustered_multiprocessors: int = 120  # that clusters of 4 and more can use at once
    max_threads: int = 1024  # threads of the largest block
    max_cluster: int = 8  # blocks of the largest cluster; 0 before Hopper, no pipelines
    cache_bytes: int = 48 << 20  # bytes of the L2 cache that rows may take up
    shared_bytes: int = 220 << 10  # shared memory of a multiprocessor, for copies
    vector_bytes: int = 16  # the widest access of a thread

    # Blocks and threads in general.
    threads: int = 256  # threads of a block, where nothing else decides
    max_lanes: int = 8  # elements of the longest vector
    tiles: int = 4  # vectors of a row for each thread, if there are enough threads
    gather_tiles: int = 2  # vectors at computed offsets that a thread loads at once

    # Rows of one block. A thread may have 255 registers; a row must leave some for
    # what is computed from it.
    row_words: int = 32  # 32-bit registers for a thread's share of a row
    split_row_words: int = 12  # the same, where the rest of the row is in shared memory
    prefetch_distance: int = 5  # vectors of weights that a thread copies ahead of use
    resident_threads: int = 1024  # threads of a multiprocessor that has large rows
    resident_half_threads: int = 1536  # the same, for large rows of fp16 or bf16
    merged_threads: int = 512  # threads of a row, from which on stages merge

    # Long rows that several blocks share.
    split_blocks: int = 4  # blocks of a split reduction for each multiprocessor
    split_chunk: int = 8192  # elements that are worth a block of a split reduction
    merged_words: int = 1 << 13  # 32-bit words of a part of a row, if stages merge
    cluster_words: int = 32  # 32-bit registers for a thread's share of a cluster's row
    cluster_threads: int = 512  # threads of a block, beyond which a cluster shares rows
    cluster_bytes: int = 512 << 10  # bytes that are worth a block of a small sum

    # Pipelines: rows that are copied to shared memory ahead of use, one block for each
    # multiprocessor.
    pipeline_from: int = 8192  # 32-bit words of a row, beyond which it is prefetched
    pipeline_words: int = 64  # 32-bit registers for a thread's share of such a row
    pipeline_bytes: int = 64 << 10  # bytes of a block's share of such a row
    pipeline_threads: int = 512  # threads of a block
    pipeline_shared: int = 227 << 10  # bytes of shared memory that a block may have
    prefetch_rows: int = 2  # rows in shared memory at most
    broadcast_register_tiles: int = 4  # vectors of weights that registers have room for

    # Scans. Long rows are cut into parts, which are copied to shared memory ahead.
    scan_words: int = 16  # 32-bit registers for a thread's running values, or twice it
    scan_threads: int = 512  # threads of a block, beyond which a cluster scans the row
    part_threads: int = 128  # threads of a block that scans parts
    part_tiles: int = 8  # vectors of a part for each thread
    part_slots: int = 4  # parts in shared memory
    part_blocks: int = 3  # blocks that scan parts for each multiprocessor
    part_iterations: int = 8  # parts of a block, from which on prefetching pays
    scan_lag_bytes: int = 8 << 20  # bytes that are reduced before the first is scanned

    # Sorts.
    sort_threads: int = 256  # threads of a block that sorts a tile by a digit
    sort_row_threads: int = 512  # threads of the largest block that sorts a row
    sort_items: int = 16  # 32-bit elements of a tile for each thread; of 64 bits: half

    # Products.
    skinny_rows: int = 16  # rows of the largest product that is a skinny kernel
    skinny_bytes: int = 1 << 22  # bytes of the smallest matrix of such a product

    choose_convolution: ChooseConvolution = by_library
    """Chooses how a convolution is computed."""


GPU: Final = GpuConfig()
SCAN_FROM: Final = 64  # elements of a row that are worth a block
