"""Integrals of values at points, and differential equations, with SciPy's signatures.

``arrayfn.ode`` has the methods that solve the equations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import arrayfn.numpy as anp
from arrayfn import documentation as _documentation
from arrayfn import ode, tree
from arrayfn.errors import ArgumentError, ShapeError, user_location
from arrayfn.numpy import trapezoid
from arrayfn.numpy._operands import Array
from arrayfn.transforms import leaf_type
from arrayfn.transforms.arguments import value_of

_MESSAGES = {
    0: "The solver successfully reached the end of the integration interval.",
    -1: "The steps became too small, or were too many.",
}


class OdeResult(NamedTuple):
    """The result of ``solve_ivp``: a pytree with SciPy's fields.

    ``sol`` maps a time to y (n,), or times (m,) to y (n, m), and is None unless
    ``dense_output`` is set.
    """

    t: Array  # (n_points,)
    y: Array  # (n, n_points)
    sol: Callable[[Any], Array] | None
    nfev: Array  # number of calls of fun, except those for Jacobians
    njev: Array  # number of Jacobians
    nlu: Array  # number of LU factorizations
    status: Array  # 0, or -1 for a failure
    success: Array

    @property
    def message(self) -> str:
        """SciPy's text for ``status``."""
        return _MESSAGES[int(self.status)]


def solve_ivp(
    fun: Callable[..., Any],
    t_span: tuple[Any, Any],
    y0: Any,
    method: str = "RK45",
    t_eval: Any = None,
    dense_output: bool = False,
    events: Any = None,
    vectorized: bool = False,
    args: tuple[Any, ...] | None = None,
    *,
    rtol: Any = 1e-3,
    atol: Any = 1e-6,
    first_step: Any = None,
    max_step: Any = np.inf,
    max_steps: int | None = None,
    adjoint: str = "direct",
    jac_sparsity: Any = None,
) -> OdeResult:
    """Solve dy/dt = fun(t, y, *args) with y(t_span[0]) = y0.

    The explicit methods take the same steps as SciPy's. Derivatives are those of
    ``arrayfn.ode.solve``.

    Args:
        fun: gives the derivative (n,) of y (n,), an array or a list.
        t_span: the first and the last time.
        y0: the initial value (n,).
        method: "RK23", "RK45", "DOP853" or, for stiff equations, "Rodas5P".
        t_eval: the times of the result, in ``t_span``. The default is the times of all
            steps, which are not known inside ``jit``.
        dense_output: whether the result has ``sol``, a function of time.
        events: not supported: None.
        vectorized: has no effect: ``fun`` is called with one y.
        args: further arguments of ``fun``.
        rtol: the relative tolerance.
        atol: the absolute tolerance, a number or one for each element.
        first_step: the size of the first step. The solver chooses it by default.
        max_step: the largest size of a step.
        max_steps: see ``arrayfn.ode.solve``.
        adjoint: "direct" or "backsolve"; see ``arrayfn.ode.solve``.
        jac_sparsity: the positions where the Jacobian may differ from 0; see
            ``arrayfn.ode.solve``.

    Raises:
        ArgumentError: no ``t_eval`` inside ``jit``, events, or an unknown method.
        ShapeError: ``y0`` is not a vector.

    >>> solve_ivp(lambda t, y: -y, (0.0, 1.0), [1.0], t_eval=[0.0, 1.0]).y.round(3)
    array([[1.   , 0.368]])
    """
    if events is not None:
        raise ArgumentError(
            "solve_ivp has no events; find roots of the result's sol(t), with "
            "dense_output=True",
            user_location(),
        )
    y0 = anp.asarray(y0)
    if leaf_type(y0).ndim != 1:
        raise ShapeError(
            f"solve_ivp: y0 must be a vector, not {leaf_type(y0)}", user_location()
        )
    further = tuple(args or ())
    begin, end = (anp.asarray(t, dtype=np.float64) for t in t_span)
    times = (
        [begin, end]
        if t_eval is None
        else [begin, *anp.asarray(t_eval, dtype=np.float64), end]
    )

    def slope(t: Array, y: Array, *args: Any) -> Array:
        """Call ``fun``, and stack a list of numbers into one array."""
        value = fun(t, y, *args)
        return anp.stack(value) if isinstance(value, (list, tuple)) else value

    solution = ode.solve(
        slope,
        y0,
        anp.stack(times),
        *further,
        method=method,
        rtol=rtol,
        atol=atol,
        first_step=first_step,
        max_step=max_step,
        max_steps=max_steps,
        adjoint=adjoint,
        jac_sparsity=jac_sparsity,
        dense=dense_output or t_eval is None,
    )
    if t_eval is None:
        assert solution.sol is not None
        count = value_of(solution.steps)
        if count is None:
            raise ArgumentError(
                "solve_ivp gives y at all of its steps, and here their number is not "
                "known; give t_eval, the times of the result",
                user_location(),
            )
        steps = solution.sol.steps
        t, y = (x[: int(count) + 1] for x in (steps.times, steps.values))
    else:
        # Without the two ends of ``t_span``, which ``times`` has besides ``t_eval``.
        t, y = solution.ts[1:-1], solution.ys[1:-1]
    implicit = method == "Rodas5P"
    evaluations = ode.METHODS[method]().evaluations
    # One call at t_span[0], and one more if the solver chooses the first step's size.
    before = 1 + (first_step is None)
    factored = solution.attempts * int(implicit)
    return OdeResult(
        t=t,
        y=anp.transpose(y),
        sol=tree.Partial(_columns, solution.sol) if dense_output else None,
        nfev=solution.attempts * evaluations + before,
        njev=factored,
        nlu=factored,
        status=anp.where(solution.success, 0, -1),
        success=solution.success,
    )


def _columns(sol: ode.Dense, t: Any) -> Array:
    """Evaluate the solution at ``t``, with the axis of times last, as SciPy has it."""
    return anp.moveaxis(sol(t), -1, 0)


def odeint(
    func: Callable[..., Any],
    y0: Any,
    t: Any,
    args: tuple[Any, ...] = (),
    *,
    rtol: float = 1.49012e-8,
    atol: float = 1.49012e-8,
    hmax: float = np.inf,
    mxstep: int | None = None,
    tfirst: bool = False,
    method: str = "RK45",
) -> Array:
    """Solve dy/dt = func(y, t, *args) with y(t[0]) = y0.

    The result is (len(t), n). With ``tfirst``, the function is called as func(t, y,
    *args). SciPy's ``odeint`` chooses its method as it goes. Here, pass "Rodas5P" for
    stiff equations. See ``solve_ivp``.

    >>> odeint(lambda y, t: [-y[0]], [1.0], np.array([0.0, 1.0])).round(6)
    array([[1.      ],
           [0.367879]])
    """

    def slope(t: Array, y: Array, *args: Any) -> Array:
        """Call ``func`` in its order of arguments, and stack a list into one array."""
        value = func(t, y, *args) if tfirst else func(y, t, *args)
        return anp.stack(value) if isinstance(value, (list, tuple)) else value

    return ode.solve(
        slope,
        anp.asarray(y0),
        t,
        *args,
        method=method,
        rtol=rtol,
        atol=atol,
        max_step=hmax,
        max_steps=mxstep,
    ).ys


__all__ = ["OdeResult", "odeint", "solve_ivp", "trapezoid"]

_documentation.attach(__name__)
