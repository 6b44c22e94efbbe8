"""Fourier transforms of rows through cuFFT: a plan for each shape, made once."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from arrayfn.backends.cuda.driver import device
from arrayfn.backends.cuda.libraries.calls import Call
from arrayfn.backends.cuda.libraries.shared import open_library
from arrayfn.errors import BackendError

_FORWARD, _INVERSE = -1, 1
# kind and operand: cuFFT's type, its function, and the direction where it has one
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


@cache
def _cufft() -> Any:
    return open_library("cufft", "the Fourier transform", "nvidia-cufft")


def _check(status: int) -> None:
    if status:
        raise BackendError(f"cuFFT says: error {status}")


@cache
def _plan(kind: int, length: int, rows: int) -> int:
    """The plan of ``rows`` transforms; it stays."""
    device().enter()
    plan = ctypes.c_int()
    n = (ctypes.c_int * 1)(length)
    none = ctypes.c_void_p()
    _check(
        _cufft().cufftPlanMany(
            ctypes.byref(plan), 1, n, none, 1, 0, none, 1, 0, kind, rows
        )
    )
    return plan.value


def transform(kind: str, dtype: str, integers: Mapping[str, int], items: int) -> Call:
    """The transform ``kind`` of rows of ``dtype``."""
    number, name, direction = _FORMS[f"{kind}_{dtype}"]
    plan = _plan(number, integers["length"], integers["rows"])
    function = getattr(_cufft(), name)
    last = (ctypes.c_int(direction),) if direction else ()

    def enqueue(stream: int, x: int, transformed: int) -> None:
        device().enter()
        _check(_cufft().cufftSetStream(plan, ctypes.c_void_p(stream)))
        given, made = ctypes.c_void_p(x), ctypes.c_void_p(transformed)
        _check(function(plan, given, made, *last))

    return Call(enqueue, ("x", "transformed"))
