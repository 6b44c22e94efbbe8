"""The numbers of a GPU that schedules are made from, and what its libraries take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

Way = Literal["library", "product", "blocks", "product of blocks"]
"""By a library or as a product of windows, as it is or after ``strided_blocks``."""
Convolves = Callable[[str, Mapping[str, int]], Way]
"""How the convolution of this provider and these integers is computed."""


def by_library(provider: str, integers: Mapping[str, int]) -> Way:
    """Any by the library: what it takes is known where there is one."""
    return "library"


@dataclass(frozen=True, slots=True)
class GpuConfig:
    """Numbers of the hardware that schedules are made from."""

    multiprocessors: int = 132
    grouped: int = 120  # of these, what clusters of 4 and more can run on at once
    vector_bytes: int = 16  # the widest access of a thread
    max_lanes: int = 8  # elements a thread computes together
    threads: int = 256  # of a block, where nothing else decides
    max_threads: int = 1024  # of a block
    tiles: int = 4  # vectors of a row that a thread is given if threads are plenty
    far_tiles: int = 2  # vectors from computed places that a thread waits for at once
    row_words: int = 32  # 32-bit registers that a thread may keep of its row
    aside_words: int = 12  # of these, where the rest of the row is in shared memory
    early: int = 5  # vectors of what rows share that a thread has copied ahead
    waves: int = 4  # blocks for each multiprocessor that a split reduction should have
    cluster_words: int = 32  # 32-bit registers for a thread's part of a cluster's row
    cluster_threads: int = 512  # of a block, from where a cluster shares the row
    merged_threads: int = 512  # of a row, from where stages share an exchange
    merged_words: int = 1 << 13  # of a part of a long row whose stages merge
    resident: int = 1024  # threads of a multiprocessor that keep so much
    resident_half: int = 1536  # as above, of fp16 or bf16 in large blocks, half as much
    cluster_bytes: int = 512 << 10  # worth a block where a cluster sums up all there is
    scan_words: int = 16  # 32-bit registers for a thread's running values, or twice it
    scan_threads: int = 512  # of a block, from where others share the row
    part_threads: int = 128  # of a block that has a part of a row
    part_tiles: int = 8  # vectors of a thread of those parts that are fetched
    part_slots: int = 4  # of these in shared memory
    part_blocks: int = 3  # of a multiprocessor, that process parts
    part_iterations: int = 8  # that make it worth the time until the first is scanned
    ahead_bytes: int = 8 << 20  # of the cache, summed up before they are scanned
    cache_bytes: int = 48 << 20  # of its cache that rows may take up
    chunk: int = 8192  # elements that are worth a block of a split reduction
    max_cluster: int = 8  # blocks that may share a row; before Hopper 0: no pipelines
    shared_bytes: int = 220 << 10  # of a multiprocessor, that its pipeline may have
    pipeline_from: int = 8192  # words of a row, beyond which it is fetched ahead
    pipeline_words: int = 64  # that a thread may keep of its part
    pipeline_bytes: int = 64 << 10  # of a part
    pipeline_threads: int = 512  # of a pipeline's block, one a multiprocessor
    pipeline_shared: int = 227 << 10  # bytes that its block may have in all
    rows_ahead: int = 2  # of which a pipeline has parts on their way
    spared: int = 4  # vectors of what is held that registers have room for
    sort_threads: int = 256  # of a block that sorts a tile by a digit
    sort_row_threads: int = 512  # of a block that sorts a row, at most
    sort_items: int = 16  # elements of a tile that a thread has; of 64 bits: half
    skinny_rows: int = 16  # of a product that a kernel computes, at most
    skinny_bytes: int = 1 << 22  # of its matrix, at least
    convolves: Convolves = by_library  # what is cuDNN's


GPU: Final = GpuConfig()
SCAN_FROM: Final = 64  # elements of a row that are worth a block
