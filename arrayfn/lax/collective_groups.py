"""Collectives over groups of members: the ``axis_index_groups`` of ``lax.psum`` ...

Each member gets the values of all members of the axis, and takes those of its group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from arrayfn import numpy as anp
from arrayfn.errors import ArgumentError, user_location

Groups = Sequence[Sequence[int]]


class Group:
    """The group of members that this member is in, along one named axis.

    ``size`` is the number of its members, ``place`` this member's number among them.
    """

    def __init__(self, function: str, size: int, index: Any, groups: Groups) -> None:
        """The group among ``groups`` of an axis of extent ``size``.

        ``index`` is this member's along that axis. Raises ArgumentError, about
        ``function``, unless each member is in one group, and groups have one size.
        """
        rows = [[int(k) for k in group] for group in groups]
        whole = sorted(k for row in rows for k in row) == list(range(size))
        if not whole or len({len(row) for row in rows}) != 1:
            raise ArgumentError(
                f"{function}: axis_index_groups has groups of one size, in which each "
                f"of the members 0 to {size - 1} stands once, not {rows}; for other "
                "groups combine what lax.all_gather gives",
                user_location(),
            )
        self.size = len(rows[0])
        own = np.zeros((size, self.size), np.int32)
        place = np.zeros(size, np.int32)
        for row in rows:
            own[row] = row
            place[row] = np.arange(self.size)
        self._members = anp.take(own, index, 0, mode="clip")
        self.place = anp.take(place, index, mode="clip")

    def own(self, every: Any) -> Any:
        """The values of the group's members, of those of all along axis 0."""
        return anp.take(every, self._members, 0, mode="clip")

    def mine(self, parts: Any, axis: int) -> Any:
        """The part for this member, of one for each along ``axis``."""
        return anp.take(parts, self.place, axis, mode="clip")
