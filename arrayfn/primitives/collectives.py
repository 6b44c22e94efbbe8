"""Collectives over a named axis: sums, exchanges and permutations of members' values.

A *member* is one of the ``members`` instances of a function that is mapped along the
axis ``axis_name``, by ``vmap`` or over the devices of a mesh by ``shard_map``. Batching
along that axis turns a collective into views and sums of the mapped array. On a mesh it
is a step of each device's plan, at which they meet.

Inside ``shard_map`` types say along which axes a value varies. A sum over an axis does
not vary along it: the transpose of ``all_reduce`` is ``pvary``, and that of ``pvary``
is ``all_reduce``. Where nothing is said, every member's result counts by itself, and
``all_reduce`` is its own transpose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from arrayfn import dtypes
from arrayfn.errors import DTypeError, ProgramError, ShapeError
from arrayfn.ir import ArrayType, Atom
from arrayfn.primitives import (
    conversion,
    discrete,
    emitters,
    families,
    reductions,
    views,
)
from arrayfn.primitives import elementwise as e
from arrayfn.primitives.base import (
    LINEAR,
    OWN_VARIANCE,
    Array,
    AxisMap,
    ByAxis,
    Dim,
    KernelForm,
    Library,
    Linear,
    MappedAxis,
    Operand,
    Primitive,
    Sample,
    View,
)
from arrayfn.primitives.emitters import move_axis
from arrayfn.primitives.rules import repeated
from arrayfn.primitives.slicing import concatenate, slice_along

Permutation = tuple[tuple[int, int], ...]
"""Pairs (source, target) of members; a member that is no target gets zeros."""

OverAxis = Callable[..., tuple[Atom, Dim]]
"""Computes a collective along the axis itself: (size, x, dim) -> (result, its dim)."""


def _only_member(x: Array, axis_name: str, members: int = 1, **params: Any) -> Array:
    """The reference for an axis of one member: ``x`` unchanged.

    Raises ProgramError if there are more members.
    """
    if members != 1:
        raise ProgramError(
            f"a collective over the {members} members of axis {axis_name!r} needs "
            "all of them and cannot be computed by the reference of one"
        )
    return x


def _transposed(
    primitive: Callable[[], Callable[..., Atom]],
) -> Callable[..., list[Atom | None]]:
    """Make the transpose rule that applies another collective, with the same params.

    ``primitive()`` returns that collective. It is a function because the collective may
    be defined later in this module. The rule is for primitives of one operand.
    """

    def rule(
        cotangents: Sequence[Atom | None], inputs: Sequence[Operand], **params: Any
    ) -> list[Atom | None]:
        """Apply ``primitive()`` to the cotangent, with the params of the collective."""
        (cotangent,) = cotangents
        return [None if cotangent is None else primitive()(cotangent, **params)]

    return rule


def _batched(
    primitive: Callable[[], Primitive],
    over_axis: OverAxis,
    place: int | None,
    result: int,
) -> ByAxis:
    """Make the batching rule of a collective of one operand.

    If the mapped axis is the collective's own axis, the rule calls ``over_axis``, which
    computes the collective from the mapped array. If not, the rule emits the collective
    ``primitive()`` on the operand, with the mapped axis moved to axis ``place``. The
    mapped axis is axis ``result`` of the output. With ``place`` None the mapped axis
    stays where it is, in operand and output.
    """

    def rule(
        axis: MappedAxis, inputs: Sequence[Atom], dims: Sequence[Dim], **params: Any
    ) -> tuple[list[Atom], list[Dim]]:
        """Apply ``over_axis`` if ``axis`` is the collective's own, else emit it."""
        (x,), (dim,) = inputs, dims
        if axis.name == params["axis_name"]:
            output, out_dim = over_axis(axis.size, x, dim, **params)
            return [output], [out_dim]
        if dim is None or place is None:
            return [primitive()(x, **params)], [dim]
        return [primitive()(move_axis(x, dim, place), **params)], [result]

    return ByAxis(rule)


def _samples(leading: int, **params_besides: Any) -> Iterable[Sample]:
    """Yield samples for an axis "i" of one member, for the table tests.

    The operands have shape (1,) * ``leading`` + (3, 4). ``params_besides`` are the
    params besides ``axis_name``.
    """
    params = {"axis_name": "i", **params_besides}
    for seed, dtype in enumerate((dtypes.float32, dtypes.int32, dtypes.complex64)):
        if dtype.kind == "c" and params_besides.get("op", "sum") != "sum":
            continue  # complex numbers have no maximum or minimum
        x = families.random_array(dtype, (1,) * leading + (3, 4), 80 + seed)
        yield Sample((x,), params)


def _collective(
    name: str,
    doc: str,
    types: Callable[..., ArrayType],
    reference: Callable[..., Any],
    transpose: Callable[..., list[Atom | None]],
    over_axis: OverAxis,
    *,
    place: int | None = None,
    result: int = 0,
    leading: int = 0,
    kernel: KernelForm = Library("collective"),  # noqa: B008 - frozen
    jvp: Any = LINEAR,
    **sample: Any,
) -> Primitive:
    """Make a collective Primitive of one operand, whose params name the mesh axis.

    ``over_axis`` is the batching rule along the collective's own axis. Another mapped
    axis is moved to axis ``place`` of the operand, and is axis ``result`` of the output
    (with ``place`` None it stays where it is). Samples have ``leading`` axes of extent
    1 in front, and the params ``sample``.
    """

    def itself() -> Primitive:
        """Return the primitive, which is defined below."""
        return primitive

    primitive = Primitive(
        name=name,
        family="collective",
        types=types,
        reference=reference,
        kernel=kernel,
        jvp=jvp,
        transpose=transpose,
        batch=_batched(itself, over_axis, place, result),
        samples=partial(_samples, leading, **sample),
        doc=doc,
        variance=OWN_VARIANCE,
    )
    return primitive


def _part_shape(name: str, x: ArrayType, members: int) -> tuple[int, ...]:
    """Return the shape of a member's part of ``x``: the shape without axis 0.

    Raises ShapeError unless axis 0 has the extent ``members``. ``name`` is the
    collective's, for the message.
    """
    if x.shape[:1] != (members,):
        raise ShapeError(
            f"{name} takes an array with a part for each of {members} members along "
            f"its first axis, but was given {x}"
        )
    return x.shape[1:]


# all_reduce

_REDUCTIONS: Final = {
    "sum": reductions.reduce_sum,
    "max": reductions.reduce_max,
    "min": reductions.reduce_min,
}


def _reduce_types(x: ArrayType, *, axis_name: str, op: str) -> ArrayType:
    """Type rule: the operand's type, which does not vary along ``axis_name``.

    Raises DTypeError for storage dtypes and bools, and for complex numbers unless
    ``op`` is "sum".
    """
    if x.dtype in dtypes.STORAGE:
        raise dtypes.storage_error("all_reduce", x.dtype)
    if x.dtype == dtypes.bool_ or (op != "sum" and x.dtype.kind == "c"):
        raise DTypeError(f"all_reduce of {op} was given {x}")
    return x.with_shape(x.shape).with_varying(x.varying - {axis_name})


def _reduce_jvp(
    primals: Sequence[Atom],
    outputs: Sequence[Atom],
    tangents: Sequence[Atom | None],
    *,
    axis_name: str,
    op: str,
) -> list[Atom | None]:
    """The jvp rule of all_reduce over members i, for ``op`` "sum", "max" or "min".

    ``d sum(x_i) = sum(dx_i)``, and ``d max(x_i) = sum(m_i * dx_i) / sum(m_i)``, where
    ``m_i`` is 1 if x_i is the maximum, else 0.
    """
    (x,), (extremum,), (tangent,) = primals, outputs, tangents
    if tangent is None or op == "sum":
        return [None if tangent is None else summed_over(tangent, axis_name)]
    is_extremum = conversion.convert(discrete.eq(x, extremum), x.type.dtype)
    total = summed_over(e.mul(is_extremum, tangent), axis_name)
    return [e.div(total, summed_over(is_extremum, axis_name))]


def _reduce_transpose(
    cotangents: Sequence[Atom | None],
    inputs: Sequence[Operand],
    *,
    axis_name: str,
    op: str,
) -> list[Atom | None]:
    """The transpose rule of a sum: every member gets the cotangent of the sum.

    If types say that the operand varies along the axis, the cotangent is the same on
    all members, and ``pvary`` marks it as varying. Otherwise each member's result
    counts by itself, and the members' cotangents are summed.
    """
    (cotangent,), (x,) = cotangents, inputs
    if cotangent is None:
        return [None]
    if isinstance(x, Linear) and axis_name in x.type.varying:
        return [pvary(cotangent, axis_name=axis_name)]
    return [summed_over(cotangent, axis_name)]


def _reduce_over(
    size: int, x: Atom, dim: Dim, *, axis_name: str, op: str
) -> tuple[Atom, Dim]:
    """Batch all_reduce over its own axis: reduce the mapped axis ``dim`` of ``x``.

    If ``x`` is not mapped (``dim`` None), all ``size`` members have the same ``x``, and
    their sum is ``size * x``.
    """
    if dim is None:
        return (e.mul(x, size) if op == "sum" else x), None
    return _REDUCTIONS[op](x, axes=(dim,)), None


all_reduce = _collective(
    "all_reduce",
    "The sum, maximum or minimum of the values of all members.",
    _reduce_types,
    lambda x, **params: np.asarray(_only_member(x, **params)).copy(),
    _reduce_transpose,
    _reduce_over,
    jvp=_reduce_jvp,
    op="sum",
)


def summed_over(x: Atom, axis_name: str) -> Atom:
    """Emit the sum of ``x`` over all members along the axis ``axis_name``."""
    return emitters.all_reduce(x, axis_name=axis_name, op="sum")


# pvary


def _same_over(size: int, x: Atom, dim: Dim, **params: Any) -> tuple[Atom, Dim]:
    """Batch pvary over its own axis: return ``x`` unchanged, mapped along ``dim``."""
    return x, dim


def _pvary_transpose(
    cotangents: Sequence[Atom | None], inputs: Sequence[Operand], *, axis_name: str
) -> list[Atom | None]:
    """The transpose rule of pvary: the sum of the members' cotangents.

    An operand that already varies along the axis, as in a Program that was inlined, has
    a cotangent for each member, as the result has.
    """
    (cotangent,), (x,) = cotangents, inputs
    if cotangent is None or axis_name in x.type.varying:
        return [cotangent]
    return [summed_over(cotangent, axis_name)]


pvary = _collective(
    "pvary",
    "The operand, counted as one value for each member.",
    lambda x, axis_name: x.plain().with_varying(x.varying | {axis_name}),
    lambda x, **params: np.array(x),
    _pvary_transpose,
    _same_over,
    kernel=View(lambda x, **_: tuple(AxisMap(axis) for axis in range(x.ndim))),
)


# all_gather


def _gather_over(
    size: int, x: Atom, dim: Dim, *, axis_name: str, members: int
) -> tuple[Atom, Dim]:
    """Batch all_gather over its own axis: move the mapped axis ``dim`` to the front.

    The result has all members' values along axis 0, and is the same for all members. If
    ``dim`` is None, all members have the same ``x``, which is repeated.
    """
    return repeated(members, x, dim), None


all_gather = _collective(
    "all_gather",
    "The values of all members, stacked along a new first axis.",
    lambda x, axis_name, members: x.with_shape((members, *x.shape)).with_varying(
        x.varying
    ),
    lambda x, **params: _only_member(x, **params)[None].copy(),
    _transposed(lambda: reduce_scatter),
    _gather_over,
    place=0,
    result=1,
    members=1,
)


# reduce_scatter


def _scatter_over(
    size: int, x: Atom, dim: Dim, *, axis_name: str, members: int
) -> tuple[Atom, Dim]:
    """Batch reduce_scatter over its own axis: sum over the mapped axis ``dim``.

    Axis 0 of each member's array has one part for each member. It is axis 0 of the sum,
    and the mapped axis of the result: member k gets part k.
    """
    if dim is None:  # all members have the same x
        return e.mul(x, members), 0
    return reductions.reduce_sum(move_axis(x, dim, 0), axes=(0,)), 0


reduce_scatter = _collective(
    "reduce_scatter",
    "Each member's own part of the sum of all members' values.",
    lambda x, axis_name, members: x.with_shape(
        _part_shape("reduce_scatter", x, members)
    ).with_varying(x.varying),
    lambda x, **params: _only_member(x, **params)[0].copy(),
    _transposed(lambda: all_gather),
    _scatter_over,
    place=1,
    leading=1,
    members=1,
)


# all_to_all


def _exchange_types(x: ArrayType, *, axis_name: str, members: int) -> ArrayType:
    """Type rule: the operand's type, with a part for each member along axis 0."""
    _part_shape("all_to_all", x, members)
    return x.with_shape(x.shape).with_varying(x.varying)


def _exchange_over(
    size: int, x: Atom, dim: Dim, *, axis_name: str, members: int
) -> tuple[Atom, Dim]:
    """Batch all_to_all over its own axis: swap the mapped axis and the axis of parts.

    Member k gets the k-th part of every member.
    """
    # The mapped axis is moved to axis 0, so the axis of parts is axis 1.
    return move_axis(repeated(members, x, dim), 1, 0), 0


all_to_all = _collective(
    "all_to_all",
    "Part k of each member's value, sent to member k: the parts it received, in order.",
    _exchange_types,
    lambda x, **params: np.array(_only_member(x, **params)),
    _transposed(lambda: all_to_all),
    _exchange_over,
    place=1,
    result=1,
    leading=1,
    members=1,
)


# ppermute


def _permute_types(
    x: ArrayType, *, axis_name: str, members: int, permutation: Permutation
) -> ArrayType:
    """Type rule: the operand's type."""
    return x.with_shape(x.shape).with_varying(x.varying)


def _permute_reference(x: Array, *, permutation: Permutation, **params: Any) -> Array:
    """The reference for one member: a copy if the member sends to itself, else zeros.

    With one member the permutation is ``((0, 0),)`` or empty.
    """
    moved = _only_member(x, **params)
    return np.array(moved) if permutation else np.zeros_like(moved)


def _permute_transpose(
    cotangents: Sequence[Atom | None],
    inputs: Sequence[Operand],
    *,
    permutation: Permutation,
    **params: Any,
) -> list[Atom | None]:
    """Transpose rule: ``ct_x = ppermute(ct)`` by the inverse permutation."""
    (cotangent,) = cotangents
    if cotangent is None:
        return [None]
    inverse = tuple((target, source) for source, target in permutation)
    return [ppermute(cotangent, permutation=inverse, **params)]


def _permute_over(
    size: int, x: Atom, dim: Dim, *, permutation: Permutation, **params: Any
) -> tuple[Atom, Dim]:
    """Batch ppermute over its own axis: concatenate the members' slices, permuted.

    Members that no pair (source, target) of ``permutation`` names as target get zeros.
    """
    if dim is None and len(permutation) == size:
        return x, None  # all members send and receive the same value
    members_values = repeated(size, x, dim)
    shape = members_values.type.shape
    source_of = {target: source for source, target in permutation}
    zeros = views.broadcast_literal(0, members_values.type.with_shape((1, *shape[1:])))
    parts = [
        slice_along(members_values, 0, source_of[k], source_of[k] + 1)
        if k in source_of
        else zeros
        for k in range(size)
    ]
    return concatenate(*parts, axis=0), 0


ppermute = _collective(
    "ppermute",
    "The value of the member that sends to this one; zeros if none does.",
    _permute_types,
    _permute_reference,
    _permute_transpose,
    _permute_over,
    members=1,
    permutation=((0, 0),),
)

ROWS = (
    all_gather,
    all_reduce,
    reduce_scatter,
    all_to_all,
    ppermute,
    pvary,
)
