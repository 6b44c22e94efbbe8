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

from arrayfn.backends.cpu.libraries.foreign import (
    Array,
    Constant,
    address_of,
    c_function,
    stack_integers,
    u8,
)
from arrayfn.backends.cpu.libraries.provider import Provider
from arrayfn.backends.native.python_objects import PyUFuncObject
from arrayfn.dtypes import BY_SHORT_NAME, real_of
from arrayfn.lowering.scalars import min_i64

# By the operand's dtype: the position of the ufunc's loop, and the letters of NumPy's
# types of the operand and the factor, with which the loop's types begin.
TYPES: Final = {
    "f64": (0, "dd"),
    "c128": (0, "Dd"),
    "f32": (1, "ff"),
    "c64": (1, "Ff"),
}


def transform(
    even: int,
    even_data: int,
    odd: int,
    odd_data: int,
    input_bytes: Constant,
    output_bytes: Constant,
    x: Array[u8],
    transformed: Array[u8],
    rows: int,
    each: int,
    input_length: int,
    output_length: int,
    is_odd: int,
    factor: int,
    begin: int,
    end: int,
) -> None:
    """Transform rows of ``x``, and multiply the results by ``factor``.

    A work item is ``each`` of the ``rows``; items ``begin`` to ``end`` are computed. A
    row of ``x`` has ``input_length`` elements of ``input_bytes`` each, a row of
    ``transformed`` ``output_length`` elements of ``output_bytes`` each. ``factor`` has
    the bits of a real number.

    ``even`` and ``odd`` are the addresses of NumPy's ufunc loops for transforms of even
    and of odd length, ``even_data`` and ``odd_data`` are the loops' data. ``is_odd``
    says which loop is called.
    """
    first = begin * each
    last = min_i64(end * each, rows)
    if first < last:
        # A ufunc loop takes pointers to x, factor and result; the number of rows and
        # the lengths of a row; and strides in bytes, first from row to row, then inside
        # of a row. The factor has the stride 0: it is the same for all rows.
        pointers = stack_integers(3)
        scale = stack_integers(1)
        scale[0] = factor
        pointers[0] = address_of(x + first * input_length * input_bytes)
        pointers[1] = address_of(scale)
        pointers[2] = address_of(transformed + first * output_length * output_bytes)
        extents = stack_integers(3)
        extents[0] = last - first
        extents[1] = input_length
        extents[2] = output_length
        strides = stack_integers(5)
        strides[0] = input_length * input_bytes
        strides[1] = 0
        strides[2] = output_length * output_bytes
        strides[3] = input_bytes
        strides[4] = output_bytes
        function, data = even, even_data
        if is_odd != 0:
            function, data = odd, odd_data
        c_function(function, pointers, extents, strides, data)


def _loop(name: str, dtype: str) -> tuple[int, int]:
    """Return the address of the inner loop of NumPy's ufunc ``name``, and of its data.

    ``dtype`` is the operand's. Raises KeyError if the ufunc has no loop for it, or if
    NumPy's ufunc objects are not laid out as ``PyUFuncObject`` says.
    """
    ufunc = getattr(importlib.import_module("numpy.fft._pocketfft_umath"), name)
    position, letters = TYPES[dtype]
    struct = PyUFuncObject.from_address(id(ufunc))
    types: list[str] = ufunc.types
    if struct.ntypes != len(types) or not types[position].startswith(letters):
        raise KeyError(dtype)
    table = ctypes.c_int64 * len(types)
    function, data = (
        table.from_address(address)[position] if address else 0
        for address in (getattr(struct, field) for field in ("functions", "data"))
    )
    return function, data


def _leading_arguments(name: str, odd: str) -> Callable[[str], tuple[int, ...]]:
    """Make the ``leading_arguments`` function of a transform's provider.

    ``name`` is the ufunc for even lengths, ``odd`` that for odd ones.
    """

    def leading_arguments(dtype: str) -> tuple[int, ...]:
        """Return the first arguments of ``transform`` for operands of ``dtype``.

        They are the loops for even and for odd lengths (``name`` and ``odd``) with
        their data, and the bytes of an element of the operand and of the result. The
        result is complex, but for irfft.
        """
        kind = BY_SHORT_NAME[dtype]
        real_bytes = real_of(kind).itemsize
        output_bytes = real_bytes if name == "irfft" else 2 * real_bytes
        return *_loop(name, dtype), *_loop(odd, dtype), kind.itemsize, output_bytes

    return leading_arguments


def _unjitted(
    function: Callable[..., Any], transforms_back: bool
) -> Callable[..., None]:
    """Make the ``unjitted`` function of a transform from NumPy's ``function``.

    ``transforms_back`` says that it is an inverse, which NumPy by default divides by
    the length: the norm "forward" turns this off.
    """

    def run(arguments: Mapping[str, Any], items: int) -> None:
        """Transform all rows; ``arguments`` has the arguments by name."""
        names = "rows", "input_length", "output_length"
        rows, input_length, output_length = (int(arguments[name]) for name in names)
        x = arguments["x"].array((rows, input_length))
        out = arguments["transformed"].array((rows, output_length))
        bits = np.array([int(arguments["factor"])], np.int64)
        scale = bits.view(real_of(x.dtype))[0]
        length = output_length if transforms_back else input_length
        norm = "forward" if transforms_back else "backward"
        out[...] = function(x, length, norm=norm) * scale

    return run


PROVIDERS: Final = {
    name: Provider(transform, _leading_arguments(*loops), _unjitted(function, back))
    for name, loops, function, back in (
        ("fft", ("fft", "fft"), np.fft.fft, False),
        ("ifft", ("ifft", "ifft"), np.fft.ifft, True),
        ("rfft", ("rfft_n_even", "rfft_n_odd"), np.fft.rfft, False),
        ("irfft", ("irfft", "irfft"), np.fft.irfft, True),
    )
}
