"""The parts of optimizers: pure (init, update) pairs, and chains of them.

``init(params)`` gives a state; ``update(gradients, state, params)`` gives updates, of
the structure of the gradients, and the next state. States are pytrees, so they can be
passed to ``jit``, donated and saved. Each leaf keeps its dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from typing_extensions import override

import arrayfn.numpy as anp
from arrayfn import dtypes, tree
from arrayfn.errors import ArgumentError, user_location
from arrayfn.numpy import _operands as ops

Array: TypeAlias = Any
Tree: TypeAlias = Any
Schedule: TypeAlias = Callable[[Any], Any]
Rate: TypeAlias = float | Schedule | Array


class Optimizer(NamedTuple):
    """A transformation of gradients into updates, with its state.

    ``init(params) -> state``; ``update(gradients, state, params=None) -> (updates,
    state)``. Add the updates to the parameters with ``apply_updates``.
    """

    init: Callable[[Tree], Tree]
    update: Callable[..., tuple[Tree, Tree]]

    @override
    def __repr__(self) -> str:
        return "<Optimizer: init(params), update(gradients, state, params)>"


class EmptyState(NamedTuple):
    """The state of a transformation that keeps nothing."""


class CountState(NamedTuple):
    """The number of updates so far: int32[]."""

    count: Array


def stateless(function: Callable[[Tree, Tree], Tree]) -> Optimizer:
    """A transformation without a state, which computes ``function(updates, params)``.

    >>> import numpy as np
    >>> negated = stateless(lambda updates, params: tree.map(lambda u: -u, updates))
    >>> negated.update(np.ones(2), negated.init(np.ones(2)))[0]
    array([-1., -1.])
    """

    def init(params: Tree) -> EmptyState:
        return EmptyState()

    def update(
        updates: Tree, state: EmptyState, params: Tree = None
    ) -> tuple[Tree, EmptyState]:
        """The function of updates and parameters; there is no state."""
        return function(updates, params), state

    return Optimizer(init, update)


def chain(*parts: Optimizer) -> Optimizer:
    """Apply the transformations ``parts``, one after another.

    The state is a tuple of their states.

    >>> import numpy as np
    >>> rule = chain(clip(1.0), scale(-0.5))
    >>> rule.update(np.array([4.0, 0.5]), rule.init(np.zeros(2)))[0]
    array([-0.5 , -0.25])
    """

    def init(params: Tree) -> tuple[Tree, ...]:
        return tuple(part.init(params) for part in parts)

    def update(
        updates: Tree, state: tuple[Tree, ...], params: Tree = None
    ) -> tuple[Tree, tuple[Tree, ...]]:
        """The updates through all parts in turn, and the states of all."""
        after: list[Tree] = []
        for part, own in zip(parts, state, strict=True):
            updates, own = part.update(updates, own, params)
            after.append(own)
        return updates, tuple(after)

    return Optimizer(init, update)


def apply_updates(params: Tree, updates: Tree) -> Tree:
    """Add ``updates`` to ``params``, leaf by leaf, in the dtypes of the parameters.

    >>> import numpy as np
    >>> apply_updates({"w": np.ones(2)}, {"w": np.array([0.5, -1.0])})
    {'w': array([1.5, 0. ])}
    """
    return tree.map(lambda p, u: cast(anp.add(p, cast(u, p)), p), params, updates)


def global_norm(updates: Tree) -> Array:
    """The Euclidean norm of all leaves together, as of one vector.

    >>> import numpy as np
    >>> global_norm((np.array([3.0]), np.array(4.0)))
    array(5.)
    """
    sizes: list[Array] = []
    for leaf in tree.leaves(updates):
        wide = dtypes.compute_dtype(ops.type_of_operand("global_norm", leaf).dtype)
        sizes.append(anp.sum(anp.square(anp.abs(anp.astype(leaf, wide)))))
    # Leaf by leaf first, so that no leaf's sum waits for another's.
    return anp.sqrt(anp.sum(anp.stack(sizes))) if sizes else anp.asarray(0.0)


def clip(max_delta: float) -> Optimizer:
    """Limit each number of the updates to [-max_delta, max_delta]."""
    return stateless(
        lambda updates, _: tree.map(
            lambda u: anp.clip(u, -max_delta, max_delta), updates
        )
    )


def clip_by_global_norm(max_norm: float) -> Optimizer:
    """Scale all updates so that their ``global_norm`` is at most ``max_norm``.

    See Pascanu et al., On the difficulty of training recurrent neural networks, 2013.
    """

    def clipped(updates: Tree, _: Tree) -> Tree:
        """The updates, scaled down if their norm is larger."""
        norm = global_norm(updates)
        factor = anp.divide(max_norm, anp.maximum(norm, max_norm))
        return tree.map(lambda u: anp.multiply(u, cast(factor, u)), updates)

    return stateless(clipped)


def scale(factor: float) -> Optimizer:
    """Multiply all updates by ``factor``."""
    return stateless(
        lambda updates, _: tree.map(lambda u: anp.multiply(u, factor), updates)
    )


def scale_by_learning_rate(learning_rate: Rate) -> Optimizer:
    """Multiply by minus the learning rate, which is a number or a schedule."""
    if not callable(learning_rate):
        rate: Any = learning_rate
        return stateless(
            lambda updates, _: tree.map(
                lambda u: anp.multiply(u, anp.negative(cast(rate, u))), updates
            )
        )
    schedule = learning_rate

    def init(params: Tree) -> CountState:
        return CountState(zero_count())

    def update(
        updates: Tree, state: CountState, params: Tree = None
    ) -> tuple[Tree, CountState]:
        """The updates times the negative rate of this step."""
        rate = anp.negative(schedule(state.count))
        scaled = tree.map(lambda u: anp.multiply(u, cast(rate, u)), updates)
        return scaled, CountState(anp.add(state.count, 1))

    return Optimizer(init, update)


def add_decayed_weights(
    weight_decay: float, mask: Tree | Callable[[Tree], Tree] | None = None
) -> Optimizer:
    """Add ``weight_decay`` times the parameters to the updates.

    ``mask`` says to which leaves. It is a tree of bools like the parameters, or a
    function that gives such a tree.
    """

    def decayed(updates: Tree, params: Tree) -> Tree:
        """The updates plus the decay of parameters, where the mask has them."""
        need_params("add_decayed_weights", params)
        where = mask(params) if callable(mask) else mask
        if where is None:
            where = tree.map(lambda _: True, params)
        return tree.map(
            lambda u, p, on: anp.add(u, anp.multiply(p, weight_decay)) if on else u,
            updates,
            params,
            where,
        )

    return stateless(decayed)


def cast(x: Any, like: Any) -> Any:
    """``x`` in the dtype of ``like``."""
    return ops.convert(x, ops.type_of_operand("optim", like).dtype)


def zero_count() -> Array:
    """The count of updates at the start."""
    return anp.zeros((), dtype=dtypes.int32)


def zeros_like(params: Tree) -> Tree:
    """Zeros of the shapes and dtypes of ``params``."""
    return tree.map(anp.zeros_like, params)


def need_params(name: str, params: Tree) -> None:
    """Raise ArgumentError if ``params`` were not given to an update that needs them."""
    if params is None:
        raise ArgumentError(
            f"optim.{name} needs the parameters: update(gradients, state, params)",
            user_location(),
        )


__all__ = [
    "CountState",
    "EmptyState",
    "Optimizer",
    "Schedule",
    "add_decayed_weights",
    "apply_updates",
    "chain",
    "clip",
    "clip_by_global_norm",
    "global_norm",
    "scale",
    "scale_by_learning_rate",
    "stateless",
]
