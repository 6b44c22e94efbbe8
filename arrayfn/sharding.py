"""The distribution of arrays over devices, under the names of ``jax.sharding``."""

from __future__ import annotations

from arrayfn.ir import Mesh, NamedSharding, PartitionSpec

__all__ = ["Mesh", "NamedSharding", "PartitionSpec"]
