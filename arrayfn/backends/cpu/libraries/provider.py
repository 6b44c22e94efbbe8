"""How the CPU runs a library's kernel: one ``Provider`` for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Provider:
    """The implementation that ``LibraryKernel.provider`` names, for all its dtypes.

    ``kernel`` is a function as ``foreign`` describes. Its first arguments are
    ``leading_arguments(dtype)``: addresses of library functions, sizes, and what else
    does not depend on the call; KeyError for a dtype that the library does not have.
    The arguments of the plan's call follow, in order, then ``begin`` and ``end``.
    Instead of a kernel there may be a C function with its uniform entry, at the address
    ``entry``.

    ``unjitted(arguments, items)`` computes all work items by NumPy; ``arguments`` are
    ``Pointer``s and integers, by the parameters' names.

    While a plan with a provider that ``uses_blas`` runs, BLAS has one thread. If it
    ``uses_threaded_blas``, the threaded BLAS has as many threads as arrayfn.
    """

    kernel: Callable[..., None] | None
    leading_arguments: Callable[[str], tuple[int, ...]]
    unjitted: Callable[[Mapping[str, Any], int], None]
    uses_blas: bool = False
    uses_threaded_blas: bool = False
    entry: int = 0
