"""Collectives: steps of a plan at which the members of a mesh exchange data.

The provider's name ends in the number of a ``Collective``, by which the runtime finds
what is combined, along which axis, and at which line. All members run one plan, so they
reach the same collective.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
from typing_extensions import override

from arrayfn.errors import SourceLocation
from arrayfn.ir import ArrayType, Equation
from arrayfn.lowering.libraries.calls import LibraryCall, numbered_call
from arrayfn.passes.reads import Reads
from arrayfn.primitives.base import Primitive, primitive_of
from arrayfn.primitives.numbered import NumberedTable
from arrayfn.records import frozen

Array = np.ndarray[Any, Any]


@frozen(eq=False)
class Collective:
    """A collective of a compiled Program: its primitive, params, types and line."""

    primitive: Primitive
    params: Mapping[str, Any]
    operand: ArrayType
    result: ArrayType
    source: SourceLocation | None

    def alone(self, x: Array) -> Array:
        """Return the result on a mesh axis of one member; ProgramError if it has more.

        It is the primitive's reference.
        """
        return self.primitive.reference(x, **self.params)

    @override
    def __str__(self) -> str:
        location = "" if self.source is None else f" at {self.source}"
        return f"{self.primitive.name} over {self.params['axis_name']!r}{location}"


COLLECTIVES: Final = NumberedTable[Collective]("collective")
"""The collectives of this process\'s plans."""


def collective_of(provider: str) -> Collective:
    """Find the collective that a provider's name refers to: "collective_3" is 3.

    A number without a name is accepted too. Raises BackendError if another process made
    the plan.
    """
    return COLLECTIVES.find(int(provider.rpartition("_")[2]))


def collective(equation: Equation, reads: Reads) -> Iterable[LibraryCall]:
    """Yield the library call of a collective.

    Its record is put into ``COLLECTIVES``, where its provider's name finds it.
    """
    primitive = primitive_of(equation)
    (x,), (y,) = equation.inputs, equation.outputs
    record = Collective(
        primitive,
        dict(equation.params),
        x.type.plain(),
        y.type.plain(),
        equation.source,
    )
    number = COLLECTIVES.add(record)
    yield numbered_call("collective", number, equation, reads, str(record))
