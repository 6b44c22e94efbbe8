"""Which mesh axes cut which factor of an equation.

A *factor* is an index of the computation: ``i``, ``j`` and ``k`` of the product
``z[i, j] = sum_k x[i, k] * y[k, j]`` (see ``primitives.factors``). A mesh axis that
cuts ``i`` cuts the first axis of ``x`` and of ``z``; one that cuts ``k`` leaves a sum
over devices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from arrayfn.ir import ArrayType, Equation, Mesh
from arrayfn.ir.sharding import Entry
from arrayfn.passes.partition_values import LocalValue, whole_type
from arrayfn.primitives import factors
from arrayfn.primitives.base import Convert, Factors, Marker, Primitive, Scalar


def factors_of(
    primitive: Primitive, types: Sequence[ArrayType], params: Mapping[str, Any]
) -> Factors | None:
    """Return the factors of an equation; None if it needs whole operands.

    They come from the primitive's own rule, or from the one for elementwise primitives.
    """
    if not isinstance(primitive.factors, Marker):
        return primitive.factors(*types, **params)
    if isinstance(primitive.kernel, (Scalar, Convert)):
        return factors.elementwise(*types)
    return None


def mesh_axes_of_factors(
    equation: Equation,
    operands: Sequence[LocalValue],
    equation_factors: Factors,
    mesh: Mesh,
) -> dict[int, Entry]:
    """Choose the mesh axes that cut each factor of an equation.

    The specs of its ``operands`` propose mesh axes. If they propose one mesh axis for
    two factors, the factor for which fewer bytes are moved gets it. A proposal is
    ignored if the parts would not be equal, or if a reduction over the factor is not a
    sum, maximum or minimum. ``x[i, k] @ y[k, j]`` with ``x`` cut by ``(("a",), ())``
    gives ``{i: ("a",)}``.
    """
    extents = _extents(operands, equation_factors, mesh)
    costs: dict[tuple[int, Entry], float] = {}
    for x, axes in zip(operands, equation_factors.inputs, strict=True):
        for entry, factor in zip(x.spec, axes, strict=True):
            if factor is None or not entry:
                continue
            op = equation_factors.reduced.get(factor, "sum")
            count = mesh.size_along(entry)
            is_divisible = all(n % count == 0 for n in extents[factor])
            if is_divisible and op in ("sum", "max", "min"):
                costs[factor, entry] = _bytes_moved(
                    equation, operands, equation_factors, factor, entry, count
                )
    # Accept proposals from the cheapest on, unless the factor or a mesh axis is taken.
    chosen: dict[int, Entry] = {}
    used_axes: set[str] = set()
    for factor, entry in sorted(costs, key=lambda pair: costs[pair]):
        if factor not in chosen and not used_axes.intersection(entry):
            chosen[factor] = entry
            used_axes.update(entry)
    return chosen


def _bytes_moved(
    equation: Equation,
    operands: Sequence[LocalValue],
    equation_factors: Factors,
    factor: int,
    entry: Entry,
    count: int,
) -> float:
    """Estimate the bytes that a device sends if ``entry`` cuts ``factor``.

    ``entry`` are mesh axes, ``operands`` those of ``equation``, with their current
    specs, and ``count`` is the number of parts. An operand that these mesh axes cut
    elsewhere is exchanged if it has the factor, or gathered. A reduced factor costs the
    sum of the result.
    """
    total = 0.0
    for x, axes in zip(operands, equation_factors.inputs, strict=True):
        nbytes = x.part.type.nbytes
        for current_entry, current_factor in zip(x.spec, axes, strict=True):
            if current_factor != factor and set(current_entry) & set(entry):
                total += nbytes if factor in axes else nbytes * (count - 1)
        if factor in axes and x.spec[axes.index(factor)] != entry:
            total += 1  # a copy, of which nothing is sent
    # An all_reduce sends about twice the bytes of its operand.
    if factor in equation_factors.reduced:
        total += 2 * equation.outputs[0].type.nbytes
    return total


def _extents(
    operands: Sequence[LocalValue], equation_factors: Factors, mesh: Mesh
) -> dict[int, list[int]]:
    """Return the extents of the operands' axes that each factor indexes."""
    extents: dict[int, list[int]] = {}
    for x, axes in zip(operands, equation_factors.inputs, strict=True):
        shape = whole_type(x, mesh).shape
        for extent, factor in zip(shape, axes, strict=True):
            if factor is not None:
                extents.setdefault(factor, []).append(extent)
    return extents
