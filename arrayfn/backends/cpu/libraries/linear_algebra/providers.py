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

Given = Mapping[str, Any]


def _none(arguments: Given) -> dict[str, Any]:
    return {}


def by_reference(
    primitive: Primitive,
    operand: str,
    extents: tuple[str, ...],
    *results: str,
    params: Callable[[Given], dict[str, Any]] = _none,
) -> Callable[[Given, int], None]:
    """Make the ``unjitted`` function of a provider from a primitive's reference.

    ``extents`` name the integers that are the shape of an item of the operand; the
    results are written in the order of the row's outputs.
    """

    def run(arguments: Given, items: int) -> None:
        """Compute all items by the reference; ``arguments`` is a dict by name."""
        shape = (items, *(int(arguments[name]) for name in extents))
        parts = primitive.reference(
            arguments[operand].array(shape).copy(), **params(arguments)
        )
        parts = parts if isinstance(parts, tuple) else (parts,)
        for name, part in zip(results, parts, strict=True):
            arguments[name].array(part.shape)[...] = part

    return run


def with_large(
    name: str,
    kernel: Callable[..., None],
    leading_arguments: Callable[[str, Blas | None], tuple[int, ...]],
    unjitted: Callable[[Given, int], None],
) -> dict[str, Provider]:
    """Make provider ``name``, and ``name_large`` for single large matrices.

    ``leading_arguments(dtype, library)`` are the first arguments of ``kernel``, with
    functions of that BLAS: a single-threaded one, or a threaded one for large matrices.
    """

    def own_arguments(dtype: str) -> tuple[int, ...]:
        return leading_arguments(dtype, blas())

    def large_arguments(dtype: str) -> tuple[int, ...]:
        return leading_arguments(dtype, threaded_blas())

    one = Provider(kernel, own_arguments, unjitted, uses_blas=True)
    large = Provider(kernel, large_arguments, unjitted, True, uses_threaded_blas=True)
    return {name: one, f"{name}_large": large}
