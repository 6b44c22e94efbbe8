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
Tree: TypeAlias = Any  # a pytree of arrays
Schedule: TypeAlias = Callable[[Any], Any]  # step -> number
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
        """Show the two functions and their arguments."""
        return "<Optimizer: init(params), update(gradients, state, params)>"


class EmptyState(NamedTuple):
    """The state of a transformation that keeps nothing."""


class CountState(NamedTuple):
    """The number of updates so far: int32[]."""

    count: Array


def stateless(function: Callable[[Tree, Tree], Tree]) -> Optimizer:
    """Return a transformation without a state.

    Its updates are ``function(updates, params)``.

    >>> import numpy as np
    >>> negated = stateless(lambda updates, params: tree.map(lambda u: -u, updates))
    >>> negated.update(np.ones(2), negated.init(np.ones(2)))[0]
    array([-1., -1.])
    """

    def init(params: Tree) -> EmptyState:
        """Return an empty state."""
        return EmptyState()

    def update(
        updates: Tree, state: EmptyState, params: Tree = None
    ) -> tuple[Tree, EmptyState]:
        """Return ``function(updates, params)``, and the empty state."""
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
        """Return the tuple of the states of all parts."""
        return tuple(part.init(params) for part in parts)

    def update(
        updates: Tree, state: Tree, params: Tree = None
    ) -> tuple[Tree, tuple[Tree, ...]]:
        """Pass the updates through all parts, and return them and all states."""
        if not isinstance(state, (tuple, list)) or len(state) != len(parts):
            raise ArgumentError(
                "optim.chain: the second argument of update must be the state that "
                f"init or the last update gave, a tuple of {len(parts)}, not "
                f"{type(state).__name__}: update(gradients, state, params)",
                user_location(),
            )
        states: list[Tree] = []
        for part, part_state in zip(parts, state, strict=True):
            updates, part_state = part.update(updates, part_state, params)
            states.append(part_state)
        return updates, tuple(states)

    return Optimizer(init, update)


def apply_updates(params: Tree, updates: Tree) -> Tree:
    """Add ``updates`` to ``params``, leaf by leaf, in the dtypes of the parameters.

    >>> import numpy as np
    >>> apply_updates({"w": np.ones(2)}, {"w": np.array([0.5, -1.0])})
    {'w': array([1.5, 0. ])}
    """
    return tree.map(lambda p, u: cast(anp.add(p, cast(u, p)), p), params, updates)


def global_norm(updates: Tree) -> Array:
    """Return the Euclidean norm of all leaves together, as of one vector.

    float16 and bfloat16 are summed in float32. A tree without leaves gives 0.

    >>> import numpy as np
    >>> global_norm((np.array([3.0]), np.array(4.0)))
    array(5.)
    """
    sizes: list[Array] = []
    for leaf in tree.leaves(updates):
        wide = dtypes.compute_dtype(ops.type_of_operand("global_norm", leaf).dtype)
        sizes.append(anp.sum(anp.square(anp.abs(anp.astype(leaf, wide)))))
    # The leaves' sums are independent of each other, and are added up at the end.
    return anp.sqrt(anp.sum(anp.stack(sizes))) if sizes else anp.asarray(0.0)


def clip(max_delta: float) -> Optimizer:
    """Return a transformation that limits each element to [-max_delta, max_delta]."""
    return stateless(
        lambda updates, _: tree.map(
            lambda u: anp.clip(u, -max_delta, max_delta), updates
        )
    )


def clip_by_global_norm(max_norm: float) -> Optimizer:
    """Return a transformation that scales updates to a ``global_norm`` <= ``max_norm``.

    Updates with a smaller norm stay. See Pascanu et al., On the difficulty of training
    recurrent neural networks, 2013.
    """

    def clipped(updates: Tree, _: Tree) -> Tree:
        """Scale the updates by max_norm / norm if their norm is larger."""
        norm = global_norm(updates)
        factor = anp.divide(max_norm, anp.maximum(norm, max_norm))
        return tree.map(lambda u: anp.multiply(u, cast(factor, u)), updates)

    return stateless(clipped)


def scale(factor: float) -> Optimizer:
    """Return a transformation that multiplies all updates by ``factor``."""
    return stateless(
        lambda updates, _: tree.map(lambda u: anp.multiply(u, factor), updates)
    )


def scale_by_learning_rate(learning_rate: Rate) -> Optimizer:
    """Return a transformation that multiplies updates by minus the learning rate.

    The rate is a number or a schedule. A schedule is called with the number of updates
    so far, which is the state.
    """
    if not callable(learning_rate):
        rate: Any = learning_rate
        return stateless(
            lambda updates, _: tree.map(
                lambda u: anp.multiply(u, anp.negative(cast(rate, u))), updates
            )
        )
    schedule = learning_rate

    def init(params: Tree) -> CountState:
        """Return a count of 0."""
        return CountState(zero_count())

    def update(
        updates: Tree, state: CountState, params: Tree = None
    ) -> tuple[Tree, CountState]:
        """Multiply by minus the rate of this step, and count the update."""
        rate = anp.negative(schedule(state.count))
        scaled = tree.map(lambda u: anp.multiply(u, cast(rate, u)), updates)
        return scaled, CountState(anp.add(state.count, 1))

    return Optimizer(init, update)


def add_decayed_weights(
    weight_decay: float, mask: Tree | Callable[[Tree], Tree] | None = None
) -> Optimizer:
    """Return a transformation that adds ``weight_decay`` times the parameters.

    ``mask`` says to which leaves of the updates. It is a tree of bools like the
    parameters, or a function that gives such a tree. The update needs ``params``:
    ArgumentError without.
    """

    def decayed(updates: Tree, params: Tree) -> Tree:
        """Add the decay of the parameters to the updates, where the mask is true."""
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
    """Convert ``x`` to the dtype of ``like``."""
    return ops.convert(x, ops.type_of_operand("optim", like).dtype)


def zero_count() -> Array:
    """Return the count of updates at the start: int32[] of 0."""
    return anp.zeros((), dtype=dtypes.int32)


def zeros_like(params: Tree) -> Tree:
    """Return zeros of the shapes and dtypes of ``params``."""
    return tree.map(anp.zeros_like, params)


def need_params(name: str, params: Tree) -> None:
    """Raise ArgumentError, about optim.``name``, if ``params`` were not given."""
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
