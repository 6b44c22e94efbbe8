"""Un-jitted factorizations: the references of the primitives that are computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from arrayfn.primitives.base import Primitive

Given = Mapping[str, Any]


def _none(given: Given) -> dict[str, Any]:
    return {}


def by_reference(
    row: Primitive,
    operand: str,
    extents: tuple[str, ...],
    *results: str,
    params: Callable[[Given], dict[str, Any]] = _none,
) -> Callable[[Given, int], None]:
    """All of a call's items by the reference of ``row``.

    ``extents`` name the integers that are the shape of an item of the operand; the
    results are written in the order of the row's outputs.
    """

    def run(given: Given, items: int) -> None:
        shape = (items, *(int(given[name]) for name in extents))
        parts = row.reference(given[operand].array(shape).copy(), **params(given))
        parts = parts if isinstance(parts, tuple) else (parts,)
        for name, part in zip(results, parts, strict=True):
            given[name].array(part.shape)[...] = part

    return run
