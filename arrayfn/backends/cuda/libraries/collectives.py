"""Collectives of the members of a mesh: steps that their engine enqueues."""

from __future__ import annotations

from collections.abc import Mapping

from arrayfn.backends.cuda.libraries.calls import Call
from arrayfn.backends.members import LOADING
from arrayfn.errors import BackendError
from arrayfn.lowering.libraries.collectives import collective_of


def collective(number: str, integers: Mapping[str, int]) -> Call:
    """The collective of this number, of the member for whom the plan is loaded.

    Raises BackendError if the plan is not loaded for a member of a mesh.
    """
    step = collective_of(number)
    if LOADING.member is None:
        raise BackendError(f"{step} is computed by the members of a mesh, not by one")
    enqueue = LOADING.member.enqueuing(step)
    return Call(enqueue, ("x0", "y0"), is_collective=True)
