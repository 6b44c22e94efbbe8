"""Providers of factorizations, and un-jitted ones by their primitives' references.

Batches, small matrices and right-hand sides are divided by arrayfn's threads, each of
which calls ``blas()`` with one thread. A factorization of one matrix can only be
divided inside: ``threaded_blas()`` has as many threads as arrayfn while one runs. How
it divides sums, and so how they are rounded, depends on that number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from arrayfn.backends.cpu.libraries.blas import Blas, blas, threaded_blas
from arrayfn.backends.cpu.libraries.provider import Provider
from arrayfn.primitives.base import Primitive
from arrayfn.primitives.rules import as_list

Given = Mapping[str, Any]
"""The arguments of a kernel by name: Pointers and integers."""


def _none(arguments: Given) -> dict[str, Any]:
    """Return no params, whatever the arguments are."""
    return {}


def by_reference(
    primitive: Primitive,
    operand: str,
    extents: tuple[str, ...],
    *results: str,
    params: Callable[[Given], dict[str, Any]] = _none,
) -> Callable[[Given, int], None]:
    """Make the ``unjitted`` function of a provider from a primitive's reference.

    ``operand`` and ``results`` are names of the kernel's pointers: its operand, and its
    results in the order of the primitive's outputs. ``extents`` are names of integer
    arguments: the shape of one item of the operand. ``params`` returns the primitive's
    params for the arguments.
    """

    def run(arguments: Given, items: int) -> None:
        """Compute all items by the reference, and write its results."""
        shape = (items, *(int(arguments[name]) for name in extents))
        parts = primitive.reference(
            arguments[operand].array(shape).copy(), **params(arguments)
        )
        for name, part in zip(results, as_list(parts), strict=True):
            arguments[name].array(part.shape)[...] = part

    return run


def with_large(
    name: str,
    kernel: Callable[..., None],
    leading_arguments: Callable[[str, Blas | None], tuple[int, ...]],
    unjitted: Callable[[Given, int], None],
) -> dict[str, Provider]:
    """Return two providers: ``name``, and ``<name>_large`` for single large matrices.

    Both call ``kernel``: the first with functions of the BLAS that uses one thread, the
    second with those of the threaded BLAS. ``leading_arguments(dtype, library)``
    returns the kernel's first arguments. ``unjitted(arguments, items)`` computes the
    same by NumPy.
    """

    def single_arguments(dtype: str) -> tuple[int, ...]:
        """Return the first arguments, with functions that use one thread."""
        return leading_arguments(dtype, blas())

    def large_arguments(dtype: str) -> tuple[int, ...]:
        """Return the first arguments, with functions that use several threads."""
        return leading_arguments(dtype, threaded_blas())

    single = Provider(kernel, single_arguments, unjitted, uses_blas=True)
    large = Provider(
        kernel, large_arguments, unjitted, uses_blas=True, uses_threaded_blas=True
    )
    return {name: single, f"{name}_large": large}
