"""Mapping functions along axes of their arguments: ``vmap``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

import numpy as np

from arrayfn import dtypes, tree
from arrayfn.errors import ArgumentError, ShapeError, plural, user_location
from arrayfn.ir import ArrayType, Program
from arrayfn.tracing import ArrayOnDevice, Key, apply_program
from arrayfn.transforms.arguments import (
    check_function,
    check_leaf,
    is_array,
    is_fixed,
    is_one,
    leaf_type,
    shown_name,
)
from arrayfn.transforms.batching import batch
from arrayfn.transforms.flat_trace import FlatTrace, trace_function

P = ParamSpec("P")
R = TypeVar("R")


def vmap(
    fun: Callable[P, R],
    in_axes: int | Sequence[Any] | None = 0,
    out_axes: Any = 0,
    axis_name: str | None = None,
    axis_size: int | None = None,
    spmd_axis_name: str | tuple[str, ...] | None = None,
) -> Callable[P, R]:
    """Map ``fun`` along an axis of its arguments, for all members at once.

    ``in_axes`` says which axis of each positional argument is mapped. None means that
    the argument is the same for all members. Then it need not be an array, and ``fun``
    may branch on it if it is a number. An entry may be a pytree prefix of its argument.
    Keyword arguments are mapped along axis 0. ``out_axes`` says where the mapped axis
    stands in the outputs. If the axis has a name, ``axis_name``, the function may
    combine the values of all members, for example by ``lax.psum(x, axis_name)``.
    ``axis_size`` is the number of members, and is needed only if no argument is mapped.
    If the function constrains the sharding of a value (``with_sharding_constraint``),
    the mapped axis is cut along the mesh axis, or axes, ``spmd_axis_name``. Without
    ``spmd_axis_name``, the mapped axis is not cut.

    Raises ShapeError if the mapped extents differ, or if nothing is mapped and there is
    no ``axis_size``.

    >>> import numpy as np
    >>> vmap(np.dot)(np.ones((3, 2)), np.ones((3, 2)))
    array([2., 2., 2.])
    """
    check_function("vmap", fun)
    _check_in_axes(in_axes)
    mesh_axes = (
        ()
        if spmd_axis_name is None
        else (spmd_axis_name,)
        if isinstance(spmd_axis_name, str)
        else tuple(spmd_axis_name)
    )

    @functools.wraps(fun)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        """Trace the function of one member, map its Program and run it.

        Arguments that are not traced are bound first, by another ``vmap``.
        """
        name = shown_name(fun)
        leaves, structure = tree.flatten((args, kwargs))
        dims = _in_dims(name, in_axes, args, kwargs, leaves)
        objects = {
            k: x
            for k, (x, dim) in enumerate(zip(leaves, dims, strict=True))
            if dim is None and is_fixed(x)
        }
        if objects:  # they are not traced, and the same for all members
            arrays = [k for k in range(len(leaves)) if k not in objects]
            mapped: Any = vmap(
                with_fixed_leaves(fun, structure, objects),
                tuple(dims[k] for k in arrays),
                out_axes,
                axis_name,
                axis_size,
                spmd_axis_name,
            )
            return mapped(*[leaves[k] for k in arrays])
        size = _mapped_size(name, leaves, dims, axis_size)
        types = [
            _unmapped_type(leaf_type(x), dim)
            for x, dim in zip(leaves, dims, strict=True)
        ]
        axes = None if axis_name is None else {axis_name: size}
        # Code may branch on numbers that are the same for all members.
        known = [
            dim is None and type.shape == () and not isinstance(x, ArrayOnDevice)
            for x, type, dim in zip(leaves, types, dims, strict=True)
        ]
        traced = trace_function(
            fun, args, kwargs, types=types, with_values=known, axes=axes
        )
        captured = traced.trace.captured
        out_dims = _out_dims(name, out_axes, traced)
        # The index of a member among all, and what the function closes over.
        indices = [] if axis_name is None else [np.arange(size, dtype=np.int32)]
        all_dims = [*dims, *[0] * len(indices), *[None] * len(captured)]
        mapped = batch(traced.program, size, all_dims, out_dims, axis_name, mesh_axes)
        _check_unmapped(name, traced.program, mapped, out_dims)
        results = apply_program(mapped, [*leaves, *indices, *captured], once=True)
        return tree.unflatten(traced.out_tree, results)

    return wrapper


def with_fixed_leaves(
    fun: Callable[..., R], structure: tree.TreeDef, fixed: Mapping[int, Any]
) -> Callable[..., R]:
    """Return ``fun`` as a function of the leaves of its arguments that are not fixed.

    ``structure`` is that of ``(args, kwargs)``. ``fixed`` has the value of each fixed
    leaf by its position among all leaves. The other leaves are the new function's
    positional arguments.
    """

    @functools.wraps(fun)
    def of_other_leaves(*others: Any) -> R:
        """Call the function with the fixed leaves inserted."""
        next_other = iter(others)
        leaves = [
            fixed[k] if k in fixed else next(next_other)
            for k in range(structure.num_leaves)
        ]
        args, kwargs = tree.unflatten(structure, leaves)
        return fun(*args, **kwargs)

    return of_other_leaves


def _check_axes(given: Any, name: str, axes: Sequence[Any]) -> None:
    """Raise ArgumentError unless each of ``axes`` is an integer or None.

    They are the leaves of ``given``, the argument ``name`` of vmap.
    """
    for axis in axes:
        if axis is not None and (isinstance(axis, bool) or not is_one(axis)):
            raise ArgumentError(
                f"vmap: {name} = {given} has the entry {axis!r}; an entry must be an "
                "integer, or None for a value that is the same for all",
                user_location(),
            )


def _are_words(arguments: Any, leaves: Sequence[Any]) -> list[bool]:
    """Return for each leaf of ``arguments`` whether it is the array of a Key's words.

    The last axis of such a leaf, that of the words, is not an axis of the Key.
    ``leaves`` has the leaves, or their types.
    """
    # Keys store uint32 words: without such a leaf there is no Key.
    if not any(getattr(leaf, "dtype", None) == dtypes.uint32 for leaf in leaves):
        return [False] * len(leaves)
    nodes = tree.leaves(arguments, is_leaf=lambda x: isinstance(x, Key))
    return [isinstance(node, Key) for node in nodes]


def _out_dims(name: str, out_axes: Any, traced: FlatTrace) -> list[int | None]:
    """Return the mapped axis of each output of ``traced``, not negative, or None.

    ``out_axes`` is a prefix of the structure that the function ``name`` returns. Raises
    ArgumentError if it is not, and ShapeError for an axis that is out of bounds.
    """
    placeholder = tree.unflatten(traced.out_tree, [0] * traced.out_tree.num_leaves)
    try:
        dims = tree.broadcast_prefix(out_axes, placeholder)
    except ValueError as error:
        raise ArgumentError(
            f"vmap: out_axes {out_axes} is not a prefix of the structure that "
            f"{name} returns, {traced.out_tree}",
            user_location(),
        ) from error
    _check_axes(out_axes, "out_axes", dims)
    types = traced.program.output_types
    are_words = _are_words(placeholder, types)
    # The last axis of a Key's words is not an axis of the Key.
    return [
        _out_dim(name, dim, type.ndim - of_key, type)
        for dim, type, of_key in zip(dims, types, are_words, strict=True)
    ]


def _out_dim(name: str, dim: int | None, ndim: int, type: ArrayType) -> int | None:
    """Return ``dim``, an axis among ``ndim`` and the mapped one, as not negative.

    Raises ShapeError if it is out of bounds. The message is about an output of ``type``
    of the function ``name``.
    """
    if dim is None:
        return None
    if not -ndim - 1 <= dim <= ndim:
        raise ShapeError(
            f"vmap: out_axes puts the mapped axis at {dim}, but an output of {name} is "
            f"{type}, so that it can be 0 to {ndim}",
            user_location(),
        )
    return dim % (ndim + 1)


def _check_unmapped(
    name: str, program: Program, mapped: Program, out_dims: Sequence[int | None]
) -> None:
    """Raise ShapeError if an output varies whose ``out_axes`` is None.

    ``mapped`` is ``program``, batched.
    """
    types = zip(program.output_types, mapped.output_types, strict=True)
    for position, (alone, together) in enumerate(types):
        if out_dims[position] is None and alone.shape != together.shape:
            raise ShapeError(
                f"vmap of {name}: out_axes says that output {position} ({alone}) is "
                "the same for all, but it varies; give the axis to put it along",
                user_location(),
            )


def _check_in_axes(in_axes: Any) -> None:
    """Raise ArgumentError unless ``in_axes`` is an integer, None or several of them."""
    one = is_one(in_axes) and not isinstance(in_axes, bool)
    if not (in_axes is None or one or isinstance(in_axes, (tuple, list))):
        raise ArgumentError(
            f"vmap: in_axes must be an integer, None, or a tuple of one for each "
            f"positional argument, not {in_axes!r}",
            user_location(),
        )


def _in_dims(
    name: str,
    in_axes: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    leaves: Sequence[Any],
) -> list[int | None]:
    """Return the mapped axis, not negative, of each of the arguments' ``leaves``.

    None means not mapped. Keyword arguments are mapped along axis 0. Raises
    ArgumentError or ShapeError if ``in_axes`` does not fit the arguments.
    """
    several = isinstance(in_axes, (tuple, list))
    axes = tuple(in_axes) if several else (in_axes,) * len(args)
    if len(axes) != len(args):
        raise ArgumentError(
            f"vmap: in_axes has {plural(len(axes), 'entry')}, but {name} was called "
            f"with {plural(len(args), 'positional argument')}",
            user_location(),
        )
    dims: list[int | None] = []
    for position, (axis, argument) in enumerate(zip(axes, args, strict=True)):
        try:
            dims += tree.broadcast_prefix(axis, argument)
        except ValueError as error:
            raise ArgumentError(
                f"vmap: in_axes[{position}] = {axis} is not a prefix of argument "
                f"{position} of {name}",
                user_location(),
            ) from error
    dims += [0] * len(tree.leaves(kwargs))
    _check_axes(in_axes, "in_axes", dims)
    checked: list[int | None] = []
    of_keys = _are_words((args, kwargs), leaves)
    for leaf, dim, of_key in zip(leaves, dims, of_keys, strict=True):
        if dim is None and not is_array(leaf):
            # Any Python value may be given where nothing is mapped.
            checked.append(None)
            continue
        check_leaf(leaf, f"vmap: an argument of {name}")
        # The last axis of a Key's words is not an axis of the Key.
        ndim = leaf_type(leaf).ndim - of_key
        if dim is not None and not -ndim <= dim < ndim:
            raise ShapeError(
                f"vmap: axis {dim} of {leaf_type(leaf)} does not exist; give None in "
                "in_axes for an argument that is the same for all",
                user_location(),
            )
        checked.append(None if dim is None else dim % ndim)
    return checked


def _mapped_size(
    name: str, leaves: list[Any], dims: list[int | None], axis_size: int | None
) -> int:
    """Return the extent of the mapped axes, which is the same in all ``leaves``.

    ``dims`` are the leaves' mapped axes, and ``axis_size`` is vmap's argument. Raises
    ShapeError if extents differ, or if none is known.
    """
    sizes = {
        leaf_type(x).shape[dim]
        for x, dim in zip(leaves, dims, strict=True)
        if dim is not None
    }
    if axis_size is not None:
        sizes.add(axis_size)
    if len(sizes) == 1:
        return sizes.pop()
    extents = ", ".join(
        f"{leaf_type(x)} along axis {d}" for x, d in zip(leaves, dims, strict=True)
    )
    if not sizes:
        problem = f"nothing is mapped: {extents}; give axis_size for repetition"
    elif axis_size is not None:
        problem = f"the mapped extents differ from axis_size={axis_size}: {extents}"
    else:
        problem = f"the mapped extents differ: {extents}"
    raise ShapeError(f"vmap of {name}: {problem}", user_location())


def _unmapped_type(type: ArrayType, dim: int | None) -> ArrayType:
    """Return the type of one member of an array of ``type`` mapped along ``dim``."""
    if dim is None:
        return type.plain()
    shape = type.shape[:dim] + type.shape[dim + 1 :]
    return ArrayType(shape, type.dtype, weak=type.weak, varying=type.varying)
