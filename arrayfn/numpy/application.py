"""apply_along_axis, apply_over_axes, piecewise, vectorize and block."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from arrayfn import dtypes
from arrayfn.dtypes import DType
from arrayfn.errors import ArgumentError, ShapeError, plural, user_location
from arrayfn.ir.layout import Shape
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.comparison import where
from arrayfn.numpy.creation import asarray
from arrayfn.numpy.manipulation import (
    broadcast_to,
    concatenate,
    expand_dims,
    moveaxis,
    reshape,
)
from arrayfn.transforms import vmap


def apply_along_axis(
    func1d: Callable[..., Any],
    axis: int,
    arr: ArrayLike,
    *args: Any,
    **options: Any,
) -> Array:
    """Apply ``func1d`` to each vector of arr along ``axis``.

    The axes of the result of ``func1d`` replace ``axis``. ``func1d`` also receives
    ``args`` and ``options``. It is mapped over the other axes by ``vmap``.
    """
    type = ops.type_of_operand("apply_along_axis", arr)
    place = ops.normalize_axis("apply_along_axis", axis, type.ndim)
    along = moveaxis(arr, place, -1)

    def mapped(vector: Any) -> Any:
        """Call ``func1d`` with one vector, and convert its result to an array."""
        return asarray(func1d(vector, *args, **options))

    call: Callable[..., Any] = mapped
    for _ in range(type.ndim - 1):
        call = vmap(call)
    result = call(along)
    new = result.ndim - (type.ndim - 1)  # the number of axes of func1d's result
    return (
        moveaxis(result, tuple(range(-new, 0)), tuple(range(place, place + new)))
        if new
        else result
    )


def apply_over_axes(
    func: Callable[..., Any], a: ArrayLike, axes: int | Sequence[int]
) -> Array:
    """Apply ``func(a, axis)`` over ``axes``, one after the other.

    If ``func`` removes the axis, the result gets it back with extent 1. Raises
    ShapeError if ``func`` returns another number of axes.
    """
    ndim = ops.type_of_operand("apply_over_axes", a).ndim
    value = ops.same(a)
    for place in ops.each_axis("apply_over_axes", axes, ndim):
        value = func(value, place)
        if value.ndim == ndim - 1:
            value = expand_dims(value, place)
        elif value.ndim != ndim:
            raise ShapeError(
                f"apply_over_axes: the function returned {value.ndim} axes for {ndim}",
                user_location(),
            )
    return value


def piecewise(
    x: ArrayLike,
    condlist: Any,
    funclist: Sequence[Any],
    *args: Any,
    **options: Any,
) -> Array:
    """Choose a function or number for each element of x, by the last true condition.

    ``condlist`` has bool arrays like x, and ``funclist`` a function or number for each.
    One more function applies where no condition is true; without it, the result is 0
    there. Each function is applied to all of x, so it must not fail for elements whose
    condition is false. Functions also receive ``args`` and ``options``. The result has
    the shape and dtype of x. Raises ArgumentError if the numbers do not fit.
    """
    type = ops.type_of_operand("piecewise", x)
    masks = condlist if isinstance(condlist, (list, tuple)) else [condlist]
    if isinstance(condlist, np.ndarray) and condlist.ndim > type.ndim:
        masks = list(condlist)  # one array that stacks the conditions
    conditions = [asarray(c) for c in masks]
    functions = list(funclist)
    if len(functions) not in (len(conditions), len(conditions) + 1):
        raise ArgumentError(
            f"piecewise takes as many functions as conditions or one more, but was "
            f"given {len(functions)} and {len(conditions)}",
            user_location(),
        )
    values = [
        ops.convert(f(x, *args, **options) if callable(f) else f, type.dtype)
        for f in functions
    ]
    if len(values) > len(conditions):
        result = broadcast_to(ops.as_array(values.pop()), type.shape)
    else:
        result = ops.full(0, type.shape, type.dtype)
    for condition, value in zip(conditions, values, strict=True):
        result = where(condition, value, result)
    return result


# vectorize


# A parenthesized list of names, such as "(m, n)".
_NAMES = re.compile(r"\s*\(([^()]*)\)\s*")


def _parsed(signature: str) -> tuple[list[list[str]], list[list[str]]]:
    """Return the names of axes of the inputs and of the outputs in ``signature``.

    "(m,n),(n)->(m)" gives [["m", "n"], ["n"]] and [["m"]]. Raises ArgumentError for
    text of another form.
    """
    sides = signature.split("->")
    if len(sides) != 2:
        raise ArgumentError(
            f"vectorize: {signature!r} is not a signature like '(m,n),(n)->(m)'",
            user_location(),
        )
    names: list[list[list[str]]] = []
    for side in sides:
        rest = _NAMES.sub("", side).strip(" ,")
        if rest:
            raise ArgumentError(
                f"vectorize: {signature!r} is not a signature like '(m,n),(n)->(m)'",
                user_location(),
            )
        names.append(
            [
                [name.strip() for name in group.split(",") if name.strip()]
                for group in _NAMES.findall(side)
            ]
        )
    return names[0], names[1]


def vectorize(
    pyfunc: Callable[..., Any],
    otypes: Any = None,
    doc: str | None = None,
    excluded: Any = None,
    cache: bool = False,
    signature: str | None = None,
) -> Callable[..., Any]:
    """Return a function that maps ``pyfunc``, a function of scalars, over arrays.

    The arrays broadcast. ``signature``, such as "(m,n),(n)->(m)", names the axes of the
    function's own arguments and results. The other axes are mapped. The function
    receives the ``excluded`` arguments (positions and names) unchanged. The function is
    mapped by ``vmap``, not by a loop, so ``cache`` has no effect. ``otypes`` has a
    dtype for each result, or is a text of NumPy's one-letter codes. The results are
    converted to these dtypes. ``doc`` is the result's docstring. Raises ArgumentError
    for bad ``excluded``. The returned function raises ArgumentError or ShapeError if
    arguments or results do not fit ``signature`` or ``otypes``.

    >>> import numpy as np
    >>> vectorize(lambda x, y: x * y + 1)(np.arange(3), 2)
    array([1, 3, 5])
    """
    excluded = frozenset(excluded or ())
    if not all(isinstance(e, str) or (isinstance(e, int) and e >= 0) for e in excluded):
        raise ArgumentError(
            "vectorize: excluded has positions from 0 on and names of arguments, not "
            f"{set(excluded)}",
            user_location(),
        )
    wanted = None if otypes is None else [dtypes.canonical(t) for t in otypes]

    @functools.wraps(pyfunc)
    def vectorized(*args: Any, **options: Any) -> Any:
        """Call ``pyfunc`` for each index of the leading axes of the arguments.

        Keyword arguments that are not excluded are mapped, too.
        """
        by_name = [name for name in options if name not in excluded]
        mapped = [k for k in range(len(args)) if k not in excluded]
        arrays = [asarray(args[k]) for k in mapped] + [
            asarray(options[name]) for name in by_name
        ]
        # The names of the core axes: those that pyfunc takes and returns itself.
        # Without a signature, pyfunc takes scalars, and its results are not checked.
        cores, result_cores = [[] for _ in arrays], None
        if signature is not None:
            cores, result_cores = _parsed(signature)
        if len(cores) != len(arrays):
            raise ArgumentError(
                f"vectorize: {signature!r} is for {plural(len(cores), 'argument')}, "
                f"not for {len(arrays)}",
                user_location(),
            )
        extents = _check_cores(arrays, cores, signature)

        def call(*values: Any) -> Any:
            """Call ``pyfunc`` with mapped ``values`` and the excluded arguments."""
            passed = list(args)
            # ``values`` has the positional arguments first, then those by name.
            for position, value in zip(mapped, values, strict=False):
                passed[position] = value
            named = dict(zip(by_name, values[len(mapped) :], strict=True))
            result = pyfunc(*passed, **{**options, **named})
            if result_cores is not None:
                _check_results(result, result_cores, dict(extents), signature)
            return result if wanted is None else _as_dtypes(result, wanted)

        return _mapped(call, arrays, [len(core) for core in cores])

    vectorized.__doc__ = doc or pyfunc.__doc__
    return vectorized


def _as_dtypes(result: Any, wanted: Sequence[DType]) -> Any:
    """Convert ``result``, an array or a tuple, of a vectorized function to dtypes.

    ``wanted`` has a dtype for each array. Raises ArgumentError for another number.
    """
    results = result if isinstance(result, tuple) else (result,)
    if len(results) != len(wanted):
        raise ArgumentError(
            f"vectorize: otypes has {len(wanted)} dtypes, but the function returned "
            f"{_counted(result)}",
            user_location(),
        )
    converted = tuple(
        ops.as_array(ops.convert(value, dtype))
        for value, dtype in zip(results, wanted, strict=True)
    )
    return converted if isinstance(result, tuple) else converted[0]


def _check_results(
    result: Any,
    cores: Sequence[Sequence[str]],
    extents: dict[str, int],
    signature: str | None,
) -> None:
    """Raise an error unless ``result`` has the arrays and axes of ``signature``.

    ``cores`` are the names of the axes of each array. ``extents`` are the extents of
    named axes that the operands determine; those of other names are added. Raises
    ArgumentError for the number of results, ShapeError for their shapes.
    """
    results = result if isinstance(result, (tuple, list)) else (result,)
    # One result is an array, and several are a tuple or list.
    if len(results) != len(cores) or (len(cores) == 1) != (results is not result):
        raise ArgumentError(
            f"vectorize: {signature!r} is for {plural(len(cores), 'result')}, but "
            f"the function returned {_counted(result)}",
            user_location(),
        )
    for value, core in zip(results, cores, strict=True):
        shape = ops.type_of_operand("vectorize", value).shape
        if len(shape) != len(core):
            raise ShapeError(
                f"vectorize: a result of shape {shape} does not have the axes "
                f"({','.join(core)}) of {signature!r}",
                user_location(),
            )
        _check_extents(shape, core, extents, signature)


def _counted(result: Any) -> str:
    """Return the number of results for errors: "one" or "a tuple of 2", say."""
    if isinstance(result, (tuple, list)):
        return f"a {type(result).__name__} of {len(result)}"
    return "one"


def _check_cores(
    arrays: Sequence[Array], cores: Sequence[Sequence[str]], signature: str | None
) -> dict[str, int]:
    """Return the extents of the axes that ``cores``, lists of names, give to arrays.

    The names are those of the last axes of each array. Raises ShapeError if an array
    has too few axes, or one name has two extents.
    """
    extents: dict[str, int] = {}
    for array, core in zip(arrays, cores, strict=True):
        if array.ndim < len(core):
            raise ShapeError(
                f"vectorize: {array.shape} lacks axes of {tuple(core)} in "
                f"{signature!r}",
                user_location(),
            )
        shape = array.shape[array.ndim - len(core) :]
        _check_extents(shape, core, extents, signature)
    return extents


def _check_extents(
    shape: Shape, core: Sequence[str], extents: dict[str, int], signature: str | None
) -> None:
    """Add the extents of the axes named in ``core`` to ``extents``, in place.

    Raises ShapeError if one differs from a recorded extent, or from a name that is a
    number.
    """
    for name, extent in zip(core, shape, strict=True):
        wanted = int(name) if name.isdigit() else extents.setdefault(name, extent)
        if wanted != extent:
            raise ShapeError(
                f"vectorize: axis {name!r} of {signature!r} has extents "
                f"{wanted} and {extent}",
                user_location(),
            )


def _mapped(
    function: Callable[..., Any], arrays: Sequence[Array], cores: Sequence[int]
) -> Any:
    """Call ``function`` mapped over all leading axes, along which ``arrays`` broadcast.

    ``cores`` has, for each array, the number of trailing axes that ``function`` takes
    itself. The result, or each result of a tuple, has the broadcast leading axes in
    front.
    """
    outer = [a.shape[: a.ndim - n] for a, n in zip(arrays, cores, strict=True)]
    shape = ops.broadcast_shape("vectorize", outer)
    # Axes of extent 1 are dropped, not mapped, so that nothing is repeated.
    dims: list[tuple[int | None, ...]] = []
    values: list[Array] = []
    for array, own in zip(arrays, outer, strict=True):
        padded: Shape = (1,) * (len(shape) - len(own)) + own
        mapped = [k for k, n in enumerate(padded) if n == shape[k] and n != 1]
        inner = array.shape[len(own) :]
        values.append(reshape(array, (*[padded[k] for k in mapped], *inner)))
        dims.append(tuple(0 if k in mapped else None for k in range(len(shape))))
    # One vmap for each axis, the first axis outermost. So the mapped axis is always 0.
    call = function
    for axis in reversed(range(len(shape))):
        along = tuple(d[axis] for d in dims)
        if any(d is not None for d in along):
            call = vmap(call, in_axes=along)
    result = call(*values)
    unmapped = tuple(k for k in range(len(shape)) if all(d[k] is None for d in dims))
    if not unmapped:
        return result
    if isinstance(result, (list, tuple)):
        return tuple(expand_dims(asarray(r), unmapped) for r in result)
    return expand_dims(asarray(result), unmapped)


def block(arrays: Any) -> Array:
    """Join nested lists of arrays as blocks.

    The innermost lists are joined along the last axis, the lists around them along the
    axis before, and so on. Arrays with fewer axes than the result get leading axes of
    extent 1. Raises ArgumentError if lists are empty or nested to different depths.

    >>> import numpy as np
    >>> block([[np.ones((1, 2)), 2.0], [3.0, np.full((1, 2), 4.0)]])
    array([[1., 1., 2.],
           [3., 4., 4.]])
    """
    depth = _depth(arrays)
    leaves = list(_leaves(arrays))
    ndim = max([depth, *(ops.type_of_operand("block", leaf).ndim for leaf in leaves)])
    return _joined(arrays, ndim, depth)


def _depth(arrays: Any) -> int:
    """Return how deep lists are nested; ArgumentError if the depth differs.

    An empty list raises the same error.
    """
    if not isinstance(arrays, list):
        return 0
    depths = {_depth(part) for part in arrays}
    if len(depths) != 1:
        raise ArgumentError(
            "block takes lists nested to one depth, none of them empty",
            user_location(),
        )
    return 1 + depths.pop()


def _leaves(arrays: Any) -> Any:
    """Yield the arrays in nested lists, in order."""
    if isinstance(arrays, list):
        for part in arrays:
            yield from _leaves(part)
    else:
        yield arrays


def _joined(arrays: Any, ndim: int, depth: int) -> Array:
    """Join nested lists of arrays along the last axes, the innermost lists first.

    ``depth`` is that of the lists, and ``ndim`` the number of axes of the result. So
    the outermost lists are joined along axis ``ndim - depth``.
    """
    if not isinstance(arrays, list):
        value = asarray(arrays)
        missing = ndim - value.ndim
        return expand_dims(value, tuple(range(missing))) if missing else value
    parts = [_joined(part, ndim, depth - 1) for part in arrays]
    return concatenate(parts, ndim - depth)
