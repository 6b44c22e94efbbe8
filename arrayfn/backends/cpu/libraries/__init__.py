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
    """Return the provider for ``name``, which ends with a dtype: "gemm_f32".

    Raises BackendError for an unknown name.
    """
    stem, _, _ = name.rpartition("_")
    if stem not in PROVIDERS:
        raise BackendError(f"the CPU backend has no library kernel {name!r}")
    return PROVIDERS[stem]


def provider_arguments(name: str) -> tuple[int, ...]:
    """Return the first arguments of a library kernel, such as addresses of functions.

    They are the same in every call. Those that are compiled into the kernel
    (``provider_constants``) are left out. ``name`` is the provider's with its dtype, as
    "gemm_f32".
    """
    constants = provider_constants(name)
    return tuple(x for k, x in enumerate(leading_values(name)) if k not in constants)


def provider_constants(name: str) -> dict[int, int]:
    """Return the values that are compiled into a library kernel, by position.

    These are the parameters annotated as ``Constant``. ``name`` is the provider's with
    its dtype, as "gemm_f32".
    """
    kernel = provider_of(name).kernel
    kinds = parameters_of(kernel, name.rpartition("_")[2]) if kernel else ()
    values = zip(kinds, leading_values(name), strict=False)
    return {k: x for k, (p, x) in enumerate(values) if p.kind == "constant"}


@cache
def leading_values(name: str) -> tuple[int, ...]:
    """Return the values of all leading parameters of a library kernel, in order.

    ``name`` is the provider's with its dtype, as "gemm_f32". Raises BackendError if the
    library does not have that dtype.
    """
    try:
        return provider_of(name).leading_arguments(name.rpartition("_")[2])
    except KeyError:
        raise BackendError(f"the CPU backend has no library kernel {name!r}") from None
