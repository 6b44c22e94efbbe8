"""Solutions of equations, differentiated as such: ``custom_root`` and its kin.

A solver is any function, a loop most of the time. Derivatives of a solution follow from
the equation that it solves, whatever steps led to it (the implicit function theorem).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from arrayfn import tree
from arrayfn.errors import ArgumentError, DTypeError, ShapeError, user_location
from arrayfn.ir import ArrayType
from arrayfn.lax.control_flow_tracing import (
    Closed,
    check_arrays,
    check_function,
    close,
    described,
    plain_type,
    renamed,
    sharing,
    with_types,
)
from arrayfn.primitives.control_flow import all_of
from arrayfn.primitives.linear_solve import linear_solve
from arrayfn.tracing import apply, apply_program
from arrayfn.transforms import jvp, leaf_type, linearize
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
    """The x with ``matvec(x) = b`` that ``solve(matvec, b)`` finds.

    Derivatives are those of the solution, in both modes and of any order, by b and by
    what ``matvec`` closes over: solutions of systems with the same matrix, found by
    ``solve`` again, and in reverse mode with the transposed one, by ``transpose_solve``
    (or by ``solve``, if the matrix is its own transpose: ``symmetric``).

    Args:
        matvec: a linear function, from x to arrays like b. It may close over traced
            values.
        b: the right-hand side: a pytree of arrays, which x has the form of.
        solve: takes ``matvec`` and b, and gives x.
        transpose_solve: takes the transpose of ``matvec`` and a right-hand side.
        symmetric: whether ``matvec`` is its own transpose.
        has_aux: the solvers give pairs of x and other results, which count as constant;
            so does this function then.

    Raises:
        ArgumentError, ShapeError, DTypeError: if ``matvec`` or a solver gives something
            of another form than b.
        DifferentiationError: where the transpose is needed, and there is no solver for
            it, or ``matvec`` is not linear.

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
    types = [_strong(x) for x in leaves]
    operator = _like(name, close(matvec, (b,), types), b, types)
    systems = [
        _solver(name, solve, operator, b, types, has_aux),
        operator,
    ]
    if symmetric:
        systems.append(operator)
    elif transpose_solve is not None:
        count = len(operator.captured)
        turned = transpose(operator.program, count)
        systems.append(Closed(matvec, turned, operator.captured, operator.out_tree))
    if transpose_solve is not None:
        check_function(name, "transpose_solve", transpose_solve)
        solver = _solver(name, transpose_solve, systems[-1], b, types, has_aux)
        systems.append(solver)
    elif symmetric:
        systems.append(systems[0])
    values, programs = sharing(systems)
    results = all_of(
        apply(
            linear_solve,
            *values,
            *leaves,
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
    """The x with ``f(x) = 0`` that ``solve(f, initial_guess)`` finds.

    Derivatives are those of the root, in both modes and of any order, by what ``f``
    closes over. They do not go through the steps of ``solve``, nor do they depend on
    the guess.

    Args:
        f: from x to arrays like x. It may close over traced values.
        initial_guess: a pytree of arrays, which x has the form of.
        solve: takes ``f`` and the guess, and gives x.
        tangent_solve: takes a linear function g and y, and gives the x with
            g(x) = y; for reverse mode it can be transposed, as ``y / g(1.0)`` can for
            numbers, and ``custom_linear_solve`` for all.
        has_aux: ``solve`` gives a pair of x and other results, which count as constant;
            so does this function then.

    Raises:
        ArgumentError, ShapeError, DTypeError: if a function gives something of another
            form than the guess.

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
    for what, given in (("f", f), ("solve", solve), ("tangent_solve", tangent_solve)):
        check_function(name, what, given)
    check_arrays(name, "initial_guess", initial_guess)
    guess = tree.leaves(initial_guess)
    types = [_strong(x) for x in guess]
    function = _like(name, close(f, (initial_guess,), types), initial_guess, types)
    solver = _solver(name, solve, function, initial_guess, types, has_aux)

    def solved_tangents(x: Any, y: Any) -> Any:
        return tangent_solve(linearize(_applied(function), x)[1], y)

    pair = (initial_guess, initial_guess)
    tangents = close(renamed(tangent_solve, solved_tangents), pair, [*types, *types])
    tangents = _like(name, tangents, initial_guess, types)
    values, programs = sharing([function, solver, tangents])
    of_function, of_solver, of_tangents = programs

    @custom_jvp
    def root(closed: list[Any], guess: list[Any]) -> list[Any]:
        return apply_program(of_solver, [*closed, *guess])

    @root.defjvp
    def root_jvp(
        primals: tuple[list[Any], list[Any]], changes: tuple[list[Any], list[Any]]
    ) -> tuple[list[Any], list[Any]]:
        found = root(*primals)
        x = found[: len(types)]

        def at_root(*closed: Any) -> list[Any]:
            return apply_program(of_function, [*closed, *x])

        _, residual = jvp(at_root, primals[0], changes[0])
        moved = apply_program(of_tangents, [*primals[0], *x, *residual])
        others = [leaf_type(y) for y in found[len(types) :]]
        return found, [
            *(-change for change in moved),
            *(SymbolicZero(t.shape, t.dtype) for t in others),
        ]

    return tree.unflatten(solver.out_tree, root(values, guess))


def _strong(leaf: Any) -> ArrayType:
    type = plain_type(leaf)
    return ArrayType(type.shape, type.dtype)


def _applied(closed: Closed) -> Function:
    """The traced function, as a function of traced values."""

    def applied(*args: Any) -> Any:
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
    """``solve`` of ``operator``, as a function of b."""

    def solved(b: Any) -> Any:
        found = solve(_applied(operator), b)
        if has_aux and not (isinstance(found, (tuple, list)) and len(found) == 2):
            raise ArgumentError(
                f"{name}: with has_aux {described(solve)} gives a pair (x, aux), but "
                f"gave {type(found).__name__}",
                user_location(),
            )
        return tuple(found) if has_aux else found

    closed = close(renamed(solve, solved), (b,), types)
    return _like(name, closed, b, types, has_aux)


def _like(
    name: str,
    closed: Closed,
    wanted: Any,
    types: Sequence[ArrayType],
    has_aux: bool = False,
) -> Closed:
    """``closed``, whose result (the first, of a pair) has the form of ``wanted``."""
    structure = tree.structure(wanted)
    given = closed.out_tree.children()[0] if has_aux else closed.out_tree
    if given != structure:
        raise ArgumentError(
            f"{name}: {described(closed.function)} gives the structure {given}, not "
            f"{structure}, which is that of what it is given",
            user_location(),
        )
    paths = tree.paths(wanted)
    for k, (want, have) in enumerate(zip(types, closed.out_types, strict=False)):
        same_shape = want.shape == have.shape
        if not same_shape or (want.dtype != have.dtype and not have.weak):
            raise (DTypeError if same_shape else ShapeError)(
                f"{name}: {described(closed.function)} gives {have}"
                f"{' at ' * bool(paths[k])}{paths[k]}{closed.made_at(k)}, not {want}, "
                "which is the type of what it is given",
                user_location(),
            )
    program = with_types(closed.program, types)
    return Closed(closed.function, program, closed.captured, closed.out_tree)


__all__ = ["custom_linear_solve", "custom_root"]
