"""Metadata by which LLVM interleaves or unrolls the loops of a kernel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from llvmlite import ir

from arrayfn.backends.numba.typed import KernelLoop
from arrayfn.lowering.scalars.table import ScalarFunction

SHORT: Final = 32  # iterations of a loop that is unrolled, or vectorised without more
ACCUMULATORS: Final = 4  # independent partial sums of a vectorised reduction
CHAINS: Final = 2  # vectors of a long function that are computed side by side
LONG: Final = 22
"""LLVM instructions of a function that is best computed twice side by side.

exp has 23. A loop of one of these is 2 to 15 % faster so (threefry2x32 12 %, logaddexp
10 to 15 %); fmod, of 18, is slower.
"""
OF_BOOLS: Final = frozenset(("convert_bool_u8", "convert_u8_bool"))
"""The functions by which loops store and load bools, which have one byte."""
MAX_OF_BOOLS: Final = 64
"""LLVM instructions of a function that is not computed twice in a loop of bools.

LLVM vectorises such a loop for bytes: 64 float32 are computed side by side already.
Twice as many of threefry2x32 do not fit into registers: ``bernoulli`` of a million took
300 us instead of 220. A loop of exp and bools is 5 % faster with two.
"""


def metadata_of(module: ir.Module, loop: KernelLoop, longest: int) -> Any:
    """Return the metadata for the back edge of ``loop``, or None for LLVM's defaults.

    ``longest`` is the number of instructions of the longest scalar function called in
    the loop. Only innermost loops get metadata. Reductions are interleaved with
    ``ACCUMULATORS``, and loops with long chains of dependent operations, such as exp,
    with ``CHAINS``, unless these are very long and the loop has bools. Short reductions
    are unrolled instead, so that the loop around them can be vectorised.
    """
    if not loop.innermost:
        return None
    names = [f.name for f in loop.functions if isinstance(f, ScalarFunction)]
    reduces = any(name.startswith("accumulate_") for name in names)
    iterations = math.inf if loop.iterations is None else loop.iterations
    if iterations <= SHORT:
        return unrolled(module) if reduces else None
    if reduces:
        return interleaved(module, ACCUMULATORS)
    most = math.inf if OF_BOOLS.isdisjoint(names) else MAX_OF_BOOLS
    return interleaved(module, CHAINS) if LONG <= longest < most else None


def unrolled(module: ir.Module) -> Any:
    """Return metadata that asks LLVM to unroll a loop fully."""
    return _loop_metadata(module, [ir.MetaDataString(module, "llvm.loop.unroll.full")])


def interleaved(module: ir.Module, times: int) -> Any:
    """Return metadata that asks LLVM to interleave a vectorised loop ``times`` times.

    Each iteration then computes ``times`` independent vectors.
    """
    name = ir.MetaDataString(module, "llvm.loop.interleave.count")
    return _loop_metadata(module, [name, ir.Constant(ir.IntType(32), times)])


def _loop_metadata(module: ir.Module, words: Sequence[Any]) -> Any:
    """Return a loop metadata node with one hint, such as a name and a number.

    LLVM requires that the node's first operand is the node itself: this makes the nodes
    of different loops distinct.
    """
    hint = module.add_metadata(words)
    loop = ir.MDValue(module, [hint], name=str(len(module.metadata)))
    loop.operands = (loop, hint)
    return loop
