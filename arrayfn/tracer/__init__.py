"""The Tracer, arrays on devices, and the table of what their operators do."""

from __future__ import annotations

from arrayfn.tracer.array_value import ArrayOnDevice, ImmutableArray
from arrayfn.tracer.methods import Namespace
from arrayfn.tracer.value import Owner, Refused, Tracer

__all__ = ["ArrayOnDevice", "ImmutableArray", "Namespace", "Owner", "Refused", "Tracer"]
