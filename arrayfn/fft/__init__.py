"""Fourier transforms: the functions of ``arrayfn.numpy.fft``."""

from __future__ import annotations

from arrayfn.numpy import fft as _fft
from arrayfn.numpy.fft import *  # noqa: F403

__all__: list[str] = []  # type checkers understand this form
__all__ += _fft.__all__
