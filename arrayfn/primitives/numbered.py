"""Objects that compiled plans refer to by a number, as long as the process lives."""

from __future__ import annotations

from typing import Generic, TypeVar

from arrayfn.errors import BackendError

T = TypeVar("T")


class NumberedTable(Generic[T]):
    """Objects of this process that plans refer to by number, such as functions.

    >>> table = NumberedTable[str]("Python step")
    >>> table.find(table.add("sort"))
    'sort'
    """

    def __init__(self, noun: str) -> None:
        """Make an empty table; ``noun`` names its objects in error messages."""
        self._noun = noun
        self._items: list[T] = []

    def add(self, item: T) -> int:
        """Store ``item``; return its number."""
        self._items.append(item)
        return len(self._items) - 1

    def find(self, number: int) -> T:
        """Return the object with this number.

        Raises BackendError for a number that this process did not give, as plans from
        another process have.
        """
        if not 0 <= number < len(self._items):
            raise BackendError(
                f"the plan refers to {self._noun} number {number}, which belongs to "
                "another process; compile the function here"
            )
        return self._items[number]
