"""The machine: the cores that this process may use, and the length of vectors.

The bits of results must not depend on the number of cores. On the kind of processor,
and so on the length of its vectors, they do, as BLAS's do.
"""

from __future__ import annotations

import ctypes
import importlib
import math
import os
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final

from arrayfn.errors import ArgumentError

THREADS_VARIABLE: Final = "ARRAYFN_NUM_THREADS"
MAX_THREADS: Final = 256  # of the pool
_NUMPY: Final = "numpy._core._multiarray_umath"
_LONG_VECTORS: Final = "SkylakeX", "Cooperlake", "SapphireRapids"
"""OpenBLAS's kernels with vectors of 512 bits."""
_GROUPS: Final = Path("/sys/fs/cgroup")


@cache
def cores() -> int:
    """Return the number of threads: ``ARRAYFN_NUM_THREADS``, or the usable CPUs.

    Raises ArgumentError for a wrong value of the variable.
    """
    text = os.environ.get(THREADS_VARIABLE)
    if text is None:
        return min(usable_cpus(), MAX_THREADS)
    if not text.isdecimal() or not 1 <= int(text) <= MAX_THREADS:
        raise ArgumentError(
            f"{THREADS_VARIABLE}={text!r}: it is a number from 1 to {MAX_THREADS}"
        )
    return int(text)


def usable_cpus() -> int:
    """Return the number of processors that this process can keep busy.

    A cgroup (as of a container) may limit the process to the time of fewer processors
    than it may run on.
    """
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count() or 1
    return max(1, min([count, *map(math.ceil, _quotas(_own_group(), _GROUPS))]))


@cache
def vector_bytes() -> int:
    """Return the bytes of the longest vectors of floating-point instructions.

    The result is 64 on x86 with AVX-512 as servers have it since Skylake (F, CD, BW,
    DQ, VL), else 32, even if vectors are shorter. NumPy knows the processor's features.
    """
    module = importlib.import_module(_NUMPY)
    features: Mapping[str, bool] = vars(module)["__cpu_features__"]
    # NumPy calls this group X86_V4 from 2.4 on.
    has_512_bits = features.get("X86_V4") or features.get("AVX512_SKX")
    return 64 if has_512_bits else 32


@cache
def blas_vector_bytes() -> int:
    """Return the bytes of the vectors that NumPy's BLAS uses, 32 or 64.

    OpenBLAS names its kernels by the processor that it was detected as. Any other
    library is assumed to use the longest vectors.
    """
    kernels = openblas_kernels()
    return vector_bytes() if not kernels or kernels in _LONG_VECTORS else 32


def openblas_kernels() -> str:
    """Return the processor whose kernels NumPy's OpenBLAS runs, such as "Haswell".

    Empty for other libraries.
    """
    name = getattr(numpy_library(), "scipy_openblas_get_corename64_", None)
    if name is None:
        return ""
    name.restype = ctypes.c_char_p
    return str(name().decode())


def numpy_library() -> ctypes.CDLL:
    """Return NumPy's extension module, through which the BLAS in it is called."""
    return ctypes.CDLL(str(importlib.import_module(_NUMPY).__file__))


def properties() -> tuple[str, ...]:
    """Return the properties of this machine that plans depend on, for cache keys."""
    vectors = f"vectors {vector_bytes()}", f"BLAS's vectors {blas_vector_bytes()}"
    return f"cores {cores()}", *vectors


def _own_group() -> str:
    """Return the path of this process's cgroup: of version 2, or for CPUs in version 1.

    It is the first such line of /proc/self/cgroup; "/" if there is none.
    """
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return "/"
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "cpu", "cpu,cpuacct"):
            return path
    return "/"


def _quotas(group: str, root: Path) -> Iterator[float]:
    """Yield the processor quotas of the cgroup ``group`` and of its parents.

    A quota is a number of processors. ``root`` is the folder where cgroups are mounted.
    The files of version 2 and of version 1 are tried.
    """
    for base, files in ((root, ("cpu.max",)), (root / "cpu", _VERSION_1)):
        folder = base / group.lstrip("/")
        while folder.is_relative_to(base):
            quota = _quota([folder / name for name in files])
            if quota is not None:
                yield quota
            if folder == base:
                break
            folder = folder.parent


_VERSION_1: Final = "cpu.cfs_quota_us", "cpu.cfs_period_us"


def _quota(files: list[Path]) -> float | None:
    """Return a cgroup's quota in processors, read from its ``files``, or None.

    The files hold two numbers: the microseconds of processor time in each period, and
    the period.
    """
    try:
        words = [word for file in files for word in file.read_text().split()]
        quota, period = words
        return int(quota) / int(period) if int(quota) > 0 else None
    except (OSError, ValueError, ZeroDivisionError):  # none, or "max"
        return None
