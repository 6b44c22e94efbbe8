"""Libraries and features that backends use or could use, called parts.

``backend_info`` describes parts as well as backends. No Program runs on a part.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
from collections.abc import Callable
from functools import cache
from typing import Final

from arrayfn.backends.base import BackendInfo
from arrayfn.backends.cuda.requirements import missing_here
from arrayfn.records import frozen

Check = Callable[[], str]


@frozen
class Part:
    """A library or feature that ``backend_info`` describes but no Program runs on.

    ``requires`` lists what it needs. ``missing()`` says why backends do not use it on
    this machine, or returns "" if they do.
    """

    description: str
    requires: tuple[str, ...]
    missing: Check

    def info(self, name: str) -> BackendInfo:
        """Return the answer of ``backend_info(name)`` for this part."""
        return BackendInfo(
            name, self.description, self.requires, self.missing(), kind="part"
        )


def _never(reason: str) -> Check:
    """Return the check of a part that is used on no machine, for this ``reason``."""
    return lambda: reason


def _packages(*modules: str, install: str) -> str:
    """Return which of ``modules`` are not installed, as a sentence; "" if all are.

    ``install`` is the command that installs them.
    """
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if not missing:
        return ""
    verb = "is" if len(missing) == 1 else "are"
    return f"{' and '.join(missing)} {verb} not installed: {install}"


def _missing_on_gpu(*modules: str, install: str) -> str:
    """Return what the cuda backend and ``modules`` lack on this machine, or ""."""
    reasons = missing_here(), _packages(*modules, install=install)
    return "; ".join(filter(None, reasons))


@cache
def _missing_mkl() -> str:
    """Return why matrix products do not use MKL on this machine; "" if they do."""
    from arrayfn.backends.cpu.libraries.blas import blas_file

    library = ctypes.CDLL(blas_file())
    if hasattr(library, "MKL_Get_Max_Threads"):
        return ""
    return (
        "SciPy's BLAS is not MKL (it is OpenBLAS in wheels of PyPI): install a SciPy "
        "that is linked with MKL, as conda's 'libblas=*=*mkl'"
    )


def _missing_mps() -> str:
    """Return why Metal is not used on this machine: arrayfn has no backend for it."""
    where = f"this machine runs {platform.system()} on {platform.machine()}"
    has_metal = platform.system() == "Darwin" and platform.machine() == "arm64"
    reason = "there is no backend for Metal: use 'cpu'"
    return reason if has_metal else f"{where}; {reason}"


def _missing_xeon() -> str:
    """Return why processes are not bound to cores: arrayfn has no launcher."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    cores = f"; {count} cores are given to this process" if count else ""
    return (
        "there is no launcher that binds processes to cores: use taskset or numactl, "
        f"and arrayfn.set_num_threads{cores}"
    )


_CUDNN: Final = "pip install 'arrayfn[cuda-libraries]'"

PARTS: Final[dict[str, Part]] = {
    "cudnn": Part(
        "NVIDIA's convolutions and attention, on backend 'cuda'; without it generated "
        "kernels compute attention",
        ("backend 'cuda'", "nvidia-cudnn-cu13", "nvidia-cudnn-frontend"),
        lambda: _missing_on_gpu("cudnn", install=_CUDNN),
    ),
    "mha": Part(
        "attention as one kernel on backend 'cuda', forward and backward, for float16 "
        "and bfloat16: arrayfn.nn.dot_product_attention",
        ("backend 'cuda'",),
        missing_here,
    ),
    "mkl": Part(
        "Intel's BLAS and LAPACK, which backend 'cpu' calls where SciPy is linked with "
        "it",
        ("a SciPy that is linked with MKL",),
        _missing_mkl,
    ),
    "mkldnn": Part(
        "oneDNN, Intel's neural-network kernels; backend 'cpu' generates its own",
        ("a provider of its convolutions and products",),
        _never(
            "arrayfn does not call oneDNN: its kernels are generated, its products "
            "are BLAS or micro-kernels"
        ),
    ),
    "openmp": Part(
        "threads of a compiler's runtime; backend 'cpu' has a thread pool of its own",
        ("nothing: see arrayfn.set_num_threads",),
        _never("kernels run on arrayfn's own threads, not on OpenMP's"),
    ),
    "nnpack": Part(
        "convolutions for phones' CPUs; backend 'cpu' generates its own",
        ("a provider of its convolutions",),
        _never("arrayfn does not call NNPACK: its convolutions are generated"),
    ),
    "triton": Part(
        "kernels of operators for backend 'cuda', by arrayfn.adapters.triton",
        ("backend 'cuda'", "triton", "torch"),
        lambda: _missing_on_gpu("triton", "torch", install="pip install triton torch"),
    ),
    "cusparselt": Part(
        "NVIDIA's products of matrices with 2 of 4 elements zero",
        ("backend 'cuda'", "a layout for 2:4 sparse matrices"),
        _never(
            "there is no 2:4 layout: sparse matrices are CSR, CSC and COO "
            "(arrayfn.sparse)"
        ),
    ),
    "opt_einsum": Part(
        "the order in which einsum contracts several operands",
        ("opt_einsum",),
        lambda: _packages("opt_einsum", install="pip install opt_einsum"),
    ),
    "mps": Part(
        "GPUs of Apple's processors",
        ("macOS on an Apple processor", "a backend for Metal"),
        _missing_mps,
    ),
    "nki": Part(
        "kernels for AWS Trainium and Inferentia",
        ("an AWS Neuron device", "neuronxcc", "a backend for it"),
        _never(
            "there is no backend for Neuron devices: a package may register one "
            "(arrayfn.register_backend)"
        ),
    ),
    "xeon": Part(
        "a launcher for servers with Intel Xeon processors; kernels of backend 'cpu' "
        "use the instructions of the machine, AVX-512 included, without it",
        ("nothing: see arrayfn.set_num_threads",),
        _missing_xeon,
    ),
}
