"""Emulated tensor-core functions, in which all lanes of a warp take part.

``ACTIONS[kind](function, arguments)`` gets the arguments of all 32 lanes.
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
_ROW, _COLUMN = np.divmod(np.arange(WARP), 4)  # of a lane's elements in a fragment


def rounded(dtype: str, *values: Any) -> Array:
    """Round values to ``dtype``, float16 or bfloat16; return their bits."""
    with np.errstate(all="ignore"):
        return np.array(values, np.float32).astype(_TYPES[dtype]).view(np.uint16)


def widened(dtype: str, *bits: Any) -> Array:
    """Convert float16 or bfloat16 numbers with these bits to float32."""
    return np.array(bits, np.uint16).view(_TYPES[dtype]).astype(np.float32)


def exp2(x: Any) -> Any:
    """2**x in float32; zero instead of subnormal numbers."""
    power = np.exp2(np.float32(x))
    return np.float32(0) if power < np.finfo(np.float32).tiny else power


def exp(x: Any) -> Any:
    """e**x by a product and a power of two, as a GPU computes it."""
    return exp2(np.float32(x) * np.float32(1 / np.log(2)))


def rsqrt(x: Any) -> Any:
    """1 / sqrt(x) in float32."""
    return np.float32(1) / np.sqrt(np.float32(x))


def _ldmatrix(function: DeviceFunction, arguments: Arguments) -> None:
    """Emulate ldmatrix: lanes give the rows of four 8x8 matrices, and get fragments."""
    rows = np.array(
        [[shared[at + k] for k in range(8)] for shared, at, _, _ in arguments]
    )
    for k, matrix in enumerate(rows.reshape(4, 8, 8)):
        for lane, (_, _, tile, to) in enumerate(arguments):
            row, column = _ROW[lane], 2 * _COLUMN[lane]
            for i in range(2):
                at = row, column + i
                if function.kind == "ldmatrix_trans":
                    at = at[::-1]
                tile[to + 2 * k + i] = matrix[at]


def _matrix(parts: Array) -> Array:
    """Assemble an 8x8 matrix from the fragments ``parts`` [lane, 2] of a warp."""
    made = np.empty((8, 8), parts.dtype)
    for i in range(2):
        made[_ROW, 2 * _COLUMN + i] = parts[:, i]
    return made


def _fragments(values: Sequence[tuple[Any, int]], count: int) -> list[Array]:
    """Assemble ``count`` matrices from the registers of all lanes."""
    parts = np.array([[tile[at + k] for k in range(2 * count)] for tile, at in values])
    return [_matrix(parts[:, 2 * k : 2 * k + 2]) for k in range(count)]


def _mma(function: DeviceFunction, arguments: Arguments) -> None:
    """Emulate mma.m16n8k16: add a 16x16 by 16x8 product to fragments of sums."""

    def factor(first: int, count: int) -> list[Array]:
        """The 8x8 matrices whose fragments are in a pair of each lane's arguments."""
        raw = _fragments([a[first : first + 2] for a in arguments], count)
        kind = _TYPES[function.dtype]
        return [m.astype(np.uint16).view(kind).astype(np.float32) for m in raw]

    upper_left, lower_left, upper_right, lower_right = factor(2, 4)
    left = np.block([[upper_left, upper_right], [lower_left, lower_right]])
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
"""What each kind of functions does."""
