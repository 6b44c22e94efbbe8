"""The engine of several processes: each is one device, and they communicate by MPI.

``initialize()`` finds the processes that ``python -m arrayfn launch`` or ``mpiexec``
started. A collective uses MPI's communicator of its group. The members add sums
themselves, in the order of members. No wait is without a limit: a process that waits
looks for messages of processes that have failed, and gives up when its time is over.
"""

from __future__ import annotations

import sys
import time
import zlib
from collections.abc import Sequence
from functools import cached_property
from importlib import import_module
from types import TracebackType
from typing import Any, Final

import numpy as np
from typing_extensions import override

from arrayfn.distributed.communicators import (
    Communicator,
    Permutation,
    combined,
    run_collective,
    source_of,
    timeout,
)
from arrayfn.distributed.devices import DEVICES, Device
from arrayfn.errors import (
    BackendError,
    CollectiveError,
    SourceLocation,
    user_location,
)
from arrayfn.ir import Mesh
from arrayfn.lowering.cpu import machine
from arrayfn.lowering.libraries.collectives import Collective
from arrayfn.records import frozen

Array = np.ndarray[Any, Any]

# Tags of MPI messages: a failure, the creation of a group, ``ppermute``, ``broadcast``.
_STOP: Final = 1
_HELLO: Final = 2
_SENT: Final = 3
_NAME: Final = 4
_NAME_BYTES: Final = 128
"""Bytes of a message of ``broadcast``: those of an ncclUniqueId."""
_MAX_REDUCED_WHOLE: Final = 1 << 14
"""Most elements of an array that each member combines completely by itself."""
_YIELDS: Final = 2000  # times that a wait looks for its end before it sleeps between
_GRACE: Final = 2.0  # seconds from the report of a failure to the end of all processes


@frozen
class SyncPoint:
    """A point of the program, outside of plans, at which all processes wait.

    Errors describe it as ``what`` at the user's line ``source``.
    """

    what: str
    source: SourceLocation | None

    @override
    def __str__(self) -> str:
        return self.what if self.source is None else f"{self.what} at {self.source}"


Waiting = Collective | SyncPoint
"""The place at which processes wait for each other."""


class Processes:
    """All processes of the program, as this process sees them.

    ``world`` is MPI's communicator of all processes, ``rank`` is this process's number
    among them, and ``size`` is their number. ``stopped`` is the reason why a process
    failed, or empty.
    """

    def __init__(self) -> None:
        """Import MPI, which begins it; raises BackendError without mpi4py."""
        try:
            mpi: Any = import_module("mpi4py.MPI")
        except ImportError as error:
            raise BackendError(
                f"several processes meet through MPI, but mpi4py cannot be imported "
                f"({error}); install it with pip install 'arrayfn[mpi]'",
                user_location(),
            ) from error
        self.mpi = mpi
        self.world = mpi.COMM_WORLD
        self.control: Any = self.world.Dup()  # for messages outside of collectives
        self.rank = int(self.world.Get_rank())
        self.size = int(self.world.Get_size())
        self.stopped = ""
        # MPI's communicators of groups, by the ranks of their processes.
        self._groups: dict[tuple[int, ...], Any] = {}

    @cached_property
    def count_on_host(self) -> int:
        """The number of processes on this host."""
        kind = self.mpi.COMM_TYPE_SHARED
        return int(self.world.Split_type(kind, 0).Get_size())

    @cached_property
    def rank_on_host(self) -> int:
        """This process's rank among the processes of its host."""
        kind = self.mpi.COMM_TYPE_SHARED
        return int(self.world.Split_type(kind, 0).Get_rank())

    def group(self, ranks: tuple[int, ...], step: Collective) -> Any:
        """Return MPI's communicator of the processes ``ranks``.

        The first call creates it, once all of these processes have called this for the
        collective ``step``. A creation cannot be given up when time is over, so they
        exchange messages before it.
        """
        known = self._groups.get(ranks)
        if known is None:
            others = [rank for rank in ranks if rank != self.rank]
            word = np.zeros(1, np.uint8)
            requests = [self.control.Isend(word, k, _HELLO) for k in others]
            requests += [
                self.control.Irecv(np.empty(1, np.uint8), k, _HELLO) for k in others
            ]
            self.wait(requests, step, ranks)
            group = self.world.Get_group().Incl(list(ranks))
            known = self._groups[ranks] = self.world.Create_group(group)
        return known

    def wait(
        self, requests: Sequence[Any], step: Waiting, ranks: Sequence[int]
    ) -> None:
        """Wait until the MPI ``requests`` of ``step`` are complete.

        ``ranks`` are the processes that take part. Raises CollectiveError after the
        timeout, which other processes are told, or if another process has failed.
        """
        limit = timeout()
        end = time.monotonic() + limit
        polls = 0
        while not self.mpi.Request.Testall(list(requests)):
            self.raise_if_stopped(step)
            if time.monotonic() > end:
                names = ", ".join(str(k) for k in ranks if k != self.rank)
                reason = (
                    f"not all of ranks {names} came to {step} within {limit:g} s, "
                    f"where rank {self.rank} waits (ARRAYFN_COLLECTIVE_TIMEOUT sets "
                    "the time)"
                )
                self.stop(reason)
                raise CollectiveError(reason, step.source)
            polls += 1
            time.sleep(0.0 if polls < _YIELDS else 1e-4)

    def raise_if_stopped(self, step: Waiting) -> None:
        """Raise CollectiveError if another process has reported a failure."""
        if not self.stopped and self.control.Iprobe(tag=_STOP):
            self.stopped = self.control.recv(tag=_STOP)
        if self.stopped:
            raise CollectiveError(
                f"rank {self.rank} was at {step}, and ended because {self.stopped}",
                step.source,
            )

    def agree(self, data: bytes, point: SyncPoint) -> bytes:
        """Return the first process's ``data``, once all processes have called this.

        The data are at most 128 bytes, and do not end in zeros. ``point`` is named in
        the errors of processes that wait in vain.
        """
        every = range(self.size)
        padded = data.ljust(_NAME_BYTES, b"\0")
        agreed = self.broadcast(every, padded if self.rank == 0 else None, point)
        self.wait([self.world.Ibarrier()], point, every)
        return agreed.rstrip(b"\0")

    def broadcast(
        self, ranks: Sequence[int], data: bytes | None, step: Waiting
    ) -> bytes:
        """Send 128 bytes from the first of the processes ``ranks`` to the others.

        The first process passes ``data``, the others pass None. Returns the bytes in
        all of these processes.
        """
        word = np.zeros(_NAME_BYTES, np.uint8)
        first, *others = ranks
        if data is None:
            requests = [self.control.Irecv(word, first, _NAME)]
        else:
            word[:] = np.frombuffer(data, np.uint8)
            requests = [self.control.Isend(word, k, _NAME) for k in others]
        self.wait(requests, step, ranks)
        return word.tobytes()

    def stop(self, reason: str) -> None:
        """Report a failure of this process to all others, with its ``reason``.

        Does nothing if a failure has been reported before.
        """
        if self.stopped:
            return
        self.stopped = reason
        others = [rank for rank in range(self.size) if rank != self.rank]
        # MPI needs the requests of messages that are on their way.
        self._sent = [self.control.isend(reason, k, _STOP) for k in others]

    def end(self, reason: str) -> None:
        """Report a failure of this process, and abort all processes soon after.

        Until then the others can show their own errors.
        """
        self.stop(reason)
        sys.stdout.flush()
        sys.stderr.flush()
        end = time.monotonic() + _GRACE
        while time.monotonic() < end:
            self.control.Iprobe(tag=_STOP)  # MPI sends messages only within its calls
            time.sleep(0.01)
        self.world.Abort(1)


class MpiCommunicator:
    """A member's Communicator for a group of processes.

    ``ranks`` are the processes of the group, and ``comm`` is their MPI communicator.
    """

    def __init__(self, processes: Processes, ranks: tuple[int, ...], comm: Any) -> None:
        self.processes = processes
        self.ranks = ranks
        self.comm = comm
        self.rank = ranks.index(processes.rank)
        self.size = len(ranks)

    def _wait(self, step: Collective, *requests: Any) -> None:
        """Wait until the MPI ``requests`` of ``step`` are complete."""
        self.processes.wait(requests, step, self.ranks)

    def check(self, step: Collective) -> None:
        """Raise CollectiveError unless all members are at the collective ``step``.

        The members compare a checksum of it. The error is reported to all processes.
        """
        own = np.array([_digest(step)], np.int64)
        every = np.empty(self.size, np.int64)
        self._wait(step, self.comm.Iallgather(own, every))
        if (every != own).any():
            other = self.ranks[int(np.argmax(every != own))]
            reason = (
                f"rank {self.processes.rank} is at {step}, but rank {other} is at "
                "another collective: all processes must run the same program, and come "
                "to the same collectives in the same order"
            )
            self.processes.stop(reason)
            raise CollectiveError(reason, step.source)

    def _gathered(self, step: Collective, x: Array) -> Array:
        """Return the arrays ``x`` of all members, stacked by rank (all-gather)."""
        parts = np.empty((self.size, *x.shape), x.dtype)
        self._wait(step, self.comm.Iallgather(_bytes(x), _bytes(parts)))
        return parts

    def _exchanged(self, step: Collective, x: Array) -> Array:
        """Return an array whose part k is ``x[rank]`` of member k (all-to-all)."""
        received = np.empty(x.shape, x.dtype)
        self._wait(step, self.comm.Ialltoall(_bytes(x), _bytes(received)))
        return received

    def all_reduce(self, step: Collective, x: Array, out: Array, op: str) -> None:
        """Combine the members' ``x`` by ``op`` into ``out``, in the order of members.

        Each member combines all elements of a small array. Of a large array it combines
        an equal part, and the combined parts are gathered.
        """
        if x.size <= _MAX_REDUCED_WHOLE:
            combined(list(self._gathered(step, x)), out, op)
            return
        # Each member combines ``share`` elements; zeros fill up the last parts.
        share = -(-x.size // self.size)  # ceil(x.size / self.size)
        padded = np.zeros(share * self.size, x.dtype)
        padded[: x.size] = x.reshape(-1)
        parts = self._exchanged(step, padded.reshape(self.size, share))
        own = np.empty(share, x.dtype)
        combined(list(parts), own, op)
        whole = self._gathered(step, own).reshape(-1)
        out[...] = whole[: x.size].reshape(out.shape)

    def all_gather(self, step: Collective, x: Array, out: Array) -> None:
        """Write ``x`` of member k to ``out[k]``."""
        out[...] = self._gathered(step, x)

    def reduce_scatter(self, step: Collective, x: Array, out: Array) -> None:
        """Write the sum of ``x[rank]`` of all members to ``out``."""
        combined(list(self._exchanged(step, x)), out)

    def all_to_all(self, step: Collective, x: Array, out: Array) -> None:
        """Write ``x[rank]`` of member k to ``out[k]``."""
        out[...] = self._exchanged(step, x)

    def ppermute(
        self, step: Collective, x: Array, out: Array, permutation: Permutation
    ) -> None:
        """Send ``x`` as ``permutation`` says, and receive into ``out``.

        ``out`` becomes zeros if no member sends to this one.
        """
        source = source_of(permutation, self.rank)
        targets = [target for start, target in permutation if start == self.rank]
        received = np.zeros(x.shape, x.dtype)
        requests = [self.comm.Isend(_bytes(x), k, _SENT) for k in targets]
        if source is not None:
            requests.append(self.comm.Irecv(_bytes(received), source, _SENT))
        self._wait(step, *requests)
        out[...] = received


def _bytes(x: Array) -> Array:
    """View ``x`` as a vector of bytes; if it is not row-major, a copy of it."""
    return np.ascontiguousarray(x).reshape(-1).view(np.uint8)


def _digest(step: Collective) -> int:
    """Return a checksum of a collective, its parameters and its operand's type."""
    return zlib.crc32(f"{step} {step.params} {step.operand}".encode())


class ProcessMember:
    """This process as a member of a mesh."""

    def __init__(self, processes: Processes, mesh: Mesh, member: int) -> None:
        self.processes = processes
        self.mesh = mesh
        self.member = member
        self._communicators: dict[str, MpiCommunicator] = {}  # by mesh axis

    def meet(self, step: Collective, operand: Array, result: Array) -> None:
        """Run the collective ``step`` with the other members along its mesh axis.

        ``operand`` is this member's, and ``result`` is written.
        """
        axis = step.params["axis_name"]
        known = self._communicators.get(axis)
        if known is None:
            group = self.mesh.group(self.member, axis)
            ranks = tuple(self.mesh.device_ids[k] for k in group)
            comm = self.processes.group(ranks, step)
            known = MpiCommunicator(self.processes, ranks, comm)
            self._communicators[axis] = known
        known.check(step)
        communicator: Communicator = known
        run_collective(communicator, step, operand, result)


class _Started:
    """Holds the processes that ``initialize`` found; None if there is only one."""

    processes: Processes | None = None


def initialize() -> None:
    """Make the processes that were started together the devices of one program.

    ``python -m arrayfn launch -n 4 script.py`` or ``mpiexec -n 4 python script.py``
    starts the processes. Every process runs the same program, and is one device. Each
    process passes a NumPy array as a whole. If an exception ends one process, all
    processes end, each with an error that says which one failed. ``initialize`` does
    nothing in a process that was started alone, or when it is called again. Raises
    BackendError if mpi4py is missing.
    """
    if _Started.processes is not None:
        return
    processes = Processes()
    if processes.size == 1:
        return
    _Started.processes = processes
    threads = max(1, machine.cores() // processes.count_on_host)
    DEVICES.reset(
        tuple(Device(k, k, threads=threads) for k in range(processes.size)),
        processes.rank,
        processes.rank_on_host,
    )
    show = sys.excepthook

    def end_all(
        kind: type[BaseException],
        error: BaseException,
        trace: TracebackType | None,
    ) -> None:
        """Show an uncaught error, and end all processes."""
        show(kind, error, trace)
        processes.end(f"rank {processes.rank} raised {kind.__name__}: {error}")

    sys.excepthook = end_all


def process_index() -> int:
    """Return the number of this process among all, from 0.

    >>> process_index()
    0
    """
    return DEVICES.process


def process_count() -> int:
    """Return the number of processes of the program.

    >>> process_count()
    1
    """
    return 1 if _Started.processes is None else _Started.processes.size


def process_member(mesh: Mesh, member: int) -> ProcessMember:
    """Make the object by which this process takes part in collectives over ``mesh``.

    ``member`` is this process's place in the mesh.
    """
    assert _Started.processes is not None
    return ProcessMember(_Started.processes, mesh, member)


def broadcast_among(
    ranks: Sequence[int], data: bytes | None, step: Collective
) -> bytes:
    """Send 128 bytes from the first of the processes ``ranks`` to the others.

    The first process passes ``data``, the others pass None. Returns the bytes in all of
    these processes. Errors name the collective ``step``.
    """
    assert _Started.processes is not None
    return _Started.processes.broadcast(ranks, data, step)


def agree(text: str, what: str) -> str:
    """Return the first process's ``text``, once all processes have called this.

    If there is only one process, that is its own. ``what`` describes the call in
    errors. The text has at most 128 bytes.
    """
    if _Started.processes is None:
        return text
    point = SyncPoint(what, user_location())
    return _Started.processes.agree(text.encode(), point).decode()


def stop_others(reason: str) -> None:
    """Report to the other processes, which may be waiting, that this one failed.

    ``reason`` says why. Does nothing if there is only one process.
    """
    if _Started.processes is not None:
        _Started.processes.stop(reason)
