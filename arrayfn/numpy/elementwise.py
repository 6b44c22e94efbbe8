"""NumPy's elementwise functions, as ufuncs with ``reduce``, ``at`` and others.

The functions themselves are in ``arithmetic``, ``comparison``, ``representation`` and
``transcendental``; arrayfn calls them from there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from arrayfn import dtypes
from arrayfn.errors import DTypeError, user_location
from arrayfn.numpy import _operands as ops
from arrayfn.numpy import (
    arithmetic,
    comparison,
    cumulative,
    reductions,
    representation,
    transcendental,
)
from arrayfn.numpy._operands import Array, ArrayLike, DTypeLike
from arrayfn.numpy.ufuncs import ufunc


def _converted(reduction: Callable[..., Array]) -> Callable[..., Array]:
    """Give ``reduction``, a function without ``dtype``, this parameter.

    The result is a ``reduce`` or ``accumulate`` method of a ufunc.
    """

    def reduce(x: ArrayLike, dtype: DTypeLike = None, **options: Any) -> Array:
        """Convert x to ``dtype``, if one is given, and reduce it."""
        own_dtype = ops.type_of_operand(reduction.__name__, x).dtype
        wanted = own_dtype if dtype is None else dtypes.canonical(dtype)
        result = reduction(ops.convert(x, wanted), **options)
        # Running maxima of bools are of int8.
        return ops.convert(result, wanted) if wanted == dtypes.bool_ else result

    return reduce


def _logical(
    reduction: Callable[..., Array], combine: Callable[..., Array]
) -> Callable[..., Array]:
    """Make ``reduction``, ``any`` or ``all``, the ``reduce`` method of a ufunc.

    ``combine`` is the ufunc's own function, which adds an ``initial`` value.
    """

    def reduce(
        x: ArrayLike, dtype: DTypeLike = None, initial: Any = None, **options: Any
    ) -> Array:
        """Reduce truth values, and combine the result with ``initial`` if given.

        Raises DTypeError for a ``dtype`` other than bool.
        """
        if dtype is not None and dtypes.canonical(dtype) != dtypes.bool_:
            raise DTypeError(
                f"{combine.__name__}.reduce gives bools, not {dtype}; convert the "
                "result with .astype",
                user_location(),
            )
        value = reduction(x, **options)
        return value if initial is None else combine(value, initial)

    return reduce


absolute = ufunc(arithmetic.absolute, 1)
add = ufunc(
    arithmetic.add,
    2,
    identity=0,
    reduce=reductions.sum,
    accumulate=cumulative.cumsum,
    at="add",
)
arccos = ufunc(transcendental.arccos, 1)
arccosh = ufunc(transcendental.arccosh, 1)
arcsin = ufunc(transcendental.arcsin, 1)
arcsinh = ufunc(transcendental.arcsinh, 1)
arctan = ufunc(transcendental.arctan, 1)
arctan2 = ufunc(transcendental.arctan2, 2)
arctanh = ufunc(transcendental.arctanh, 1)
bitwise_and = ufunc(comparison.bitwise_and, 2, identity=-1, reorderable=True)
bitwise_count = ufunc(comparison.bitwise_count, 1)
bitwise_or = ufunc(comparison.bitwise_or, 2, identity=0, reorderable=True)
bitwise_xor = ufunc(comparison.bitwise_xor, 2, identity=0, reorderable=True)
cbrt = ufunc(arithmetic.cbrt, 1)
ceil = ufunc(arithmetic.ceil, 1)
conj = ufunc(arithmetic.conj, 1)
copysign = ufunc(arithmetic.copysign, 2)
cos = ufunc(transcendental.cos, 1)
cosh = ufunc(transcendental.cosh, 1)
deg2rad = ufunc(transcendental.deg2rad, 1)
divide = ufunc(arithmetic.divide, 2)
divmod = ufunc(arithmetic.divmod, 2, 2)
equal = ufunc(comparison.equal, 2)
exp = ufunc(transcendental.exp, 1)
exp2 = ufunc(transcendental.exp2, 1)
expm1 = ufunc(transcendental.expm1, 1)
fabs = ufunc(arithmetic.fabs, 1)
float_power = ufunc(arithmetic.float_power, 2)
floor = ufunc(arithmetic.floor, 1)
floor_divide = ufunc(arithmetic.floor_divide, 2)
fmax = ufunc(arithmetic.fmax, 2, reorderable=True)
fmin = ufunc(arithmetic.fmin, 2, reorderable=True)
fmod = ufunc(arithmetic.fmod, 2)
frexp = ufunc(representation.frexp, 1, 2)
gcd = ufunc(representation.gcd, 2, identity=0, reorderable=True)
greater = ufunc(comparison.greater, 2)
greater_equal = ufunc(comparison.greater_equal, 2)
heaviside = ufunc(arithmetic.heaviside, 2)
hypot = ufunc(arithmetic.hypot, 2, identity=0, reorderable=True)
invert = ufunc(comparison.invert, 1)
isfinite = ufunc(comparison.isfinite, 1)
isinf = ufunc(comparison.isinf, 1)
isnan = ufunc(comparison.isnan, 1)
lcm = ufunc(representation.lcm, 2, reorderable=True)
ldexp = ufunc(representation.ldexp, 2)
left_shift = ufunc(comparison.left_shift, 2)
less = ufunc(comparison.less, 2)
less_equal = ufunc(comparison.less_equal, 2)
log = ufunc(transcendental.log, 1)
log10 = ufunc(transcendental.log10, 1)
log1p = ufunc(transcendental.log1p, 1)
log2 = ufunc(transcendental.log2, 1)
logaddexp = ufunc(transcendental.logaddexp, 2, identity=-np.inf, reorderable=True)
logaddexp2 = ufunc(transcendental.logaddexp2, 2, identity=-np.inf, reorderable=True)
logical_and = ufunc(
    comparison.logical_and,
    2,
    identity=True,
    reduce=_logical(reductions.all, comparison.logical_and),
)
logical_not = ufunc(comparison.logical_not, 1)
logical_or = ufunc(
    comparison.logical_or,
    2,
    identity=False,
    reduce=_logical(reductions.any, comparison.logical_or),
)
logical_xor = ufunc(comparison.logical_xor, 2, identity=False, reorderable=True)
maximum = ufunc(
    arithmetic.maximum,
    2,
    reduce=_converted(reductions.max),
    accumulate=_converted(cumulative.cummax),
    at="max",
)
minimum = ufunc(
    arithmetic.minimum,
    2,
    reduce=_converted(reductions.min),
    accumulate=_converted(cumulative.cummin),
    at="min",
)
modf = ufunc(representation.modf, 1, 2)
multiply = ufunc(
    arithmetic.multiply,
    2,
    identity=1,
    reduce=reductions.prod,
    accumulate=cumulative.cumprod,
    at="multiply",
)
negative = ufunc(arithmetic.negative, 1)
nextafter = ufunc(representation.nextafter, 2)
not_equal = ufunc(comparison.not_equal, 2)
positive = ufunc(arithmetic.positive, 1)
power = ufunc(arithmetic.power, 2)
rad2deg = ufunc(transcendental.rad2deg, 1)
reciprocal = ufunc(arithmetic.reciprocal, 1)
remainder = ufunc(arithmetic.remainder, 2)
right_shift = ufunc(comparison.right_shift, 2)
rint = ufunc(arithmetic.rint, 1)
sign = ufunc(arithmetic.sign, 1)
signbit = ufunc(comparison.signbit, 1)
sin = ufunc(transcendental.sin, 1)
sinh = ufunc(transcendental.sinh, 1)
spacing = ufunc(representation.spacing, 1)
sqrt = ufunc(arithmetic.sqrt, 1)
square = ufunc(arithmetic.square, 1)
subtract = ufunc(arithmetic.subtract, 2, at="subtract")
tan = ufunc(transcendental.tan, 1)
tanh = ufunc(transcendental.tanh, 1)
trunc = ufunc(arithmetic.trunc, 1)

abs = absolute
acos = arccos
acosh = arccosh
asin = arcsin
asinh = arcsinh
atan = arctan
atan2 = arctan2
atanh = arctanh
bitwise_invert = invert
bitwise_left_shift = left_shift
bitwise_not = invert
bitwise_right_shift = right_shift
conjugate = conj
degrees = rad2deg
mod = remainder
pow = power
radians = deg2rad
true_divide = divide

# Ufuncs are pickled by name, which pickle looks up in this module.
for _made in [value for value in globals().values() if isinstance(value, ufunc)]:
    _made.__module__ = __name__
