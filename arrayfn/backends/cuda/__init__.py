"""The CUDA backend: kernels, libraries and memory of an NVIDIA GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from arrayfn.backends.base import BackendInfo, Executable, TimedExecutable
from arrayfn.backends.cuda import attention, sparse_systems
from arrayfn.backends.cuda.requirements import missing_here, missing_packages
from arrayfn.errors import BackendError
from arrayfn.ir import Program
from arrayfn.lowering.options import DEFAULT, Options
from arrayfn.lowering.plan_runners import RUNNERS

if TYPE_CHECKING:
    from arrayfn.backends.cuda.device_array import DeviceArray
    from arrayfn.lowering.compiled import CompiledProgram
    from arrayfn.lowering.plan import Kernel

# Modules that need a GPU or CUDA's packages are imported inside of the functions below,
# so that this module imports on any machine.

__all__ = ["CudaBackend", "missing_here", "missing_packages"]


def _try_plan(compiled: CompiledProgram) -> bool:
    """Run a small plan in the emulator, which checks its accesses to memory.

    Returns whether it ran; a plan that is too large does not.
    """
    from arrayfn.backends.cuda.checked_run import try_plan

    return try_plan(compiled)


RUNNERS["cuda"] = _try_plan
attention.register()
sparse_systems.register()

HOPPER: Final = (9, 0)
"""The compute capability of Hopper GPUs, such as the H200."""


class CudaBackend:
    """The backend that runs kernels on GPU ``number``, by default the first one."""

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.name = f"cuda:{number}" if number else "cuda"

    def info(self) -> BackendInfo:
        """Describe the backend: its requirements, and what this machine lacks."""
        return BackendInfo(
            self.name,
            "kernels through NVVM, and NVIDIA's libraries, on an NVIDIA GPU",
            ("numba-cuda", "cuda-bindings", "an NVIDIA driver for CUDA 13"),
            missing_here() or self._missing(),
        )

    def _missing(self) -> str:
        """Say why there is no GPU with this backend's number; "" if there is one.

        GPU 0 is not looked for: ``missing_here`` has done that.
        """
        if not self.number:
            return ""
        from arrayfn.backends.cuda.driver import gpu_count

        count = gpu_count()
        if self.number < count:
            return ""
        return f"there {'is' if count == 1 else 'are'} {count} here"

    def array_types(self) -> tuple[type, ...]:
        """Return the classes of this backend's arrays: DeviceArray."""
        from arrayfn.backends.cuda.device_array import DeviceArray

        return (DeviceArray,)

    def put(self, x: Any) -> DeviceArray:
        """Copy ``x``, an array or a number, to the memory of this GPU."""
        from arrayfn.backends.cuda.device_array import device_put
        from arrayfn.backends.cuda.driver import gpu, on

        with on(gpu(self.number)):
            return device_put(x)

    def lower(
        self, program: Program, donated: frozenset[int], options: Options = DEFAULT
    ) -> CompiledProgram:
        """Lower ``program`` to kernels and a plan for this machine's GPU.

        Without a GPU or numba-cuda, the kernels are for an H200. ``donated`` has the
        numbers of the arguments whose memory results may take over.
        """
        if missing_here():
            from arrayfn.lowering.cuda.lower import lower

            return lower(program, donated, options=options)
        from arrayfn.backends.cuda.driver import gpu, on

        with on(gpu(self.number)):
            # While the GPU was opened, a thread has imported these modules.
            from arrayfn.backends.cuda.this_gpu import config
            from arrayfn.lowering.cuda.lower import lower

            return lower(program, donated, gpu=config(), options=options)

    def load(self, compiled: CompiledProgram) -> Executable:
        """Load ``compiled`` as a callable. Raises BackendError without a GPU."""
        reason = missing_here()
        if reason:
            raise BackendError(f"backend 'cuda' is not available ({reason})")
        from arrayfn.backends.cuda.driver import gpu, on
        from arrayfn.backends.cuda.executable import Executable

        with on(gpu(self.number)):
            return Executable(compiled)

    def assembly(self, kernel: Kernel) -> str:
        """Compile ``kernel`` to PTX for this machine's GPU, or else for an H200.

        Raises BackendError where numba-cuda is not installed.
        """
        if reason := missing_packages():
            raise BackendError(f"PTX cannot be made: {reason}")
        from arrayfn.backends.cuda.code import kernel_ptx
        from arrayfn.backends.cuda.driver import gpu

        arch = HOPPER if missing_here() else gpu(self.number).arch
        return kernel_ptx(kernel, arch)

    def load_timed(self, compiled: CompiledProgram) -> TimedExecutable:
        """Load ``compiled`` as a callable that times each step by CUDA events."""
        from arrayfn.backends.cuda import timed
        from arrayfn.backends.cuda.driver import gpu, on

        with on(gpu(self.number)):
            return timed.TimedExecutable(compiled, self.name)
