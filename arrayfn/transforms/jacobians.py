"""Full matrices of derivatives: ``jacfwd``, ``jacrev``, ``hessian``.

Each output leaf of the function becomes a tree of the arguments' structure, whose
leaves have the shape of the output followed by that of the argument.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec

import numpy as np

from arrayfn import dtypes, tree
from arrayfn.errors import DifferentiationError, user_location
from arrayfn.ir import ArrayType
from arrayfn.primitives import slicing, views
from arrayfn.tracing import apply
from arrayfn.transforms.arguments import (
    Function,
    check_function,
    is_one,
    leaf_type,
    shown_name,
)
from arrayfn.transforms.directional import jvp, vjp
from arrayfn.transforms.gradients import (
    Argnums,
    check_holomorphic,
    check_inexact,
    chosen_arguments,
)
from arrayfn.transforms.mapping import vmap

P = ParamSpec("P")


def jacfwd(
    fun: Callable[P, Any],
    argnums: Argnums = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
) -> Callable[P, Any]:
    """Return a function that computes the Jacobian by forward mode.

    The function differentiates with respect to the arguments ``argnums``. One batch
    computes a direction for each of their elements. This is cheaper than ``jacrev`` if
    there are fewer inputs than outputs. For an output of shape s and an argument of
    shape t the Jacobian has the shape s + t. With ``has_aux`` the function returns a
    pair (value, aux), and the result is ``(jacobian, aux)``.

    Raises DifferentiationError if an argument is not real (complex under
    ``holomorphic``).

    >>> import numpy as np
    >>> jacfwd(lambda x: x**2)(np.array([1.0, 2.0]))
    array([[2., 0.],
           [0., 4.]])
    """

    @functools.wraps(fun)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        """Push the arguments' basis forward, and cut the columns into matrices.

        A column is the derivative of all outputs along one element of an argument.
        """
        of_chosen, chosen = _function_of_chosen(fun, args, kwargs, argnums, holomorphic)
        if not holomorphic:
            _check_real(fun, chosen)

        def along(direction: Any) -> Any:
            """Return the derivative along ``direction``, and aux if there is any."""
            _, *derivative_and_aux = jvp(of_chosen, chosen, direction, has_aux)
            return tuple(derivative_and_aux)

        types = [leaf_type(x) for x in tree.leaves(chosen)]
        # Each leaf has a leading axis with an index for each direction.
        basis = tree.unflatten(tree.structure(chosen), _basis(types))
        columns = (-1, None) if has_aux else (-1,)  # aux is not mapped
        single = _is_single(types)
        if single or not types:
            # A scalar argument has one direction, so nothing is mapped.
            derivatives, *aux = along(tree.map(lambda e: e[0], basis))
        else:
            derivatives, *aux = vmap(along, out_axes=columns)(basis)

        def blocks_of_output(column: Any) -> Any:
            """Return the derivatives of one output by each argument.

            The last axis of ``column`` is that of the directions, unless it is single.
            """
            shape = leaf_type(column).shape
            shape = shape if single else shape[:-1]
            parts = _split(column, [t.shape for t in types], -1)
            placed = [
                _reshaped(part, (*shape, *t.shape))
                for part, t in zip(parts, types, strict=True)
            ]
            return _single_or_all(
                tree.unflatten(tree.structure(chosen), placed), argnums
            )

        jacobian = tree.map(blocks_of_output, derivatives)
        return (jacobian, aux[0]) if has_aux else jacobian

    return wrapper


def jacrev(
    fun: Callable[P, Any],
    argnums: Argnums = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Callable[P, Any]:
    """Return a function that computes the Jacobian by reverse mode.

    It differentiates with respect to the arguments ``argnums``. One batch computes a
    pass for each element of the output. This is cheaper than ``jacfwd`` if there are
    fewer outputs than inputs. Shapes and ``has_aux`` are as in ``jacfwd``. With
    ``allow_int`` the Jacobian with respect to integers and booleans is 0.

    Raises DifferentiationError if the output is not real (complex under
    ``holomorphic``).

    >>> import numpy as np
    >>> jacrev(lambda x, y: x * y, argnums=(0, 1))(np.array([1.0, 2.0]), 3.0)
    (array([[3., 0.],
           [0., 3.]]), array([1., 2.]))
    """

    @functools.wraps(fun)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        """Pull the basis of the results back, and cut the rows into matrices.

        A row is the derivative of one element of an output by all arguments.
        """
        of_chosen, chosen = _function_of_chosen(
            fun, args, kwargs, argnums, holomorphic, allow_int
        )
        value, pull_back, *aux = vjp(of_chosen, *chosen, has_aux=has_aux)
        outputs, out_tree = tree.flatten(value)
        types = [leaf_type(y) for y in outputs]
        for type in types:
            if type.dtype not in (dtypes.COMPLEX if holomorphic else dtypes.FLOATS):
                kind = "complex" if holomorphic else "real"
                raise DifferentiationError(
                    f"jacrev needs a function with {kind} outputs, but "
                    f"{shown_name(fun)} returned {type}; take the real and the "
                    "imaginary part apart, or use jacfwd",
                    user_location(),
                )
        basis = tree.unflatten(out_tree, _basis(types))
        if _is_single(types) or not types:
            # One output of one element: its only cotangent, without vmap.
            rows = pull_back(tree.map(lambda e: e[0], basis))
        else:
            rows = vmap(pull_back)(basis)
        places, structure = tree.flatten(rows)
        # For each leaf of the arguments, its rows, divided among the outputs.
        split = [_split(row, [t.shape for t in types], 0) for row in places]

        def blocks_of_output(number: int) -> Any:
            """Return the derivatives of output ``number`` by each argument."""
            placed = [
                _reshaped(parts[number], (*types[number].shape, *leaf_type(x).shape))
                for parts, x in zip(split, tree.leaves(chosen), strict=True)
            ]
            return _single_or_all(tree.unflatten(structure, placed), argnums)

        numbers = range(len(types))
        jacobian = tree.unflatten(out_tree, [blocks_of_output(k) for k in numbers])
        return (jacobian, aux[0]) if has_aux else jacobian

    return wrapper


jacobian = jacrev


def hessian(
    fun: Callable[P, Any],
    argnums: Argnums = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
) -> Callable[P, Any]:
    """Return a function that computes the second derivatives of ``fun``.

    For an output of shape s and arguments of shapes t and u, the result has the shape s
    + t + u. It is a tree of trees with the structure of the arguments. Second
    derivatives are symmetric, and the order of differentiation is not specified. With
    ``has_aux`` the function returns a pair (value, aux), and the result is ``(hessian,
    aux)``. With ``holomorphic`` arguments and results are complex.

    >>> import numpy as np
    >>> hessian(lambda x: x[0] ** 2 * x[1])(np.array([1.0, 3.0]))
    array([[6., 2.],
           [2., 0.]])
    """

    @functools.wraps(fun)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        """Push the basis of the arguments through ``jacrev``, and cut the result."""
        of_chosen, chosen = _function_of_chosen(fun, args, kwargs, argnums, holomorphic)
        if not holomorphic:
            _check_real(fun, chosen)
        out_tree: list[tree.TreeDef] = []

        def recorded(*chosen_arguments: Any) -> Any:
            """Call the function, and record the structure of its value."""
            value = of_chosen(*chosen_arguments)
            out_tree.append(tree.structure(value[0] if has_aux else value))
            return value

        gradients = jacrev(recorded, range(len(chosen)), has_aux, holomorphic)

        def along(direction: Any) -> Any:
            """Return the Jacobian's derivative along ``direction``, and aux if any."""
            # The first item of jvp's result is the Jacobian itself.
            return jvp(gradients, chosen, direction, has_aux)[1:]

        leaves, structure = tree.flatten(chosen)
        types = [leaf_type(x) for x in leaves]
        basis = tree.unflatten(structure, _basis(types))
        if types:
            rows = (0, None) if has_aux else (0,)
            derivatives, *aux = vmap(along, out_axes=rows)(basis)
        else:
            derivatives, *aux = along(basis)

        def nested(blocks: list[list[Any]]) -> Any:
            """Return the blocks of one output as a tree of trees like the arguments."""
            inner = [
                _single_or_all(tree.unflatten(structure, row), argnums)
                for row in blocks
            ]
            return _single_or_all(tree.unflatten(structure, inner), argnums)

        # ``count`` leaves for each output: the gradients by each argument.
        flat, count = tree.leaves(derivatives), len(types)
        starts = range(0, len(flat), max(1, count))
        of_outputs = [nested(_blocks(flat[k : k + count], types)) for k in starts]
        if not types:
            of_outputs = [nested([])] * out_tree[0].num_leaves
        result = tree.unflatten(out_tree[0], of_outputs)
        return (result, aux[0]) if has_aux else result

    return wrapper


def _blocks(rows: Sequence[Any], types: Sequence[ArrayType]) -> list[list[Any]]:
    """Cut the second derivatives of an output into blocks of two arguments.

    ``blocks[a][b]`` is by the arguments a and b, and has the axes of the output, of a
    and of b. ``rows`` has, for each argument b, the derivative of the gradient by b
    along all directions: its axes are the directions (the elements of all arguments
    a), those of the output, and those of b. ``types`` are those of the arguments.
    """
    blocks: list[list[Any]] = [[] for _ in types]
    for row, own in zip(rows, types, strict=True):
        for first, part in enumerate(_split(row, [t.shape for t in types], 0)):
            rank = leaf_type(part).ndim - 1 - own.ndim
            if rank:  # (directions, output, b) becomes (output, directions, b)
                after = range(rank + 1, rank + 1 + own.ndim)
                order = (*range(1, rank + 1), 0, *after)
                part = apply(views.transpose, part, permutation=order)
            output = leaf_type(part).shape[:rank]
            shape = (*output, *types[first].shape, *own.shape)
            blocks[first].append(_reshaped(part, shape))
    return blocks


def _function_of_chosen(
    function: Function,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    argnums: Argnums,
    holomorphic: bool,
    allow_int: bool = False,
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return a function of the arguments to differentiate by, and these arguments.

    ``args`` and ``kwargs`` are all arguments, of which ``argnums`` chooses. Raises
    DifferentiationError for integers, unless ``allow_int``, and for real numbers if
    ``holomorphic``.
    """
    check_function("a jacobian", function)
    positions = chosen_arguments(function, argnums, len(args))
    for position in positions:
        allowed = [allow_int] * len(tree.leaves(args[position]))
        check_inexact(function, position, args[position], allowed)
    chosen = tuple(args[k] for k in positions)
    if holomorphic:
        check_holomorphic(function, chosen)

    @functools.wraps(function)
    def of_chosen(*chosen_arguments: Any) -> Any:
        """Call the function with these arguments in the chosen positions."""
        whole = list(args)
        for position, argument in zip(positions, chosen_arguments, strict=True):
            whole[position] = argument
        return function(*whole, **kwargs)

    return of_chosen, chosen


def _check_real(function: Function, arguments: Sequence[Any]) -> None:
    """Raise DifferentiationError if a leaf of ``arguments`` is complex."""
    for leaf in tree.leaves(list(arguments)):
        if leaf_type(leaf).dtype in dtypes.COMPLEX:
            raise DifferentiationError(
                f"the Jacobian of {shown_name(function)} by {leaf_type(leaf)} needs "
                "holomorphic=True; or differentiate by real and imaginary parts",
                user_location(),
            )


def _basis(types: Sequence[ArrayType]) -> list[Any]:
    """Return a basis of all inputs together: for each type, unit vectors and zeros.

    The vectors lie along a new axis 0. Types with 2 and 1 elements give the arrays
    ``[[1, 0], [0, 1], [0, 0]]`` and ``[[0], [0], [1]]``.
    """
    total = sum(t.size for t in types)
    rows: list[Any] = []
    begin = 0
    for t in types:
        # The diagonal of ones begins in row ``begin``.
        unit = np.eye(total, t.size, -begin, t.dtype)
        rows.append(unit.reshape(total, *t.shape))
        begin += t.size
    return rows


def _is_single(types: Sequence[ArrayType]) -> bool:
    """Whether there is one unit vector, of one array, so that nothing is mapped."""
    return len(types) == 1 and types[0].size == 1


def _split(x: Any, shapes: Sequence[Sequence[int]], axis: int) -> list[Any]:
    """Cut ``x`` along its first or last axis into parts as large as ``shapes``.

    ``axis`` is 0 or -1. Part k has ``prod(shapes[k])`` elements along the axis; the
    caller reshapes it.
    """
    sizes = [math.prod(shape) for shape in shapes]
    if len(sizes) == 1:
        return [x]
    shape = leaf_type(x).shape
    pieces: list[Any] = []
    begin = 0
    for size in sizes:
        first = [0] * len(shape)
        last = list(shape)
        first[axis], last[axis] = begin, begin + size
        pieces.append(
            apply(
                slicing.slice_,
                x,
                start=tuple(first),
                limit=tuple(last),
                strides=(1,) * len(shape),
            )
        )
        begin += size
    return pieces


def _reshaped(x: Any, shape: tuple[int, ...]) -> Any:
    """Return ``x`` in another shape, or ``x`` itself if it has that shape."""
    if leaf_type(x).shape == shape:
        return x
    return apply(views.reshape, x, shape=shape)


def _single_or_all(chosen: Any, argnums: Argnums) -> Any:
    """Return the only entry of ``chosen`` if ``argnums`` is an integer, else all."""
    return chosen[0] if is_one(argnums) else chosen
