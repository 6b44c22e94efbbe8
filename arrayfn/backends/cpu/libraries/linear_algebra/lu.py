"""LU factors: LAPACK's getrf over matrices that lie by columns, in place.

Also of a singular matrix there are factors: LAPACK's word for that is not an error.
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
from arrayfn.primitives import linalg_lu

SMALL: Final = CALLS + CALL_BYTES
PLACES: Final = fields(
    1, "a", "pivots", "permutation", "integers", "rows", "columns", "leading", more=1
)
MATRIX: Final = PLACES["a"]
PIVOTS: Final = PLACES["pivots"]
PERMUTATION: Final = PLACES["permutation"]
INTEGERS: Final = PLACES["integers"]
ROWS: Final = PLACES["rows"]
COLUMNS: Final = PLACES["columns"]


@native
def lu_run(arguments: int, begin: int, end: int) -> int:
    """Factor matrices ``begin`` to ``end``."""
    rows = load(arguments + ROWS)
    columns = load(arguments + COLUMNS)
    step = rows * columns * load(arguments + ITEM_BYTES)
    integers = load(arguments + INTEGERS)
    width = load(arguments + INTEGER_BYTES)
    k = least(rows, columns)
    own = stack(1)
    if rows <= LIMIT and columns <= LIMIT and load(arguments + SMALL):
        return small_lus(arguments, begin, end)
    for item in range(begin, end):
        pivots = load(arguments + PIVOTS) + 4 * k * item
        store(own, load(arguments + MATRIX) + item * step)
        if k > 0:
            lapack(arguments, CALLS, own)
        for row in range(k):
            # LAPACK counts from 1; of a word the low half comes first.
            store_i32(pivots + 4 * row, load_i32(integers + width * row) - 1)
        permute(load(arguments + PERMUTATION) + 4 * rows * item, rows, pivots, k)
    return 0


@native
def small_lus(arguments: int, begin: int, end: int) -> int:
    """Factor small matrices ``begin`` to ``end``, some at once."""
    rows = load(arguments + ROWS)
    columns = load(arguments + COLUMNS)
    size = load(arguments + ITEM_BYTES)
    item = begin
    while item < end:
        call(
            load(arguments + SMALL),
            load(arguments + MATRIX) + item * rows * columns * size,
            load(arguments + PIVOTS) + 4 * item * least(rows, columns),
            load(arguments + PERMUTATION) + 4 * item * rows,
            least(LANES, end - item),
            rows,
            columns,
            size,
        )
        item += LANES
    return 0


@native
def pivots_to_permutation_run(arguments: int, begin: int, end: int) -> int:
    """Permutations ``begin`` to ``end``. Arguments: pivots, permutation, extents."""
    rows = load(arguments + 16)
    count = load(arguments + 24)
    for item in range(begin, end):
        permute(
            load(arguments + 8) + 4 * rows * item,
            rows,
            load(arguments) + 4 * count * item,
            count,
        )
    return 0


@native
def permute(permutation: int, rows: int, pivots: int, count: int) -> int:
    """Swap each of the first ``count`` rows with that of its pivot."""
    for row in range(rows):
        store_i32(permutation + 4 * row, row)
    for row in range(count):
        other = load_i32(pivots + 4 * row)
        if other < 0 or other >= rows:
            continue
        moved = load_i32(permutation + 4 * row)
        store_i32(permutation + 4 * row, load_i32(permutation + 4 * other))
        store_i32(permutation + 4 * other, moved)
    return 0


def words(dtype: str, library: Blas | None = None) -> tuple[int, ...]:
    """The words before the arguments."""
    text = "?getrf &rows &columns $0 &leading integers info"
    small = small_address(small_matrices.small_lu, dtype)
    return *lapack_words(dtype, PLACES, text, library=library), small


def no_words(dtype: str) -> tuple[int, ...]:
    """None: of what calls nothing."""
    return ()


PROVIDERS: Final = {
    **with_large(
        "getrf",
        Provider(
            lu_run,
            words,
            by_reference(
                linalg_lu.lu, "a", ("columns", "rows"), "a", "pivots", "permutation"
            ),
            uses_blas=True,
        ),
        words,
    ),
    "pivots_to_permutation": Provider(
        pivots_to_permutation_run,
        no_words,
        by_reference(
            linalg_lu.pivots_to_permutation,
            "pivots",
            ("count",),
            "permutation",
            params=lambda given: {"rows": int(given["rows"])},
        ),
    ),
}
