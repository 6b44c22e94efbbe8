"""``shard_map``: one function for all devices of a mesh, each with its parts."""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from arrayfn import tree
from arrayfn.errors import ArgumentError, ArrayfnError, ShapeError, user_location
from arrayfn.ir import ArrayType, Literal, Mesh, PartitionSpec, Program
from arrayfn.ir.builder import ProgramBuilder
from arrayfn.ir.sharding import check_spec, names_in
from arrayfn.primitives import shard_map as row
from arrayfn.primitives.rules import as_list
from arrayfn.primitives.shard_map_alone import OneDevice
from arrayfn.primitives.shard_map_types import part_type
from arrayfn.tracing import ImmutableArray, apply
from arrayfn.tracing.meshes import asked_mesh, axes_around
from arrayfn.transforms.arguments import (
    Function,
    check_function,
    check_leaf,
    leaf_type,
    shown_name,
)
from arrayfn.transforms.batching import batch_varying
from arrayfn.transforms.flat_trace import trace_function
from arrayfn.transforms.mapping import with_fixed_leaves

OneDevice.batch = batch_varying


def shard_map(
    function: Function | None = None,
    *,
    mesh: Mesh | None = None,
    in_specs: Any,
    out_specs: Any,
    axis_names: Collection[str] = frozenset(),
    check_vma: bool = True,
) -> Any:
    """Run ``function`` on each device of ``mesh``, on its parts of the arguments.

    Without ``mesh``, the mesh of ``set_mesh`` at the time of the call is used. Inside
    the function of another ``shard_map``, it is the mesh of that one. ``in_specs`` has
    a PartitionSpec for each positional argument, or a pytree prefix of them, and
    ``out_specs`` has those of the result. A spec says which axes of the mesh cut which
    axes of an array. Along axes of the mesh that a spec does not name, all devices have
    the same part. The same is true for arrays for which ``in_specs`` has None. Values
    that are not arrays reach the function unchanged. Inside the function ``lax.psum(x,
    "data")`` and other collectives combine the values of devices along an axis of the
    mesh.

    ``axis_names`` are the axes that specs and collectives use, by default all axes of
    the mesh. Along other axes, all devices have the same parts and compute the same
    values. Only a ``shard_map`` inside ``function`` may use these axes.

    The types of values say along which axes of the mesh a value varies. For example,
    the sum over an axis does not vary along that axis. The derivative with respect to a
    value that does not vary is summed over the devices. With ``check_vma=False``, types
    do not record the axes along which values vary. Then derivatives are not summed over
    devices, and ``out_specs`` are not checked.

    Raises ShapeError if an extent is not a multiple of the number of parts, or if an
    output varies along an axis that its spec does not name. Raises ArgumentError for
    specs that do not fit the mesh or the arguments.

    >>> from arrayfn import lax, set_num_devices
    >>> from arrayfn import PartitionSpec as P
    >>> set_num_devices(8)
    >>> mesh = Mesh((2,), ("x",))
    >>> share = shard_map(
    ...     lambda x: x / lax.psum(x.sum(), "x"),
    ...     mesh=mesh, in_specs=P("x"), out_specs=P("x"),
    ... )
    >>> np.asarray(share(np.array([1.0, 2.0, 4.0, 1.0])))
    array([0.125, 0.25 , 0.5  , 0.125])
    """
    if function is None:
        return functools.partial(
            shard_map,
            mesh=mesh,
            in_specs=in_specs,
            out_specs=out_specs,
            axis_names=axis_names,
            check_vma=check_vma,
        )
    check_function("shard_map", function)
    if mesh is not None and not isinstance(mesh, Mesh):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ArgumentError(
            f"shard_map: mesh must be an arrayfn.Mesh, not {type(mesh).__name__}",
            user_location(),
        )
    chosen_mesh = mesh

    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        """Trace the function of one member's parts, and apply it over the mesh."""
        name = shown_name(function)
        # The specs of arguments; leaves that are no arrays are bound to the function.
        around, mesh = _mesh_around(name, chosen_mesh)
        axes = _own_axes(mesh, axis_names, around)
        prefix = tuple(in_specs) if isinstance(in_specs, list) else in_specs
        specs = _specs_of_leaves("in_specs", prefix, args, mesh, name)
        _check_axes_of("in_specs", specs, axes, around)
        leaves, structure = tree.flatten((args, {}))
        member, member_args = function, args
        if objects := _objects_without_spec(prefix, args):
            member = with_fixed_leaves(member, structure, objects)
            specs = [spec for k, spec in enumerate(specs) if k not in objects]
            leaves = [leaf for k, leaf in enumerate(leaves) if k not in objects]
            member_args = tuple(leaves)
        # Trace the function of one member, whose inputs have the types of parts.
        types = [
            _part_type(name, position, leaf, mesh, spec, check_vma)
            for position, (leaf, spec) in enumerate(zip(leaves, specs, strict=True))
        ]
        traced = trace_function(
            member,
            member_args,
            {},
            types=types,
            abstract=True,
            with_values=False,
            axes=axes,
            constants=False,
            mesh=mesh,
            varying=check_vma,
        )
        captured = traced.trace.captured
        # The specs of results, for which a tree like the result is needed.
        out_tree = traced.out_tree
        placeholder = tree.unflatten(out_tree, [0] * out_tree.num_leaves)
        outs = _specs_of_leaves("out_specs", out_specs, placeholder, mesh, name)
        _check_axes_of("out_specs", outs, axes, around)
        body = _captured_first(traced.program, len(leaves), len(axes))
        _check_outputs(name, body, outs, axes)
        results = apply(
            row.shard_map,
            *leaves,
            *captured,
            mesh=mesh,
            in_specs=(*specs, *[PartitionSpec()] * len(captured)),
            out_specs=tuple(outs),
            axis_names=tuple(axes),
            body=row.with_specs(body, tuple(outs), check_vma),
            typed=check_vma,
        )
        return tree.unflatten(out_tree, as_list(results))

    return wrapper


def _mesh_around(name: str, chosen: Mesh | None) -> tuple[frozenset[str], Mesh]:
    """Return the axes of the enclosing shard_maps, and the mesh to use.

    The mesh is ``chosen``, or by default that of the enclosing shard_map, or else that
    of ``set_mesh``. Raises ArgumentError if ``chosen`` differs from the enclosing
    shard_map's mesh. ``name`` is the function's, for messages.
    """
    axes, mesh = axes_around()
    if chosen is None:
        chosen = asked_mesh(f"shard_map of {name}") if mesh is None else mesh
    elif mesh not in (None, chosen):
        raise ArgumentError(
            f"shard_map of {name}: it is inside another one, on the mesh ({mesh}), so "
            f"that its mesh must be the same, and not ({chosen}); leave mesh out",
            user_location(),
        )
    return axes, chosen


def _own_axes(
    mesh: Mesh, axis_names: Collection[str], around: frozenset[str]
) -> dict[str, int]:
    """Return the axes of ``mesh`` that a shard_map runs along, with their sizes.

    They are the axes in ``axis_names``, or all if that is empty, without ``around``,
    the axes of enclosing shard_maps. Raises ArgumentError for an unknown name.
    """
    names = names_in(axis_names)
    unknown = [name for name in names if name not in mesh.axis_names]
    if unknown:
        raise ArgumentError(
            f"shard_map: axis_names has {unknown[0]!r}, but the axes of the mesh are "
            f"{', '.join(map(repr, mesh.axis_names))}",
            user_location(),
        )
    return {
        name: size
        for name, size in mesh.shape.items()
        if (not names or name in names) and name not in around
    }


def _check_axes_of(
    what: str,
    specs: Sequence[PartitionSpec],
    axes: Collection[str],
    around: frozenset[str],
) -> None:
    """Raise ArgumentError if ``specs`` name mesh axes other than ``axes``.

    ``what`` is the argument that has the specs. ``around`` are the axes of enclosing
    shard_maps.
    """
    for spec in specs:
        for name in spec.axes():
            if name not in axes:
                why = (
                    f"{name!r} is an axis of the shard_map around it, which has cut "
                    "along it"
                    if name in around
                    else f"axis_names leaves out {name!r}, along which all devices "
                    "have the same parts"
                )
                raise ArgumentError(
                    f"shard_map: {what} has {spec!r}, but {why}", user_location()
                )


def _objects_without_spec(specs: Any, args: tuple[Any, ...]) -> dict[int, Any]:
    """Return the leaves of ``args`` without a spec that are no arrays, by position."""
    arrays = (np.ndarray, np.generic, ImmutableArray)
    pairs = zip(tree.broadcast_prefix(specs, args), tree.leaves(args), strict=True)
    return {
        position: leaf
        for position, (spec, leaf) in enumerate(pairs)
        if spec is None and not isinstance(leaf, arrays)
    }


def _specs_of_leaves(
    what: str, specs: Any, of: Any, mesh: Mesh, name: str
) -> list[Any]:
    """Return a checked PartitionSpec for each leaf of ``of``, from a prefix.

    None becomes a spec that cuts nothing. ``specs`` is the argument ``what`` of a
    shard_map of the function ``name``.
    """
    try:
        spread = tree.broadcast_prefix(specs, of)
    except ValueError as error:
        raise ArgumentError(
            f"shard_map: {what} = {specs} is not a prefix of what {name} "
            f"{'takes' if what == 'in_specs' else 'returns'}: "
            f"{tree.text_of(tree.structure(of))}",
            user_location(),
        ) from error
    leaf_specs = [PartitionSpec() if spec is None else spec for spec in spread]
    for spec in leaf_specs:
        if not isinstance(spec, PartitionSpec):
            raise ArgumentError(
                f"shard_map: {what} has {spec!r}, which is not a PartitionSpec",
                user_location(),
            )
        check_spec(spec, mesh, f"shard_map: {what}")
    return leaf_specs


def _part_type(
    name: str,
    position: int,
    leaf: Any,
    mesh: Mesh,
    spec: PartitionSpec,
    typed: bool,
) -> ArrayType:
    """Return the type of a member's part of ``leaf``, which is leaf ``position``.

    If ``typed``, the type says along which axes of the mesh the value varies.
    """
    check_leaf(leaf, f"shard_map: an argument of {name}")
    try:
        return part_type(leaf_type(leaf), mesh, spec, typed)
    except ArrayfnError as error:
        raise type(error)(
            f"shard_map of {name}, argument {position}: {error.message}",
            user_location(),
        ) from None


def _captured_first(program: Program, arguments: int, axes: int) -> Program:
    """Move captured values, the last inputs of ``program``, before the indices.

    The inputs are ``arguments`` arguments, ``axes`` indices of the member, and captured
    values. Their new types have no varying axes or sharding.
    """
    inputs = program.inputs
    ordered = (
        *inputs[:arguments],
        *inputs[arguments + axes :],
        *inputs[arguments : arguments + axes],
    )
    builder = ProgramBuilder(program.name)
    with builder:
        new_inputs = {v: builder.input(v.type.plain(), v.hint) for v in ordered}
        inputs_of_program = [new_inputs[v] for v in inputs]
        return builder.build(builder.inline(program, inputs_of_program))


def _check_outputs(
    name: str, body: Program, specs: Sequence[PartitionSpec], axes: Collection[str]
) -> None:
    """Raise ShapeError if an output varies along one of ``axes`` not in its spec.

    If types do not say what varies, none does.
    """
    for position, (atom, spec) in enumerate(zip(body.outputs, specs, strict=True)):
        spec.entries(atom.type.ndim)  # raises an error if the spec is too long
        extra = sorted(atom.type.varying.intersection(axes) - set(spec.axes()))
        if not extra:
            continue
        origin = "" if isinstance(atom, Literal) else _made_at(body, atom)
        raise ShapeError(
            f"shard_map of {name}: out_specs {spec!r} say that output {position} is "
            f"the same for all members along {extra[0]!r}, but it varies{origin}. "
            f"Combine the members' values with lax.psum(y, {extra[0]!r}), for example, "
            f"or name {extra[0]!r} in out_specs",
            user_location(),
        )


def _made_at(body: Program, atom: Any) -> str:
    """Return where ``atom`` was computed, as "(computed at model.py:7)".

    Empty if unknown.
    """
    for equation in body.equations:
        if atom in equation.outputs and equation.source is not None:
            return f" (computed at {equation.source})"
    return ""
