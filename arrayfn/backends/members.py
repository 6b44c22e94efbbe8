"""Which member of a mesh the running thread is, for the collectives of its plan.

A CPU's plan meets the other members while it runs: ``RUNNING.member`` is who runs it. A
GPU's plan enqueues its collectives: ``LOADING.member``, for whom the plan is loaded,
says how.
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
"""Enqueues a collective: on a stream, of the operand's and the result's address."""

_LOCKSTEP_CALLS: Final = 4
"""Calls in lockstep after a request: mostly, two sets of addresses alternate."""


class Member(Protocol):
    """A member of a mesh that is running a CPU's plan."""

    def meet(self, step: Collective, operand: Array, result: Array) -> None:
        """Compute ``result`` of a collective, together with the other members."""
        ...


class Lockstep:
    """Says in which calls the members of this process may capture graphs.

    In these calls all members wait for each other. A member that wants to capture asks
    for such calls. They begin with the next call, and there are several of them,
    because addresses may alternate from call to call.
    """

    def __init__(self, members: int = 1) -> None:
        self.barrier = threading.Barrier(members)
        self.is_on = False
        self._calls = 0

    def start_call(self) -> None:
        """Set ``is_on`` for the next call, before a member enqueues it."""
        self.is_on = self._calls > 0
        self._calls = max(0, self._calls - 1)

    def may_capture(self) -> bool:
        """Whether members may capture in this call; if not, ask for such calls."""
        if not self.is_on:
            self._calls = _LOCKSTEP_CALLS
        return self.is_on


class EnqueuingMember(Protocol):
    """A member of a mesh for which a GPU's plan is loaded."""

    @property
    def lockstep(self) -> Lockstep:
        """The calls in which it may capture, the same for all members here."""
        ...

    def enqueuing(self, step: Collective) -> Enqueue:
        """Return a function that enqueues ``step`` together with the other members."""
        ...

    def meet(self) -> None:
        """Wait until all members in this process are here, and their GPUs are idle."""
        ...

    def grouped(self) -> AbstractContextManager[object]:
        """A context in which the collectives that are enqueued run as one."""
        ...


class _Running(threading.local):
    member: Member | None = None


class _Loading(threading.local):
    member: EnqueuingMember | None = None


RUNNING: Final = _Running()
"""``RUNNING.member`` is the member that this thread runs a plan for, or None."""
LOADING: Final = _Loading()
"""``LOADING.member`` is the member that this thread loads a plan for, or None."""


def combine(step: Collective, operand: Array, result: Array) -> None:
    """Run the collective ``step`` of ``operand`` with the other members.

    It writes ``result``. Outside a mesh this thread is the only member of every axis.
    """
    member = RUNNING.member
    if member is not None:
        member.meet(step, operand, result)
        return
    result[...] = step.alone(operand)
