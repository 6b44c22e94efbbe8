"""Prepares collectives, which the members of a mesh enqueue together."""

from __future__ import annotations

from collections.abc import Mapping

from arrayfn.backends.cuda.libraries.calls import Call
from arrayfn.backends.members import LOADING
from arrayfn.errors import BackendError
from arrayfn.lowering.libraries.collectives import collective_of


def collective(number: str, integers: Mapping[str, int]) -> Call:
    """Prepare a collective for the member whose plan this thread is loading.

    ``number`` is that of the collective among all (``collective_of``), as text;
    ``integers`` is not used. Raises BackendError if the plan is not loaded for a member
    of a mesh.
    """
    step = collective_of(number)
    if LOADING.member is None:
        raise BackendError(f"{step} is computed by the members of a mesh, not by one")
    enqueue = LOADING.member.enqueuing(step)
    return Call(enqueue, ("x0", "y0"), is_collective=True)
