"""Convolutions, trends and spectra, under ``scipy.signal``'s names."""

from __future__ import annotations

from arrayfn import documentation as _documentation
from arrayfn.scipy.signal.convolution import (
    convolve,
    convolve2d,
    correlate,
    correlate2d,
    fftconvolve,
)
from arrayfn.scipy.signal.spectra import csd, istft, stft, welch
from arrayfn.scipy.signal.trends import detrend

__all__ = [
    "convolve",
    "convolve2d",
    "correlate",
    "correlate2d",
    "csd",
    "detrend",
    "fftconvolve",
    "istft",
    "stft",
    "welch",
]

_documentation.attach(__name__)
