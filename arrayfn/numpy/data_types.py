"""Data types as values: their names, limits and promotion."""

from __future__ import annotations

from dataclasses import dataclass
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
from arrayfn.tracing import ImmutableArray

bfloat16 = ml_dtypes.bfloat16
float8_e4m3fn = ml_dtypes.float8_e4m3fn
float8_e5m2 = ml_dtypes.float8_e5m2
int4 = ml_dtypes.int4
uint4 = ml_dtypes.uint4
bool = np.bool_
dtype = np.dtype
# NumPy's older names of them.
single = np.float32
double = np.float64
csingle = np.complex64
cdouble = np.complex128
int_ = np.int64
uint = np.uint64

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
    """The dtype that arrays, numbers and dtypes promote to."""
    pairs: list[tuple[DType, Any]] = []
    for x in arrays_and_dtypes:
        if isinstance(x, (ImmutableArray, Literal, np.ndarray, np.generic)) or (
            dtypes.is_python_scalar(x)
        ):
            type = ops.type_of_operand("result_type", x)
            pairs.append((type.dtype, type.weak))
        else:
            pairs.append((dtypes.canonical(x), False))
    return dtypes.promote(pairs)[0]


def can_cast(from_: Any, to: DTypeLike, casting: str = "safe") -> Any:
    """Whether ``from_`` (a dtype or an array) converts to ``to``.

    ``casting`` is one of NumPy's rules. "safe" means without loss.
    """
    given = from_.dtype if isinstance(from_, (ImmutableArray, np.ndarray)) else from_
    source, target = dtypes.canonical(given), dtypes.canonical(to)
    if casting != "safe":
        return np.can_cast(source, target, casting)  # pyright: ignore[reportArgumentType]
    return dtypes.promote([(source, False), (target, False)])[0] == target


def isdtype(dtype: DTypeLike, kind: Any) -> Any:
    """Whether ``dtype`` is of ``kind``: a dtype, a name, or a tuple of these.

    The kinds are the array API's: "bool", "signed integer", "unsigned integer",
    "integral", "real floating", "complex floating", "numeric".
    """
    if isinstance(kind, tuple):
        return any(isdtype(dtype, k) for k in kind)
    given = dtypes.canonical(dtype)
    if isinstance(kind, str) and kind in _KINDS:
        return given in _KINDS[kind]
    return given == dtypes.canonical(kind)


@dataclass(frozen=True, slots=True)
class FloatInfo:
    """The limits of a floating-point dtype, as Python numbers.

    ``eps`` is the distance from 1 to the next number. ``epsneg`` is the distance from 1
    to the previous number. ``smallest_normal`` (or ``tiny``) is the smallest normal
    number. ``resolution`` is the decimal resolution. ``nmant`` is the number of
    mantissa bits. ``minexp`` and ``maxexp`` bound the exponent. For a complex dtype,
    all of these describe its real and imaginary parts.
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


def finfo(dtype: Any) -> FloatInfo:
    """The limits of the floating-point dtype (also of an array): eps, max, tiny, ...

    >>> finfo("float32").eps
    1.1920928955078125e-07
    """
    given = dtype.dtype if isinstance(dtype, (ImmutableArray, np.ndarray)) else dtype
    kind = dtypes.real_of(dtypes.canonical(given))
    limits: Any = ml_dtypes.finfo(kind)
    return FloatInfo(
        kind,
        int(limits.bits),
        float(limits.eps),
        float(limits.epsneg),
        float(limits.max),
        float(limits.min),
        float(limits.smallest_normal),
        float(limits.smallest_subnormal),
        float(limits.resolution),
        int(limits.precision),
        int(limits.nmant),
        int(limits.minexp),
        int(limits.maxexp),
    )


def iinfo(int_type: Any) -> Any:
    """The limits of the integer dtype (also of an array): min, max, bits."""
    given = (
        int_type.dtype
        if isinstance(int_type, (ImmutableArray, np.ndarray))
        else int_type
    )
    kind = dtypes.canonical(given)
    return dtypes.limits(kind) if kind in dtypes.INT4 else np.iinfo(kind)


def iscomplexobj(x: Any) -> Any:
    """Whether x has a complex dtype after NumPy has converted it to an array."""
    if isinstance(x, ImmutableArray):
        return x.dtype in dtypes.COMPLEX
    if isinstance(x, (list, tuple)):
        return any(map(iscomplexobj, x))
    return np.iscomplexobj(x)


def isrealobj(x: Any) -> Any:
    """Whether x has a dtype that is not complex."""
    return not iscomplexobj(x)


def isscalar(element: Any) -> Any:
    """Whether ``element`` is a number of Python or NumPy, or an array without axes."""
    if isinstance(element, (ImmutableArray, np.ndarray)):
        return element.ndim == 0
    return isinstance(element, np.generic) or dtypes.is_python_scalar(element)


def issubdtype(arg1: Any, arg2: Any) -> Any:
    """Whether ``arg1``, a dtype or kind, is below ``arg2`` in NumPy's type hierarchy.

    >>> import numpy as np
    >>> issubdtype("float32", np.floating)
    True
    """
    if arg1 is dtypes.KEY:
        return arg2 is arg1 or (
            isinstance(arg2, type) and issubclass(dtypes.prng_key, arg2)
        )
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
"""What ml_dtypes' types count as, which are not in NumPy's hierarchy."""


def _ml_dtype(kind: Any) -> DType | None:
    """``kind`` as one of ml_dtypes' dtypes, None if it is another."""
    if isinstance(kind, type) and issubclass(kind, np.generic):
        return next((d for d in _ML_DTYPES if d.type is kind), None)
    try:
        given = dtypes.canonical(kind)
    except TypeError:
        return None
    return given if given in _ML_DTYPES else None


def promote_types(a: DTypeLike, b: DTypeLike) -> DType:
    """The dtype that two dtypes promote to."""
    return dtypes.promote([(dtypes.canonical(a), False), (dtypes.canonical(b), False)])[
        0
    ]


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
