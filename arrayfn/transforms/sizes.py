"""``Dim``: the size of an axis that is known when a saved function is called."""

from __future__ import annotations

from typing_extensions import override

from arrayfn.errors import ArgumentError, user_location
from arrayfn.records import frozen


@frozen(slots=True)
class Dim:
    """A named size that is open when a function is lowered.

    Use it as an extent of a ``ShapeDtypeStruct``. A function that ``jit(f).lower``
    lowers for open sizes can be saved. The loaded function takes arrays of every size
    from ``minimum`` to ``maximum`` that is a multiple of ``multiple_of``. Axes with the
    same name have the same size.

    Raises ArgumentError for a name that is not an ASCII identifier, and for limits that
    allow no size.

    >>> import numpy as np
    >>> import tempfile
    >>> import arrayfn as af
    >>> rows = af.ShapeDtypeStruct((Dim("n"), 2), np.float64)
    >>> lowered = af.jit(lambda x: x.sum(axis=0)).lower(rows)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     af.save(lowered, folder)
    ...     sums = af.load(folder)
    >>> sums(np.ones((3, 2))), sums(np.ones((50, 2)))
    (array([3., 3.]), array([50., 50.]))
    """

    name: str
    minimum: int = 1
    maximum: int | None = None
    multiple_of: int = 1

    def __post_init__(self) -> None:
        if not (self.name.isidentifier() and self.name.isascii()):
            raise ArgumentError(
                f"Dim: {self.name!r} is not a valid name; use letters, digits and _",
                user_location(),
            )
        bounds = (self.minimum, self.multiple_of, self.maximum or 0)
        if any(type(n) is not int or n < 0 for n in bounds) or not self.multiple_of:
            raise ArgumentError(
                f"Dim: the limits of {self.name} must be positive integers, not "
                f"{bounds}",
                user_location(),
            )
        if self.maximum is not None and self.smallest > self.maximum:
            raise ArgumentError(
                f"Dim: no size is {self.description}; give other limits",
                user_location(),
            )

    @property
    def smallest(self) -> int:
        """The smallest size within the limits: ``minimum``, rounded up."""
        return -(-self.minimum // self.multiple_of) * self.multiple_of

    @property
    def description(self) -> str:
        """The sizes that are allowed, as text for messages."""
        words = [f"at least {self.minimum}"]
        if self.maximum is not None:
            words.append(f"at most {self.maximum}")
        if self.multiple_of != 1:
            words.append(f"a multiple of {self.multiple_of}")
        return " and ".join(words)

    def accepts(self, size: int) -> bool:
        """Whether ``size`` is within the limits."""
        below = self.maximum is None or size <= self.maximum
        return self.minimum <= size and below and size % self.multiple_of == 0

    @override
    def __str__(self) -> str:
        return self.name
