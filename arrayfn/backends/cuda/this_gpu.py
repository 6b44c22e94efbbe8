"""The GPU of this machine: its numbers, which lowering takes, and its memory in use."""

from __future__ import annotations

from dataclasses import replace

from arrayfn.backends.cuda import HOPPER, missing_here
from arrayfn.backends.cuda.convolution_algorithms import choose_algorithm
from arrayfn.backends.cuda.driver import device, per_device
from arrayfn.backends.cuda.memory import MemoryStats
from arrayfn.errors import BackendError
from arrayfn.lowering.cuda.config import GPU, GpuConfig


@per_device
def config() -> GpuConfig:
    """The numbers of the GPU here. Before Hopper nothing copies beside a block."""
    here = device()
    cluster = GPU.max_cluster if here.arch >= HOPPER else 0
    return replace(
        GPU,
        multiprocessors=here.multiprocessors,
        max_cluster=cluster,
        choose_convolution=choose_algorithm,
    )


def memory_stats() -> MemoryStats:
    """The GPU's memory in use and reserved now. Raises BackendError without a GPU."""
    reason = missing_here()
    if reason:
        raise BackendError(f"backend 'cuda' is not available ({reason})")
    return device().memory_stats()
