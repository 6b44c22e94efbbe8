"""The plan of one device, loaded on each GPU of a mesh that is in this process.

Where a plan has been captured its graph is enqueued on all GPUs by the calling thread,
without entering Python in between. What Python enqueues (the first runs, which connect
the GPUs and capture graphs, and plans of large arrays) is done by a thread for each
GPU, as NCCL asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from functools import partial
from threading import Lock
from typing import Any, Final

import numpy as np

from arrayfn.backends.cuda.device_array import device_put
from arrayfn.backends.cuda.driver import on
from arrayfn.backends.cuda.executable import Executable
from arrayfn.backends.cuda.timed import TimedExecutable
from arrayfn.backends.members import LOADING, Lockstep
from arrayfn.distributed.devices import Device
from arrayfn.distributed.nccl import (
    GROUPS,
    MissingMemberError,
    NcclMember,
    Watch,
    gpu_of,
)
from arrayfn.errors import ArgumentError, user_location
from arrayfn.ir import Mesh
from arrayfn.lowering.compiled import CompiledProgram

_CAUSE_SECONDS: Final = 15.0
"""So long is the error waited for that has stopped another member.

It comes when the communicators have ended (``GROUPS.abort``).
"""
_ENQUEUING: Final = Lock()
"""Held by a call while it enqueues: all GPUs get the collectives in the same order."""


class GpuPlans:
    """One device's plan, loaded on all GPUs of this process that are in a mesh.

    If ``timed``, each GPU launches its plan step by step, with an event after each.
    """

    def __init__(
        self,
        compiled: CompiledProgram,
        mesh: Mesh,
        devices: dict[int, Device],
        *,
        timed: bool = False,
    ) -> None:
        """Load ``compiled`` on each GPU of ``devices``, which maps members to them."""
        self._generation = GROUPS.generation  # changes when collectives are aborted
        self._lockstep = Lockstep(len(devices))
        self._executables: list[Executable | TimedExecutable] = []
        # For each member: its coordinates in the mesh, the plan's last arguments.
        self._indices: list[list[Any]] = []
        for member, device in devices.items():
            here = gpu_of(device)
            here.watch = partial(Watch, compiled.name)
            LOADING.member = NcclMember(mesh, member, self._lockstep)
            try:
                with on(here):
                    # Calls run in the thread of the device.
                    through = partial(_submitted, device)
                    load = TimedExecutable if timed else Executable
                    self._executables.append(load(compiled, through=through))
                    coordinates = mesh.coordinates[member].values()
                    self._indices.append(
                        [device_put(np.array(k, np.int32)) for k in coordinates]
                    )
            finally:
                LOADING.member = None
        GROUPS.plans.add(self)

    def __call__(self, arguments: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
        """Enqueue the plan on each GPU; ``arguments`` has each member's list.

        Returns each member's results, which the GPUs may still be computing. If one
        member fails, the collectives of all are aborted.
        """
        # ``_indices`` has each member's index along each mesh axis.
        calls = zip(self._executables, arguments, self._indices, strict=True)
        try:
            with _ENQUEUING:
                self._lockstep.start_call()
                pending = [run.call(*parts, *indices) for run, parts, indices in calls]
                results = _completed(pending)
        except BaseException:
            GROUPS.abort()
            raise
        for run, parts, indices, result in zip(
            self._executables, arguments, self._indices, results, strict=True
        ):
            if isinstance(result, int):  # 1 + the number of an argument that differs
                text = run.mismatch([*parts, *indices], result - 1)
                raise ArgumentError(text, user_location())
        return results

    @property
    def is_dropped(self) -> bool:
        """Whether an error has ended the plans, so that they must be loaded again."""
        return self._generation != GROUPS.generation

    def drop(self) -> None:
        """Destroy the plans' graphs, so that their communicators can be aborted.

        NCCL's abort waits until no graph has a collective of the communicator. Members
        that wait at the barrier get an error.
        """
        self._lockstep.barrier.abort()
        self._executables = []

    def times_of_steps(self) -> list[Mapping[int, tuple[int, float]]]:
        """Wait for all GPUs; return ``TimedExecutable.times_of_steps`` of each."""
        timed = [run for run in self._executables if isinstance(run, TimedExecutable)]
        for run in timed:
            run.wait()
        return [run.times_of_steps() for run in timed]


def _submitted(device: Device, call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that runs ``call`` in the thread of a GPU.

    The thread keeps no array beyond the call. If it did, their memory would be free
    again at one time or another, and addresses would not repeat.
    """

    def run(inputs: list[Any]) -> Any:
        """Call ``call``, and empty the list, so that the thread keeps no array."""
        try:
            return call(*inputs)
        finally:
            inputs.clear()

    def submit(*inputs: Any) -> Future[Any]:
        """Enqueue the call of ``call`` with ``inputs``; return its future."""
        return device.worker.submit(run, list(inputs))

    return submit


def _completed(pending: Sequence[Any]) -> list[Any]:
    """Return the results of ``pending``, which may be futures.

    The first exception of a future is raised at once. If it is a MissingMemberError,
    another member's failure may have caused it. Then this waits a few seconds for the
    cause, and raises the cause instead if it comes.
    """
    futures = [p for p in pending if isinstance(p, Future)]
    if futures:
        done, others = wait(futures, return_when="FIRST_EXCEPTION")
        errors = [error for f in done if (error := f.exception()) is not None]
        if errors and all(isinstance(e, MissingMemberError) for e in errors):
            done, _ = wait(others, _CAUSE_SECONDS, "FIRST_EXCEPTION")
            errors += [error for f in done if (error := f.exception()) is not None]
        if errors:
            raise min(errors, key=lambda e: isinstance(e, MissingMemberError))
    return [p.result() if isinstance(p, Future) else p for p in pending]
