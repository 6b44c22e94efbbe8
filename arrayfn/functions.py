"""Transformations of Python functions: thin, and aware of pytrees.

Each traces its function into a Program, transforms that, and runs the result: inside
another transformation by inlining it, else at once.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from arrayfn import dtypes, tree
from arrayfn.errors import (
    ArgumentError,
    DifferentiationError,
    ShapeError,
    user_location,
)
from arrayfn.ir import ArrayType, Program, type_of
from arrayfn.tracing import Trace, Tracer, apply_program, current_frame, trace
from arrayfn.transforms.batch import batch
from arrayfn.transforms.jvp import jvp as jvp_program
from arrayfn.transforms.linearize import linearize as linearize_program
from arrayfn.transforms.transpose import transpose
from arrayfn.transforms.transpose import value_and_grad as grad_program

Function = Callable[..., Any]
Argnums = int | Sequence[int]


def check_leaf(leaf: Any, what: str | Callable[[], str]) -> None:
    """Raise ArgumentError unless ``leaf``, called ``what``, is an array or a number."""
    if isinstance(leaf, Tracer):
        leaf.check_alive(current_frame())
        return
    if dtypes.is_python_scalar(leaf) or hasattr(leaf, "__arrayfn_type__"):
        return
    is_array = isinstance(leaf, (np.ndarray, np.generic))
    if isinstance(leaf, np.ma.MaskedArray):
        raise ArgumentError(
            f"{what if isinstance(what, str) else what()} is a masked array, whose "
            "mask would be lost; call .filled() first",
            user_location(),
        )
    if is_array and leaf.dtype in dtypes.ALL:
        return
    name = what if isinstance(what, str) else what()
    if is_array:
        raise ArgumentError(
            f"{name} is an array of {leaf.dtype}, which arrayfn does not have; "
            "convert it, or make the argument static (jit(f, static_argnums=...))",
            user_location(),
        )
    raise ArgumentError(
        f"{name} is {type(leaf).__name__} ({_short(leaf)}), not an array or number; "
        "convert it with numpy.asarray, or make the argument static "
        "(jit(f, static_argnums=...))",
        user_location(),
    )


def _check_result(function: Function, leaf: Any) -> None:
    """Raise ArgumentError unless ``leaf``, returned, is an array or a number."""
    try:
        check_leaf(leaf, "")
    except ArgumentError:
        raise ArgumentError(
            f"{name_of(function)} returned a {type(leaf).__name__} ({_short(leaf)}), "
            "not an array or number; return arrays only, and other things from outside "
            "the function",
            user_location(),
        ) from None


def check_leaves(
    function: Function,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    leaves: Sequence[Any],
) -> None:
    """Raise ArgumentError unless every leaf of the arguments is an array or number."""
    where = _leaf_names((args, kwargs))
    for position, leaf in enumerate(leaves):
        if type(leaf) is np.ndarray and leaf.dtype in dtypes.ALL:
            continue
        check_leaf(leaf, lambda k=position: f"{name_of(function)}: {where(k)}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def leaf_type(leaf: Any) -> ArrayType:
    """The type of an argument or result leaf."""
    return leaf.type if isinstance(leaf, Tracer) else type_of(leaf)


def _value(leaf: Any) -> Any:
    return leaf.value if isinstance(leaf, Tracer) else np.asarray(leaf)


def name_of(function: Function) -> str:
    """The name of ``function`` in Programs: an identifier."""
    name = getattr(function, "__name__", type(function).__name__)
    return name if name.isidentifier() else "function"


@dataclass(frozen=True)
class FlatTrace:
    """A traced function: its Program, what it closed over, its result's structure."""

    trace: Trace
    out_tree: tree.TreeDef

    @property
    def program(self) -> Program:
        """The Program."""
        return self.trace.program


def trace_function(
    function: Function,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    types: Sequence[ArrayType] | None = None,
    abstract: bool = False,
    with_values: bool = True,
) -> FlatTrace:
    """Trace ``function(*args, **kwargs)``, every leaf of which becomes an input.

    ``types`` replaces the leaves' own types (a mapped axis taken out, say).
    """
    leaves, structure = tree.flatten((args, kwargs))
    check_leaves(function, args, kwargs, leaves)
    out_tree: list[tree.TreeDef] = []

    def flat(*tracers: Tracer) -> list[Any]:
        inner_args, inner_kwargs = tree.unflatten(structure, tracers)
        result = function(*inner_args, **inner_kwargs)
        results, result_tree = tree.flatten(result)
        for leaf in results:
            _check_result(function, leaf)
        out_tree.append(result_tree)
        return results

    traced = trace(
        flat,
        types or [leaf_type(x) for x in leaves],
        name=name_of(function),
        hints=_hints(function, args, kwargs),
        values=[_value(x) for x in leaves] if with_values else None,
        abstract=abstract,
    )
    return FlatTrace(traced, out_tree[0])


def _hints(
    function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[str]:
    """What the user calls each leaf: ``x``, ``params_w`` for ``params["w"]``."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [p.name for p in parameters if p.kind in kinds]
    hints: list[str] = []
    for position, argument in enumerate(args):
        stem = names[position] if position < len(names) else ""
        hints += [_identifier(stem, path) for path in tree.paths(argument)]
    for key in sorted(kwargs):
        hints += [_identifier(key, path) for path in tree.paths(kwargs[key])]
    return hints


def _identifier(stem: str, path: str) -> str:
    name = re.sub(r"\W+", "_", stem + path).strip("_") if stem else ""
    return name if name.isidentifier() and len(name) <= 24 else ""


def _leaf_names(arguments: Any) -> Callable[[int], str]:
    def name(position: int) -> str:
        # "[0]" of the pair (args, kwargs), then "[2]", then where in that argument.
        path = tree.paths(arguments)[position]
        first, _, rest = path[len("[0][") :].partition("]")
        word = "argument" if path.startswith("[0]") else "keyword argument"
        return f"{word} {first}{rest}"

    return name


# Gradients.


def value_and_grad(
    function: Function, argnums: Argnums = 0, has_aux: bool = False
) -> Function:
    """A function giving ``function``'s value and its gradient by some arguments.

    ``function`` returns a real scalar, or with ``has_aux`` a pair of that and anything
    else; the result is ``(value, gradient)`` or ``((value, aux), gradient)``. The
    gradient has the structure of argument ``argnums`` (a tuple of them for a sequence).

    Raises DifferentiationError if the value is no scalar, or an argument not inexact.

    >>> import numpy as np
    >>> value_and_grad(lambda x: (x * x).sum())(np.array([1.0, 2.0]))
    (array(5.), array([2., 4.]))
    """

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        chosen = (argnums,) if isinstance(argnums, int) else tuple(argnums)
        chosen = tuple(_argument(function, k, len(args)) for k in chosen)
        wrt, shape_of_gradient = _differentiated(function, args, kwargs, chosen)
        traced = trace_function(function, args, kwargs)
        program, out_tree = traced.program, traced.out_tree
        aux_tree = None
        if has_aux:
            parts = out_tree.children()
            if len(parts) != 2:
                raise DifferentiationError(
                    f"{name_of(function)} with has_aux=True returns a pair (value, "
                    "aux)",
                    user_location(),
                )
            out_tree, aux_tree = parts
        _check_scalar(function, program, out_tree)
        wrt += [False] * len(traced.trace.captured)
        operands = [*tree.leaves((args, kwargs)), *traced.trace.captured]
        results = apply_program(grad_program(program, wrt), operands)
        outputs = len(program.outputs)
        value, aux, gradients = results[0], results[1:outputs], results[outputs:]
        gradient = tree.unflatten(shape_of_gradient, gradients)
        if isinstance(argnums, int):
            (gradient,) = gradient
        value = tree.unflatten(out_tree, [value])
        if aux_tree is not None:
            return (value, tree.unflatten(aux_tree, aux)), gradient
        return value, gradient

    return wrapper


def grad(function: Function, argnums: Argnums = 0, has_aux: bool = False) -> Function:
    """A function giving the gradient of ``function``, a real scalar, by some arguments.

    With ``has_aux`` it gives ``(gradient, aux)``. See ``value_and_grad``.

    >>> import numpy as np
    >>> grad(lambda x: np.sin(x).sum())(np.zeros(3))
    array([1., 1., 1.])
    """
    both = value_and_grad(function, argnums, has_aux)

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        value, gradient = both(*args, **kwargs)
        return (gradient, value[1]) if has_aux else gradient

    return wrapper


def _argument(function: Function, position: int, count: int) -> int:
    if not -count <= position < count:
        raise ArgumentError(
            f"argnums names argument {position}, but {name_of(function)} was called "
            f"with {count} positional arguments",
            user_location(),
        )
    return position % count


def _differentiated(
    function: Function,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    chosen: tuple[int, ...],
) -> tuple[list[bool], tree.TreeDef]:
    wrt: list[bool] = []
    for position, argument in enumerate(args):
        for number, leaf in enumerate(tree.leaves(argument)):
            if position in chosen:
                place = partial(_place_in, function, position, argument, number)
                check_leaf(leaf, place)
                dtype = leaf_type(leaf).dtype
                if dtype not in dtypes.INEXACT:
                    raise DifferentiationError(
                        f"{name_of(function)} cannot be differentiated by argument "
                        f"{position}, which is {leaf_type(leaf)}: derivatives are of "
                        "floating-point or complex numbers; convert it with "
                        ".astype(numpy.float64) (or write 1.0 for 1)",
                        user_location(),
                    )
            wrt.append(position in chosen)
    wrt += [False] * len(tree.leaves(kwargs))
    return wrt, tree.structure(tuple(args[k] for k in chosen))


def _place_in(function: Function, position: int, argument: Any, number: int) -> str:
    """What to call leaf ``number`` of an argument."""
    path = tree.paths(argument)[number]
    return f"{name_of(function)}: argument {position}{path}"


def _check_scalar(function: Function, program: Program, out: tree.TreeDef) -> None:
    name = name_of(function)
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
    if type.dtype not in dtypes.FLOATS:
        raise DifferentiationError(
            f"grad needs a function that returns a real scalar, but {name} returned "
            f"{type}",
            user_location(),
        )


def jvp(
    function: Function, primals: Sequence[Any], tangents: Sequence[Any]
) -> tuple[Any, Any]:
    """``function(*primals)`` and its directional derivative along ``tangents``.

    ``tangents`` has the structure, shapes and dtypes of ``primals``.

    >>> import numpy as np
    >>> jvp(np.sin, (np.array(0.0),), (np.array(2.0),))
    (array(0.), array(2.))
    """
    args = tuple(primals)
    leaves, structure = tree.flatten(args)
    tangent_leaves, tangent_structure = tree.flatten(tuple(tangents))
    if structure != tangent_structure:
        raise ArgumentError(
            f"jvp: tangents have the structure {tangent_structure}, primals "
            f"{structure}",
            user_location(),
        )
    converted = [
        _like("tangent", position, leaf_type(x), t)
        for position, (x, t) in enumerate(zip(leaves, tangent_leaves, strict=True))
    ]
    traced = trace_function(function, args, {})
    wrt = [leaf_type(x).dtype in dtypes.INEXACT for x in leaves]
    captured = traced.trace.captured
    program = jvp_program(traced.program, wrt + [False] * len(captured))
    directions = [t for t, wanted in zip(converted, wrt, strict=True) if wanted]
    results = apply_program(program, [*leaves, *captured, *directions])
    outputs = len(traced.program.outputs)
    return (
        tree.unflatten(traced.out_tree, results[:outputs]),
        tree.unflatten(traced.out_tree, results[outputs:]),
    )


def _like(word: str, position: int, wanted: ArrayType, given: Any) -> Any:
    check_leaf(given, f"{word} {position}")
    if dtypes.is_python_scalar(given):
        given = np.asarray(given, wanted.dtype)
    have = leaf_type(given)
    if (have.shape, have.dtype) != (wanted.shape, wanted.dtype):
        raise ShapeError(
            f"{word} {position} is {have}, but what it belongs to is {wanted}",
            user_location(),
        )
    return given


def vjp(function: Function, *primals: Any) -> tuple[Any, Function]:
    """``function(*primals)``, and the function from output to input cotangents.

    >>> import numpy as np
    >>> y, pull_back = vjp(lambda x: x * x, np.array(3.0))
    >>> pull_back(np.array(1.0))
    (array(6.),)
    """
    leaves, structure = tree.flatten(primals)
    traced = trace_function(function, primals, {})
    captured = traced.trace.captured
    wrt = [leaf_type(x).dtype in dtypes.INEXACT for x in leaves]
    split = linearize_program(traced.program, wrt + [False] * len(captured))
    results = apply_program(split.known, [*leaves, *captured])
    outputs = len(traced.program.outputs)
    residuals = results[outputs:]
    backward = transpose(split.linear, split.residuals)
    types = [v.type for v in traced.program.outputs]

    def pull_back(cotangents: Any) -> Any:
        given, given_tree = tree.flatten(cotangents)
        if given_tree != traced.out_tree:
            raise ArgumentError(
                f"vjp: cotangents have the structure {given_tree}, the outputs have "
                f"{traced.out_tree}",
                user_location(),
            )
        checked = [
            _like("cotangent", position, t, ct)
            for position, (t, ct) in enumerate(zip(types, given, strict=True))
        ]
        gradients = iter(apply_program(backward, [*residuals, *checked]))
        dense = [
            next(gradients) if wanted else np.zeros(leaf_type(x).shape)
            for x, wanted in zip(leaves, wrt, strict=True)
        ]
        return tree.unflatten(structure, dense)

    return tree.unflatten(traced.out_tree, results[:outputs]), pull_back


# Mapping.


def vmap(
    function: Function, in_axes: int | Sequence[Any] | None = 0, out_axes: Any = 0
) -> Function:
    """``function`` mapped along an axis of its arguments, all at once.

    ``in_axes`` says which axis of each positional argument is mapped (None: the
    argument is the same for all); an entry may be a pytree prefix of its argument.
    Keyword arguments are mapped along axis 0. ``out_axes`` says where the mapped axis
    stands in the outputs.

    Raises ShapeError if the mapped extents differ, or nothing is mapped.

    >>> import numpy as np
    >>> vmap(np.dot)(np.ones((3, 2)), np.ones((3, 2)))
    array([2., 2., 2.])
    """

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        name = name_of(function)
        leaves = tree.leaves((args, kwargs))
        dims = _in_dims(name, in_axes, args, kwargs)
        size = _mapped_size(name, leaves, dims)
        types = [
            _unmapped_type(leaf_type(x), dim)
            for x, dim in zip(leaves, dims, strict=True)
        ]
        traced = trace_function(function, args, kwargs, types=types, with_values=False)
        captured = traced.trace.captured
        placeholder = tree.unflatten(traced.out_tree, [0] * traced.out_tree.num_leaves)
        try:
            out_dims = tree.broadcast_prefix(out_axes, placeholder)
        except ValueError as error:
            raise ArgumentError(
                f"vmap: out_axes {out_axes} is no prefix of the structure that {name} "
                f"returns, {traced.out_tree}",
                user_location(),
            ) from error
        out_dims = [
            _out_dim(name, dim, atom.type)
            for dim, atom in zip(out_dims, traced.program.outputs, strict=True)
        ]
        mapped = batch(traced.program, size, [*dims, *[None] * len(captured)], out_dims)
        _check_unmapped(name, traced.program, mapped, out_dims)
        results = apply_program(mapped, [*leaves, *captured])
        return tree.unflatten(traced.out_tree, results)

    return wrapper


def _out_dim(name: str, dim: int | None, type: ArrayType) -> int | None:
    """``dim`` counted from the front of ``type`` with a mapped axis put in."""
    if dim is None:
        return None
    if not -type.ndim - 1 <= dim <= type.ndim:
        raise ShapeError(
            f"vmap: out_axes puts the mapped axis at {dim}, but an output of {name} is "
            f"{type}, so that it can be 0 to {type.ndim}",
            user_location(),
        )
    return dim % (type.ndim + 1)


def _check_unmapped(
    name: str, program: Program, mapped: Program, out_dims: Sequence[int | None]
) -> None:
    types = zip(program.output_types, mapped.output_types, strict=True)
    for position, (alone, together) in enumerate(types):
        if out_dims[position] is None and alone.shape != together.shape:
            raise ShapeError(
                f"vmap of {name}: out_axes says that output {position} ({alone}) is "
                "the same for all, but it varies; give the axis to put it along",
                user_location(),
            )


def _in_dims(
    name: str, in_axes: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[int | None]:
    if in_axes is None or isinstance(in_axes, int):
        axes: tuple[Any, ...] = (in_axes,) * len(args)
    else:
        axes = tuple(in_axes)
    if len(axes) != len(args):
        raise ArgumentError(
            f"vmap: in_axes has {len(axes)} entries, but {name} was called with "
            f"{len(args)} positional arguments",
            user_location(),
        )
    dims: list[int | None] = []
    for position, (axis, argument) in enumerate(zip(axes, args, strict=True)):
        try:
            dims += tree.broadcast_prefix(axis, argument)
        except ValueError as error:
            raise ArgumentError(
                f"vmap: in_axes[{position}] = {axis} is no prefix of argument "
                f"{position} of {name}",
                user_location(),
            ) from error
    dims += [0] * len(tree.leaves(kwargs))
    checked: list[int | None] = []
    for leaf, dim in zip(tree.leaves((args, kwargs)), dims, strict=True):
        check_leaf(leaf, f"vmap: an argument of {name}")
        ndim = leaf_type(leaf).ndim
        if dim is not None and not -ndim <= dim < ndim:
            raise ShapeError(
                f"vmap: axis {dim} of {leaf_type(leaf)} does not exist; give None in "
                "in_axes for an argument that is the same for all",
                user_location(),
            )
        checked.append(None if dim is None else dim % ndim)
    return checked


def _mapped_size(name: str, leaves: list[Any], dims: list[int | None]) -> int:
    sizes = {
        leaf_type(x).shape[dim]
        for x, dim in zip(leaves, dims, strict=True)
        if dim is not None
    }
    if len(sizes) != 1:
        given = ", ".join(
            f"{leaf_type(x)} along axis {d}" for x, d in zip(leaves, dims, strict=True)
        )
        problem = "nothing is mapped" if not sizes else "the mapped extents differ"
        raise ShapeError(f"vmap of {name}: {problem}: {given}", user_location())
    return sizes.pop()


def _unmapped_type(type: ArrayType, dim: int | None) -> ArrayType:
    if dim is None:
        return ArrayType(type.shape, type.dtype, weak=type.weak)
    shape = type.shape[:dim] + type.shape[dim + 1 :]
    return ArrayType(shape, type.dtype, weak=type.weak)


def inside_trace(leaves: Sequence[Any]) -> bool:
    """Whether a call with ``leaves`` belongs to a trace rather than running at once."""
    frame = current_frame()
    return frame is not None and (
        frame.abstract or any(isinstance(x, Tracer) for x in leaves)
    )
