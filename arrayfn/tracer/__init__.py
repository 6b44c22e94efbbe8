"""The Tracer, and the table of what its operators and methods do."""

from __future__ import annotations

from arrayfn.tracer.methods import Namespace
from arrayfn.tracer.value import Owner, Tracer

__all__ = ["Namespace", "Owner", "Tracer"]
