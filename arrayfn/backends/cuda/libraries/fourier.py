"""Prepares Fourier transforms of rows by cuFFT: a plan for each shape, made once."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Final

from arrayfn.backends.cuda.driver import device, per_device
from arrayfn.backends.cuda.libraries.calls import Call
from arrayfn.backends.cuda.libraries.shared import Library

_FORWARD, _INVERSE = -1, 1
# By the kind and the operand's dtype: cuFFT's type of transform, its function, and the
# direction, which is 0 for functions without this argument.
_FORMS: Final[dict[str, tuple[int, str, int]]] = {
    "fft_c64": (0x29, "cufftExecC2C", _FORWARD),
    "ifft_c64": (0x29, "cufftExecC2C", _INVERSE),
    "rfft_f32": (0x2A, "cufftExecR2C", 0),
    "irfft_c64": (0x2C, "cufftExecC2R", 0),
    "fft_c128": (0x69, "cufftExecZ2Z", _FORWARD),
    "ifft_c128": (0x69, "cufftExecZ2Z", _INVERSE),
    "rfft_f64": (0x6A, "cufftExecD2Z", 0),
    "irfft_c128": (0x6C, "cufftExecZ2D", 0),
}
_CUFFT: Final = Library("cuFFT", "cufft", "the Fourier transform")


@per_device
def _plan(kind: int, length: int, rows: int) -> int:
    """Return cuFFT's plan of ``rows`` transforms of ``length``; cached for each GPU.

    ``kind`` is a cufftType. Rows are contiguous, and follow each other without gaps.
    """
    device().make_current()
    plan = ctypes.c_int()
    n, none = (ctypes.c_int * 1)(length), ctypes.c_void_p()
    # The layouts of input and output are cuFFT's defaults: (embed, stride, distance).
    layouts = none, 1, 0, none, 1, 0
    _CUFFT.call("cufftPlanMany", ctypes.byref(plan), 1, n, *layouts, kind, rows)
    return plan.value


def transform(kind: str, dtype: str, integers: Mapping[str, int]) -> Call:
    """Prepare cuFFT's transform of each row of an array.

    ``kind`` is "fft", "ifft", "rfft" or "irfft", and ``dtype`` the short name of the
    rows' dtype ("c64"). ``integers`` has the ``length`` of a transform and the number
    of ``rows``. The result is not scaled.
    """
    cufft_type, function, direction = _FORMS[f"{kind}_{dtype}"]
    plan = _plan(cufft_type, integers["length"], integers["rows"])
    last = (ctypes.c_int(direction),) if direction else ()

    def enqueue(stream: int, x: int, transformed: int) -> None:
        """Enqueue the transform from the address ``x`` to ``transformed``."""
        device().make_current()
        _CUFFT.call("cufftSetStream", plan, ctypes.c_void_p(stream))
        arrays = map(ctypes.c_void_p, (x, transformed))
        _CUFFT.call(function, plan, *arrays, *last)

    return Call(enqueue, ("x", "transformed"))
