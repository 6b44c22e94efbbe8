"""The groups of members that ``axis_index_groups`` of collectives describes.

Each member receives the values of all members of the axis, and selects the values of
its own group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from arrayfn import numpy as anp
from arrayfn.errors import ArgumentError, user_location

Groups = Sequence[Sequence[int]]


class Group:
    """The group of members that this member belongs to, along one named axis.

    ``size`` is the number of members in the group. ``rank`` is the (traced) number of
    this member in its group.
    """

    def __init__(self, function: str, size: int, index: Any, groups: Groups) -> None:
        """Find the group of this member.

        ``size`` is the number of members along the axis, ``index`` the (traced) number
        of this member, and ``groups`` the numbers of the members in each group. Raises
        ArgumentError, about ``function``, unless each member is in exactly one group
        and all groups have the same size.
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
        # members[k] are the members of k's group, and ranks[k] is k's number in it.
        members = np.zeros((size, self.size), np.int32)
        ranks = np.zeros(size, np.int32)
        for row in rows:
            members[row] = row
            ranks[row] = np.arange(self.size)
        self._members = anp.take(members, index, 0, mode="clip")
        self.rank = anp.take(ranks, index, mode="clip")

    def own(self, values: Any) -> Any:
        """Select the group's values from ``values``, which has those of all members.

        ``values`` has shape (members of the axis, ...), the result (members of the
        group, ...).
        """
        return anp.take(values, self._members, 0, mode="clip")

    def mine(self, parts: Any, axis: int) -> Any:
        """Select this member's part from ``parts``, and remove ``axis``.

        ``parts`` has one entry along ``axis`` for each member of the group.
        """
        return anp.take(parts, self.rank, axis, mode="clip")
