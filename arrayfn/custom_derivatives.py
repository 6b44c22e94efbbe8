"""Functions with their own derivative rules, as in JAX's ``custom_derivatives``."""

from __future__ import annotations

from typing import Any

from arrayfn import tree
from arrayfn.lax import linear_call
from arrayfn.transforms.arguments import leaf_type
from arrayfn.transforms.custom import (
    CustomVJPPrimal,
    SymbolicZero,
    closure_convert,
    custom_gradient,
    custom_jvp,
    custom_vjp,
)
from arrayfn.transforms.custom.functions import zeros

__all__ = [
    "CustomVJPPrimal",
    "SymbolicZero",
    "closure_convert",
    "custom_gradient",
    "custom_jvp",
    "custom_vjp",
    "custom_vjp_primal_tree_values",
    "linear_call",
    "zero_from_primal",
]


def custom_vjp_primal_tree_values(tree_: Any) -> Any:
    """Return the values of a tree of ``CustomVJPPrimal``, which forward rules get.

    >>> custom_vjp_primal_tree_values({"x": CustomVJPPrimal(2.0, True)})
    {'x': 2.0}
    """
    return tree.map(lambda x: x.value, tree_)


def zero_from_primal(val: Any, symbolic_zeros: bool = False) -> Any:
    """Return the zero tangent of each leaf of ``val``.

    With ``symbolic_zeros``, each zero tangent is a ``SymbolicZero``.

    >>> import numpy as np
    >>> zero_from_primal(np.ones(2)), zero_from_primal(1.0, symbolic_zeros=True)
    (array([0., 0.]), SymbolicZero(f64[]))
    """

    def zero(x: Any) -> Any:
        """Return the zero tangent of one leaf."""
        type = leaf_type(x)
        return SymbolicZero(type.shape, type.dtype) if symbolic_zeros else zeros(type)

    return tree.map(zero, val)
