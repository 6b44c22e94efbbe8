"""``Dense``: a solution as a function of time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import numpy as np
from typing_extensions import override

import arrayfn.numpy as anp
from arrayfn import tree
from arrayfn.flatten_util import ravel_pytree
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array
from arrayfn.ode.methods import Method
from arrayfn.ode.stepping import Recorded
from arrayfn.transforms import leaf_type, vmap


@tree.register_node
class Dense:
    """A solution, callable with a time or an array of times.

    ``ts`` has the times at which steps ended; unused entries repeat the last time.
    Times outside the solution give NaN. A Dense is a pytree. It can be differentiated
    with respect to time and to everything that the solution depends on. ``like`` is the
    initial value, whose structure, shapes and dtypes are kept in ``form``, and
    ``steps`` are the recorded steps of ``method``.
    """

    def __init__(self, method: Method, like: Any, steps: Recorded) -> None:
        """Keep the method, the steps, and the form of ``like``."""
        leaves, structure = tree.flatten(like)
        types = map(leaf_type, leaves)
        self.form = structure, tuple((t.shape, t.dtype) for t in types)
        self.method = method
        self.steps = steps

    @property
    def ts(self) -> Array:
        """The times at which steps began and ended, (steps + 1,)."""
        return self.steps.times

    def vector(self, t: Array) -> Array:
        """Return the solution at the time ``t`` as a vector.

        It is NaN outside of the interval. The step that contains t is found by binary
        search, and its interpolant evaluated.
        """
        # Unused entries of ``times`` repeat the last time that was reached.
        times, count = self.steps.times, self.steps.accepted
        direction = anp.where(times[-1] < times[0], -1.0, 1.0)
        # Times ascend after multiplication by the direction.
        place = anp.searchsorted(direction * times, direction * t, side="right") - 1
        place = anp.clip(place, 0, anp.maximum(count - 1, 0))
        begin, end = (anp.take(times, k) for k in (place, place + 1))
        length = anp.where(end == begin, 1.0, end - begin)
        coefficients, value = (
            anp.take(x, place, axis=0)
            for x in (self.steps.coefficients, self.steps.values)
        )
        inner = self.method.evaluate(coefficients, value, (t - begin) / length)
        # Without steps there is only the initial value.
        value = anp.where(count == 0, value, inner)
        inside = (direction * (t - times[0]) >= 0) & (direction * (times[-1] - t) >= 0)
        return anp.where(inside, value, anp.nan)

    def __call__(self, t: Any) -> Any:
        """Return y at the times ``t``, with their axes in front."""
        times = ops.as_floating("a time", anp.asarray(t))
        structure, forms = self.form
        like = tree.unflatten(structure, [np.zeros(*form) for form in forms])
        _, unravel = ravel_pytree(like)

        def value(t: Array) -> Any:
            """Return y at one time."""
            return unravel(self.vector(t))

        mapped: Callable[[Array], Any] = value
        for _ in leaf_type(times).shape:
            mapped = vmap(mapped)
        return mapped(times)

    def tree_flatten(self) -> tuple[tuple[Recorded], Any]:
        """Return the steps as children, and method and form of y as metadata."""
        return (self.steps,), (self.method, self.form)

    @classmethod
    def tree_unflatten(cls, metadata: Any, children: tuple[Any, ...]) -> Self:
        """Return the solution whose steps are the only element of ``children``.

        ``metadata`` is its method and the form of its values.
        """
        solution = object.__new__(cls)
        solution.method, solution.form = metadata
        (solution.steps,) = children
        return solution

    @override
    def __repr__(self) -> str:
        """Name the method and the order."""
        name = type(self.method).__name__
        return f"<Dense solution by {name} of order {self.method.order + 1}>"
