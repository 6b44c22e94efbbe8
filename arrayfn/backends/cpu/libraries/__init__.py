"""The libraries that the CPU has: a table of providers, and their kernels.

A provider is called by the same runner as kernels are, without the GIL where a plan
runs long, and from any thread: it touches no Python object.
"""

from __future__ import annotations

from functools import cache
from typing import Final

from arrayfn.backends.cpu.libraries import (
    callbacks,
    clock,
    fourier,
    gemm,
    packed_gemm,
    sorting,
    sparse,
    windows,
)
from arrayfn.backends.cpu.libraries.foreign import parameters_of
from arrayfn.backends.cpu.libraries.linear_algebra import (
    factors,
    general,
    small,
    symmetric,
    triangular,
)
from arrayfn.backends.cpu.libraries.provider import Provider
from arrayfn.errors import BackendError

PROVIDERS: Final[dict[str, Provider]] = {
    **callbacks.PROVIDERS,
    **clock.PROVIDERS,
    **gemm.PROVIDERS,
    **packed_gemm.PROVIDERS,
    **windows.PROVIDERS,
    **sorting.PROVIDERS,
    **fourier.PROVIDERS,
    **triangular.PROVIDERS,
    **factors.PROVIDERS,
    **small.PROVIDERS,
    **symmetric.PROVIDERS,
    **general.PROVIDERS,
    **sparse.PROVIDERS,
}


def provider_of(name: str) -> Provider:
    """The provider called ``name``, as ``"gemm_f32"``."""
    stem, _, _ = name.rpartition("_")
    if stem not in PROVIDERS:
        raise BackendError(f"the CPU backend has no library kernel {name!r}")
    return PROVIDERS[stem]


def provider_arguments(name: str) -> tuple[int, ...]:
    """A provider's leading arguments, such as addresses of library functions.

    They do not depend on the call; those that are constants are left out. ``name`` is
    the provider's with its dtype, as "gemm_f32".
    """
    constants = provider_constants(name)
    return tuple(x for k, x in enumerate(leading_values(name)) if k not in constants)


def provider_constants(name: str) -> dict[int, int]:
    """The values of a provider's parameters that are fixed, by position.

    ``name`` is the provider's with its dtype, as "gemm_f32".
    """
    kernel = provider_of(name).kernel
    kinds = parameters_of(kernel, name.rpartition("_")[2]) if kernel else ()
    values = zip(kinds, leading_values(name), strict=False)
    return {k: x for k, (p, x) in enumerate(values) if p.kind == "constant"}


@cache
def leading_values(name: str) -> tuple[int, ...]:
    """The values of all of a provider's leading parameters.

    ``name`` is the provider's with its dtype. Raises BackendError for an unknown one.
    """
    try:
        return provider_of(name).leading_arguments(name.rpartition("_")[2])
    except KeyError:
        raise BackendError(f"the CPU backend has no library kernel {name!r}") from None
