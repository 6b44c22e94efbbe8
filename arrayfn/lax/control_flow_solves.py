"""Implicit differentiation: ``custom_root`` and ``custom_linear_solve``.

A solver is any function, usually a loop. Derivatives of a solution follow from its
equation by the implicit function theorem, not from the solver's iterations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from arrayfn import tree
from arrayfn.errors import ArgumentError, DTypeError, ShapeError, user_location
from arrayfn.ir import ArrayType
from arrayfn.lax.control_flow_tracing import (
    Closed,
    alike_over_members,
    check_arrays,
    check_function,
    close,
    plain_type,
    renamed,
    sharing,
    with_types,
)
from arrayfn.primitives.linear_solve import linear_solve
from arrayfn.primitives.rules import as_list
from arrayfn.tracing import apply, apply_program
from arrayfn.transforms import jvp, leaf_type, linearize
from arrayfn.transforms.arguments import described
from arrayfn.transforms.custom import SymbolicZero, custom_jvp
from arrayfn.transforms.transposition import transpose

Function = Callable[..., Any]


def custom_linear_solve(
    matvec: Function,
    b: Any,
    solve: Function,
    transpose_solve: Function | None = None,
    symmetric: bool = False,
    has_aux: bool = False,
) -> Any:
    """Return the x with ``matvec(x) = b`` that ``solve(matvec, b)`` finds.

    x has derivatives of any order in both modes, with respect to b and to the values
    that ``matvec`` captures. In forward mode, ``solve`` computes them from systems with
    the same matrix. In reverse mode, the systems have the transposed matrix.
    ``transpose_solve`` solves them, or ``solve`` if the matrix is ``symmetric``.

    Args:
        matvec: a linear function from x to arrays like b. It may capture traced values.
        b: the right-hand side, a pytree of arrays; x has the same structure and types.
        solve: takes ``matvec`` and b, and returns x.
        transpose_solve: takes the transpose of ``matvec`` and a right-hand side.
        symmetric: whether ``matvec`` is its own transpose.
        has_aux: the solvers return pairs of x and other results, which count as
            constants. This function then returns such a pair, too.

    Raises:
        ArgumentError, ShapeError, DTypeError: ``matvec`` or a solver returns another
            structure or type than b's.
        DifferentiationError: reverse mode needs a solver of the transpose, or
            ``matvec`` is not linear.

    >>> import numpy as np
    >>> from arrayfn.transforms import grad
    >>> def halved(a, b):
    ...     return custom_linear_solve(
    ...         lambda x: a * x, b, lambda matvec, b: b / a, symmetric=True
    ...     )
    >>> grad(halved)(2.0, 6.0)
    array(-1.5)
    """
    name = "custom_linear_solve"
    check_function(name, "matvec", matvec)
    check_function(name, "solve", solve)
    check_arrays(name, "b", b)
    leaves = tree.leaves(b)
    # The types of a solution must not depend on whether b is a Python number.
    types = [plain_type(x).strong() for x in leaves]
    operator = _like(name, close(matvec, (b,), types), b, types)
    _, (program,) = alike_over_members(operator.captured, leaves, [operator.program])
    operator = replace(operator, program=program)
    # The solver and matvec; then, if known, the transpose of matvec and its solver.
    systems = [
        _solver(name, solve, operator, b, types, has_aux),
        operator,
    ]
    if symmetric:
        systems.append(operator)
    elif transpose_solve is not None:
        count = len(operator.captured)
        transposed = transpose(operator.program, count)
        systems.append(Closed(matvec, transposed, operator.captured, operator.out_tree))
    if transpose_solve is not None:
        check_function(name, "transpose_solve", transpose_solve)
        solver = _solver(name, transpose_solve, systems[-1], b, types, has_aux)
        systems.append(solver)
    elif symmetric:
        systems.append(systems[0])
    values, programs = sharing(systems)
    right_sides, programs = alike_over_members(values, leaves, programs)
    results = as_list(
        apply(
            linear_solve,
            *values,
            *right_sides,
            body=programs[0],
            matvec=programs[1],
            transposed=tuple(programs[2:]),
            consts=len(values),
        )
    )
    return tree.unflatten(systems[0].out_tree, results)


def custom_root(
    f: Function,
    initial_guess: Any,
    solve: Function,
    tangent_solve: Function,
    has_aux: bool = False,
) -> Any:
    """Return the x with ``f(x) = 0`` that ``solve(f, initial_guess)`` finds.

    x has derivatives of any order in both modes, with respect to the values that ``f``
    captures. The derivatives do not go through the iterations of ``solve``, and do not
    depend on the guess.

    Args:
        f: a function from x to arrays like x. It may capture traced values.
        initial_guess: a pytree of arrays; x has the same structure and types.
        solve: takes ``f`` and the guess, and returns x.
        tangent_solve: takes a linear function g and y, and returns the x with
            g(x) = y. Reverse mode transposes it, so use ``y / g(1.0)`` for numbers, or
            ``custom_linear_solve``.
        has_aux: ``solve`` returns a pair of x and other results, which count as
            constants. This function then returns such a pair, too.

    Raises:
        ArgumentError, ShapeError, DTypeError: a function returns another structure or
            type than the guess's.

    >>> from arrayfn.transforms import grad
    >>> from arrayfn.lax import fori_loop
    >>> def root_of(y):
    ...     def newton(f, x):
    ...         return fori_loop(0, 9, lambda _, x: x - f(x) / (2.0 * x), x)
    ...     return custom_root(
    ...         lambda x: x * x - y, 1.0, newton, lambda g, y: y / g(1.0)
    ...     )
    >>> root_of(4.0), grad(root_of)(4.0)
    (array(2.), array(0.25))
    """
    name = "custom_root"
    functions = ("f", f), ("solve", solve), ("tangent_solve", tangent_solve)
    for parameter, given in functions:
        check_function(name, parameter, given)
    check_arrays(name, "initial_guess", initial_guess)
    guess = tree.leaves(initial_guess)
    types = [plain_type(x).strong() for x in guess]
    function = _like(name, close(f, (initial_guess,), types), initial_guess, types)
    solver = _solver(name, solve, function, initial_guess, types, has_aux)

    def solved_tangents(x: Any, y: Any) -> Any:
        """Solve J t = y for t, where J is the Jacobian of ``f`` at x."""
        return tangent_solve(linearize(_applied(function), x)[1], y)

    pair = (initial_guess, initial_guess)
    tangents = close(renamed(tangent_solve, solved_tangents), pair, [*types, *types])
    tangents = _like(name, tangents, initial_guess, types)
    # ``values`` are all captured values; each Program takes them before its arguments.
    values, programs = sharing([function, solver, tangents])
    of_function, of_solver, of_tangents = programs

    @custom_jvp
    def root(captured: list[Any], guess: list[Any]) -> list[Any]:
        """Run ``solve``, and return the leaves of x and of other results."""
        return apply_program(of_solver, [*captured, *guess])

    @root.defjvp
    def root_jvp(
        primals: tuple[list[Any], list[Any]], changes: tuple[list[Any], list[Any]]
    ) -> tuple[list[Any], list[Any]]:
        """Return the root x and its tangent, by the implicit function theorem.

        f(x, captured) = 0 gives J dx = -df, where J is the Jacobian of f at x, and df
        is the tangent of f at fixed x. The guess has no influence on x.
        """
        leaves = root(*primals)
        x = leaves[: len(types)]

        def at_root(*captured: Any) -> list[Any]:
            """Evaluate ``f`` at the root, as a function of the captured values."""
            return apply_program(of_function, [*captured, *x])

        _, df = jvp(at_root, primals[0], changes[0])
        minus_dx = apply_program(of_tangents, [*primals[0], *x, *df])
        aux_types = [leaf_type(y) for y in leaves[len(types) :]]
        return leaves, [
            *(-change for change in minus_dx),
            *(SymbolicZero(t.shape, t.dtype) for t in aux_types),
        ]

    return tree.unflatten(solver.out_tree, root(values, guess))


def _applied(closed: Closed) -> Function:
    """Return a Python function that emits the equations of the traced function."""

    def applied(*args: Any) -> Any:
        """Emit the Program for the captured values and the leaves of ``args``."""
        results = apply_program(closed.program, [*closed.captured, *tree.leaves(args)])
        return tree.unflatten(closed.out_tree, results)

    return applied


def _solver(
    name: str,
    solve: Function,
    operator: Closed,
    b: Any,
    types: Sequence[ArrayType],
    has_aux: bool,
) -> Closed:
    """Trace ``solve(operator, b)`` as a function of b.

    The result must have the structure and the ``types`` of b. With ``has_aux`` this
    holds for the first part of its result, a pair (x, aux). Errors name the public
    function ``name``.
    """

    def solved(b: Any) -> Any:
        """Call ``solve``, and check that it returns a pair if ``has_aux``."""
        result = solve(_applied(operator), b)
        if has_aux and not (isinstance(result, (tuple, list)) and len(result) == 2):
            raise ArgumentError(
                f"{name}: with has_aux {described(solve)} gives a pair (x, aux), but "
                f"gave {type(result).__name__}",
                user_location(),
            )
        return tuple(result) if has_aux else result

    closed = close(renamed(solve, solved), (b,), types)
    return _like(name, closed, b, types, has_aux)


def _like(
    name: str,
    closed: Closed,
    wanted: Any,
    types: Sequence[ArrayType],
    has_aux: bool = False,
) -> Closed:
    """Return ``closed`` with its result converted to ``types``, those of ``wanted``.

    Python numbers in the result are converted. Raises ArgumentError if the result has
    another structure than ``wanted``, and ShapeError or DTypeError if a leaf has
    another type. With ``has_aux`` this concerns only the first part of the result.
    Errors name the public function ``name``.
    """
    structure = tree.structure(wanted)
    returned = closed.out_tree.children()[0] if has_aux else closed.out_tree
    if returned != structure:
        raise ArgumentError(
            f"{name}: {described(closed.function)} gives the structure {returned}, not "
            f"{structure}, that of its argument",
            user_location(),
        )
    paths = tree.paths(wanted)
    # The other results of a solver come last; zip leaves them out.
    for k, (want, have) in enumerate(zip(types, closed.out_types, strict=False)):
        same_shape = want.shape == have.shape
        if not same_shape or (want.dtype != have.dtype and not have.weak):
            where = f" at {paths[k]}" if paths[k] else ""  # of a pytree
            raise (DTypeError if same_shape else ShapeError)(
                f"{name}: {described(closed.function)} gives {have}{where}"
                f"{closed.made_at(k)}, not {want}, the type of its argument",
                user_location(),
            )
    program = with_types(closed.program, types)
    return Closed(closed.function, program, closed.captured, closed.out_tree)


__all__ = ["custom_linear_solve", "custom_root"]
