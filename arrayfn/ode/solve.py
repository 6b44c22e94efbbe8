"""``solve``: the solution of a differential equation, at times or as a function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np

import arrayfn.numpy as anp
from arrayfn import dtypes, tree
from arrayfn.errors import ArgumentError, ShapeError, user_location
from arrayfn.flatten_util import ravel_pytree
from arrayfn.lax.control_flow_tracing import plain_type, varying_along
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array
from arrayfn.ode import methods, stepping
from arrayfn.ode.adjoint import backsolve
from arrayfn.ode.dense import Dense
from arrayfn.ode.rosenbrock import RODAS5P
from arrayfn.ode.stepping import Control, along
from arrayfn.sparse import eye_array
from arrayfn.sparse.jacobians import pattern_of
from arrayfn.tracing.frames import current_frame
from arrayfn.transforms import leaf_type, vmap
from arrayfn.transforms.custom import closure_convert

ADJOINTS: Final = ("direct", "backsolve")
MOST_STEPS: Final = 1 << 17  # default limit of steps
MOST_DENSE: Final = 1 << 12  # with ``dense``, which stores all steps

METHODS: Final[dict[str, Callable[[], methods.Method]]] = {
    "RK23": lambda: methods.BOGACKI_SHAMPINE,
    "RK45": lambda: methods.DORMAND_PRINCE,
    "DOP853": methods.dormand_prince_853,
    "Rodas5P": lambda: RODAS5P,
}
"""The methods by name: three explicit ones, as SciPy's, and one for stiff equations."""


class Solution(NamedTuple):
    """The result of ``solve``. It is a pytree.

    ``ts`` are the times of ``ys``.
    """

    ts: Array
    ys: Any  # a pytree like y0, with an axis of times in front
    steps: Array  # the number of accepted steps
    attempts: Array  # the number of accepted and rejected steps
    success: Array  # whether the last time was reached
    sol: Dense | None = None  # the solution as a function of time, with ``dense``


def solve(
    f: Callable[..., Any],
    y0: Any,
    ts: Any,
    *args: Any,
    method: str = "RK45",
    rtol: Any = 1e-6,
    atol: Any = 1e-9,
    first_step: Any = None,
    max_step: Any = np.inf,
    max_steps: int | None = None,
    adjoint: str = "direct",
    dense: bool = False,
    jac_sparsity: Any = None,
) -> Solution:
    """Solve dy/dt = f(t, y, *args) with y(ts[0]) = y0, at the times ``ts``.

    Args:
        f: gives the derivative, a pytree like y0. It may capture traced values.
        y0: the initial value, a pytree of floating-point or complex arrays.
        ts: times (n,), ascending or descending. Steps do not end at these times: values
            are interpolated.
        args: further arguments of ``f``, pytrees.
        method: "RK45" (Dormand and Prince, order 5), "DOP853" (order 8, for small
            tolerances), "RK23" (for large ones), or "Rodas5P" for stiff equations.
        rtol: a step's error is at most about ``atol + rtol * abs(y)``, in the root mean
            square.
        atol: see ``rtol``; a number, or a pytree like y0.
        first_step: the size of the first step. By default, ``solve`` chooses it.
        max_step: the largest size of a step.
        max_steps: the number of steps after which the solver gives up. The default is
            131072, or 4096 with ``dense``, which keeps every step in memory.
        adjoint: the method for derivatives. "direct" is the derivative of the steps
            that were taken, in both modes and every order. In reverse mode y is kept
            after some steps, and other steps are computed again from there. "backsolve"
            solves the adjoint equation backwards in time (Chen et al., Neural Ordinary
            Differential Equations, 2018). "backsolve" works in reverse mode only, needs
            the memory of one step, and has an error about as large as the tolerances.
            It also solves for y backwards in time, which is unstable for stiff
            equations.
        jac_sparsity: for "Rodas5P" and many elements, a sparse or dense matrix. It is
            nonzero wherever df/dy, for y as a vector, can be nonzero. The Jacobian is
            then computed by colouring, and ``spsolve`` solves its systems.
        dense: whether the result has ``sol``, which is the solution as a function of
            time.

    Returns:
        a Solution. Values at times that were not reached are NaN.

    Raises:
        ArgumentError, ShapeError: an unknown method, or arguments that do not fit.

    >>> solve(lambda t, y: -y, 1.0, np.array([0.0, 1.0, 2.0])).ys.round(5)
    array([1.     , 0.36788, 0.13534])
    """
    if method not in METHODS:
        raise ArgumentError(
            f"solve: method must be one of {', '.join(METHODS)}, not {method!r}",
            user_location(),
        )
    if adjoint not in ADJOINTS:
        raise ArgumentError(
            f"solve: adjoint must be one of {ADJOINTS}, not {adjoint!r}",
            user_location(),
        )
    times = ops.type_of_operand("solve: ts", anp.asarray(ts))
    if times.ndim != 1 or not times.size:
        raise ShapeError(
            f"solve: ts must be a vector of at least one time, not {times}",
            user_location(),
        )
    ts = ops.as_floating("solve: ts", anp.asarray(ts))
    f, y0, ts, args = _varying_alike(f, y0, ts, args)
    y, unravel = ravel_pytree(y0)
    if y.dtype not in dtypes.INEXACT:
        y0 = tree.map(lambda x: ops.as_floating("solve: y0", anp.asarray(x)), y0)
        y, unravel = ravel_pytree(y0)
    control = Control(
        rtol=anp.asarray(rtol),
        atol=_tolerance(atol, y0),
        largest=anp.asarray(max_step, ts.dtype),
        steps=(MOST_DENSE if dense else MOST_STEPS) if max_steps is None else max_steps,
    )

    def slope(t: Array, y: Array, *args: Any) -> Array:
        """Return the slope of the vector y; an error if f has another form than y0."""
        value = f(t, unravel(y), *args)
        if tree.structure(value) != tree.structure(y0):
            raise ArgumentError(
                f"solve: f gives the structure "
                f"{tree.text_of(tree.structure(value))}, and y0 is "
                f"{tree.text_of(tree.structure(y0))}",
                user_location(),
            )
        pairs = zip(tree.leaves(value), tree.leaves(y0), strict=True)
        for leaf, wanted in pairs:
            if leaf_type(leaf).shape != leaf_type(wanted).shape:
                raise ShapeError(
                    f"solve: f gives {leaf_type(leaf)} where y0 is {leaf_type(wanted)}",
                    user_location(),
                )
        return ops.convert(ravel_pytree(value)[0], y.dtype)

    chosen_method = METHODS[method]()
    if jac_sparsity is not None:
        if method != "Rodas5P" or adjoint != "direct":
            raise ArgumentError(
                'solve: jac_sparsity is for method="Rodas5P" with adjoint="direct"',
                user_location(),
            )
        # The sum with the identity has an entry for each element of the diagonal.
        ones = pattern_of(jac_sparsity).astype(np.float64)
        chosen_method = replace(RODAS5P, sparsity=ones + eye_array(y.shape[0]))
    sol: Dense | None = None
    if dense:
        if adjoint == "backsolve":
            raise ArgumentError(
                "solve: a dense solution has the derivatives of its steps; leave out "
                'adjoint="backsolve"',
                user_location(),
            )
        steps, last = stepping.recorded(
            chosen_method,
            lambda t, y: slope(t, y, *args),
            y,
            (ts[0], ts[-1]),
            control,
            first_step,
        )
        sol = Dense(chosen_method, y0, steps)
        run = vmap(sol.vector)(ts), last
    elif adjoint == "backsolve":
        run = backsolve(slope, chosen_method, control, first_step, y, ts, *args)
    else:
        run = along(
            chosen_method, lambda t, y: slope(t, y, *args), y, ts, control, first_step
        )
    values, last = run
    ys = vmap(unravel)(values)
    reached = ~last.failed & (last.attempted < control.steps)
    return Solution(ts, ys, last.accepted, last.attempted, reached, sol)


def _varying_alike(
    f: Callable[..., Any], y0: Any, ts: Array, args: tuple[Any, ...]
) -> tuple[Callable[..., Any], Any, Array, tuple[Any, ...]]:
    """Make all operands vary along the same axes of a mesh, inside ``shard_map``.

    The operands are ``y0``, ``ts``, ``args``, and what ``f`` captures, which is
    returned as further arguments of f. Devices take different numbers of steps. An
    operand that all devices have in common varies from here on, so that its cotangents
    are summed over the devices once, here, and not in each step. Without a mesh,
    nothing changes.
    """
    frame = current_frame()
    if frame is None or not frame.axis_names():
        return f, y0, ts, args
    f, captured = closure_convert(f, ts[0], y0, *args)
    operands = (y0, ts, (*args, *captured))
    types = [plain_type(leaf) for leaf in tree.leaves(operands)]
    axes = frozenset[str]().union(*(type.varying for type in types))
    y0, ts, args = tree.map(lambda x: varying_along(x, axes), operands)
    return f, y0, ts, args


def _tolerance(atol: Any, y0: Any) -> Array:
    """Return ``atol`` as a number, or one for each element of the vector of ``y0``."""
    if tree.structure(atol) == tree.structure(0.0) and not leaf_type(atol).shape:
        return anp.asarray(atol)
    broadcast = tree.map(lambda a, y: anp.broadcast_to(a, leaf_type(y).shape), atol, y0)
    return ravel_pytree(broadcast)[0]
