"""The engine of GPUs: NCCL, through NVIDIA's Python binding nccl4py.

A *group* is the GPUs that differ along one axis of a mesh; it has a communicator for
each. Its collectives are enqueued by each GPU on the stream it is given, and captured
in graphs with the kernels around them: no data comes to the host. Sums are NCCL's,
whose order depends on the group and on the number of bytes, and is the same in each
run.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from arrayfn import dtypes
from arrayfn.backends.cuda.driver import Device as Gpu
from arrayfn.backends.cuda.driver import device, gpu, on
from arrayfn.backends.members import Enqueue, Lockstep
from arrayfn.distributed.communicators import source_of, timeout
from arrayfn.distributed.devices import DEVICES, Device
from arrayfn.distributed.processes import broadcast_among
from arrayfn.errors import BackendError, CollectiveError, user_location
from arrayfn.ir import Equation, Mesh
from arrayfn.lowering.libraries.collectives import Collective

if TYPE_CHECKING:
    from arrayfn.distributed.gpus import GpuPlans

# ncclDataType_t and ncclRedOp_t of nccl.h.
_BYTES: Final = 1
_KINDS: Final[dict[Any, tuple[int, int]]] = {  # of a dtype: NCCL's, and how many
    dtypes.int8: (0, 1),
    dtypes.uint8: (1, 1),
    dtypes.int32: (2, 1),
    dtypes.uint32: (3, 1),
    dtypes.int64: (4, 1),
    dtypes.uint64: (5, 1),
    dtypes.float16: (6, 1),
    dtypes.float32: (7, 1),
    dtypes.float64: (8, 1),
    dtypes.bfloat16: (9, 1),
    dtypes.complex64: (7, 2),
    dtypes.complex128: (8, 2),
}
_OPERATIONS: Final = {"sum": 0, "max": 2, "min": 3}
_IN_PROGRESS: Final = 7  # of ncclResult_t
_ABORT_SECONDS: Final = 10.0  # to wait for NCCL's abort


def reduces(equation: Equation) -> bool:
    """Whether NCCL can compute the reduction ``equation``.

    It lacks some dtypes, and its maxima and minima of floating-point numbers drop NaN.
    """
    dtype = equation.inputs[0].type.dtype
    is_sum = equation.params.get("op", "sum") == "sum"
    return dtype in _KINDS and (is_sum or dtype.kind in "iu")


@cache
def bindings() -> Any:
    """The module of nccl4py with NCCL's functions; BackendError if it is missing."""
    try:
        nccl: Any = import_module("nccl.bindings.nccl")
        nccl.get_version()  # opens the library
    except (ImportError, RuntimeError, OSError) as error:
        raise BackendError(
            f"collectives between GPUs need NCCL, which cannot be opened ({error}); "
            "install it with pip install 'arrayfn[nccl]'",
            user_location(),
        ) from error
    return nccl


class Group:
    """GPUs that run collectives together, with this process's communicators.

    ``communicators`` maps a GPU's position in ``devices`` to its communicator.
    """

    def __init__(self, devices: tuple[Device, ...], step: Collective) -> None:
        """Create the communicators; all processes of the group call this together.

        They do so at the collective ``step``, which errors name.
        """
        nccl = bindings()
        self.devices = devices
        self.communicators: dict[int, Any] = {}
        here = [k for k, d in enumerate(devices) if d.process_index == DEVICES.process]
        if len(here) == len(devices):  # one process has all GPUs of the group
            numbers = [gpu_of(device).number for device in devices]
            for number in numbers:
                gpu(number).make_current()
            handles = nccl.comm_init_all(len(numbers), numbers)
            for rank, handle in enumerate(handles):
                self.communicators[rank] = _as_communicator(nccl, handle)
            return
        # The process of device 0 makes the group's NCCL id, and sends it to the others.
        own_id = bytes(nccl.get_unique_id()) if here[0] == 0 else None
        processes = tuple(dict.fromkeys(d.process_index for d in devices))
        id_bytes = broadcast_among(processes, own_id, step)
        group_id = nccl.UniqueId.from_buffer(id_bytes)
        nccl.group_start()
        for rank in here:
            with on(gpu_of(devices[rank])):
                gpu_of(devices[rank]).make_current()
                communicator = nccl.comm_init_rank(len(devices), group_id, rank)
            self.communicators[rank] = communicator
        nccl.group_end()

    def check(self) -> None:
        """Raise CollectiveError if a communicator has failed."""
        nccl = bindings()
        for communicator in self.communicators.values():
            status = nccl.comm_get_async_error(communicator)
            if status not in {0, _IN_PROGRESS}:
                raise CollectiveError(
                    f"NCCL says: {nccl.get_error_string(status)} "
                    f"({nccl.get_last_error(communicator)}), among "
                    f"{', '.join(map(str, self.devices))}"
                )


def _as_communicator(nccl: Any, handle: Any) -> Any:
    """Return NCCL's communicator for ``handle``, which may be its address."""
    return handle if isinstance(handle, nccl.Comm) else nccl.Comm(int(handle))


def gpu_of(device: Device) -> Gpu:
    """The GPU of a device of this process."""
    return gpu(device.id if device.local_id < 0 else device.local_id)


class _Groups:
    """The groups of GPUs that this process has created, by the GPUs' ids."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.groups: dict[tuple[int, ...], Group] = {}
        self.plans: WeakSet[GpuPlans] = WeakSet()  # whose graphs ``abort`` drops
        self.generation = 0  # one more after each abort

    def of(self, ids: tuple[int, ...], step: Collective) -> Group:
        """The group of the GPUs with these ``ids``; created at first use."""
        with self.lock:
            known = self.groups.get(ids)
            if known is None:
                devices = DEVICES.gpus()
                known = self.groups[ids] = Group(tuple(devices[k] for k in ids), step)
            return known

    def abort(self) -> None:
        """Abort all collectives that are running, and forget all groups.

        NCCL's abort of a communicator waits until no graph has its collectives, so all
        plans drop their graphs. This function waits for it for up to
        ``_ABORT_SECONDS``.
        """
        with self.lock:
            groups, plans = list(self.groups.values()), list(self.plans)
            self.groups.clear()
            self.plans.clear()
            self.generation += 1
        communicators = [c for group in groups for c in group.communicators.values()]
        threads = [
            threading.Thread(target=bindings().comm_abort, args=(c,), daemon=True)
            for c in communicators
        ]
        for thread in threads:
            thread.start()
        for plan in plans:
            plan.drop()
        end = time.monotonic() + _ABORT_SECONDS
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))


GROUPS: Final = _Groups()


class MissingMemberError(CollectiveError):
    """Raised for a member that waits for another one, whose error says why."""


class Watch:
    """Raises CollectiveError if a GPU's collectives wait for members in vain.

    It is called again and again while the host waits for the GPU.
    """

    def __init__(self, what: str) -> None:
        """Begin to count the time; errors call the computation ``what``."""
        self.what = what
        self.limit = timeout()  # in seconds
        self.end = time.monotonic() + self.limit
        self.generation = GROUPS.generation  # which an abort of all groups changes

    def __call__(self) -> None:
        """Raise CollectiveError if a group has failed, or if time is over."""
        if GROUPS.generation != self.generation:  # another thread has aborted all
            raise MissingMemberError(
                f"{self.what} has ended with an error of another GPU of its mesh, "
                "which says what to do",
                user_location(),
            )
        for group in list(GROUPS.groups.values()):
            group.check()
        if time.monotonic() > self.end:
            GROUPS.abort()
            raise CollectiveError(
                f"{self.what} has not ended within {self.limit:g} s: its GPUs may wait "
                "for each other in different collectives (ARRAYFN_COLLECTIVE_TIMEOUT "
                "sets the time)",
                user_location(),
            )


class NcclMember:
    """A member of a mesh whose collectives are enqueued on a GPU by NCCL."""

    def __init__(self, mesh: Mesh, member: int, lockstep: Lockstep) -> None:
        """Take part in ``mesh`` as number ``member``.

        ``lockstep`` is shared by all members of the mesh in this process.
        """
        self.mesh = mesh
        self.member = member
        self.lockstep = lockstep

    def meet(self) -> None:
        """Wait until all members in this process call this, with their GPUs idle.

        Raises CollectiveError if one of them does not within ``timeout()``.
        """
        device().synchronize()
        try:
            # Longer than a GPU is waited for: that error says more.
            self.lockstep.barrier.wait(2 * timeout())
        except threading.BrokenBarrierError:
            raise MissingMemberError(
                "a GPU of the mesh has not come to the step at which others wait: it "
                "has raised an error, or takes longer than ARRAYFN_COLLECTIVE_TIMEOUT",
                user_location(),
            ) from None

    @contextmanager
    def grouped(self) -> Generator[None]:
        """A context in which the collectives that are enqueued run as one."""
        nccl = bindings()
        nccl.group_start()
        try:
            yield
        finally:
            nccl.group_end()

    def enqueuing(self, step: Collective) -> Enqueue:
        """Return a function that enqueues ``step`` for this member."""
        members = self.mesh.group(self.member, step.params["axis_name"])
        group = GROUPS.of(tuple(self.mesh.device_ids[k] for k in members), step)
        rank = members.index(self.member)
        device = DEVICES.gpus()[self.mesh.device_ids[self.member]]
        return _ENQUEUING[step.primitive.name](group, rank, gpu_of(device), step)


# Each gives what enqueues a collective of ``group`` by its member ``rank``.


def _all_reduce(group: Group, rank: int, _: Gpu, step: Collective) -> Enqueue:
    """Return a function that enqueues NCCL's all-reduce for member ``rank``."""
    run, communicator = bindings().all_reduce, group.communicators[rank]
    # NCCL's dtype, and how many of its elements make up one of ours.
    kind, words = _KINDS[step.operand.dtype]
    count, op = step.operand.size * words, _OPERATIONS[step.params["op"]]

    def enqueue(stream: int, x: int, y: int) -> None:
        """Enqueue it on ``stream``, from address x to address y."""
        run(x, y, count, kind, op, communicator, stream)

    return enqueue


def _all_gather(group: Group, rank: int, _: Gpu, step: Collective) -> Enqueue:
    """Return a function that enqueues NCCL's all-gather for member ``rank``."""
    run, communicator = bindings().all_gather, group.communicators[rank]
    nbytes = step.operand.nbytes

    def enqueue(stream: int, x: int, y: int) -> None:
        """Enqueue it on ``stream``, from address x to address y."""
        run(x, y, nbytes, _BYTES, communicator, stream)

    return enqueue


def _reduce_scatter(group: Group, rank: int, _: Gpu, step: Collective) -> Enqueue:
    """Return a function that enqueues NCCL's reduce-scatter for member ``rank``."""
    run, communicator = bindings().reduce_scatter, group.communicators[rank]
    # NCCL's dtype, and how many of its elements make up one of ours.
    kind, words = _KINDS[step.operand.dtype]
    count = step.result.size * words

    def enqueue(stream: int, x: int, y: int) -> None:
        """Enqueue it on ``stream``, from address x to address y."""
        run(x, y, count, kind, _OPERATIONS["sum"], communicator, stream)

    return enqueue


def _all_to_all(group: Group, rank: int, _: Gpu, step: Collective) -> Enqueue:
    """Return a function that enqueues an all-to-all for member ``rank``.

    It is a send to and a receive from each member.
    """
    nccl, communicator = bindings(), group.communicators[rank]
    size = len(group.devices)
    nbytes = step.operand.nbytes // size

    def enqueue(stream: int, x: int, y: int) -> None:
        """Send part k to member k, and receive member k's part for this one.

        x and y are the addresses of the operand and the result.
        """
        nccl.group_start()
        for k in range(size):
            nccl.send(x + k * nbytes, nbytes, _BYTES, k, communicator, stream)
            nccl.recv(y + k * nbytes, nbytes, _BYTES, k, communicator, stream)
        nccl.group_end()

    return enqueue


def _ppermute(group: Group, rank: int, own_gpu: Gpu, step: Collective) -> Enqueue:
    """Return a function that enqueues a permutation for member ``rank``.

    It is sends to the targets and a receive from the source.
    """
    nccl, communicator = bindings(), group.communicators[rank]
    nbytes, permutation = step.operand.nbytes, step.params["permutation"]
    source = source_of(permutation, rank)
    targets = [target for start, target in permutation if start == rank]

    def enqueue(stream: int, x: int, y: int) -> None:
        """Send to the targets and receive from the source; without one, write zeros.

        x and y are the addresses of the operand and the result.
        """
        if source is None:
            own_gpu.fill(y, 0, nbytes, stream)
        nccl.group_start()
        for target in targets:
            nccl.send(x, nbytes, _BYTES, target, communicator, stream)
        if source is not None:
            nccl.recv(y, nbytes, _BYTES, source, communicator, stream)
        nccl.group_end()

    return enqueue


_ENQUEUING: Final[dict[str, Callable[[Group, int, Gpu, Collective], Enqueue]]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "ppermute": _ppermute,
}
