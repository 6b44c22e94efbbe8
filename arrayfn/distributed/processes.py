"""The engine of several processes: each is one device, and they meet through MPI.

``initialize()`` finds the processes that ``python -m arrayfn launch`` or ``mpiexec``
started. A collective goes over a communicator of its group; sums are added in the order
of members, by the members themselves. Nothing waits without a limit: whoever waits
looks for messages of processes that have failed, and gives up when time is over.
"""

from __future__ import annotations

import sys
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
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

Array = np.ndarray[Any, Any]

_STOP: Final = 1  # tags of messages
_HELLO: Final = 2
_SENT: Final = 3
_NAME: Final = 4
_NAME_BYTES: Final = 128  # of ncclUniqueId
_MAX_REDUCED_WHOLE: Final = (
    1 << 14
)  # elements of arrays that each member combines in full by itself
_YIELDS: Final = 2000  # times to look for a message before sleeping
_GRACE: Final = 2.0  # seconds in which others can say why they end


@dataclass(frozen=True)
class SyncPoint:
    """A point in the program, not in a plan, at which all processes wait.

    ``what`` describes it in errors.
    """

    what: str
    source: SourceLocation | None

    @override
    def __str__(self) -> str:
        return self.what if self.source is None else f"{self.what} at {self.source}"


Waiting = Collective | SyncPoint
"""What processes wait for each other at."""


class Processes:
    """All processes of the program, which communicate by MPI.

    ``world`` is MPI's communicator of all of them.
    """

    def __init__(self) -> None:
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
        self.control: Any = self.world.Dup()  # messages about failures
        self.rank = int(self.world.Get_rank())
        self.size = int(self.world.Get_size())
        self.stopped = ""
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
        """MPI's communicator of the processes ``ranks``.

        It is created at first use, when all of them have called this for the collective
        ``step``.
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
        """Wait until the MPI ``requests`` of the collective ``step`` are complete.

        ``ranks`` are the processes that take part. Raises CollectiveError after the
        timeout, or if another process has failed.
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

        It has at most 128 bytes. ``point`` is named in the errors of processes that
        wait in vain.
        """
        every = range(self.size)
        padded = data.ljust(_NAME_BYTES, b"\0")
        found = self.broadcast(every, padded if self.rank == 0 else None, point)
        self.wait([self.world.Ibarrier()], point, every)
        return found.rstrip(b"\0")

    def broadcast(
        self, ranks: Sequence[int], data: bytes | None, step: Waiting
    ) -> bytes:
        """Send the 128 bytes ``data`` from the first of ``ranks`` to the others.

        Returns them in all of these processes.
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
        """Report a failure to all other processes: ``reason``."""
        if self.stopped:
            return
        self.stopped = reason
        others = [rank for rank in range(self.size) if rank != self.rank]
        self._sent = [self.control.isend(reason, k, _STOP) for k in others]

    def end(self, reason: str) -> None:
        """Report a failure, wait ``_GRACE`` seconds, and abort all processes."""
        self.stop(reason)
        sys.stdout.flush()
        sys.stderr.flush()
        end = time.monotonic() + _GRACE
        while time.monotonic() < end:
            self.control.Iprobe(tag=_STOP)  # lets messages go
            time.sleep(0.01)
        self.world.Abort(1)


class MpiCommunicator:
    """One process's access to a group of processes."""

    def __init__(self, processes: Processes, ranks: tuple[int, ...], comm: Any) -> None:
        self.processes = processes
        self.ranks = ranks
        self.comm = comm
        self.rank = ranks.index(processes.rank)
        self.size = len(ranks)

    def _wait(self, step: Collective, *requests: Any) -> None:
        self.processes.wait(requests, step, self.ranks)

    def check(self, step: Collective) -> None:
        """Raise CollectiveError unless all members are at the same collective."""
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
        """All-gather: the arrays ``x`` of all members, stacked in their order."""
        parts = np.empty((self.size, *x.shape), x.dtype)
        self._wait(step, self.comm.Iallgather(_bytes(x), _bytes(parts)))
        return parts

    def _exchanged(self, step: Collective, x: Array) -> Array:
        """All-to-all: part k of the result is what member k has for this member."""
        received = np.empty(x.shape, x.dtype)
        self._wait(step, self.comm.Ialltoall(_bytes(x), _bytes(received)))
        return received

    def all_reduce(self, step: Collective, x: Array, out: Array, op: str) -> None:
        """Combine the members' ``x`` by ``op`` into ``out``, in the order of members.

        Of a small array each member combines all elements. Of a large one each member
        combines an equal part, and the parts are gathered.
        """
        if x.size <= _MAX_REDUCED_WHOLE:
            combined(list(self._gathered(step, x)), out, op)
            return
        share = -(-x.size // self.size)
        padded = np.zeros(share * self.size, x.dtype)
        padded[: x.size] = x.reshape(-1)
        parts = self._exchanged(step, padded.reshape(self.size, share))
        own = np.empty(share, x.dtype)
        combined(list(parts), own, op)
        whole = self._gathered(step, own).reshape(-1)
        out[...] = whole[: x.size].reshape(out.shape)

    def all_gather(self, step: Collective, x: Array, out: Array) -> None:
        out[...] = self._gathered(step, x)

    def reduce_scatter(self, step: Collective, x: Array, out: Array) -> None:
        combined(list(self._exchanged(step, x)), out)

    def all_to_all(self, step: Collective, x: Array, out: Array) -> None:
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
    """The memory of ``x``, or of a row-major copy, as bytes."""
    return np.ascontiguousarray(x).reshape(-1).view(np.uint8)


def _digest(step: Collective) -> int:
    return zlib.crc32(f"{step} {step.params} {step.operand}".encode())


class ProcessMember:
    """The member of a mesh that this process is."""

    def __init__(self, processes: Processes, mesh: Mesh, member: int) -> None:
        self.processes = processes
        self.mesh = mesh
        self.member = member
        self._communicators: dict[str, MpiCommunicator] = {}

    def meet(self, step: Collective, operand: Array, result: Array) -> None:
        """Run the collective ``step`` of ``operand`` with the other members."""
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
    shown = sys.excepthook

    def end_all(
        kind: type[BaseException],
        error: BaseException,
        trace: TracebackType | None,
    ) -> None:
        """Show an uncaught error, and end all processes."""
        shown(kind, error, trace)
        processes.end(f"rank {processes.rank} raised {kind.__name__}: {error}")

    sys.excepthook = end_all


def process_index() -> int:
    """The number of this process.

    >>> process_index()
    0
    """
    return DEVICES.process


def process_count() -> int:
    """The number of processes.

    >>> process_count()
    1
    """
    return 1 if _Started.processes is None else _Started.processes.size


def process_member(mesh: Mesh, member: int) -> ProcessMember:
    """This process as a member of ``mesh``."""
    assert _Started.processes is not None
    return ProcessMember(_Started.processes, mesh, member)


def broadcast_among(
    ranks: Sequence[int], data: bytes | None, step: Collective
) -> bytes:
    """Send the 128 bytes ``data`` from the first of ``ranks`` to the others.

    Returns them in all of these processes.
    """
    assert _Started.processes is not None
    return _Started.processes.broadcast(ranks, data, step)


def agree(text: str, what: str) -> str:
    """Return the first process's ``text``, once all processes have called this.

    ``what`` describes the call in errors.
    """
    if _Started.processes is None:
        return text
    point = SyncPoint(what, user_location())
    return _Started.processes.agree(text.encode(), point).decode()


def stop_others(reason: str) -> None:
    """Report to the other processes, which may be waiting, that this one failed.

    ``reason`` says why.
    """
    if _Started.processes is not None:
        _Started.processes.stop(reason)
