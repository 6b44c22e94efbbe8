"""Singular values: LAPACK's gesdd over matrices that lie by columns.

So do the singular vectors. What does not converge, and what is not finite, is NaN.
"""

from __future__ import annotations

from typing import Final

from arrayfn.backends.cpu.libraries.blas import Blas
from arrayfn.backends.cpu.libraries.linear_algebra.calls import (
    CALL_BYTES,
    CALLS,
    ITEM_BYTES,
    NAN,
    REAL_BYTES,
    fields,
    lapack,
    lapack_words,
)
from arrayfn.backends.cpu.libraries.linear_algebra.matrices import (
    all_finite,
    fill_words,
    least,
    memcpy,
)
from arrayfn.backends.cpu.libraries.linear_algebra.references import by_reference
from arrayfn.backends.cpu.libraries.linear_algebra.threads import with_large
from arrayfn.backends.cpu.libraries.provider import Provider
from arrayfn.backends.native import load, native, stack, store
from arrayfn.primitives import linalg_svd

REDUCED_CALL: Final = CALLS
FULL_CALL: Final = CALLS + CALL_BYTES
VALUES_CALL: Final = CALLS + 2 * CALL_BYTES
PLACES: Final = fields(
    3, "x", "s", "u", "vh", "copy", "work", "real_work", "integer_work",
    "rows", "columns", "u_columns", "vh_rows", "full", "words",
)  # fmt: skip
X: Final = PLACES["x"]
S: Final = PLACES["s"]
U: Final = PLACES["u"]
VH: Final = PLACES["vh"]
COPY: Final = PLACES["copy"]
ROWS: Final = PLACES["rows"]
COLUMNS: Final = PLACES["columns"]
U_COLUMNS: Final = PLACES["u_columns"]
VH_ROWS: Final = PLACES["vh_rows"]
FULL: Final = PLACES["full"]


@native
def svd_run(arguments: int, begin: int, end: int) -> int:
    """Decompose matrices ``begin`` to ``end``."""
    size = load(arguments + ITEM_BYTES)
    own = stack(3)
    u_bytes = load(arguments + ROWS) * load(arguments + U_COLUMNS) * size
    vh_bytes = load(arguments + VH_ROWS) * load(arguments + COLUMNS) * size
    table = REDUCED_CALL
    if load(arguments + FULL):
        table = FULL_CALL
    for item in range(begin, end):
        store(own + 8, load(arguments + U) + item * u_bytes)
        store(own + 16, load(arguments + VH) + item * vh_bytes)
        if decompose(arguments, table, item, own) != 0:
            fill_words(load(own + 8), u_bytes, load(arguments + NAN))
            fill_words(load(own + 16), vh_bytes, load(arguments + NAN))
    return 0


@native
def svdvals_run(arguments: int, begin: int, end: int) -> int:
    """The singular values of matrices ``begin`` to ``end``."""
    own = stack(3)
    for item in range(begin, end):
        decompose(arguments, VALUES_CALL, item, own)
    return 0


@native
def decompose(arguments: int, table: int, item: int, own: int) -> int:
    """One decomposition; not 0 if it failed, and then the values are NaN."""
    rows = load(arguments + ROWS)
    columns = load(arguments + COLUMNS)
    step = rows * columns * load(arguments + ITEM_BYTES)
    real = load(arguments + REAL_BYTES)
    values = least(rows, columns) * real
    copy = load(arguments + COPY)
    store(own, load(arguments + S) + item * values)
    memcpy(copy, load(arguments + X) + item * step, step)
    failed = 1
    if all_finite(copy, step, real):
        failed = lapack(arguments, table, own)
    if failed != 0:
        fill_words(load(own), values, load(arguments + NAN))
    return failed


def words(dtype: str, library: Blas | None = None) -> tuple[int, ...]:
    """The words before the arguments."""
    text = (
        "?gesdd {job} &rows &columns copy &rows $0 {vectors} work &words {real}"
        "integer_work info"
    )
    calls = [
        (
            text.format(job=job, vectors=vectors, real=""),
            text.format(job=job, vectors=vectors, real="real_work "),
        )
        for job, vectors in (
            ("S", "$1 &rows $2 &vh_rows"),
            ("A", "$1 &rows $2 &vh_rows"),
            ("N", "null &rows null &columns"),
        )
    ]
    return lapack_words(dtype, PLACES, *calls, library=library)


PROVIDERS: Final = {
    **with_large(
        "gesdd",
        Provider(
            svd_run,
            words,
            by_reference(
                linalg_svd.svd,
                "x",
                ("columns", "rows"),
                "u",
                "s",
                "vh",
                params=lambda given: {"full": bool(given["full"])},
            ),
            uses_blas=True,
        ),
        words,
    ),
    **with_large(
        "gesdd_values",
        Provider(
            svdvals_run,
            words,
            by_reference(linalg_svd.svdvals, "x", ("columns", "rows"), "s"),
            uses_blas=True,
        ),
        words,
    ),
}
