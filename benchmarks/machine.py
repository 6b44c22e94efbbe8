"""What the numbers were measured on: processor, versions, and the speed of a copy."""

from __future__ import annotations

import os
import platform
import sys
import threading
from functools import cache
from importlib import metadata
from pathlib import Path

import numpy as np

from benchmarks.timing import take_turns

PACKAGES = ("arrayfn", "jax", "numba", "llvmlite", "numpy", "scipy", "numexpr", "torch")


def describe() -> dict[str, str]:
    """The processor, the load at the start, and the versions in use, as text."""
    with Path("/proc/cpuinfo").open() as lines:
        fields = dict(
            (part.strip() for part in line.split(":", 1))
            for line in lines
            if ":" in line
        )
    flags = fields.get("flags", "").split()
    simd = [flag for flag in ("avx2", "fma", "avx512f", "amx_bf16") if flag in flags]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": fields.get("model name", platform.machine()),
        "usable CPUs": str(usable_cpus()),
        "vector units": " ".join(simd),
        "memory": f"{memory / 2**30:.0f} GiB",
        "kernel": platform.release(),
        "python": sys.version.split()[0],
        "versions": ", ".join(_versions()),
        "load average": f"{os.getloadavg()[0]:.2f} (an idle machine is assumed)",
    }


def usable_cpus() -> int:
    """The CPUs this process may run on."""
    return len(os.sched_getaffinity(0))


def _versions() -> list[str]:
    installed = {dist.metadata["Name"] for dist in metadata.distributions()}
    return [
        f"{name} {metadata.version(name)}" for name in PACKAGES if name in installed
    ]


@cache
def copy_speed(nbytes: int) -> float:
    """Bytes read and written a second by the best copy of ``nbytes`` to ready memory.

    The better of one `numpy.copyto` and one per CPU, each on a part.
    """
    count = max(nbytes // 8, 64)
    source, target = np.ones(count), np.zeros(count)
    workers = usable_cpus()
    parts = [
        slice(count * i // workers, count * (i + 1) // workers) for i in range(workers)
    ]

    def alone() -> None:
        np.copyto(target, source)

    def shared() -> None:
        threads = [
            threading.Thread(target=np.copyto, args=(target[part], source[part]))
            for part in parts
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    timings = take_turns({"alone": alone, "shared": shared}, budget_s=0.1)
    return 2 * source.nbytes / min(timing.median for timing in timings.values())
