"""The gamma distribution and those built on it: beta, chi-square, t, F, ...

Samples are differentiated by their parameters at fixed quantiles (Figurnov et al.,
Implicit reparameterization gradients, 2018).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import arrayfn.numpy as anp
from arrayfn import dtypes, lax
from arrayfn.dtypes import DType
from arrayfn.errors import ShapeError, user_location
from arrayfn.ir.layout import Shape
from arrayfn.lax.special_incomplete_gamma import log_sample_slope
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike, DTypeLike
from arrayfn.random.bits import AnyKey, floating, parameter, shape_for, unit
from arrayfn.random.continuous import exponential, real_normal
from arrayfn.random.discrete import rademacher
from arrayfn.random.keys import Key, fold_in, single, split
from arrayfn.transforms.custom import custom_jvp


def gamma(
    key: AnyKey, a: ArrayLike, shape: Any = None, dtype: DTypeLike = None
) -> Array:
    """Return gamma-distributed random numbers of shape ``a`` > 0 and scale 1.

    Their density is proportional to x**(a - 1) exp(-x). ``a`` broadcasts to ``shape``,
    which is by default the shape of ``a``. For very small ``a``, samples underflow, so
    use ``loggamma``.

    >>> from arrayfn import random
    >>> round(float(random.gamma(random.key(0), 3.0, (1000,)).mean()))
    3
    """
    one_key, a, wanted, kind = _prepared("gamma", key, a, shape, dtype)
    return anp.exp(_samples(one_key.data, a, wanted, kind))


def loggamma(
    key: AnyKey, a: ArrayLike, shape: Any = None, dtype: DTypeLike = None
) -> Array:
    """Return the logarithm of the numbers that ``gamma`` gives, without underflow."""
    one_key, a, wanted, kind = _prepared("loggamma", key, a, shape, dtype)
    return _samples(one_key.data, a, wanted, kind)


def _prepared(
    name: str, key: AnyKey, a: ArrayLike, shape: Any, dtype: DTypeLike
) -> tuple[Key, Array, Shape, DType]:
    """Return the key, ``a`` in the result's shape, that shape, and the dtype.

    Errors call the function ``name``.
    """
    kind = floating(name, dtype)
    wanted = shape_for(name, shape, a)
    spread = anp.broadcast_to(parameter(a, kind), wanted)
    return single(name, key), spread, wanted, kind


def _samples(words: Array, a: Array, shape: Shape, dtype: DType) -> Array:
    """Return logarithms of gamma samples for ``a`` of this ``shape`` and ``dtype``.

    ``words`` are those of the key. 16-bit samples are drawn in float32.
    """
    wide = dtypes.compute_dtype(dtype)
    sample = _log_gamma(words, ops.convert(a, wide), shape, wide)
    return ops.convert(sample, dtype)


def _drawn(words: Array, a: Array, shape: Shape, dtype: DType) -> Array:
    """Return logarithms of gamma samples for positive ``a``, by the key's ``words``.

    Source: Marsaglia and Tsang, A simple method for generating gamma variables, 2000. A
    sample is d v, where v = (1 + c x)**3 for a normal number x. Each round draws all
    elements, until every one has been accepted: about five rounds for a million
    elements.
    """
    boost_key, loop_key = split(Key(words))
    boosted = anp.less(a, 1)
    alpha = anp.where(boosted, anp.add(a, 1), a)
    d = anp.subtract(alpha, 1 / 3)
    c = anp.divide(1 / 3, anp.sqrt(d))

    def propose(state: Any) -> Any:
        """Draw log(v) for all elements, and keep those that are accepted first.

        v is (1 + c x)**3 for a normal number x. It is accepted if log(u) < x**2 / 2 + d
        (1 - v + log(v)) for a uniform number u. The state is the number of the round,
        which elements are accepted, and their log(v).
        """
        number, accepted, value = state
        normal_key, uniform_key = split(fold_in(loop_key, number))
        x = real_normal(normal_key, shape, dtype)
        u = unit(uniform_key, shape, dtype)
        root = anp.add(anp.multiply(x, c), 1)
        positive = anp.greater(root, 0)
        log_v = anp.multiply(3, anp.log(anp.where(positive, root, 1)))
        rest = anp.add(anp.subtract(1, anp.exp(log_v)), log_v)
        limit = anp.add(anp.multiply(0.5, anp.square(x)), anp.multiply(d, rest))
        # log(1 - u), as 1 - u is never 0.
        good = anp.less(anp.log1p(anp.negative(u)), limit)
        good = anp.logical_and(positive, good)
        # Elements with invalid parameters need not be accepted.
        good = anp.logical_or(good, anp.logical_not(anp.isfinite(d)))
        new = anp.logical_and(good, anp.logical_not(accepted))
        value = anp.where(new, log_v, value)
        return anp.add(number, 1), anp.logical_or(accepted, good), value

    state = (
        anp.zeros((), dtype=dtypes.uint32),
        anp.zeros(shape, dtype=bool),
        anp.zeros(shape, dtype=dtype),
    )
    # s[1] says which elements are accepted.
    _, _, log_v = lax.while_loop(
        lambda s: anp.logical_not(anp.all(s[1])), propose, state
    )
    # A sample for a + 1, times u**(1 / a), is a sample for a.
    log_u = anp.negative(exponential(boost_key, shape, dtype))
    boost = anp.where(boosted, anp.divide(log_u, anp.where(boosted, a, 1)), 0)
    return anp.add(anp.add(anp.log(d), log_v), boost)


@partial(custom_jvp, nondiff_argnums=(2, 3))
def _log_gamma(words: Array, a: Array, shape: Shape, dtype: DType) -> Array:
    """Return logarithms of gamma samples; NaN unless ``a`` is positive."""
    positive = anp.greater(a, 0)
    sample = _drawn(words, anp.where(positive, a, 1), shape, dtype)
    return anp.where(positive, sample, anp.nan)


@_log_gamma.defjvp
def _log_gamma_jvp(
    shape: Shape, dtype: DType, primals: Any, tangents: Any
) -> tuple[Array, Array]:
    """Return the samples, and how they change with ``a`` at fixed quantiles."""
    (words, a), (_, da) = primals, tangents
    sample = _log_gamma(words, a, shape, dtype)
    slope = log_sample_slope(*[anp.astype(x, dtypes.float64) for x in (a, sample)])
    return sample, anp.multiply(anp.astype(slope, dtype), da)


def beta(
    key: AnyKey,
    a: ArrayLike,
    b: ArrayLike,
    shape: Any = None,
    dtype: DTypeLike = None,
) -> Array:
    """Return random numbers in [0, 1] of the beta distribution with ``a`` and ``b``.

    Their density is proportional to x**(a - 1) (1 - x)**(b - 1). They are A / (A + B)
    for ``gamma`` numbers A and B of ``a`` and ``b``.
    """
    kind = floating("beta", dtype)
    wanted = shape_for("beta", shape, a, b)
    first, second = split(single("beta", key))
    log_a = loggamma(first, parameter(a, kind), wanted, kind)
    log_b = loggamma(second, parameter(b, kind), wanted, kind)
    # 1 / (1 + exp(log b - log a)), which neither overflows nor loses small numbers.
    return lax.logistic(anp.subtract(log_a, log_b))


def dirichlet(
    key: AnyKey, alpha: ArrayLike, shape: Any = None, dtype: DTypeLike = None
) -> Array:
    """Return random vectors of positive numbers with sum 1, for ``alpha`` [..., n].

    Their density is proportional to the product of x**(alpha - 1). The result has shape
    [*shape, n]. By default, ``shape`` is that of alpha without its last axis. A number
    alpha raises ShapeError.

    >>> import numpy as np
    >>> from arrayfn import random
    >>> random.dirichlet(random.key(0), np.ones(3), (5,)).sum(-1)
    array([1., 1., 1., 1., 1.])
    """
    kind = floating("dirichlet", dtype)
    type = ops.type_of_operand("random.dirichlet", alpha)
    if not type.shape:
        raise ShapeError(
            f"random.dirichlet takes alpha of shape [..., n], not {type}",
            user_location(),
        )
    batch = (
        type.shape[:-1] if shape is None else ops.as_shape("random.dirichlet", shape)
    )
    wanted = (*batch, type.shape[-1])
    shape_for("dirichlet", wanted, alpha)
    logs = loggamma(key, parameter(alpha, kind), wanted, kind)
    shifted = anp.subtract(logs, anp.max(logs, -1, keepdims=True))
    weights = anp.exp(shifted)
    return anp.divide(weights, anp.sum(weights, -1, keepdims=True))


def chisquare(
    key: AnyKey, df: ArrayLike, shape: Any = None, dtype: DTypeLike = None
) -> Array:
    """Return sums of the squares of ``df`` standard normal numbers.

    They are twice ``gamma`` numbers of df / 2.
    """
    kind = floating("chisquare", dtype)
    half = anp.multiply(parameter(df, kind), 0.5)
    return anp.multiply(gamma(key, half, shape, kind), 2.0)


def f(
    key: AnyKey,
    dfnum: ArrayLike,
    dfden: ArrayLike,
    shape: Any = None,
    dtype: DTypeLike = None,
) -> Array:
    """Return ratios of two chi-square numbers, each over its degrees of freedom.

    ``dfnum`` and ``dfden`` are the degrees of freedom of numerator and denominator.
    """
    kind = floating("f", dtype)
    wanted = shape_for("f", shape, dfnum, dfden)
    first, second = split(single("f", key))
    dfnum, dfden = parameter(dfnum, kind), parameter(dfden, kind)
    top = anp.divide(chisquare(first, dfnum, wanted, kind), dfnum)
    return anp.divide(top, anp.divide(chisquare(second, dfden, wanted, kind), dfden))


def t(key: AnyKey, df: ArrayLike, shape: Any = None, dtype: DTypeLike = None) -> Array:
    """Return random numbers of Student's distribution with ``df`` degrees of freedom.

    They are a normal number times sqrt(h / g), for h = df / 2 and a ``gamma`` number g
    of h.
    """
    kind = floating("t", dtype)
    wanted = shape_for("t", shape, df)
    normal_key, gamma_key = split(single("t", key))
    half = anp.multiply(parameter(df, kind), 0.5)
    drawn = real_normal(normal_key, wanted, kind)
    ratio = anp.divide(half, gamma(gamma_key, half, wanted, kind))
    return anp.multiply(drawn, anp.sqrt(ratio))


def generalized_normal(
    key: AnyKey, p: float, shape: Any = (), dtype: DTypeLike = None
) -> Array:
    """Return random numbers with density proportional to exp(-abs(x)**p).

    They are a random sign times g**(1 / p), for a gamma number g of shape 1 / p.
    """
    kind = floating("generalized_normal", dtype)
    wanted = ops.as_shape("random.generalized_normal", shape)
    gamma_key, sign_key = split(single("generalized_normal", key))
    logs = loggamma(gamma_key, 1 / p, wanted, kind)
    size = anp.exp(anp.multiply(logs, 1 / p))
    return anp.multiply(rademacher(sign_key, wanted, kind), size)


def ball(
    key: AnyKey, d: int, p: float = 2.0, shape: Any = (), dtype: DTypeLike = None
) -> Array:
    """Return uniform random points in the unit ball of R**d in the p-norm.

    The result is [*shape, d]: z / (sum(abs(z)**p) + e)**(1 / p), for
    ``generalized_normal`` numbers z and an exponential number e. See Barthe et al., A
    probabilistic approach to the geometry of the l_p^n-ball, 2005.

    >>> import numpy as np
    >>> from arrayfn import random
    >>> points = random.ball(random.key(0), 3, shape=(100,))
    >>> bool((np.linalg.norm(points, axis=-1) <= 1).all())
    True
    """
    kind = floating("ball", dtype)
    wanted = ops.as_shape("random.ball", shape)
    point_key, radius_key = split(single("ball", key))
    point = generalized_normal(point_key, p, (*wanted, d), kind)
    radius = exponential(radius_key, wanted, kind)
    total = anp.add(anp.sum(anp.power(anp.abs(point), p), -1), radius)
    return anp.divide(point, anp.expand_dims(anp.power(total, 1 / p), -1))


__all__ = [
    "ball",
    "beta",
    "chisquare",
    "dirichlet",
    "f",
    "gamma",
    "generalized_normal",
    "loggamma",
    "t",
]
