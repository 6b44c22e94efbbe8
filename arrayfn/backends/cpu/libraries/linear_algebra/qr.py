"""QR factors of row-major matrices: LAPACK's gelqf and orglq of the transposed ones.

``A^T = L Q`` is ``A = Q^T L^T``: the upper triangle of what gelqf leaves is R, and
orglq leaves Q, row-major both. The order of columns for pivoted factors is geqp3's.
"""

from __future__ import annotations

from typing import Final

from arrayfn.backends.cpu.libraries.blas import Blas
from arrayfn.backends.cpu.libraries.linear_algebra import small_matrices
from arrayfn.backends.cpu.libraries.linear_algebra.calls import (
    CALL_BYTES,
    CALLS,
    INTEGER_BYTES,
    ITEM_BYTES,
    fields,
    lapack,
    lapack_words,
)
from arrayfn.backends.cpu.libraries.linear_algebra.matrices import (
    least,
    memcpy,
    memset,
    small_address,
)
from arrayfn.backends.cpu.libraries.linear_algebra.references import by_reference
from arrayfn.backends.cpu.libraries.linear_algebra.small_matrices import LIMIT
from arrayfn.backends.cpu.libraries.linear_algebra.threads import with_large
from arrayfn.backends.cpu.libraries.provider import Provider
from arrayfn.backends.native import (
    LANES,
    call,
    load,
    load_i32,
    native,
    stack,
    store,
    store_i32,
)
from arrayfn.primitives import linalg_qr

GELQF: Final = CALLS
ORGLQ: Final = CALLS + CALL_BYTES
SMALL: Final = CALLS + 2 * CALL_BYTES
PLACES: Final = fields(
    2, "x", "q", "r", "a", "tau", "work",
    "rows", "columns", "inner", "least", "leading_a", "leading_q", "words", more=1,
)  # fmt: skip
X: Final = PLACES["x"]
Q: Final = PLACES["q"]
R: Final = PLACES["r"]
COPY: Final = PLACES["a"]
ROWS: Final = PLACES["rows"]
COLUMNS: Final = PLACES["columns"]
INNER: Final = PLACES["inner"]

ORDER_PLACES: Final = fields(
    1, "x", "order", "a", "tau", "work", "real_work", "integers",
    "rows", "columns", "leading", "words",
)  # fmt: skip
GIVEN: Final = ORDER_PLACES["x"]
ORDER: Final = ORDER_PLACES["order"]
ORDER_COPY: Final = ORDER_PLACES["a"]
INTEGERS: Final = ORDER_PLACES["integers"]
ORDER_ROWS: Final = ORDER_PLACES["rows"]
ORDER_COLUMNS: Final = ORDER_PLACES["columns"]


@native
def qr_run(arguments: int, begin: int, end: int) -> int:
    """Factor matrices ``begin`` to ``end``."""
    rows = load(arguments + ROWS)
    columns = load(arguments + COLUMNS)
    inner = load(arguments + INNER)
    size = load(arguments + ITEM_BYTES)
    step = rows * columns * size
    step_q = rows * inner * size
    step_r = inner * columns * size
    small = rows <= LIMIT and columns <= LIMIT and load(arguments + SMALL)
    item = begin
    while item < end:
        x = load(arguments + X) + item * step
        q = load(arguments + Q) + item * step_q
        r = load(arguments + R) + item * step_r
        many = 1
        left = 1
        if small:
            many = least(LANES, end - item)
            left = call(
                load(arguments + SMALL), x, q, r, many, rows, columns, inner, size
            )
        for lane in range(many):
            if (left >> lane) & 1:
                qr_matrix(
                    arguments, x + lane * step, q + lane * step_q, r + lane * step_r
                )
        item += many
    return 0


@native
def qr_matrix(arguments: int, x: int, q: int, r: int) -> int:
    """Factor one matrix."""
    rows = load(arguments + ROWS)
    columns = load(arguments + COLUMNS)
    inner = load(arguments + INNER)
    size = load(arguments + ITEM_BYTES)
    a = load(arguments + COPY)
    own = stack(1)
    store(own, q)
    memcpy(a, x, rows * columns * size)
    lapack(arguments, GELQF, own)
    for row in range(inner):
        below = least(row, columns)
        target = r + row * columns * size
        memset(target, 0, below * size)
        memcpy(
            target + below * size,
            a + (row * columns + below) * size,
            (columns - below) * size,
        )
    for row in range(rows):
        memcpy(
            q + row * inner * size,
            a + row * columns * size,
            least(rows, columns) * size,
        )
    return lapack(arguments, ORGLQ, own)


@native
def column_order_run(arguments: int, begin: int, end: int) -> int:
    """The orders of matrices ``begin`` to ``end``."""
    rows = load(arguments + ORDER_ROWS)
    columns = load(arguments + ORDER_COLUMNS)
    step = rows * columns * load(arguments + ITEM_BYTES)
    integers = load(arguments + INTEGERS)
    width = load(arguments + INTEGER_BYTES)
    for item in range(begin, end):
        order = load(arguments + ORDER) + 4 * item * columns
        memcpy(
            load(arguments + ORDER_COPY), load(arguments + GIVEN) + item * step, step
        )
        # 0: LAPACK may take any column first.
        memset(integers, 0, width * columns)
        if rows > 0:
            lapack(arguments, CALLS, 0)
        for column in range(columns):
            # It counts from 1; of a word the low half comes first.
            place = load_i32(integers + width * column) - 1
            if place < 0:
                place = column
            store_i32(order + 4 * column, place)
    return 0


def words(dtype: str, library: Blas | None = None) -> tuple[int, ...]:
    """The words before the arguments."""
    calls = (
        "?gelqf &columns &rows a &leading_a tau work &words info",
        (
            "?orglq &inner &rows &least $0 &leading_q tau work &words info",
            "?unglq &inner &rows &least $0 &leading_q tau work &words info",
        ),
    )
    small = small_address(small_matrices.small_qr, dtype)
    return *lapack_words(dtype, PLACES, *calls, library=library), small


def order_words(dtype: str) -> tuple[int, ...]:
    """Those of ``column_order_run``."""
    text = "?geqp3 &rows &columns a &leading integers tau work &words {}info"
    call = text.format(""), text.format("real_work ")
    return lapack_words(dtype, ORDER_PLACES, call)


PROVIDERS: Final = {
    **with_large(
        "gelqf",
        Provider(
            qr_run,
            words,
            by_reference(
                linalg_qr.qr,
                "x",
                ("rows", "columns"),
                "q",
                "r",
                params=lambda given: {"full": given["inner"] > given["least"]},
            ),
            uses_blas=True,
        ),
        words,
    ),
    "geqp3": Provider(
        column_order_run,
        order_words,
        by_reference(linalg_qr.column_order, "x", ("columns", "rows"), "order"),
        uses_blas=True,
    ),
}
