"""Data types as values: their names, limits and promotion."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy import (
    bool_,
    complex64,
    complex128,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)

from arrayfn import dtypes
from arrayfn.dtypes import DType
from arrayfn.ir import Literal
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import DTypeLike
from arrayfn.records import frozen
from arrayfn.tracing import ImmutableArray

bfloat16 = ml_dtypes.bfloat16
float8_e4m3fn = ml_dtypes.float8_e4m3fn
float8_e5m2 = ml_dtypes.float8_e5m2
int4 = ml_dtypes.int4
uint4 = ml_dtypes.uint4
bool = np.bool_
dtype = np.dtype
# NumPy's older names of these dtypes.
single = np.float32
double = np.float64
csingle = np.complex64
cdouble = np.complex128
int_ = np.int64
uint = np.uint64

# The dtypes of each kind of the array API (see ``isdtype``).
_KINDS = {
    "bool": frozenset({dtypes.bool_}),
    "signed integer": dtypes.SIGNED | {dtypes.int4},
    "unsigned integer": dtypes.UNSIGNED | {dtypes.uint4},
    "integral": dtypes.INTEGERS | dtypes.INT4,
    "real floating": dtypes.FLOATS | dtypes.FLOAT8,
    "complex floating": dtypes.COMPLEX,
    "numeric": dtypes.ALL - {dtypes.bool_},
}


def result_type(*arrays_and_dtypes: Any) -> DType:
    """Return the dtype that arrays, numbers and dtypes promote to.

    Python numbers give way to the dtypes of arrays (NEP 50).
    """
    pairs: list[tuple[DType, Any]] = []
    for x in arrays_and_dtypes:
        if isinstance(x, (ImmutableArray, Literal, np.ndarray, np.generic)) or (
            dtypes.is_python_scalar(x)
        ):
            type = ops.type_of_operand("result_type", x)
            pairs.append((type.dtype, type.weak))
        else:
            pairs.append((dtypes.canonical(x), False))
    dtype, _ = dtypes.promote(pairs)
    return dtype


def can_cast(from_: Any, to: DTypeLike, casting: str = "safe") -> Any:
    """Return whether ``from_`` (a dtype or an array) converts to ``to``, a bool.

    ``casting`` is one of NumPy's rules: "no", "equiv", "safe", "same_kind" or "unsafe".
    "safe" means that both promote to ``to``.
    """
    source, target = _dtype_of(from_), dtypes.canonical(to)
    if casting != "safe":
        return np.can_cast(source, target, casting)  # pyright: ignore[reportArgumentType]
    promoted, _ = dtypes.promote([(source, False), (target, False)])
    return promoted == target


def isdtype(dtype: DTypeLike, kind: Any) -> Any:
    """Return whether ``dtype`` is of ``kind``: a dtype, a name, or a tuple of these.

    The kinds are the array API's: "bool", "signed integer", "unsigned integer",
    "integral", "real floating", "complex floating", "numeric".
    """
    if isinstance(kind, tuple):
        return any(isdtype(dtype, k) for k in kind)
    canonical = dtypes.canonical(dtype)
    if isinstance(kind, str) and kind in _KINDS:
        return canonical in _KINDS[kind]
    return canonical == dtypes.canonical(kind)


@frozen(slots=True)
class FloatInfo:
    """The limits of a floating-point dtype, as Python numbers.

    ``eps`` is the distance from 1 to the next number. ``epsneg`` is the distance from 1
    to the previous number. ``smallest_normal`` (or ``tiny``) is the smallest normal
    number. ``resolution`` is 10**-``precision``, and ``precision`` the number of
    reliable decimal digits. ``nmant`` is the number of mantissa bits. ``minexp`` and
    ``maxexp`` bound the exponent. For a complex dtype, all of these describe its real
    and imaginary parts.
    """

    dtype: DType
    bits: int
    eps: float
    epsneg: float
    max: float
    min: float
    smallest_normal: float
    smallest_subnormal: float
    resolution: float
    precision: int
    nmant: int
    minexp: int
    maxexp: int

    @property
    def tiny(self) -> float:
        """``smallest_normal``, under NumPy's older name."""
        return self.smallest_normal


def _dtype_of(x: Any) -> DType:
    """Return the dtype that x is, or that an array x has."""
    return dtypes.canonical(x.dtype if ops.is_array(x) else x)


def finfo(dtype: Any) -> FloatInfo:
    """Return the limits of a floating-point dtype, or of the dtype of an array.

    >>> finfo("float32").eps
    1.1920928955078125e-07
    """
    kind = dtypes.real_of(_dtype_of(dtype))
    limits: Any = ml_dtypes.finfo(kind)
    return FloatInfo(
        dtype=kind,
        bits=int(limits.bits),
        eps=float(limits.eps),
        epsneg=float(limits.epsneg),
        max=float(limits.max),
        min=float(limits.min),
        smallest_normal=float(limits.smallest_normal),
        smallest_subnormal=float(limits.smallest_subnormal),
        resolution=float(limits.resolution),
        precision=int(limits.precision),
        nmant=int(limits.nmant),
        minexp=int(limits.minexp),
        maxexp=int(limits.maxexp),
    )


def iinfo(int_type: Any) -> Any:
    """Return the limits of an integer dtype, or of the dtype of an array.

    The result has ``min``, ``max`` and ``bits``.
    """
    kind = _dtype_of(int_type)
    return dtypes.limits(kind) if kind in dtypes.INT4 else np.iinfo(kind)


def iscomplexobj(x: Any) -> Any:
    """Return whether x, an array, a number or a list of them, has a complex dtype."""
    if isinstance(x, ImmutableArray):
        return x.dtype in dtypes.COMPLEX
    if isinstance(x, (list, tuple)):
        return any(map(iscomplexobj, x))
    return np.iscomplexobj(x)


def isrealobj(x: Any) -> Any:
    """Return whether x, an array, a number or a list of them, has a real dtype."""
    return not iscomplexobj(x)


def isscalar(element: Any) -> Any:
    """Return whether ``element`` is a number, or an array without axes.

    The number may be Python's or NumPy's.
    """
    if ops.is_array(element):
        return element.ndim == 0
    return isinstance(element, np.generic) or dtypes.is_python_scalar(element)


def issubdtype(arg1: Any, arg2: Any) -> Any:
    """Return whether ``arg1``, a dtype or kind, is below ``arg2`` in the hierarchy.

    The hierarchy is that of NumPy's scalar types, such as ``np.floating``. bfloat16 and
    float8 count as floating, int4 and uint4 as integers.

    >>> import numpy as np
    >>> issubdtype("float32", np.floating)
    True
    """
    if arg1 is dtypes.KEY:
        return arg2 is arg1 or (
            isinstance(arg2, type) and issubclass(dtypes.prng_key, arg2)
        )
    # NumPy's hierarchy lacks the dtypes of ml_dtypes, so handle these here.
    first, second = (_ml_dtype(arg) for arg in (arg1, arg2))
    if first is None and second is None:
        return np.issubdtype(arg1, arg2)
    if first is not None and second is None and isinstance(arg2, type):
        return issubclass(_ML_DTYPES[first], arg2)
    return first == second


_ML_DTYPES = {
    dtypes.bfloat16: np.floating,
    dtypes.float8_e4m3fn: np.floating,
    dtypes.float8_e5m2: np.floating,
    dtypes.int4: np.signedinteger,
    dtypes.uint4: np.unsignedinteger,
}
"""The kind in NumPy's hierarchy of each dtype of ml_dtypes."""


def _ml_dtype(kind: Any) -> DType | None:
    """Return ``kind`` as a dtype of ml_dtypes, or None if it is none of them."""
    if isinstance(kind, type) and issubclass(kind, np.generic):
        return next((d for d in _ML_DTYPES if d.type is kind), None)
    try:
        canonical = dtypes.canonical(kind)
    except TypeError:
        return None
    return canonical if canonical in _ML_DTYPES else None


def promote_types(a: DTypeLike, b: DTypeLike) -> DType:
    """Return the dtype that two dtypes promote to."""
    pairs = [(dtypes.canonical(a), False), (dtypes.canonical(b), False)]
    dtype, _ = dtypes.promote(pairs)
    return dtype


__all__ = [
    "FloatInfo",
    "bfloat16",
    "bool",
    "bool_",
    "can_cast",
    "cdouble",
    "complex64",
    "complex128",
    "csingle",
    "double",
    "dtype",
    "finfo",
    "float8_e4m3fn",
    "float8_e5m2",
    "float16",
    "float32",
    "float64",
    "iinfo",
    "int4",
    "int8",
    "int16",
    "int32",
    "int64",
    "int_",
    "iscomplexobj",
    "isdtype",
    "isrealobj",
    "isscalar",
    "issubdtype",
    "promote_types",
    "result_type",
    "single",
    "uint",
    "uint4",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
]
