"""The results of one of several Programs, by an index."""

from __future__ import annotations

from arrayfn.primitives.base import (
    NOT_LINEAR,
    THROUGH_BODY,
    Control,
    Primitive,
    not_differentiable,
)
from arrayfn.primitives.control_flow import cond_reference, cond_types

cond = Primitive(
    name="cond",
    family="control",
    types=cond_types,
    reference=cond_reference,
    kernel=Control(),
    jvp=not_differentiable("its rule is yet to come"),
    transpose=NOT_LINEAR,
    batch=THROUGH_BODY,
    samples=tuple,
    doc="The results of one of several Programs, by an index.",
)

ROWS = (cond,)
