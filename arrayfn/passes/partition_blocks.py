"""Programs whose bits do not depend on the number of devices.

A mesh axis of d devices is taken for one of n members, where d divides n, a power of
two, and each device computes the *blocks* of n / d members. ``partition_in_blocks``
takes the Program of one member (``partition``) and gives that of a device.

Equations between two collectives become the body of a scan over the device's blocks,
whose ``unroll`` of 0 says that the body is compiled as it stands. What all members
compute alike becomes such a body too, of one iteration. So every device runs the same
kernels on arrays of the same shapes, whatever its number of blocks, and nothing that is
fused, rounded or moved out of a loop can depend on it. Collectives move the blocks, and
add them by one binary tree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from arrayfn import dtypes
from arrayfn.errors import ArgumentError, SourceLocation, user_location
from arrayfn.ir import ArrayType, Atom, Mesh, Program, walk
from arrayfn.ir.builder import ProgramBuilder
from arrayfn.passes.block_segments import BlockAxis, Blocks
from arrayfn.passes.moves import Spec, joined, split
from arrayfn.passes.partition import partition
from arrayfn.passes.partition_values import Partitioned, spec_of_type
from arrayfn.primitives import elementwise as e
from arrayfn.primitives import views
from arrayfn.primitives.reshard import reshard
from arrayfn.primitives.shard_map import shard_map


def partition_in_blocks(program: Program, mesh: Mesh, parts: int) -> Partitioned:
    """Return the Program that each device of ``mesh`` runs, in blocks.

    Each mesh axis that cuts an array is taken for an axis of ``parts`` members. The
    Program of one member becomes that of a device along one mesh axis after the other.

    Raises ArgumentError, with the user's line, for what cannot be cut so: see
    ``_check``.
    """
    _check(program, mesh, parts)
    names = [a for a in mesh.axis_names if any(a in s for s in _entries(program))]
    sizes = tuple(parts if a in names else n for a, n in mesh.shape.items())
    partitioned = partition(program, Mesh(sizes, mesh.axis_names))
    local = partitioned.program
    inputs = [spec_of_type(v.type) for v in program.inputs]
    outputs = [
        spec.entries(v.type.ndim)
        for spec, v in zip(partitioned.out_specs, local.outputs, strict=True)
    ]
    for position, name in enumerate(mesh.axis_names):
        if name in names:
            axis = BlockAxis(name, parts, mesh.shape[name])
            index = len(inputs) + position  # indices along the mesh axes come last
            local = _device_program(local, axis, inputs, outputs, index)
    return replace(partitioned, program=local, mesh=mesh)


def _entries(program: Program) -> Iterator[tuple[str, ...]]:
    """Yield the mesh axes that cut each axis of each array in ``program``."""
    for var in program.inputs:
        yield from spec_of_type(var.type)
    for equation in walk(program.equations):
        if equation.primitive is reshard:
            yield from equation.params["spec"].entries(equation.inputs[0].type.ndim)


def _check(program: Program, mesh: Mesh, parts: int) -> None:
    """Raise ArgumentError unless ``program`` can be computed in ``parts`` blocks."""
    call = user_location()
    for var in program.inputs:
        _check_cut(var.type, spec_of_type(var.type), mesh, parts, call)
    for equation in walk(program.equations):
        if equation.primitive is shard_map:
            raise ArgumentError(
                f"deterministic={parts}: the function of a shard_map says itself what "
                "its devices compute, so its bits depend on their number; let jit cut "
                "arrays by in_shardings, or leave deterministic=True",
                equation.source,
            )
        if equation.primitive is reshard:
            type = equation.inputs[0].type
            spec = equation.params["spec"].entries(type.ndim)
            _check_cut(type, spec, mesh, parts, equation.source)


def _check_cut(
    type: ArrayType, spec: Spec, mesh: Mesh, parts: int, where: SourceLocation | None
) -> None:
    """Raise ArgumentError unless ``spec`` cuts an array of ``type`` into blocks.

    Each axis must be cut by at most one mesh axis, and ``parts``, the number of blocks,
    must be a multiple of that mesh axis's extent and divide the array's. ``where`` is
    the line that the error names.
    """
    whole = type.plain()
    for axis, entry in enumerate(spec):
        for name in entry:
            if parts % mesh.shape[name]:
                raise ArgumentError(
                    f"deterministic={parts}: {mesh.shape[name]} devices along axis "
                    f"{name!r} of the mesh do not divide {parts} blocks",
                    where,
                )
        if len(entry) > 1:
            raise ArgumentError(
                f"deterministic={parts}: axis {axis} of {whole} is cut by the mesh "
                f"axes {' and '.join(entry)}; cut it by one",
                where,
            )
        if entry and type.shape[axis] % parts:
            raise ArgumentError(
                f"deterministic={parts}: axis {axis} of {whole} is cut by "
                f"{entry[0]!r}, but is not a multiple of {parts} blocks; pad it",
                where,
            )


def _device_program(
    program: Program,
    axis: BlockAxis,
    in_specs: Sequence[Spec],
    out_specs: Sequence[Spec],
    index: int,
) -> Program:
    """Turn the Program of a member along ``axis`` into that of a device.

    ``in_specs`` say how the mesh cuts the array inputs, and ``out_specs`` the outputs.
    An array that ``axis`` cuts becomes larger: a device has the parts of all its
    blocks. Input number ``index`` is the member's index along the axis. It becomes the
    device's, from which the indices of the blocks are computed.
    """
    count = axis.blocks
    in_dims = [_dim_of(axis.name, spec) for spec in in_specs]
    in_dims += [None] * (len(program.inputs) - len(in_dims))
    varying = [dim is not None or k == index for k, dim in enumerate(in_dims)]
    builder = ProgramBuilder(program.name)
    with builder:
        values: list[Atom] = []
        for k, (var, dim) in enumerate(zip(program.inputs, in_dims, strict=True)):
            shape = list(var.type.shape)
            if dim is not None:
                shape[dim] *= count
            x = builder.input(var.type.with_shape(tuple(shape)), var.hint)
            if dim is not None:
                values.append(split(x, dim, count))
            elif k == index:
                # The indices of the device's blocks: index * count + (0, 1, ...).
                numbers = views.iota(shape=(count,), axis=0, dtype=dtypes.int32)
                first = views.broadcast_in_dim(e.mul(x, count), shape=(count,), axes=())
                values.append(e.add(first, numbers))
            else:
                values.append(x)
        blocks = Blocks(axis, program, varying, values)
        outputs: list[Atom] = []
        for atom, spec in zip(program.outputs, out_specs, strict=True):
            dim = _dim_of(axis.name, spec)
            if dim is None:
                outputs.append(blocks.unstacked(atom))
            else:
                outputs.append(joined(blocks.stacked(atom), dim))
        return builder.build(outputs)


def _dim_of(name: str, spec: Spec) -> int | None:
    """Return the axis of an array that the mesh axis ``name`` cuts.

    None for no axis.
    """
    return next((dim for dim, entry in enumerate(spec) if name in entry), None)
