"""Policies of ``checkpoint``, which choose the values to keep for the derivative.

``checkpoint`` calls ``policy(primitive, *types, **params)`` for each equation of the
function, with the types of the equation's operands. True keeps the results of the
equation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from arrayfn import documentation as _documentation
from arrayfn.ir import ArrayType
from arrayfn.primitives import contraction, convolution, rematerialization
from arrayfn.primitives.base import Primitive

Policy = Callable[..., bool]

_PRODUCTS = (contraction.dot_general, convolution.conv_general)


def everything_saveable(primitive: Primitive, *types: ArrayType, **params: Any) -> bool:
    """Keep every value, as if there were no ``checkpoint``."""
    return True


def nothing_saveable(primitive: Primitive, *types: ArrayType, **params: Any) -> bool:
    """Keep no value, and recompute all of them.

    This is the default.
    """
    return False


def dots_saveable(primitive: Primitive, *types: ArrayType, **params: Any) -> bool:
    """Keep the results of matrix products and convolutions."""
    return primitive in _PRODUCTS


checkpoint_dots = dots_saveable


def dots_with_no_batch_dims_saveable(
    primitive: Primitive, *types: ArrayType, **params: Any
) -> bool:
    """Keep results of matrix products without batch axes.

    Products with weights are an example.
    """
    return primitive is contraction.dot_general and not params["batch"][0]


checkpoint_dots_with_no_batch_dims = dots_with_no_batch_dims_saveable


def save_only_these_names(*names: str) -> Policy:
    """A policy that keeps values with one of these names (``checkpoint_name``)."""
    chosen = frozenset(names)

    def policy(primitive: Primitive, *types: ArrayType, **params: Any) -> bool:
        """Whether the equation gives one of the names."""
        is_named = primitive is rematerialization.checkpoint_name
        return is_named and params["name"] in chosen

    return policy


def save_any_names_but_these(*names: str) -> Policy:
    """Return a policy that keeps values with a name other than these."""
    excluded = frozenset(names)

    def policy(primitive: Primitive, *types: ArrayType, **params: Any) -> bool:
        """Whether the equation gives a name, and none of those."""
        is_named = primitive is rematerialization.checkpoint_name
        return is_named and params["name"] not in excluded

    return policy


def save_anything_except_these_names(*names: str) -> Policy:
    """Return a policy that keeps all values but those with one of these names.

    ``checkpoint_name(x, "hidden")`` gives x a name. Other values are computed again
    where the derivative needs them. A name that no value has changes nothing.
    """
    excluded = frozenset(names)

    def policy(primitive: Primitive, *types: ArrayType, **params: Any) -> bool:
        """Whether the equation gives none of the names."""
        is_named = primitive is rematerialization.checkpoint_name
        return not (is_named and params["name"] in excluded)

    return policy


def save_from_both_policies(first: Policy, second: Policy) -> Policy:
    """Return a policy that keeps a value if one of the two policies does.

    Like all policies, both take a primitive, the types of its operands and its
    parameters. They return whether to keep the results.
    """

    def policy(primitive: Primitive, *types: ArrayType, **params: Any) -> bool:
        """Whether one of the two policies keeps the results."""
        return first(primitive, *types, **params) or second(primitive, *types, **params)

    return policy


_documentation.attach(__name__)
