"""A carry run through a Program with each slice of arrays."""

from __future__ import annotations

from arrayfn.primitives.base import (
    NOT_LINEAR,
    THROUGH_BODY,
    Control,
    Primitive,
    not_differentiable,
)
from arrayfn.primitives.control_flow import scan_reference, scan_types

scan = Primitive(
    name="scan",
    family="control",
    types=scan_types,
    reference=scan_reference,
    kernel=Control(),
    jvp=not_differentiable("its rule is yet to come"),
    transpose=NOT_LINEAR,
    batch=THROUGH_BODY,
    samples=tuple,
    doc="A carry run through a Program with each slice of arrays.",
)

ROWS = (scan,)
