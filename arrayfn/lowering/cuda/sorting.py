"""Rows sorted by a block each: a bitonic network over 64-bit keys in shared memory.

A key has an element's order in its upper half and its position in the lower one, so no
two are equal and the order is stable. The keys of floats are their bits, those of
negative ones inverted below the sign; NaN is the greatest. Batcher, Sorting networks
and their applications, 1968.
"""

from __future__ import annotations

import math
from typing import Final

from arrayfn import dtypes
from arrayfn.dtypes import short_name
from arrayfn.ir import Equation
from arrayfn.lowering.cuda.schedule import power_of_two
from arrayfn.lowering.libraries.calls import Reads, place_of
from arrayfn.lowering.plan import Kernel, Parameter
from arrayfn.lowering.steps import CallStep

LONGEST: Final = 8192  # elements of a row whose keys fit into shared memory
_SORTED: Final = frozenset(
    (
        dtypes.float32,
        dtypes.int32,
        dtypes.uint32,
        dtypes.int16,
        dtypes.uint16,
        dtypes.int8,
        dtypes.uint8,
    )
)

_TEXT: Final = """
def {name}({x}, {out}, n):
    {doc}thread = thread_index()
    row = block_index() * n
    keys = arena_i64(0, {size})
    for at in range(thread, {size}, {threads}):
        key = i64({greatest})
        if at < n:
            x = {x}[row + at]
            {key}
            key = key * 4294967296 + at
        keys[at] = key
    barrier()
    run = i64(2)
    while run <= {size}:
        step = quotient(run, 2)
        while step > 0:
            for pair in range(thread, {pairs}, {threads}):
                low = quotient(pair, step) * step * 2 + remainder(pair, step)
                first = keys[low]
                second = keys[low + step]
                if (first > second) == (remainder(quotient(low, run), 2) == 0):
                    keys[low] = second
                    keys[low + step] = first
            barrier()
            step = quotient(step, 2)
        run = run * 2
    for at in range(thread, n, {threads}):
        key = keys[at]
        {give}
"""
_GREATEST: Final = 2**63 - 1


def can_sort(equation: Equation) -> bool:
    """Whether a block can sort the rows of ``equation``'s operand."""
    x = equation.inputs[0].type
    return bool(x.size) and x.dtype in _SORTED and x.shape[-1] <= LONGEST


def sort(equation: Equation, reads: Reads, name: str) -> tuple[Kernel, CallStep]:
    """The kernel for a sort or an argsort along the last axis, and its call."""
    (x,), (output,) = equation.inputs, equation.outputs
    place = place_of(x, reads)
    n = x.type.shape[-1]
    rows = math.prod(x.type.shape[:-1])
    size = power_of_two(max(2, n))
    by_order = equation.primitive.name == "argsort"
    kinds = [f"{short_name(v.type.dtype)}*" for v in (x, output)]
    threads = min(1024, max(32, size // 2))
    source = _source(name, "x_in", "order_out" if by_order else "sorted_out", equation)
    kernel = Kernel(
        name=name,
        source=source,
        key=_source("kernel", "p0", "p1", equation) + f"# {', '.join(kinds)}\n",
        parameters=(
            Parameter("x_in", kinds[0]),
            Parameter("order_out" if by_order else "sorted_out", kinds[1]),
            Parameter("n", "i64"),
        ),
        reason=f"rows of {n} sorted by a block each",
        threads=threads,
        shared=8 * size,
    )
    call = CallStep(
        kernel=name,
        pointers=[
            (place.array, place.offset * x.type.dtype.itemsize),
            (output, 0),
        ],
        scratch=[],
        integers=[n],
        items=rows,
        grain=1,
        scratch_bytes=0,
        reads=[place.array],
        writes=[output],
    )
    return kernel, call


def _source(name: str, x: str, out: str, equation: Equation) -> str:
    dtype = equation.inputs[0].type.dtype
    short = short_name(dtype)
    n = equation.inputs[0].type.shape[-1]
    size = power_of_two(max(2, n))
    threads = min(1024, max(32, size // 2))
    scalars = {"i64"}
    by_order = equation.primitive.name == "argsort"
    if dtype == dtypes.float32:
        scalars |= {"bitcast_f32_i32", "convert_i32_i64"}
        lines = [
            "key = convert_i32_i64(bitcast_f32_i32(x))",
            "if key < 0:",
            "    key = key ^ 2147483647",
            "if x != x:",
            "    key = i64(2147483647)",
        ]
        if by_order:  # both zeros are equal
            lines += ["if key == -1:", "    key = i64(0)"]
    else:
        scalars.add(f"convert_{short}_i64")
        lines = [f"key = convert_{short}_i64(x)"]
    if by_order:
        give = [f"{out}[row + at] = key & 4294967295"]
    elif dtype == dtypes.float32:
        scalars |= {"bitcast_i32_f32", "convert_i64_i32"}
        give = [
            "key = key >> 32",
            "if key < 0:",
            "    key = key ^ 2147483647",
            f"{out}[row + at] = bitcast_i32_f32(convert_i64_i32(key))",
        ]
    else:
        scalars.add(f"convert_i64_{short}")
        give = [f"{out}[row + at] = convert_i64_{short}(key >> 32)"]
    doc = f'"""Sorts rows of {n}: {threads} threads a block."""\n    '
    text = _TEXT.format(
        name=name,
        x=x,
        out=out,
        size=size,
        pairs=size // 2,
        threads=threads,
        greatest=_GREATEST,
        key="\n            ".join(lines),
        give="\n        ".join(give),
        doc=doc if name != "kernel" else "",
    )
    head = (
        "from arrayfn.lowering.cuda.vocabulary import (\n"
        "    arena_i64, barrier, block_index, quotient, remainder, thread_index,\n)\n"
        f"from arrayfn.lowering.scalars import {', '.join(sorted(scalars))}\n\n"
    )
    return head + text
