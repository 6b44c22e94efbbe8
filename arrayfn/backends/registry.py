"""The backends there are, and which of them can be used here."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Final

from arrayfn.backends.base import Backend, BackendInfo
from arrayfn.backends.cpu import CpuBackend
from arrayfn.backends.cuda import CudaBackend
from arrayfn.backends.reference import ReferenceBackend, WideReferenceBackend
from arrayfn.errors import BackendError, user_location

BACKENDS: Final[dict[str, Backend]] = {
    backend.name: backend
    for backend in (
        CpuBackend(),
        CudaBackend(),
        ReferenceBackend(),
        WideReferenceBackend(),
    )
}


def available_backends() -> tuple[str, ...]:
    """The names of the backends that can be used here.

    >>> "reference" in available_backends()
    True
    """
    return tuple(name for name in BACKENDS if is_backend_available(name))


def is_backend_available(name: str) -> bool:
    """Whether backend ``name`` exists and can be used here."""
    return name in BACKENDS and not BACKENDS[name].info().missing


def backend_info(name: str) -> BackendInfo:
    """What backend ``name`` needs and supports, and why it is missing if it is.

    Raises BackendError if there is no such backend.
    """
    if name not in BACKENDS:
        raise BackendError(
            f"there is no backend {name!r}; there are " + ", ".join(BACKENDS)
        )
    return BACKENDS[name].info()


def choose(device: str | Sequence[str]) -> Backend:
    """The first of ``device`` that can be used; warns if it is not the first named.

    Raises BackendError, with what is missing, if none can.
    """
    names = (device,) if isinstance(device, str) else tuple(device)
    reasons: list[str] = []
    for name in names:
        info = backend_info(name)
        if not info.missing:
            if reasons:
                warnings.warn(
                    f"{'; '.join(reasons)}: using {name!r}", RuntimeWarning, 3
                )
            return BACKENDS[name]
        reasons.append(f"backend {name!r} is not available ({info.missing})")
    raise BackendError("; ".join(reasons) or "no device was named", user_location())
