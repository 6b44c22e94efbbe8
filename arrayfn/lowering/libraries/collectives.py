"""Collectives: steps of a plan at which the members of a mesh meet.

The provider's name ends in the number of a ``Collective``, by which the runtime finds
what is combined, along which axis, at which line. All members run one plan, so they
come to the same one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from arrayfn.errors import BackendError, SourceLocation
from arrayfn.ir import ArrayType, Equation
from arrayfn.lowering.libraries.calls import LibraryCall, Pointer, pointer_of
from arrayfn.passes.reads import Reads
from arrayfn.primitives.base import Primitive, primitive_of

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Collective:
    """A collective of a compiled Program: its row, params, types and line."""

    row: Primitive
    params: Mapping[str, Any]
    operand: ArrayType
    result: ArrayType
    source: SourceLocation | None

    def alone(self, x: Array) -> Array:
        """The result where an axis has one member. ProgramError if it has more."""
        return self.row.reference(x, **self.params)

    def __str__(self) -> str:
        where = "" if self.source is None else f" at {self.source}"
        return f"{self.row.name} over {self.params['axis_name']!r}{where}"


class CollectiveTable:
    """The collectives of this process's plans, by number."""

    def __init__(self) -> None:
        self._known: list[Collective] = []

    def add(self, collective: Collective) -> int:
        """The number under which a runtime finds ``collective``."""
        self._known.append(collective)
        return len(self._known) - 1

    def find(self, number: int) -> Collective:
        """The collective of this number."""
        if not 0 <= number < len(self._known):
            raise BackendError(
                f"the plan has collective number {number}, which belongs to another "
                "process; compile the function here"
            )
        return self._known[number]


COLLECTIVES: Final = CollectiveTable()


def collective(equation: Equation, reads: Reads) -> Iterable[LibraryCall]:
    """The step of a collective."""
    primitive = primitive_of(equation)
    (x,), (y,) = equation.inputs, equation.outputs
    made = Collective(
        primitive,
        dict(equation.params),
        x.type.plain(),
        y.type.plain(),
        equation.source,
    )
    number = COLLECTIVES.add(made)
    yield LibraryCall(
        provider=f"collective_{number}",
        reads={"x0": pointer_of(x, reads)},
        writes={"y0": Pointer(y)},
        integers={"number": number},
        items=1,
        library=str(made),
    )
