"""Programs and result types of functions that are traced and not run."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from arrayfn import tree
from arrayfn.ir import Program
from arrayfn.transforms.arguments import Function, as_numbers
from arrayfn.transforms.flat_trace import FlatTrace, trace_function
from arrayfn.transforms.shape_struct import ShapeDtypeStruct, stand_ins


def eval_shape(fun: Function, *args: Any, **kwargs: Any) -> Any:
    """Return the shapes and data types of ``fun(*args, **kwargs)``, which is not run.

    Arguments are arrays, numbers and ``ShapeDtypeStruct``, or any objects with a shape
    and a dtype. The result has a ``ShapeDtypeStruct`` in place of each array. ``fun``
    may itself pass a ``ShapeDtypeStruct`` to functions that are jitted, mapped or
    differentiated.

    >>> import numpy as np
    >>> eval_shape(np.matmul, np.ones((2, 3)), ShapeDtypeStruct((3, 4), "float64"))
    ShapeDtypeStruct(shape=(2, 4), dtype=float64)
    """
    traced = _traced(fun, args, kwargs, types_only=True)
    return result_types(traced.program, traced.out_tree)


def make_program(
    fun: Function,
    static_argnums: int | Sequence[int] = (),
    return_shape: bool = False,
) -> Function:
    """Return a function of the same arguments that returns the Program of ``fun``.

    Arguments are arrays, numbers and ``ShapeDtypeStruct``. Those in ``static_argnums``
    are any Python values. With ``return_shape``, the function returns a pair of the
    Program and the result of ``eval_shape``.

    >>> import numpy as np
    >>> print(make_program(lambda x: np.sin(x) * 2.0)(np.ones(3)))
    program function(x: f64[3]) -> (f64[3]) {
      a: f64[3] = sin(x) ...
      b: f64[3] = mul(a, 2.0:f64) ...
      return b
    }
    <BLANKLINE>
    """
    static = as_numbers(static_argnums)

    @functools.wraps(fun)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        """Trace the function without running it."""
        bound, dynamic = without_static(fun, args, static)
        traced = _traced(bound, dynamic, kwargs)
        if return_shape:
            return traced.program, result_types(traced.program, traced.out_tree)
        return traced.program

    return wrapper


def without_static(
    function: Function, args: tuple[Any, ...], static: Sequence[int]
) -> tuple[Function, tuple[Any, ...]]:
    """Bind the static arguments of ``function``.

    Returns a function of the other arguments, and these. ``static`` has the positions
    of static arguments; positions that ``args`` does not have are ignored.
    """
    held = {k % len(args): args[k] for k in static if -len(args) <= k < len(args)}
    if not held:
        return function, args

    @functools.wraps(function)
    def bound(*others: Any, **kwargs: Any) -> Any:
        """Call the function with ``others`` in the positions that are not static."""
        rest = iter(others)
        whole = [held[k] if k in held else next(rest) for k in range(len(args))]
        return function(*whole, **kwargs)

    return bound, tuple(x for k, x in enumerate(args) if k not in held)


def _traced(
    function: Function,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    types_only: bool = False,
) -> FlatTrace:
    """Trace ``function`` on arguments without values.

    ``types_only`` says that the Program will never run.
    """
    args, kwargs = stand_ins((args, kwargs))
    return trace_function(
        function,
        args,
        kwargs,
        abstract=True,
        with_values=False,
        constants=not types_only,
        types_only=types_only,
    )


def result_types(program: Program, out_tree: tree.TreeDef) -> Any:
    """Return a ``ShapeDtypeStruct`` for each result of ``program``, as ``out_tree``.

    Only the first outputs count, as many as ``out_tree`` has leaves.
    """
    types = program.output_types[: out_tree.num_leaves]
    return tree.unflatten(
        out_tree,
        [ShapeDtypeStruct(t.shape, t.dtype, weak_type=t.weak) for t in types],
    )
