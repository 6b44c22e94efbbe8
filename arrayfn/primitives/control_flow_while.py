"""A carry run through a Program for as long as another says so."""

from __future__ import annotations

from arrayfn.primitives.base import (
    NOT_LINEAR,
    THROUGH_BODY,
    Control,
    Primitive,
    not_differentiable,
)
from arrayfn.primitives.control_flow import while_reference, while_types

while_loop = Primitive(
    name="while_loop",
    family="control",
    types=while_types,
    reference=while_reference,
    kernel=Control(),
    jvp=not_differentiable("its rule is yet to come"),
    transpose=NOT_LINEAR,
    batch=THROUGH_BODY,
    samples=tuple,
    doc="A carry run through a Program for as long as another says so.",
)

ROWS = (while_loop,)
