"""Collectives of the members of a mesh, which their engine enqueues."""

from __future__ import annotations

from collections.abc import Mapping

from arrayfn.backends.cuda.libraries.calls import Call
from arrayfn.backends.members import LOADING
from arrayfn.errors import BackendError
from arrayfn.lowering.libraries.collectives import collective_of


def collective(number: str, integers: Mapping[str, int]) -> Call:
    """Prepare the collective of this number, for the member whose plan is loaded.

    Raises BackendError if the plan is not loaded for a member of a mesh.
    """
    step = collective_of(number)
    if LOADING.member is None:
        raise BackendError(f"{step} is computed by the members of a mesh, not by one")
    enqueue = LOADING.member.enqueuing(step)
    return Call(enqueue, ("x0", "y0"), is_collective=True)
