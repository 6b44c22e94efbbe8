"""Types of the parts of arrays that ``shard_map`` cuts, and of members' indices."""

from __future__ import annotations

from collections.abc import Sequence

from arrayfn import dtypes
from arrayfn.ir import ArrayType, Mesh, PartitionSpec
from arrayfn.ir.sharding import NamedSharding, Shape

Specs = tuple[PartitionSpec, ...]


def index_types(axis_names: Sequence[str], typed: bool) -> list[ArrayType]:
    """Return the types of a member's indices along these axes of a mesh.

    If ``typed``, each index varies along its axis.
    """
    return [
        ArrayType((), dtypes.int32, varying=frozenset((name,) if typed else ()))
        for name in axis_names
    ]


def part_type(
    type: ArrayType, mesh: Mesh, spec: PartitionSpec, typed: bool
) -> ArrayType:
    """Return the type of a member's part of an array of ``type`` that ``spec`` cuts.

    If ``typed``, the part varies along the mesh axes of the spec, besides those of
    ``type``.
    """
    shape = NamedSharding(mesh, spec).shard_shape(type.shape)
    varying = type.varying.union(spec.axes() if typed else ())
    return ArrayType(shape, type.dtype, weak=type.weak, varying=varying)


def whole_type(
    part: ArrayType, mesh: Mesh, spec: PartitionSpec, axis_names: Sequence[str]
) -> ArrayType:
    """Return the type of an array that ``spec`` cuts into parts of type ``part``.

    The array varies along no axis of ``axis_names``.
    """
    shape = whole_shape(part.shape, mesh, spec)
    varying = part.varying.difference(axis_names)
    return ArrayType(shape, part.dtype, weak=part.weak, varying=varying)


def whole_shape(shape: Shape, mesh: Mesh, spec: PartitionSpec) -> Shape:
    """Return the shape of an array that ``spec`` cuts into parts of ``shape``."""
    entries = spec.entries(len(shape))
    return tuple(
        extent * mesh.size_along(entry)
        for extent, entry in zip(shape, entries, strict=True)
    )
