"""Fourier transforms under NumPy's names: the array API's extension, and fft2.

The transforms can be differentiated, mapped and compiled. Rows run on all threads.
"""

from __future__ import annotations

from arrayfn import documentation as _documentation
from arrayfn.numpy.fft.frequencies import fftfreq, fftshift, ifftshift, rfftfreq
from arrayfn.numpy.fft.transforms import (
    fft,
    fft2,
    fftn,
    hfft,
    ifft,
    ifft2,
    ifftn,
    ihfft,
    irfft,
    irfft2,
    irfftn,
    rfft,
    rfft2,
    rfftn,
)

__all__ = [
    "fft",
    "fft2",
    "fftfreq",
    "fftn",
    "fftshift",
    "hfft",
    "ifft",
    "ifft2",
    "ifftn",
    "ifftshift",
    "ihfft",
    "irfft",
    "irfft2",
    "irfftn",
    "rfft",
    "rfft2",
    "rfftfreq",
    "rfftn",
]

_documentation.attach(__name__)
