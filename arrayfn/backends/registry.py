"""The backends there are, and which of them can be used here."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Final

from arrayfn.backends.base import Backend, BackendInfo
from arrayfn.backends.cpu import CpuBackend
from arrayfn.backends.cuda import CudaBackend
from arrayfn.backends.parts import PARTS
from arrayfn.backends.reference import ReferenceBackend, WideReferenceBackend
from arrayfn.errors import BackendError, user_location

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

BACKENDS: Final[dict[str, Backend]] = {}
ENTRY_POINTS: Final = "arrayfn.backends"
LATER: Final[dict[str, str]] = {}
"""Backends of later rooms by name, as "module:class": registered when asked for."""


def register_backend(backend: Backend, *, replace: bool = False) -> None:
    """Make ``backend`` known as ``jit(f, device=backend.name)``.

    A package registers its backends when it is installed, by entry points of the group
    ``arrayfn.backends``. An entry point names a class or function. arrayfn calls it
    without arguments to get a Backend. Entry points are imported when arrayfn does not
    know a backend by its name, or when it lists all backends.

    Raises BackendError if the name is taken, unless ``replace`` is set.

    >>> from arrayfn.backends.reference import ReferenceBackend
    >>> from arrayfn.backends.registry import BACKENDS
    >>> class Quiet(ReferenceBackend):
    ...     name = "quiet"
    >>> register_backend(Quiet())
    >>> is_backend_available("quiet")
    True
    >>> del BACKENDS["quiet"]
    """
    if backend.name in BACKENDS and not replace:
        raise BackendError(
            f"there is a backend {backend.name!r} already; pass replace=True to take "
            "its place",
            user_location(),
        )
    BACKENDS[backend.name] = backend


for _backend in CpuBackend, CudaBackend, ReferenceBackend, WideReferenceBackend:
    register_backend(_backend())


def get_backend(name: str) -> Backend:
    """Backend ``name``. Raises BackendError if there is none of that name.

    "cuda:1" is the second GPU; "cuda" and "cuda:0" are the first one.
    """
    if not has_backend(name):
        if name in PARTS:
            raise BackendError(
                f"{name!r} is not a backend to compute on, but a part that backends "
                f"may use ({PARTS[name].description}); there are "
                f"{', '.join(chosen_by_name())}",
                user_location(),
            )
        known = chosen_by_name()
        near = difflib.get_close_matches(name, (*known, *PARTS), 1, cutoff=0.7)
        if name.startswith("gpu"):
            near = ["cuda" + name[3:]]
        raise BackendError(
            f"there is no backend {name!r}; there are {', '.join(known)}"
            + "".join(f". Did you mean {found!r}?" for found in near),
            user_location(),
        )
    number = _gpu_number(name)
    if number > 0:
        return _other_gpu(number)
    return BACKENDS["cuda" if number == 0 else name]


def has_backend(name: str) -> bool:
    """Whether there is a backend ``name``, available here or not."""
    if name in BACKENDS or _gpu_number(name) >= 0:
        return True
    if name in LATER:
        module, _, made = LATER[name].partition(":")
        register_backend(getattr(import_module(module), made)(), replace=True)
    else:
        _load_entry_points()
    return name in BACKENDS


def chosen_by_name() -> list[str]:
    """The backends that can be named as a device, available here or not."""
    return [name for name in BACKENDS if BACKENDS[name].info().kind == "backend"]


def _gpu_number(name: str) -> int:
    """The number in a ``name`` like "cuda:1"; -1 for other names."""
    platform, _, number = name.partition(":")
    return int(number) if platform == "cuda" and number.isdecimal() else -1


@cache
def _other_gpu(number: int) -> CudaBackend:
    """The backend of a GPU that is not the first."""
    return CudaBackend(number)


@cache
def _load_entry_points() -> None:
    """Register what installed packages offer; warn of what cannot be loaded."""
    from importlib import metadata

    for point in metadata.entry_points(group=ENTRY_POINTS):
        _load(point)


def _load(point: EntryPoint) -> None:
    """Register the backend of an entry point; warn if it cannot be loaded."""
    try:
        register_backend(point.load()())
    except Exception as error:  # noqa: BLE001  whatever a foreign package raises
        warnings.warn(
            f"the backend {point.name!r} ({point.value}) cannot be loaded: {error}",
            RuntimeWarning,
            stacklevel=2,
        )


def available_backends() -> tuple[str, ...]:
    """The names of the backends that can be used here.

    >>> "reference" in available_backends()
    True
    """
    _load_entry_points()
    return tuple(name for name in BACKENDS if is_backend_available(name))


def is_backend_available(name: str) -> bool:
    """Whether backend ``name`` exists and can be used here.

    For a part, such as "cudnn" or "mkl", the result says whether backends use it here.
    """
    return (has_backend(name) or name in PARTS) and not backend_info(name).missing


def backend_info(name: str) -> BackendInfo:
    """Describe the parts that backend ``name`` needs, and the ones missing here.

    Other possible names are those of libraries and features that backends use or could
    use: cudnn, cusparselt, mha, mkl, mkldnn, mps, nki, nnpack, openmp, opt_einsum,
    triton, xeon.

    Raises BackendError, with a suggestion, if there is no such name.

    >>> print(backend_info("cpu").description)
    compiled kernels on threads
    >>> print(backend_info("nnpack").missing)
    arrayfn does not call NNPACK: its convolutions are generated
    """
    if name in PARTS and not has_backend(name):
        return PARTS[name].info(name)
    return get_backend(name).info()


def choose(device: str | Sequence[str], *, to_lower: bool = False) -> Backend:
    """The first backend in ``device`` that is available here.

    Warns if it is not the first one named, and raises BackendError, with what is
    missing, if none is. With ``to_lower`` it is the first one named: any backend can
    lower a Program on any machine.
    """
    names = (device,) if isinstance(device, str) else tuple(device)
    reasons: list[str] = []
    for name in names:
        info = get_backend(name).info()
        if not info.missing:
            if reasons:
                warnings.warn(
                    f"{'; '.join(reasons)}: using {name!r}", RuntimeWarning, 3
                )
            return get_backend(name)
        reasons.append(f"backend {name!r} is not available ({info.missing})")
    if to_lower and names:
        return get_backend(names[0])
    raise BackendError("; ".join(reasons) or "no device was named", user_location())
