"""Linear functions whose transpose is given: ``linear_call``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from arrayfn import tree
from arrayfn.errors import ArgumentError, user_location
from arrayfn.lax.control_flow_tracing import (
    alike_over_members,
    check_arrays,
    check_function,
    close,
    plain_type,
    sharing,
    with_types,
)
from arrayfn.primitives.linear_call import linear_call as primitive
from arrayfn.primitives.rules import as_list
from arrayfn.tracing import apply, is_staged
from arrayfn.transforms.arguments import described


def linear_call(
    fun: Callable[[Any, Any], Any],
    fun_transpose: Callable[[Any, Any], Any],
    residual_args: Any,
    linear_args: Any,
) -> Any:
    """Call ``fun(residual_args, linear_args)``, which is linear in ``linear_args``.

    Reverse mode calls ``fun_transpose(residual_args, cotangents)`` to compute the
    cotangents of the linear arguments. arrayfn could also derive the transpose of
    ``fun``, but that would be slower. Derivatives with respect to the residuals are
    those of ``fun``.

    Args:
        fun: a function of two pytrees of arrays.
        fun_transpose: takes the residuals and a pytree like the result of ``fun``, and
            gives one like ``linear_args``.
        residual_args: the values that the matrix of ``fun`` depends on.
        linear_args: the values in which ``fun`` is linear.

    Raises:
        ArgumentError, ShapeError: the result of ``fun_transpose`` does not match
            ``linear_args``.

    >>> import numpy as np
    >>> from arrayfn.transforms import grad
    >>> def shifted(a, x):
    ...     back = lambda a, y: np.roll(y * a, -1)
    ...     return linear_call(lambda a, x: np.roll(x, 1) * a, back, a, x).sum()
    >>> grad(shifted, 1)(np.arange(3.0), np.ones(3))
    array([1., 2., 0.])
    """
    name = "linear_call"
    for parameter, function in (("fun", fun), ("fun_transpose", fun_transpose)):
        check_function(name, parameter, function)
    check_arrays(name, "linear_args", linear_args)
    leaves = tree.leaves(linear_args)
    if not is_staged([*leaves, *tree.leaves(residual_args)]):
        return fun(residual_args, linear_args)
    types = [plain_type(x).strong() for x in leaves]
    forward = close(lambda x: fun(residual_args, x), (linear_args,), types)
    results = [t.strong() for t in forward.out_types]
    stand_ins = tree.unflatten(forward.out_tree, [0.0] * len(results))
    back = close(lambda ct: fun_transpose(residual_args, ct), (stand_ins,), results)
    if back.out_tree != tree.structure(linear_args):
        raise ArgumentError(
            f"{name}: {described(fun_transpose)} gives the structure "
            f"{tree.text_of(back.out_tree)}, and the linear arguments are "
            f"{tree.text_of(tree.structure(linear_args))}",
            user_location(),
        )
    values, (body, transposed) = sharing([forward, back])
    typed = with_types(body, results), with_types(transposed, types)
    operands, (body, transposed) = alike_over_members(values, leaves, typed)
    outputs = apply(
        primitive,
        *values,
        *operands,
        body=body,
        transposed=transposed,
        consts=len(values),
    )
    return tree.unflatten(forward.out_tree, as_list(outputs))


__all__ = ["linear_call"]
