"""The permutation that the pivots of a factorization come to: a block for each matrix.

Swaps follow each other, so one thread does them; rows of up to ``NEAREST`` elements lie
in shared memory meanwhile, where a swap takes a tenth of the time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from arrayfn.ir import ArrayType, Var
from arrayfn.lowering.plan import Kernel, Parameter
from arrayfn.lowering.steps import CallStep

NEAREST: Final = 8192
_THREADS: Final = 128

_NEAR: Final = """
def {name}({pivots}, {out}, n, count):
    {doc}thread = thread_index()
    first = block_index() * count
    row = block_index() * n
    order = dynamic_shared_i32(0, {size})
    swaps = dynamic_shared_i32({bytes}, {size})
    for at in range(thread, n, {threads}):
        order[at] = convert_i64_i32(at)
    for at in range(thread, count, {threads}):
        swaps[at] = {pivots}[first + at]
    barrier()
    if thread == 0:
        for at in range(count):
            other = convert_i32_i64(swaps[at])
            if other >= 0 and other < n:
                kept = order[at]
                order[at] = order[other]
                order[other] = kept
    barrier()
    for at in range(thread, n, {threads}):
        {out}[row + at] = order[at]
"""
_FAR: Final = """
def {name}({pivots}, {out}, n, count):
    {doc}first = block_index() * count
    row = block_index() * n
    if thread_index() == 0:
        for at in range(n):
            {out}[row + at] = convert_i64_i32(at)
        for at in range(count):
            other = convert_i32_i64({pivots}[first + at])
            if other >= 0 and other < n:
                kept = {out}[row + at]
                {out}[row + at] = {out}[row + other]
                {out}[row + other] = kept
"""


@dataclass(frozen=True)
class Permutation:
    """``permutation`` [..., n] of the rows swapped as ``pivots`` [..., count] say."""

    pivots: Var
    offset: int
    permutation: Var

    stem = "permutation"

    def made(self, name: str) -> tuple[Kernel, CallStep]:
        """The kernel, of this name, and its call."""
        type: ArrayType = self.permutation.type
        n, count = type.shape[-1], self.pivots.type.shape[-1]
        size = 32
        while size < n:
            size *= 2
        near = n <= NEAREST
        if not near:
            size = 0
        kernel = Kernel(
            name=name,
            source=_source(name, "pivots_in", "permutation_out", size),
            key=_source("kernel", "p0", "p1", size),
            parameters=(
                Parameter("pivots_in", "i32*"),
                Parameter("permutation_out", "i32*"),
                Parameter("n", "i64"),
                Parameter("count", "i64"),
            ),
            reason="a block for each matrix, one thread of which swaps",
            threads=_THREADS,
            shared=8 * size,
        )
        call = CallStep(
            kernel=name,
            pointers=[(self.pivots, 4 * self.offset), (self.permutation, 0)],
            scratch=[],
            integers=[n, count],
            items=math.prod(type.shape[:-1]) if n else 0,
            grain=1,
            scratch_bytes=0,
            reads=[self.pivots],
            writes=[self.permutation],
        )
        return kernel, call


def _source(name: str, pivots: str, out: str, size: int) -> str:
    doc = f'"""Rows swapped in turn: {_THREADS} threads a block."""\n    '
    text = (_NEAR if size else _FAR).format(
        name=name,
        pivots=pivots,
        out=out,
        size=size,
        bytes=4 * size,
        threads=_THREADS,
        doc=doc if name != "kernel" else "",
    )
    words = "dynamic_shared_i32, barrier, " if size else ""
    return (
        "from arrayfn.lowering.cuda.vocabulary import (\n"
        f"    {words}block_index, thread_index,\n)\n"
        "from arrayfn.lowering.scalars import convert_i32_i64, convert_i64_i32\n\n"
        f"{text}"
    )
