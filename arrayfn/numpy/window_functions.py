"""Windows for signals: vectors of n numbers that rise from the ends to 1 in the middle.

Sources: Blackman and Tukey, The Measurement of Power Spectra (1958); Kaiser (1966).
"""

from __future__ import annotations

import math
from typing import Any

from arrayfn.numpy._operands import Array
from arrayfn.numpy.arithmetic import absolute, divide
from arrayfn.numpy.creation import arange, ones
from arrayfn.numpy.transcendental import cos


def _centred(m: int) -> Any:
    """-1 to 1 in m steps."""
    return divide(arange(1 - m, m, 2), float(m - 1))


def bartlett(m: int, /) -> Array:
    """The triangle of m points with zeros at its ends: float64."""
    if m <= 1:
        return ones(max(m, 0))
    return 1.0 - absolute(_centred(m))


def blackman(m: int, /) -> Array:
    """The Blackman window of m points, near zero at its ends: float64."""
    if m <= 1:
        return ones(max(m, 0))
    angle = math.pi * _centred(m)
    return 0.42 + 0.5 * cos(angle) + 0.08 * cos(2.0 * angle)


def hamming(m: int, /) -> Array:
    """The raised cosine of m points with 0.08 at its ends: float64."""
    if m <= 1:
        return ones(max(m, 0))
    return 0.54 + 0.46 * cos(math.pi * _centred(m))


def hanning(m: int, /) -> Array:
    """The raised cosine of m points with zeros at its ends: float64."""
    if m <= 1:
        return ones(max(m, 0))
    return 0.5 + 0.5 * cos(math.pi * _centred(m))
