"""Loads kernels' machine code, and unloads it when no plan launches it any more.

Plans and graphs hold the ``LoadedKernel`` of each kernel that they launch. When the
last reference to a ``LoadedKernel`` is dropped, the kernel's module is unused. It is
not unloaded at once: the kernel may still be running, and the interpreter may be in the
middle of anything when an object dies. ``unload_unused`` waits for the GPU first.
"""

from __future__ import annotations

import ctypes
from collections import deque
from typing import Final
from weakref import finalize

from arrayfn.backends.cuda.driver import Device, device
from arrayfn.caches import frees

# CUdevice_attribute: bytes of shared memory of a multiprocessor, and those that the
# driver reserves in each block.
_SHARED_OF_MULTIPROCESSOR: Final = 81
_SHARED_OF_DRIVER: Final = 111
# CUfunction_attribute: bytes of static shared arrays, bytes of dynamic shared memory,
# percent of on-chip memory that is shared memory, clusters of more than 8 blocks.
_SHARED_OF_ARRAYS: Final = 1
_SHARED_BYTES: Final = 8
_CARVEOUT: Final = 9
_LARGE_CLUSTERS: Final = 14

_PORTABLE_CLUSTER: Final = 8  # blocks of a cluster that need no attribute

_unused: Final[deque[tuple[Device, int]]] = deque()
"""(GPU, CUmodule) of each module whose ``LoadedKernel`` was dropped."""


class LoadedKernel:
    """A kernel that the driver can launch, until this object is dropped."""

    __slots__ = ("__weakref__", "function")

    def __init__(self, module: int, function: int) -> None:
        """Own ``module``, a CUmodule, for its kernel ``function``, a CUfunction.

        When this object is dropped, the module is appended to ``_unused``.
        """
        self.function = function
        # Not __del__, during which another thread could revive the object.
        finalize(self, _unused.append, (device(), module)).atexit = False


def load(
    cubin: bytes, entry: str, shared: int = 0, cluster: int = 1, blocks: int = 0
) -> LoadedKernel:
    """Load the kernel ``entry`` of a cubin, or of PTX, and set its launch attributes.

    A block of the kernel has ``shared`` bytes of dynamic shared memory, and ``cluster``
    blocks form a cluster. A multiprocessor's on-chip memory is divided into shared
    memory and L1 cache, which also holds the loads in flight. The shared memory is made
    as large as ``blocks`` blocks need, or as large as possible if ``blocks`` is 0.
    """
    gpu = device()
    gpu.make_current()
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    gpu.check(gpu.library.cuModuleLoadData(ctypes.byref(module), cubin))
    status = gpu.library.cuModuleGetFunction(
        ctypes.byref(function), module, entry.encode()
    )
    gpu.check(status)
    # Load the code here: otherwise the first launch loads it, and may have to wait for
    # a collective that is running.
    gpu.check(gpu.library.cuFuncLoad(function))
    if shared:
        available = gpu.attribute(_SHARED_OF_MULTIPROCESSOR)
        needed = blocks * (shared + _other_shared_bytes(function)) or available
        carveout = min(100, -(-100 * needed // available))  # in percent, rounded up
        for attribute, value in ((_SHARED_BYTES, shared), (_CARVEOUT, carveout)):
            status = gpu.library.cuFuncSetAttribute(function, attribute, value)
            gpu.check(status, f"for {shared:,} bytes of shared memory")
    if cluster > _PORTABLE_CLUSTER:
        status = gpu.library.cuFuncSetAttribute(function, _LARGE_CLUSTERS, 1)
        gpu.check(status, f"for clusters of {cluster} blocks")
    return LoadedKernel(int(module.value or 0), int(function.value or 0))


def _other_shared_bytes(function: ctypes.c_void_p) -> int:
    """Return the bytes of a block's shared memory that are not dynamic.

    These are the static arrays of ``function``, and the bytes that the driver reserves.
    """
    gpu, arrays = device(), ctypes.c_int()
    status = gpu.library.cuFuncGetAttribute(
        ctypes.byref(arrays), _SHARED_OF_ARRAYS, function
    )
    gpu.check(status)
    return arrays.value + gpu.attribute(_SHARED_OF_DRIVER)


def unload_unused(minimum: int = 1) -> None:
    """Unload the unused modules of this thread's GPU.

    Does nothing if all GPUs together have fewer than ``minimum`` unused modules, or
    while a graph is captured. Waits first until all enqueued work has run, since it may
    include kernels of these modules. Graphs keep their kernels loaded, so no graph
    refers to an unused module.
    """
    if len(_unused) < minimum:
        return
    gpu = device()
    if not gpu.capture_lock.acquire(blocking=False):
        return
    try:
        # Take the list before the wait: a kernel that is dropped during the wait may
        # still be running after it.
        unused = [_unused.popleft() for _ in range(len(_unused))]
        gpu.synchronize()
        gpu.make_current()
        for module_gpu, module in unused:
            if module_gpu is gpu:
                gpu.check(gpu.library.cuModuleUnload(ctypes.c_void_p(module)))
            else:
                _unused.append((module_gpu, module))
    finally:
        gpu.capture_lock.release()


frees(unload_unused)
