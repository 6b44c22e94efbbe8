"""Sorting by NumPy's own functions. A work item is a row, or a chunk of a long one.

Sorted chunks of a row are merged in passes. There are as many chunks as the machine has
cores. The result does not depend on that: floats of long rows are sorted as integers,
and equal integers have equal bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from arrayfn import dtypes
from arrayfn.ir import ArrayType, Equation, Var
from arrayfn.lowering.cpu import machine
from arrayfn.lowering.libraries.calls import (
    LibraryCall,
    Pointer,
    grain_of,
    pointer_of,
)
from arrayfn.passes.reads import Reads

LONG: Final = 1 << 16  # elements from which a row is cut into chunks
MERGE_PART: Final = 1 << 15  # elements that one item merges
MERGED: Final = (
    dtypes.float32,
    dtypes.float64,
    dtypes.int32,
    dtypes.int64,
    dtypes.uint32,
    dtypes.uint64,
)


def sort(equation: Equation, reads: Reads) -> Iterable[LibraryCall]:
    """Sort each row; a long one in chunks, which are merged."""
    return _sorted(equation, reads, "sort")


def argsort(equation: Equation, reads: Reads) -> Iterable[LibraryCall]:
    """Yield the calls that compute the stable order of each row.

    Elements of up to 32 bits are sorted as 64-bit integers that have their positions in
    the low half: that is stable, and as fast as sorting values.
    """
    return _sorted(equation, reads, "argsort")


def top_k(equation: Equation, reads: Reads) -> Iterable[LibraryCall]:
    """Yield the call that finds the k largest elements of each row.

    It keeps a buffer of more than k candidates. Elements of 64 bits need a buffer of
    the whole row.
    """
    (x,), (values, indices) = equation.inputs, equation.outputs
    n, k = x.type.shape[-1], equation.params["k"]
    dtype = x.type.dtype
    name, capacity = "top_k", min(n, 2 * k + 256)
    if dtype.itemsize == 8:
        name, capacity = "top_k_wide", n
    yield LibraryCall(
        provider=f"{name}_{dtypes.short_name(dtype)}",
        reads={"x": pointer_of(x, reads)},
        writes={"values": Pointer(values), "indices": Pointer(indices)},
        scratch={"keys": n * 8, "buffer": max(1, capacity) * 8},
        integers={
            "n": n,
            "k": k,
            "room": capacity,
        },
        items=math.prod(x.type.shape[:-1]) if k else 0,
        grain=grain_of(2 * n),
        library="NumPy",
    )


def _sorted(equation: Equation, reads: Reads, name: str) -> Iterable[LibraryCall]:
    """Yield the call that sorts chunks of rows, then a call for each merge pass.

    ``name`` is "sort" or "argsort". A pass merges pairs of sorted runs from one buffer
    into the other. The last pass writes the output.
    """
    (x,), (output,) = equation.inputs, equation.outputs
    dtype, n = x.type.dtype, x.type.shape[-1]
    rows = math.prod(x.type.shape[:-1])
    packed = name == "argsort" and dtype.itemsize <= 4
    # A packed key is a 64-bit integer of value and position; others are the values.
    key_dtype = dtypes.int64 if packed else dtype
    can_merge = packed or (name == "sort" and dtype in MERGED)
    chunks = _chunks(n, rows) if can_merge else 1
    chunk = max(1, -(-n // chunks))
    # ``chunks`` is a power of two: after a pass, half as many runs are left.
    passes = chunks.bit_length() - 1
    second_buffer = Var(ArrayType(output.type.shape, output.type.dtype))
    # Passes alternate between the buffers; the last one must write the output.
    buffers = [output, second_buffer] if passes % 2 == 0 else [second_buffer, output]
    integers = {"n": n}
    if packed or name == "sort":
        integers |= {"chunk": chunk, "chunks": chunks}
    if packed:
        name = "argsort_packed"
    elif dtype in dtypes.COMPLEX and name == "argsort":
        name = "argsort_complex"
    elif (
        dtype in dtypes.FLOATS and (n >= LONG or dtype.itemsize == 2) and name == "sort"
    ):
        # Such floats are sorted by integer codes that order as the floats do.
        name = "sort_codes"
    yield LibraryCall(
        provider=f"{name}_{dtypes.short_name(dtype)}",
        reads={"x": pointer_of(x, reads)},
        writes={"sorted": Pointer(buffers[0])},
        scratch={"keys": n * 8} if name == "argsort" else {},
        integers=integers,
        items=rows * chunks if n else 0,
        grain=grain_of(chunk * math.log2(chunk + 1)),
        library="NumPy",
    )
    for number in range(passes):
        run = chunk << number  # the length of a sorted run before this pass
        parts = -(-2 * run // MERGE_PART)  # items that merge one pair of runs
        yield LibraryCall(
            provider=f"merge_{dtypes.short_name(key_dtype)}",
            reads={"runs": Pointer(buffers[number % 2])},
            writes={"merged": Pointer(buffers[1 - number % 2])},
            integers={
                "n": n,
                "run": run,
                "pairs": chunks >> (number + 1),
                "part": MERGE_PART,
                "parts": parts,
                # "sort" merges the values themselves, not codes or packed words.
                "unpack": int(number == passes - 1 and name != "sort"),
            },
            items=rows * (chunks >> (number + 1)) * parts,
            grain=1,
        )


def _chunks(n: int, rows: int) -> int:
    """Return how many chunks each of ``rows`` rows of ``n`` elements is sorted in.

    It is a power of two, enough for all cores. A chunk is not shorter than half of
    ``LONG``.
    """
    if n < LONG or rows == 0:
        return 1
    # Both are powers of two: cores / rows rounded up, and 2 * n / LONG rounded down.
    per_row = 1 << (-(-machine.cores() // rows) - 1).bit_length()
    return min(per_row, 1 << (2 * n // LONG).bit_length() - 1)
