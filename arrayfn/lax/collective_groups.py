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

    ``size`` is the number of its members, ``rank`` this member's number among them.
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
        members = np.zeros((size, self.size), np.int32)
        ranks = np.zeros(size, np.int32)
        for row in rows:
            members[row] = row
            ranks[row] = np.arange(self.size)
        self._members = anp.take(members, index, 0, mode="clip")
        self.rank = anp.take(ranks, index, mode="clip")

    def own(self, every: Any) -> Any:
        """The group's entries along axis 0 of ``every``, which has one a member."""
        return anp.take(every, self._members, 0, mode="clip")

    def mine(self, parts: Any, axis: int) -> Any:
        """This member's entry along ``axis`` of ``parts``, which has one a member."""
        return anp.take(parts, self.rank, axis, mode="clip")
