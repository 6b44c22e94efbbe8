"""The engine of several processes: each is one device, and they meet through MPI."""

from __future__ import annotations

from arrayfn.backends.members import Member
from arrayfn.errors import BackendError
from arrayfn.ir import Mesh


def process_member(mesh: Mesh, member: int) -> Member:
    """This process as a member of ``mesh``."""
    raise BackendError("there is one process")
