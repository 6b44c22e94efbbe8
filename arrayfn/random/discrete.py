"""Discrete distributions, choices and permutations."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import arrayfn.numpy as anp
from arrayfn import dtypes
from arrayfn.errors import ArgumentError, DTypeError, ShapeError, user_location
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike, DTypeLike
from arrayfn.random.bits import (
    AnyKey,
    flat,
    integer,
    parameter,
    randint,
    raw_bits,
    rounds_of_shuffling,
    shape_for,
    uniform,
    unit,
)
from arrayfn.random.continuous import gumbel
from arrayfn.random.keys import Key, single, split


def bernoulli(
    key: AnyKey, p: ArrayLike = 0.5, shape: Any = None, mode: str = "low"
) -> Array:
    """Return True with probability ``p``, which broadcasts to ``shape``.

    The default of ``shape`` is the shape of ``p``. With ``mode="high"`` twice as many
    bits are compared, for very small p. Another mode raises ArgumentError.

    >>> from arrayfn import random
    >>> float(random.bernoulli(random.key(0), 0.25, (1000,)).mean())
    0.2...
    """
    type = ops.type_of_operand("random.bernoulli", p)
    kind = ops.floating_dtype(type.dtype)
    wanted = shape_for("bernoulli", shape, p)
    one_key = single("bernoulli", key)
    p = parameter(p, kind)
    if mode == "high":
        u = unit(one_key, (2, *wanted), kind)
        # u[0] + eps u[1] < p, without the rounding of the sum.
        fine = anp.multiply(anp.getitem(u, 1), float(anp.finfo(kind).eps))
        return anp.less(fine, anp.subtract(p, anp.getitem(u, 0)))
    if mode != "low":
        raise ArgumentError(
            f'random.bernoulli: mode must be "low" or "high", not {mode!r}',
            user_location(),
        )
    drawn = unit(one_key, flat(wanted, p), kind)
    return anp.reshape(anp.less(drawn, p), wanted)


def rademacher(key: AnyKey, shape: Any = (), dtype: DTypeLike = None) -> Array:
    """Return -1 or 1 with equal probability, int64 by default."""
    kind = dtypes.int64 if dtype is None else dtypes.canonical(dtype)
    wanted = ops.as_shape("random.rademacher", shape)
    positive = bernoulli(key, 0.5, wanted)
    return anp.where(positive, ops.scalar(1, kind), ops.scalar(-1, kind))


def geometric(
    key: AnyKey, p: ArrayLike, shape: Any = None, dtype: DTypeLike = None
) -> Array:
    """Return the number of trials up to the first success, each of probability ``p``.

    It is int64 by default, and floor(log(u) / log(1 - p)) + 1 for u uniform in (0, 1).
    """
    kind = integer("geometric", dtype)
    wanted = shape_for("geometric", shape, p)
    width = ops.floating_dtype(ops.type_of_operand("random.geometric", p).dtype)
    p = parameter(p, width)
    u = unit(single("geometric", key), wanted, width)
    # u = 0 counts as one trial: log(1) replaces log(0).
    log_u = anp.log(anp.where(anp.equal(u, 0), 1, u))
    trials = anp.divide(log_u, anp.log1p(anp.negative(p)))
    return anp.astype(anp.add(anp.floor(trials), 1), kind)


def categorical(
    key: AnyKey,
    logits: ArrayLike,
    axis: int = -1,
    shape: Any = None,
    replace: bool = True,
    mode: str = "low",
) -> Array:
    """Return random positions (int64) along ``axis``, weighted by softmax(logits).

    ``shape`` is by default the shape of ``logits`` without ``axis``. ``shape`` may have
    leading axes for several draws, and end with a shape that the default broadcasts to.
    With ``replace=False``, these draws are distinct. The method is the Gumbel-max trick
    (Maddison et al., A* sampling, 2014). Without ``replace``, it is Gumbel top-k.
    ``mode`` is that of ``gumbel``. Raises ShapeError for another end of ``shape``, or
    more distinct draws than categories.

    >>> from arrayfn import random
    >>> logits = np.log(np.array([0.0, 1.0, 0.0]) + 1e-300)
    >>> random.categorical(random.key(0), logits, shape=(4,))
    array([1, 1, 1, 1])
    """
    type = ops.type_of_operand("random.categorical", logits)
    kind = ops.floating_dtype(type.dtype)
    position = ops.normalize_axis("random.categorical", axis, type.ndim)
    batch = type.shape[:position] + type.shape[position + 1 :]
    wanted = batch if shape is None else ops.as_shape("random.categorical", shape)
    draws = wanted[: len(wanted) - len(batch)]
    inner = wanted[len(draws) :]
    fits = len(inner) == len(batch) and all(
        n in (1, m) for n, m in zip(batch, inner, strict=True)
    )
    if not fits:
        raise ShapeError(
            f"random.categorical: shape {wanted} does not end with {batch}, the shape "
            "of the logits without their axis",
            user_location(),
        )
    logits = parameter(logits, kind)
    if inner != batch:
        whole = (*inner[:position], type.shape[position], *inner[position:])
        logits = anp.broadcast_to(logits, whole)
        type = type.with_shape(whole)
    if replace:
        noise = gumbel(key, (*draws, *type.shape), kind, mode)
        return anp.argmax(anp.add(noise, logits), axis=position + len(draws))
    count = math.prod(draws)
    if count > type.shape[position]:
        raise ShapeError(
            f"random.categorical: {count} draws without replacement from "
            f"{type.shape[position]} categories; use replace=True or draw fewer",
            user_location(),
        )
    noise = gumbel(key, type.shape, kind, mode)
    scores = anp.moveaxis(anp.add(noise, logits), position, -1)
    order = anp.argsort(scores, axis=-1, descending=True)
    chosen = anp.getitem(order, (Ellipsis, slice(count)))
    return anp.reshape(anp.moveaxis(chosen, -1, 0), wanted)


def permutation(
    key: AnyKey, x: ArrayLike, axis: int = 0, independent: bool = False
) -> Array:
    """Put ``x`` into random order along ``axis``.

    An integer x stands for arange(x). With ``independent``, each vector along the axis
    gets its own order.

    >>> from arrayfn import random
    >>> sorted(random.permutation(random.key(0), 4).tolist())
    [0, 1, 2, 3]
    """
    one_key = single("permutation", key)
    type = ops.type_of_operand("random.permutation", x)
    if not type.shape:
        if type.dtype not in dtypes.INTEGERS:
            raise DTypeError(
                f"random.permutation takes an array or an integer, not {type}",
                user_location(),
            )
        ops.normalize_axis("random.permutation", axis, 1)
        return _shuffled(one_key, anp.arange(_known(x)), 0)
    position = ops.normalize_axis("random.permutation", axis, type.ndim)
    if independent or type.ndim == 1:
        return _shuffled(one_key, x, position)
    order = _shuffled(one_key, anp.arange(type.shape[position]), 0)
    return anp.take(x, order, axis=position)


def _known(x: ArrayLike) -> int:
    """Return x as an integer; ArgumentError if it is not known while tracing."""
    try:
        return int(x)
    except (TypeError, ArgumentError):
        raise ArgumentError(
            "the number of elements must be known when tracing; make it static: "
            "jit(f, static_argnums=...)",
            user_location(),
        ) from None


def _shuffled(key: Key, x: ArrayLike, axis: int) -> Array:
    """Sort x by random words along ``axis``, several times, as JAX does."""
    shape = tuple(np.shape(x))
    current = ops.same(x)
    for _ in range(rounds_of_shuffling(math.prod(shape))):
        key, word_key = split(key)
        words = raw_bits(word_key, shape, dtypes.uint32)
        order = anp.argsort(words, axis=axis, stable=True)
        current = anp.take_along_axis(current, order, axis=axis)
    return current


def choice(
    key: AnyKey,
    a: ArrayLike,
    shape: Any = (),
    replace: bool = True,
    p: ArrayLike | None = None,
    axis: int = 0,
    mode: str = "low",
) -> Array:
    """Draw elements of ``a`` along ``axis`` at random.

    An integer ``a`` stands for arange(a). ``shape`` replaces the axis. ``p`` has the
    probabilities of the elements, which are all equal by default. Without ``replace``
    no element is drawn twice. ``mode`` is that of ``gumbel``, for draws with ``p`` and
    without ``replace``. Raises ArgumentError if there are no elements, or if there are
    fewer than draws without ``replace``.

    >>> from arrayfn import random
    >>> random.choice(random.key(0), np.array([1.0, 2.0, 4.0]), (5,)).shape
    (5,)
    """
    one_key = single("choice", key)
    type = ops.type_of_operand("random.choice", a)
    wanted = ops.as_shape("random.choice", shape)
    draws = math.prod(wanted)
    scalar = not type.shape
    position = 0 if scalar else ops.normalize_axis("random.choice", axis, type.ndim)
    count = _known(a) if scalar else type.shape[position]
    if draws == 0:
        rest = () if scalar else type.shape[position + 1 :]
        return anp.zeros((*type.shape[:position], *wanted, *rest), dtype=type.dtype)
    if count <= 0:
        raise ArgumentError(
            "random.choice: the array to choose from is empty", user_location()
        )
    if not replace and draws > count:
        raise ArgumentError(
            f"random.choice: {draws} draws without replacement from {count} elements; "
            "use replace=True or draw fewer",
            user_location(),
        )
    if p is None and replace:
        index = randint(one_key, wanted, 0, count)
    elif p is None:
        order = permutation(one_key, count if scalar else a, position)
        cut = (slice(None),) * position + (slice(draws),)
        picked = anp.getitem(order, cut)
        rest = () if scalar else type.shape[position + 1 :]
        return anp.reshape(picked, (*type.shape[:position], *wanted, *rest))
    else:
        index = _weighted(one_key, p, count, wanted, replace, mode)
    return index if scalar else anp.take(a, index, axis=position)


def _weighted(
    key: Key, p: ArrayLike, count: int, shape: Any, replace: bool, mode: str
) -> Array:
    """Return positions among ``count``, with probabilities proportional to ``p``.

    With ``replace`` the cumulative distribution is inverted; else the draws are the
    largest of log p plus Gumbel numbers (Gumbel top-k: Kool et al., Stochastic beams
    and where to find them, 2019). ``mode`` is that of ``gumbel``. Raises ShapeError
    unless p is [count].
    """
    type = ops.type_of_operand("random.choice", p)
    if type.shape != (count,):
        raise ShapeError(
            f"random.choice: p must have one probability for each of {count} "
            f"elements, but is {type}",
            user_location(),
        )
    kind = ops.floating_dtype(type.dtype)
    p = parameter(p, kind)
    if replace:
        cumulative = anp.cumsum(p)
        # The level is in (0, total]: elements of probability 0 are never drawn.
        u = anp.subtract(1.0, uniform(key, shape, kind))
        level = anp.multiply(anp.getitem(cumulative, -1), u)
        return anp.astype(anp.searchsorted(cumulative, level), dtypes.int64)
    scores = anp.add(gumbel(key, (count,), kind, mode), anp.log(p))
    order = anp.argsort(scores, descending=True)
    return anp.reshape(anp.getitem(order, slice(math.prod(shape))), shape)


__all__ = [
    "bernoulli",
    "categorical",
    "choice",
    "geometric",
    "permutation",
    "rademacher",
]
