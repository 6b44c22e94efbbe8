"""NumPy's own sorts, by address: ``PyArray_ArrFuncs``, a table for each dtype.

They take an address and a count, and touch no Python object. Those of 32 and 64 bits
are the vectorised quicksorts behind ``np.sort``, those of 8 and 16 bits radix sorts.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Final, TypeAlias

from arrayfn.backends.native.python_objects import numpy_api
from arrayfn.backends.native.structures import Array, i32
from arrayfn.dtypes import DType

NumpySort: TypeAlias = Callable[[Array[int], int, None], i32]
NumpyArgsort: TypeAlias = Callable[[Array[int], Array[int], int, None], i32]

API_GET_FUNCTIONS: Final = 365  # a position in NumPy's table of C functions
SORT: Final = 33  # positions in a dtype's table: quick, heap, stable
ARGSORT: Final = 36
QUICK: Final = 0
STABLE: Final = 2


@cache
def sort_function(dtype: DType, position: int) -> int:
    """The address of one of the functions in a dtype's table."""
    get = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object)(
        numpy_api(API_GET_FUNCTIONS)
    )
    table = (ctypes.c_int64 * (position + 1)).from_address(get(dtype))
    return table[position]
