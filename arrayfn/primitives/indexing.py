"""gather and scatter: reading and writing at computed positions.

Their semantics are in ``indexing_semantics``. Each is the other's transpose, so the
rules refer to each other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from arrayfn import dtypes
from arrayfn.dtypes import DType, PythonScalar
from arrayfn.errors import DifferentiationError
from arrayfn.ir import ArrayType, Atom
from arrayfn.ir.layout import Shape
from arrayfn.primitives import conversion, discrete, emitters, factors, views
from arrayfn.primitives import elementwise as e
from arrayfn.primitives.base import (
    BY_FORM,
    NOT_LINEAR,
    Atoms,
    Batched,
    Dims,
    Factors,
    Linear,
    Marker,
    Operands,
    Primitive,
    Tangents,
    Template,
    value_of,
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
from arrayfn.primitives.rules import (
    jvp_of_first,
    mapped_axes_first,
    repeated,
    transposed_first,
)
from arrayfn.primitives.windows import Windows

# gather


def _gather_tangent(t: Atom, indices: Atom, **params: Any) -> Atom:
    """The jvp rule: ``d gather(x) = gather(dx)``, with 0 out of bounds."""
    if params["mode"] == "fill":
        params["fill_value"] = 0
    return gather(t, indices, **params)


def _gather_transpose(
    ct: Atom,
    type: ArrayType,
    indices: Atom,
    *,
    sizes: Shape,
    mode: str,
    fill_value: PythonScalar | None,
    unique_indices: bool = False,
    **windows: Any,
) -> Atom:
    """Transpose rule: ``ct_x = scatter_add(zeros, indices, ct)``.

    The zeros have the operand's ``type``. Windows out of bounds, which read the fill
    value in mode "fill", contribute nothing; in other modes they add where they read.
    ``unique_indices`` promises that no element is read twice.
    """
    return emitters.scatter_add(
        views.zeros(type),
        indices,
        ct,
        mode="drop" if mode == "fill" else "clip",
        unique_indices=unique_indices,
        **windows,
    )


def _gather_batch(
    axis_size: int,
    inputs: Atoms,
    dims: Dims,
    *,
    sizes: Shape,
    mode: str,
    fill_value: PythonScalar | None,
    unique_indices: bool = False,
    **windows: Any,
) -> Batched:
    """Batching rule: a gather with one more axis of operand, indices, or both.

    If only the operand is mapped, a window spans the mapped axis. If only the indices
    are, there are more windows. If both are, the mapped axis is a batch axis. The
    params are those of ``gather_types``.
    """
    x, indices = mapped_axes_first(inputs, dims)
    geometry = Windows(**windows)
    if dims[0] is None:
        geometry = geometry.mapped_indices()
    elif dims[1] is None:
        geometry, sizes = geometry.mapped_operand(), (axis_size, *sizes)
    else:
        geometry, sizes = geometry.mapped_together(), (1, *sizes)
    options = {"sizes": sizes, "mode": mode, "fill_value": fill_value}
    if unique_indices and dims[0] is not None:
        options["unique_indices"] = True  # each member reads its own array
    return [gather(x, indices, **geometry.params(), **options)], [0]


gather = Primitive(
    name="gather",
    factors=factors.gather,
    family="indexing",
    types=gather_types,
    reference=gather_reference,
    kernel=Template("gather"),
    jvp=jvp_of_first(_gather_tangent),
    transpose=transposed_first(_gather_transpose),
    batch=_gather_batch,
    samples=gather_samples,
    doc="Windows of the first operand at the positions in the second. A window that "
    "is out of bounds is fill_value as a whole ('fill'), or moved inside ('clip', and "
    "'promise_in_bounds', which promises that there is none). The optional "
    "unique_indices promises that no two windows overlap.",
)


# scatter


def _scatter_batch(primitive: Callable[..., Any]) -> Callable[..., Any]:
    """Make the batching rule of the scatter that ``primitive()`` returns.

    ``primitive`` is a function because the scatter is defined after its rule.
    """

    def batch(
        axis_size: int,
        inputs: Atoms,
        dims: Dims,
        *,
        mode: str,
        unique_indices: bool,
        indices_are_sorted: bool = False,
        **windows: Any,
    ) -> Batched:
        """Batching rule: a scatter with one more axis of operand and updates.

        If indices are mapped, the mapped axis is a batch axis; else windows span it.
        """
        x, indices, updates = inputs
        promises = promised(unique_indices, indices_are_sorted)
        geometry = Windows(**windows)
        if dims[1] is None:
            geometry = geometry.mapped_operand()
        else:
            indices = emitters.move_axis(indices, dims[1], 0)
            geometry = geometry.mapped_together()
        value = primitive()(
            repeated(axis_size, x, dims[0]),
            indices,
            repeated(axis_size, updates, dims[2]),
            mode=mode,
            **promises,
            **geometry.params(),
        )
        return [value], [0]

    return batch


def _gather_back(x: Atom, indices: Atom, updates: ArrayType, **params: Any) -> Atom:
    """Gather the elements of ``x`` at the targets of a scatter.

    ``params`` are the scatter's, and ``updates`` is the type of the scatter's updates,
    which the result has too. In mode "drop", targets out of bounds read 0.
    """
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


def _scatter(
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
    """Make a scatter Primitive.

    Args:
        name: the name of the primitive and of its template.
        combine: the reference on flat arrays, as ``np.add.at``.
        allowed: the dtypes that the primitive takes.
        jvp: the jvp rule.
        transpose: the transpose rule, or a marker.
        doc: what the primitive computes.
        low: the lower bound of samples.
        unique_only: whether there is a derivative by updates only for unique targets.
        rule: the sharding rule, or a marker.
    """
    primitive = Primitive(
        name=name,
        family="indexing",
        types=scatter_types(name, allowed),
        reference=scatter_reference(combine),
        kernel=Template(name, in_place=True),
        jvp=jvp,
        transpose=transpose,
        batch=_scatter_batch(lambda: primitive),
        samples=scatter_samples(allowed, low, unique_only),
        doc=doc,
        factors=rule,
    )
    return primitive


def _scatter_jvp(
    primals: Atoms, outputs: Atoms, tangents: Tangents, **params: Any
) -> Tangents:
    """The jvp rule: ``d scatter(x, u) = scatter(dx, du)`` for unique targets.

    Of several updates with the same target, only the tangent of the update that is
    stored counts. To find these updates, a scatter of the updates' numbers runs first.
    """
    x, indices, updates = primals
    dx, _, du = tangents
    if params["unique_indices"]:
        dx, du = views.dense((dx, du), (x.type, updates.type))
        return [scatter(dx, indices, du, **params)]
    if dx is None:
        dx = views.zeros(x.type)
    # winners has the number of the stored update, from 1; 0 where x is unchanged.
    count = updates.type.size
    dtype = dtypes.int32 if count < 2**31 - 1 else dtypes.int64
    numbers = e.add(views.iota(shape=(count,), axis=0, dtype=dtype), 1)
    numbers = views.reshape(numbers, shape=updates.type.shape)
    no_winners = views.zeros(ArrayType(x.type.shape, dtype))
    winners = scatter(no_winners, indices, numbers, **params)
    zero = conversion.literal(0, x.type.dtype)
    tangent = e.select(discrete.eq(winners, 0), dx, zero)
    if du is None:
        return [tangent]
    is_winner = discrete.eq(
        _gather_back(winners, indices, updates.type, **params), numbers
    )
    return [scatter_add(tangent, indices, e.select(is_winner, du, zero), **params)]


def _scatter_transpose(
    cotangents: Tangents, inputs: Operands, **params: Any
) -> Tangents:
    """The transpose rule: ``ct_x = scatter(ct, 0)`` and ``ct_u = gather(ct)``.

    Indices are unique: the jvp rule emits linear scatters only then.
    """
    (ct,), (x, indices, updates) = cotangents, inputs
    assert ct is not None
    assert params["unique_indices"]
    index_values = value_of(indices, "scatter")
    to_x = to_updates = None
    if isinstance(x, Linear):
        to_x = scatter(ct, index_values, views.zeros(updates.type), **params)
    if isinstance(updates, Linear):
        to_updates = _gather_back(ct, index_values, updates.type, **params)
    return [to_x, None, to_updates]


def _add_jvp(
    primals: Atoms, outputs: Atoms, tangents: Tangents, **params: Any
) -> Tangents:
    """The jvp rule: ``d scatter_add(x, u) = scatter_add(dx, du)``."""
    dx, _, du = tangents
    if du is None:
        return [dx]
    dx = views.zeros(primals[0].type) if dx is None else dx
    return [scatter_add(dx, primals[1], du, **params)]


def _add_transpose(cotangents: Tangents, inputs: Operands, **params: Any) -> Tangents:
    """Transpose rule: ``ct_x = ct`` and ``ct_u = gather(ct)`` at the targets."""
    (ct,), (x, indices, updates) = cotangents, inputs
    assert ct is not None
    to_updates = None
    if isinstance(updates, Linear):
        index_values = value_of(indices, "scatter_add")
        to_updates = _gather_back(ct, index_values, updates.type, **params)
    return [ct if isinstance(x, Linear) else None, None, to_updates]


def _mul_jvp(
    primals: Atoms, outputs: Atoms, tangents: Tangents, **params: Any
) -> Tangents:
    """The jvp rule: ``dy = dx * scatter_mul(1, u) + scatter_add(0, gather(x) * du)``.

    Raises DifferentiationError if updates have tangents and two of them may have the
    same target.
    """
    x, indices, updates = primals
    dx, _, du = tangents
    if du is not None and not params["unique_indices"]:
        raise DifferentiationError(
            "scatter_mul has a derivative by its updates only if their indices are "
            "distinct: pass unique_indices=True if they are"
        )
    total = None
    if dx is not None:
        factors = scatter_mul(
            views.broadcast_literal(1, x.type), indices, updates, **params
        )
        total = e.mul(dx, factors)
    if du is not None:
        term = e.mul(_gather_back(x, indices, updates.type, **params), du)
        base = views.zeros(x.type) if total is None else total
        total = scatter_add(base, indices, term, **params)
    return [total]


def _extremum_jvp(
    primals: Atoms, outputs: Atoms, tangents: Tangents, **params: Any
) -> Tangents:
    """The jvp rule of scatter_max and scatter_min.

    ``dy`` is the mean of the tangents of all values that equal the extremum, among the
    element of ``x`` and the updates with this target.
    """
    x, indices, updates = primals
    dx, _, du = tangents
    dtype, (y,) = x.type.dtype, outputs
    at_targets = _gather_back(y, indices, updates.type, **params)
    x_is_extremum = conversion.convert(discrete.eq(x, y), dtype)
    update_is_extremum = conversion.convert(discrete.eq(updates, at_targets), dtype)
    total = views.zeros(x.type) if dx is None else e.mul(dx, x_is_extremum)
    if du is not None:
        total = scatter_add(total, indices, e.mul(du, update_is_extremum), **params)
    return [
        e.div(total, scatter_add(x_is_extremum, indices, update_is_extremum, **params))
    ]


scatter = _scatter(
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
scatter_add = _scatter(
    "scatter_add",
    np.add.at,
    dtypes.NUMBERS,
    _add_jvp,
    _add_transpose,
    doc="As scatter, but adds the updates.",
    rule=factors.scatter,
)
scatter_mul = _scatter(
    "scatter_mul",
    np.multiply.at,
    dtypes.NUMBERS,
    _mul_jvp,
    low=0.5,
    unique_only=True,
    doc="As scatter, but multiplies by the updates.",
)
scatter_min = _scatter(
    "scatter_min",
    np.minimum.at,
    dtypes.REALS,
    _extremum_jvp,
    doc="As scatter, but takes the minimum; NaN if either is NaN.",
)
scatter_max = _scatter(
    "scatter_max",
    np.maximum.at,
    dtypes.REALS,
    _extremum_jvp,
    doc="As scatter, but takes the maximum; NaN if either is NaN.",
)
