"""What native routines around LAPACK share: NaNs for what failed, copies, triangles.

LAPACK's matrices lie by columns. A row-major matrix is, by columns, its transpose.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from arrayfn.backends.cpu.libraries.blas import LETTERS, lapack_address
from arrayfn.backends.cpu.native import CFunction, native, store_i32
from arrayfn.dtypes import BY_SHORT_NAME, real_of

memcpy = CFunction("memcpy", 3)
memset = CFunction("memset", 3)

# The words before the arguments of a routine that calls LAPACK.
ITEM_BYTES: Final = 0
NAN: Final = 8  # the bits of NaN in two 32-bit halves, as reals repeat them
FUNCTIONS: Final = 16  # the first of the functions' addresses


def lapack_words(dtype: str, *functions: str) -> tuple[int, ...]:
    """The bytes of an element, NaN, and addresses of ``functions`` (``"?potrf"``).

    Where a name ends in ``"|..."``, that is the name of the complex function.
    """
    kind = BY_SHORT_NAME[dtype]
    letter = LETTERS[dtype]
    nan = np.full(8 // real_of(kind).itemsize, np.nan, real_of(kind))
    bits = int(nan.view(np.int64)[0])
    names = (name.partition("|") for name in functions)
    chosen = (other if other and kind.kind == "c" else name for name, _, other in names)
    addresses = (lapack_address(name.replace("?", letter)) for name in chosen)
    return kind.itemsize, bits, *addresses


@native
def fill_words(address: int, count: int, bits: int) -> int:
    """Fill ``count`` bytes, a multiple of 4, with the two halves of ``bits``."""
    for k in range(count // 4):
        if k & 1:
            store_i32(address + 4 * k, bits >> 32)
        else:
            store_i32(address + 4 * k, bits)
    return 0
