"""Distributes a training run: batches, parameters and optimizer states."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import numpy as np

from arrayfn import tree
from arrayfn.distributed.arrays import make_array_from_callback
from arrayfn.errors import ArgumentError, ShapeError, user_location
from arrayfn.ir import Mesh, NamedSharding, PartitionSpec


def batches(
    data: Any,
    size: int,
    sharding: NamedSharding,
    *,
    seed: int | None = 0,
    epochs: int | None = None,
) -> Iterator[Any]:
    """Yield batches of ``size`` rows of ``data``, each cut over a mesh by ``sharding``.

    ``data`` is an array, or a pytree of arrays with the same number of rows. A memory
    map works well, because each process reads only the rows of its own devices. There
    are ``epochs`` epochs (None: infinitely many), each with its own order of rows. The
    order depends only on ``seed``, not on the mesh or the number of processes. With
    ``seed=None`` the rows keep their order. Rows that do not fill a batch are skipped.

    Raises ArgumentError if there are fewer rows than ``size``. Raises ShapeError if
    arrays have different numbers of rows, or if a batch is not a multiple of the number
    of parts.

    >>> sharding = NamedSharding(Mesh((1,), ("data",)), PartitionSpec("data"))
    >>> [np.asarray(x) for x in batches(np.arange(5), 2, sharding, seed=None, epochs=1)]
    [array([0, 1]), array([2, 3])]
    """
    arrays, structure = tree.flatten(data)
    rows = {len(x) for x in arrays}
    if len(rows) != 1:
        raise ShapeError(
            f"batches: arrays have the same number of rows, not {sorted(rows)}",
            user_location(),
        )
    (total,) = rows
    if not 0 < size <= total:
        raise ArgumentError(
            f"batches: a batch has 1 to {total} rows, not {size}", user_location()
        )
    sharding.shard_shape((size, *arrays[0].shape[1:]))  # raises ShapeError
    return _batches(arrays, structure, total, size, sharding, seed, epochs)


def _batches(
    arrays: list[Any],
    structure: tree.TreeDef,
    total: int,
    size: int,
    sharding: NamedSharding,
    seed: int | None,
    epochs: int | None,
) -> Iterator[Any]:
    """Yield batches of ``size`` of the ``total`` rows, epoch after epoch.

    A batch is a pytree of ``structure`` with a sharded array for each of ``arrays``.
    With a ``seed`` the rows of each epoch are shuffled. Rows that do not fill a last
    batch are left out. If ``epochs`` is None, the batches never end.
    """
    for epoch in count() if epochs is None else range(epochs):
        order = np.arange(total)
        if seed is not None:
            order = np.random.default_rng([seed, epoch]).permutation(total)
        for start in range(0, total - size + 1, size):
            rows = order[start : start + size]
            yield tree.unflatten(structure, [_batch(x, rows, sharding) for x in arrays])


def _batch(x: Any, rows: np.ndarray[Any, Any], sharding: NamedSharding) -> Any:
    """Make a sharded array of the ``rows`` of ``x``, given by their numbers.

    Each process reads only the parts of its own devices.
    """

    def part(index: tuple[slice, ...]) -> Any:
        """Read the part of the batch at ``index``, slices of rows and further axes."""
        of_rows, *others = index
        # Rows first: of a memory map, only these are read.
        return x[rows[of_rows]][(slice(None), *others)]

    return make_array_from_callback((len(rows), *x.shape[1:]), sharding, part, x.dtype)


def spread(x: Any, mesh: Mesh, axis: str) -> Any:
    """Return a NamedSharding for each leaf of the pytree ``x``, as the same pytree.

    ``axis`` names the mesh axis that cuts the leaves. Among the axes of a leaf that are
    multiples of the number of devices along ``axis``, the longest one is cut. Arrays
    without such an axis are not cut. If you use ``spread`` for the parameters and the
    optimizer's state, training is fully sharded. If you use it only for the state,
    training is ZeRO (Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training
    Trillion Parameter Models", 2020). Raises ArgumentError if the mesh has no such
    axis.

    >>> mesh = Mesh((4,), ("data",))
    >>> made = spread({"w": np.ones((3, 8)), "b": np.ones(3)}, mesh, "data")
    >>> made["w"].spec, made["b"].spec
    (P(None, 'data'), P())
    """
    if axis not in mesh.shape:
        raise ArgumentError(
            f"spread: the mesh ({mesh}) has no axis {axis!r}", user_location()
        )
    parts = mesh.shape[axis]

    def cut(leaf: Any) -> NamedSharding:
        """Return the sharding that cuts the longest axis that can be cut evenly."""
        shape = np.shape(leaf)
        fitting = [k for k, n in enumerate(shape) if n and n % parts == 0]
        if not fitting:
            return NamedSharding(mesh, PartitionSpec())
        longest = max(fitting, key=lambda k: shape[k])
        return NamedSharding(mesh, PartitionSpec(*[None] * longest, axis))

    return tree.map(cut, x)
