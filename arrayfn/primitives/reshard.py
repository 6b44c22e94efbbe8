"""``reshard``: the operand, cut over the devices of a mesh as a spec says.

``with_sharding_constraint`` and ``out_shardings`` emit it. On one device it changes
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from arrayfn import dtypes
from arrayfn.ir import ArrayType, Atom, Mesh, NamedSharding, PartitionSpec
from arrayfn.primitives import families
from arrayfn.primitives.base import (
    LINEAR,
    AxisMap,
    ByAxis,
    Dim,
    MappedAxis,
    Operand,
    Primitive,
    Sample,
    View,
)
from arrayfn.primitives.emitters import move_axis


def _types(x: ArrayType, *, mesh: Mesh, spec: PartitionSpec) -> ArrayType:
    """Type rule: the operand's type, if ``spec`` can cut it over ``mesh``."""
    NamedSharding(mesh, spec).shard_shape(x.shape)  # raises an error if it cannot
    return x.plain()


def _transpose(
    cotangents: Sequence[Atom | None], inputs: Sequence[Operand], **params: Any
) -> list[Atom | None]:
    """Transpose rule: ``ct_x = reshard(ct)``, with the same mesh and spec."""
    (cotangent,) = cotangents
    return [None if cotangent is None else reshard(cotangent, **params)]


def _batch(
    axis: MappedAxis,
    inputs: Sequence[Atom],
    dims: Sequence[Dim],
    *,
    mesh: Mesh,
    spec: PartitionSpec,
) -> tuple[list[Atom], list[Dim]]:
    """Batching rule: a reshard whose spec has an entry for the mapped axis in front.

    The mapped axis is cut along ``axis.mesh_axes``, or stays whole if there are none.
    """
    x = move_axis(inputs[0], dims[0] or 0, 0)
    cut = PartitionSpec(axis.mesh_axes or None, *spec)
    return [reshard(x, mesh=mesh, spec=cut)], [0]


def _samples() -> Iterable[Sample]:
    """Yield a matrix cut over a mesh of 3 by 2, for the table tests."""
    mesh = Mesh((3, 2), ("i", "j"))
    for seed, dtype in enumerate((dtypes.float32, dtypes.int32)):
        x = families.random_array(dtype, (3, 4), 141 + seed)
        yield Sample((x,), {"mesh": mesh, "spec": PartitionSpec("i", "j")})


reshard = Primitive(
    name="reshard",
    family="mesh",
    types=_types,
    reference=lambda x, **_: np.array(x),
    kernel=View(lambda x, **_: tuple(AxisMap(axis) for axis in range(x.ndim))),
    jvp=LINEAR,
    transpose=_transpose,
    batch=ByAxis(_batch),
    samples=_samples,
    doc="The operand, cut over the devices of a mesh.",
)

ROWS = (reshard,)
