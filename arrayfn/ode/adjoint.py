"""The adjoint equation, solved backwards in time for derivatives in reverse mode.

With a(t) the derivative of a result by y(t), da/dt = -a df/dy, and the derivative by a
parameter is the integral of a df/dp (Pontryagin; Chen et al., 2018). Between two times
that y was asked for, y, a and the integrals are solved together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import arrayfn.numpy as anp
from arrayfn import dtypes, lax, tree
from arrayfn.flatten_util import ravel_pytree
from arrayfn.numpy._operands import Array
from arrayfn.ode.methods import Method
from arrayfn.ode.stepping import Control, State, along
from arrayfn.transforms import leaf_type, vjp
from arrayfn.transforms.custom import closure_convert, custom_vjp


def backsolve(
    f: Callable[..., Array],
    method: Method,
    control: Control,
    first_size: Any,
    y: Array,
    ts: Array,
    *args: Any,
) -> tuple[Array, State]:
    """Solve for y at the times ``ts``, with the adjoint equation as the derivative.

    The slope is ``f(t, y, *args)``. The parameters ``method``, ``control`` and
    ``first_size`` (of the first step, or None) and the results are those of ``along``.
    Cotangents go to y, ``ts``, ``args``, and what f captures.
    """
    function, captured = closure_convert(f, ts[0], y, *args)
    leaves, structure = tree.flatten((args, captured))
    # For each leaf, whether it has derivatives.
    moving = [leaf_type(x).dtype in dtypes.INEXACT for x in leaves]

    def slope(t: Array, y: Array, leaves: Sequence[Any]) -> Array:
        """Return f at (t, y), for these leaves of arguments and captures."""
        args, captured = tree.unflatten(structure, leaves)
        return function(t, y, *args, *captured)

    def run(y: Array, ts: Array, leaves: list[Any]) -> tuple[Array, State]:
        """Solve forwards."""
        return along(
            method, lambda t, y: slope(t, y, leaves), y, ts, control, first_size
        )

    def ahead(y: Array, ts: Array, leaves: list[Any]) -> Any:
        """Run the forward pass; the residuals are (y at the times, times, leaves)."""
        values, state = run(y, ts, leaves)
        return (values, state), (values, ts, leaves)

    def back(residuals: Any, cotangents: Any) -> Any:
        """Return the cotangents of y, ``ts`` and the leaves.

        The adjoint equation is solved from each time to the one before, from the last
        one on.
        """
        values, ts, leaves = residuals
        by_values, _ = cotangents  # of y at the times, and of the last state
        # Floating-point leaves have derivatives. The integrals become their cotangents.
        varying = [x for x, moves in zip(leaves, moving, strict=True) if moves]
        zero_integrals, restore = ravel_pytree([anp.zeros_like(x) for x in varying])
        dtype = anp.promote_types(zero_integrals.dtype, by_values.dtype)
        zero_integrals = anp.astype(zero_integrals, dtype)
        count = values.shape[1]

        def of_varying(t: Array, y: Array, varying: list[Any]) -> Array:
            """Return the slope at (t, y), for these floating-point leaves."""
            parts = iter(varying)
            pairs = zip(leaves, moving, strict=True)
            return slope(t, y, [next(parts) if moves else x for x, moves in pairs])

        def together(t: Array, state: Array) -> Array:
            """Return the slopes of y, its adjoint a, and the integrals.

            The ``state`` is all three in one vector.
            """
            y, a = state[:count], state[count : 2 * count]
            value, pull_back = vjp(lambda y, p: of_varying(t, y, p), y, varying)
            by_y, by_varying = pull_back(a)
            change, _ = ravel_pytree(by_varying)
            change = anp.astype(change, zero_integrals.dtype)
            return anp.concatenate([value, -by_y, -change])

        def earlier(carry: tuple[Array, Array], item: Any) -> Any:
            """Go back from one time to the one before it.

            The carry is the adjoint and the integrals. ``item`` is both times, y and
            its cotangent at the later time. The output is the cotangent of the later
            time.
            """
            a, total = carry
            before, t, value, ct = item
            # The result also depends on y(t) directly.
            a = a + ct
            # A later time t moves y(t) by its slope.
            by_t = _inner(ct, of_varying(t, value, varying))
            state = anp.concatenate([value, a, total])
            times = anp.stack([t, before])
            (_, state), _ = along(
                method,
                together,
                state,
                times,
                _with_tolerances_of_all(control, count, state),
                first=None,
            )
            # The state is (y, adjoint, integrals) in one vector.
            return (state[count : 2 * count], state[2 * count :]), by_t

        items = (ts[:-1], ts[1:], values[1:], by_values[1:])
        start = (anp.zeros_like(by_values[0]), zero_integrals)
        (a, total), by_ts = lax.scan(earlier, start, items, reverse=True)
        # A later start with the same y changes results by -a . f. y(ts[0]) itself does
        # not change, so its cotangent adds 0.
        by_first = -_inner(a, of_varying(ts[0], values[0], varying))
        by_first = by_first + _inner(by_values[0], anp.zeros_like(by_values[0]))
        by_ts = anp.concatenate([by_first[None], by_ts])
        by_varying_leaves = iter(
            restore(anp.astype(total, ravel_pytree(varying)[0].dtype))
            if varying
            else []
        )
        by_leaves = [
            next(by_varying_leaves)
            if moves
            else np.zeros(leaf_type(x).shape, leaf_type(x).dtype)
            for x, moves in zip(leaves, moving, strict=True)
        ]
        return a + by_values[0], anp.astype(by_ts, ts.dtype), by_leaves

    solved = custom_vjp(run)
    solved.defvjp(ahead, back)
    return solved(y, ts, leaves)


def _inner(x: Array, y: Array) -> Array:
    """Return the change of a real result for a change y and a cotangent x.

    Cotangents of complex numbers are not conjugated.
    """
    return anp.sum(x * y).real


def _with_tolerances_of_all(control: Control, count: int, state: Array) -> Control:
    """Return ``control`` with an absolute tolerance for each element of ``state``.

    ``state`` is y, its adjoint (``count`` elements each) and the integrals. The adjoint
    has the tolerances of y, and the integrals the smallest of them. A single tolerance
    for all elements of y stays.
    """
    if not leaf_type(control.atol).shape:
        return control
    of_integrals = anp.full(state.shape[0] - 2 * count, anp.min(control.atol))
    return control._replace(
        atol=anp.concatenate([control.atol, control.atol, of_integrals])
    )
