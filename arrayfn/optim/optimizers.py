"""Optimizers: rules that scale gradients, and the named chains of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import arrayfn.numpy as anp
from arrayfn import tree
from arrayfn.optim.transformations import (
    Array,
    Optimizer,
    Rate,
    Tree,
    add_decayed_weights,
    cast,
    chain,
    need_params,
    scale_by_learning_rate,
    stateless,
    zero_count,
    zeros_like,
)

# A tree of bools like the parameters, a function that gives such a tree, or None: all.
Mask = Tree | Callable[[Tree], Tree] | None


class TraceState(NamedTuple):
    """The decaying sums of gradients, a tree like the parameters."""

    trace: Tree


class MomentState(NamedTuple):
    """The number of updates, and moving means of gradients and of their squares.

    ``mean`` and ``square`` are trees like the parameters.
    """

    count: Array
    mean: Tree
    square: Tree


class SquareState(NamedTuple):
    """The moving means, or the sums, of squared gradients."""

    square: Tree


class CenteredState(NamedTuple):
    """The moving means of squared gradients and of gradients."""

    square: Tree
    mean: Tree


class MeanState(NamedTuple):
    """The moving means of gradients."""

    mean: Tree


# The rules.


def trace(decay: float, nesterov: bool = False) -> Optimizer:
    """Replace gradients g by a momentum m = decay * m + g.

    With ``nesterov``, the update is decay * m + g, where m is the new momentum.
    """

    def init(params: Tree) -> TraceState:
        """Return momenta of 0."""
        return TraceState(zeros_like(params))

    def update(
        updates: Tree, state: TraceState, params: Tree = None
    ) -> tuple[Tree, TraceState]:
        """Return the momenta, a step ahead for ``nesterov``, and the state."""
        momenta = tree.map(lambda m, g: decay * m + g, state.trace, updates)
        ahead = tree.map(lambda m, g: decay * m + g, momenta, updates)
        return (ahead if nesterov else momenta), TraceState(momenta)

    return Optimizer(init, update)


def scale_by_rms(
    decay: float = 0.9,
    eps: float = 1e-8,
    initial_scale: float = 0.0,
    centered: bool = False,
) -> Optimizer:
    """Divide gradients g by sqrt(v) + eps, where v is a moving mean of g**2.

    ``decay`` is the weight of the old mean, which starts at ``initial_scale``. With
    ``centered``, v is the moving variance: the square of the moving mean of g is
    subtracted.
    """

    def init(params: Tree) -> SquareState | CenteredState:
        """Return means of ``initial_scale`` for squares, and 0 for gradients."""
        square = tree.map(lambda p: anp.full_like(p, initial_scale), params)
        if centered:
            return CenteredState(square, zeros_like(params))
        return SquareState(square)

    def update(
        updates: Tree, state: SquareState | CenteredState, params: Tree = None
    ) -> tuple[Tree, SquareState | CenteredState]:
        """Return the scaled ``updates``, and the moving means."""
        square = _moving(state.square, tree.map(anp.square, updates), decay)
        if not isinstance(state, CenteredState):
            scaled = tree.map(lambda g, v: g / (anp.sqrt(v) + eps), updates, square)
            return scaled, SquareState(square)
        mean = _moving(state.mean, updates, decay)
        scaled = tree.map(
            lambda g, v, m: g / (anp.sqrt(v - anp.square(m)) + eps),
            updates,
            square,
            mean,
        )
        return scaled, CenteredState(square, mean)

    return Optimizer(init, update)


def scale_by_rss(
    initial_accumulator_value: float = 0.1, eps: float = 1e-7
) -> Optimizer:
    """Divide gradients g by sqrt(v + eps), where v is the sum of all g**2 so far.

    The sum starts at ``initial_accumulator_value``.
    """

    def init(params: Tree) -> SquareState:
        """Return sums of ``initial_accumulator_value``."""
        return SquareState(
            tree.map(lambda p: anp.full_like(p, initial_accumulator_value), params)
        )

    def update(
        updates: Tree, state: SquareState, params: Tree = None
    ) -> tuple[Tree, SquareState]:
        """Return g / sqrt(v + eps), and the sums v of g**2 for ``updates`` g."""
        total = tree.map(lambda v, g: v + anp.square(g), state.square, updates)
        # A sum of 0 means that all gradients were 0, so there is nothing to scale.
        scaled = tree.map(
            lambda g, v: g * anp.where(v > 0, 1 / anp.sqrt(v + eps), 0), updates, total
        )
        return scaled, SquareState(total)

    return Optimizer(init, update)


def scale_by_adam(
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    nesterov: bool = False,
) -> Optimizer:
    """Replace gradients g by m / (sqrt(v + eps_root) + eps).

    m and v are the moving means of g and g**2, with decays ``b1`` and ``b2``. Both are
    unbiased: divided by the sum of their weights. See Kingma and Ba, Adam, 2015,
    algorithm 1, and for ``nesterov`` Dozat, 2016.
    """

    def init(params: Tree) -> MomentState:
        """Return a count and means of 0."""
        return MomentState(zero_count(), zeros_like(params), zeros_like(params))

    def update(
        updates: Tree, state: MomentState, params: Tree = None
    ) -> tuple[Tree, MomentState]:
        """Return m / (sqrt(v + eps_root) + eps), and the count and means."""
        count = anp.add(state.count, 1)
        mean = _moving(state.mean, updates, b1)
        square = _moving(state.square, tree.map(anp.square, updates), b2)
        if nesterov:
            # The mean of the next step, with g in place of the next gradient.
            ahead = _unbiased(mean, b1, anp.add(count, 1))
            now = _unbiased(updates, b1, count)
            corrected = _moving(ahead, now, b1)
        else:
            corrected = _unbiased(mean, b1, count)
        scaled = tree.map(
            lambda m, v: m / (anp.sqrt(v + eps_root) + eps),
            corrected,
            _unbiased(square, b2, count),
        )
        return scaled, MomentState(count, mean, square)

    return Optimizer(init, update)


def scale_by_lion(b1: float = 0.9, b2: float = 0.99) -> Optimizer:
    """Replace gradients g by the sign of b1 * m + (1 - b1) * g.

    m is a moving mean of g with decay ``b2``. See Chen et al., 2023, algorithm 2.
    """

    def init(params: Tree) -> MeanState:
        """Return means of 0."""
        return MeanState(zeros_like(params))

    def update(
        updates: Tree, state: MeanState, params: Tree = None
    ) -> tuple[Tree, MeanState]:
        """Return sign(b1 * m + (1 - b1) * g), and the moving means m."""
        direction = tree.map(anp.sign, _moving(state.mean, updates, b1))
        return direction, MeanState(_moving(state.mean, updates, b2))

    return Optimizer(init, update)


def scale_by_trust_ratio() -> Optimizer:
    """Multiply the update of each leaf by the ratio of two norms.

    It is the norm of the leaf's parameters over the norm of the update, and 1 where
    either norm is 0 (You et al., Large batch optimization, 2020, algorithm 2). The
    update needs ``params``: ArgumentError without.
    """

    def scaled(updates: Tree, params: Tree) -> Tree:
        """Scale the update of each leaf to the norm of its parameters."""
        need_params("lamb", params)
        return tree.map(_trusted, updates, params)

    return stateless(scaled)


def _trusted(update: Array, parameter: Array) -> Array:
    """Scale an update to the norm of its parameter; if either norm is 0, keep it."""
    parameter_norm = anp.sqrt(anp.sum(anp.square(parameter)))
    update_norm = anp.sqrt(anp.sum(anp.square(update)))
    is_zero = (parameter_norm == 0) | (update_norm == 0)
    ratio = anp.where(is_zero, 1, parameter_norm / anp.where(is_zero, 1, update_norm))
    return update * cast(ratio, update)


def _moving(mean: Tree, values: Tree, decay: float) -> Tree:
    """Return the moving means decay * mean + (1 - decay) * value, leaf by leaf."""
    return tree.map(lambda m, x: decay * m + (1 - decay) * x, mean, values)


def _unbiased(mean: Tree, decay: float, count: Array) -> Tree:
    """Divide moving means that began at 0 by the sum of their weights.

    After ``count`` values, that sum is 1 - decay**count.
    """
    weight = 1 - anp.power(anp.asarray(decay), count)
    return tree.map(lambda m: m / cast(weight, m), mean)


# The optimizers.


def sgd(
    learning_rate: Rate, momentum: float | None = None, nesterov: bool = False
) -> Optimizer:
    """Return gradient descent, optionally with ``momentum``.

    The step is m = momentum * m + g, then p = p - rate * m (Polyak, 1964). With
    ``nesterov``, the second part is p = p - rate * (g + momentum * m) (Nesterov, 1983).

    >>> import numpy as np
    >>> rule = sgd(0.1)
    >>> rule.update(np.array([2.0]), rule.init(np.zeros(1)))[0]
    array([-0.2])
    """
    rate = scale_by_learning_rate(learning_rate)
    return rate if momentum is None else chain(trace(momentum, nesterov), rate)


def momentum(
    learning_rate: Rate, decay: float = 0.9, nesterov: bool = False
) -> Optimizer:
    """Return stochastic gradient descent with momentum ``decay``; see ``sgd``."""
    return sgd(learning_rate, decay, nesterov)


def rmsprop(
    learning_rate: Rate,
    decay: float = 0.9,
    eps: float = 1e-8,
    initial_scale: float = 0.0,
    centered: bool = False,
    momentum: float | None = None,
    nesterov: bool = False,
) -> Optimizer:
    """Return an optimizer with the step p = p - rate * g / (sqrt(v) + eps).

    v is a moving mean of g**2, with weight ``decay`` for the old mean, which starts at
    ``initial_scale``. With ``centered``, the square of the mean of g is subtracted from
    v (Graves, 2013). With ``momentum``, the steps are traced as in ``sgd``. See
    Tieleman and Hinton, lecture 6.5, 2012.
    """
    scaling = scale_by_rms(decay, eps, initial_scale, centered)
    rate = scale_by_learning_rate(learning_rate)
    if momentum is None:
        return chain(scaling, rate)
    return chain(scaling, rate, trace(momentum, nesterov))


def adagrad(
    learning_rate: Rate, initial_accumulator_value: float = 0.1, eps: float = 1e-7
) -> Optimizer:
    """Return an optimizer with the step p = p - rate * g / sqrt(v + eps).

    v is the sum of g**2, which starts at ``initial_accumulator_value``. See Duchi et
    al., 2011.
    """
    scaling = scale_by_rss(initial_accumulator_value, eps)
    return chain(scaling, scale_by_learning_rate(learning_rate))


def adam(
    learning_rate: Rate,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    nesterov: bool = False,
) -> Optimizer:
    """Return an optimizer with the step p = p - rate * m / (sqrt(v + eps_root) + eps).

    m and v are unbiased moving means of g and g**2, with decays ``b1`` and ``b2``
    (Kingma and Ba, Adam, 2015). For ``nesterov``, see Dozat, 2016.

    >>> import numpy as np
    >>> rule = adam(0.1)
    >>> rule.update(np.array([2.0, -3.0]), rule.init(np.zeros(2)))[0].round(6)
    array([-0.1,  0.1])
    """
    scaling = scale_by_adam(b1, b2, eps, eps_root, nesterov)
    return chain(scaling, scale_by_learning_rate(learning_rate))


def adamw(
    learning_rate: Rate,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    weight_decay: float = 1e-4,
    mask: Mask = None,
    nesterov: bool = False,
) -> Optimizer:
    """Return ``adam`` with weight decay: it also subtracts rate * weight_decay * p.

    ``mask`` says for which parameters, as in ``add_decayed_weights``. See Loshchilov
    and Hutter, Decoupled weight decay regularization, 2019.
    """
    return chain(
        scale_by_adam(b1, b2, eps, eps_root, nesterov),
        add_decayed_weights(weight_decay, mask),
        scale_by_learning_rate(learning_rate),
    )


def lion(
    learning_rate: Rate,
    b1: float = 0.9,
    b2: float = 0.99,
    weight_decay: float = 1e-3,
    mask: Mask = None,
) -> Optimizer:
    """Return the Lion optimizer, whose steps have the size of the rate.

    The step is p = p - rate * (sign(b1 * m + (1 - b1) * g) + weight_decay * p), where m
    is a moving mean of g with decay ``b2``. ``mask`` says which parameters decay. See
    Chen et al., Symbolic discovery of optimization algorithms, 2023.
    """
    return chain(
        scale_by_lion(b1, b2),
        add_decayed_weights(weight_decay, mask),
        scale_by_learning_rate(learning_rate),
    )


def lamb(
    learning_rate: Rate,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-6,
    eps_root: float = 0.0,
    weight_decay: float = 0.0,
    mask: Mask = None,
) -> Optimizer:
    """Return ``adamw`` with a trust ratio: the step of each leaf is scaled.

    The scaled step has the norm of the leaf's parameters, times the rate. See You et
    al., Large batch optimization for deep learning, 2020.
    """
    return chain(
        scale_by_adam(b1, b2, eps, eps_root),
        add_decayed_weights(weight_decay, mask),
        scale_by_trust_ratio(),
        scale_by_learning_rate(learning_rate),
    )


__all__ = [
    "adagrad",
    "adam",
    "adamw",
    "lamb",
    "lion",
    "momentum",
    "rmsprop",
    "scale_by_adam",
    "scale_by_lion",
    "scale_by_rms",
    "scale_by_rss",
    "scale_by_trust_ratio",
    "sgd",
    "trace",
]
