"""Shardings: which device of a mesh holds which part of an array.

A ``Mesh`` is a grid of devices with named axes. A ``PartitionSpec`` names, for each
axis of an array, the mesh axes that cut it; a ``NamedSharding`` is both. All are plain
data, a part of an array's type.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import product
from typing import Any, Final

import numpy as np
from typing_extensions import override

from arrayfn.errors import ArgumentError, ShapeError, plural, user_location
from arrayfn.records import frozen

Entry = tuple[str, ...]
"""The mesh axes that cut one axis of an array, the outermost first; empty for none."""
Shape = tuple[int, ...]
UNVARYING: Final[frozenset[str]] = frozenset()


@frozen(repr=False)
class Mesh:
    """A grid of devices with a name for each of its axes.

    ``Mesh((2, 4), ("data", "model"))`` takes the first eight devices, row by row.
    ``device_ids`` names other devices, one for each position in the grid. Devices are
    those of the CPU, or GPUs with ``platform="cuda"``. Instead of extents, you can pass
    a NumPy array or list of devices. A *member* is a position in the grid, numbered row
    by row. Raises ArgumentError if sizes and names do not fit, or if devices belong to
    different platforms.

    >>> mesh = Mesh((2, 4), ("data", "model"))
    >>> mesh.shape, mesh.size
    ({'data': 2, 'model': 4}, 8)
    """

    axis_sizes: tuple[int, ...]
    axis_names: tuple[str, ...]
    device_ids: tuple[int, ...]
    platform: str

    def __init__(
        self,
        shape: Sequence[Any] | np.ndarray[Any, Any],
        axis_names: Sequence[str] | str,
        device_ids: Sequence[int] = (),
        platform: str = "cpu",
    ) -> None:
        """Check the arguments, and set the attributes; see the class.

        ``shape`` has the extents of the axes, or is an array or list of devices, which
        replace ``device_ids`` and ``platform``.
        """
        if not isinstance(shape, np.ndarray) and any(hasattr(x, "id") for x in shape):
            shape = np.asarray(shape, object)
        if isinstance(shape, np.ndarray):
            device_ids = [device.id for device in shape.flat]
            platforms = sorted({device.platform for device in shape.flat})
            if len(platforms) > 1:
                raise ArgumentError(
                    "Mesh: all devices of a mesh are of one platform, not of "
                    f"{' and '.join(platforms)}",
                    user_location(),
                )
            platform = platforms[0]
            shape = shape.shape
        sizes = tuple(map(int, shape))
        names = names_in(axis_names)
        if len(sizes) != len(names) or len(set(names)) < len(names):
            raise ArgumentError(
                f"Mesh: a mesh of shape {sizes} has {len(sizes)} different names for "
                f"its axes, not {names}",
                user_location(),
            )
        if min(sizes, default=1) < 1:
            raise ArgumentError(
                f"Mesh: sizes of axes must be positive, not {sizes}", user_location()
            )
        ids = tuple(map(int, device_ids)) or tuple(range(math.prod(sizes)))
        if len(ids) != math.prod(sizes) or len(set(ids)) < len(ids):
            raise ArgumentError(
                f"Mesh: a mesh of shape {sizes} has {math.prod(sizes)} different "
                f"devices, but device_ids is {ids}",
                user_location(),
            )
        object.__setattr__(self, "axis_sizes", sizes)
        object.__setattr__(self, "axis_names", names)
        object.__setattr__(self, "device_ids", ids)
        object.__setattr__(self, "platform", platform)

    @cached_property
    def shape(self) -> dict[str, int]:
        """The size of each axis, by name."""
        return dict(zip(self.axis_names, self.axis_sizes, strict=True))

    def size_along(self, names: Iterable[str]) -> int:
        """Return the number of members along the axes ``names`` together."""
        return math.prod(self.shape[name] for name in names)

    @property
    def size(self) -> int:
        """The number of members."""
        return len(self.device_ids)

    @cached_property
    def coordinates(self) -> tuple[dict[str, int], ...]:
        """The index of each member along each axis of the mesh."""
        places = product(*(range(n) for n in self.axis_sizes))
        return tuple(dict(zip(self.axis_names, p, strict=True)) for p in places)

    def group(self, member: int, axis: str) -> tuple[int, ...]:
        """Return the members that differ from ``member`` at most along ``axis``.

        They are in the order of their index along ``axis``. Neighbours along ``axis``
        differ by ``step``, as members are numbered row by row.

        >>> Mesh((2, 4), ("data", "model")).group(6, "data")
        (2, 6)
        """
        step = math.prod(self.axis_sizes[self.axis_names.index(axis) + 1 :])
        first = member - self.coordinates[member][axis] * step
        return tuple(first + k * step for k in range(self.shape[axis]))

    @override
    def __repr__(self) -> str:
        """Return the call that makes the mesh, without arguments that are defaults."""
        arguments: list[Any] = [self.axis_sizes, self.axis_names]
        is_cpu = self.platform == "cpu"
        if self.device_ids != tuple(range(self.size)) or not is_cpu:
            arguments.append(self.device_ids)
        if not is_cpu:
            arguments.append(self.platform)
        return f"Mesh({', '.join(map(repr, arguments))})"

    @override
    def __str__(self) -> str:
        """Return the names and sizes of axes: ``data: 2, model: 4``."""
        return ", ".join(f"{name}: {size}" for name, size in self.shape.items())


@frozen(slots=True, repr=False)
class PartitionSpec:
    """The mesh axes that cut the axes of an array.

    Each axis of the array has an entry: None, one mesh axis, or a tuple of several.
    Axes after the last entry are not cut. It is often imported as ``P``.

    >>> PartitionSpec("data", None, ("x", "y"))
    P('data', None, ('x', 'y'))
    """

    partitions: tuple[str | Entry | None, ...]

    def __init__(self, *entries: str | Sequence[str] | None) -> None:
        """Store ``entries``; raise ArgumentError for one of another type."""
        for entry in entries:
            # An int has no names to iterate over: it counts as one wrong name.
            names: Any = (entry,) if isinstance(entry, int) else entry or ()
            if any(type(name) is not str for name in names):
                raise ArgumentError(
                    "PartitionSpec: an entry must be None, the name of a mesh axis, "
                    f"or a tuple of names, not {entry!r}",
                    user_location(),
                )
        partitions = tuple(
            e if e is None or isinstance(e, str) else tuple(e) for e in entries
        )
        object.__setattr__(self, "partitions", partitions)

    def __iter__(self) -> Iterator[str | Entry | None]:
        """Iterate over the entries."""
        return iter(self.partitions)

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self.partitions)

    def __getitem__(self, axis: int) -> str | Entry | None:
        """Return the entry of an axis."""
        return self.partitions[axis]

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the spec as a call of its class."""
        return PartitionSpec, self.partitions

    @override
    def __repr__(self) -> str:
        """Return the spec as a call of ``P``."""
        return f"P({', '.join(map(repr, self))})"

    def axes(self) -> tuple[str, ...]:
        """Return the mesh axes that the spec names, in order."""
        return tuple(name for entry in self for name in names_in(entry))

    def entries(self, ndim: int) -> tuple[Entry, ...]:
        """Return the mesh axes that cut each axis of an array of rank ``ndim``.

        Raises ShapeError if the spec has more entries than the array has axes.

        >>> PartitionSpec("data", ("x", "y")).entries(3)
        (('data',), ('x', 'y'), ())
        """
        if len(self) > ndim:
            raise ShapeError(
                f"{self!r} has {plural(len(self), 'entry')}, but the array has "
                f"{plural(ndim, 'axis')}",
                user_location(),
            )
        cut = tuple(names_in(entry) for entry in self)
        return cut + ((),) * (ndim - len(self))


P = PartitionSpec


def spec_of(entries: Sequence[Entry]) -> PartitionSpec:
    """Return the PartitionSpec of the mesh axes that cut each axis of an array.

    This undoes ``PartitionSpec.entries``: a tuple of one name becomes the name, and
    empty tuples at the end are left out.

    >>> spec_of([("data",), (), ()])
    P('data')
    """
    short = [e[0] if len(e) == 1 else (e or None) for e in entries]
    while short and short[-1] is None:
        short.pop()
    return PartitionSpec(*short)


def check_spec(spec: PartitionSpec, mesh: Mesh, what: str) -> None:
    """Raise ArgumentError if ``spec`` names an axis twice, or one not in ``mesh``.

    ``what`` says in the message where the spec was given.
    """
    axes = spec.axes()
    unknown = [name for name in axes if name not in mesh.shape]
    if unknown or len(set(axes)) < len(axes):
        raise ArgumentError(
            f"{what}: {spec!r} names each axis of the mesh ({mesh}) at most once",
            user_location(),
        )


@frozen
class NamedSharding:
    """The distribution of an array over the devices of a mesh.

    Devices along mesh axes that ``spec`` does not name have copies.

    >>> sharding = NamedSharding(Mesh((2, 2), ("x", "y")), PartitionSpec("x"))
    >>> sharding.shard_shape((8, 3)), sharding.is_fully_replicated
    ((4, 3), False)
    """

    mesh: Mesh
    spec: PartitionSpec

    def __post_init__(self) -> None:
        """Raise ArgumentError unless the spec fits the mesh."""
        check_spec(self.spec, self.mesh, "NamedSharding")

    @property
    def is_fully_replicated(self) -> bool:
        """Whether every device has the whole array."""
        return all(self.mesh.shape[name] == 1 for name in self.spec.axes())

    def shard_shape(self, shape: Shape) -> Shape:
        """Return the shape of a shard of an array of ``shape``.

        Raises ShapeError if an axis is not a multiple of the number of its parts.
        """
        parts: list[int] = []
        for axis, entry in enumerate(self.spec.entries(len(shape))):
            count = self.mesh.size_along(entry)
            if shape[axis] % count:
                raise ShapeError(
                    f"axis {axis} of shape {shape} is cut into {count} parts by "
                    f"{self.spec!r} on the mesh ({self.mesh}), but {shape[axis]} is no "
                    f"multiple of {count}",
                    user_location(),
                )
            parts.append(shape[axis] // count)
        return tuple(parts)

    def index(self, shape: Shape, member: int) -> tuple[slice, ...]:
        """Return the slices that the shard of ``member`` is of an array of ``shape``.

        If several mesh axes cut an axis, the first is the outermost: along an axis cut
        by ("x", "y"), a member has part ``x * size of y + y``.
        """
        place = self.mesh.coordinates[member]
        slices: list[slice] = []
        local = self.shard_shape(shape)
        for extent, entry in zip(local, self.spec.entries(len(shape)), strict=True):
            number = 0  # of the member's part along this axis
            for name in entry:
                number = number * self.mesh.shape[name] + place[name]
            slices.append(slice(number * extent, (number + 1) * extent))
        return tuple(slices)

    def owners(self) -> Iterator[int]:
        """Yield, for each different shard, the first member that holds it.

        These are the members with index 0 along all mesh axes that cut nothing.
        """
        used = set(self.spec.axes())
        for member, place in enumerate(self.mesh.coordinates):
            if all(k == 0 for name, k in place.items() if name not in used):
                yield member

    @override
    def __str__(self) -> str:
        """Return the spec and the mesh: ``P('x') on (x: 2, y: 2)``."""
        return f"{self.spec!r} on ({self.mesh})"


def names_in(entry: Any) -> Entry:
    """Return the axes that ``entry`` names as a tuple: one name, several or None."""
    if entry is None:
        return ()
    return (entry,) if isinstance(entry, str) else tuple(entry)
