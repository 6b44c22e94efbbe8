"""``at(x)[index].set(y)`` and other updates: ``x.at`` for any array."""

from __future__ import annotations

from typing import Any

from arrayfn.numpy._operands import ArrayLike
from arrayfn.numpy.updates import IndexedUpdate


def at(x: ArrayLike, /) -> At:
    """Return ``At(x)``, so that ``at(x)[index].set(y)`` is a changed copy of x.

    This is ``x.at`` of traced arrays, for any array. The methods of an indexed update
    are those of ``IndexedUpdate``.

    >>> import numpy as np
    >>> at(np.zeros(3))[1].add(5.0)
    array([0., 5., 0.])
    """
    return At(x)


class At:
    """The attribute ``x.at``; index it with the elements of x to change."""

    def __init__(self, x: ArrayLike) -> None:
        """Keep x, the array of which copies are made."""
        self._x = x

    def __getitem__(self, index: Any) -> IndexedUpdate:
        """Return the update of ``x[index]``, whose methods make changed copies of x."""
        return IndexedUpdate(self._x, index)
