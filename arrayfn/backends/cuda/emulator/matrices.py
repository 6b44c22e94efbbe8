"""Emulates tensor-core functions, in which all lanes of a warp take part.

``ACTIONS[kind](function, arguments)`` gets the arguments of all 32 lanes. In a fragment
of an 8x8 matrix, lane l holds elements 2 (l % 4) and the next of row l // 4. Here are
also conversions and approximate functions, as a GPU computes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import ml_dtypes
import numpy as np

from arrayfn.lowering.cuda.vocabulary import WARP, DeviceFunction

Array = np.ndarray[Any, Any]
Arguments = Sequence[tuple[Any, ...]]

_TYPES: Final = {"f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}
# For each lane, the row of its two elements in a fragment, and half their first column.
_ROW, _COLUMN = np.divmod(np.arange(WARP), 4)


def rounded(dtype: str, *values: Any) -> Array:
    """Round ``values`` to ``dtype``, "f16" or "bf16"; return their bits as uint16."""
    with np.errstate(all="ignore"):
        return np.array(values, np.float32).astype(_TYPES[dtype]).view(np.uint16)


def widened(dtype: str, *bits: Any) -> Array:
    """Convert the "f16" or "bf16" numbers with these ``bits`` to float32."""
    return np.array(bits, np.uint16).view(_TYPES[dtype]).astype(np.float32)


def exp2(x: Any) -> Any:
    """Return 2**x in float32; 0 instead of a subnormal number."""
    power = np.exp2(np.float32(x))
    return np.float32(0) if power < np.finfo(np.float32).tiny else power


def exp(x: Any) -> Any:
    """Return e**x as 2**(x * log2(e)) in float32, as a GPU computes it."""
    return exp2(np.float32(x) * np.float32(1 / np.log(2)))


def rsqrt(x: Any) -> Any:
    """Return 1 / sqrt(x) in float32."""
    return np.float32(1) / np.sqrt(np.float32(x))


def _ldmatrix(function: DeviceFunction, arguments: Arguments) -> None:
    """Emulate ldmatrix, which loads four 8x8 matrices from shared memory.

    Lane l gives the address of row l % 8 of matrix l // 8, as ``shared[at]``, and gets
    its elements of matrix k in ``tile[to + 2 * k]`` and the next register.
    """
    rows = np.array(
        [[shared[at + k] for k in range(8)] for shared, at, _, _ in arguments]
    )
    for k, matrix in enumerate(rows.reshape(4, 8, 8)):
        for lane, (_, _, tile, to) in enumerate(arguments):
            row, column = _ROW[lane], 2 * _COLUMN[lane]
            for i in range(2):
                at = row, column + i
                if function.kind == "ldmatrix_trans":
                    at = at[::-1]  # of the transpose
                tile[to + 2 * k + i] = matrix[at]


def _matrix(parts: Array) -> Array:
    """Assemble an 8x8 matrix from a warp's fragment ``parts``, [lane, 2]."""
    matrix = np.empty((8, 8), parts.dtype)
    # Lane k has two neighbours in row k // 4, which begin at column 2 * (k % 4).
    for i in range(2):
        matrix[_ROW, 2 * _COLUMN + i] = parts[:, i]
    return matrix


def _fragments(values: Sequence[tuple[Any, int]], count: int) -> list[Array]:
    """Assemble ``count`` 8x8 matrices from the registers of all lanes.

    ``values`` has for each lane the array of registers, and the first one's index.
    """
    parts = np.array([[tile[at + k] for k in range(2 * count)] for tile, at in values])
    return [_matrix(parts[:, 2 * k : 2 * k + 2]) for k in range(count)]


def _mma(function: DeviceFunction, arguments: Arguments) -> None:
    """Emulate mma.m16n8k16: add a 16x16 by 16x8 product to fragments of sums.

    The arguments of a lane are the registers and first index of sums, left operand and
    right operand.
    """

    def factor(first: int, count: int) -> list[Array]:
        """Assemble ``count`` 8x8 matrices as float32.

        Argument ``first`` of each lane is an array of registers, and the next one is
        the index of the first register.
        """
        raw = _fragments([a[first : first + 2] for a in arguments], count)
        kind = _TYPES[function.dtype]
        return [m.astype(np.uint16).view(kind).astype(np.float32) for m in raw]

    upper_left, lower_left, upper_right, lower_right = factor(2, 4)
    left = np.block([[upper_left, upper_right], [lower_left, lower_right]])
    # The right operand's fragments are of its transpose, 8x16.
    product = left @ np.concatenate(factor(4, 2), axis=1).T
    for lane, (sums, at, *_) in enumerate(arguments):
        row, column = _ROW[lane], 2 * _COLUMN[lane]
        for k in range(4):
            sums[at + k] += product[row + 8 * (k // 2), column + k % 2]


ACTIONS: Final[dict[str, Callable[[DeviceFunction, Arguments], None]]] = {
    "ldmatrix": _ldmatrix,
    "ldmatrix_trans": _ldmatrix,
    "mma": _mma,
}
"""Emulates a call of each kind of device functions by a whole warp."""
