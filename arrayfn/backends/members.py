"""Which member of a mesh the running thread is, for the collectives of its plan.

On a CPU, the thread that runs a plan computes each collective together with the threads
of the other members: ``RUNNING.member`` is the member that this thread runs the plan
for. On a GPU, a plan enqueues its collectives: ``LOADING.member``, the member that the
plan is loaded for, says how.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

import numpy as np

from arrayfn.lowering.libraries.collectives import Collective

Array = np.ndarray[Any, Any]
Enqueue = Callable[[int, int, int], None]
"""Enqueues a collective: ``enqueue(stream, operand_address, result_address)``."""

_LOCKSTEP_CALLS: Final = 4
"""The number of calls in lockstep after a request.

Usually two sets of addresses alternate from call to call.
"""


class Member(Protocol):
    """A member of a mesh that is running a CPU's plan."""

    def meet(self, step: Collective, operand: Array, result: Array) -> None:
        """Compute the collective ``step`` of ``operand`` with the other members.

        Writes ``result``, and waits for the other members.
        """
        ...


class Lockstep:
    """Says in which calls of a plan the members of this process may capture graphs.

    A call in lockstep (``is_on``) is one in which all members wait for each other, so
    that they can capture CUDA graphs. A member that wants to capture requests such
    calls. They begin with the next call, and there are ``_LOCKSTEP_CALLS`` of them,
    because addresses may alternate from call to call.
    """

    def __init__(self, members: int = 1) -> None:
        """Begin with calls that are not in lockstep, of ``members`` threads."""
        self.barrier = threading.Barrier(members)
        self.is_on = False
        self._calls = 0  # calls in lockstep that are still to come

    def start_call(self) -> None:
        """Set ``is_on`` for the next call, before a member enqueues it."""
        self.is_on = self._calls > 0
        self._calls = max(0, self._calls - 1)

    def may_capture(self) -> bool:
        """Return whether members may capture graphs in this call.

        If not, the next ``_LOCKSTEP_CALLS`` calls will be in lockstep.
        """
        if not self.is_on:
            self._calls = _LOCKSTEP_CALLS
        return self.is_on


class EnqueuingMember(Protocol):
    """A member of a mesh for which a GPU's plan is loaded."""

    @property
    def lockstep(self) -> Lockstep:
        """Says in which calls this process's members may capture; they share it."""
        ...

    def enqueuing(self, step: Collective) -> Enqueue:
        """Return a function that enqueues ``step`` together with the other members."""
        ...

    def meet(self) -> None:
        """Wait until all members of this process call this and their GPUs are idle."""
        ...

    def grouped(self) -> AbstractContextManager[object]:
        """Return a context: the collectives enqueued inside of it run as one."""
        ...


class _Running(threading.local):
    """The class of ``RUNNING``; each thread has its own ``member``."""

    member: Member | None = None


class _Loading(threading.local):
    """The class of ``LOADING``; each thread has its own ``member``."""

    member: EnqueuingMember | None = None


RUNNING: Final = _Running()
"""``RUNNING.member`` is the member that this thread runs a plan for, or None."""
LOADING: Final = _Loading()
"""``LOADING.member`` is the member that this thread loads a plan for, or None."""


def combine(step: Collective, operand: Array, result: Array) -> None:
    """Compute the collective ``step`` of ``operand`` with the mesh's other members.

    Writes ``result``. A thread that runs a plan for no mesh is the only member of every
    axis.
    """
    member = RUNNING.member
    if member is not None:
        member.meet(step, operand, result)
        return
    result[...] = step.alone(operand)
