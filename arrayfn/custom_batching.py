"""Functions with their own batching rules, as in JAX's ``custom_batching``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

from arrayfn import lax, tree
from arrayfn.transforms.custom import custom_vmap

P = ParamSpec("P")
R = TypeVar("R")

__all__ = ["custom_vmap", "sequential_vmap"]


def sequential_vmap(f: Callable[P, R]) -> custom_vmap[P, R]:
    """Return ``f`` so that ``vmap`` calls it for one member after the other.

    >>> import numpy as np
    >>> from arrayfn.transforms import vmap
    >>> vmap(sequential_vmap(lambda x: x.sum()))(np.ones((3, 2)))
    array([2., 2., 2.])
    """
    mapped_function = custom_vmap(f)
    call: Any = mapped_function

    @mapped_function.def_vmap
    def rule(axis_size: int, in_batched: Sequence[Any], *args: Any) -> tuple[Any, bool]:
        """Return the results of one member after the other, all of them mapped."""
        leaves, structure = tree.flatten(args)
        flags = tree.leaves(tuple(in_batched))
        mapped = [x for x, is_mapped in zip(leaves, flags, strict=True) if is_mapped]

        def one(members: list[Any]) -> Any:
            """Return the result of one member."""
            next_members = iter(members)
            own = [
                next(next_members) if is_mapped else x
                for x, is_mapped in zip(leaves, flags, strict=True)
            ]
            return call(*tree.unflatten(structure, own))

        return lax.map(one, mapped), True

    return mapped_function
