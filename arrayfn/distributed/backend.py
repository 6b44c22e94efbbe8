"""The backend of meshes. What it computes with is imported at its first use."""

from __future__ import annotations

from typing import Any

import numpy as np

from arrayfn.backends.base import BackendInfo, Executable, TimedExecutable
from arrayfn.distributed.arrays import ShardedArray
from arrayfn.errors import BackendError
from arrayfn.ir import Program
from arrayfn.lowering.compiled import CompiledProgram
from arrayfn.lowering.options import DEFAULT, Options


class MeshBackend:
    """The backend of a mesh, on which each device has its part of the arrays."""

    name = "mesh"

    def info(self) -> BackendInfo:
        """Describe the backend. It is chosen by the arguments, never by its name."""
        return BackendInfo(
            self.name,
            "one plan on all devices of a mesh",
            (),
            "it is not chosen by name: jit uses it for arguments that lie over several "
            "devices, and for shard_map; af.devices() lists the devices",
            "implied",
        )

    def array_types(self) -> tuple[type, ...]:
        """Arrays over a mesh."""
        return (ShardedArray,)

    def put(self, x: Any) -> Any:
        """Copy ``x`` on the host; it moves to the devices that use it."""
        return np.array(x)

    def lower(
        self, program: Program, donated: frozenset[int], options: Options = DEFAULT
    ) -> CompiledProgram:
        """Partition ``program``, and lower the Program of one device.

        ``donated`` is ignored: no argument is overwritten.
        """
        from arrayfn.distributed.programs import lower_for_mesh

        return lower_for_mesh(program, options)

    def load(self, compiled: CompiledProgram) -> Executable:
        """The callable of ``compiled``."""
        from arrayfn.distributed.programs import MeshExecutable, MeshProgram

        if not isinstance(compiled, MeshProgram):
            raise BackendError("a saved function has no mesh; trace it here")
        return MeshExecutable(compiled)

    def load_timed(self, compiled: CompiledProgram) -> TimedExecutable:
        """The callable of ``compiled``; its devices read the clock after each step."""
        from arrayfn.distributed.programs import ClockedMesh, MeshProgram

        if not isinstance(compiled, MeshProgram):
            raise BackendError("a saved function has no mesh; trace it here")
        return ClockedMesh(compiled)
