"""Libraries written on JAX, run on JAX and on arrayfn: their results must be equal.

python -m tests.conformance.libraries optax
python -m tests.conformance.libraries jaxopt

Each case runs in one process with JAX, and in one in which ``import jax`` is arrayfn.
"""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

Case = tuple[str, Callable[[], Any]]


def _problem() -> tuple[Any, Any, Any]:
    """Weights of a small network, its loss, and the data."""
    import jax.numpy as jnp

    rng = np.random.default_rng(0)
    weights = {
        "w": jnp.asarray(rng.standard_normal((3, 4))),
        "b": jnp.asarray(rng.standard_normal(4)),
    }
    x, y = rng.standard_normal((8, 3)), rng.standard_normal((8, 4))

    def loss(weights: Any) -> Any:
        return jnp.mean((jnp.tanh(x @ weights["w"] + weights["b"]) - y) ** 2)

    return weights, loss, (x, y)


def _optax() -> Iterator[Case]:
    """Three steps of each optimizer of optax, compiled."""
    import jax
    import optax

    found = {
        name: f
        for module in (optax, optax.contrib)
        for name, f in vars(module).items()
        if name[0] != "_"
        and inspect.isfunction(f)
        and "learning_rate" in inspect.signature(f).parameters
    }
    options: dict[str, Any] = {
        "dpsgd": {"l2_norm_clip": 1.0, "noise_multiplier": 0.0, "seed": 0},
        "differentially_private_aggregate": {},
        "noisy_sgd": {"key": 0},
    }

    def steps(name: str) -> Any:
        weights, loss, _ = _problem()
        optimizer = found[name](learning_rate=0.1, **options.get(name, {}))
        state = optimizer.init(weights)

        def step(weights: Any, state: Any) -> Any:
            value, gradient = jax.value_and_grad(loss)(weights)
            extra: dict[str, Any] = {}
            if isinstance(optimizer, optax.GradientTransformationExtraArgs):
                extra = {"value": value, "grad": gradient, "value_fn": loss}
            if name == "dpsgd":
                gradient = jax.tree.map(lambda g: g[None], gradient)
            updates, state = optimizer.update(gradient, state, weights, **extra)
            return optax.apply_updates(weights, updates), state

        compiled = jax.jit(step)
        for _ in range(3):
            weights, state = compiled(weights, state)
        return weights

    for name in sorted(found):
        yield name, lambda name=name: steps(name)


def _jaxopt() -> Iterator[Case]:
    """The solvers of jaxopt on small problems of its documentation."""
    import jax
    import jax.numpy as jnp
    import jaxopt
    from jaxopt import objective, projection, prox

    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((20, 5)), rng.standard_normal(20)
    start = jnp.zeros(5)
    ridge = objective.ridge_regression
    least = objective.least_squares

    def smooth(solver: Any, **options: Any) -> Any:
        made = solver(fun=ridge, maxiter=30, **options)
        return made.run(start, l2reg=0.5, data=(x, y)).params

    def through(l2reg: Any) -> Any:
        made = jaxopt.LBFGS(fun=ridge, maxiter=100, tol=1e-10)
        return jnp.sum(made.run(start, l2reg=l2reg, data=(x, y)).params ** 2)

    def residual(w: Any) -> Any:
        return jnp.tanh(x @ w) - y

    yield "GradientDescent", lambda: smooth(jaxopt.GradientDescent)
    yield "LBFGS", lambda: smooth(jaxopt.LBFGS)
    yield "BFGS", lambda: smooth(jaxopt.BFGS)
    yield "NonlinearCG", lambda: smooth(jaxopt.NonlinearCG)
    yield "gradient through LBFGS", lambda: jax.grad(through)(0.5)
    yield (
        "ProjectedGradient",
        lambda: (
            jaxopt.ProjectedGradient(
                fun=least, projection=projection.projection_simplex, maxiter=30
            )
            .run(jnp.ones(5) / 5, data=(x, y))
            .params
        ),
    )
    yield (
        "ProximalGradient",
        lambda: (
            jaxopt.ProximalGradient(fun=least, prox=prox.prox_lasso, maxiter=30)
            .run(start, hyperparams_prox=0.1, data=(x, y))
            .params
        ),
    )
    yield (
        "GaussNewton",
        lambda: jaxopt.GaussNewton(residual_fun=residual, maxiter=5).run(start).params,
    )
    yield (
        "LevenbergMarquardt",
        lambda: (
            jaxopt.LevenbergMarquardt(residual_fun=residual, maxiter=5)
            .run(start)
            .params
        ),
    )
    yield (
        "FixedPointIteration",
        lambda: jaxopt.FixedPointIteration(jnp.cos, maxiter=50).run(start).params,
    )
    yield (
        "AndersonAcceleration",
        lambda: jaxopt.AndersonAcceleration(jnp.cos, maxiter=10).run(start).params,
    )
    yield (
        "Bisection",
        lambda: (
            jaxopt.Bisection(lambda t: t**3 - t - 1, lower=1.0, upper=2.0).run().params
        ),
    )
    yield (
        "OptaxSolver",
        lambda: (
            jaxopt.OptaxSolver(opt=__import__("optax").adam(0.1), fun=ridge, maxiter=10)
            .run(start, l2reg=0.5, data=(x, y))
            .params
        ),
    )
    yield "projection_l1_ball", lambda: projection.projection_l1_ball(x[0], 1.0)
    yield "prox_elastic_net", lambda: prox.prox_elastic_net(x[0], (0.1, 0.2))
    yield "isotonic", lambda: jaxopt.isotonic.isotonic_l2_pav(y)


_LIBRARIES = {"optax": _optax, "jaxopt": _jaxopt}


def results(library: str) -> dict[str, Any]:
    """For each case the leaves of its result as lists, or the error as a text."""
    import jax

    found: dict[str, Any] = {}
    for name, case in _LIBRARIES[library]():
        try:
            leaves = jax.tree.leaves(case())
            found[name] = [np.asarray(leaf, np.float64).tolist() for leaf in leaves]
        except Exception:  # noqa: BLE001 - the report says which
            found[name] = traceback.format_exc().strip().splitlines()[-1]
    return found


def main(library: str) -> None:
    """Print for each case whether JAX and arrayfn agree."""
    both: list[dict[str, Any]] = []
    for engine in ("jax", "arrayfn"):
        command = [sys.executable, "-m", __spec__.name, library, engine]
        environment = {**os.environ, "JAX_ENABLE_X64": "1"}
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            sys.exit(done.stderr)
        both.append(json.loads(done.stdout.splitlines()[-1]))
    theirs, ours = both
    equal = 0
    for name, expected in theirs.items():
        verdict = _verdict(expected, ours.get(name, "not found"))
        equal += verdict == "equal"
        print(f"{name:32s} {verdict}")
    print(f"{library}: {equal} of {len(theirs)} give JAX's values")


def _verdict(expected: Any, actual: Any) -> str:
    if isinstance(expected, str):
        return f"JAX itself: {expected[:150]}"
    if isinstance(actual, str):
        return actual[:300]
    pairs = zip(expected, actual, strict=True)
    close = all(np.allclose(a, b, rtol=1e-6, atol=1e-8) for a, b in pairs)
    return "equal" if close else f"differ: {expected} {actual}"[:300]


if __name__ == "__main__":
    if len(sys.argv) == 3:
        if sys.argv[2] == "arrayfn":
            from tests.conformance import shim

            shim.install()
        print(json.dumps(results(sys.argv[1])))
    else:
        main(sys.argv[1])
