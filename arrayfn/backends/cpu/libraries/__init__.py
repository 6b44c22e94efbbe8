"""The libraries that the CPU has: a table of providers, and their native routines.

A provider is called by the same runner as kernels are, without the GIL where a plan
runs long, and from any thread: it touches no Python object.
"""

from __future__ import annotations

from functools import cache
from typing import Final

from arrayfn.backends.cpu.libraries import callbacks, fourier, gemm, sparse
from arrayfn.backends.cpu.libraries.linear_algebra import (
    cholesky,
    eig,
    eigh,
    lu,
    qr,
    reductions,
    svd,
    triangular,
)
from arrayfn.backends.cpu.libraries.provider import Provider
from arrayfn.backends.cpu.libraries.sorting import sorting, top_k
from arrayfn.backends.cpu.libraries.windows import windows
from arrayfn.errors import BackendError

PROVIDERS: Final[dict[str, Provider]] = {
    **callbacks.PROVIDERS,
    **gemm.PROVIDERS,
    **windows.PROVIDERS,
    **triangular.PROVIDERS,
    **sorting.PROVIDERS,
    **top_k.PROVIDERS,
    **fourier.PROVIDERS,
    **cholesky.PROVIDERS,
    **lu.PROVIDERS,
    **qr.PROVIDERS,
    **eigh.PROVIDERS,
    **eig.PROVIDERS,
    **svd.PROVIDERS,
    **reductions.PROVIDERS,
    **sparse.PROVIDERS,
}


def provider_of(name: str) -> Provider:
    """The provider called ``name``, as ``"gemm_f32"``."""
    stem, _, _ = name.rpartition("_")
    if stem not in PROVIDERS:
        raise BackendError(f"the CPU backend has no library kernel {name!r}")
    return PROVIDERS[stem]


@cache
def provider_words(name: str) -> tuple[int, ...]:
    """The words before a provider's own arguments."""
    dtype = name.rpartition("_")[2]
    try:
        return provider_of(name).words(dtype)
    except KeyError:
        raise BackendError(f"the CPU backend has no library kernel {name!r}") from None
