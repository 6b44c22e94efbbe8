"""Data types: NumPy dtypes, their short names, and promotion.

A data type is a ``numpy.dtype``. float16 and bfloat16 (from ml_dtypes) are stored in 16
bits and computed in float32. Promotion follows NumPy 2 (NEP 50 and the array API's
table). bfloat16, which NumPy does not know, stays bfloat16 with integers and bools, as
in JAX.

float8_e4m3fn, float8_e5m2, int4 and uint4 (from ml_dtypes, one byte an element) are
*storage types*. You can move, convert and multiply arrays of these types, but the
result of a product has another dtype. They do not promote. All other arithmetic on them
raises DTypeError.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from functools import cache
from typing import Any, Final

import ml_dtypes
import numpy as np
from typing_extensions import override

from arrayfn.errors import DTypeError, user_location

DType = np.dtype[Any]
PythonScalar = bool | int | float | complex

bool_: Final[DType] = np.dtype(np.bool_)
int4: Final[DType] = np.dtype(ml_dtypes.int4)
uint4: Final[DType] = np.dtype(ml_dtypes.uint4)
float8_e4m3fn: Final[DType] = np.dtype(ml_dtypes.float8_e4m3fn)
float8_e5m2: Final[DType] = np.dtype(ml_dtypes.float8_e5m2)
int8: Final[DType] = np.dtype(np.int8)
int16: Final[DType] = np.dtype(np.int16)
int32: Final[DType] = np.dtype(np.int32)
int64: Final[DType] = np.dtype(np.int64)
uint8: Final[DType] = np.dtype(np.uint8)
uint16: Final[DType] = np.dtype(np.uint16)
uint32: Final[DType] = np.dtype(np.uint32)
uint64: Final[DType] = np.dtype(np.uint64)
float16: Final[DType] = np.dtype(np.float16)
bfloat16: Final[DType] = np.dtype(ml_dtypes.bfloat16)
float32: Final[DType] = np.dtype(np.float32)
float64: Final[DType] = np.dtype(np.float64)
complex64: Final[DType] = np.dtype(np.complex64)
complex128: Final[DType] = np.dtype(np.complex128)

SHORT_NAMES: Final[dict[DType, str]] = {
    bool_: "bool",
    int8: "i8",
    int16: "i16",
    int32: "i32",
    int64: "i64",
    uint8: "u8",
    uint16: "u16",
    uint32: "u32",
    uint64: "u64",
    float16: "f16",
    bfloat16: "bf16",
    float32: "f32",
    float64: "f64",
    complex64: "c64",
    complex128: "c128",
    int4: "i4",
    uint4: "u4",
    float8_e4m3fn: "f8e4m3fn",
    float8_e5m2: "f8e5m2",
}
BY_SHORT_NAME: Final[dict[str, DType]] = {name: d for d, name in SHORT_NAMES.items()}


class extended(np.generic):  # noqa: N801 - JAX's name
    """The class of dtypes that NumPy does not have, for ``issubdtype``."""


class prng_key(extended):  # noqa: N801 - JAX's name
    """The class of ``key_dtype``, for ``issubdtype(x.dtype, dtypes.prng_key)``."""


class KeyDType:
    """The data type of keys of random numbers; ``KEY`` is the only one.

    An element has the two uint32 words of a key. Elements can be moved and compared,
    but not computed with. NumPy has no such dtype.
    """

    name: Final = "key<fry>"
    type: Final = prng_key
    itemsize: Final = 8
    kind: Final = "V"

    @override
    def __repr__(self) -> str:
        """Return the name."""
        return self.name

    @override
    def __reduce__(self) -> str:
        """Pickle as the module's variable ``KEY``, the only instance."""
        return "KEY"


KEY: Final[Any] = KeyDType()


SIGNED: Final = frozenset({int8, int16, int32, int64})
UNSIGNED: Final = frozenset({uint8, uint16, uint32, uint64})
INTEGERS: Final = SIGNED | UNSIGNED
HALF_PRECISION: Final = frozenset({float16, bfloat16})
FLOATS: Final = HALF_PRECISION | {float32, float64}
COMPLEX: Final = frozenset({complex64, complex128})
INEXACT: Final = FLOATS | COMPLEX
INT4: Final = frozenset({int4, uint4})
FLOAT8: Final = frozenset({float8_e4m3fn, float8_e5m2})
STORAGE: Final = INT4 | FLOAT8
DIFFERENTIABLE: Final = INEXACT | FLOAT8
ALL: Final = frozenset(SHORT_NAMES)
COMPUTED: Final = tuple(d for d in SHORT_NAMES if d not in STORAGE)
"""The dtypes that kernels compute in: all but the storage types."""
NUMBERS: Final = INTEGERS | INEXACT
REALS: Final = INTEGERS | FLOATS
BITS: Final = INTEGERS | {bool_}

_REAL_OF: Final = {complex64: float32, complex128: float64}
_COMPLEX_OF: Final = {float32: complex64, float64: complex128}
_WEAK_DTYPES: Final[dict[type, DType]] = {
    bool: bool_,
    int: int64,
    float: float64,
    complex: complex128,
}


def canonical(dtype: Any) -> DType:
    """Return the supported dtype for ``dtype``: a NumPy dtype, a type or a name.

    Byte order becomes native. Raises DTypeError for dtypes that arrayfn does not have.

    >>> canonical("float32")
    dtype('float32')
    """
    if isinstance(dtype, str) and dtype == "bfloat16":
        return bfloat16
    if dtype is KEY:
        return KEY
    try:
        found = np.dtype(dtype)
    except TypeError:
        raise _unknown(dtype) from None
    found = found.newbyteorder("=") if not found.isnative else found
    if found not in SHORT_NAMES:
        raise _unknown(dtype)
    return found


def check_numeric(dtype: DType) -> None:
    """Raise DTypeError for the dtype of keys, because no number converts to a key."""
    if dtype is KEY:
        raise DTypeError(
            "numbers do not convert to key<fry>; make a key from a seed, "
            "random.key(seed), or from its words, random.wrap_key_data(words)",
            user_location(),
        )


def storage_error(name: str, dtype: DType) -> DTypeError:
    """Return the error of an operation ``name`` on arrays of a storage type."""
    wide = "int8" if dtype in INT4 else "float32"
    return DTypeError(
        f"{name} takes no arrays of {short_name(dtype)}, which is for storage; convert "
        f"them first: x.astype({wide!r})",
        user_location(),
    )


def _unknown(dtype: Any) -> TypeError:
    """Return the error for a ``dtype`` that arrayfn does not have.

    The message suggests a similar name, or a tuple for an integer in place of a dtype.
    """
    known = [each.name for each in SHORT_NAMES]
    message = f"arrayfn has no data type {dtype!r}; it has {', '.join(known)}"
    if isinstance(dtype, str):
        near = difflib.get_close_matches(dtype, known, 1)
        message += "".join(f". Did you mean {name!r}?" for name in near)
    elif isinstance(dtype, int):
        message += ". Write a shape as a tuple: zeros((3, 4)), not zeros(3, 4)"
    return DTypeError(message, user_location())


def short_name(dtype: DType) -> str:
    """Return the name of ``dtype`` in Programs and kernels: ``f32`` for float32."""
    return KEY.name if dtype is KEY else SHORT_NAMES[dtype]


def real_of(dtype: DType) -> DType:
    """Return the dtype of the real part of ``dtype``, which may be ``dtype`` itself."""
    return _REAL_OF.get(dtype, dtype)


def complex_of(dtype: DType) -> DType:
    """Return the complex dtype with parts of ``dtype``; other dtypes stay."""
    return _COMPLEX_OF.get(dtype, dtype)


def widest(dtype: DType) -> DType:
    """Return complex128 for a complex ``dtype``, else float64."""
    return complex128 if dtype in COMPLEX else float64


def limits(dtype: DType) -> Any:
    """Return the limits of an integer or real floating-point dtype: finfo or iinfo."""
    is_float = dtype in FLOATS or dtype in FLOAT8
    return ml_dtypes.finfo(dtype) if is_float else ml_dtypes.iinfo(dtype)


def compute_dtype(dtype: DType) -> DType:
    """Return the dtype in which kernels compute: float32 for float16 and bfloat16."""
    return float32 if dtype in HALF_PRECISION else dtype


def is_python_scalar(value: object) -> bool:
    """Return whether ``value`` is a Python bool, int, float or complex.

    Instances of subclasses, such as ``IntEnum``, count, but NumPy's scalars do not.
    """
    return type(value) in _WEAK_DTYPES or (
        isinstance(value, (int, float, complex)) and not isinstance(value, np.generic)
    )


def plain_scalar(value: Any) -> PythonScalar:
    """Convert ``value`` to a plain bool, int, float or complex."""
    return value if type(value) in _WEAK_DTYPES else _scalar_class(value)(value)


def weak_dtype(value: PythonScalar) -> DType:
    """Return the dtype of a Python scalar if no other operand decides it."""
    found = _WEAK_DTYPES.get(type(value))
    return _WEAK_DTYPES[_scalar_class(value)] if found is None else found


def _scalar_class(value: object) -> type[int | float | complex]:
    """Return the built-in class that the class of ``value`` is derived from."""
    if isinstance(value, int):
        return int
    return float if isinstance(value, float) else complex


def _rank(dtype: DType) -> int:
    """Return the place of a dtype's kind in promotion.

    It is 0 for bool, 1 for integers, 2 for floats, and 3 for complex numbers.
    """
    if dtype == bool_:
        return 0
    if dtype in INTEGERS or dtype in INT4:
        return 1
    return 3 if dtype in COMPLEX else 2


def promote(typed: Iterable[tuple[DType, bool]]) -> tuple[DType, bool]:
    """Promote (dtype, weak) pairs; the result is weak if all pairs are.

    A weak dtype, which is that of a Python scalar, yields to any other dtype of its
    kind or a higher kind.

    >>> promote([(float32, False), (float64, True)])
    (dtype('float32'), False)
    >>> promote([(int32, False), (float64, True)])
    (dtype('float64'), False)
    """
    return _promoted(tuple(typed))


@cache
def _promoted(pairs: tuple[tuple[DType, bool], ...]) -> tuple[DType, bool]:
    """Compute ``promote`` of ``pairs``, once for each tuple."""
    strong = [d for d, weak in pairs if not weak]
    weak = [d for d, is_weak in pairs if is_weak]
    if not strong:
        return max(weak, key=_rank), True
    result = strong[0]
    for dtype in strong[1:]:
        result = _promote_two(result, dtype)
    for dtype in weak:
        # Raises the error for keys.
        if result is KEY:
            _promote_two(result, dtype)
        if _rank(dtype) <= _rank(result):
            continue
        if result in STORAGE:
            raise storage_error("promotion to a common dtype", result)
        if dtype == complex128 and result in FLOATS:
            result = complex_of(compute_dtype(result))
        else:
            result = dtype
    return result, False


def _promote_two(a: DType, b: DType) -> DType:
    """Return the dtype that two dtypes promote to.

    Raises DTypeError for keys and storage types with another dtype.
    """
    if a == b:
        return a
    if KEY in (a, b):
        raise DTypeError(
            f"keys do not promote with {b if a is KEY else a}: random.split(key) and "
            "random.fold_in(key, n) make other keys, and random.key_data(key) gives a "
            "key's words",
            user_location(),
        )
    if frozenset((a, b)) == HALF_PRECISION:
        return float32
    if bfloat16 in (a, b) and {a, b} & (INTEGERS | {bool_}):
        return bfloat16
    for dtype in (a, b):
        if dtype in STORAGE:
            raise storage_error("promotion to a common dtype", dtype)
    return canonical(np.promote_types(a, b))
