"""The parts and conjugates of complex numbers, elementwise.

They are linear over the reals. Their transposes do not conjugate cotangents, as in JAX:
the cotangent of ``real``'s operand is a complex number with that real part.
"""

from __future__ import annotations

import numpy as np

from arrayfn import dtypes
from arrayfn.ir import ArrayType
from arrayfn.primitives import conversion
from arrayfn.primitives import elementwise as e
from arrayfn.primitives.base import LINEAR, Array, Atoms, Tangents
from arrayfn.primitives.families import (
    broadcast_scalar,
    common_dtype,
    common_shape,
    elementwise,
    transpose_each,
)
from arrayfn.primitives.rules import jvp_alone


def _complex_types(re: ArrayType, im: ArrayType) -> ArrayType:
    """Type rule: the complex dtype of two float32 or float64 arrays of one shape."""
    allowed = frozenset({dtypes.float32, dtypes.float64})
    dtype = common_dtype("complex", (re, im), allowed)
    return ArrayType(common_shape("complex", (re, im)), dtypes.complex_of(dtype))


def _complex_jvp(primals: Atoms, outputs: Atoms, tangents: Tangents) -> Tangents:
    """The jvp rule: ``d complex(re, im) = complex(d re, d im)``; None is a zero."""
    re, im = tangents
    zero = conversion.literal(0.0, primals[0].type.dtype)
    value = make_complex(zero if re is None else re, zero if im is None else im)
    return [broadcast_scalar(value, outputs[0].type.shape)]


real = elementwise(
    "real",
    np.real,
    LINEAR,
    accepts=dtypes.COMPLEX,
    result=dtypes.real_of,
    transpose=transpose_each(
        lambda ct, xs: make_complex(ct, conversion.literal(0.0, ct.type.dtype))
    ),
    doc="The real part.",
)
imag = elementwise(
    "imag",
    np.imag,
    LINEAR,
    accepts=dtypes.COMPLEX,
    result=dtypes.real_of,
    transpose=transpose_each(
        lambda ct, xs: make_complex(conversion.literal(0.0, ct.type.dtype), e.neg(ct))
    ),
    doc="The imaginary part.",
)
conj = elementwise(
    "conj",
    np.conj,
    LINEAR,
    accepts=dtypes.COMPLEX,
    transpose=transpose_each(lambda ct, xs: conj(ct)),
    doc="The complex conjugate.",
)


def _joined(re: Array, im: Array) -> Array:
    """Join real and imaginary parts to a complex array."""
    # By parts: re + 1j * im is NaN for infinite im, and loses signs of zeros.
    result = np.empty(
        np.broadcast_shapes(re.shape, im.shape), dtypes.complex_of(re.dtype)
    )
    result.real, result.imag = re, im
    return result


make_complex = elementwise(
    "complex",
    _joined,
    [None, None],
    arity=2,
    accepts={dtypes.float32, dtypes.float64},
    types=_complex_types,
    jvp=_complex_jvp,
    transpose=transpose_each(lambda ct, xs: real(ct), lambda ct, xs: e.neg(imag(ct))),
    doc="The complex number with these real and imaginary parts.",
)
complex_abs = elementwise(
    "complex_abs",
    np.absolute,
    LINEAR,
    accepts=dtypes.COMPLEX,
    function="abs",
    result=dtypes.real_of,
    cost=8,
    # At 0 there is no derivative; 0, as in JAX.
    jvp=jvp_alone(lambda x, y, t: e.div(real(e.mul(conj(x), t)), e.nonzero(y))),
    doc="The absolute value of a complex number.",
)
