"""ShardedArray: an immutable array whose parts lie on the devices of a mesh."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, cast

import numpy as np
from typing_extensions import override

from arrayfn.backends.cuda.device_array import DeviceArray
from arrayfn.backends.registry import get_backend
from arrayfn.distributed.devices import DEVICES, Device, devices_of
from arrayfn.distributed.pictures import html_picture, text_picture
from arrayfn.errors import ArgumentError, ShapeError, user_location
from arrayfn.ir import ArrayType, NamedSharding, as_readable, type_of
from arrayfn.records import frozen
from arrayfn.tracing import ArrayOnDevice
from arrayfn.tracing.keys import WORDS, Key

Array = np.ndarray[Any, Any]


@frozen
class Shard:
    """One device's part of a sharded array: ``data`` equals ``array[index]``.

    ``data`` is a NumPy array, or a DeviceArray on a GPU. Devices that hold the same
    part have different ``replica_id``s, from 0 on.
    """

    device: Device
    index: tuple[slice, ...]
    data: Any
    replica_id: int


class ShardedArray(ArrayOnDevice):
    """An immutable array whose parts lie on the devices of a mesh.

    ``device_put(x, sharding)`` and compiled calls return such arrays. A ShardedArray
    has NumPy's operators and methods, which compute on the devices of the mesh.
    """

    __slots__ = ("__arrayfn_type__", "__weakref__", "parts")

    __arrayfn_type__: ArrayType
    parts: Mapping[int, Any]  # by the mesh's member; only those of this process

    KIND = "over a mesh"
    CHANGED = "by what is computed on a mesh"

    def __init__(self, type: ArrayType, parts: Mapping[int, Any]) -> None:
        assert type.sharding is not None
        self.__arrayfn_type__ = type
        self.parts = parts  # by member, of this process

    @property
    @override
    def type(self) -> ArrayType:
        """The array's type: shape, dtype and sharding."""
        return self.__arrayfn_type__

    @property
    def sharding(self) -> NamedSharding:
        """The sharding: the mesh axes that cut the array."""
        sharding = self.__arrayfn_type__.sharding
        assert sharding is not None
        return sharding

    @property
    @override
    def device(self) -> str:
        """The name of the device, which is "mesh" for every sharded array."""
        return "mesh"

    @property
    def is_fully_replicated(self) -> bool:
        """Whether each device holds the whole array."""
        return self.sharding.is_fully_replicated

    @property
    def is_fully_addressable(self) -> bool:
        """Whether all parts of the array are held by this process."""
        return len(self.parts) == self.sharding.mesh.size

    @property
    def addressable_shards(self) -> list[Shard]:
        """The parts that devices of this process hold, in the order of members."""
        sharding, shape = self.sharding, self.shape
        places = devices_of(sharding.mesh)
        # The last replica_id of each part, by its bounds.
        seen: dict[tuple[tuple[int, int], ...], int] = {}
        shards: list[Shard] = []
        for member in range(sharding.mesh.size):
            index = sharding.index(shape, member)
            key = tuple((part.start, part.stop) for part in index)
            replica = seen[key] = seen.get(key, -1) + 1
            if member in self.parts:
                data = self.parts[member]
                shards.append(Shard(places[member], index, data, replica))
        return shards

    def addressable_data(self, index: int) -> Any:
        """Return the part with number ``index`` among the parts in this process."""
        return self.addressable_shards[index].data

    @override
    def block_until_ready(self) -> Self:
        """Wait until the parts on GPUs are computed; return the array itself."""
        for part in self.parts.values():
            if isinstance(part, DeviceArray):
                part.block_until_ready()
        return self

    @override
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Copy the whole array to the host; called by ``np.asarray``.

        Raises ArgumentError if a part is in other processes only.
        """
        sharding, shape = self.sharding, self.shape
        if sharding.is_fully_replicated:
            whole = np.array(next(iter(self.parts.values())))
            return whole if dtype is None else whole.astype(dtype)
        whole = np.empty(shape, self.dtype)
        for member in sharding.owners():
            if member not in self.parts:
                member = self._copy_here(member)
            whole[sharding.index(shape, member)] = self.parts[member]
        return whole if dtype is None else whole.astype(dtype)

    def _copy_here(self, member: int) -> int:
        """Return a member in this process that holds the same part as ``member``.

        Raises ArgumentError if there is none.
        """
        index = self.sharding.index(self.shape, member)
        for other in self.parts:
            if self.sharding.index(self.shape, other) == index:
                return other
        raise ArgumentError(
            f"this array ({self.type}) has parts in other processes, so it is not a "
            "NumPy array here; move it with device_put(x, NamedSharding(mesh, P())), "
            "which gives all of it to each, or read x.addressable_shards",
            user_location(),
        )

    @override
    def copy(self) -> ShardedArray:
        """Copy all parts; the copy has the same sharding."""
        return ShardedArray(self.type, {k: x.copy() for k, x in self.parts.items()})

    def __copy__(self) -> ShardedArray:
        """Return the array itself, which is immutable."""
        return self

    def __deepcopy__(self, memo: Any) -> ShardedArray:
        """Return the array itself, which is immutable."""
        return self

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the whole array with its sharding, over which it is put again."""
        return put_sharded, (np.asarray(self), self.sharding)

    @override
    def __format__(self, spec: str) -> str:
        return format(np.asarray(self)[()] if not self.shape else str(self), spec)

    @override
    def __str__(self) -> str:
        try:
            return str(np.asarray(self))
        except ArgumentError:
            return repr(self)

    @override
    def __repr__(self) -> str:
        head = f"ShardedArray<{self.type} over ({self.sharding.mesh})"
        try:
            return f"{head}, {np.asarray(self)!r}>"
        except ArgumentError:
            return f"{head}, parts here: {sorted(self.parts)}>"

    def picture(self) -> str:
        """Return a text that shows which devices have which part."""
        return text_picture(self.sharding, self.shape)

    def _repr_html_(self) -> str:
        """Return an HTML table of the devices that have each part, for notebooks."""
        return html_picture(self.sharding, self.shape)


def local_members(sharding: NamedSharding) -> list[int]:
    """Return the members of the sharding's mesh that are in this process."""
    places = devices_of(sharding.mesh)
    return [k for k, d in enumerate(places) if d.process_index == DEVICES.process]


def put_sharded(x: Any, sharding: NamedSharding) -> ShardedArray:
    """Distribute ``x``, an array or a number, over devices as ``sharding`` says.

    Each process passes the whole of ``x`` and stores only the parts of its own devices.
    """
    array = np.asarray(as_readable(x))
    return make_array_from_callback(
        array.shape, sharding, array.__getitem__, type_of(x).dtype
    )


def make_array_from_callback(
    shape: Sequence[int],
    sharding: NamedSharding,
    data_callback: Callable[[tuple[slice, ...]], Any],
    dtype: Any = None,
) -> ShardedArray:
    """Make a sharded array of ``shape`` from the parts of ``data_callback(index)``.

    ``index`` is a part's place: a tuple of slices of the whole array. Devices with
    the same part share one call; each process calls it for its own devices. Parts are
    converted to ``dtype``, if one is given. Parts that are random keys make an array of
    keys. Raises ShapeError if a part has another shape.

    >>> from arrayfn.ir import Mesh, PartitionSpec
    >>> sharding = NamedSharding(Mesh((1,), ("x",)), PartitionSpec("x"))
    >>> make = lambda index: np.arange(4)[index]
    >>> print(make_array_from_callback((4,), sharding, make).picture())
    P('x')
    [0:4] cpu:0
    """
    shape = tuple(int(n) for n in shape)
    wanted = sharding.shard_shape(shape)
    are_keys = False
    by_index: dict[tuple[tuple[int, int], ...], Array] = {}
    parts: dict[int, Any] = {}
    places = devices_of(sharding.mesh)
    for member in local_members(sharding):
        index = sharding.index(shape, member)
        key = tuple((part.start, part.stop) for part in index)
        if key not in by_index:
            value = data_callback(index)
            are_keys = isinstance(value, Key)
            data = np.asarray(value.data if are_keys else value, dtype)
            part = np.array(data, order="C")
            if np.shape(value) != wanted:
                raise ShapeError(
                    f"make_array_from_callback: the part {index} of an array of shape "
                    f"{shape} has shape {wanted}, but data_callback gave "
                    f"{np.shape(value)}",
                    user_location(),
                )
            part.flags.writeable = False
            by_index[key] = part
        parts[member] = placed(by_index[key], places[member])
    first = next(iter(parts.values()))
    words = (WORDS,) if are_keys else ()  # the last axis of keys' data
    type = ArrayType((*shape, *words), type_of(first).dtype, sharding=sharding)
    array = ShardedArray(type, parts)
    return cast(ShardedArray, Key(array)) if are_keys else array


def placed(x: Array, device: Device) -> Any:
    """Return ``x`` in the memory of ``device``: on a GPU a copy, on a CPU ``x``."""
    return x if device.platform == "cpu" else get_backend(device.backend).put(x)
