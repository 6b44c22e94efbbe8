"""The CUDA backend: kernels for NVIDIA GPUs, compiled through numba-cuda."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
from dataclasses import replace
from functools import cache
from typing import Any, Final

from arrayfn.backends.base import BackendInfo, Executable
from arrayfn.backends.cuda.device_array import DeviceArray, device_put, from_dlpack
from arrayfn.backends.cuda.driver import device
from arrayfn.backends.cuda.memory import MemoryStats
from arrayfn.errors import BackendError
from arrayfn.ir import Program
from arrayfn.lowering.compiled import CompiledProgram
from arrayfn.lowering.cuda.config import GPU, GpuConfig
from arrayfn.lowering.options import DEFAULT, Options

__all__ = ["CudaBackend", "DeviceArray", "device_put", "from_dlpack", "memory_stats"]

# Imported when a Program is for a GPU: a process without one has no use for them.
_LOWER: Final = "arrayfn.lowering.cuda.lower"
_EXECUTABLE: Final = "arrayfn.backends.cuda.executable"
_CONVOLUTIONS: Final = "arrayfn.backends.cuda.convolution_ways"
_HOPPER: Final = (9, 0)
_INSTALL: Final = "pip install 'arrayfn[cuda]'"


class CudaBackend:
    """Kernels on an NVIDIA GPU."""

    name = "cuda"

    def info(self) -> BackendInfo:
        """What it needs, and which of that is missing here."""
        return BackendInfo(
            self.name,
            "numba-cuda kernels on an NVIDIA GPU",
            ("numba-cuda", "cuda-core", "an NVIDIA driver for CUDA 13"),
            missing_here(),
        )

    def array_types(self) -> tuple[type, ...]:
        """Arrays on the GPU."""
        return (DeviceArray,)

    def put(self, x: Any) -> DeviceArray:
        """A DeviceArray."""
        return device_put(x)

    def lower(
        self, program: Program, donated: frozenset[int], options: Options = DEFAULT
    ) -> CompiledProgram:
        """``program`` as kernels and a plan, for the GPU here or, if none, an H200.

        Needs neither a GPU nor numba-cuda.
        """
        lower = importlib.import_module(_LOWER).lower
        if missing_here():
            return lower(program, donated, options=options)
        return lower(program, donated, gpu=_config(), options=options)

    def load(self, compiled: CompiledProgram) -> Executable:
        """The callable of ``compiled``. Raises BackendError where there is no GPU."""
        reason = missing_here()
        if reason:
            raise BackendError(f"backend 'cuda' is not available ({reason})")
        return importlib.import_module(_EXECUTABLE).Executable(compiled)


@cache
def _config() -> GpuConfig:
    """The numbers of the GPU here. Before Hopper nothing copies beside a block."""
    gpu = device()
    cluster = GPU.most_cluster if gpu.arch >= _HOPPER else 0
    convolves = importlib.import_module(_CONVOLUTIONS).way_of
    return replace(
        GPU,
        multiprocessors=gpu.multiprocessors,
        most_cluster=cluster,
        convolves=convolves,
    )


def memory_stats() -> MemoryStats:
    """What the GPU's memory is used for now. Raises BackendError without a GPU."""
    reason = missing_here()
    if reason:
        raise BackendError(f"backend 'cuda' is not available ({reason})")
    return device().memory_stats()


def missing_here() -> str:
    """What this machine lacks to run kernels, and how to get it; empty if nothing."""
    packages = missing_packages()
    if packages:
        return packages
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return (
            "there is no NVIDIA driver: libcuda.so.1 was not found; kernels can be "
            "read, compiled to PTX and emulated without one"
        )
    count = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) or not count:
        return "the NVIDIA driver finds no GPU; nvidia-smi says what it sees"
    return ""


def missing_packages() -> str:
    """Which packages are missing to compile kernels to PTX; empty if none."""
    needed = {"numba_cuda": "numba-cuda", "cuda": "cuda-core"}
    missing = [
        package
        for module, package in needed.items()
        if importlib.util.find_spec(module) is None
    ]
    if not missing:
        return ""
    return f"{' and '.join(missing)} not installed: {_INSTALL}"
