"""Minimisation of functions of a vector, compiled as one loop.

Sources: Nocedal and Wright, Numerical Optimization (2006): algorithm 6.1 (BFGS), and
3.5 and 3.6 (a step that satisfies the strong Wolfe conditions).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import arrayfn.numpy as anp
from arrayfn import dtypes
from arrayfn.errors import ArgumentError, DTypeError, ShapeError, user_location
from arrayfn.lax import while_loop
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.transforms import value_and_grad

Function = Callable[..., Any]
Evaluate = Callable[[Array], tuple[Array, Array]]

# The constants of the Wolfe conditions: c1 (sufficient decrease) and c2 (curvature).
_DESCENT = 1e-4
_FLATNESS = 0.9
_STEPS_TO_MINIMUM = 200  # iterations per unknown


class OptimizeResults(NamedTuple):
    """The result of ``minimize``.

    ``x`` is the minimum. ``fun`` and ``jac`` are the value and the gradient there.
    ``hess_inv`` is the approximate inverse Hessian. ``status`` is 0 for ``success``, 1
    if there were too few iterations, and 2 if no further step descended or a value was
    not finite. ``nfev``, ``njev`` and ``nit`` count values, gradients and iterations.
    """

    x: Array
    success: Array
    status: Array
    fun: Array
    jac: Array
    hess_inv: Array
    nfev: Array
    njev: Array
    nit: Array


def minimize(
    fun: Function,
    x0: ArrayLike,
    args: tuple[Any, ...] = (),
    *,
    method: str = "BFGS",
    tol: float | None = None,
    options: Mapping[str, Any] | None = None,
) -> OptimizeResults:
    """Search for a minimum of ``fun(x, *args)`` from the vector ``x0``.

    ``fun`` returns a real number, and is differentiated and compiled. The search is one
    loop, also under ``jit`` and ``vmap``. ``tol`` is the option ``gtol``.

    Args:
        fun: the function.
        x0: the initial point, a real floating-point vector.
        args: further arguments of ``fun``.
        method: "BFGS", the only one.
        tol: the search stops when the largest element of the gradient is at most this.
        options: ``gtol`` (1e-5), ``maxiter`` (200 iterations per unknown) and
            ``line_search_maxiter`` (20 trials per iteration).

    Raises:
        ArgumentError: unknown method or option.
        DTypeError: ``x0`` is neither float32 nor float64.
        ShapeError: ``x0`` is not a vector, or ``fun`` does not return a scalar.

    >>> import numpy as np
    >>> found = minimize(lambda x: ((x - 3.0) ** 2).sum(), np.zeros(2))
    >>> np.round(found.x, 6)
    array([3., 3.])
    """
    if method.upper() != "BFGS":
        raise ArgumentError(
            f"minimize has the method 'BFGS', not {method!r}", user_location()
        )
    x = anp.asarray(x0)
    if x.ndim != 1:
        raise ShapeError(
            f"minimize needs a vector to begin at, not an array of shape {x.shape}; "
            "ravel it, and reshape it inside the function",
            user_location(),
        )
    if x.dtype not in (dtypes.float32, dtypes.float64):
        raise DTypeError(
            f"minimize takes float32 or float64 numbers, not {x.dtype}",
            user_location(),
        )
    settings: dict[str, Any] = {
        "gtol": 1e-5 if tol is None else tol,
        "maxiter": x.shape[0] * _STEPS_TO_MINIMUM,
        "line_search_maxiter": 20,
    }
    unknown = set(options or {}) - set(settings)
    if unknown:
        raise ArgumentError(
            f"minimize has no options {sorted(unknown)}; it has {sorted(settings)}",
            user_location(),
        )
    settings |= {k: v for k, v in (options or {}).items() if v is not None}
    evaluate = value_and_grad(lambda v: fun(v, *args))
    limits = settings["gtol"], settings["maxiter"], settings["line_search_maxiter"]
    return _bfgs(evaluate, x, *limits)


class _Search(NamedTuple):
    """The state of the BFGS loop.

    ``state`` is 0 while the search runs, else 1 + the ``status`` of the result.
    ``steps`` and ``evaluations`` are counts. ``value`` and ``slope`` are the function's
    value and gradient at ``x``, and ``inverse`` approximates the inverse Hessian.
    """

    state: Array
    steps: Array
    evaluations: Array
    x: Array
    value: Array
    slope: Array
    inverse: Array


def _bfgs(
    evaluate: Evaluate, x: Array, gtol: float, maxiter: int, trials: int
) -> OptimizeResults:
    """Minimise from x until the largest element of the gradient is at most ``gtol``.

    ``evaluate(x)`` returns value and gradient. ``maxiter`` limits the iterations, and
    ``trials`` the evaluations of each line search. Source: Nocedal and Wright,
    algorithm 6.1.
    """
    value, slope = evaluate(x)
    zero = anp.asarray(0)
    begin = _Search(
        state=anp.where(_is_flat(slope, gtol), 1, zero),
        steps=zero,
        evaluations=zero + 1,
        x=x,
        value=value,
        slope=slope,
        inverse=anp.eye(x.shape[0], dtype=x.dtype),
    )

    def go_on(at: _Search) -> Array:
        """Return whether the search has not ended and may iterate again."""
        return (at.state == 0) & (at.steps < maxiter)

    def step(at: _Search) -> _Search:
        """Search along -inverse Hessian times gradient, and update the inverse Hessian.

        The new state is 1 (converged), 0 (go on), or 3 (no descent, or a value that is
        not finite).
        """
        direction = -(at.inverse @ at.slope)
        found = _line_search(evaluate, at.x, direction, at.value, at.slope, trials)
        moved = found.step * direction
        inverse = _updated(at.inverse, moved, found.slope - at.slope)
        descends = found.value < at.value
        state = anp.where(_is_flat(found.slope, gtol), 1, anp.where(descends, 0, 3))
        return _Search(
            state=anp.where(anp.isfinite(found.value), state, 3),
            steps=at.steps + 1,
            evaluations=at.evaluations + found.trials,
            x=at.x + moved,
            value=found.value,
            slope=found.slope,
            inverse=inverse,
        )

    end = while_loop(go_on, step, begin)
    status = anp.where(end.state == 0, 1, end.state - 1)
    return OptimizeResults(
        x=end.x,
        success=anp.equal(status, 0),
        status=status,
        fun=end.value,
        jac=end.slope,
        hess_inv=end.inverse,
        nfev=end.evaluations,
        njev=end.evaluations,
        nit=end.steps,
    )


def _is_flat(slope: Array, gtol: float) -> Array:
    """Return whether no element of the gradient is larger than ``gtol``."""
    return (
        anp.max(anp.abs(slope), axis=None) <= gtol if slope.size else anp.asarray(True)
    )


def _updated(inverse: Array, moved: Array, gradient_change: Array) -> Array:
    """Return the inverse Hessian H after a step s: Nocedal and Wright, (6.17).

    With y = ``gradient_change``, s = ``moved`` and rho = 1 / (y s), the result is (I -
    rho s y^T) H (I - rho y s^T) + rho s s^T. H stays if y s <= 0, because the result
    would not be positive definite.
    """
    along = gradient_change @ moved
    bends = along > 0
    rho = 1.0 / anp.where(bends, along, 1.0)
    unit = anp.eye(moved.shape[0], dtype=moved.dtype)
    left = unit - rho * anp.outer(moved, gradient_change)
    updated = left @ inverse @ left.T + rho * anp.outer(moved, moved)
    return anp.where(bends, updated, inverse)


# The step along a direction.


class _Point(NamedTuple):
    """A point of a line search.

    ``step`` is the factor of the direction, ``value`` the function's value there, and
    ``along`` its derivative along the direction.
    """

    step: Array
    value: Array
    along: Array


class _Line(NamedTuple):
    """The state of a line search.

    ``stage`` is 0 while steps grow, 1 while the interval between two points shrinks,
    and 2 at the end. ``trials`` counts evaluations. ``low`` is the best point, and
    ``high`` the other end of the interval. ``next`` is the next step to try. ``slope``
    is the gradient at ``low``.
    """

    stage: Array
    trials: Array
    low: _Point
    high: _Point
    next: Array
    slope: Array


class _Found(NamedTuple):
    """The result of a line search.

    ``step`` is the factor of the direction, ``value`` and ``slope`` are the function's
    value and gradient there, and ``trials`` is the number of evaluations.
    """

    step: Array
    value: Array
    slope: Array
    trials: Array


def _line_search(
    evaluate: Evaluate,
    x: Array,
    direction: Array,
    value: Array,
    slope: Array,
    trials: int,
) -> _Found:
    """Find a step along ``direction`` that satisfies the strong Wolfe conditions.

    First the step doubles until an interval contains such a step, and then the interval
    shrinks (Nocedal and Wright, algorithms 3.5 and 3.6). ``value`` and ``slope`` are
    the function's value and gradient at x. After ``trials`` evaluations, the result is
    the best step so far.
    """
    start = _Point(anp.zeros_like(value), value, slope @ direction)
    begin = _Line(
        stage=anp.asarray(0),
        trials=anp.asarray(0),
        low=start,
        high=start,
        next=anp.ones_like(value),
        slope=slope,
    )

    def go_on(at: _Line) -> Array:
        """Return whether the search has not ended and may try another step."""
        return (at.stage < 2) & (at.trials < trials)

    def trial(at: _Line) -> _Line:
        """Evaluate at the next step, and replace an end of the interval.

        ``high``: the point is no better than ``low``, or violates sufficient decrease.
        ``flat``: the point satisfies both conditions.
        """
        height, gradient = evaluate(x + at.next * direction)
        point = _Point(at.next, height, gradient @ direction)
        growing = at.stage == 0
        limit = value + _DESCENT * point.step * start.along
        # A NaN counts as too high.
        high = ~(height <= limit) | ((at.trials > 0) & ~(height < at.low.value))
        flat = ~high & (anp.abs(point.along) <= -_FLATNESS * start.along)
        # Beyond the minimum, the ends of the interval are exchanged.
        beyond = point.along * anp.where(growing, 1.0, at.high.step - at.low.step) >= 0
        low = _chosen(high, at.low, point)
        other = _chosen(growing | beyond, at.low, at.high)
        bracket = _chosen(high, point, other)
        stage = anp.where(growing & ~high & ~beyond, 0, 1)
        stage = anp.where(flat, 2, stage)
        following = anp.where(stage == 0, 2.0 * point.step, _between(low, bracket))
        return _Line(
            stage=stage,
            trials=at.trials + 1,
            low=low,
            high=bracket,
            next=following,
            slope=anp.where(high, at.slope, gradient),
        )

    end = while_loop(go_on, trial, begin)
    return _Found(end.low.step, end.low.value, end.slope, end.trials)


def _chosen(condition: Array, first: _Point, second: _Point) -> _Point:
    """Select a whole point: ``first`` where ``condition`` holds, else ``second``."""
    pairs = zip(first, second, strict=True)
    return _Point(*[anp.where(condition, a, b) for a, b in pairs])


def _between(low: _Point, high: _Point) -> Array:
    """Return the minimum of a parabola through both points, as a step.

    The parabola has the values of both points and the derivative at ``low``. The result
    stays a tenth of the interval away from its ends. It is the middle if the parabola
    has no minimum.
    """
    width = high.step - low.step
    rise = high.value - low.value - low.along * width
    bent = (rise > 0) & anp.isfinite(rise)
    share = -0.5 * low.along * width / anp.where(bent, rise, 1.0)
    return low.step + width * anp.clip(anp.where(bent, share, 0.5), 0.1, 0.9)
