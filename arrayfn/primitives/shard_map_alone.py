"""``shard_map`` on one device: the body, mapped along its axes of the mesh.

Operands get an axis in front for each mesh axis that cuts them, and the body is batched
along each. This defines the primitive.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from arrayfn import dtypes
from arrayfn.ir import Atom, Mesh, PartitionSpec, Program
from arrayfn.ir.builder import current_builder
from arrayfn.ir.sharding import Entry
from arrayfn.primitives import views
from arrayfn.primitives.shard_map_types import Specs, whole_shape
from arrayfn.primitives.slicing import slice_along
from arrayfn.primitives.variance import without_variance


def _cut(x: Atom, mesh: Mesh, spec: PartitionSpec) -> tuple[Atom, tuple[str, ...]]:
    """Split ``x`` into members' parts, with an axis in front for each mesh axis.

    Each axis of ``x`` is split into the mesh axes that ``spec`` has for it, and the
    extent of a part. For a (6, 4) array, mesh axes i of 3 and j of 2, and spec ("i",
    "j"), the result has shape (3, 2, 2, 2). Also returns the names of the mesh axes in
    front, in the order of the mesh.
    """
    entries = spec.entries(x.type.ndim)
    shape: list[int] = []
    front: list[tuple[int, str]] = []
    for extent, entry in zip(x.type.shape, entries, strict=True):
        for name in entry:
            front.append((len(shape), name))
            shape.append(mesh.shape[name])
        shape.append(extent // mesh.size_along(entry))
    names = [name for name in mesh.axis_names if name in spec.axes()]
    if not names:
        return x, ()
    axis_of = {name: axis for axis, name in front}
    order = [axis_of[name] for name in names]
    order += [axis for axis in range(len(shape)) if axis not in axis_of.values()]
    split = views.reshape(x, shape=tuple(shape))
    return views.transpose(split, permutation=tuple(order)), tuple(names)


def _joined(x: Atom, mesh: Mesh, names: Sequence[str], spec: PartitionSpec) -> Atom:
    """Join the members' parts to one array, the inverse of ``_cut``.

    ``x`` has an axis in front for each of the mesh axes ``names``. ``spec`` says which
    mesh axes cut which axis of the result. All members along other mesh axes have the
    same values, and the first is taken.
    """
    used = spec.axes()
    for axis in reversed(range(len(names))):
        if names[axis] not in used:
            x = _first_along(x, axis)
    front = [name for name in names if name in used]
    local = x.type.shape[len(front) :]
    order: list[int] = []
    for axis, entry in enumerate(spec.entries(len(local))):
        order += [*(front.index(name) for name in entry), len(front) + axis]
    ordered = views.transpose(x, permutation=tuple(order)) if front else x
    return views.reshape(ordered, shape=whole_shape(local, mesh, spec))


def _first_along(x: Atom, axis: int) -> Atom:
    """Emit the slice of ``x`` at index 0 of ``axis``, without this axis."""
    shape = x.type.shape
    part = slice_along(x, axis, 0, 1)
    return views.reshape(part, shape=(*shape[:axis], *shape[axis + 1 :]))


class OneDevice:
    """Holds the batching transformation, ``batch``.

    ``transforms`` sets the attribute when it is imported: this package cannot import
    ``transforms``, which imports this package.
    """

    batch: ClassVar[Callable[..., tuple[Program, list[bool]]]]


def _mapped_body(
    body: Program, sizes: dict[str, int], names: Sequence[Entry]
) -> Program:
    """Map ``body`` along each of the mesh axes in ``sizes``, which has their extents.

    Input k has an axis in front for each of the mesh axes ``names[k]``. Outputs have an
    axis in front for each mesh axis.
    """
    mapped = without_variance(body)
    all_outputs = [True] * len(body.outputs)
    # Each mapping adds an axis in front, so the first mesh axis is mapped last.
    for axis, size in reversed(sizes.items()):
        is_mapped = [axis in entry for entry in names]
        mapped, _ = OneDevice.batch(
            mapped, size, is_mapped, all_outputs, axis_name=axis
        )
    return mapped


def expanded(
    *operands: Atom,
    mesh: Mesh,
    in_specs: Specs,
    out_specs: Specs,
    axis_names: tuple[str, ...],
    body: Program,
    typed: bool,
) -> list[Atom]:
    """Emit a shard_map on one device: cut operands, run the mapped body, join results.

    The params are those of the primitive.
    """
    sizes = {name: mesh.shape[name] for name in axis_names}
    cut = [_cut(x, mesh, s) for x, s in zip(operands, in_specs, strict=True)]
    indices = [
        (views.iota(shape=(size,), axis=0, dtype=dtypes.int32), (name,))
        for name, size in sizes.items()
    ]
    arguments = [*cut, *indices]
    mapped = _mapped_body(body, sizes, [names for _, names in arguments])
    results = current_builder().inline(mapped, [x for x, _ in arguments])
    return [
        _joined(x, mesh, axis_names, spec)
        for x, spec in zip(results, out_specs, strict=True)
    ]
