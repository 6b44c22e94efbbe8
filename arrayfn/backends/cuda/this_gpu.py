"""The GPU of this machine: its configuration for lowering, and its memory in use."""

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
    """Return the configuration of this thread's GPU, which lowering takes.

    GPUs before Hopper have no clusters: their ``max_cluster`` is 0.
    """
    gpu = device()
    cluster = GPU.max_cluster if gpu.arch >= HOPPER else 0
    return replace(
        GPU,
        multiprocessors=gpu.multiprocessors,
        max_cluster=cluster,
        choose_convolution=choose_algorithm,
    )


def memory_stats() -> MemoryStats:
    """Return how much GPU memory is in use and reserved.

    Raises BackendError without a GPU.
    """
    reason = missing_here()
    if reason:
        raise BackendError(f"backend 'cuda' is not available ({reason})")
    return device().memory_stats()
