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
from arrayfn.backends.native import cast, local, native, pointer
from arrayfn.backends.native.python_objects import PyUFuncObject
from arrayfn.backends.native.structures import Array, Inline, Struct
from arrayfn.dtypes import BY_SHORT_NAME, real_of

# The positions of loops, and what their types are to begin with.
TYPES: Final = {
    "f64": (0, "dd"),
    "c128": (0, "Dd"),
    "f32": (1, "ff"),
    "c64": (1, "Ff"),
}


class UfuncLoop(Struct):
    """A loop of a ufunc, and the data that it is called with."""

    function: Callable[[Array[int], Array[int], Array[int], int], None]
    data: int


class Arguments(Struct):
    """Two loops and sizes; then the arguments of ``lowering.libraries.fourier``."""

    even: Inline[UfuncLoop]
    odd_one: Inline[UfuncLoop]  # of an odd length
    taken_bytes: int
    given_bytes: int
    x: int
    transformed: int
    rows: int
    each: int
    taken: int
    given: int
    odd: int
    factor: int  # the memory of one real number


@native
def fourier_run(a: Arguments, begin: int, end: int) -> None:
    """Transform the rows of items ``begin`` to ``end``."""
    first = begin * a.each
    last = min(end * a.each, a.rows)
    if first >= last:
        return
    pointers = local(int, 3)
    pointers[0] = a.x + first * a.taken * a.taken_bytes
    pointers[1] = cast(int, pointer(a.factor))
    pointers[2] = a.transformed + first * a.given * a.given_bytes
    extents = local(int, 3)
    extents[0] = last - first
    extents[1] = a.taken
    extents[2] = a.given
    strides = local(int, 5)
    strides[0] = a.taken * a.taken_bytes
    strides[1] = 0
    strides[2] = a.given * a.given_bytes
    strides[3] = a.taken_bytes
    strides[4] = a.given_bytes
    loop = a.odd_one if a.odd else a.even
    loop.function(pointers, extents, strides, loop.data)


def _loop(name: str, dtype: str) -> tuple[int, int]:
    """The address of a ufunc's loop, and its data."""
    ufunc = getattr(importlib.import_module("numpy.fft._pocketfft_umath"), name)
    position, wanted = TYPES[dtype]
    made = PyUFuncObject.from_address(id(ufunc))
    types: list[str] = ufunc.types
    if made.ntypes != len(types) or not types[position].startswith(wanted):
        # There is none for this dtype; or NumPy's objects lie otherwise than here.
        raise KeyError(dtype)
    table = ctypes.c_int64 * len(types)
    functions, data = (
        table.from_address(address)[position] if address else 0
        for address in (getattr(made, name) for name in ("functions", "data"))
    )
    return functions, data


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
