"""Gradients of scalar functions by chosen arguments, in reverse mode."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, overload

import numpy as np

from arrayfn import dtypes, tree
from arrayfn.errors import ArgumentError, DifferentiationError, plural, user_location
from arrayfn.ir import Program
from arrayfn.tracing import apply_program
from arrayfn.tracing.frames import may_vary
from arrayfn.transforms.arguments import (
    Function,
    as_numbers,
    check_function,
    check_leaf,
    is_fixed,
    is_one,
    leaf_type,
    shown_name,
)
from arrayfn.transforms.flat_trace import trace_function
from arrayfn.transforms.transposition import value_and_grad as grad_program

Argnums = int | Sequence[int]
P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")
A = TypeVar("A")


@overload
def value_and_grad(
    fun: Callable[Concatenate[T, P], R],
    argnums: Literal[0] = 0,
    has_aux: Literal[False] = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Callable[Concatenate[T, P], tuple[R, T]]: ...


@overload
def value_and_grad(
    fun: Callable[Concatenate[T, P], tuple[R, A]],
    argnums: Literal[0] = 0,
    *,
    has_aux: Literal[True],
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Callable[Concatenate[T, P], tuple[tuple[R, A], T]]: ...


@overload
def value_and_grad(
    fun: Callable[P, Any],
    argnums: Argnums = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Callable[P, tuple[Any, Any]]: ...


def value_and_grad(
    fun: Function,
    argnums: Argnums = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Function:
    """Return a function that computes the value and the gradient of ``fun``.

    The gradient is with respect to the arguments ``argnums``. ``fun`` returns a real
    scalar, or with ``has_aux`` a pair of a real scalar and any other value. The result
    is ``(value, gradient)`` or ``((value, aux), gradient)``. The gradient has the
    structure of argument ``argnums`` (for a sequence ``argnums``, a tuple of such
    structures). With ``holomorphic`` arguments and value are complex, and the gradient
    is the complex derivative. With ``allow_int`` the gradient with respect to integers
    and booleans is a float64 0. Other arguments may have any values, and ``fun`` may
    branch on those that are numbers. Values that are not arrays, and Python's bools and
    integers, reach ``fun`` unchanged.

    Raises DifferentiationError if the value is not a scalar, or an argument is neither
    floating-point nor complex.

    >>> import numpy as np
    >>> value_and_grad(lambda x: (x * x).sum())(np.array([1.0, 2.0]))
    (array(5.), array([2., 4.]))
    """
    check_function("grad", fun)

    @functools.wraps(fun)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        """Trace the function, differentiate its Program and run it."""
        chosen = chosen_arguments(fun, argnums, len(args))
        of_arrays, args, kwargs = with_others_inside(fun, chosen, args, kwargs)
        wrt, shape_of_gradient = _differentiated(fun, args, kwargs, chosen, allow_int)
        if holomorphic:
            check_holomorphic(fun, [args[k] for k in chosen])
        leaves = tree.leaves((args, kwargs))
        # ``wrt`` has a flag for each leaf; keyword arguments are not differentiated.
        # Leaves that neither this derivative nor an enclosing one is taken by.
        fixed = [not (w or may_vary(x)) for w, x in zip(wrt, leaves, strict=True)]
        traced = trace_function(of_arrays, args, kwargs, fixed=fixed)
        program, out_tree = traced.program, traced.out_tree
        aux_tree = None
        if has_aux:
            out_tree, aux_tree = pair_with_aux(fun, out_tree)
        _check_scalar(fun, program, out_tree, holomorphic)
        wrt += [False] * len(traced.trace.captured)
        operands = [*leaves, *traced.trace.captured]
        results = apply_program(grad_program(program, wrt), operands, once=True)
        # The results are the outputs (the value, then aux), then the gradients.
        outputs = len(program.outputs)
        value, aux, gradients = results[0], results[1:outputs], results[outputs:]
        ordered = _in_order_of(chosen, args, gradients)
        gradient = tree.unflatten(shape_of_gradient, ordered)
        if is_one(argnums):
            (gradient,) = gradient
        value = tree.unflatten(out_tree, [value])
        if aux_tree is not None:
            return (value, tree.unflatten(aux_tree, aux)), gradient
        return value, gradient

    return wrapper


@overload
def grad(
    fun: Callable[Concatenate[T, P], Any],
    argnums: Literal[0] = 0,
    has_aux: Literal[False] = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Callable[Concatenate[T, P], T]: ...


@overload
def grad(
    fun: Callable[Concatenate[T, P], tuple[Any, A]],
    argnums: Literal[0] = 0,
    *,
    has_aux: Literal[True],
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Callable[Concatenate[T, P], tuple[T, A]]: ...


@overload
def grad(
    fun: Callable[P, Any],
    argnums: Argnums = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Callable[P, Any]: ...


def grad(
    fun: Function,
    argnums: Argnums = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Function:
    """Return a function that computes the gradient of ``fun``, a real scalar function.

    With ``has_aux`` the result is ``(gradient, aux)``. ``holomorphic`` and
    ``allow_int`` are as in ``value_and_grad``.

    >>> import numpy as np
    >>> grad(lambda x: np.sin(x).sum())(np.zeros(3))
    array([1., 1., 1.])
    """
    both = value_and_grad(fun, argnums, has_aux, holomorphic, allow_int)

    @functools.wraps(fun)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        """Compute the gradient, and drop the value."""
        value, gradient = both(*args, **kwargs)
        # With ``has_aux`` the value is a pair (value, aux).
        return (gradient, value[1]) if has_aux else gradient

    return wrapper


@tree.register_static
class _Other:
    """Hides a value that is not traced in the structure of the arguments."""

    def __init__(self, value: Any) -> None:
        self.value = value


def with_others_inside(
    function: Function,
    chosen: Sequence[int],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[Function, tuple[Any, ...], dict[str, Any]]:
    """Bind arguments that are not traced; returns the function of arrays, and these.

    Positional ``args`` in the positions ``chosen`` stay as they are; in the others, and
    in ``kwargs``, leaves that are not traced (``is_fixed``) are hidden from pytrees.
    """
    others = [x for k, x in enumerate(args) if k not in chosen]
    if not any(map(is_fixed, tree.leaves((others, kwargs)))):
        return function, args, kwargs

    def hidden(leaf: Any) -> Any:
        """Wrap a leaf that is not traced."""
        return _Other(leaf) if is_fixed(leaf) else leaf

    def shown(leaf: Any) -> Any:
        """Unwrap a leaf that ``hidden`` wrapped."""
        return leaf.value if isinstance(leaf, _Other) else leaf

    def is_other(node: Any) -> bool:
        """Whether ``node`` is a wrapped leaf."""
        return isinstance(node, _Other)

    @functools.wraps(function)
    def of_arrays(*args: Any, **named: Any) -> Any:
        """Call the function with the hidden values inserted."""
        args, named = tree.map(shown, (args, named), is_leaf=is_other)
        return function(*args, **named)

    wrapped_args = [
        x if k in chosen else tree.map(hidden, x) for k, x in enumerate(args)
    ]
    return of_arrays, tuple(wrapped_args), tree.map(hidden, kwargs)


def chosen_arguments(
    function: Function, argnums: Argnums, count: int
) -> tuple[int, ...]:
    """Return the positions, not negative, that ``argnums`` selects of ``count``.

    Raises ArgumentError if there are none, or if one is out of bounds.
    """
    named = as_numbers(argnums)
    if not named:
        raise ArgumentError(
            f"argnums is {argnums}: it names no argument to differentiate "
            f"{shown_name(function)} by",
            user_location(),
        )
    for position in named:
        if not -count <= position < count:
            raise ArgumentError(
                f"argnums names argument {position}, but {shown_name(function)} was "
                f"called with {plural(count, 'positional argument')}",
                user_location(),
            )
    return tuple(k % count for k in named)


def check_inexact(
    function: Function, position: int, argument: Any, allowed: Sequence[bool] = ()
) -> None:
    """Raise DifferentiationError unless the leaves of ``argument`` are inexact.

    The argument is in ``position``. Leaves that are ``allowed`` may also be integers
    and booleans.
    """
    for number, leaf in enumerate(tree.leaves(argument)):
        check_leaf(leaf, partial(_place_in, function, position, argument, number))
        type = leaf_type(leaf)
        if type.dtype not in dtypes.DIFFERENTIABLE and not (
            allowed and allowed[number]
        ):
            raise DifferentiationError(
                f"{shown_name(function)} cannot be differentiated by argument "
                f"{position}{tree.paths(argument)[number]}, which is {type}: only "
                "floating-point and complex numbers have derivatives; convert it with "
                ".astype(numpy.float64) (or write 1.0 for 1)",
                user_location(),
            )


def varying(argument: Any) -> list[bool]:
    """Return for each leaf of ``argument`` whether a derivative by it is taken.

    Integers that are positions of ``tree.Indexed`` have none.
    """
    pairs = zip(tree.leaves(argument), tree.positions_in(argument), strict=True)
    return [
        not (is_position and leaf_type(leaf).dtype in dtypes.INTEGERS)
        for leaf, is_position in pairs
    ]


def check_holomorphic(function: Function, arguments: Sequence[Any]) -> None:
    """Raise DifferentiationError unless all leaves of ``arguments`` are complex."""
    for leaf in tree.leaves(list(arguments)):
        if leaf_type(leaf).dtype not in dtypes.COMPLEX:
            raise DifferentiationError(
                f"{shown_name(function)} is differentiated with holomorphic=True by "
                f"{leaf_type(leaf)}, which is not complex; leave holomorphic out, or "
                "convert it with .astype(numpy.complex128)",
                user_location(),
            )


def pair_with_aux(
    function: Function, out_tree: tree.TreeDef
) -> tuple[tree.TreeDef, tree.TreeDef]:
    """Split the structure of a pair (value, aux), which ``function`` returns.

    Raises DifferentiationError if it is not a pair.
    """
    parts = out_tree.children()
    if len(parts) != 2:
        raise DifferentiationError(
            f"{shown_name(function)} with has_aux=True must return a pair (value, aux)",
            user_location(),
        )
    return parts[0], parts[1]


def _differentiated(
    function: Function,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    chosen: tuple[int, ...],
    allow_int: bool,
) -> tuple[list[bool], tree.TreeDef]:
    """Return which leaves to differentiate by, and the structure of the gradient.

    These leaves are the inexact ones of the positional arguments in ``chosen``. Raises
    DifferentiationError for integers among them, unless ``allow_int`` or they are
    positions of ``tree.Indexed``.
    """
    wrt: list[bool] = []
    for position, argument in enumerate(args):
        if position in chosen:
            allowed = [allow_int or not varies for varies in varying(argument)]
            check_inexact(function, position, argument, allowed)
        leaves = tree.leaves(argument)
        wrt += [position in chosen and _is_inexact(leaf) for leaf in leaves]
    wrt += [False] * len(tree.leaves(kwargs))
    return wrt, tree.structure(tuple(args[k] for k in chosen))


def _in_order_of(
    chosen: tuple[int, ...], args: tuple[Any, ...], gradients: Sequence[Any]
) -> list[Any]:
    """Bring gradients of leaves from the order of ``args`` into that of ``chosen``.

    ``chosen`` has positions of arguments, perhaps repeated. Zeros stand for the
    gradient by an integer.
    """
    rest = iter(gradients)
    leaves_of = {
        k: [
            next(rest) if _is_inexact(leaf) else _fixed(leaf, varies)
            for leaf, varies in zip(tree.leaves(args[k]), varying(args[k]), strict=True)
        ]
        for k in sorted({*chosen})
    }
    return [leaf for k in chosen for leaf in leaves_of[k]]


def _is_inexact(leaf: Any) -> bool:
    """Whether ``leaf`` has a dtype with derivatives."""
    return leaf_type(leaf).dtype in dtypes.DIFFERENTIABLE


def _fixed(leaf: Any, varies: bool) -> Any:
    """Return what stands for the gradient by an integer ``leaf``: zeros.

    Unless it ``varies``, the leaf is a position of ``tree.Indexed``, and is returned.
    """
    return np.zeros(leaf_type(leaf).shape) if varies else leaf


def _place_in(function: Function, position: int, argument: Any, number: int) -> str:
    """Return the name of leaf ``number`` of an argument, for messages."""
    path = tree.paths(argument)[number]
    return f"{shown_name(function)}: argument {position}{path}"


def _check_scalar(
    function: Function, program: Program, out: tree.TreeDef, holomorphic: bool
) -> None:
    """Raise DifferentiationError unless ``function`` returns one scalar.

    It must be real, or complex if ``holomorphic``. ``out`` is the result's structure.
    """
    name = shown_name(function)
    if out.num_leaves != 1:
        raise DifferentiationError(
            f"grad needs a function that returns one scalar, but {name} returned "
            f"{out.num_leaves} arrays; return the loss alone, or use has_aux=True",
            user_location(),
        )
    type = program.outputs[0].type
    if type.shape:
        raise DifferentiationError(
            f"grad needs a function that returns a scalar, but {name} returned {type}; "
            "sum it, or use vjp",
            user_location(),
        )
    if type.dtype not in (dtypes.COMPLEX if holomorphic else dtypes.FLOATS):
        kind = "complex" if holomorphic else "real"
        raise DifferentiationError(
            f"grad needs a function that returns a {kind} scalar, but {name} returned "
            f"{type}",
            user_location(),
        )
