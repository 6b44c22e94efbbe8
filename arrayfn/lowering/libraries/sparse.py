"""Products with sparse matrices. A work item is a row of CSR, or a whole product.

By columns (CSC) and by entries (COO), several terms are added to one element of the
result, in the order of the entries.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from arrayfn import dtypes
from arrayfn.ir import ArrayType, Equation
from arrayfn.lowering.libraries.calls import LibraryCall, Pointer, grain_of, pointer_of
from arrayfn.passes.reads import Reads

GATHERED: Final = 4  # the cost of a multiply-add at a computed index, in multiply-adds
MANY: Final = 1 << 9  # entries worth a library call: products of fewer are fused
DTYPES: Final = (dtypes.float32, dtypes.float64)
INDICES: Final = (dtypes.int32, dtypes.int64)


def is_computed(
    data: ArrayType,
    first: ArrayType,
    second: ArrayType,
    x: ArrayType,
    **static: Any,
) -> bool:
    """Whether the library has these types, and there are enough entries.

    ``data`` are the entries, ``first`` and ``second`` the index arrays of the format,
    and ``x`` is the dense operand.
    """
    indices = first.dtype == second.dtype and first.dtype in INDICES
    values = data.dtype == x.dtype and data.dtype in DTYPES
    return indices and values and data.size >= MANY


def product(equation: Equation, reads: Reads) -> Iterable[LibraryCall]:
    """Yield the call that multiplies a sparse matrix by a dense vector or matrix.

    The operands are those of ``is_computed``. Rows of CSR are work items; the other
    formats add to any row, so a whole product is one item.
    """
    data, first, second, x = equation.inputs
    static: dict[str, Any] = dict(equation.params["static"])
    layout, (rows, columns) = static["format"], static["shape"]
    width = 1 if x.type.ndim == 1 else x.type.shape[1]
    entries = data.type.size
    dtypes_suffix = (
        f"{dtypes.short_name(first.type.dtype)}_{dtypes.short_name(data.type.dtype)}"
    )
    work = GATHERED * width * entries / max(1, rows)
    yield LibraryCall(
        provider=f"sparse_{layout}_{dtypes_suffix}",
        reads={
            "data": pointer_of(data, reads),
            "first": pointer_of(first, reads),
            "second": pointer_of(second, reads),
            "x": pointer_of(x, reads),
        },
        writes={"out": Pointer(equation.outputs[0])},
        integers={
            "rows": rows,
            "columns": columns,
            "entries": entries,
            "width": width,
        },
        items=(rows if layout == "csr" else 1) if width else 0,
        grain=grain_of(work) if layout == "csr" else 1,
        library="loops over entries",
    )
