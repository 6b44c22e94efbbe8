"""The incomplete gamma functions, and the derivatives of gamma samples.

P(a, x) is computed by its power series for x < a + 1 (Abramowitz and Stegun 6.5.29),
and Q(a, x) by Legendre's continued fraction elsewhere (6.5.31). Derivatives by a are
those of series and fraction.
"""

from __future__ import annotations

import math
from typing import Any

import arrayfn.numpy as anp
from arrayfn.lax.special_convergence import continued_fraction, series, stirling
from arrayfn.lax.unary import digamma, lgamma
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.double_precision import in_float64, quiet
from arrayfn.transforms import jvp
from arrayfn.transforms.custom import SymbolicZero, custom_jvp


@quiet
def igamma(a: ArrayLike, x: ArrayLike) -> Array:
    """Return the regularized lower incomplete gamma function P(a, x), elementwise.

    P(a, x) is the integral of t**(a - 1) exp(-t) from 0 to x, divided by gamma(a). It
    is defined for a, x >= 0, and NaN elsewhere. The operands are broadcast and computed
    in float64, and the result has the operands' floating-point dtype. The relative
    error is some 2e-15 near the median. In the tails it is 2e-16 times the logarithm of
    the result.

    >>> igamma(1.0, 1.0)
    array(0.63212056)
    """
    (a, x), dtype = in_float64("igamma", a, x)
    return ops.convert(_lower(a, x), dtype)


@quiet
def igammac(a: ArrayLike, x: ArrayLike) -> Array:
    """Return Q(a, x) = 1 - P(a, x), which is accurate for small results.

    Domain, shapes and dtypes are those of ``igamma``.
    """
    (a, x), dtype = in_float64("igammac", a, x)
    return ops.convert(_upper(a, x), dtype)


@quiet
def igamma_grad_a(a: ArrayLike, x: ArrayLike) -> Array:
    """Return the derivative of P(a, x) of ``igamma`` with respect to a.

    Shapes and dtypes are those of ``igamma``. The result is NaN outside of the domain.
    """
    (a, x), dtype = in_float64("igamma_grad_a", a, x)
    return ops.convert(_slope_by_a(a, x), dtype)


@quiet
def random_gamma_grad(a: ArrayLike, sample: ArrayLike) -> Array:
    """Return the derivative of a gamma-distributed ``sample`` with respect to a.

    ``a`` is the shape parameter of the distribution. The quantile of the sample is held
    fixed. So the result is minus dP/da divided by dP/dx (Figurnov et al., Implicit
    reparameterization gradients, 2018). Shapes and dtypes are those of ``igamma``.
    """
    (a, x), dtype = in_float64("random_gamma_grad", a, sample)
    return ops.convert(_sample_slope(a, x), dtype)


# Both forms are computed for all elements. An element that uses the other form gets
# operands for which this form converges in one step.


def _is_series(a: Array, x: Array) -> Array:
    """Return where P is computed by its series, instead of Q by its fraction."""
    return x < a + 1.0


def _valid(a: Array, x: Array) -> Array:
    """Return where a and x are positive and finite."""
    inside = (a > 0) & (x > 0)
    return inside & anp.isfinite(a) & anp.isfinite(x)


def _operands(a: Array, x: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Return the operands (a, x) of the series, and those of the fraction.

    Elements that do not use a form get operands for which it takes one step.
    """
    valid = _valid(a, x)
    first, second = valid & _is_series(a, x), valid & ~_is_series(a, x)
    # P(1, 0) and Q(1, 2) take one step.
    return (
        (anp.where(first, a, 1.0), anp.where(first, x, 0.0)),
        (anp.where(second, a, 1.0), anp.where(second, x, 2.0)),
    )


def _sum(a: Array, x: Array) -> Array:
    """Return S in P = D S: the sum of x**n / ((a + 1) ... (a + n)) over n >= 0."""
    return series(anp.ones_like(a), lambda n: x / (a + n))


def _fraction(a: Array, x: Array) -> Array:
    """Return the continued fraction C in Q(a, x) = D a C, where D is ``_factor``."""
    whole = x + 1.0 - a
    return 1.0 / continued_fraction(
        whole, lambda n: (-n * (n - a), x + 2.0 * n + 1.0 - a)
    )


def _factor(a: Array, x: Array) -> Array:
    """Return D = x**a exp(-x) / gamma(a + 1).

    For a > 10, the large parts of a log(x), x and lgamma are cancelled before they are
    computed: D = exp(-a (r - 1 - log r) - stirling(a)) / sqrt(2 pi a), with r = x / a.
    """
    plain = anp.exp(a * anp.log(x) - x - lgamma(a + 1.0))
    large = a > 10.0
    b = anp.where(large, a, 10.0)  # and x = 10 below: harmless where not large
    inverse = 1.0 / b
    ratio = anp.where(large, x, 10.0) * inverse
    # The exponent is -b (ratio - 1 - log(ratio)). Near ratio = 1 log1p is accurate.
    near = anp.abs(ratio - 1.0) < 0.5
    mu = (anp.where(large, x, 10.0) - b) * inverse  # ratio - 1
    log = anp.where(near, anp.log1p(anp.where(near, mu, 0.0)), anp.log(ratio))
    exponent = b * (log - mu) - stirling(b)
    return anp.where(large, anp.exp(exponent) / anp.sqrt(2.0 * math.pi * b), plain)


def _edges(a: Array, x: Array, value: Array, at_zero: float, at_inf: float) -> Array:
    """Return ``value`` inside the domain, limits on its border, and NaN outside.

    The limits are ``at_zero`` for x = 0, and ``at_inf`` for x = infinity or a = 0.
    """
    value = anp.where(x == 0, at_zero, value)
    far = (x == math.inf) | ((a == 0) & (x > 0))
    value = anp.where(far, at_inf, value)
    outside = (x < 0) | (a < 0) | anp.isnan(a) | anp.isnan(x) | ((a == 0) & (x == 0))
    return anp.where(outside | ((a == math.inf) & (x == math.inf)), math.nan, value)


def tails(a: Array, x: Array) -> tuple[Array, Array]:
    """Return P and Q of float64 arrays inside the domain; the smaller is accurate.

    P is computed by its series for x < a + 1, else Q by its fraction. The other one is
    1 minus the computed one.
    """
    (a1, x1), (a2, x2) = _operands(a, x)
    below = _factor(a1, x1) * _sum(a1, x1)
    above = _factor(a2, x2) * a2 * _fraction(a2, x2)
    by_series = _is_series(a, x)
    lower = anp.where(by_series, below, 1.0 - above)
    return lower, anp.where(by_series, 1.0 - below, above)


def log_density(a: Array, x: Array) -> Array:
    """Return the derivative of P with respect to log(x): x**a exp(-x) / gamma(a)."""
    return _factor(a, x) * a


@custom_jvp
def _lower(a: Array, x: Array) -> Array:
    """Compute P of float64 arrays, with limits on the border of its domain."""
    value = anp.where(a == math.inf, 0.0, tails(a, x)[0])
    return _edges(a, x, value, at_zero=0.0, at_inf=1.0)


@custom_jvp
def _upper(a: Array, x: Array) -> Array:
    """Compute Q of float64 arrays, with limits on the border of its domain."""
    value = anp.where(a == math.inf, 1.0, tails(a, x)[1])
    return _edges(a, x, value, at_zero=1.0, at_inf=0.0)


def _density(a: Array, x: Array) -> Array:
    """Return the derivative of P with respect to x: x**(a - 1) exp(-x) / gamma(a).

    At x = 0 this is the limit, and it is 0 for other x outside of the domain.
    """
    inside = _valid(a, x)
    b, y = anp.where(inside, a, 1.0), anp.where(inside, x, 1.0)
    value = log_density(b, y) / y
    at_zero = anp.where(a == 1, 1.0, anp.where(a < 1, math.inf, 0.0))
    return anp.where(inside, value, anp.where(x == 0, at_zero, 0.0))


def _slope(primals: Any, tangents: Any) -> Any:
    """Return the tangent of P at ``primals`` (a, x) for ``tangents`` (da, dx).

    Tangents that are symbolic zeros are left out: the derivative by a is expensive.
    """
    (a, x), (da, dx) = primals, tangents
    total: Any = anp.zeros_like(x)
    if not isinstance(da, SymbolicZero):
        total = total + _slope_by_a(a, x) * da
    if not isinstance(dx, SymbolicZero):
        total = total + _density(a, x) * dx
    return total


_lower.defjvp(
    lambda primals, tangents: (_lower.function(*primals), _slope(primals, tangents)),
    symbolic_zeros=True,
)
_upper.defjvp(
    lambda primals, tangents: (_upper.function(*primals), -_slope(primals, tangents)),
    symbolic_zeros=True,
)


def _with_slope(form: Any, a: Array, x: Array) -> tuple[Array, Array]:
    """Return ``form(a, x)`` and its derivative with respect to a."""
    return jvp(lambda b: form(b, x), (a,), (anp.ones_like(a),))


def _slope_by_a(a: Array, x: Array) -> Array:
    """Return dP/da at (a, x): 0 at x = 0, and NaN outside of the domain."""
    log = anp.log(anp.where(x > 0, x, 1.0))
    first, second, (a1, x1), (a2, x2) = _slopes(a, x, log)
    value = anp.where(
        _is_series(a, x), _factor(a1, x1) * first, -_factor(a2, x2) * a2 * second
    )
    return anp.where(x == 0, 0.0, anp.where(_valid(a, x), value, math.nan))


def _sample_slope(a: Array, x: Array) -> Array:
    """Return dx/da for samples x of the gamma distribution of shape a."""
    positive = x > 0
    log = anp.log(anp.where(positive, x, 1.0))
    # dx/da = x dlog(x)/da, which is 0 for x = 0, and NaN for NaN.
    return anp.where(positive, x * log_sample_slope(a, log), x * 0.0)


def log_sample_slope(a: Array, log: Array) -> Array:
    """Return the derivative by a of ``log``, the logarithm of a gamma sample.

    By implicit differentiation of P(a, x) at a fixed quantile, d log x / da = -(dP/da)
    / (x dP/dx), where x dP/dx = D a. So D cancels: the result is -first / a if the
    series is used, else second (see ``_slopes``). Arrays are float64. The function
    takes the logarithm, because the sample itself may underflow.
    """
    first, second, *_ = _slopes(a, anp.exp(log), log)
    value = anp.where(_is_series(a, anp.exp(log)), -first / a, second)
    return anp.where((a > 0) & (log < math.inf), value, math.nan)


def _slopes(a: Array, x: Array, log: Array) -> tuple[Array, Array, Any, Any]:
    """Compute the parts of dP/da, both by the series and by the fraction.

    P is computed as D S, with a series S, or as 1 - D a C, with a continued fraction C.
    D is the factor that both have. ``log`` is the logarithm of ``x``.

    Returns ``first``, where dP/da = D first if the series is used; ``second``, where
    dP/da = -D a second if the fraction is used; and the operands (a, x) of both.
    """
    (a1, x1), (a2, x2) = _operands(a, x)
    total, total_slope = _with_slope(_sum, a1, x1)
    b = anp.where(a > 0, a, 1.0)
    first = (log - digamma(b + 1.0)) * total + total_slope
    fraction, fraction_slope = _with_slope(_fraction, a2, x2)
    second = (log - digamma(b)) * fraction + fraction_slope
    return first, second, (a1, x1), (a2, x2)
