"""Fourier transforms: the loops of NumPy's generalized ufuncs, called by address.

A loop (``PyUFuncGenericFunction``) takes arrays of pointers, extents and strides, and
touches no Python object: NumPy itself calls it without the GIL. SciPy's transforms can
be entered through Python objects alone, and are not faster: 1000 transforms of 1024
numbers take 2.22 ms of one core here and 2.21 there in complex64, 4.16 and 4.38 in
complex128, 1.23 and 1.31 of float32 (NumPy 2.4, SciPy 1.17, AMD Zen 5).
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from arrayfn.backends.cpu.libraries.provider import Provider
from arrayfn.backends.native import call, load, native, stack, store
from arrayfn.dtypes import BY_SHORT_NAME, real_of

UFUNC_FUNCTIONS: Final = 32  # byte offsets in a PyUFuncObject
UFUNC_DATA: Final = 40
UFUNC_TYPES: Final = 48
# The positions of loops, and what their types are to begin with.
TYPES: Final = {
    "f64": (0, "dd"),
    "c128": (0, "Dd"),
    "f32": (1, "ff"),
    "c64": (1, "Ff"),
}

# Arguments: words, then those of ``lowering.libraries.fourier``.
EVEN: Final = 0  # the loop, and its data
ODD: Final = 16  # that of an odd length
TAKEN_BYTES: Final = 32
GIVEN_BYTES: Final = 40
X: Final = 48
TRANSFORMED: Final = 56
ROWS: Final = 64
EACH: Final = 72
TAKEN: Final = 80
GIVEN: Final = 88
IS_ODD: Final = 96
FACTOR: Final = 104


@native
def fourier_run(arguments: int, begin: int, end: int) -> int:
    """Transform the rows of items ``begin`` to ``end``."""
    pointers = stack(3)
    extents = stack(3)
    strides = stack(5)
    rows = load(arguments + ROWS)
    first = begin * load(arguments + EACH)
    last = end * load(arguments + EACH)
    if last > rows:
        last = rows
    if first < last:
        loop = arguments + EVEN
        if load(arguments + IS_ODD) != 0:
            loop = arguments + ODD
        taken = load(arguments + TAKEN)
        given = load(arguments + GIVEN)
        taken_bytes = load(arguments + TAKEN_BYTES)
        given_bytes = load(arguments + GIVEN_BYTES)
        store(pointers, load(arguments + X) + first * taken * taken_bytes)
        store(pointers + 8, arguments + FACTOR)
        store(
            pointers + 16, load(arguments + TRANSFORMED) + first * given * given_bytes
        )
        store(extents, last - first)
        store(extents + 8, taken)
        store(extents + 16, given)
        store(strides, taken * taken_bytes)
        store(strides + 8, 0)
        store(strides + 16, given * given_bytes)
        store(strides + 24, taken_bytes)
        store(strides + 32, given_bytes)
        call(load(loop), pointers, extents, strides, load(loop + 8))
    return 0


def _loop(name: str, dtype: str) -> tuple[int, int]:
    """The address of a ufunc's loop, and its data."""
    ufunc = getattr(importlib.import_module("numpy.fft._pocketfft_umath"), name)
    position, wanted = TYPES[dtype]
    word = ctypes.c_int64.from_address
    count = ctypes.c_int32.from_address(id(ufunc) + UFUNC_TYPES).value
    types: list[str] = ufunc.types
    if count != len(types) or not types[position].startswith(wanted):
        # There is none for this dtype; or NumPy's objects lie otherwise than here.
        raise KeyError(dtype)
    functions, data = (
        word(id(ufunc) + offset).value for offset in (UFUNC_FUNCTIONS, UFUNC_DATA)
    )
    own = word(data + 8 * position).value if data else 0
    return word(functions + 8 * position).value, own


def _words(name: str, odd: str) -> Callable[[str], tuple[int, ...]]:
    """The words of a kind of transform, by the operand's dtype."""

    def words(dtype: str) -> tuple[int, ...]:
        kind = BY_SHORT_NAME[dtype]
        half = real_of(kind).itemsize
        given = half if name == "irfft" else 2 * half
        return *_loop(name, dtype), *_loop(odd, dtype), kind.itemsize, given

    return words


def _unjitted(
    function: Callable[..., Any], transforms_back: bool
) -> Callable[..., None]:
    """All rows, by NumPy."""

    def run(given: Mapping[str, Any], items: int) -> None:
        rows, taken, count = (int(given[name]) for name in ("rows", "taken", "given"))
        x = given["x"].array((rows, taken))
        out = given["transformed"].array((rows, count))
        bits = np.array([int(given["factor"])], np.int64)
        scale = bits.view(real_of(x.dtype))[0]
        length = count if transforms_back else taken
        norm = "forward" if transforms_back else "backward"
        out[...] = function(x, length, norm=norm) * scale

    return run


PROVIDERS: Final = {
    name: Provider(fourier_run, _words(*loops), _unjitted(function, back))
    for name, loops, function, back in (
        ("fft", ("fft", "fft"), np.fft.fft, False),
        ("ifft", ("ifft", "ifft"), np.fft.ifft, True),
        ("rfft", ("rfft_n_even", "rfft_n_odd"), np.fft.rfft, False),
        ("irfft", ("irfft", "irfft"), np.fft.irfft, True),
    )
}
