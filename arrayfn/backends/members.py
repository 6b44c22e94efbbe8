"""Which member of a mesh the running thread is, for the collectives of its plan."""

from __future__ import annotations

import threading
from typing import Any, Final, Protocol

import numpy as np

from arrayfn.lowering.libraries.collectives import Collective

Array = np.ndarray[Any, Any]


class Member(Protocol):
    """A member of a mesh that is running a plan."""

    def meet(self, step: Collective, operand: Array, result: Array) -> None:
        """Compute ``result`` of a collective, together with the other members."""
        ...


class _Running(threading.local):
    member: Member | None = None


RUNNING: Final = _Running()
"""``RUNNING.member`` is the member that this thread runs a plan for, or None."""


def combine(step: Collective, operand: Array, result: Array) -> None:
    """Compute ``result`` of a collective.

    Outside a mesh the thread is the only member of every axis.
    """
    member = RUNNING.member
    if member is not None:
        member.meet(step, operand, result)
        return
    result[...] = step.alone(operand)
