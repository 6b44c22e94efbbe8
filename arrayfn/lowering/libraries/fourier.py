"""Fourier transforms by NumPy's pocketfft. A work item is some rows."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

import numpy as np

from arrayfn import dtypes
from arrayfn.ir import Equation
from arrayfn.lowering.libraries.calls import (
    LibraryCall,
    Pointer,
    grain_of,
    pointer_of,
)
from arrayfn.passes.reads import Reads
from arrayfn.primitives.fourier import factor

ITEM: Final = 4096  # elements of a work item


def fft(equation: Equation, reads: Reads) -> Iterable[LibraryCall]:
    """Yield the call of pocketfft for each row.

    The scale factor is passed as the bits of a float, in an integer argument.
    """
    (x,), (output,) = equation.inputs, equation.outputs
    kind, length = equation.params["kind"], equation.params["length"]
    rows = math.prod(x.type.shape[:-1])
    rows_per_item = max(1, ITEM // length)
    real = dtypes.real_of(x.type.dtype)
    # A float32 is in the lower half of the 64 bits.
    bits = np.zeros(8 // real.itemsize, real)
    bits[0] = factor(kind, length, equation.params["norm"])
    yield LibraryCall(
        provider=f"{kind}_{dtypes.short_name(x.type.dtype)}",
        reads={"x": pointer_of(x, reads)},
        writes={"transformed": Pointer(output)},
        integers={
            "rows": rows,
            "each": rows_per_item,
            "input_length": x.type.shape[-1],
            "output_length": output.type.shape[-1],
            "is_odd": length % 2,
            "factor": int(bits.view(np.int64)[0]),
        },
        items=-(-rows // rows_per_item),
        grain=grain_of(rows_per_item * 4 * length * math.log2(length + 1)),
        library="NumPy",
    )
