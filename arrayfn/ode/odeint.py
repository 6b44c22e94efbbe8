"""``odeint``, with the signature of ``jax.experimental.ode.odeint``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import arrayfn.numpy as anp
from arrayfn import tree
from arrayfn.flatten_util import ravel_pytree
from arrayfn.ode.solve import MOST_STEPS, solve


def odeint(
    func: Callable[..., Any],
    y0: Any,
    t: Any,
    *args: Any,
    rtol: float = 1.4e-8,
    atol: float = 1.4e-8,
    mxstep: float = np.inf,
    hmax: float = np.inf,
    method: str = "RK45",
    adjoint: str = "direct",
) -> Any:
    """Solve dy/dt = func(y, t, *args) with y(t[0]) = y0, at the times ``t``.

    Args:
        func: gives the derivative, a pytree like y0 or one with as many elements. Time
            is its second argument.
        y0: the initial value, a pytree of floating-point arrays.
        t: times (n,), ascending or descending.
        args: further arguments of ``func``, pytrees.
        rtol: the relative tolerance; see ``solve``.
        atol: the absolute tolerance.
        mxstep: the largest number of steps.
        hmax: the largest step.
        method: see ``solve``; "Rodas5P" is for stiff equations.
        adjoint: "direct", or "backsolve", which is JAX's way; see ``solve``.

    Returns:
        a pytree like y0, with an axis of times in front.

    >>> odeint(lambda y, t: -y, 1.0, np.array([0.0, 1.0])).round(6)
    array([1.      , 0.367879])
    """
    structure = tree.structure(y0)

    def slope(t: Any, y: Any, *args: Any) -> Any:
        """Return the derivative in y0's structure.

        The function may return another structure with as many elements.
        """
        slopes = func(y, t, *args)
        return slopes if tree.structure(slopes) == structure else _like(slopes, y)

    return solve(
        slope,
        y0,
        t,
        *args,
        method=method,
        rtol=rtol,
        atol=atol,
        max_step=hmax,
        max_steps=MOST_STEPS if mxstep == np.inf else int(mxstep),
        adjoint=adjoint,
    ).ys


def _like(given: Any, y: Any) -> Any:
    """Put the elements of the pytree ``given`` into a pytree like ``y``."""
    vector, unravel = ravel_pytree(y)
    return unravel(anp.astype(ravel_pytree(given)[0], vector.dtype))
