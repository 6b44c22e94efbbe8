"""Elementwise functions with zero derivatives: rounding, comparison, bits.

As functions of floating-point numbers they are piecewise constant.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from arrayfn import dtypes
from arrayfn.dtypes import DType
from arrayfn.primitives.base import ZERO_TANGENT, Primitive
from arrayfn.primitives.families import boolean, elementwise


def _step(
    name: str,
    reference: Callable[..., Any],
    accepts: frozenset[DType],
    doc: str,
    **options: Any,
) -> Primitive:
    """Make an elementwise Primitive whose derivative is zero.

    ``reference`` is the NumPy function, and ``accepts`` the dtypes that the primitive
    takes. ``options`` are further arguments of ``elementwise``.
    """
    return elementwise(
        name, reference, ZERO_TANGENT, accepts=accepts, doc=doc, **options
    )


# Rounding.

floor = _step("floor", np.floor, dtypes.FLOATS, "The largest integer not above.")
ceil = _step("ceil", np.ceil, dtypes.FLOATS, "The smallest integer not below.")
trunc = _step("trunc", np.trunc, dtypes.FLOATS, "The nearest integer towards 0.")
round = _step("round", np.rint, dtypes.FLOATS, "The nearest integer, ties to even.")

# Comparison and classification.


def _predicate(
    name: str,
    reference: Callable[..., Any],
    accepts: frozenset[DType],
    doc: str,
    arity: int = 1,
) -> Primitive:
    """Make an elementwise Primitive with a bool result, of ``arity`` operands."""
    return _step(name, reference, accepts, doc, arity=arity, result=boolean)


def _comparison(name: str, reference: Callable[..., Any], doc: str) -> Primitive:
    """Make an elementwise Primitive that compares two real numbers or bools."""
    return _predicate(name, reference, dtypes.REALS | {dtypes.bool_}, doc, arity=2)


_COMPARED = frozenset(dtypes.COMPUTED)

eq = _predicate(
    "eq",
    np.equal,
    _COMPARED,
    "Whether the operands are equal; NaN equals nothing.",
    arity=2,
)
ne = _predicate("ne", np.not_equal, _COMPARED, "Whether the operands differ.", arity=2)
lt = _comparison("lt", np.less, "Whether the first operand is less.")
le = _comparison("le", np.less_equal, "Whether the first operand is less or equal.")
gt = _comparison("gt", np.greater, "Whether the first operand is greater.")
ge = _comparison(
    "ge", np.greater_equal, "Whether the first operand is greater or equal."
)
isfinite = _predicate(
    "isfinite", np.isfinite, dtypes.INEXACT, "Whether neither infinite nor NaN."
)
isinf = _predicate("isinf", np.isinf, dtypes.INEXACT, "Whether infinite.")
isnan = _predicate("isnan", np.isnan, dtypes.INEXACT, "Whether NaN.")
signbit = _predicate(
    "signbit",
    np.signbit,
    dtypes.FLOATS,
    "Whether the sign bit is set: also of -0.0 and of negative NaN.",
)


# Bits.


def _population_count(x: Any) -> Any:
    """Return the number of set bits of each integer of ``x``, in the dtype of ``x``."""
    unsigned = np.asarray(x).view(np.dtype(f"u{x.dtype.itemsize}"))
    return np.bitwise_count(unsigned).astype(x.dtype)


def _leading_zeros(x: Any) -> Any:
    """Return the number of zero bits above the highest set bit of each integer.

    Begins with the width in bits, and subtracts 1 for each shift by 1 that an integer
    needs to become 0.
    """
    bits = x.dtype.itemsize * 8
    shifted = np.array(np.asarray(x).view(np.dtype(f"u{x.dtype.itemsize}")))
    zeros = np.full(shifted.shape, bits, x.dtype)
    while shifted.any():
        zeros = np.where(shifted != 0, zeros - 1, zeros).astype(x.dtype)
        shifted >>= 1
    return zeros


def _shift_right_logical(x: Any, y: Any) -> Any:
    """Shift ``x`` right by ``y`` bits as if unsigned: zeros come in from the left."""
    unsigned = np.dtype(f"u{np.asarray(x).dtype.itemsize}")
    shifted = np.right_shift(np.asarray(x).view(unsigned), np.asarray(y).view(unsigned))
    return np.asarray(shifted).view(np.asarray(x).dtype)


bitwise_and = _step(
    "and",
    np.bitwise_and,
    dtypes.BITS,
    "The bitwise (of bools: logical) and.",
    arity=2,
)
bitwise_or = _step(
    "or",
    np.bitwise_or,
    dtypes.BITS,
    "The bitwise (of bools: logical) or.",
    arity=2,
)
bitwise_xor = _step(
    "xor",
    np.bitwise_xor,
    dtypes.BITS,
    "The bitwise (of bools: logical) exclusive or.",
    arity=2,
)
bitwise_not = _step(
    "not",
    np.bitwise_not,
    dtypes.BITS,
    "The bitwise (of bools: logical) complement.",
)
shift_left = _step(
    "shift_left",
    np.left_shift,
    dtypes.INTEGERS,
    "x * 2**y, wrapping; 0 for a count outside the width.",
    arity=2,
    domain=(0.0, 2.0),
)
shift_right_arithmetic = _step(
    "shift_right_arithmetic",
    np.right_shift,
    dtypes.INTEGERS,
    "The floor of x / 2**y; a count outside the width shifts all bits out.",
    function="shift_right",
    arity=2,
    domain=(0.0, 2.0),
)
shift_right_logical = _step(
    "shift_right_logical",
    _shift_right_logical,
    dtypes.INTEGERS,
    "x shifted right, filled with zeros; 0 for a count outside the width.",
    arity=2,
    domain=(0.0, 2.0),
)
population_count = _step(
    "population_count",
    _population_count,
    dtypes.INTEGERS,
    "The number of bits set.",
    function="popcount",
)
clz = _step(
    "clz",
    _leading_zeros,
    dtypes.INTEGERS,
    "The number of zero bits above the highest set.",
)
