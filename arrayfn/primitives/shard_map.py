"""``shard_map``: a Program that each member of a mesh runs on its parts of arrays.

``body`` takes a member's parts of the operands, cut as ``in_specs`` say, and then the
member's index along each of ``axis_names``, axes of ``mesh``, which specs name. Its
results are parts of the outputs, put together as ``out_specs`` say. With ``typed`` the
types in the body say along which axes a value varies; an output must not vary along one
of ``axis_names`` that its spec does not name.

A shard_map in the body of another has other axes of the same mesh. Its operands may
vary along those of the one around it, and its results then do.

On one device it is the body mapped along its axes by batching, which defines it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from arrayfn import dtypes
from arrayfn.errors import ShapeError, SourceLocation
from arrayfn.ir import (
    ArrayType,
    Atom,
    Equation,
    Mesh,
    PartitionSpec,
    Program,
    Var,
    type_of,
)
from arrayfn.ir.builder import ProgramBuilder
from arrayfn.ir.sharding import spec_of
from arrayfn.primitives import elementwise as e
from arrayfn.primitives import families, views
from arrayfn.primitives.base import (
    OWN_VARIANCE,
    Array,
    Atoms,
    Batched,
    Composition,
    Dims,
    Linear,
    Operands,
    OverPrograms,
    Primitive,
    Sample,
    Tangents,
    WithTangents,
)
from arrayfn.primitives.calls import evaluate
from arrayfn.primitives.collectives import pvary, summed_over
from arrayfn.primitives.control_flow import (
    Batch,
    Jvp,
    Parts,
    Split,
    Transpose,
    arranged,
    check_types,
    equation,
    selected,
    unselected,
)
from arrayfn.primitives.rules import (
    as_list,
    mapped_axes_first,
    not_linear,
    not_none,
    with_nones,
)
from arrayfn.primitives.shard_map_alone import expanded
from arrayfn.primitives.shard_map_types import (
    Specs,
    index_types,
    part_type,
    whole_type,
)


def _types(
    *operands: ArrayType,
    mesh: Mesh,
    in_specs: Specs,
    out_specs: Specs,
    axis_names: tuple[str, ...],
    body: Program,
    typed: bool,
) -> tuple[ArrayType, ...]:
    """Type rule: the whole arrays whose parts the body returns.

    The specs say which axes of the operands and results are cut along which of
    ``axis_names``. The body must take the types of the parts, then an int32 index for
    each of ``axis_names``. With ``typed``, types in the body say along which axes
    values vary.
    """
    if len(operands) != len(in_specs) or len(body.outputs) != len(out_specs):
        raise ShapeError(
            f"shard_map: {len(in_specs)} in_specs and {len(out_specs)} out_specs for "
            f"{len(operands)} operands and {len(body.outputs)} results"
        )
    parts = [
        part_type(x, mesh, spec, typed)
        for x, spec in zip(operands, in_specs, strict=True)
    ]
    part_types = [*parts, *index_types(axis_names, typed)]
    check_types(f"shard_map: parts for {body.name}", part_types, body.input_types)
    return tuple(
        whole_type(t, mesh, spec, axis_names)
        for t, spec in zip(body.output_types, out_specs, strict=True)
    )


def one_device(whole: Equation) -> Program:
    """Build the Program that the shard_map equation ``whole`` runs on one device."""
    return _one_device_program(
        [a.type for a in whole.inputs], whole.params, whole.source
    )


def _one_device_program(
    types: Sequence[ArrayType],
    params: Mapping[str, Any],
    source: SourceLocation | None = None,
) -> Program:
    """Build the Program of a shard_map on one device, for operands of ``types``.

    Its equations get the source line ``source``.
    """
    builder = ProgramBuilder("shard_map")
    builder.source = source
    with builder:
        inputs = [builder.input(type) for type in types]
        return builder.build(expanded(*inputs, **params))


def _reference(*operands: Array, **params: Any) -> tuple[Array, ...]:
    """Interpret the Program that the shard_map runs on one device."""
    program = _one_device_program([type_of(np.asarray(x)) for x in operands], params)
    return tuple(evaluate(program, operands))


# Rules.


def with_specs(body: Program, out_specs: Specs, typed: bool) -> Program:
    """Mark each result of ``body`` as varying along the axes of its spec, by pvary.

    Returns ``body`` unchanged if its types do not say what varies (``typed`` is False).
    """
    if not typed:
        return body
    missing = [
        frozenset(spec.axes()) - t.varying
        for t, spec in zip(body.output_types, out_specs, strict=True)
    ]
    if not any(missing):
        return body
    builder = ProgramBuilder(body.name)
    with builder:
        results = builder.inline(body, builder.inputs_of(body))
        for k, axes in enumerate(missing):
            results[k] = varying_along(results[k], axes)
        return builder.build(results)


def varying_along(x: Atom, axes: Iterable[str]) -> Atom:
    """Emit ``x`` marked as varying along these axes of a mesh, by pvary."""
    for axis in sorted(axes):
        x = pvary(x, axis_name=axis)
    return x


def _indices_last(program: Program, indices: int, first: int) -> Program:
    """Move the inputs that are member indices to the end of the inputs.

    ``indices`` is their number, and ``first`` the position of the first.
    """
    last = first + indices
    inputs = (
        *program.inputs[:first],
        *program.inputs[last:],
        *program.inputs[first:last],
    )
    return arranged(program, inputs, program.outputs)


def _emit(
    operands: Sequence[Atom],
    in_specs: Sequence[PartitionSpec],
    out_specs: Sequence[PartitionSpec],
    body: Program,
    params: Mapping[str, Any],
) -> list[Atom]:
    """Emit a shard_map of ``body`` with the other ``params``; return its outputs.

    Emits nothing if ``body`` has no outputs.
    """
    if not body.outputs:
        return []
    specs = tuple(out_specs)
    return as_list(
        shard_map(
            *operands,
            in_specs=tuple(in_specs),
            out_specs=specs,
            body=with_specs(body, specs, params["typed"]),
            **{name: params[name] for name in ("mesh", "axis_names", "typed")},
        )
    )


def _jvp(
    jvp: Jvp,
    primals: Atoms,
    tangents: Tangents,
    **params: Any,
) -> WithTangents:
    """The jvp rule: a shard_map of the body's jvp on primals and tangents.

    Tangents are cut as their primals.
    """
    body, no_indices = params["body"], [False] * len(params["axis_names"])
    in_specs, out_specs = params["in_specs"], params["out_specs"]
    wrt = [t is not None for t in tangents]
    count = len(body.outputs)
    # The body's last inputs are the member's indices, which have no tangents.
    program, varies = jvp(body, [*wrt, *no_indices], [False] * count)
    program = _indices_last(program, len(no_indices), len(primals))
    results = _emit(
        [*primals, *not_none(tangents)],
        [*in_specs, *selected(in_specs, wrt)],
        [*out_specs, *selected(out_specs, varies)],
        program,
        params,
    )
    return results[:count], with_nones(results[count:], varies)


def _batch(
    batch: Batch,
    axis_size: int,
    inputs: Atoms,
    dims: Dims,
    **params: Any,
) -> Batched:
    """The batching rule: a shard_map of the mapped body.

    The mapped axis is in front of operands and results, and is not cut.
    """
    body, no_indices = params["body"], [False] * len(params["axis_names"])
    operands = mapped_axes_first(inputs, dims)
    mapped = [dim is not None for dim in dims]
    program, varies = batch(
        body, axis_size, [*mapped, *no_indices], [False] * len(body.outputs)
    )
    results = _emit(
        operands,
        _specs_with_mapped(params["in_specs"], mapped),
        _specs_with_mapped(params["out_specs"], varies),
        program,
        params,
    )
    return results, [0 if v else None for v in varies]


def _specs_with_mapped(specs: Specs, mapped: Sequence[bool]) -> list[PartitionSpec]:
    """Return ``specs`` with an entry for an uncut axis in front where ``mapped``."""
    pairs = zip(specs, mapped, strict=True)
    return [PartitionSpec(None, *spec) if has else spec for spec, has in pairs]


def _split(
    split: Split, whole: Equation, unknown: Sequence[bool]
) -> tuple[list[Equation], list[Equation]]:
    """Split a shard_map into a known and a linear one, by ``unknown`` operands.

    The known one returns the known outputs and the residuals; it is left out if there
    are none. A residual that varies along mesh axes gets a leading axis of extent 1,
    which is cut along these axes: the whole array stacks the members' residuals.
    """
    params = dict(whole.params)
    body, mesh, typed = params["body"], params["mesh"], params["typed"]
    in_specs, out_specs = params["in_specs"], params["out_specs"]
    axis_names = params["axis_names"]
    no_indices = [False] * len(axis_names)
    parts = split(body, [*unknown, *no_indices], [False] * len(body.outputs))
    varies = parts.unknown
    residuals = parts.linear.inputs[: parts.residuals]
    specs = [_residual_spec(v.type, axis_names, typed) for v in residuals]
    results = unselected(whole.outputs, varies)

    known_body = _with_stacked_residuals(parts, specs)
    stacked_residuals = [
        Var(whole_type(a.type, mesh, spec, axis_names))
        for a, spec in zip(known_body.outputs[len(results) :], specs, strict=True)
    ]
    known: list[Equation] = []
    if known_body.outputs:
        known_specs = (*unselected(out_specs, varies), *specs)
        known.append(
            equation(
                shard_map,
                unselected(whole.inputs, unknown),
                {
                    **params,
                    "in_specs": tuple(unselected(in_specs, unknown)),
                    "out_specs": known_specs,
                    "body": with_specs(known_body, known_specs, typed),
                },
                [*results, *stacked_residuals],
                whole,
            )
        )

    stacked_types = [
        part_type(v.type, mesh, spec, typed)
        for v, spec in zip(stacked_residuals, specs, strict=True)
    ]
    linear_body = _reading_stacked_residuals(
        parts, stacked_types, specs, index_types(axis_names, typed)
    )
    linear_specs = tuple(selected(out_specs, varies))
    linear = equation(
        shard_map,
        [*stacked_residuals, *selected(whole.inputs, unknown)],
        {
            **params,
            "in_specs": (*specs, *selected(in_specs, unknown)),
            "out_specs": linear_specs,
            "body": with_specs(linear_body, linear_specs, typed),
        },
        selected(whole.outputs, varies),
        whole,
    )
    return known, [linear]


def _residual_spec(
    type: ArrayType, axis_names: Sequence[str], typed: bool
) -> PartitionSpec:
    """Return the spec of a stacked residual, with an entry for its leading axis.

    The leading axis is cut along those of ``axis_names`` that the residual varies
    along: the axes that ``type`` names if ``typed``, else all. A residual that does not
    vary is not stacked, and the spec is empty.
    """
    varies = [name for name in axis_names if not typed or name in type.varying]
    return spec_of([tuple(varies)])


def _with_stacked_residuals(parts: Parts, specs: Sequence[PartitionSpec]) -> Program:
    """Return the known body, with a leading axis for residuals that ``specs`` cut."""
    builder = ProgramBuilder(parts.known.name)
    with builder:
        results = builder.inline(parts.known, builder.inputs_of(parts.known))
        first = len(results) - parts.residuals
        for k, spec in enumerate(specs, first):
            results[k] = _stacked(results[k], spec)
        return builder.build(results)


def _reading_stacked_residuals(
    parts: Parts,
    stacked: Sequence[ArrayType],
    specs: Sequence[PartitionSpec],
    indices: Sequence[ArrayType],
) -> Program:
    """Build the linear body, which removes the leading axis of stacked residuals.

    Its inputs are the residuals, of types ``stacked``, the unknown operands, and the
    member's indices, of types ``indices``, which are not read.
    """
    builder = ProgramBuilder(parts.known.name)
    with builder:
        residuals = [builder.input(type) for type in stacked]
        operands = [builder.input(v.type) for v in parts.linear.inputs[len(stacked) :]]
        for type in indices:
            builder.input(type)
        values = [
            views.reshape(x, shape=v.type.shape) if spec else x
            for x, v, spec in zip(residuals, parts.linear.inputs, specs, strict=False)
        ]
        return builder.build(builder.inline(parts.linear, [*values, *operands]))


def _stacked(x: Atom, spec: PartitionSpec) -> Atom:
    """Emit ``x`` with a leading axis of extent 1, or ``x`` if ``spec`` is empty."""
    return views.reshape(x, shape=(1, *x.type.shape)) if spec else x


def _transpose(
    transpose: Transpose,
    cotangents: Tangents,
    inputs: Operands,
    **params: Any,
) -> Tangents:
    """The transpose rule: a shard_map of the transposed body.

    Cotangents are cut as the arrays they belong to. With ``typed``, the transposes of
    pvary and all_reduce count shared values once; else ``_counted_once`` does.
    """
    body, mesh, typed = params["body"], params["mesh"], params["typed"]
    in_specs, out_specs = params["in_specs"], params["out_specs"]
    axis_names = params["axis_names"]
    linear = [isinstance(x, Linear) for x in inputs]
    given_cotangents = [ct is not None for ct in cotangents]
    no_indices = [False] * len(axis_names)
    program, has_cotangent = transpose(
        body, [*linear, *no_indices], given_cotangents, [False] * sum(linear)
    )
    known = not_linear(inputs)
    program = _indices_last(program, len(axis_names), len(known))
    results_specs = selected(selected(in_specs, linear), has_cotangent)
    if not typed:
        ct_specs = selected(out_specs, given_cotangents)
        sizes = {name: mesh.shape[name] for name in axis_names}
        program = _counted_once(program, sizes, len(known), ct_specs, results_specs)
    results = _emit(
        [*known, *not_none(cotangents)],
        [*unselected(in_specs, linear), *selected(out_specs, given_cotangents)],
        results_specs,
        program,
        params,
    )
    return with_nones(with_nones(results, has_cotangent), linear)


def _counted_once(
    program: Program,
    sizes: Mapping[str, int],
    known: int,
    cotangents: Sequence[PartitionSpec],
    results: Sequence[PartitionSpec],
) -> Program:
    """Make a transposed body count values once that several members share.

    This is for bodies whose types do not say what varies. If all members along an axis
    have the same result, each gets an equal fraction of its cotangent. If all members
    along an axis have the same operand, its cotangent is the sum of the members'.

    Args:
        program: the transposed body. It takes known operands, then cotangents.
        sizes: the numbers of members along each axis.
        known: the number of known operands.
        cotangents: the spec of each cotangent that ``program`` takes.
        results: the spec of each cotangent that ``program`` returns.
    """
    builder = ProgramBuilder(program.name)
    with builder:
        inputs: list[Atom] = list(builder.inputs_of(program))
        for k, spec in enumerate(cotangents, known):
            shared = [n for name, n in sizes.items() if name not in spec.axes()]
            # The cotangents of integers are zeros.
            if math.prod(shared) > 1 and inputs[k].type.dtype in dtypes.INEXACT:
                inputs[k] = e.div(inputs[k], math.prod(shared))
        outputs = builder.inline(program, inputs)
        for k, spec in enumerate(results):
            for name in sizes:
                if name not in spec.axes():
                    outputs[k] = summed_over(outputs[k], name)
        return builder.build(outputs)


def _samples() -> Iterable[Sample]:
    """Yield rows scaled and summed over a mesh axis, typed or not, for table tests."""
    mesh = Mesh((2, 3), ("i", "j"))
    in_specs = (PartitionSpec("i", "j"), PartitionSpec("j"))
    for typed in (True, False):
        types = [ArrayType((4, 6), dtypes.float32), ArrayType((6,), dtypes.float32)]
        builder = ProgramBuilder("scaled_rows")
        with builder:
            parts = [
                builder.input(part_type(t, mesh, spec, typed))
                for t, spec in zip(types, in_specs, strict=True)
            ]
            for type in index_types(mesh.axis_names, typed):
                builder.input(type)
            x, y = parts
            scaled = e.mul(x, views.broadcast_in_dim(y, shape=(2, 2), axes=(1,)))
            total = summed_over(scaled, "j")
            body = builder.build([scaled, total])
        arrays = [
            families.random_array(t.dtype, t.shape, 131 + k, -2.0, 2.0)
            for k, t in enumerate(types)
        ]
        yield Sample(
            tuple(arrays),
            {
                "mesh": mesh,
                "in_specs": in_specs,
                "out_specs": (PartitionSpec("i", "j"), PartitionSpec("i")),
                "axis_names": mesh.axis_names,
                "body": body,
                "typed": typed,
            },
        )


shard_map = Primitive(
    name="shard_map",
    family="mesh",
    types=_types,
    reference=_reference,
    kernel=Composition(expanded),
    jvp=OverPrograms(_jvp),
    transpose=OverPrograms(_transpose),
    batch=OverPrograms(_batch),
    split=OverPrograms(_split),
    samples=_samples,
    doc="A Program that each member of a mesh runs on its parts of the operands.",
    variance=OWN_VARIANCE,
)

ROWS = (shard_map,)
