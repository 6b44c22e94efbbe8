"""Pytrees: nested tuples, lists, dicts, named tuples and registered classes of arrays.

Through optree. ``None`` is an empty subtree; dicts are ordered by key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import optree

TreeDef = optree.PyTreeSpec
_EVERYWHERE: Any = vars(optree)["registry"].__GLOBAL_NAMESPACE


def flatten(tree: Any) -> tuple[list[Any], TreeDef]:
    """The leaves of ``tree`` in order, and its structure.

    >>> flatten({"b": (1, 2), "a": 3})[0]
    [3, 1, 2]
    """
    leaves, structure = optree.tree_flatten(tree)
    return list(leaves), structure


def unflatten(structure: TreeDef, leaves: Sequence[Any]) -> Any:
    """The tree of ``structure`` with these leaves."""
    return optree.tree_unflatten(structure, leaves)


def leaves(tree: Any) -> list[Any]:
    """The leaves of ``tree`` in order."""
    return list(optree.tree_leaves(tree))


def structure(tree: Any) -> TreeDef:
    """The structure of ``tree``."""
    return optree.tree_structure(tree)


def map(function: Callable[..., Any], tree: Any, *rest: Any) -> Any:
    """``function`` of each leaf (with those at its place in ``rest``), as a tree.

    >>> map(lambda x, y: x + y, {"a": 1}, {"a": 2})
    {'a': 3}
    """
    return optree.tree_map(function, tree, *rest)


def paths(tree: Any) -> list[str]:
    """For each leaf, where it is, as one would index it.

    >>> paths({"w": (1, 2)})
    ["['w'][0]", "['w'][1]"]
    """
    found, _, _ = optree.tree_flatten_with_path(tree)
    return ["".join(f"[{key!r}]" for key in path) for path in found]


def broadcast_prefix(prefix: Any, tree: Any) -> list[Any]:
    """The leaves of ``prefix`` for each leaf of ``tree`` below; None counts."""
    return list(optree.broadcast_prefix(prefix, tree, none_is_leaf=True))


def register_pytree_node(
    nodetype: type,
    flatten_func: Callable[[Any], tuple[Sequence[Any], Any]],
    unflatten_func: Callable[[Any, Any], Any],
) -> None:
    """Make instances of ``nodetype`` nodes of trees.

    ``flatten_func(node)`` gives its children and a hashable value of what else it
    holds, and ``unflatten_func(value, children)`` the node. The children may be any
    objects then, so that must not look into them.

    >>> class Pair:
    ...     def __init__(self, first, second):
    ...         self.first, self.second = first, second
    >>> register_pytree_node(
    ...     Pair, lambda p: ((p.first, p.second), None), lambda _, c: Pair(*c)
    ... )
    >>> leaves(Pair(1, [2, 3]))
    [1, 2, 3]
    """
    register: Any = optree.register_pytree_node
    register(nodetype, flatten_func, unflatten_func, namespace=_EVERYWHERE)
