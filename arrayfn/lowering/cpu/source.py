"""Nests as Python source for a CPU: a function of work items.

A kernel is one function ``name(pointers, integers, begin, end)``.
"""

from __future__ import annotations

from collections.abc import Sequence

from arrayfn.lowering.cpu.columns import ColumnsPrinter, PartialColumnsPrinter
from arrayfn.lowering.cpu.elementwise import ElementwisePrinter
from arrayfn.lowering.cpu.rows import PartialRowsPrinter, RowsPrinter, RowTotalsPrinter
from arrayfn.lowering.cpu.schedule import shape_of
from arrayfn.lowering.kernel_ir import Nest
from arrayfn.lowering.kernel_printer import KernelPrinter, ScheduledKernel
from arrayfn.lowering.kernel_text import Partial
from arrayfn.lowering.plan import Kernel

_WHOLE: dict[str, type[KernelPrinter]] = {
    "elementwise": ElementwisePrinter,
    "rows": RowsPrinter,
    "columns": ColumnsPrinter,
}
_PARTIAL: dict[str, type[KernelPrinter]] = {
    "rows": PartialRowsPrinter,
    "columns": PartialColumnsPrinter,
}


def print_kernel(
    nest: Nest, name: str, partials: Sequence[Partial] = ()
) -> ScheduledKernel:
    """Schedule and print the kernel of ``nest``, called ``name``.

    Returns the kernel with what a call of it needs. With ``partials``, the nest is the
    first half of a split reduction: the kernel stores these partial results. The kernel
    is printed twice: with readable names, and with neutral names, whose text is the
    cache key.
    """
    printer = (_PARTIAL if partials else _WHOLE)[shape_of(nest)]
    if nest.has_totals:
        printer = RowTotalsPrinter
    neutral = printer(nest, "kernel", partials, readable=False).print()
    printed = printer(nest, name, partials, readable=True).print()
    kernel = Kernel(
        name=name,
        source=printed.source,
        key=neutral.source,
        parameters=printed.parameters,
        reason=nest.reason,
    )
    return ScheduledKernel(
        kernel,
        nest.operands,
        tuple(partials),
        tuple(printed.scratch),
        tuple(printed.integers.values()),
        printed.items,
        printed.grain,
    )
