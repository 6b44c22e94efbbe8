"""Tracing: Python functions are run on Tracers, which gives their Programs.

``staging`` traces a function and applies primitives to whatever their operands are;
``frames`` are the functions being traced; ``value`` and ``array_value`` are what a
traced value and an array on a device look like to Python.
"""

from __future__ import annotations

from arrayfn.tracing.array_value import ArrayOnDevice, ImmutableArray
from arrayfn.tracing.keys import Key
from arrayfn.tracing.methods import Namespace, namespace
from arrayfn.tracing.staging import (
    Immediate,
    Trace,
    apply,
    apply_program,
    constant,
    device_of,
    is_made_of_equations,
    is_staged,
    owned_copy,
    too_deep,
    trace,
)
from arrayfn.tracing.value import Owner, Refused, Tracer

__all__ = [
    "ArrayOnDevice",
    "Immediate",
    "ImmutableArray",
    "Key",
    "Namespace",
    "Owner",
    "Refused",
    "Trace",
    "Tracer",
    "apply",
    "apply_program",
    "constant",
    "device_of",
    "is_made_of_equations",
    "is_staged",
    "namespace",
    "owned_copy",
    "too_deep",
    "trace",
]
