"""Addresses of arrays and of C functions."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np


def address_of(array: np.ndarray[Any, Any]) -> int:
    """Return the address of the first element of ``array``."""
    return int(array.__array_interface__["data"][0])


def function_address(function: Any) -> int:
    """Return the address of a ctypes function."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0
