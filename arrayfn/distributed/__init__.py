"""Several devices: virtual devices of a CPU, processes, and arrays over a mesh.

``Mesh``, ``PartitionSpec`` and ``NamedSharding`` say how arrays are distributed over
devices. ``arrayfn.shard_map`` and ``arrayfn.jit`` compute on such arrays.
"""

from __future__ import annotations

from arrayfn import documentation as _documentation
from arrayfn.distributed.arrays import (
    Shard,
    ShardedArray,
    make_array_from_callback,
)
from arrayfn.distributed.backend import MeshBackend
from arrayfn.distributed.checkpoints import load, save
from arrayfn.distributed.data import batches, spread
from arrayfn.distributed.devices import (
    Device,
    devices,
    local_devices,
    make_mesh,
    set_num_devices,
)
from arrayfn.distributed.processes import initialize, process_count, process_index
from arrayfn.ir import Mesh, NamedSharding, PartitionSpec

__all__ = [
    "Device",
    "Mesh",
    "MeshBackend",
    "NamedSharding",
    "PartitionSpec",
    "Shard",
    "ShardedArray",
    "batches",
    "devices",
    "initialize",
    "load",
    "local_devices",
    "make_array_from_callback",
    "make_mesh",
    "process_count",
    "process_index",
    "save",
    "set_num_devices",
    "spread",
]

_documentation.attach(__name__)
