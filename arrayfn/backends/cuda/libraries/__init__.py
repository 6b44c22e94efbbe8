"""Calls that Python enqueues: NVIDIA's libraries besides matrix products, operators.

A *provider* prepares the calls of one kind. It gets the integers of a call once, when a
plan is loaded, and returns a ``Call``, which enqueues the work on a stream for given
addresses of its arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from arrayfn.backends.cuda.libraries import (
    collectives,
    convolutions,
    fourier,
    host,
    solvers,
    spectra,
)
from arrayfn.backends.cuda.libraries.calls import Call
from arrayfn.errors import BackendError

Provider = Callable[[str, Mapping[str, int]], Call]

PROVIDERS: Final[dict[str, Provider]] = {
    "collective": collectives.collective,
    "operator": host.operator,
    "reference": host.reference,
    "convolution": convolutions.convolve,
    "potrf": solvers.cholesky,
    "trsm": solvers.triangular,
    "trsmbatched": solvers.small_triangular,
    "getrf": solvers.lu,
    "geqrf": solvers.reflections,
    **spectra.SPECTRA,
    **{
        kind: partial(fourier.transform, kind)
        for kind in ("fft", "ifft", "rfft", "irfft")
    },
}
"""The provider of each kind of library kernel: the first word of the kernel's name.

It is called with the other words, such as the dtype "f32", and the call's integers.
"""


def call(provider: str, integers: Mapping[str, int]) -> Call:
    """Prepare the call of a library kernel, such as "potrf_f32".

    ``integers`` are its integer parameters by name. Raises BackendError for an unknown
    name.
    """
    kind, _, dtype = provider.partition("_")
    if kind not in PROVIDERS:
        raise BackendError(f"no library on a GPU computes {provider}")
    return PROVIDERS[kind](dtype, integers)
