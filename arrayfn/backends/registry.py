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
"""Backends that are imported when they are first asked for: name -> "module:class"."""


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
    """Return the backend ``name``, available on this machine or not.

    "cuda:1" is the second GPU; "cuda" and "cuda:0" are the first one. Raises
    BackendError, with a suggestion, if there is no backend of that name.
    """
    if not has_backend(name):
        if name in PARTS:
            raise BackendError(
                f"{name!r} is not a backend to compute on, but a part that backends "
                f"may use ({PARTS[name].description}); there are "
                f"{', '.join(device_names())}",
                user_location(),
            )
        known = device_names()
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
    """Return whether there is a backend ``name``, available on this machine or not.

    If the name is not registered yet, the backends in ``LATER`` and those of installed
    packages are tried.
    """
    if name in BACKENDS or _gpu_number(name) >= 0:
        return True
    if name in LATER:
        module, _, class_name = LATER[name].partition(":")
        register_backend(getattr(import_module(module), class_name)(), replace=True)
    else:
        _load_entry_points()
    return name in BACKENDS


def device_names() -> list[str]:
    """Return the names of the backends that users can choose as a device.

    They need not be available on this machine. A backend of another kind, "implied", is
    chosen by where the arguments lie.
    """
    return [name for name in BACKENDS if BACKENDS[name].info().kind == "backend"]


def _gpu_number(name: str) -> int:
    """Return the number in a ``name`` such as "cuda:1"; -1 for other names."""
    platform, _, number = name.partition(":")
    return int(number) if platform == "cuda" and number.isdecimal() else -1


@cache
def _other_gpu(number: int) -> CudaBackend:
    """Return the backend of GPU ``number``, which is not the first; made once."""
    return CudaBackend(number)


@cache
def _load_entry_points() -> None:
    """Register the backends of installed packages, once in a process."""
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
    """Return the names of the backends that can be used on this machine.

    >>> "reference" in available_backends()
    True
    """
    _load_entry_points()
    return tuple(name for name in BACKENDS if is_backend_available(name))


def is_backend_available(name: str) -> bool:
    """Return whether backend ``name`` exists and can be used on this machine.

    ``name`` may also be a part, such as "cudnn" or "mkl". Then the result says whether
    backends use it on this machine.
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
    """Return the first backend of ``device`` that is available on this machine.

    ``device`` is a name or several names. A warning says why an earlier backend is not
    used. If none is available, BackendError says what is missing. With ``to_lower``,
    the first backend is returned instead of the error: any backend can lower a Program
    on any machine.
    """
    names = (device,) if isinstance(device, str) else tuple(device)
    reasons: list[str] = []
    for name in names:
        info = get_backend(name).info()
        if not info.missing:
            if reasons:
                warnings.warn(
                    f"{'; '.join(reasons)}: using {name!r}",
                    RuntimeWarning,
                    stacklevel=3,
                )
            return get_backend(name)
        reasons.append(f"backend {name!r} is not available ({info.missing})")
    if to_lower and names:
        return get_backend(names[0])
    raise BackendError("; ".join(reasons) or "no device was named", user_location())
