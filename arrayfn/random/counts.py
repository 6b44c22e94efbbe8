"""Distributions of counts: Poisson, binomial, multinomial.

For small means the distribution function is inverted: its terms are added up until the
sum exceeds a uniform number. For large means Hörmann's transformed rejection is used;
each round draws all elements, until every one has been accepted. All is computed in
float64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import arrayfn.numpy as anp
from arrayfn import dtypes, lax
from arrayfn.ir.layout import Shape
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike, DTypeLike
from arrayfn.numpy._parameters import also_takes
from arrayfn.random.bits import (
    AnyKey,
    floating,
    integer,
    parameter,
    shape_for,
    unit,
)
from arrayfn.random.keys import Key, fold_in, single, split

_SMALL_MEAN = 10.0  # below, the distribution function is inverted
_HARMLESS_MEAN = 100.0  # replaces the mean of elements that rejection skips


def poisson(
    key: AnyKey, lam: ArrayLike, shape: Any = None, dtype: DTypeLike = None
) -> Array:
    """Return Poisson random numbers (int64) with mean ``lam``.

    ``lam`` broadcasts to ``shape``, which is by default its shape. A negative or NaN
    ``lam`` gives -1. An infinite ``lam`` or an overflow gives the largest integer.

    >>> from arrayfn import random
    >>> round(float(random.poisson(random.key(0), 4.0, (2000,)).mean()))
    4
    """
    kind = integer("poisson", dtype)
    wanted = shape_for("poisson", shape, lam)
    rate = anp.broadcast_to(parameter(lam, dtypes.float64), wanted)
    small_key, large_key = split(single("poisson", key))
    small = rate < _SMALL_MEAN
    # Each method computes all elements. Those of the other method get a mean for which
    # it ends at once, or are skipped.
    small_rate = anp.where((rate >= 0) & small, rate, 0.0)
    # The probability of 0 is exp(-rate), and P(k) / P(k - 1) = rate / k.
    below = _inverted(small_key, wanted, anp.exp(-small_rate), lambda k: small_rate / k)
    large = (rate >= _SMALL_MEAN) & (rate < anp.inf)
    large_rate = anp.where(large, rate, _HARMLESS_MEAN)
    above = _poisson_rejection(large_key, large_rate, ~large)
    value = anp.where(small, below, anp.where(large, above, rate))
    return anp.astype(anp.where(rate >= 0, value, -1.0), kind)


def _inverted(
    key: Key, shape: Shape, first: Array, ratio: Callable[[Any], Array]
) -> Array:
    """Return the smallest k whose distribution function exceeds a uniform number.

    ``first`` is the probability of 0, and ``ratio(k)`` is the probability of k over
    that of k - 1. One loop adds up the probabilities of all elements.
    """
    u = unit(key, shape, dtypes.float64)

    def step(state: Any) -> Any:
        """Add the probability of k, and count k where u is not below the sum so far.

        The state is k, the counts, the probabilities of k - 1, and their sums.
        """
        k, count, mass, total = state
        going = (u >= total) & (mass > 0)
        mass = mass * ratio(k)
        count = anp.where(going, k, count)
        return k + 1.0, count, anp.where(going, mass, 0.0), total + mass

    def any_left(state: Any) -> Array:
        """Return whether the sum of some element has not exceeded its u."""
        _, _, mass, total = state
        return anp.any((u >= total) & (mass > 0))

    zero = anp.zeros(shape, dtype=dtypes.float64)
    mass = anp.broadcast_to(first, shape)
    one = ops.as_array(ops.scalar(1.0, dtypes.float64))
    _, count, _, _ = lax.while_loop(any_left, step, (one, zero, mass, mass))
    return count


def _until_accepted(key: Key, skipped: Array, propose: Callable[..., Any]) -> Array:
    """Draw samples by rejection until all are accepted.

    ``propose(u, v)`` returns samples and which of them are accepted, for u uniform in
    [-1/2, 1/2) and v uniform in (0, 1]. Elements in ``skipped``, bool, need not be
    accepted. Each round draws all elements, with the key of its number.
    """
    shape = tuple(skipped.shape)

    def step(state: Any) -> Any:
        """Propose samples, and keep those of elements that have none so far."""
        number, accepted, value = state
        first, second = split(fold_in(key, number))
        u, v = (unit(k, shape, dtypes.float64) for k in (first, second))
        # 1 - v is never 0.
        sample, good = propose(u - 0.5, 1.0 - v)
        value = anp.where(accepted, value, sample)
        return number + 1, accepted | good, value

    state = (
        anp.zeros((), dtype=dtypes.uint32),
        skipped,
        anp.zeros(shape, dtype=dtypes.float64),
    )
    # s[1] says which elements are accepted.
    _, _, value = lax.while_loop(lambda s: ~anp.all(s[1]), step, state)
    return value


def _poisson_rejection(key: Key, rate: Array, skipped: Array) -> Array:
    """Return Poisson numbers with mean ``rate``, which is 10 or more.

    Elements in ``skipped`` need none. The method is Hörmann's transformed rejection
    (The transformed rejection method for generating Poisson random variables, 1993,
    algorithm PTRS), with constants of that paper: ``a`` and b define the transformation
    of a uniform number u to k, and v at most ``quick`` is accepted without computing
    probabilities.
    """
    log_rate = anp.log(rate)
    b = 0.931 + 2.53 * anp.sqrt(rate)
    a = -0.059 + 0.02483 * b
    inverse_alpha = 1.1239 + 1.1328 / (b - 3.4)
    quick = 0.9277 - 3.6224 / (b - 2.0)

    def propose(u: Array, v: Array) -> tuple[Array, Array]:
        """Return numbers from two uniform ones, and whether they are accepted.

        u is in [-1/2, 1/2), and v in (0, 1].
        """
        distance = 0.5 - anp.abs(u)
        near = anp.maximum(distance, 1e-300)  # not 0, by which u is divided
        k = anp.floor((2.0 * a / near + b) * u + rate + 0.43)
        possible = (k >= 0) & ((distance >= 0.013) | (v <= distance))
        count = anp.where(possible, k, 0.0)
        level = anp.log(v * inverse_alpha / (a / (near * near) + b))
        # The right side is log(P(count)).
        good = level <= count * log_rate - rate - lax.lgamma(count + 1.0)
        return count, ((distance >= 0.07) & (v <= quick)) | (possible & good)

    return _until_accepted(key, skipped, propose)


def binomial(
    key: AnyKey,
    n: ArrayLike,
    p: ArrayLike,
    shape: Any = None,
    dtype: DTypeLike = None,
) -> Array:
    """Return the number of successes (float64) in ``n`` trials of probability ``p``.

    ``n`` is rounded down. The result is NaN if n is negative or p is not in [0, 1].

    >>> from arrayfn import random
    >>> round(float(random.binomial(random.key(0), 20, 0.25, (2000,)).mean()))
    5
    """
    kind = floating("binomial", dtype)
    wanted = shape_for("binomial", shape, n, p)
    count = anp.floor(anp.broadcast_to(parameter(n, dtypes.float64), wanted))
    chance = anp.broadcast_to(parameter(p, dtypes.float64), wanted)
    valid = (count >= 0) & (count < anp.inf) & (chance >= 0) & (chance <= 1)
    # Count successes or failures, whichever are rarer.
    q = anp.where(valid, anp.minimum(chance, 1.0 - chance), 0.0)
    trials = anp.where(valid, count, 0.0)
    small = trials * q < _SMALL_MEAN
    small_key, large_key = split(single("binomial", key))
    # Each method computes all elements. Those of the other method get no trials, or are
    # skipped.
    few_q, few_trials = anp.where(small, q, 0.0), anp.where(small, trials, 0.0)
    odds = few_q / (1.0 - few_q)
    below = _inverted(
        small_key,
        wanted,
        anp.exp(few_trials * anp.log1p(-few_q)),
        lambda k: odds * (few_trials - k + 1.0) / k,
    )
    above = _binomial_rejection(
        large_key,
        anp.where(small, _HARMLESS_MEAN, trials),
        anp.where(small, 0.5, q),
        small,
    )
    value = anp.where(small, below, above)
    value = anp.where(chance > 0.5, trials - value, value)
    # Infinitely many trials have infinitely many successes, or none.
    infinite_trials = anp.where(chance > 0, anp.inf, 0.0)
    infinite_trials = anp.where((chance >= 0) & (chance <= 1), infinite_trials, anp.nan)
    other = anp.where(count == anp.inf, infinite_trials, anp.nan)
    return anp.astype(anp.where(valid, value, other), kind)


def _binomial_rejection(key: Key, n: Array, p: Array, skipped: Array) -> Array:
    """Return binomial numbers of ``n`` trials with a mean of 10 or more and p <= 1/2.

    Elements in ``skipped`` need none. The method is Hörmann's transformed rejection
    (The generation of binomial random variates, 1993, algorithm BTRS), with constants
    of that paper: ``a`` and b define the transformation of a uniform number u to k, and
    v at most ``quick`` is accepted without computing probabilities. Otherwise the
    logarithms of probabilities are compared, relative to that of the mode.
    """
    spread = anp.sqrt(n * p * (1.0 - p))
    b = 1.15 + 2.53 * spread
    a = -0.0873 + 0.0248 * b + 0.01 * p
    center = n * p + 0.5
    quick = 0.92 - 4.2 / b
    alpha = (2.83 + 5.1 / b) * spread
    log_odds = anp.log(p) - anp.log1p(-p)
    mode = anp.floor((n + 1.0) * p)
    at_mode = lax.lgamma(mode + 1.0) + lax.lgamma(n - mode + 1.0)

    def propose(u: Array, v: Array) -> tuple[Array, Array]:
        """Return numbers from two uniform ones, and whether they are accepted.

        u is in [-1/2, 1/2), and v in (0, 1]. The constants are those of BTRS, which the
        enclosing function computes.
        """
        distance = 0.5 - anp.abs(u)
        near = anp.maximum(distance, 1e-300)  # not 0, by which u is divided
        k = anp.floor((2.0 * a / near + b) * u + center)
        possible = (k >= 0) & (k <= n)
        count = anp.where(possible, k, 0.0)
        level = anp.log(v * alpha / (a / (near * near) + b))
        here = lax.lgamma(count + 1.0) + lax.lgamma(n - count + 1.0)
        # The right side is log(P(count) / P(mode)).
        good = level <= at_mode - here + (count - mode) * log_odds
        # Where the first condition holds, BTRS accepts any k: all are possible there.
        return count, ((distance >= 0.07) & (v <= quick)) | (possible & good)

    return _until_accepted(key, skipped, propose)


@also_takes("unroll")
def multinomial(
    key: AnyKey,
    n: ArrayLike,
    p: ArrayLike,
    *,
    shape: Any = None,
    dtype: DTypeLike = None,
) -> Array:
    """Return the counts of outcomes in ``n`` trials with probabilities ``p`` [..., m].

    ``shape`` ends with m, and is by default the shape of p. The counts are float64 and
    add up to n. The count of each outcome is binomial, given the trials that are left.

    >>> import numpy as np
    >>> from arrayfn import random
    >>> float(random.multinomial(random.key(0), 7, np.array([0.2, 0.8])).sum())
    7.0
    """
    kind = floating("multinomial", dtype)
    probabilities = parameter(p, dtypes.float64)
    wanted = tuple(probabilities.shape) if shape is None else ops.as_shape("p", shape)
    probabilities = anp.broadcast_to(probabilities, wanted)
    trials = anp.broadcast_to(parameter(n, dtypes.float64), wanted[:-1])
    # Outcome k has the probability p[k] / (p[k] + p[k + 1] + ...) in the trials that
    # have none of the outcomes before.
    outcomes_first = anp.moveaxis(probabilities, -1, 0)
    remaining = anp.flip(anp.cumsum(anp.flip(outcomes_first, 0), 0), 0)
    ratios = anp.clip(
        outcomes_first / anp.where(remaining > 0, remaining, 1.0), 0.0, 1.0
    )
    keys = split(single("multinomial", key), wanted[-1])

    def step(left: Array, outcome: Any) -> tuple[Array, Array]:
        """Draw the count of one outcome in the trials that are ``left``.

        ``outcome`` has its probability in these trials, and the words of its key.
        """
        ratio, words = outcome
        count = binomial(Key(words), left, ratio)
        return left - count, count

    _, counts = lax.scan(step, trials, (ratios, keys.data))
    return anp.astype(anp.moveaxis(counts, 0, -1), kind)


__all__ = ["binomial", "multinomial", "poisson"]
