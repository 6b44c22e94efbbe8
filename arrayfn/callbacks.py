"""Python functions that compiled code calls; ``debug`` has more of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from arrayfn import dtypes, tree
from arrayfn.errors import ArgumentError, user_location
from arrayfn.primitives import callbacks
from arrayfn.primitives.named_functions import FUNCTIONS
from arrayfn.primitives.rules import as_list
from arrayfn.tracing import ImmutableArray, apply, is_made_of_equations
from arrayfn.tracing.frames import current_frame
from arrayfn.transforms import check_leaf, leaf_type, name_of, shown_name

_METHODS = (None, "sequential", "expand_dims", "broadcast_all")


def pure_callback(
    callback: Callable[..., Any],
    result_shape_dtypes: Any,
    *args: Any,
    vmap_method: str | None = None,
    **kwargs: Any,
) -> Any:
    """Call the Python function ``callback(*args, **kwargs)`` from compiled code.

    The callback receives NumPy arrays, and returns arrays in the structure, shapes and
    dtypes of ``result_shape_dtypes`` (arrays, or ``ShapeDtypeStruct``). The callback
    must have no side effects, because compiled code may call it more or less often than
    the source says. ``vmap_method`` says how ``vmap`` calls it. "sequential" calls it
    once for each member. "expand_dims" and "broadcast_all" call it once for all
    members, with the mapped axis as first axis of the arguments. In arguments that are
    not mapped, "expand_dims" gives this axis extent 1, and "broadcast_all" repeats the
    values along it. Without a method, ``vmap`` raises ArgumentError. The call has no
    derivative, but ``custom_jvp`` can give it one.

    Errors of the callback are raised again. A result that is not as declared raises
    ShapeError.

    >>> from arrayfn.compilation.jit import jit
    >>> double = jit(lambda x: pure_callback(lambda x: 2 * x, x, x) + 1.0)
    >>> double(np.arange(3.0))
    array([1., 3., 5.])
    """
    if vmap_method not in _METHODS:
        raise ArgumentError(
            f"pure_callback: vmap_method must be one of {_METHODS}, not "
            f"{vmap_method!r}",
            user_location(),
        )
    return _called(
        callbacks.pure_callback,
        callback,
        result_shape_dtypes,
        args,
        kwargs,
        vmap_method or "",
    )


def io_callback(
    callback: Callable[..., Any],
    result_shape_dtypes: Any,
    *args: Any,
    ordered: bool = False,
    **kwargs: Any,
) -> Any:
    """Call a Python function with side effects from compiled code.

    Arguments are those of ``pure_callback``. Each call in the program takes place
    exactly once, even if nothing reads its result, and calls keep their order. ``vmap``
    calls the function for each member in turn, but refuses ``ordered`` calls. The call
    has no derivative. Errors of the callback are raised again. A result that is not as
    declared raises ShapeError.

    >>> from arrayfn.compilation.jit import jit
    >>> log = []
    >>> @jit
    ... def f(x):
    ...     io_callback(lambda y: log.append(float(y)), None, x + 1.0)
    ...     return 2.0 * x
    >>> f(3.0), log
    (array(6.), [4.0])
    """
    method = "ordered" if ordered else ""
    row = callbacks.io_callback
    return _called(row, callback, result_shape_dtypes, args, kwargs, method)


def _called(
    primitive: callbacks.Primitive,
    callback: Callable[..., Any],
    result_shape_dtypes: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    method: str,
) -> Any:
    """Call ``callback``, or emit its call in a trace, and return its results.

    The results have the structure, shapes and dtypes of ``result_shape_dtypes``.
    ``args`` and ``kwargs`` are the callback's arguments; ``method`` says how vmap calls
    it, or is "ordered".
    """
    forms, result_tree = tree.flatten(result_shape_dtypes)
    for form in forms:
        check_leaf(form, f"{primitive.name}: what describes a result")
    results = tuple((t.shape, t.dtype) for t in map(leaf_type, forms))

    def checked(*operands: Any, **options: Any) -> list[Any]:
        """Call the callback, and return the leaves of its result as arrays.

        Raises ArgumentError for another structure than the declared one.
        """
        leaves, structure = tree.flatten(callback(*operands, **options))
        if structure != result_tree:
            raise ArgumentError(
                f"{shown_name(callback)} returned the structure "
                f"{tree.text_of(structure)}, which is declared as "
                f"{tree.text_of(result_tree)}"
            )
        return [
            np.asarray(x, dtype) if dtypes.is_python_scalar(x) else np.asarray(x)
            for x, (_, dtype) in zip(leaves, results, strict=True)
        ]

    flat_results = staged_call(
        primitive,
        checked,
        name_of(callback),
        args,
        kwargs,
        results=results,
        method=method,
    )
    if flat_results is None:
        arrays = checked(*args, **kwargs)
        flat_results = callbacks.check_results(name_of(callback), arrays, results)
    return tree.unflatten(result_tree, flat_results)


def staged_call(
    primitive: callbacks.Primitive,
    function: Callable[..., Any],
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    **params: Any,
) -> Sequence[Any] | None:
    """Emit the call of ``function`` and return its results, or None outside a trace.

    Effects are emitted in every trace, and other calls only if an argument is traced.
    The operands are the traced leaves of ``args`` and ``kwargs``. Other leaves are
    passed unchanged. The Program shows ``name``, and ``params`` are the equation's.
    """
    leaves, structure = tree.flatten((args, kwargs))
    is_effect_in_trace = primitive.effect and current_frame() is not None
    if not (is_effect_in_trace or is_made_of_equations(leaves)):
        return None
    places = [k for k, leaf in enumerate(leaves) if isinstance(leaf, ImmutableArray)]
    static = {k: x for k, x in enumerate(leaves) if not isinstance(x, ImmutableArray)}
    count = len(leaves)

    def flat(*arrays: Any) -> Any:
        """Call the function with arrays in the place of its traced leaves."""
        values = {**static, **dict(zip(places, arrays, strict=True))}
        inner_args, inner_kwargs = tree.unflatten(
            structure, [values[k] for k in range(count)]
        )
        return function(*inner_args, **inner_kwargs)

    named_function = FUNCTIONS.name(flat, name)
    operands = [leaves[k] for k in places]
    results = apply(primitive, *operands, callback=named_function, loops=(), **params)
    return as_list(results)
