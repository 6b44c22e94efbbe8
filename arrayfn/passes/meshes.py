"""Finds the mesh that a Program is for, and inputs that the host can cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from arrayfn.errors import ArgumentError
from arrayfn.ir import (
    Atom,
    Equation,
    Mesh,
    NamedSharding,
    PartitionSpec,
    Program,
    walk,
)
from arrayfn.ir.builder import ProgramBuilder
from arrayfn.primitives.reshard import reshard
from arrayfn.primitives.shard_map import shard_map


def mesh_of(program: Program) -> Mesh | None:
    """Return the mesh that ``program`` is for, or None.

    Raises ArgumentError if there are two.
    """
    first: Mesh | None = None
    for mesh, location in _meshes(program):
        if first is None:
            first = mesh
        elif first != mesh:
            raise ArgumentError(
                f"{program.name} is for one mesh, but has arrays or shard_maps of two: "
                f"({first}) on devices {list(first.device_ids)} and ({mesh}) on "
                f"devices {list(mesh.device_ids)}; move the arrays of one with "
                "device_put",
                location,
            )
    return first


def has_shard_map(program: Program) -> bool:
    """Whether an equation of ``program``, or inside one, is a shard_map."""
    return any(eq.primitive is shard_map for eq in walk(program.equations))


def _meshes(program: Program) -> Iterator[tuple[Mesh, Any]]:
    """Yield each mesh in ``program``, with the source line of its equation."""
    for var in (*program.inputs, *program.constants):
        if var.type.sharding is not None:
            yield var.type.sharding.mesh, None
    for equation in walk(program.equations):
        if "mesh" in equation.params:
            yield equation.params["mesh"], equation.source


def has_mesh(equation: Equation) -> bool:
    """Whether a Program in ``equation`` is for a mesh."""
    return any(True for inner in equation.subprograms() for _ in _meshes(inner))


def cut_on_the_host(program: Program, mesh: Mesh) -> Program:
    """Give inputs the sharding that all equations which read them ask for.

    The host then copies to each device of ``mesh`` only its part of these inputs.
    """
    # None stands for a use that needs the whole array.
    specs_by_input: dict[Atom, set[PartitionSpec | None]] = {}
    for equation in program.equations:
        specs: Sequence[PartitionSpec | None] = (None,) * len(equation.inputs)
        if equation.primitive is shard_map:
            specs = equation.params["in_specs"]
        elif equation.primitive is reshard:
            specs = (equation.params["spec"],)
        for atom, spec in zip(equation.inputs, specs, strict=True):
            specs_by_input.setdefault(atom, set()).add(spec)
    for atom in program.outputs:
        specs_by_input.setdefault(atom, set()).add(None)
    builder = ProgramBuilder(program.name)
    with builder:
        inputs: list[Atom] = []
        for var in program.inputs:
            specs = list(specs_by_input.get(var, ()))
            type = var.type
            if type.sharding is None and len(specs) == 1 and specs[0] is not None:
                type = replace(type, sharding=NamedSharding(mesh, specs[0]))
            inputs.append(builder.input(type, var.hint))
        return builder.build(builder.inline(program, inputs))
