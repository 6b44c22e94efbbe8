"""Differential equations beside SciPy's solvers: ``python -m benchmarks.ode``.

Explicit methods take the same steps, so values agree to rounding; stiff methods differ,
so both are compared with a solution to tolerances of 1e-12. SciPy calls Python for each
evaluation of f, which most users of SciPy do too; JAX's column is its own ``odeint``.
Values first, then gradients of the last value by the initial one, beside JAX's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.integrate import solve_ivp

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn.ode import solve
from benchmarks.side_by_side import Row, jax_run, main


@dataclass(frozen=True)
class Problem:
    """An equation for a namespace of array functions, and where it is solved."""

    name: str
    slope: Callable[[Any, Any, Any], Any]  # of the namespace, t and y
    start: tuple[float, ...]
    end: float
    stiff: bool = False
    rtol: float = 1e-6
    atol: float = 1e-9


def lotka_volterra(xp: Any, t: Any, y: Any) -> Any:
    return xp.stack([1.5 * y[0] - y[0] * y[1], y[0] * y[1] - 3.0 * y[1]])


def pleiades(xp: Any, t: Any, y: Any) -> Any:
    """Seven stars in a plane: places x, y, then velocities."""
    masses = np.arange(1.0, 8.0)
    x, z = y[:7], y[7:14]
    dx, dz = x[None, :] - x[:, None], z[None, :] - z[:, None]
    # A star does not attract itself: its distance to itself counts as 1.
    cubes = (dx**2 + dz**2 + np.eye(7)) ** 1.5
    weights = masses[None, :] / cubes
    forces = [(weights * d).sum(axis=1) for d in (dx, dz)]
    return xp.concatenate([y[14:], *forces])


def robertson(xp: Any, t: Any, y: Any) -> Any:
    a, b, c = 0.04 * y[0], 1e4 * y[1] * y[2], 3e7 * y[1] ** 2
    return xp.stack([b - a, a - b - c, c])


def van_der_pol(xp: Any, t: Any, y: Any) -> Any:
    return xp.stack([y[1], 1e3 * (1 - y[0] ** 2) * y[1] - y[0]])


# Hairer, Norsett and Wanner, Solving Ordinary Differential Equations I, section II.10,
# and II, section IV.10.
STARS = (
    *(3.0, 3.0, -1.0, -3.0, 2.0, -2.0, 2.0),
    *(3.0, -3.0, 2.0, 0.0, 0.0, -4.0, 4.0),
    *(0.0, 0.0, 0.0, 0.0, 0.0, 1.75, -1.5),
    *(0.0, 0.0, 0.0, -1.25, 1.0, 0.0, 0.0),
)
PROBLEMS = (
    Problem("Lotka-Volterra", lotka_volterra, (10.0, 5.0), 10.0),
    Problem("Pleiades", pleiades, STARS, 3.0),
    Problem("Robertson", robertson, (1.0, 0.0, 0.0), 1e5, stiff=True, atol=1e-10),
    Problem("van der Pol, mu = 1000", van_der_pol, (2.0, 0.0), 2000.0, stiff=True),
)


def runs_of(problem: Problem, method: str, theirs: str) -> dict[str, Any]:
    """The last value, by arrayfn and by SciPy."""
    start, span = np.array(problem.start), np.array([0.0, problem.end])
    tolerances = {"rtol": problem.rtol, "atol": problem.atol}

    def last(y: Any) -> Any:
        slope = lambda t, y: problem.slope(anp, t, y)  # noqa: E731 - made once
        return solve(slope, y, span, method=method, **tolerances).ys[-1]

    compiled = af.jit(last)

    def scipys() -> Any:
        slope = lambda t, y: problem.slope(np, t, y)  # noqa: E731 - made once
        return solve_ivp(slope, tuple(span), start, theirs, **tolerances).y[:, -1]

    return {"arrayfn": lambda: compiled(start), "SciPy": scipys}


def values() -> Iterator[Row]:
    for problem in PROBLEMS:
        if problem.stiff:
            for theirs in ("Radau", "LSODA"):
                runs = runs_of(problem, "Rodas5P", theirs)
                yield Row(f"{problem.name}: Rodas5P, {theirs}", runs, 2e-3)
        else:
            for method in ("RK45", "DOP853"):
                runs = runs_of(problem, method, method)
                yield Row(f"{problem.name}: {method}", runs, 1e-6)


def gradients() -> Iterator[Row]:
    import jax
    from jax.experimental import ode

    jax.config.update("jax_enable_x64", True)
    tolerances = {"rtol": 1e-9, "atol": 1e-9}

    def last(problem: Problem, adjoint: str) -> Callable[[Any], Any]:
        def total(y: Any) -> Any:
            slope = lambda t, y: problem.slope(anp, t, y)  # noqa: E731 - made once
            span = np.array([0.0, problem.end])
            return solve(slope, y, span, adjoint=adjoint, **tolerances).ys[-1].sum()

        return af.jit(af.grad(total))

    def jaxs(problem: Problem) -> Callable[[Any], Any]:
        def total(y: Any) -> Any:
            slope = lambda y, t: problem.slope(jax.numpy, t, y)  # noqa: E731
            span = np.array([0.0, problem.end])
            return ode.odeint(slope, y, span, **tolerances)[-1].sum()

        return jax.grad(total)

    for problem in PROBLEMS[:2]:
        start = np.array(problem.start)
        for adjoint in ("direct", "backsolve"):
            ours = last(problem, adjoint)
            runs = {
                "arrayfn": lambda f=ours, y=start: f(y),
                "JAX": jax_run(jaxs(problem), start),
            }
            yield Row(f"gradient, {problem.name}: {adjoint}", runs, 1e-4)


def rows() -> Iterator[Row]:
    yield from values()
    yield from gradients()


if __name__ == "__main__":
    main("Differential equations", rows)
