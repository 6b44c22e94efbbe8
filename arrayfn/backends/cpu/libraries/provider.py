"""How the CPU runs a library's kernel: one ``Provider`` for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from arrayfn.backends.native import Routine


@dataclass(frozen=True, slots=True)
class Provider:
    """What is behind ``LibraryKernel.provider``, less its dtype's suffix.

    ``routine`` is a native routine ``(arguments, begin, end)``; its arguments are
    ``words(dtype)`` (addresses of C functions, sizes: what does not depend on the
    call), then the kernel's parameters in their order, eight bytes each. ``words``
    raises KeyError for a dtype that the library does not have. ``unjitted`` does all
    work items on ``Pointer``s and integers, by the parameters' names. While a plan
    with a provider that ``uses_blas`` runs, BLAS has one thread.
    """

    routine: Routine[..., Any]
    words: Callable[[str], tuple[int, ...]]
    unjitted: Callable[[Mapping[str, Any], int], None]
    uses_blas: bool = False
