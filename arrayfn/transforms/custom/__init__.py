"""Functions with custom rules: ``custom_jvp``, ``custom_vjp``, ``custom_vmap``.

Outside a trace they call the function they wrap. Inside a trace they become an equation
that holds the Programs of the function and of its rules. Transformations use the rules
instead of differentiating, or mapping, the function.
"""

from __future__ import annotations

from typing import Any

from arrayfn import dtypes, tree
from arrayfn.errors import ArgumentError, user_location
from arrayfn.primitives import views
from arrayfn.tracing import Tracer, apply
from arrayfn.transforms.custom.batched import custom_vmap
from arrayfn.transforms.custom.closed_functions import closure_convert, custom_gradient
from arrayfn.transforms.custom.closures import closed_over, with_inputs
from arrayfn.transforms.custom.forward import custom_jvp
from arrayfn.transforms.custom.functions import SymbolicZero
from arrayfn.transforms.custom.reverse import CustomVJPPrimal, custom_vjp

__all__ = [
    "CustomVJPPrimal",
    "SymbolicZero",
    "closed_over",
    "closure_convert",
    "custom_gradient",
    "custom_jvp",
    "custom_vjp",
    "custom_vmap",
    "stop_gradient",
    "with_inputs",
]


def stop_gradient(x: Any) -> Any:
    """Make x, or each leaf of a pytree, a constant, whose derivatives are zero.

    >>> import numpy as np
    >>> from arrayfn.transforms import grad
    >>> grad(lambda x: x * stop_gradient(x))(3.0)
    array(3.)
    """
    return tree.map(_constant, x)


def _constant(x: Any) -> Any:
    """Return ``x`` without a derivative, if it is a traced float."""
    if isinstance(x, Tracer) and x.dtype in dtypes.DIFFERENTIABLE:
        return apply(views.stop_gradient, x)
    if callable(x):
        raise ArgumentError(
            f"stop_gradient takes arrays and pytrees of them, not the function {x!r}; "
            "stop the gradient of its result",
            user_location(),
        )
    return x
