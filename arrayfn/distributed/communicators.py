"""Communicators: the collectives of a group of members, one class for each engine.

A *group* is the members of a mesh that differ along one axis only; a member's rank is
its position in the group. A ``Communicator`` belongs to one member of one group. Its
methods write the result into ``out``. Sums are added in the order of members, so their
bits do not depend on the engine. An engine must not wait forever: if a member is
missing, it raises CollectiveError within the time limit.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Final, Protocol

import numpy as np

from arrayfn import dtypes
from arrayfn.errors import ArgumentError
from arrayfn.lowering.libraries.collectives import Collective

Array = np.ndarray[Any, Any]
Permutation = Sequence[tuple[int, int]]
"""Pairs (rank of the sender, rank of the receiver)."""

TIMEOUT_VARIABLE: Final = "ARRAYFN_COLLECTIVE_TIMEOUT"
_COMBINE: Final = {"sum": np.add, "max": np.maximum, "min": np.minimum}
"""NumPy's function for each ``op`` of a collective."""


class Communicator(Protocol):
    """The collectives of a group, for one of its members.

    All members of the group call the same method; ``x`` is the member's operand, and
    the result is written to ``out``. ``step`` identifies the collective in errors, and
    lets the group check that all members call the same one.
    """

    @property
    def rank(self) -> int:
        """This member's position in the group."""
        ...

    @property
    def size(self) -> int:
        """The number of members in the group."""
        ...

    def all_reduce(self, step: Collective, x: Array, out: Array, op: str) -> None:
        """Write the sum, max or min (``op``) of all members' ``x`` to ``out``."""
        ...

    def all_gather(self, step: Collective, x: Array, out: Array) -> None:
        """Write ``x`` of member k to ``out[k]``."""
        ...

    def reduce_scatter(self, step: Collective, x: Array, out: Array) -> None:
        """Write the sum of ``x[rank]`` of all members to ``out``."""
        ...

    def all_to_all(self, step: Collective, x: Array, out: Array) -> None:
        """Write ``x[rank]`` of member k to ``out[k]``."""
        ...

    def ppermute(
        self, step: Collective, x: Array, out: Array, permutation: Permutation
    ) -> None:
        """Write the ``x`` of the member that sends to this one to ``out``.

        If no member does, ``out`` becomes zeros.
        """
        ...


def run_collective(
    communicator: Communicator, step: Collective, x: Array, out: Array
) -> None:
    """Run the collective ``step`` on this member's operand ``x``; write ``out``.

    The primitive of ``step`` says which method of ``communicator`` to call.
    """
    params, name = step.params, step.primitive.name
    if name == "all_reduce":
        communicator.all_reduce(step, x, out, params["op"])
    elif name == "all_gather":
        communicator.all_gather(step, x, out)
    elif name == "reduce_scatter":
        communicator.reduce_scatter(step, x, out)
    elif name == "all_to_all":
        communicator.all_to_all(step, x, out)
    else:
        communicator.ppermute(step, x, out, params["permutation"])


def combined(parts: Sequence[Array], out: Array, op: str = "sum") -> None:
    """Write the combination of ``parts``, in their order, into ``out``.

    ``op`` is "sum", "max" or "min". float16 and bfloat16 are combined in float32 and
    rounded once.
    """
    combine = _COMBINE[op]
    if out.dtype in dtypes.HALF_PRECISION:
        total = parts[0].astype(np.float32)
        for part in parts[1:]:
            combine(total, part.astype(np.float32), out=total)
        out[...] = total.astype(out.dtype)
        return
    out[...] = parts[0]
    for part in parts[1:]:
        combine(out, part, out=out)


def source_of(permutation: Permutation, rank: int) -> int | None:
    """Return the rank of the member that sends to ``rank``; None if there is none."""
    for source, target in permutation:
        if target == rank:
            return source
    return None


def timeout() -> float:
    """Return how many seconds a member waits for others, 300 by default.

    The environment variable ``ARRAYFN_COLLECTIVE_TIMEOUT`` sets it. Raises
    ArgumentError if its value is no positive number.
    """
    text = os.environ.get(TIMEOUT_VARIABLE, "300")
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not seconds > 0:
        raise ArgumentError(f"{TIMEOUT_VARIABLE}={text!r}: it is a number of seconds")
    return seconds
