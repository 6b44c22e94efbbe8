"""Prints a nest as a CUDA kernel, by the printer of its schedule."""

from __future__ import annotations

from typing import Any, Final

from arrayfn import dtypes
from arrayfn.ir import ArrayType, Var
from arrayfn.lowering.cuda.choose import choose
from arrayfn.lowering.cuda.columns import ColumnsPrinter
from arrayfn.lowering.cuda.elementwise import ElementwisePrinter
from arrayfn.lowering.cuda.merged_rows import MergedRowsPrinter
from arrayfn.lowering.cuda.pipelines import PipelinePrinter
from arrayfn.lowering.cuda.printer import CudaPrinter
from arrayfn.lowering.cuda.scan_parts import PartsPrinter
from arrayfn.lowering.cuda.scan_pipelines import ScanPipelinePrinter
from arrayfn.lowering.cuda.scans import ScanPrinter
from arrayfn.lowering.cuda.schedule import (
    Columns,
    Elementwise,
    Pipeline,
    Rows,
    Scan,
    ScanPipeline,
    Schedule,
    Transpose,
)
from arrayfn.lowering.cuda.transpose import TransposePrinter
from arrayfn.lowering.kernel_ir import Nest
from arrayfn.lowering.kernel_printer import ScheduledKernel
from arrayfn.lowering.plan import Kernel

_PRINTERS: Final[dict[type, type[CudaPrinter[Any]]]] = {
    Elementwise: ElementwisePrinter,
    Rows: MergedRowsPrinter,
    Pipeline: PipelinePrinter,
    Columns: ColumnsPrinter,
    Transpose: TransposePrinter,
    Scan: ScanPrinter,
    ScanPipeline: ScanPipelinePrinter,
}


def _printer_of(schedule: Schedule) -> type[CudaPrinter[Any]]:
    """Return the class that prints kernels of ``schedule``."""
    if type(schedule) is Scan and schedule.parts > 1:
        return PartsPrinter
    return _PRINTERS[type(schedule)]


def print_kernel(
    nest: Nest, name: str, schedule: Schedule | None = None
) -> ScheduledKernel:
    """Print ``nest`` as a kernel named ``name``, with what one call of it needs.

    A work item is a block. ``choose`` gives the schedule if there is none. The nest is
    printed twice: as the text for people, and with neutral names as the key by which
    compiled kernels are found.
    """
    schedule = choose(nest) if schedule is None else schedule
    printer = _printer_of(schedule)
    neutral = printer(nest, "kernel", readable=False, schedule=schedule).print()
    printed = printer(nest, name, readable=True, schedule=schedule).print()
    # Infix arithmetic reads the same for every dtype: the types are part of the key.
    signature = ", ".join(parameter.kind for parameter in neutral.parameters)
    is_persistent = isinstance(schedule, (Pipeline, ScanPipeline))
    limits = isinstance(schedule, (Rows, ScanPipeline))
    kernel = Kernel(
        name=name,
        source=printed.source,
        key=f"{neutral.source}# {signature}\n",
        parameters=printed.parameters,
        reason=nest.reason,
        threads=schedule.threads,
        cluster=schedule.cluster if isinstance(schedule, (Rows, Scan)) else 1,
        shared=schedule.shared if is_persistent else printed.dynamic_shared,
        blocks_per_multiprocessor=schedule.blocks_per_multiprocessor if limits else 0,
        cached=isinstance(schedule, Rows) and not is_persistent,
    )
    integers = tuple(printed.integers.values())
    words = printed.flag_words
    flags = Var(ArrayType((words,), dtypes.uint64)) if words else None
    return ScheduledKernel(
        kernel,
        nest.operands,
        partials=(),
        scratch=(),
        integers=integers,
        items=printed.items,
        grain=1,
        flag_buffer=flags,
    )
