"""The backend of meshes. It imports the modules that compute at their first use."""

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
    """The backend that runs one plan on all devices of a mesh.

    Each device has its part of the arrays.
    """

    name = "mesh"

    def info(self) -> BackendInfo:
        """Describe the backend, which is chosen by the arguments, never by name."""
        return BackendInfo(
            self.name,
            description="one plan on all devices of a mesh",
            requires=(),
            missing="it is not chosen by name: jit uses it for arguments that lie over "
            "several devices, and for shard_map; af.devices() lists the devices",
            kind="implied",
        )

    def array_types(self) -> tuple[type, ...]:
        """Return the classes of this backend's arrays: ShardedArray."""
        return (ShardedArray,)

    def put(self, x: Any) -> Any:
        """Copy ``x`` to a NumPy array; a later call moves it to the mesh's devices."""
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
        """Load ``compiled`` as a callable on all devices of its mesh.

        Raises BackendError if it was not made by ``lower``.
        """
        from arrayfn.distributed.programs import MeshExecutable, MeshProgram

        if not isinstance(compiled, MeshProgram):
            raise BackendError("a saved function has no mesh; trace it here")
        return MeshExecutable(compiled)

    def load_timed(self, compiled: CompiledProgram) -> TimedExecutable:
        """Load ``compiled`` as a callable that times each step on each device.

        Raises BackendError if it was not made by ``lower``.
        """
        from arrayfn.distributed.programs import ClockedMesh, MeshProgram

        if not isinstance(compiled, MeshProgram):
            raise BackendError("a saved function has no mesh; trace it here")
        return ClockedMesh(compiled)
