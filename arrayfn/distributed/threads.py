"""The engine of one process: members of a mesh are threads, which meet in memory.

A *run* is one call of a plan by all members. A member that raises, finishes early or
waits too long stops the run: all others get a CollectiveError when they wait, or when
they come to a collective.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from arrayfn.distributed.communicators import (
    Communicator,
    Permutation,
    combined,
    run_collective,
    source_of,
    timeout,
)
from arrayfn.errors import CollectiveError
from arrayfn.ir import Mesh
from arrayfn.lowering.libraries.collectives import Collective

Array = np.ndarray[Any, Any]
_WHOLE: Final = 1 << 14
"""Most elements of an array that each member combines completely by itself."""


class Run:
    """The state of one call of a plan by the members of a mesh, one thread each.

    ``condition`` guards all state, also that of its meetings. ``stopped`` is the reason
    why the run was stopped, or empty, and ``error`` the exception that caused it.
    ``finished`` are the members that came to the end of the plan. ``limit`` is how many
    seconds a member waits.
    """

    def __init__(self, mesh: Mesh, names: Sequence[str]) -> None:
        """Begin a run of the members of ``mesh``, which errors call by ``names``."""
        self.mesh = mesh
        self.names = names
        self.condition = threading.Condition()
        self.error: BaseException | None = None  # the cause of a stop
        self.stopped = ""  # why the run was stopped
        self.finished: set[int] = set()  # members at the end of their plan
        self.limit = timeout()  # how long members wait for each other, in seconds
        self._meetings: dict[tuple[int, ...], Meeting] = {}  # by group of members

    def meeting(self, group: tuple[int, ...]) -> Meeting:
        """Return the meeting of the members ``group``, which the first call makes."""
        with self.condition:
            known = self._meetings.get(group)
            if known is None:
                known = self._meetings[group] = Meeting(self, group)
            return known

    def stop(self, reason: str, error: BaseException | None = None) -> None:
        """Stop all members of the run: those that wait raise CollectiveError.

        ``reason`` goes into its text, and ``error`` is the exception that caused the
        stop. Only the first call has an effect.
        """
        with self.condition:
            if not self.stopped:
                self.stopped, self.error = reason, error
            self.condition.notify_all()

    def finish(self, member: int) -> None:
        """Note that ``member`` has come to the end of its plan."""
        with self.condition:
            self.finished.add(member)
            self.condition.notify_all()


class Meeting:
    """A barrier at which the members of a group exchange values, round by round.

    ``group`` are members of the mesh; a member's rank is its index in the group.
    ``posted`` has the step and value of each rank that has come in this round;
    ``exchanged`` has the values of the last round, by rank.
    """

    def __init__(self, run: Run, group: tuple[int, ...]) -> None:
        self.run = run
        self.group = group
        self.posted: dict[int, tuple[Collective, Any]] = {}
        self.exchanged: list[Any] = []
        self.round = 0

    def exchange(self, rank: int, step: Collective, value: Any) -> list[Any]:
        """Give ``value`` to the group; return the values of all members, by rank.

        Called by the member of rank ``rank``, which waits for the others. Raises
        CollectiveError if another member comes to another step, ends its plan, or does
        not come in time; then the run is stopped.
        """
        run = self.run
        with run.condition:
            self._check(rank, step)
            self.posted[rank] = (step, value)
            if len(self.posted) == len(self.group):
                return self._complete()  # the last member to come wakes the others
            this_round = self.round
            end = time.monotonic() + run.limit
            while self.round == this_round:
                missing = self._missing()
                gone = [k for k in missing if k in run.finished]
                if gone:
                    run.stop(
                        f"{run.names[gone[0]]} has ended without {step}, where "
                        f"{run.names[self.group[rank]]} waits for it: the devices took "
                        "different branches, or a different number of iterations"
                    )
                elif not run.condition.wait(end - time.monotonic()):
                    waited = ", ".join(run.names[k] for k in missing)
                    run.stop(
                        f"{waited} did not come to {step} within {run.limit:g} s, "
                        f"where {run.names[self.group[rank]]} waits "
                        "(ARRAYFN_COLLECTIVE_TIMEOUT sets the time)"
                    )
                self._check(rank, step)  # raises if the run was stopped
            return self.exchanged

    def _missing(self) -> list[int]:
        """Return the members that have not come in this round."""
        return [k for rank, k in enumerate(self.group) if rank not in self.posted]

    def _complete(self) -> list[Any]:
        """End a round: return all members' values, and wake the members that wait.

        Raises CollectiveError if members are at different steps.
        """
        # ``posted`` has the (step, value) of each rank.
        steps = [self.posted[rank][0] for rank in range(len(self.group))]
        other = next((k for k, s in enumerate(steps) if s is not steps[0]), None)
        if other is not None:
            first, second = (self.run.names[self.group[k]] for k in (0, other))
            self.run.stop(
                f"{first} is at {steps[0]}, but {second} is at {steps[other]}: all "
                "devices must come to the same collectives in the same order"
            )
            self._check(0, steps[0])  # raises, because the run is stopped
        self.exchanged = [self.posted[rank][1] for rank in range(len(self.group))]
        self.posted = {}
        self.round += 1
        self.run.condition.notify_all()
        return self.exchanged

    def _check(self, rank: int, step: Collective) -> None:
        """Raise CollectiveError if the run was stopped.

        The error names the member of rank ``rank``, and the ``step`` that it is at.
        """
        if self.run.stopped:
            raise CollectiveError(
                f"{self.run.names[self.group[rank]]} was at {step}, and ended because "
                f"{self.run.stopped}",
                step.source,
            )


class ThreadCommunicator:
    """A member's Communicator for a group of threads.

    Members read each other's arrays in place, without a copy. So a collective ends only
    when no member reads another's array any more.
    """

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.meeting = meeting
        self.rank = rank
        self.size = len(meeting.group)

    def _exchange(self, step: Collective, x: Array) -> list[Array]:
        """Give ``x`` to the group; return the arrays of all members, by rank.

        Waits until all members have come.
        """
        return self.meeting.exchange(self.rank, step, x)

    def _done(self, step: Collective) -> None:
        """Wait until all members have called this: none reads another's array then."""
        self.meeting.exchange(self.rank, step, None)

    def all_reduce(self, step: Collective, x: Array, out: Array, op: str) -> None:
        """Combine the members' ``x`` by ``op`` into ``out``, in the order of members.

        Each member combines all elements of a small array. Of a large array it combines
        an equal part, and then copies the other members' parts.
        """
        parts = self._exchange(step, x)
        if x.size <= _WHOLE:
            combined(parts, out, op)
            self._done(step)
            return
        flat, into = [p.reshape(-1) for p in parts], out.reshape(-1)
        # Member k combines the elements from ``cuts[k]`` to ``cuts[k + 1]``.
        cuts = [x.size * k // self.size for k in range(self.size + 1)]
        own = slice(cuts[self.rank], cuts[self.rank + 1])
        combined([p[own] for p in flat], into[own], op)
        results = self._exchange(step, into)
        for k, other in enumerate(results):
            if k != self.rank:
                into[cuts[k] : cuts[k + 1]] = other[cuts[k] : cuts[k + 1]]
        self._done(step)

    def all_gather(self, step: Collective, x: Array, out: Array) -> None:
        """Copy ``x`` of member k to ``out[k]``."""
        for k, part in enumerate(self._exchange(step, x)):
            out[k] = part
        self._done(step)

    def reduce_scatter(self, step: Collective, x: Array, out: Array) -> None:
        """Write the sum of ``x[rank]`` of all members to ``out``."""
        combined([part[self.rank] for part in self._exchange(step, x)], out)
        self._done(step)

    def all_to_all(self, step: Collective, x: Array, out: Array) -> None:
        """Copy ``x[rank]`` of member k to ``out[k]``."""
        for k, part in enumerate(self._exchange(step, x)):
            out[k] = part[self.rank]
        self._done(step)

    def ppermute(
        self, step: Collective, x: Array, out: Array, permutation: Permutation
    ) -> None:
        """Copy to ``out`` the ``x`` of the member that sends to this one, or zeros.

        ``permutation`` has pairs (sender, receiver).
        """
        parts = self._exchange(step, x)
        source = source_of(permutation, self.rank)
        out[...] = 0 if source is None else parts[source]
        self._done(step)


class ThreadMember:
    """A member of a mesh in one run, whose members are threads of this process."""

    def __init__(self, run: Run, member: int) -> None:
        self.run = run
        self.member = member
        self._communicators: dict[str, Communicator] = {}  # by mesh axis

    def meet(self, step: Collective, operand: Array, result: Array) -> None:
        """Run the collective ``step`` with the other members along its mesh axis.

        ``operand`` is this member's, and ``result`` is written.
        """
        axis = step.params["axis_name"]
        communicator = self._communicators.get(axis)
        if communicator is None:
            group = self.run.mesh.group(self.member, axis)
            meeting = self.run.meeting(group)
            communicator = ThreadCommunicator(meeting, group.index(self.member))
            self._communicators[axis] = communicator
        run_collective(communicator, step, operand, result)
