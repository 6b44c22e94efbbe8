"""gather and scatter: reading and writing at computed positions.

Their semantics are in ``indexing_semantics``. Each is the other's transpose, so the
rules refer to each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from arrayfn import dtypes
from arrayfn.dtypes import DType, PythonScalar
from arrayfn.errors import DifferentiationError
from arrayfn.ir import ArrayType, Atom
from arrayfn.ir.layout import Shape
from arrayfn.primitives import conversion, discrete, factors, views
from arrayfn.primitives import elementwise as e
from arrayfn.primitives.base import (
    BY_FORM,
    NOT_LINEAR,
    Dim,
    Factors,
    Linear,
    Marker,
    Operand,
    Primitive,
    Template,
)
from arrayfn.primitives.indexing_semantics import (
    gather_reference,
    gather_samples,
    gather_types,
    promised,
    put,
    scatter_reference,
    scatter_samples,
    scatter_types,
)
from arrayfn.primitives.windows import Windows


def _zeros(type: ArrayType) -> Atom:
    return views.broadcast_literal(0, type)


def _known(operand: Operand) -> Atom:
    assert not isinstance(operand, Linear)
    return operand


# gather


def _gather_jvp(
    primals: Sequence[Atom],
    outputs: Sequence[Atom],
    tangents: Sequence[Atom | None],
    **params: Any,
) -> list[Atom | None]:
    if tangents[0] is None:
        return [None]
    if params["mode"] == "fill":
        params["fill_value"] = 0
    return [gather(tangents[0], primals[1], **params)]


def _gather_transpose(
    cotangents: Sequence[Atom | None],
    inputs: Sequence[Operand],
    *,
    sizes: Shape,
    mode: str,
    fill_value: PythonScalar | None,
    unique_indices: bool = False,
    **windows: Any,
) -> list[Atom | None]:
    (ct,), (x, indices) = cotangents, inputs
    if ct is None or not isinstance(x, Linear):
        return [None, None]
    value = scatter_add(
        _zeros(x.type),
        _known(indices),
        ct,
        mode="drop" if mode == "fill" else "clip",
        unique_indices=unique_indices,
        **windows,
    )
    return [value, None]


def _gather_batch(
    size: int,
    inputs: Sequence[Atom],
    dims: Sequence[Dim],
    *,
    sizes: Shape,
    mode: str,
    fill_value: PythonScalar | None,
    unique_indices: bool = False,
    **windows: Any,
) -> tuple[list[Atom], list[Dim]]:
    x, indices = (
        v if dim is None else views.move_axis(v, dim, 0)
        for v, dim in zip(inputs, dims, strict=True)
    )
    geometry = Windows(**windows)
    if dims[0] is None:
        geometry = geometry.mapped_indices()
    elif dims[1] is None:
        geometry, sizes = geometry.mapped_operand(), (size, *sizes)
    else:
        geometry, sizes = geometry.mapped_together(), (1, *sizes)
    rest = {"sizes": sizes, "mode": mode, "fill_value": fill_value}
    if unique_indices and dims[0] is not None:
        rest["unique_indices"] = True  # for each of several operands
    return [gather(x, indices, **geometry.params(), **rest)], [0]


gather = Primitive(
    name="gather",
    factors=factors.gather,
    family="indexing",
    types=gather_types,
    reference=gather_reference,
    kernel=Template("gather"),
    jvp=_gather_jvp,
    transpose=_gather_transpose,
    batch=_gather_batch,
    samples=gather_samples,
    doc="Windows of the first operand at the positions in the second. A window that "
    "is out of bounds is fill_value as a whole ('fill'), or moved inside ('clip', and "
    "'promise_in_bounds', which promises that there is none). The optional "
    "unique_indices promises that no two windows overlap.",
)


# scatter


def _scatter_batch(row: Callable[..., Any]) -> Callable[..., Any]:
    def batch(
        size: int,
        inputs: Sequence[Atom],
        dims: Sequence[Dim],
        *,
        mode: str,
        unique_indices: bool,
        indices_are_sorted: bool = False,
        **windows: Any,
    ) -> tuple[list[Atom], list[Dim]]:
        x, indices, updates = inputs
        promises = promised(unique_indices, indices_are_sorted)
        geometry = Windows(**windows)
        if dims[1] is None:
            geometry = geometry.mapped_operand()
        else:
            indices = views.move_axis(indices, dims[1], 0)
            geometry = geometry.mapped_together()
        value = row()(
            views.batched(size, x, dims[0]),
            indices,
            views.batched(size, updates, dims[2]),
            mode=mode,
            **promises,
            **geometry.params(),
        )
        return [value], [0]

    return batch


def _gather_back(x: Atom, indices: Atom, updates: ArrayType, **params: Any) -> Atom:
    """The elements of ``x`` at the targets of a scatter with these params."""
    mode, _ = params.pop("mode"), params.pop("unique_indices")
    params.pop("indices_are_sorted", None)
    sizes = Windows(**params).sizes(x.type.ndim, updates.shape)
    return gather(
        x,
        indices,
        sizes=sizes,
        mode="fill" if mode == "drop" else "clip",
        fill_value=0 if mode == "drop" else None,
        **params,
    )


def _scatter_row(
    name: str,
    combine: Callable[..., None],
    allowed: frozenset[DType],
    jvp: Callable[..., Any],
    transpose: Any = NOT_LINEAR,
    *,
    doc: str,
    low: float = -3.0,
    unique_only: bool = False,
    rule: Callable[..., Factors] | Marker = BY_FORM,
) -> Primitive:
    row = Primitive(
        name=name,
        family="indexing",
        types=scatter_types(name, allowed),
        reference=scatter_reference(combine),
        kernel=Template(name, in_place=True),
        jvp=jvp,
        transpose=transpose,
        batch=_scatter_batch(lambda: row),
        samples=scatter_samples(allowed, low, unique_only),
        doc=doc,
        factors=rule,
    )
    return row


def _scatter_jvp(
    primals: Sequence[Atom],
    outputs: Sequence[Atom],
    tangents: Sequence[Atom | None],
    **params: Any,
) -> list[Atom | None]:
    x, indices, updates = primals
    dx, _, du = tangents
    if dx is None and du is None:
        return [None]
    if dx is None:
        dx = _zeros(x.type)
    if params["unique_indices"]:
        du = _zeros(updates.type) if du is None else du
        return [scatter(dx, indices, du, **params)]
    # Scatter the updates' numbers, from 1: the number that is left won.
    count = updates.type.size
    dtype = dtypes.int32 if count < 2**31 - 1 else dtypes.int64
    numbers = e.add(views.iota(shape=(count,), axis=0, dtype=dtype), 1)
    numbers = views.reshape(numbers, shape=updates.type.shape)
    blank = _zeros(ArrayType(x.type.shape, dtype))
    arrived = scatter(blank, indices, numbers, **params)
    zero = conversion.literal(0, x.type.dtype)
    tangent = e.select(discrete.eq(arrived, 0), dx, zero)
    if du is None:
        return [tangent]
    won = discrete.eq(_gather_back(arrived, indices, updates.type, **params), numbers)
    return [scatter_add(tangent, indices, e.select(won, du, zero), **params)]


def _scatter_transpose(
    cotangents: Sequence[Atom | None], inputs: Sequence[Operand], **params: Any
) -> list[Atom | None]:
    (ct,), (x, indices, updates) = cotangents, inputs
    if ct is None:
        return [None, None, None]
    assert params["unique_indices"]
    where = _known(indices)
    to_x = to_updates = None
    if isinstance(x, Linear):
        to_x = scatter(ct, where, _zeros(updates.type), **params)
    if isinstance(updates, Linear):
        to_updates = _gather_back(ct, where, updates.type, **params)
    return [to_x, None, to_updates]


def _add_jvp(
    primals: Sequence[Atom],
    outputs: Sequence[Atom],
    tangents: Sequence[Atom | None],
    **params: Any,
) -> list[Atom | None]:
    dx, _, du = tangents
    if du is None:
        return [dx]
    dx = _zeros(primals[0].type) if dx is None else dx
    return [scatter_add(dx, primals[1], du, **params)]


def _add_transpose(
    cotangents: Sequence[Atom | None], inputs: Sequence[Operand], **params: Any
) -> list[Atom | None]:
    (ct,), (x, indices, updates) = cotangents, inputs
    if ct is None:
        return [None, None, None]
    to_updates = None
    if isinstance(updates, Linear):
        to_updates = _gather_back(ct, _known(indices), updates.type, **params)
    return [ct if isinstance(x, Linear) else None, None, to_updates]


def _mul_jvp(
    primals: Sequence[Atom],
    outputs: Sequence[Atom],
    tangents: Sequence[Atom | None],
    **params: Any,
) -> list[Atom | None]:
    x, indices, updates = primals
    dx, _, du = tangents
    if du is not None and not params["unique_indices"]:
        raise DifferentiationError(
            "scatter_mul differentiates by its updates only if no two of them meet: "
            "give unique_indices=True if that is so"
        )
    total = None
    if dx is not None:
        factors = scatter_mul(
            views.broadcast_literal(1, x.type), indices, updates, **params
        )
        total = e.mul(dx, factors)
    if du is not None:
        term = e.mul(_gather_back(x, indices, updates.type, **params), du)
        base = _zeros(x.type) if total is None else total
        total = scatter_add(base, indices, term, **params)
    return [total]


def _extremum_jvp(
    primals: Sequence[Atom],
    outputs: Sequence[Atom],
    tangents: Sequence[Atom | None],
    **params: Any,
) -> list[Atom | None]:
    # Updates of one target that equal the extremum share the derivative equally.
    x, indices, updates = primals
    dx, _, du = tangents
    if dx is None and du is None:
        return [None]
    dtype, (y,) = x.type.dtype, outputs
    back = _gather_back(y, indices, updates.type, **params)
    x_hit = conversion.convert(discrete.eq(x, y), dtype)
    update_hit = conversion.convert(discrete.eq(updates, back), dtype)
    total = _zeros(x.type) if dx is None else e.mul(dx, x_hit)
    if du is not None:
        total = scatter_add(total, indices, e.mul(du, update_hit), **params)
    return [e.div(total, scatter_add(x_hit, indices, update_hit, **params))]


_NUMBERS = dtypes.ALL - {dtypes.bool_}
_ORDERED = _NUMBERS - dtypes.COMPLEX

scatter = _scatter_row(
    "scatter",
    put,
    dtypes.ALL,
    _scatter_jvp,
    _scatter_transpose,
    doc="The first operand with the windows at the positions in the second replaced "
    "by the third. A window that is out of bounds is ignored ('drop') or moved inside "
    "('clip'). unique_indices promises that no two windows overlap, and the optional "
    "indices_are_sorted that the positions ascend.",
)
scatter_add = _scatter_row(
    "scatter_add",
    np.add.at,
    _NUMBERS,
    _add_jvp,
    _add_transpose,
    doc="As scatter, but adds the updates.",
    rule=factors.scatter,
)
scatter_mul = _scatter_row(
    "scatter_mul",
    np.multiply.at,
    _NUMBERS,
    _mul_jvp,
    low=0.5,
    unique_only=True,
    doc="As scatter, but multiplies by the updates.",
)
scatter_min = _scatter_row(
    "scatter_min",
    np.minimum.at,
    _ORDERED,
    _extremum_jvp,
    doc="As scatter, but takes the minimum; NaN if either is NaN.",
)
scatter_max = _scatter_row(
    "scatter_max",
    np.maximum.at,
    _ORDERED,
    _extremum_jvp,
    doc="As scatter, but takes the maximum; NaN if either is NaN.",
)

ROWS = (gather, scatter, scatter_add, scatter_mul, scatter_min, scatter_max)
