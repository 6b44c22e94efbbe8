"""What a machine lacks to run kernels on a GPU, and how to get it."""

from __future__ import annotations

import ctypes
import importlib.util
from typing import Any, Final

_PACKAGES: Final = {"numba_cuda": "numba-cuda", "cuda.bindings": "cuda-bindings"}
_INSTALL: Final = "pip install 'arrayfn[cuda]'"
_MIN_DRIVER: Final = 13000  # CUDA 13.0, as cuDriverGetVersion says it
_MIN_ARCH: Final = (8, 0)  # compute capability
_ATTRIBUTE_MAJOR, _ATTRIBUTE_MINOR = 75, 76  # of cuDeviceGetAttribute
_DRIVER: Final = "install one for CUDA 13, version 580 or later"


def missing_here() -> str:
    """Say what this machine lacks to run kernels, and the remedy; "" if nothing."""
    return "; ".join(filter(None, (missing_packages(), missing_gpu())))


def missing_packages() -> str:
    """Say which packages are missing to compile kernels to PTX; "" if none."""
    missing = [name for module, name in _PACKAGES.items() if not _is_found(module)]
    if not missing:
        return ""
    return f"{' and '.join(missing)} not installed: {_INSTALL}"


def _is_found(module: str) -> bool:
    """Whether ``module`` is installed; it is not imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package that contains it is not installed
        return False


def missing_gpu() -> str:
    """Say what is wrong with the driver or the first GPU; "" if nothing is.

    There may be no driver, an old one, no GPU, or one older than Ampere.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return f"there is no NVIDIA driver (libcuda.so.1 was not found): {_DRIVER}"
    version, count = ctypes.c_int(), ctypes.c_int()
    driver.cuDriverGetVersion(ctypes.byref(version))
    if version.value < _MIN_DRIVER:
        cuda = f"{version.value // 1000}.{version.value % 1000 // 10}"
        return f"the NVIDIA driver is one for CUDA {cuda}: {_DRIVER}"
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) or not count:
        return (
            "the NVIDIA driver finds no GPU: nvidia-smi says what it sees, and "
            "CUDA_VISIBLE_DEVICES may hide it"
        )
    arch = tuple(_attribute(driver, k) for k in (_ATTRIBUTE_MAJOR, _ATTRIBUTE_MINOR))
    if arch < _MIN_ARCH:
        return (
            f"the GPU has compute capability {arch[0]}.{arch[1]}: kernels are for 8.0 "
            "(Ampere) or more"
        )
    return ""


def _attribute(driver: Any, attribute: int) -> int:
    """Return the value of a CUdevice_attribute of the first GPU."""
    value = ctypes.c_int()
    driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, 0)
    return value.value
