"""``set_mesh``: the mesh that PartitionSpecs without a mesh refer to."""

from __future__ import annotations

import threading
from typing import Any, Final, Self

from arrayfn.errors import ArgumentError, user_location
from arrayfn.ir import Mesh, NamedSharding, PartitionSpec
from arrayfn.tracing.frames import current_frame


class _Local(threading.local):
    """The mesh that ``set_mesh`` has set in this thread."""

    mesh: Mesh | None = None


_local: Final = _Local()


class set_mesh:  # noqa: N801 - called like a function, named as JAX's
    """Set the mesh that PartitionSpecs without a mesh refer to, in this thread.

    ``with set_mesh(mesh):`` sets the mesh for the block. ``set_mesh(mesh)`` alone sets
    it from then on, until ``set_mesh(None)``. ``shard_map`` then needs no ``mesh=``,
    and ``device_put``, ``with_sharding_constraint`` and ``jit`` take a PartitionSpec
    where they take a NamedSharding. A jitted function is compiled separately for each
    mesh under which it is called.

    Raises ArgumentError inside a function that is traced, and for anything that is not
    a Mesh.

    >>> import numpy as np
    >>> from arrayfn import PartitionSpec as P, device_put, set_num_devices
    >>> set_num_devices(8)
    >>> with set_mesh(Mesh((2,), ("x",))):
    ...     x = device_put(np.arange(4.0), P("x"))
    >>> x.sharding
    NamedSharding(mesh=Mesh((2,), ('x',)), spec=P('x'))
    """

    __slots__ = ("_before",)

    def __init__(self, mesh: Mesh | None) -> None:
        """Set the mesh at once, and remember the previous one for the block's end."""
        if mesh is not None and not isinstance(mesh, Mesh):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ArgumentError(
                f"set_mesh: mesh must be an arrayfn.Mesh, not {type(mesh).__name__}",
                user_location(),
            )
        frame = current_frame()
        if frame is not None:
            raise ArgumentError(
                f"set_mesh is called while {frame.name!r} is traced; call it outside",
                user_location(),
            )
        self._before = _local.mesh
        _local.mesh = mesh

    def __enter__(self) -> Self:
        """Return this object; the mesh has been set already."""
        return self

    def __exit__(self, *_: object) -> None:
        """Set the mesh that was set before."""
        _local.mesh = self._before


def mesh_of_block() -> Mesh | None:
    """Return the mesh that ``set_mesh`` has set in this thread, or None."""
    return _local.mesh


def axes_around() -> tuple[frozenset[str], Mesh | None]:
    """Return the mesh axes of all enclosing shard_maps, and their mesh or None."""
    axes: set[str] = set()
    mesh: Mesh | None = None
    frame = current_frame()
    while frame is not None:
        for name, axis in frame.axes.items():
            if axis.mesh is not None:
                mesh = axis.mesh
                axes.add(name)
        frame = frame.parent
    return frozenset(axes), mesh


def asked_mesh(what: str) -> Mesh:
    """Return the mesh of ``set_mesh``.

    Sets ``asks_mesh`` of all functions being traced: they are compiled again for
    another mesh. Raises ArgumentError if there is no mesh; ``what`` names what needs
    one.
    """
    frame = current_frame()
    while frame is not None:
        frame.asks_mesh = True
        frame = frame.parent
    if _local.mesh is None:
        raise ArgumentError(
            f"{what} without a mesh; give one, or write with arrayfn.set_mesh(mesh):",
            user_location(),
        )
    return _local.mesh


def over_mesh(what: str, sharding: Any) -> Any:
    """Return ``sharding``, or for a PartitionSpec the NamedSharding on the set mesh.

    ``what`` says in messages where the sharding was given.
    """
    if isinstance(sharding, PartitionSpec):
        return NamedSharding(asked_mesh(f"{what} has {sharding!r}"), sharding)
    return sharding
