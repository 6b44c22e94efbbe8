"""Elementwise functions with zero derivatives: rounding, comparison, bits.

As functions of floating-point numbers they are piecewise constant.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from arrayfn import dtypes
from arrayfn.primitives.base import ZERO_TANGENT, Primitive
from arrayfn.primitives.families import boolean, elementwise

_BITS = dtypes.INTEGERS | {dtypes.bool_}

# Rounding.

floor = elementwise(
    "floor",
    np.floor,
    ZERO_TANGENT,
    accepts=dtypes.FLOATS,
    doc="The largest integer not above.",
)
ceil = elementwise(
    "ceil",
    np.ceil,
    ZERO_TANGENT,
    accepts=dtypes.FLOATS,
    doc="The smallest integer not below.",
)
trunc = elementwise(
    "trunc",
    np.trunc,
    ZERO_TANGENT,
    accepts=dtypes.FLOATS,
    doc="The nearest integer towards 0.",
)
round = elementwise(
    "round",
    np.rint,
    ZERO_TANGENT,
    accepts=dtypes.FLOATS,
    doc="The nearest integer, ties to even.",
)


# Comparison and classification.


def _predicate(
    name: str, reference: Any, accepts: frozenset[Any], doc: str, arity: int = 1
) -> Primitive:
    """A function with a bool result."""
    return elementwise(
        name,
        reference,
        ZERO_TANGENT,
        arity=arity,
        accepts=accepts,
        result=boolean,
        doc=doc,
    )


def _comparison(name: str, reference: Any, doc: str) -> Primitive:
    """A comparison of ordered numbers."""
    return _predicate(name, reference, dtypes.ALL - dtypes.COMPLEX, doc, arity=2)


eq = _predicate(
    "eq",
    np.equal,
    dtypes.ALL,
    "Whether the operands are equal; NaN equals nothing.",
    arity=2,
)
ne = _predicate("ne", np.not_equal, dtypes.ALL, "Whether the operands differ.", arity=2)
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
    unsigned = np.asarray(x).view(np.dtype(f"u{x.dtype.itemsize}"))
    return np.bitwise_count(unsigned).astype(x.dtype)


def _leading_zeros(x: Any) -> Any:
    bits = x.dtype.itemsize * 8
    rest = np.array(np.asarray(x).view(np.dtype(f"u{x.dtype.itemsize}")))
    zeros = np.full(rest.shape, bits, x.dtype)
    while rest.any():
        zeros = np.where(rest != 0, zeros - 1, zeros).astype(x.dtype)
        rest >>= 1
    return zeros


def _shift_right_logical(x: Any, y: Any) -> Any:
    unsigned = np.dtype(f"u{np.asarray(x).dtype.itemsize}")
    shifted = np.right_shift(np.asarray(x).view(unsigned), np.asarray(y).view(unsigned))
    return np.asarray(shifted).view(np.asarray(x).dtype)


bitwise_and = elementwise(
    "and",
    np.bitwise_and,
    ZERO_TANGENT,
    arity=2,
    accepts=_BITS,
    doc="The bitwise (of bools: logical) and.",
)
bitwise_or = elementwise(
    "or",
    np.bitwise_or,
    ZERO_TANGENT,
    arity=2,
    accepts=_BITS,
    doc="The bitwise (of bools: logical) or.",
)
bitwise_xor = elementwise(
    "xor",
    np.bitwise_xor,
    ZERO_TANGENT,
    arity=2,
    accepts=_BITS,
    doc="The bitwise (of bools: logical) exclusive or.",
)
bitwise_not = elementwise(
    "not",
    np.bitwise_not,
    ZERO_TANGENT,
    accepts=_BITS,
    doc="The bitwise (of bools: logical) complement.",
)
shift_left = elementwise(
    "shift_left",
    np.left_shift,
    ZERO_TANGENT,
    arity=2,
    accepts=dtypes.INTEGERS,
    domain=(0.0, 2.0),
    doc="x * 2**y, wrapping; 0 for a count outside the width.",
)
shift_right_arithmetic = elementwise(
    "shift_right_arithmetic",
    np.right_shift,
    ZERO_TANGENT,
    function="shift_right",
    arity=2,
    accepts=dtypes.INTEGERS,
    domain=(0.0, 2.0),
    doc="The floor of x / 2**y; a count outside the width shifts all bits out.",
)
shift_right_logical = elementwise(
    "shift_right_logical",
    _shift_right_logical,
    ZERO_TANGENT,
    arity=2,
    accepts=dtypes.INTEGERS,
    domain=(0.0, 2.0),
    doc="x shifted right, filled with zeros; 0 for a count outside the width.",
)
population_count = elementwise(
    "population_count",
    _population_count,
    ZERO_TANGENT,
    function="popcount",
    accepts=dtypes.INTEGERS,
    doc="The number of bits set.",
)
clz = elementwise(
    "clz",
    _leading_zeros,
    ZERO_TANGENT,
    accepts=dtypes.INTEGERS,
    doc="The number of zero bits above the highest set.",
)
