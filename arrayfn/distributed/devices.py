"""The devices that a mesh is made of.

A CPU counts as ``ARRAYFN_CPU_DEVICES`` virtual devices, or as many as
``set_num_devices`` says: each has a thread of its own and its share of the cores, so
that programs for many devices run anywhere. Among several processes each process is one
device.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from arrayfn.backends.cpu.runtime import Runtime, with_own_pool
from arrayfn.errors import ArgumentError, BackendError, user_location
from arrayfn.ir import Mesh
from arrayfn.lowering.cpu import machine

if TYPE_CHECKING:
    from collections.abc import Callable

VARIABLE: Final = "ARRAYFN_CPU_DEVICES"
MOST: Final = 256


@dataclass(frozen=True)
class Device:
    """A device: its number among all, and the process it belongs to."""

    id: int
    process_index: int = 0
    platform: str = "cpu"
    threads: int = field(default=1, compare=False)

    @cached_property
    def runtime(self) -> Runtime:
        """The runtime of its plans, with a pool of its share of threads."""
        return with_own_pool(self.threads)

    @cached_property
    def worker(self) -> ThreadPoolExecutor:
        """The one thread that runs its plans."""
        return ThreadPoolExecutor(1, thread_name_prefix=str(self))

    def __str__(self) -> str:
        return f"{self.platform}:{self.id}"

    def __repr__(self) -> str:
        return f"Device({self})"


class _Devices:
    """All devices, and which process this is. Made when they are first asked for."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.known: tuple[Device, ...] = ()
        self.process = 0

    def all(self) -> tuple[Device, ...]:
        """The devices."""
        with self.lock:
            if not self.known:
                self.known = _virtual(_wanted())
            return self.known

    def reset(self, known: tuple[Device, ...], process: int = 0) -> None:
        """Replace the devices."""
        with self.lock:
            self.known, self.process = known, process

    def forked(self) -> None:
        """A child has none of its parent's threads."""
        self.lock = threading.Lock()
        self.known = tuple(
            Device(d.id, d.process_index, d.platform, d.threads) for d in self.known
        )


DEVICES: Final = _Devices()
os.register_at_fork(after_in_child=DEVICES.forked)


def devices() -> list[Device]:
    """All devices, of all processes.

    >>> set_num_devices(8)
    >>> [str(device) for device in devices()][:3]
    ['cpu:0', 'cpu:1', 'cpu:2']
    """
    return list(DEVICES.all())


def local_devices() -> list[Device]:
    """The devices of this process."""
    return [d for d in DEVICES.all() if d.process_index == DEVICES.process]


def make_mesh(
    axis_shapes: Sequence[int],
    axis_names: Sequence[str] | str,
    *,
    devices: Sequence[Device] | None = None,
) -> Mesh:
    """A mesh of ``devices``, row by row: of the first ones, if none are named.

    >>> make_mesh((1, 1), ("data", "model")).shape
    {'data': 1, 'model': 1}
    """
    ids = () if devices is None else [device.id for device in devices]
    return Mesh(axis_shapes, axis_names, ids)


def set_num_devices(count: int) -> None:
    """Let the CPU count as ``count`` virtual devices.

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
    """The devices of ``mesh``, member by member. Raises BackendError if some lack."""
    known = DEVICES.all()
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
    places: Sequence[Device], work: Callable[..., Any], arguments: Sequence[Any]
) -> list[Future[Any]]:
    """Start ``work(argument)`` on each device, for its argument.

    Two calls start in the same order on all devices, so that neither waits for the
    other.
    """
    with _submitting:
        return [
            place.worker.submit(work, argument)
            for place, argument in zip(places, arguments, strict=True)
        ]


def _wanted() -> int:
    text = os.environ.get(VARIABLE, "1")
    if not text.isdecimal() or not 1 <= int(text) <= MOST:
        raise ArgumentError(f"{VARIABLE}={text!r}: it is a number from 1 to {MOST}")
    return int(text)


def _virtual(count: int) -> tuple[Device, ...]:
    share = max(1, machine.cores() // count)
    return tuple(Device(k, threads=share) for k in range(count))
