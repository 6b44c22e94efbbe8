"""Faults: one number that says which check of a Program failed, and where.

A *fault* is an int64: the number of the ``Site`` in the upper bits and 40 bits of
detail, or ``NO_FAULT``, which is larger than all others. So the minimum of several
faults is the first one in the Program. The detail of an index is the index itself,
shifted to be positive. That of a number is its row-major position in the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from arrayfn.errors import (
    ArrayfnError,
    CheckError,
    DivisionByZeroError,
    NotFiniteError,
    OutOfBoundsError,
    SourceLocation,
)
from arrayfn.ir import ArrayType
from arrayfn.primitives.assertions import Loops, failure
from arrayfn.tracing.frames import INDEX

NAN: Final = "nan"
INF: Final = "inf"
DIVISION: Final = "division"
KINDS: Final = (INDEX, DIVISION, NAN, INF)
"""The checks that ``jit`` can be asked for."""
CHECK: Final = "check"
"""The user's own, which are always there."""

DETAIL_BITS: Final = 40
MAX_INDEX: Final = (1 << (DETAIL_BITS - 1)) - 1
"""The largest index that fits into a fault; larger ones are clamped to it."""
NO_FAULT: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Site:
    """One check of a Program: its kind, the checked operation and its line.

    ``type`` is the type of the indices, the result or the divisor. ``extent``, ``axis``
    and ``length`` are the params of ``in_bounds``. A check of the user's has its
    message as ``name``, the type of its condition, and the params of ``check``.
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
        """The error for a fault at this site, whose check has these ``values``."""
        if self.kind == CHECK:
            text = failure(
                self.name, self.names, self.loops, self.type.shape, detail, values
            )
            return CheckError(text, self.location)
        if self.kind == INDEX:
            return OutOfBoundsError(self._of_index(detail), self.location)
        position = _position(self.type, detail)
        if self.kind == DIVISION:
            return DivisionByZeroError(
                f"{self.name} divides by zero{position}; where that may be, divide by "
                "arrayfn.numpy.where(y == 0, 1, y), and choose the result there with "
                "another where",
                self.location,
            )
        return NotFiniteError(f"{self.name} {self._made(position)}", self.location)

    def _made(self, position: str) -> str:
        """What was computed from what, and what to write instead."""
        if self.kind == NAN:
            what = f"makes NaN{position} of operands without NaN: they are outside its "
            what += "domain"
        else:
            what = (
                f"makes an infinity{position} of finite operands: it overflows, or has "
            )
            what += "a pole there"
        if self.name == "convert":
            return f"{what}; keep the wider dtype"
        if not self.is_elementwise:
            return f"{what}; look at the operands that this line gives it"
        return (
            f"{what}. Where that may be, compute it of operands that do, "
            f"{self.name}(arrayfn.numpy.where(ok, x, 1)), and choose the result there "
            "with another where: a branch that where does not choose is computed too"
        )

    def _of_index(self, detail: int) -> str:
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
    if not type.shape:
        return ""
    index = np.unravel_index(position, type.shape)
    return f" at [{', '.join(str(int(k)) for k in index)}] of {type}"


def fault_error(
    sites: Sequence[Site], fault: int, values: Sequence[Any] = ()
) -> ArrayfnError:
    """The error for ``fault``, which is not ``NO_FAULT``.

    ``values`` are those of all checks, in the order of the sites.
    """
    number = fault >> DETAIL_BITS
    begin = value_count(sites[:number])
    own = values[begin : begin + len(sites[number].names)]
    return sites[number].error(fault & ((1 << DETAIL_BITS) - 1), own)


def value_count(sites: Sequence[Site]) -> int:
    """How many values the checks at ``sites`` have: results before the fault."""
    return sum(len(site.names) for site in sites)
