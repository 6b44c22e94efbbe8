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
from arrayfn.scipy.special.gamma_functions import gammaln, gammasgn
from arrayfn.transforms import jvp
from arrayfn.transforms.custom import SymbolicZero, custom_jvp

_MAX_TERMS = 20_000
_FAR_TERMS = 60
_SMALL = 1e-26  # stop at a term of this size, relative to the sum
_LOST = 1e-6  # sums with a larger rounding error are useless
_NOTHING = 1e-33  # stop at a term of this size, relative to the largest
_GREAT = 1e290  # a larger term counts as infinite: split products would overflow
_FAR = 500.0  # from here on 1F1 uses its asymptotic series


@quiet
def hyp1f1(a: ArrayLike, b: ArrayLike, x: ArrayLike) -> Array:
    """Kummer's function 1F1(a; b; x).

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

    For larger arguments the result is NaN if fewer than 6 digits are left, as for a =
    -86, b = 63, x = 59. The function can be differentiated with respect to all three
    arguments. For a and b, arrayfn differentiates the series.
    """
    (a, b, x), dtype = in_float64("hyp1f1", a, b, x)
    return ops.convert(_hyp1f1(a, b, x), dtype)


@quiet
def hyp2f1(a: ArrayLike, b: ArrayLike, c: ArrayLike, x: ArrayLike) -> Array:
    """Gauss's function 2F1(a, b; c; x).

    It is the sum of (a)_n (b)_n / (c)_n x**n / n! over n. The function is continued
    analytically to all x < 1, and to all x if the sum ends. It is NaN for x > 1, where
    values are complex (SciPy returns infinity, or the real part). It is infinite at x =
    1 unless c > a + b. It is also infinite if c is 0, -1, ... and the sum does not end
    before that. The method is the series up to x = 1/2, and Taylor series of the
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


# Derivatives: by x in closed form, by parameters those of the sums.


def _by_parameters(
    value: Callable[..., Array], primals: Sequence[Array], tangents: Sequence[Any]
) -> Any:
    """The tangent of ``value`` by all arguments except the last.

    Of ``tangents``, some may be symbolic zeros. Each derivative is that of the sums in
    forward mode, so that reverse mode does not go through a loop.
    """
    total: Any = 0.0
    for k, tangent in enumerate(tangents[:-1]):
        if not isinstance(tangent, SymbolicZero):

            def of_one(parameter: Array, place: int = k) -> Array:
                return value(*primals[:place], parameter, *primals[place + 1 :])

            one = anp.ones_like(primals[k])
            total = total + jvp(of_one, (primals[k],), (one,))[1] * tangent
    return total


@custom_jvp
def _hyp1f1(a: Array, b: Array, x: Array) -> Array:
    return _kummer(a, b, x)


def _hyp1f1_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    """The value, and its derivative: by x, a / b 1F1(a + 1, b + 1, x)."""
    a, b, x = primals
    tangent = _by_parameters(_kummer, primals, tangents)
    if not isinstance(tangents[2], SymbolicZero):
        tangent = tangent + a / b * _hyp1f1(a + 1.0, b + 1.0, x) * tangents[2]
    return _hyp1f1(a, b, x), tangent


_hyp1f1.defjvp(_hyp1f1_jvp, symbolic_zeros=True)


@custom_jvp
def _hyp2f1(a: Array, b: Array, c: Array, x: Array) -> Array:
    return _gauss(a, b, c, x)


def _hyp2f1_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    """The value, and its derivative: by x, a b / c 2F1(a + 1, b + 1, c + 1, x)."""
    a, b, c, x = primals
    tangent = _by_parameters(_gauss, primals, tangents)
    if not isinstance(tangents[3], SymbolicZero):
        slope = a * b / c * _hyp2f1(a + 1.0, b + 1.0, c + 1.0, x)
        tangent = tangent + slope * tangents[3]
    return _hyp2f1(a, b, c, x), tangent


_hyp2f1.defjvp(_hyp2f1_jvp, symbolic_zeros=True)


# Series.


def _ends(x: Array) -> Array:
    """Whether x is 0, -1, -2, ..., so that its rising factorials become 0."""
    return (x <= 0) & (anp.floor(x) == x)


def _series(
    above: Sequence[DoubleDouble], below: Sequence[DoubleDouble], x: DoubleDouble
) -> tuple[DoubleDouble, DoubleDouble, Array]:
    """The sum of prod (above)_n / prod (below)_n x**n / n!, and x times its derivative.

    Also returned: whether too few digits are left. Overflow gives infinity.
    """
    one = exact(anp.ones_like(x.high))
    zero = exact(anp.zeros_like(x.high))
    last: Any = 0.0
    for parameter in (*above, *below):
        last = anp.maximum(last, -parameter.high)

    def step(state: Any) -> Any:
        """Add a term to the sum, and to that of its derivative."""
        n, term, total, slope, largest, going = state
        at = one * n
        up, down = x, one * (n + 1.0)
        for parameter in above:
            up = up * (parameter + at)
        for parameter in below:
            down = down * (parameter + at)
        down = down.where(down.high != 0, one)
        after = (term * up / down).where(going, zero)
        total = total + after
        slope = slope + after * (n + 1.0)
        size = anp.abs(after.high)
        largest = anp.maximum(largest, size)
        shrinks = (anp.abs(up.high) < 0.9 * anp.abs(down.high)) & (n > last)
        negligible = anp.maximum(_SMALL * anp.abs(total.high), _NOTHING * largest)
        ended = (size == 0) | (shrinks & (size * (n + 1.0) <= negligible))
        return n + 1.0, after, total, slope, largest, going & ~ended & (size < _GREAT)

    first = ops.as_array(ops.scalar(0.0, dtypes.float64))
    start = (first, one, one, zero, one.high, one.high > 0)
    state = while_loop(lambda s: anp.any(s[5]) & (s[0] < _MAX_TERMS), step, start)
    _, term, total, slope, largest, going = state
    small = largest * EPSILON > _LOST * anp.abs(total.high)
    lost = going | (small & (total.high != 0))
    over = anp.abs(term.high) >= _GREAT
    infinite = exact(anp.copysign(math.inf, term.high))
    return infinite.where(over, total), slope, lost & ~over


# 1F1


def _kummer(a: Array, b: Array, x: Array) -> Array:
    """1F1(a, b, x)."""
    pole = _ends(b) & ~(_ends(a) & (a >= b))
    ends = _ends(a) | ((x < 0) & _ends(b - a))
    far = (anp.abs(x) > _FAR) & ~ends
    plain = anp.isfinite(a) & anp.isfinite(b) & anp.isfinite(x)
    used = plain & ~pole & ~far
    p, q = anp.where(plain & ~pole, a, 1.0), anp.where(plain & ~pole, b, 1.0)
    z = anp.where(used, x, 0.0)
    # Kummer's transformation, with exact b - a, so that terms have one sign.
    turned = (z < 0) & ~_ends(p)
    first = sum_of(q, -p).where(turned, exact(p))
    size = anp.where(turned, -z, z)
    total, _, lost = _series([first], [exact(q)], exact(size))
    value = anp.where(lost, math.nan, total.high)
    value = anp.where(turned, anp.exp(anp.where(turned, z, 0.0)) * value, value)
    value = anp.where(far & plain, _kummer_far(p, q, anp.where(far, x, _FAR)), value)
    value = anp.where(pole, math.inf, value)
    return anp.where(plain, value, math.nan)


def _kummer_far(a: Array, b: Array, x: Array) -> Array:
    """1F1(a, b, x) for large |x|: the larger part of the series of DLMF 13.7.2."""
    down = x < 0
    size = anp.abs(x)
    above = anp.where(down, a, b - a)
    below = anp.where(down, b - a, a)

    # Terms decrease, then increase: stop at the smallest.
    def add_term(n: Array, state: Any) -> Any:
        """Add a term, unless it is larger than the one before."""
        total, term, before = state
        ratio = (above + n) * (1.0 - below + n) / ((n + 1.0) * size)
        on = (anp.abs(ratio) < anp.maximum(before, 1.0)) & (term != 0)
        term = anp.where(on, term * ratio, 0.0)
        return total + term, term, anp.abs(ratio)

    one = anp.ones_like(x)
    start = (one, one, anp.full_like(x, math.inf))
    total = fori_loop(0, _FAR_TERMS, add_term, start)[0]
    power = anp.where(down, -a, a - b)
    log = gammaln(b) - gammaln(below) + power * anp.log(size)
    sign = gammasgn(b) * gammasgn(below)
    return sign * anp.exp(log + anp.where(down, 0.0, x)) * total


# 2F1


def _gauss(a: Array, b: Array, c: Array, x: Array) -> Array:
    """2F1(a, b, c, x) for x up to 1, and beyond it where the sum ends."""
    # The parameter that ends the sum first, or else the smaller one.
    ends_a, ends_b = _ends(a), _ends(b)
    exchanged = anp.where(ends_a == ends_b, anp.where(ends_a, b > a, b < a), ends_b)
    a, b = anp.where(exchanged, b, a), anp.where(exchanged, a, b)
    ends = anp.logical_or(ends_a, ends_b)
    pole = _ends(c) & ~(ends & (a >= c))
    plain = anp.isfinite(a) & anp.isfinite(b) & anp.isfinite(c) & anp.isfinite(x)
    at_one = (x == 1) & ~ends
    used = plain & ~pole & ~at_one & ((x < 1) | ends)
    p, q, r = (anp.where(used, v, 1.0) for v in (a, b, c))
    z = anp.where(used, x, 0.0)
    # Pfaff's transformation for negative z: w = z / (z - 1), and u = 1 - w.
    turned = (z < 0) & ~ends
    u = anp.where(turned, 1.0 / anp.where(turned, 1.0 - z, 1.0), 1.0 - z)
    near = exact(z).where(~turned, exact(z) / sum_of(z, -anp.ones_like(z)))
    half = exact(0.5 * anp.ones_like(z))
    beyond = ~ends & (u < 0.5)
    second = sum_of(r, -q).where(turned, exact(q))
    parameters = exact(p), second, exact(r)
    total, slope, lost = _series(
        parameters[:2], parameters[2:], half.where(beyond, near)
    )
    total = _continued(parameters, total, slope * 2.0, anp.where(beyond, u, 0.5))
    value = anp.where(lost, math.nan, total.high)
    factor = anp.power(1.0 - anp.where(turned, z, 0.0), -p)
    value = anp.where(turned, factor * value, value)
    value = anp.where(at_one, _gauss_at_one(a, b, c), value)
    value = anp.where(pole, math.inf, value)
    return anp.where(plain & (used | pole | at_one), value, math.nan)


def _gauss_at_one(a: Array, b: Array, c: Array) -> Array:
    """2F1(a, b, c, 1), by Gauss's theorem (DLMF 15.4.20)."""
    rest = c - a - b
    there = rest > 0
    safe = anp.where(there, rest, 1.0)
    log = gammaln(c) + gammaln(safe) - gammaln(c - a) - gammaln(c - b)
    sign = gammasgn(c) * gammasgn(c - a) * gammasgn(c - b)
    zero = _ends(c - a) | _ends(c - b)
    value = anp.where(zero, 0.0, sign * anp.exp(anp.where(zero, 0.0, log)))
    return anp.where(there, value, math.inf)


def _continued(
    parameters: Sequence[DoubleDouble],
    value: DoubleDouble,
    slope: DoubleDouble,
    aim: Array,
) -> DoubleDouble:
    """2F1 at 1 - ``aim`` for ``aim`` <= 1/2, from ``value`` and ``slope`` at 1/2.

    Each Taylor series of the solution of the differential equation (DLMF 15.10.1)
    halves the distance to 1.
    """

    def step(state: Any) -> Any:
        """Halve the distance to 1 by a Taylor series, as far as the aim."""
        here, value, slope = state
        there = anp.maximum(0.5 * here, aim)
        value, slope = _taylor(parameters, here, here - there, value, slope)
        return there, value, slope

    start = (anp.full_like(aim, 0.5), value, slope)
    return while_loop(lambda s: anp.any(s[0] > aim), step, start)[1]


def _taylor(
    parameters: Sequence[DoubleDouble],
    u: Array,
    h: Array,
    value: DoubleDouble,
    slope: DoubleDouble,
) -> tuple[DoubleDouble, DoubleDouble]:
    """The solution and its derivative at 1 - u + h, from those at 1 - u."""
    a, b, c = parameters
    one = exact(anp.ones_like(u))
    there, step = exact(u), exact(h)
    both = a + b + one
    outer = c + both * exact(u - 1.0)
    inner = exact(2.0 * u - 1.0)
    scale = there * exact(1.0 - u)
    square = step * step

    def next_term(state: Any) -> Any:
        """Add a term of the series, by the recurrence of its coefficients."""
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
    state = while_loop(lambda s: s[5] & (s[0] < _MAX_TERMS), next_term, start)
    total, change = state[3], state[4]
    return total, (change / one.where(h == 0, step)).where(h != 0, slope)


__all__ = ["hyp1f1", "hyp2f1"]
