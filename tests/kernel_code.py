"""The machine code of one kernel, for tests that call it by its address."""

from __future__ import annotations

from arrayfn.backends.cpu.code import kernel_unit
from arrayfn.backends.cpu.signals import check_signals
from arrayfn.backends.native.code import native_units
from arrayfn.backends.native.engine import KernelCode
from arrayfn.backends.native.loading import load
from arrayfn.lowering.plan import Kernel


def code_of(kernel: Kernel) -> KernelCode:
    """The loaded code of ``kernel``, which is freed with the result."""
    unit = kernel_unit(kernel)
    return load([*native_units(check_signals), unit])[unit.key]
