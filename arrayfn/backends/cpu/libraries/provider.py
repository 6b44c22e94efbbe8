"""How the CPU runs a library's kernel: one ``Provider`` for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from arrayfn.records import frozen


@frozen(slots=True)
class Provider:
    """The implementation of a library call on the CPU, for all its dtypes.

    Attributes:
        kernel: a function as ``foreign`` describes. Its arguments are the leading
            arguments, the arguments of the plan's call in order, and ``begin`` and
            ``end``, the work items to compute.
        leading_arguments: returns, for a dtype's short name, the arguments that are the
            same in every call, such as addresses of library functions and sizes. Raises
            KeyError for a dtype that the library does not have.
        unjitted: ``unjitted(arguments, items)`` computes all work items by NumPy.
            ``arguments`` are ``Pointer``s and integers, by the parameters' names.
        uses_blas: BLAS must have one thread while a plan with this provider runs.
        uses_threaded_blas: the threaded BLAS must have as many threads as arrayfn
            meanwhile.
        entry: the address of a C function with the uniform entry, instead of a kernel.
    """

    kernel: Callable[..., None] | None
    leading_arguments: Callable[[str], tuple[int, ...]]
    unjitted: Callable[[Mapping[str, Any], int], None]
    uses_blas: bool = False
    uses_threaded_blas: bool = False
    entry: int = 0
