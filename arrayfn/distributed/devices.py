"""The devices that a mesh is made of.

A CPU counts as ``ARRAYFN_CPU_DEVICES`` virtual devices, or as many as
``set_num_devices`` says: each has a thread of its own and its share of the cores, so
that programs for many devices run anywhere. If there are several processes, each
process is one CPU device. GPUs are devices of their own, "cuda:0" and so on; each of
several processes on a host has one of the host's GPUs.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from typing_extensions import override

from arrayfn.backends.cpu.runtime import Runtime, with_own_pool
from arrayfn.backends.cuda.driver import gpu_count
from arrayfn.backends.cuda.requirements import missing_gpu
from arrayfn.errors import ArgumentError, BackendError, user_location
from arrayfn.ir import Mesh
from arrayfn.lowering.cpu import machine
from arrayfn.records import frozen

if TYPE_CHECKING:
    from collections.abc import Callable

VARIABLE: Final = "ARRAYFN_CPU_DEVICES"
MOST: Final = 256
"""Most CPU devices."""


@frozen
class Device:
    """A device: its number among the devices of its platform, and its process.

    ``threads`` is the number of threads of a CPU device's pool. ``local_id`` is a GPU's
    number for the driver in its process, or -1 if that equals ``id``.
    """

    id: int
    process_index: int = 0
    platform: str = "cpu"
    threads: int = field(default=1, compare=False)
    local_id: int = field(default=-1, compare=False)

    @property
    def backend(self) -> str:
        """The name of the backend that computes on the device."""
        if self.platform != "cuda":
            return self.platform
        return f"cuda:{self.id if self.local_id < 0 else self.local_id}"

    @cached_property
    def runtime(self) -> Runtime:
        """The runtime of the device's plans, with a thread pool of its own."""
        return with_own_pool(self.threads)

    @cached_property
    def worker(self) -> ThreadPoolExecutor:
        """The executor with the one thread that runs the device's plans."""
        return ThreadPoolExecutor(1, thread_name_prefix=str(self))

    @override
    def __str__(self) -> str:
        return f"{self.platform}:{self.id}"

    @override
    def __repr__(self) -> str:
        return f"Device({self})"


class _Devices:
    """The devices of all processes, and this process's rank. Filled at first use."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.cpu_devices: tuple[Device, ...] = ()
        self.gpu_devices: tuple[Device, ...] | None = None
        self.process = 0  # the rank of this process
        self.rank_on_host = -1  # among the processes of this host; -1 if only one

    def all(self) -> tuple[Device, ...]:
        """Return the CPU devices of all processes.

        If ``reset`` has set none, they are this process's virtual devices, made at the
        first call.
        """
        with self.lock:
            if not self.cpu_devices:
                self.cpu_devices = _virtual(_configured_count())
            return self.cpu_devices

    def gpus(self) -> tuple[Device, ...]:
        """Return the GPUs of all processes.

        Each of several processes has one GPU of its host, in turn. A single process has
        all GPUs.
        """
        with self.lock:
            if self.gpu_devices is None:
                count = 0 if missing_gpu() else gpu_count()
                if count and self.rank_on_host >= 0:
                    # Only this process uses the number; others have their own.
                    own_gpu = self.rank_on_host % count
                    self.gpu_devices = tuple(
                        Device(d.id, d.process_index, "cuda", local_id=own_gpu)
                        for d in self.cpu_devices
                    )
                else:
                    self.gpu_devices = tuple(
                        Device(k, platform="cuda") for k in range(count)
                    )
            return self.gpu_devices

    def of(self, platform: str) -> tuple[Device, ...]:
        """Return the devices of ``platform``, "cuda" or "cpu"."""
        return self.gpus() if platform == "cuda" else self.all()

    def reset(
        self, known: tuple[Device, ...], process: int = 0, rank_on_host: int = -1
    ) -> None:
        """Replace the CPU devices by ``known``; find the GPUs again when they are used.

        ``process`` is this process's rank, ``rank_on_host`` its rank among the
        processes of its host, or -1 if there is only this one.
        """
        with self.lock:
            self.cpu_devices, self.process = known, process
            self.rank_on_host, self.gpu_devices = rank_on_host, None

    def reset_after_fork(self) -> None:
        """Replace the devices by copies in a forked child.

        Their threads do not survive a fork; the copies start new ones.
        """
        self.lock = threading.Lock()
        # ``replace`` without changes makes a copy.
        self.cpu_devices = tuple(map(replace, self.cpu_devices))
        self.gpu_devices = None


DEVICES: Final = _Devices()
os.register_at_fork(after_in_child=DEVICES.reset_after_fork)


def devices(platform: str | None = None) -> list[Device]:
    """Return the devices of all processes, or those of one ``platform``.

    Platforms are "cpu" and "cuda"; without one, CPU devices come first. Other names
    raise ArgumentError.

    >>> set_num_devices(8)
    >>> [str(device) for device in devices()][:3]
    ['cpu:0', 'cpu:1', 'cpu:2']
    """
    if platform not in {None, "cpu", "cuda"}:
        raise ArgumentError(
            f'devices: platform must be "cpu" or "cuda", not {platform!r}',
            user_location(),
        )
    if platform is not None:
        return list(DEVICES.of(platform))
    return [*DEVICES.all(), *DEVICES.gpus()]


def local_devices(platform: str | None = None) -> list[Device]:
    """Return the devices of this process, of all platforms or of ``platform``."""
    return [d for d in devices(platform) if d.process_index == DEVICES.process]


def make_mesh(
    axis_shapes: Sequence[int],
    axis_names: Sequence[str] | str,
    *,
    devices: Sequence[Device] | None = None,
) -> Mesh:
    """Make a mesh of ``devices``, row by row, or by default of the first devices.

    Its axes have the extents ``axis_shapes`` and the names ``axis_names``. Raises
    ArgumentError if the number of ``devices`` is not that of the mesh.

    >>> make_mesh((1, 1), ("data", "model")).shape
    {'data': 1, 'model': 1}
    """
    if devices is None:
        return Mesh(axis_shapes, axis_names)
    try:
        grid = np.asarray(devices, object).reshape(tuple(axis_shapes))
    except ValueError:
        raise ArgumentError(
            f"make_mesh: a mesh of shape {tuple(axis_shapes)} has "
            f"{math.prod(axis_shapes)} devices, not {len(devices)}",
            user_location(),
        ) from None
    return Mesh(grid, axis_names)


def set_num_devices(count: int) -> None:
    """Divide the CPU into ``count`` virtual devices, which share its cores.

    Raises ArgumentError unless ``1 <= count <= 256``, or if there are several
    processes.

    >>> set_num_devices(8)
    >>> len(devices())
    8
    """
    if not isinstance(count, int) or not 1 <= count <= MOST:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ArgumentError(
            f"the number of devices is from 1 to {MOST}, not {count!r}",
            user_location(),
        )
    if any(d.process_index for d in DEVICES.all()):
        raise ArgumentError(
            "each of several processes is one device; start more processes",
            user_location(),
        )
    if len(DEVICES.all()) != count:
        DEVICES.reset(_virtual(count))


def devices_of(mesh: Mesh) -> list[Device]:
    """Return the devices of ``mesh``, member by member.

    Raises BackendError if there are too few devices.
    """
    known = DEVICES.of(mesh.platform)
    if max(mesh.device_ids) >= len(known) and mesh.platform == "cuda":
        raise BackendError(
            f"the mesh ({mesh}) is of GPUs 0 to {max(mesh.device_ids)}, but "
            + (
                missing_gpu()
                or f"there {'is' if len(known) == 1 else 'are'} {len(known)} here"
            ),
            user_location(),
        )
    if max(mesh.device_ids) >= len(known):
        raise BackendError(
            f"the mesh ({mesh}) is of devices 0 to {max(mesh.device_ids)}, but there "
            f"{'is' if len(known) == 1 else 'are'} {len(known)}. Set "
            f"{VARIABLE}={max(mesh.device_ids) + 1} before the program starts, or call "
            f"arrayfn.set_num_devices({max(mesh.device_ids) + 1})",
            user_location(),
        )
    return [known[k] for k in mesh.device_ids]


_submitting = threading.Lock()


def run_on(
    devices: Sequence[Device], work: Callable[..., Any], arguments: Sequence[Any]
) -> list[Future[Any]]:
    """Start ``work(argument)`` in the thread of each device; return the Futures.

    ``arguments`` has an argument for each device. Calls from several threads start in
    the same order on all devices: otherwise two calls could wait for each other.
    """
    with _submitting:
        return [
            device.worker.submit(work, argument)
            for device, argument in zip(devices, arguments, strict=True)
        ]


def _configured_count() -> int:
    """Return the number of CPU devices that ``ARRAYFN_CPU_DEVICES`` asks for.

    It is 1 by default. Raises ArgumentError for a value that is no number up to 256.
    """
    text = os.environ.get(VARIABLE, "1")
    if not text.isdecimal() or not 1 <= int(text) <= MOST:
        raise ArgumentError(f"{VARIABLE}={text!r}: it is a number from 1 to {MOST}")
    return int(text)


def _virtual(count: int) -> tuple[Device, ...]:
    """Make ``count`` CPU devices, each with an equal share of the cores."""
    share = max(1, machine.cores() // count)
    return tuple(Device(k, threads=share) for k in range(count))
