"""Batching: maps a Program along a new axis of its inputs, as another Program."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from arrayfn.errors import ArrayfnError, located
from arrayfn.ir import ArrayType, Atom, Equation, Program, Var, entry_of
from arrayfn.ir.builder import ProgramBuilder, rename
from arrayfn.primitives import emitters
from arrayfn.primitives.base import (
    THROUGH_BODY,
    ByAxis,
    Dim,
    MappedAxis,
    Marker,
    OverPrograms,
    primitive_of,
)
from arrayfn.primitives.rules import as_list, mapped_axes_first, repeated


def batch(
    program: Program,
    size: int,
    in_dims: Sequence[Dim],
    out_dims: Sequence[Dim],
    axis_name: str | None = None,
    mesh_axes: tuple[str, ...] = (),
) -> Program:
    """Map ``program`` along axes ``in_dims`` of its inputs, of extent ``size``.

    Outputs are mapped along ``out_dims``; those that do not vary are repeated. A dim of
    None means not mapped: such an output must not vary. ``f(x: [3], y: [3]) -> x + y``
    with ``size=2``, ``in_dims=(0, None)`` and ``out_dims=(0,)`` becomes
    ``f(x: [2, 3], y: [3]) -> [2, 3]``. Collectives over ``axis_name`` combine the
    members of this axis. Where a constraint cuts a value over a mesh, the mapped axis
    lies along ``mesh_axes``.
    """
    axis = MappedAxis(size, axis_name, mesh_axes)
    builder = ProgramBuilder(f"batched_{program.name}")
    with builder:
        inputs = [
            builder.input(mapped_type(t, size, dim))
            for t, dim in zip(program.input_types, in_dims, strict=True)
        ]
        outputs, dims = _emit_batched(builder, program, axis, inputs, in_dims)
        placed = [
            move_mapped_axis(size, x, dim, wanted)
            for x, dim, wanted in zip(outputs, dims, out_dims, strict=True)
        ]
    return builder.build(placed)


def batch_varying(
    program: Program,
    size: int,
    mapped: Sequence[bool],
    dense: Sequence[bool],
    *,
    axis_name: str | None = None,
    mesh_axes: tuple[str, ...] = (),
) -> tuple[Program, list[bool]]:
    """Map ``program`` along axis 0 of some inputs; also return which outputs vary.

    Inputs marked in ``mapped`` get a new axis 0 of extent ``size``. Outputs marked in
    ``dense`` are always mapped, by repetition if they do not vary. ``axis_name`` and
    ``mesh_axes`` are as in ``batch``.
    """
    axis = MappedAxis(size, axis_name, mesh_axes)
    builder = ProgramBuilder(f"batched_{program.name}")
    with builder:
        in_dims: list[Dim] = [0 if m else None for m in mapped]
        inputs = [
            builder.input(mapped_type(v.type, size, dim), v.hint)
            for v, dim in zip(program.inputs, in_dims, strict=True)
        ]
        outputs, dims = _emit_batched(builder, program, axis, inputs, in_dims)
        wanted = [
            0 if dim is not None or forced else None
            for dim, forced in zip(dims, dense, strict=True)
        ]
        placed = [
            move_mapped_axis(size, x, dim, to)
            for x, dim, to in zip(outputs, dims, wanted, strict=True)
        ]
    return builder.build(placed), [dim is not None for dim in wanted]


def mapped_type(type: ArrayType, size: int, dim: Dim) -> ArrayType:
    """Return ``type`` with a mapped axis of extent ``size`` inserted at ``dim``."""
    if dim is None:
        return type
    shape = (*type.shape[:dim], size, *type.shape[dim:])
    return ArrayType(shape, type.dtype, weak=type.weak, varying=type.varying)


def move_mapped_axis(size: int, x: Atom, dim: Dim, wanted: Dim) -> Atom:
    """Move the mapped axis of ``x`` from ``dim`` to ``wanted``.

    If ``x`` is not mapped, it is repeated ``size`` times. It stays if ``wanted`` is
    None.
    """
    if wanted is None:
        return x
    return emitters.move_axis(repeated(size, x, dim), 0, wanted)


def _emit_batched(
    builder: ProgramBuilder,
    program: Program,
    axis: MappedAxis,
    inputs: Sequence[Atom],
    dims: Sequence[Dim],
) -> tuple[list[Atom], list[Dim]]:
    """Emit ``program`` mapped along ``dims``; return its outputs and their dims.

    ``dims`` has the mapped axis of each of ``inputs``, or None. An equation without a
    mapped operand is emitted as it is, unless it is a collective over the mapped axis.
    """
    values = builder.bind_inputs(program, inputs)
    mapped: dict[Var, Dim] = dict(zip(program.inputs, dims, strict=True))
    for equation in program.equations:
        builder.source = equation.source
        operand_dims = [entry_of(a, mapped) for a in equation.inputs]
        if all(dim is None for dim in operand_dims) and not _is_over(
            equation, axis.name
        ):
            builder.replay(equation, values)
            continue
        operands = [rename(a, values) for a in equation.inputs]
        try:
            outputs, output_dims = _apply_rule(equation, axis, operands, operand_dims)
        except ArrayfnError as error:
            raise located(error, equation.source) from None
        values.update(zip(equation.outputs, outputs, strict=True))
        mapped.update(zip(equation.outputs, output_dims, strict=True))
    outputs = [rename(a, values) for a in program.outputs]
    return outputs, [entry_of(a, mapped) for a in program.outputs]


def _apply_rule(
    equation: Equation, axis: MappedAxis, operands: Sequence[Atom], dims: Sequence[Dim]
) -> tuple[Sequence[Atom], Sequence[Dim]]:
    """Emit a mapped equation by its primitive's batching rule.

    ``dims`` are the mapped axes of ``operands``, None of those that are not mapped.
    Returns the outputs and their mapped axes.
    """
    primitive = primitive_of(equation)
    if primitive.batch == THROUGH_BODY:
        body: Program = equation.params["body"]
        params: dict[str, Any] = dict(equation.params)
        if "static" in params:  # an operator; a kernel may compute the mapped one
            operands = mapped_axes_first(operands, dims)
            dims = [None if dim is None else 0 for dim in dims]
            is_mapped = tuple(dim is not None for dim in dims)
            params["mapped"] = ((axis.size, is_mapped), *params.get("mapped", ()))
        outs = [0] * len(body.outputs)
        params["body"] = batch(body, axis.size, dims, outs, axis.name, axis.mesh_axes)
        outputs = as_list(primitive(*operands, **params))
        return outputs, [0] * len(outputs)
    if isinstance(primitive.batch, OverPrograms):
        name = None if _hides(equation, axis.name) else axis.name
        inner = functools.partial(
            batch_varying, axis_name=name, mesh_axes=axis.mesh_axes
        )
        return primitive.batch.rule(inner, axis.size, operands, dims, **equation.params)
    if isinstance(primitive.batch, ByAxis):
        return primitive.batch.rule(axis, operands, dims, **equation.params)
    assert not isinstance(primitive.batch, Marker)
    return primitive.batch(axis.size, operands, dims, **equation.params)


def _is_over(equation: Equation, name: str | None) -> bool:
    """Whether ``equation``, or one in its Programs, has a collective over ``name``."""
    if name is None or _hides(equation, name):
        return False
    if equation.params.get("axis_name") == name:
        return True
    return any(
        _is_over(inner, name)
        for program in equation.subprograms()
        for inner in program.equations
    )


def _hides(equation: Equation, name: str | None) -> bool:
    """Whether ``name`` means an axis of a mesh inside ``equation``, a shard_map."""
    return name in equation.params.get("axis_names", ())
