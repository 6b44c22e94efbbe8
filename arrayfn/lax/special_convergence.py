"""Series and continued fractions: loops over arrays until all elements converge.

Everything is computed in float64, because the rounding errors of a hundred iterations
in float32 would be too large.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import arrayfn.numpy as anp
from arrayfn import dtypes
from arrayfn.lax.control_flow_loops import while_loop
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array
from arrayfn.numpy.double_precision import horner

EPSILON = 2.0**-53
# Replaces a denominator of 0 in a continued fraction.
TINY = 1e-300
_MAX_STEPS = 100_000
# The coefficients of Stirling's series for lgamma(x): of 1 / x, 1 / x**3, ...
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)
# Derivatives of a fraction converge a few iterations after its value.
_STEPS_AFTER = 6


def series(first: Array, ratio: Callable[[Any], Array]) -> Array:
    """Return the sum first * (1 + ratio(1) * (1 + ratio(2) * (...))), elementwise.

    ``ratio(n)`` is the ratio of term n to term n - 1, for a float64 scalar n. The loop
    stops when no element changes, or after 100,000 terms.
    """

    def step(state: Any) -> Any:
        """Add a term to the state (n, term, total, whether a sum still changes)."""
        n, term, total, _ = state
        term = term * ratio(n)
        total = total + term
        going = anp.any(anp.abs(term) > 1e-2 * EPSILON * anp.abs(total))
        return n + 1.0, term, total, going

    start = ops.as_array(ops.scalar(1.0, dtypes.float64))
    going = ops.as_array(ops.scalar(True, dtypes.bool_))
    # s[3] is whether a sum still changes, and s[0] is n.
    _, _, total, _ = while_loop(
        lambda s: s[3] & (s[0] < _MAX_STEPS), step, (start, first, first, going)
    )
    return total


def continued_fraction(
    whole: Array, part: Callable[[Any], tuple[Array, Array]]
) -> Array:
    """Return whole + a1 / (b1 + a2 / (b2 + ...)), where ``part(n)`` returns (an, bn).

    The method is Lentz's modified algorithm (Thompson and Barnett, 1986). The loop
    stops when no element changes for six steps, or after 100,000 steps.
    """

    def step(state: Any) -> Any:
        """Multiply the value by c * d, the ratio of two successive approximants.

        The state is (n, value, c, d, steps without a change).
        """
        n, value, c, d, converged_steps = state
        a, b = part(n)
        d = 1.0 / _not_zero(b + a * d)
        c = _not_zero(b + a / c)
        change = c * d
        # NaN counts as converged.
        converged = ~anp.any(anp.abs(change - 1.0) > 8 * EPSILON)
        converged_steps = anp.where(converged, converged_steps + 1, 0)
        return n + 1.0, value * change, c, d, converged_steps

    first = _not_zero(whole)
    one = ops.as_array(ops.scalar(1.0, dtypes.float64))
    none = ops.as_array(ops.scalar(0, dtypes.int64))
    # s[4] counts steps without a change, and s[0] is n.
    _, value, *_ = while_loop(
        lambda s: (s[4] < _STEPS_AFTER) & (s[0] < _MAX_STEPS),
        step,
        (one, first, first, anp.zeros_like(first), none),
    )
    return value


def stirling(x: Array) -> Array:
    """Return lgamma(x) - ((x - 1/2) log(x) - x + log(2 pi) / 2), for abs(x) >= 10.

    This is the sum of Stirling's series, whose terms fall to 1e-17. x may be complex,
    with a positive real part.
    """
    inverse = 1.0 / x
    return horner(inverse * inverse, _STIRLING) * inverse


def _not_zero(x: Array) -> Array:
    """Replace elements of x that are nearly 0 by a tiny number, to divide by."""
    return anp.where(anp.abs(x) < TINY, TINY, x)
