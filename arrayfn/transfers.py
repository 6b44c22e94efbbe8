"""Moves arrays to a device's memory and back to the host's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from arrayfn import tree
from arrayfn.array_likes import Elsewhere, Shared, adopted
from arrayfn.backends.registry import choose, is_backend_available
from arrayfn.errors import ArgumentError, user_location
from arrayfn.ir import NamedSharding, PartitionSpec
from arrayfn.primitives.reshard import reshard
from arrayfn.tracing import ArrayOnDevice, apply
from arrayfn.tracing.meshes import over_mesh
from arrayfn.transforms import check_leaf

if TYPE_CHECKING:
    from arrayfn.distributed import Device


def device_put(
    x: Any, device: str | Device | NamedSharding | PartitionSpec | None = None
) -> Any:
    """Put ``x``, an array, a number or a pytree of them, into the memory of ``device``.

    ``device`` is a backend's name, one of ``af.devices()``, a NamedSharding, or a
    PartitionSpec over the mesh of ``set_mesh``. None means the first GPU that can be
    used, or the CPU if there is none.

    On "cuda", the first GPU, and "cuda:1" arrays keep their layout. Arrays of other
    libraries that are on this GPU already are not copied. On "cpu" the results are
    NumPy arrays. A NamedSharding cuts arrays over the devices of its mesh. If an array
    is already distributed over this mesh, collectives move its parts.

    Raises BackendError if there is no such device on this machine, and ShapeError if an
    extent is not a multiple of the number of parts.

    >>> device_put([1.0, np.arange(2)], "cpu")
    [array(1.), array([0, 1])]
    """
    if device is None:
        device = "cuda" if is_backend_available("cuda") else "cpu"
    where = over_mesh("device_put", device)
    if isinstance(where, NamedSharding):
        return tree.map(lambda leaf: _resharded(leaf, where), x)
    name = getattr(where, "backend", where)
    return tree.map(choose(name).put, x)


def _resharded(x: Any, sharding: NamedSharding) -> Any:
    """Distribute ``x``, one array, over devices as ``sharding`` says."""
    from arrayfn.distributed.arrays import ShardedArray, put_sharded

    if not isinstance(x, ShardedArray) or x.sharding.mesh != sharding.mesh:
        return put_sharded(x, sharding)
    if x.sharding.spec == sharding.spec:
        return x
    return apply(reshard, x, mesh=sharding.mesh, spec=sharding.spec)


def device_get(x: Any) -> Any:
    """Copy ``x``, an array or a pytree of them, to NumPy arrays on the host.

    >>> device_get((np.arange(2),))
    (array([0, 1]),)
    """
    return tree.map(lambda leaf: np.asarray(adopted(leaf)), x)


def from_dlpack(x: Any) -> Any:
    """Return the array that an object with ``__dlpack__`` holds, without a copy.

    The result is a NumPy array on a CPU, and a DeviceArray on an NVIDIA GPU. bfloat16
    is among the dtypes. Raises ArgumentError for other objects and other devices.

    >>> x = np.arange(3.0)
    >>> np.shares_memory(from_dlpack(x), x)
    True
    """
    if not hasattr(x, "__dlpack__"):
        raise ArgumentError(
            f"from_dlpack takes an object with __dlpack__, not a {type(x).__name__}; "
            "arrayfn.numpy.asarray converts others",
            user_location(),
        )
    return adopted(x)


def to_dlpack(x: Any) -> Any:
    """Convert ``x`` to a form that ``from_dlpack`` of other libraries takes.

    This makes no copy. You need it for bfloat16, which NumPy does not export:
    ``torch.from_dlpack(af.to_dlpack(x))``. Libraries take NumPy arrays of most other
    dtypes, and DeviceArrays, directly.

    >>> from arrayfn.dtypes import bfloat16
    >>> print(from_dlpack(to_dlpack(np.ones(2, bfloat16))).dtype)
    bfloat16
    """
    check_leaf(x, "to_dlpack: x")
    array = adopted(x)
    return array if isinstance(array, ArrayOnDevice) else Shared(np.asarray(array))


def _received(x: Any) -> Any:
    """Take over an array of another library that is on a GPU, without a copy."""
    return choose("cuda").put(x)


Elsewhere.receive = _received


def block_until_ready(x: Any) -> Any:
    """Wait until ``x``, an array or a pytree of them, is computed, and return it.

    A call may return before a device has finished. NumPy arrays are always complete.

    >>> block_until_ready({"a": np.arange(2)})
    {'a': array([0, 1])}
    """
    for leaf in tree.leaves(x):
        if isinstance(leaf, ArrayOnDevice):
            leaf.block_until_ready()
    return x
