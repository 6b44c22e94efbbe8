"""Faults: one number that says which check of a Program failed, and where.

A *fault* is an int64: the number of the ``Site`` in the upper bits and 40 bits of
detail, or ``NO_FAULT``, which is larger than all others. So the minimum of several
faults is the first one in the Program. The detail of an index is the index itself plus
``MAX_INDEX``, which makes it positive. The detail of a number is its row-major position
in the result: site 2 and position 5 give the fault ``(2 << 40) + 5``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from arrayfn.errors import (
    ArgumentError,
    ArrayfnError,
    CheckError,
    DivisionByZeroError,
    NotFiniteError,
    OutOfBoundsError,
    SourceLocation,
    user_location,
)
from arrayfn.ir import ArrayType
from arrayfn.primitives.assertions import Loops, failure
from arrayfn.records import frozen
from arrayfn.tracing.frames import INDEX

NAN: Final = "nan"
INF: Final = "inf"
DIVISION: Final = "division"
KINDS: Final = (INDEX, DIVISION, NAN, INF)
"""The checks that ``jit`` can be asked for."""
CHECK: Final = "check"
"""The kind of a check that the user wrote (``check``); these are always made."""

DETAIL_BITS: Final = 40  # the lower bits of a fault; the site is in the others
MAX_INDEX: Final = (1 << (DETAIL_BITS - 1)) - 1
"""The largest index that fits into a fault; larger ones are clamped to it."""
NO_FAULT: Final = (1 << 63) - 1  # larger than any fault, so a minimum finds the first


def kinds_of(checks: object) -> frozenset[str]:
    """Return the ``KINDS`` that ``checks``, an argument of ``jit``, asks for.

    True means ``"index"``, False none, ``"all"`` all. A name or a collection of names
    means these. Raises ArgumentError for anything else.
    """
    if isinstance(checks, bool):
        return frozenset((INDEX,) if checks else ())
    if checks == "all":
        return frozenset(KINDS)
    is_collection = isinstance(checks, (tuple, list, set, frozenset))
    requested = set[object](checks) if is_collection else {checks}
    kinds = frozenset(kind for kind in KINDS if kind in requested)
    if len(kinds) != len(requested):
        raise ArgumentError(
            f"jit has no checks {checks!r}; there are {', '.join(map(repr, KINDS))}, "
            "several of them in a tuple, 'all', and True, which is 'index'",
            user_location(),
        )
    return kinds


@frozen(slots=True)
class Site:
    """One check of a Program: its kind, the checked operation and its line.

    Attributes:
        kind: one of ``KINDS``, or ``CHECK``.
        name: the primitive's name, or the message of a user's check.
        type: the type of the indices, the result, the divisor or the condition.
        location: the user's line.
        extent, axis, length: the params of ``in_bounds``.
        is_elementwise: whether the operation is elementwise, so that an error can
            suggest to choose other operands by ``where``.
        names, loops: the params of ``check``.
    """

    kind: str
    name: str
    type: ArrayType
    location: SourceLocation | None
    extent: int = 0
    axis: int = 0
    length: int = 0
    is_elementwise: bool = False
    names: tuple[str, ...] = ()
    loops: Loops = ()

    def error(self, detail: int, values: Sequence[Any] = ()) -> ArrayfnError:
        """Return the error to raise for a fault at this site.

        ``detail`` is the fault's lower bits: a position, or an index plus
        ``MAX_INDEX``. ``values`` are those that a user's check shows.
        """
        if self.kind == CHECK:
            text = failure(
                self.name, self.names, self.loops, self.type.shape, detail, values
            )
            return CheckError(text, self.location)
        if self.kind == INDEX:
            return OutOfBoundsError(self._index_message(detail), self.location)
        position = _position(self.type, detail)
        if self.kind == DIVISION:
            return DivisionByZeroError(
                f"{self.name} divides by zero{position}; where that may be, divide by "
                "arrayfn.numpy.where(y == 0, 1, y), and choose the result there with "
                "another where",
                self.location,
            )
        return NotFiniteError(
            f"{self.name} {self._not_finite_message(position)}", self.location
        )

    def _not_finite_message(self, position: str) -> str:
        """Return the message about a result that is not finite."""
        if self.kind == NAN:
            problem = (
                f"makes NaN{position} of operands without NaN: they are outside its "
            )
            problem += "domain"
        else:
            problem = (
                f"makes an infinity{position} of finite operands: it overflows, or has "
            )
            problem += "a pole there"
        if self.name == "convert":
            return f"{problem}; keep the wider dtype"
        if not self.is_elementwise:
            return f"{problem}; look at the operands that this line gives it"
        return (
            f"{problem}. Where that may be, compute it of operands that do, "
            f"{self.name}(arrayfn.numpy.where(ok, x, 1)), and choose the result there "
            "with another where: a branch that where does not choose is computed too"
        )

    def _index_message(self, detail: int) -> str:
        """Return the message about an index out of bounds."""
        value = detail - MAX_INDEX
        beyond = " (or beyond)" if abs(value) == MAX_INDEX else ""
        if self.length:
            return (
                f"a slice of {self.length} elements from {value}{beyond} is out of "
                f"bounds for axis {self.axis} with size {self.extent}; it would be "
                "moved inwards: clip where it begins with arrayfn.numpy.clip if that "
                "is meant"
            )
        return (
            f"index {value}{beyond} is out of bounds for axis {self.axis} with size "
            f"{self.extent}; if that may be, say what it means: x.at[i].get(mode="
            "'clip' or 'fill') to read, x.at[i].set(y, mode='drop' or 'clip') to write"
        )


def _position(type: ArrayType, position: int) -> str:
    """Return the words "at [i, j] of type" for a row-major position.

    Empty for a scalar.
    """
    if not type.shape:
        return ""
    index = np.unravel_index(position, type.shape)
    return f" at [{', '.join(str(int(k)) for k in index)}] of {type}"


def fault_error(
    sites: Sequence[Site], fault: int, values: Sequence[Any] = ()
) -> ArrayfnError:
    """Return the error for ``fault``, which is not ``NO_FAULT``.

    The high bits of ``fault`` are the number of its site, the low ones the detail.
    ``values`` are those of the user's checks, in the order of the sites: as many for
    each site as it has ``names``.
    """
    number = fault >> DETAIL_BITS
    begin = value_count(sites[:number])
    own = values[begin : begin + len(sites[number].names)]
    return sites[number].error(fault & ((1 << DETAIL_BITS) - 1), own)


def value_count(sites: Sequence[Site]) -> int:
    """Return how many values the checks at ``sites`` have together."""
    return sum(len(site.names) for site in sites)
