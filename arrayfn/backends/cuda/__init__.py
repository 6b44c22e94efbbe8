"""The CUDA backend: kernels, libraries and memory of an NVIDIA GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from arrayfn.backends.base import BackendInfo, Executable, TimedExecutable
from arrayfn.backends.cuda import attention, sparse_systems
from arrayfn.backends.cuda.checked_run import try_plan
from arrayfn.backends.cuda.device_array import DeviceArray, device_put, from_dlpack
from arrayfn.backends.cuda.driver import device, gpu, gpu_count, on, per_device
from arrayfn.backends.cuda.memory import MemoryStats
from arrayfn.backends.cuda.requirements import missing_here, missing_packages
from arrayfn.errors import BackendError
from arrayfn.ir import Program
from arrayfn.lowering.compiled import CompiledProgram
from arrayfn.lowering.cuda.config import GPU, GpuConfig
from arrayfn.lowering.options import DEFAULT, Options
from arrayfn.lowering.plan import Kernel
from arrayfn.lowering.plan_runners import RUNNERS

__all__ = [
    "CudaBackend",
    "DeviceArray",
    "device_put",
    "from_dlpack",
    "memory_stats",
    "missing_here",
    "missing_packages",
]

RUNNERS["cuda"] = try_plan
attention.register()
sparse_systems.register()

_HOPPER: Final = (9, 0)


class CudaBackend:
    """Kernels on an NVIDIA GPU, by default the first one."""

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.name = f"cuda:{number}" if number else "cuda"

    def info(self) -> BackendInfo:
        """The backend's requirements, and which of them this machine lacks."""
        return BackendInfo(
            self.name,
            "kernels through NVVM, and NVIDIA's libraries, on an NVIDIA GPU",
            ("numba-cuda", "cuda-bindings", "an NVIDIA driver for CUDA 13"),
            missing_here() or self._missing(),
        )

    def _missing(self) -> str:
        """Say why there is no GPU of this number; empty if there is one."""
        count = gpu_count() if self.number else 1
        if self.number < count:
            return ""
        return f"there {'is' if count == 1 else 'are'} {count} here"

    def array_types(self) -> tuple[type, ...]:
        """The types of arrays on the GPU."""
        return (DeviceArray,)

    def put(self, x: Any) -> DeviceArray:
        """Copy ``x``, an array or a number, to the memory of this GPU."""
        with on(gpu(self.number)):
            return device_put(x)

    def lower(
        self, program: Program, donated: frozenset[int], options: Options = DEFAULT
    ) -> CompiledProgram:
        """Lower ``program`` to kernels and a plan, for the GPU here or else an H200.

        Needs neither a GPU nor numba-cuda.
        """
        from arrayfn.lowering.cuda.lower import lower

        if missing_here():
            return lower(program, donated, options=options)
        with on(gpu(self.number)):
            return lower(program, donated, gpu=_config(), options=options)

    def load(self, compiled: CompiledProgram) -> Executable:
        """Load ``compiled`` as a callable. Raises BackendError without a GPU."""
        reason = missing_here()
        if reason:
            raise BackendError(f"backend 'cuda' is not available ({reason})")
        from arrayfn.backends.cuda.executable import Executable

        with on(gpu(self.number)):
            return Executable(compiled)

    def assembly(self, kernel: Kernel) -> str:
        """Compile ``kernel`` to PTX, for the GPU here or, if none, an H200.

        Raises BackendError where numba-cuda is not installed.
        """
        if reason := missing_packages():
            raise BackendError(f"PTX cannot be made: {reason}")
        from arrayfn.backends.cuda.code import kernel_ptx

        here = _HOPPER if missing_here() else gpu(self.number).arch
        return kernel_ptx(kernel, here)

    def load_timed(self, compiled: CompiledProgram) -> TimedExecutable:
        """Load ``compiled`` as a callable with an event after each step."""
        from arrayfn.backends.cuda import timed

        with on(gpu(self.number)):
            return timed.TimedExecutable(compiled, self.name)


@per_device
def _config() -> GpuConfig:
    """The configuration of the GPU here. Before Hopper there are no clusters."""
    from arrayfn.backends.cuda.convolution_algorithms import choose_algorithm

    here = device()
    cluster = GPU.max_cluster if here.arch >= _HOPPER else 0
    return replace(
        GPU,
        multiprocessors=here.multiprocessors,
        max_cluster=cluster,
        choose_convolution=choose_algorithm,
    )


def memory_stats() -> MemoryStats:
    """The amounts of GPU memory that are in use and reserved now.

    Raises BackendError without a GPU.
    """
    reason = missing_here()
    if reason:
        raise BackendError(f"backend 'cuda' is not available ({reason})")
    return device().memory_stats()
