"""Machine code, loaded: kernels that the driver can launch."""

from __future__ import annotations

import ctypes
from typing import Final

from arrayfn.backends.cuda.driver import device

# CUdevice_attribute, and what cuFuncGetAttribute and cuFuncSetAttribute take.
_SHARED_OF_MULTIPROCESSOR: Final = 81
_SHARED_OF_DRIVER: Final = 111  # of each block
_SHARED_OF_ARRAYS: Final = 1
_SHARED_BYTES: Final = 8
_CARVEOUT: Final = 9
_LARGE_CLUSTERS: Final = 14

_PORTABLE_CLUSTER: Final = 8  # blocks


def load(
    cubin: bytes, entry: str, shared: int = 0, cluster: int = 1, blocks: int = 0
) -> int:
    """The kernel ``entry`` of a cubin, or of PTX, for so much shared memory; it stays.

    ``cluster`` blocks of it run together. A multiprocessor's memory is all shared
    memory, or as much as ``blocks`` need: the rest is its first cache, where loads
    that are under way have their places.
    """
    gpu = device()
    gpu.enter()
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    gpu.check(gpu.library.cuModuleLoadData(ctypes.byref(module), cubin))
    status = gpu.library.cuModuleGetFunction(
        ctypes.byref(function), module, entry.encode()
    )
    gpu.check(status)
    if shared:
        whole = gpu.attribute(_SHARED_OF_MULTIPROCESSOR)
        used = blocks * (shared + _shared_beside(function)) or whole
        carveout = min(100, -(-100 * used // whole))
        for attribute, value in ((_SHARED_BYTES, shared), (_CARVEOUT, carveout)):
            status = gpu.library.cuFuncSetAttribute(function, attribute, value)
            gpu.check(status, f"for {shared:,} bytes of shared memory")
    if cluster > _PORTABLE_CLUSTER:
        status = gpu.library.cuFuncSetAttribute(function, _LARGE_CLUSTERS, 1)
        gpu.check(status, f"for clusters of {cluster} blocks")
    return int(function.value or 0)


def _shared_beside(function: ctypes.c_void_p) -> int:
    """Bytes of shared memory that the driver has of a block, and a kernel's arrays."""
    gpu, arrays = device(), ctypes.c_int()
    status = gpu.library.cuFuncGetAttribute(
        ctypes.byref(arrays), _SHARED_OF_ARRAYS, function
    )
    gpu.check(status)
    return arrays.value + gpu.attribute(_SHARED_OF_DRIVER)
