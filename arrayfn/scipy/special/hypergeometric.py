"""Hypergeometric functions of real numbers, 1F1 and 2F1.

Sums are computed in double-double arithmetic, so that 16 digits may cancel before the
first one is lost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import arrayfn.numpy as anp
from arrayfn import dtypes
from arrayfn.lax import fori_loop, while_loop
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.double_precision import in_float64, quiet
from arrayfn.scipy.special.double_double import EPSILON, DoubleDouble, exact, sum_of
from arrayfn.scipy.special.gamma_functions import (
    gammaln,
    gammasgn,
    is_nonpositive_integer,
)
from arrayfn.transforms import jvp
from arrayfn.transforms.custom import SymbolicZero, custom_jvp

_MAX_TERMS = 20_000  # of a convergent series
_FAR_TERMS = 60  # of the asymptotic series
_SMALL = 1e-26  # stop at a term of this size, relative to the sum
_LOST = 1e-6  # sums with a larger rounding error are useless
_NOTHING = 1e-33  # stop at a term of this size, relative to the largest
_GREAT = 1e290  # a larger term counts as infinite: split products would overflow
_FAR = 500.0  # from here on 1F1 uses its asymptotic series


@quiet
def hyp1f1(a: ArrayLike, b: ArrayLike, x: ArrayLike) -> Array:
    """Return Kummer's function 1F1(a; b; x).

    It is the sum of (a)_n / (b)_n x**n / n! over n. The function is infinite if b is 0,
    -1, ... and the sum does not end before that. The method is the series, with
    Kummer's transformation for negative x (DLMF 13.2.39). For |x| > 500 it is the
    asymptotic series (13.7.2). The table has the largest relative error of 400 values
    drawn from each range, compared with mpmath:

    | sizes of a, b | x | error |
    | --- | --- | --- |
    | 10 | -30 to 30 | 3e-16 |
    | 30 | -500 to 500 | 9e-16 |
    | 10 | 500 to 700 | 8e-14 |
    | 10 | -10000 to -500 | 4e-14 |

    For larger arguments the result is NaN if fewer than 6 digits are left. An example
    is a = -86, b = 63, x = 59. The function can be differentiated with respect to all
    three arguments. For a and b, arrayfn differentiates the series.
    """
    (a, b, x), dtype = in_float64("hyp1f1", a, b, x)
    return ops.convert(_hyp1f1(a, b, x), dtype)


@quiet
def hyp2f1(a: ArrayLike, b: ArrayLike, c: ArrayLike, x: ArrayLike) -> Array:
    """Return Gauss's function 2F1(a, b; c; x).

    It is the sum of (a)_n (b)_n / (c)_n x**n / n! over n. The function is continued
    analytically to all x < 1, and to all x if the sum ends. It is NaN for x > 1, where
    values are complex (SciPy returns infinity, or the real part). Unless c > a + b, it
    is infinite at x = 1. It is also infinite if c is 0, -1, ... and the sum does not
    end before that. The method is the series up to x = 1/2, and Taylor series of the
    differential equation for larger x. Negative x are handled by Pfaff's transformation
    (DLMF 15.8.1). The table has the largest relative error of 400 values drawn from
    each range, compared with mpmath:

    | sizes of a, b, c | x | error |
    | --- | --- | --- |
    | 5 | -1 to 1 | 6e-16 |
    | 20 | -1 to 1 | 2e-15 |
    | 5 | -100 to -1 | 4e-15 |
    | 20 | -100 to -1 | 1e-13 |
    | 5 | 0.99 to 1 - 1e-12 | 3e-14 |

    For larger parameters, such as 50, some results lose digits. A result is NaN if the
    series has lost ten digits. An element takes 0.1 to 10 microseconds. The function
    can be differentiated with respect to all four arguments. For a, b and c, arrayfn
    differentiates the series.
    """
    (a, b, c, x), dtype = in_float64("hyp2f1", a, b, c, x)
    return ops.convert(_hyp2f1(a, b, c, x), dtype)


# Derivatives: by x in closed form, by parameters term by term.


def _by_parameters(
    value: Callable[..., Array], primals: Sequence[Array], tangents: Sequence[Any]
) -> Any:
    """Return the tangent of ``value(*primals)`` by all arguments except the last.

    ``tangents`` may have symbolic zeros, whose terms are left out. Each derivative is
    computed in forward mode, with a tangent of 1, and then multiplied by the tangent.
    Reverse mode transposes only that product, and not the loop of the series.
    """
    total: Any = 0.0
    for k, tangent in enumerate(tangents[:-1]):
        if not isinstance(tangent, SymbolicZero):

            def of_one(parameter: Array, place: int = k) -> Array:
                """Return the value with ``parameter`` at position ``place``."""
                return value(*primals[:place], parameter, *primals[place + 1 :])

            one = anp.ones_like(primals[k])
            total = total + jvp(of_one, (primals[k],), (one,))[1] * tangent
    return total


@custom_jvp
def _hyp1f1(a: Array, b: Array, x: Array) -> Array:
    """Return 1F1(a, b, x), with the rule of differentiation below."""
    return _kummer(a, b, x)


def _hyp1f1_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    """Return 1F1 and its tangent; the derivative by x is a / b 1F1(a + 1, b + 1, x)."""
    a, b, x = primals
    _, _, dx = tangents
    tangent = _by_parameters(_kummer, primals, tangents)
    if not isinstance(dx, SymbolicZero):
        tangent = tangent + a / b * _hyp1f1(a + 1.0, b + 1.0, x) * dx
    return _hyp1f1(a, b, x), tangent


_hyp1f1.defjvp(_hyp1f1_jvp, symbolic_zeros=True)


@custom_jvp
def _hyp2f1(a: Array, b: Array, c: Array, x: Array) -> Array:
    """Return 2F1(a, b, c, x), with the rule of differentiation below."""
    return _gauss(a, b, c, x)


def _hyp2f1_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    """Return 2F1 and its tangent.

    The derivative by x is a b / c 2F1(a + 1, b + 1, c + 1, x).
    """
    a, b, c, x = primals
    *_, dx = tangents
    tangent = _by_parameters(_gauss, primals, tangents)
    if not isinstance(dx, SymbolicZero):
        slope = a * b / c * _hyp2f1(a + 1.0, b + 1.0, c + 1.0, x)
        tangent = tangent + slope * dx
    return _hyp2f1(a, b, c, x), tangent


_hyp2f1.defjvp(_hyp2f1_jvp, symbolic_zeros=True)


# Series.


def _series(
    above: Sequence[DoubleDouble], below: Sequence[DoubleDouble], x: DoubleDouble
) -> tuple[DoubleDouble, DoubleDouble, Array]:
    """Sum prod((above)_n) / prod((below)_n) x**n / n! over n.

    The arithmetic is double-double. Returns the sum, x times its derivative, and
    whether too few digits are left. Terms beyond 1e290 give an infinite sum. The loop
    ends when all elements have converged.
    """
    one = exact(anp.ones_like(x.high))
    zero = exact(anp.zeros_like(x.high))
    # Terms may grow again until n has passed the last root of a rising factorial.
    last_sign_change: Any = 0.0
    for parameter in (*above, *below):
        last_sign_change = anp.maximum(last_sign_change, -parameter.high)

    def step(state: Any) -> Any:
        """Add term n + 1 to the sum and to that of x times the derivative.

        It is term n times x prod(above + n) / (prod(below + n) (n + 1)). The state is
        n, term n, both sums, the largest term, and which elements are active.
        """
        n, term, total, slope, largest, active = state
        n_exact = one * n
        numerator, denominator = x, one * (n + 1.0)
        for parameter in above:
            numerator = numerator * (parameter + n_exact)
        for parameter in below:
            denominator = denominator * (parameter + n_exact)
        # At a pole of the denominator, the numerator has ended the series before.
        denominator = denominator.where(denominator.high != 0, one)
        after = (term * numerator / denominator).where(active, zero)
        total = total + after
        slope = slope + after * (n + 1.0)
        size = anp.abs(after.high)
        largest = anp.maximum(largest, size)
        shrinks = (anp.abs(numerator.high) < 0.9 * anp.abs(denominator.high)) & (
            n > last_sign_change
        )
        negligible = anp.maximum(_SMALL * anp.abs(total.high), _NOTHING * largest)
        ended = (size == 0) | (shrinks & (size * (n + 1.0) <= negligible))
        return n + 1.0, after, total, slope, largest, active & ~ended & (size < _GREAT)

    first = ops.as_array(ops.scalar(0.0, dtypes.float64))
    start = (first, one, one, zero, one.high, one.high > 0)
    # Run while any element is active (s[5]) and n (s[0]) is not too large.
    state = while_loop(lambda s: anp.any(s[5]) & (s[0] < _MAX_TERMS), step, start)
    _, term, total, slope, largest, active = state
    # Too few digits are left if the largest term was much larger than the sum.
    small = largest * EPSILON > _LOST * anp.abs(total.high)
    lost = active | (small & (total.high != 0))
    over = anp.abs(term.high) >= _GREAT
    infinite = exact(anp.copysign(math.inf, term.high))
    return infinite.where(over, total), slope, lost & ~over


# 1F1


def _kummer(a: Array, b: Array, x: Array) -> Array:
    """Return 1F1(a, b, x), by the series, or for |x| > 500 asymptotically.

    Kummer's transformation exp(x) 1F1(b - a, b, -x) replaces negative x unless the sum
    ends, so that terms have one sign. Elements that use another branch get harmless
    operands.
    """
    # Rising factorials of integers <= 0 become 0, which ends the sum. The denominator
    # becomes 0 unless the numerator does so first.
    pole = is_nonpositive_integer(b) & ~(is_nonpositive_integer(a) & (a >= b))
    ends = is_nonpositive_integer(a) | ((x < 0) & is_nonpositive_integer(b - a))
    far = (anp.abs(x) > _FAR) & ~ends
    finite = anp.isfinite(a) & anp.isfinite(b) & anp.isfinite(x)
    used = finite & ~pole & ~far
    p, q = anp.where(finite & ~pole, a, 1.0), anp.where(finite & ~pole, b, 1.0)
    z = anp.where(used, x, 0.0)
    # b - a in double-double arithmetic, so without rounding.
    transformed = (z < 0) & ~is_nonpositive_integer(p)
    first = sum_of(q, -p).where(transformed, exact(p))
    size = anp.where(transformed, -z, z)
    total, _, lost = _series([first], [exact(q)], exact(size))
    value = anp.where(lost, math.nan, total.high)
    value = anp.where(
        transformed, anp.exp(anp.where(transformed, z, 0.0)) * value, value
    )
    value = anp.where(far & finite, _kummer_far(p, q, anp.where(far, x, _FAR)), value)
    value = anp.where(pole, math.inf, value)
    return anp.where(finite, value, math.nan)


def _kummer_far(a: Array, b: Array, x: Array) -> Array:
    """Return 1F1(a, b, x) for large |x|, by the dominant series of DLMF 13.7.2.

    It is gamma(b) / gamma(a) exp(x) x**(a - b) sum((b - a)_n (1 - a)_n / n! x**-n) for
    positive x, and gamma(b) / gamma(b - a) (-x)**-a sum((a)_n (1 + a - b)_n / n!
    (-x)**-n) for negative x.
    """
    is_negative = x < 0
    size = anp.abs(x)
    above = anp.where(is_negative, a, b - a)
    below = anp.where(is_negative, b - a, a)

    # The terms of an asymptotic series decrease, then increase: stop at the smallest.
    def add_term(n: Array, state: Any) -> Any:
        """Add a term, unless it is larger than the one before.

        The state is the sum, the term, and the last ratio of terms.
        """
        total, term, before = state
        ratio = (above + n) * (1.0 - below + n) / ((n + 1.0) * size)
        on = (anp.abs(ratio) < anp.maximum(before, 1.0)) & (term != 0)
        term = anp.where(on, term * ratio, 0.0)
        return total + term, term, anp.abs(ratio)

    one = anp.ones_like(x)
    start = (one, one, anp.full_like(x, math.inf))
    total, _, _ = fori_loop(0, _FAR_TERMS, add_term, start)
    power = anp.where(is_negative, -a, a - b)
    log = gammaln(b) - gammaln(below) + power * anp.log(size)
    sign = gammasgn(b) * gammasgn(below)
    return sign * anp.exp(log + anp.where(is_negative, 0.0, x)) * total


# 2F1


def _gauss(a: Array, b: Array, c: Array, x: Array) -> Array:
    """Return 2F1(a, b, c, x) for x <= 1, and for x > 1 if the sum ends.

    Pfaff's transformation (1 - z)**-a 2F1(a, c - b, c, w) with w = z / (z - 1) replaces
    negative z. The series is summed at w up to 1/2. For larger w, it is summed at 1/2
    and continued to w along the differential equation. Elements that use another branch
    get harmless operands.
    """
    # Let a be the parameter that ends the sum first, or else the smaller one.
    ends_a, ends_b = is_nonpositive_integer(a), is_nonpositive_integer(b)
    exchanged = anp.where(ends_a == ends_b, anp.where(ends_a, b > a, b < a), ends_b)
    a, b = anp.where(exchanged, b, a), anp.where(exchanged, a, b)
    ends = anp.logical_or(ends_a, ends_b)
    pole = is_nonpositive_integer(c) & ~(ends & (a >= c))
    finite = anp.isfinite(a) & anp.isfinite(b) & anp.isfinite(c) & anp.isfinite(x)
    at_one = (x == 1) & ~ends
    used = finite & ~pole & ~at_one & ((x < 1) | ends)
    p, q, r = (anp.where(used, v, 1.0) for v in (a, b, c))
    z = anp.where(used, x, 0.0)
    # ``near`` is w, and u = 1 - w is computed without cancellation.
    transformed = (z < 0) & ~ends
    u = anp.where(transformed, 1.0 / anp.where(transformed, 1.0 - z, 1.0), 1.0 - z)
    near = exact(z).where(~transformed, exact(z) / sum_of(z, -anp.ones_like(z)))
    half = exact(0.5 * anp.ones_like(z))
    beyond = ~ends & (u < 0.5)
    second = sum_of(r, -q).where(transformed, exact(q))
    parameters = exact(p), second, exact(r)
    *above, below = parameters  # of the rising factorials above and below the line
    total, slope, lost = _series(above, [below], half.where(beyond, near))
    # ``slope`` is w = 1/2 times the derivative.
    total = _continued(parameters, total, slope * 2.0, anp.where(beyond, u, 0.5))
    value = anp.where(lost, math.nan, total.high)
    factor = anp.power(1.0 - anp.where(transformed, z, 0.0), -p)
    value = anp.where(transformed, factor * value, value)
    value = anp.where(at_one, _gauss_at_one(a, b, c), value)
    value = anp.where(pole, math.inf, value)
    return anp.where(finite & (used | pole | at_one), value, math.nan)


def _gauss_at_one(a: Array, b: Array, c: Array) -> Array:
    """Return 2F1(a, b, c, 1) by Gauss's theorem (DLMF 15.4.20).

    It is gamma(c) gamma(c - a - b) / (gamma(c - a) gamma(c - b)), and infinite unless c
    > a + b.
    """
    rest = c - a - b
    converges = rest > 0
    safe = anp.where(converges, rest, 1.0)
    log = gammaln(c) + gammaln(safe) - gammaln(c - a) - gammaln(c - b)
    sign = gammasgn(c) * gammasgn(c - a) * gammasgn(c - b)
    zero = is_nonpositive_integer(c - a) | is_nonpositive_integer(c - b)
    value = anp.where(zero, 0.0, sign * anp.exp(anp.where(zero, 0.0, log)))
    return anp.where(converges, value, math.inf)


def _continued(
    parameters: Sequence[DoubleDouble],
    value: DoubleDouble,
    slope: DoubleDouble,
    aim: Array,
) -> DoubleDouble:
    """Return 2F1 at 1 - ``aim``, from its ``value`` and derivative ``slope`` at 1/2.

    ``aim`` is at most 1/2, and ``parameters`` are a, b and c. Each Taylor series of the
    solution of the differential equation (DLMF 15.10.1) halves the distance to 1.
    """

    def step(state: Any) -> Any:
        """Halve the distance to 1 by a Taylor series, or go to ``aim``.

        The state is the distance of x to 1, and the value and slope at x.
        """
        distance, value, slope = state
        next_distance = anp.maximum(0.5 * distance, aim)
        value, slope = _taylor(
            parameters, distance, distance - next_distance, value, slope
        )
        return next_distance, value, slope

    start = (anp.full_like(aim, 0.5), value, slope)
    _, result, _ = while_loop(lambda s: anp.any(s[0] > aim), step, start)
    return result


def _taylor(
    parameters: Sequence[DoubleDouble],
    u: Array,
    h: Array,
    value: DoubleDouble,
    slope: DoubleDouble,
) -> tuple[DoubleDouble, DoubleDouble]:
    """Return the solution and its derivative at 1 - u + h, from those at 1 - u.

    The solution f of Gauss's equation (DLMF 15.10.1) with ``parameters`` a, b, c is
    expanded about z = 1 - u. Its terms t_n = f_n h**n satisfy z (1 - z) (n + 1) (n + 2)
    t_(n+2) = (a + n) (b + n) h**2 t_n - ((1 - 2 z) n + c - (a + b + 1) z) (n + 1) h
    t_(n+1).
    """
    a, b, c = parameters
    one = exact(anp.ones_like(u))
    u_exact, step = exact(u), exact(h)
    sum_plus_one = a + b + one
    outer = c + sum_plus_one * exact(u - 1.0)
    inner = exact(2.0 * u - 1.0)
    scale = u_exact * exact(1.0 - u)
    square = step * step

    def next_term(state: Any) -> Any:
        """Add term n + 2 to the value, and n + 2 times it to h times the derivative.

        The recurrence of ``_taylor`` gives the term. The state is n, terms n and n + 1,
        both sums, and whether to go on.
        """
        n, before, term, total, change, _ = state
        at, after_it = one * n, one * (n + 1.0)
        factor = (inner * at + outer) * after_it * step
        after = (a + at) * (b + at) * square * before + factor * term * -1.0
        after = after / (scale * (after_it * (n + 2.0)))
        total = total + after
        change = change + after * (n + 2.0)
        size = anp.maximum(anp.abs(after.high), anp.abs(term.high)) * (n + 2.0)
        going = (size > _SMALL * anp.abs(total.high)) & (h > 0)
        return n + 1.0, term, after, total, change, anp.any(going)

    first = slope * step
    start = (
        ops.as_array(ops.scalar(0.0, dtypes.float64)),
        value,
        first,
        value + first,
        first,
        ops.as_array(ops.scalar(True, dtypes.bool_)),
    )
    # s[5] is whether to go on, and s[0] is n.
    _, _, _, total, change, _ = while_loop(
        lambda s: s[5] & (s[0] < _MAX_TERMS), next_term, start
    )
    return total, (change / one.where(h == 0, step)).where(h != 0, slope)


__all__ = ["hyp1f1", "hyp2f1"]
