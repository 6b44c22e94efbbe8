"""Window functions of signal processing: vectors that rise to 1 in the middle.

Sources: Blackman and Tukey, The Measurement of Power Spectra (1958); Kaiser (1966).
"""

from __future__ import annotations

import math
from typing import Any

from arrayfn import dtypes
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.arithmetic import absolute, divide, sqrt, square
from arrayfn.numpy.bessel import i0
from arrayfn.numpy.creation import arange, ones
from arrayfn.numpy.transcendental import cos


def _centred(m: int) -> Any:
    """Return m evenly spaced float64 numbers from -1 to 1."""
    return divide(arange(1 - m, m, 2), float(m - 1))


def bartlett(M: int) -> Array:
    """Return the Bartlett window: a triangle of M points (float64), 0 at its ends."""
    if M <= 1:
        return ones(max(M, 0))
    return 1.0 - absolute(_centred(M))


def blackman(M: int) -> Array:
    """Return the Blackman window of M points (float64), nearly 0 at its ends."""
    if M <= 1:
        return ones(max(M, 0))
    angle = math.pi * _centred(M)
    return 0.42 + 0.5 * cos(angle) + 0.08 * cos(2.0 * angle)


def hamming(M: int) -> Array:
    """Return the Hamming window: a raised cosine of M points (float64).

    It is 0.08 at its ends.
    """
    if M <= 1:
        return ones(max(M, 0))
    return 0.54 + 0.46 * cos(math.pi * _centred(M))


def hanning(M: int) -> Array:
    """Return the Hann window: a raised cosine of M points (float64), 0 at its ends."""
    if M <= 1:
        return ones(max(M, 0))
    return 0.5 + 0.5 * cos(math.pi * _centred(M))


def kaiser(M: int, beta: ArrayLike) -> Array:
    """Return the Kaiser window of M points: i0(beta sqrt(1 - t**2)) / i0(beta).

    t goes from -1 to 1, and i0 is the Bessel function. The result is float64.
    """
    if M <= 1:
        return ones(max(M, 0))
    width = ops.as_array(ops.convert(beta, dtypes.float64))
    return divide(i0(width * sqrt(1.0 - square(_centred(M)))), i0(width))
