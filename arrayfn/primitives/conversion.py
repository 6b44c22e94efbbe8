"""Changes of dtype, by value (``convert``) and by bits (``bitcast``)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from arrayfn import dtypes
from arrayfn.dtypes import DType, PythonScalar
from arrayfn.errors import DTypeError
from arrayfn.ir import ArrayType, Atom, Literal
from arrayfn.primitives import emitters
from arrayfn.primitives.base import (
    NOT_LINEAR,
    ZERO_TANGENT,
    Array,
    Convert,
    Primitive,
    Sample,
    Scalar,
)
from arrayfn.primitives.families import random_array
from arrayfn.primitives.rules import batched_along, jvp_alone, transposed_first


def literal(value: PythonScalar, dtype: DType) -> Literal:
    """Return the Literal of ``value`` as ``dtype``.

    Converts the number to the Python type of the dtype's kind: complex, bool, int or
    float.
    """
    if dtype in dtypes.COMPLEX:
        return Literal(complex(value), dtype)
    assert not isinstance(value, complex)
    if dtype == dtypes.bool_:
        return Literal(bool(value), dtype)
    is_integer = dtype in dtypes.INTEGERS or dtype in dtypes.INT4
    return Literal(int(value) if is_integer else float(value), dtype)


def convert(x: Atom, dtype: DType) -> Atom:
    """Convert ``x`` to ``dtype``, without weak type.

    Returns ``x`` itself if it has that type. Converts a Literal at once, without an
    equation, except from complex to real, for which the type rule raises an error.
    """
    if x.type.dtype == dtype and not x.type.weak:
        return x
    keeps_kind = dtype in dtypes.COMPLEX or x.type.dtype not in dtypes.COMPLEX
    if isinstance(x, Literal) and keeps_kind:
        return literal(_reference(np.asarray(x.value), dtype=dtype).item(), dtype)
    return convert_element_type(x, dtype=dtype)


def as_dtype(x: Atom, dtype: DType) -> Atom:
    """Convert ``x`` to ``dtype``, unless it is of that dtype, even with a weak type."""
    return x if x.type.dtype == dtype else convert(x, dtype)


def _types(
    x: ArrayType, *, dtype: DType, weak: bool = False, excess: bool = False
) -> ArrayType:
    """Type rule: the operand's shape with ``dtype``.

    Raises DTypeError from complex to real numbers. ``weak`` gives the result a weak
    type. ``excess`` allows the compiler to skip the rounding to 16 bits before this
    conversion to float32; it does not change the type.
    """
    if x.dtype in dtypes.COMPLEX and dtype not in dtypes.COMPLEX:
        raise DTypeError(
            f"a complex array ({x}) does not convert to "
            f"{dtypes.short_name(dtype)}; take its real part first"
        )
    return ArrayType(x.shape, dtype, weak=weak)


def _reference(
    x: Array, *, dtype: DType, weak: bool = False, excess: bool = False
) -> Array:
    """Convert ``x`` to ``dtype``; truncate and clamp floats that become integers."""
    x = np.asarray(x)
    with np.errstate(all="ignore"):
        if x.dtype in dtypes.INT4 or x.dtype in dtypes.FLOAT8:
            # NumPy converts these dtypes only to int8 and float32, which hold all of
            # their numbers.
            x = x.astype(dtypes.int8 if x.dtype in dtypes.INT4 else dtypes.float32)
        if x.dtype in dtypes.FLOATS and (
            dtype in dtypes.INTEGERS or dtype in dtypes.INT4
        ):
            return _to_integer(x.astype(dtypes.float64), dtype)
        if dtype in dtypes.FLOAT8 and x.dtype not in dtypes.FLOATS:
            x = x.astype(dtypes.float64)
        return x.astype(dtype)


def _to_integer(x: Array, dtype: DType) -> Array:
    """Truncate float64 ``x`` to integers, clamp to the range of ``dtype``; NaN is 0."""
    # Outside the integer's range, the result of ``astype`` depends on the machine, so
    # these elements are zeroed before and set afterwards.
    limits = dtypes.limits(dtype)
    # limits.max (as 2**63 - 1) need not be exact as a float, but limits.max + 1 is.
    is_above, is_below = x >= float(int(limits.max) + 1), x <= float(limits.min)
    inside = np.where(is_above | is_below | np.isnan(x), 0.0, x)
    inside = inside.astype(dtypes.int8 if dtype in dtypes.INT4 else dtype)
    return np.where(
        is_above, limits.max, np.where(is_below, limits.min, inside)
    ).astype(dtype)


def _jvp(
    x: Atom, y: Atom, t: Atom, *, dtype: DType, weak: bool = False, **params: Any
) -> list[Atom | None]:
    """The jvp rule: ``d convert(x) = convert(dx)``; None for integers and bools."""
    if dtype not in dtypes.DIFFERENTIABLE:
        return [None]
    return [convert_element_type(t, dtype=dtype, **params)]


def _transpose(ct: Atom, type: ArrayType, *, dtype: DType, **params: Any) -> Atom:
    """Transpose rule: ``ct_x = convert(ct)``.

    If ``x`` is real and the result complex, the real part of ``ct`` is converted.
    """
    if dtype in dtypes.COMPLEX and type.dtype not in dtypes.COMPLEX:
        ct = emitters.real(ct)
    return convert(ct, type.dtype)


def _samples() -> Iterable[Sample]:
    """Yield conversions between all pairs of dtypes, for the table tests."""
    for source in dtypes.SHORT_NAMES:
        for target in dtypes.SHORT_NAMES:
            if source in dtypes.COMPLEX and target not in dtypes.COMPLEX:
                continue
            pair = {source, target}
            # Of storage types, only conversions to float32, from it and among them.
            if pair & dtypes.STORAGE and pair - dtypes.STORAGE - {dtypes.float32}:
                continue
            low = 0.0 if target in dtypes.UNSIGNED else -3.0
            x = random_array(source, (3, 5), 11, low, 3.0)
            # The steps of a rounding to float8 hide its derivative.
            wrt = () if target in dtypes.FLOAT8 else None
            yield Sample((x,), {"dtype": target}, differentiate=wrt)
    for source in (dtypes.float16, dtypes.bfloat16):
        x = random_array(source, (3, 5), 11)
        yield Sample((x,), {"dtype": dtypes.float32, "excess": True})


convert_element_type = Primitive(
    name="convert",
    family="conversion",
    types=_types,
    reference=_reference,
    kernel=Convert(),
    jvp=jvp_alone(_jvp),
    transpose=transposed_first(_transpose),
    batch=batched_along(emitters.Emitter("convert")),
    samples=_samples,
    doc="Converts values. Floats are truncated to integers and clamped to their range; "
    "NaN becomes 0. Numbers become bools by x != 0. weak: the result still gives way "
    "in promotion, as a Python number does. excess: a 16-bit float that the same "
    "kernel computes need not be rounded before.",
)


def _bitcast_types(x: ArrayType, *, dtype: DType) -> ArrayType:
    """Type rule: the operand's shape with ``dtype``, which has the same width."""
    if x.dtype.itemsize != dtype.itemsize:
        raise DTypeError(
            f"bitcast keeps the width, but {x} has {x.dtype.itemsize} bytes an element "
            f"and {dtypes.short_name(dtype)} {dtype.itemsize}"
        )
    return ArrayType(x.shape, dtype)


def _bitcast_samples() -> Iterable[Sample]:
    """Yield casts of floats to integers and back, for the table tests."""
    for source, target in (
        (dtypes.float32, dtypes.int32),
        (dtypes.float32, dtypes.uint32),
        (dtypes.int32, dtypes.float32),
        (dtypes.float64, dtypes.int64),
        (dtypes.uint64, dtypes.float64),
    ):
        x = random_array(source, (3, 5), 12, 0.0, 3.0)
        yield Sample((x,), {"dtype": target}, differentiate=())


bitcast = Primitive(
    name="bitcast",
    family="conversion",
    types=_bitcast_types,
    reference=lambda x, dtype: np.array(x).view(dtype),
    kernel=Scalar("bitcast"),
    jvp=ZERO_TANGENT,
    transpose=NOT_LINEAR,
    batch=batched_along(emitters.Emitter("bitcast")),
    samples=_bitcast_samples,
    doc="The same bits read as another dtype of the same width.",
)
