"""The Hurwitz zeta function and the derivatives of digamma."""

from __future__ import annotations

import math
from typing import Any

import arrayfn.numpy as anp
from arrayfn.lax.control_flow_loops import while_loop
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.double_precision import in_float64, quiet
from arrayfn.primitives import special
from arrayfn.tracing import apply

# B(2k) / (2k)! for k = 1, 2, ..., where B are the Bernoulli numbers.
_BERNOULLI = (
    1 / 12,
    -1 / 720,
    1 / 30240,
    -1 / 1209600,
    1 / 47900160,
    -691 / 1307674368000,
    1 / 74724249600,
    -3617 / 10670622842880000,
    43867 / 5109094217170944000,
)
_TERMS = 12  # that are added one by one, before the Euler-Maclaurin formula


@quiet
def zeta(x: ArrayLike, q: ArrayLike) -> Array:
    """Return the Hurwitz zeta function: the sum of (q + n)**-x over n >= 0, for x > 1.

    The operands are broadcast and computed in float64, and the result has the operands'
    dtype. The sum is infinite at x = 1 and at the poles q = 0, -1, ..., and NaN for x <
    1. Terms with negative q + n are real only for integers x, so the sum is NaN for
    other x. These terms are added one by one, so q should not be below -1e6. The method
    is Euler-Maclaurin summation (Abramowitz and Stegun 23.2.9), which is also
    differentiated. The result is within 1e-14 of the true value.

    >>> zeta(2.0, 1.0)
    array(1.64493407)
    """
    (x, q), dtype = in_float64("zeta", x, q)
    whole, pole = anp.floor(x) == x, (q <= 0) & (anp.floor(q) == q)
    inside = (x > 1) & ((q > 0) | whole) & ~pole & ~anp.isnan(q)
    s, a = anp.where(inside, x, 2.0), anp.where(inside, q, 1.0)
    # ``steps`` terms have a negative base. ``rest`` is the sum of the others.
    steps = anp.where(a > 0, 0.0, anp.ceil(-a))
    rest = _sum(s, anp.where(a == math.inf, 1.0, a + steps))
    rest = anp.where(a == math.inf, 0.0, rest)
    value = anp.where(inside, rest + _negative_terms(s, a, steps), math.nan)
    at_infinity = anp.where(a == 1, 1.0, anp.where(a > 1, 0.0, math.inf))
    value = anp.where(inside & (x == math.inf), at_infinity, value)
    infinite = (x == 1) | ((x > 1) & pole)
    infinite = infinite & ~anp.isnan(q)
    return ops.convert(anp.where(infinite, math.inf, value), dtype)


def _negative_terms(s: Array, a: Array, steps: Array) -> Array:
    """Return the sum of (a + n)**-s over n < ``steps``, for integers s.

    The bases a + n are negative. Their powers are those of -(a + n), negative if s is
    odd.
    """
    base = anp.where(steps > 0, a, -1.0)
    odd = anp.remainder(s, 2.0) == 1.0

    def add_term(state: Any) -> Any:
        """Add term n to the total of each element that has more than n terms."""
        n, total = state
        term = anp.abs(base + n) ** -s
        return n + 1.0, total + anp.where(n < steps, anp.where(odd, -term, term), 0.0)

    last = anp.max(steps, initial=0.0)
    start = (anp.zeros_like(last), anp.zeros_like(a))
    _, total = while_loop(lambda state: state[0] < last, add_term, start)
    return total


def _sum(s: Array, a: Array) -> Array:
    """Return the sum of (a + n)**-s over n >= 0, for a > 0.

    The first 12 terms are added. The Euler-Maclaurin formula gives the sum of the
    others.
    """
    total: Any = a**-s
    for n in range(1, _TERMS):
        total = total + (a + float(n)) ** -s
    b = a + float(_TERMS)
    power = b**-s
    total = total + power * (b / (s - 1.0) + 0.5)  # the integral, and half of term 12
    # The terms with derivatives of order 2k - 1 at b, times Bernoulli numbers.
    factor = s * power / b
    square = 1.0 / (b * b)
    for k, number in enumerate(_BERNOULLI):
        total = total + number * factor
        factor = factor * (s + (2.0 * k + 1.0)) * (s + (2.0 * k + 2.0)) * square
    return total


@quiet
def polygamma(m: ArrayLike, x: ArrayLike) -> Array:
    """Return the derivative of integer order ``m`` of digamma, at x, elementwise.

    For m > 0 the result is infinite at x = 0, -1, ..., and it is NaN if m is negative
    or not an integer. Operands are broadcast and computed in float64, and the result
    has the operands' dtype.

    >>> polygamma(1, 1.0)
    array(1.64493407)
    """
    (m, x), dtype = in_float64("polygamma", m, x)
    # (-1)**(m + 1) m! zeta(m + 1, x) for m > 0.
    order = anp.where(m > 0, m, 1.0)
    sign = 2.0 * anp.remainder(order, 2.0) - 1.0
    factorial = anp.exp(apply(special.lgamma, order + 1.0))
    value = sign * anp.rint(factorial) * zeta(order + 1.0, x)
    whole = (m >= 0) & (anp.rint(m) == m)
    value = anp.where(m == 0, apply(special.digamma, x), value)
    return ops.convert(anp.where(whole, value, math.nan), dtype)
