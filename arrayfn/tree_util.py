"""Pytrees under JAX's older names; ``arrayfn.tree`` has the same functions.

Metadata of classes and the order of arguments are JAX's. A structure, however, is
optree's ``PyTreeSpec``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, Final, TypeVar, cast

import optree

from arrayfn import documentation as _documentation
from arrayfn.errors import ArgumentError, user_location
from arrayfn.tree import (
    IsLeaf,
    Partial,
    register_dataclass,
    register_node,
    register_static,
    register_with_keys,
)
from arrayfn.tree import TreeDef as PyTreeDef
from arrayfn.tree import all as tree_all
from arrayfn.tree import broadcast as tree_broadcast
from arrayfn.tree import flatten as tree_flatten
from arrayfn.tree import flatten_with_path as tree_flatten_with_path
from arrayfn.tree import leaves as tree_leaves
from arrayfn.tree import leaves_with_path as tree_leaves_with_path
from arrayfn.tree import map as tree_map
from arrayfn.tree import map_with_path as tree_map_with_path
from arrayfn.tree import reduce as tree_reduce
from arrayfn.tree import reduce_associative as tree_reduce_associative
from arrayfn.tree import structure as tree_structure
from arrayfn.tree import transpose as tree_transpose
from arrayfn.tree import unflatten as tree_unflatten
from arrayfn.tree_paths import (
    DictKey,
    FlattenedIndexKey,
    GetAttrKey,
    KeyEntry,
    KeyPath,
    SequenceKey,
    keyed_children,
    keystr,
)

C = TypeVar("C", bound=type)
_OPTIONS: Final[dict[str, Any]] = {"namespace": "arrayfn"}


# One level.


def all_leaves(iterable: Iterable[Any], is_leaf: IsLeaf = None) -> bool:
    """Whether each element is a leaf; None is not a leaf.

    >>> all_leaves([1.0, "a"]), all_leaves([1.0, (2.0,)]), all_leaves([None])
    (True, False, False)
    """
    return optree.all_leaves(iterable, is_leaf, **_OPTIONS)


def is_tree_node(typ: type) -> bool:
    """Whether instances of ``typ`` are nodes, not leaves.

    >>> is_tree_node(dict), is_tree_node(float)
    (True, False)
    """
    is_tuple = issubclass(typ, tuple) and hasattr(typ, "_fields")
    known = optree.register_pytree_node.get(typ, **_OPTIONS)
    return is_tuple or known is not None


def flatten_one_level(tree: Any) -> tuple[list[Any], Any]:
    """Return the children of a node and its metadata.

    Raises ValueError for a leaf.

    >>> flatten_one_level({"b": (1, 2), "a": 3})
    ([3, (1, 2)], ['a', 'b'])
    """
    found = optree.tree_flatten_one_level(tree, **_OPTIONS)
    return list(found.children), found.metadata


def flatten_one_level_with_keys(tree: Any) -> tuple[list[tuple[Any, Any]], Any]:
    """Return pairs of key and child of a node, and its metadata.

    Raises ValueError for a leaf.

    >>> flatten_one_level_with_keys([5.0])
    ([(SequenceKey(idx=0), 5.0)], None)
    """
    _, metadata = flatten_one_level(tree)
    is_list = isinstance(metadata, list)  # a dict's keys
    return keyed_children(tree), tuple(metadata) if is_list else metadata


# Structures.


def treedef_children(treedef: PyTreeDef) -> list[PyTreeDef]:
    """Return the structures of a structure's children.

    >>> treedef_children(tree_structure((1.0, [2.0]))) == [
    ...     tree_structure(1.0),
    ...     tree_structure([2.0]),
    ... ]
    True
    """
    return treedef.children()


def treedef_is_leaf(treedef: PyTreeDef) -> bool:
    """Whether the structure is that of a leaf; None is not a leaf.

    >>> treedef_is_leaf(tree_structure(1.0)), treedef_is_leaf(tree_structure((1.0,)))
    (True, False)
    """
    return treedef.is_leaf(strict=True)


def treedef_tuple(treedefs: Iterable[PyTreeDef]) -> PyTreeDef:
    """Return the structure of a tuple of trees with these structures.

    >>> treedef_tuple([tree_structure(1.0)]) == tree_structure((2.0,))
    True
    """
    return optree.treespec_tuple(treedefs, **_OPTIONS)


# Classes.


def register_pytree_node(
    nodetype: type,
    flatten_func: Callable[[Any], tuple[Iterable[Any], Hashable]],
    unflatten_func: Callable[[Any, tuple[Any, ...]], Any],
    flatten_with_keys_func: Callable[[Any], tuple[Iterable[tuple[Any, Any]], Hashable]]
    | None = None,
) -> None:
    """Call ``arrayfn.tree.register_node`` (with keys: ``register_with_keys``)."""
    if flatten_with_keys_func is None:
        register_node(nodetype, flatten_func, unflatten_func)
    else:
        register_with_keys(nodetype, flatten_with_keys_func, unflatten_func)


def register_pytree_node_class(cls: C) -> C:
    """Apply ``arrayfn.tree.register_node`` as a decorator.

    The class has a method ``tree_flatten`` and a class method ``tree_unflatten``.
    """
    return register_node(cls)


def register_pytree_with_keys(
    nodetype: type,
    flatten_with_keys: Callable[[Any], tuple[Iterable[tuple[Any, Any]], Hashable]],
    unflatten_func: Callable[[Any, tuple[Any, ...]], Any],
    flatten_func: Callable[[Any], tuple[Iterable[Any], Hashable]] | None = None,
) -> None:
    """Call ``arrayfn.tree.register_with_keys``.

    ``flatten_func``, which gives the same children faster, is not called.
    """
    register_with_keys(nodetype, flatten_with_keys, unflatten_func)


def register_pytree_with_keys_class(cls: C) -> C:
    """Apply ``register_pytree_with_keys`` as a decorator.

    The class has a method ``tree_flatten_with_keys`` and a class method
    ``tree_unflatten``. Raises ArgumentError if the class lacks one of them.
    """
    own = cast(Any, cls)
    if not hasattr(own, "tree_flatten_with_keys") or not hasattr(own, "tree_unflatten"):
        raise ArgumentError(
            f"register_pytree_with_keys_class: {cls.__name__} has no "
            "tree_flatten_with_keys and tree_unflatten; give it these methods",
            user_location(),
        )
    register_with_keys(cls, own.tree_flatten_with_keys, own.tree_unflatten)
    return cls


__all__ = [
    "DictKey",
    "FlattenedIndexKey",
    "GetAttrKey",
    "KeyEntry",
    "KeyPath",
    "Partial",
    "PyTreeDef",
    "SequenceKey",
    "all_leaves",
    "flatten_one_level",
    "flatten_one_level_with_keys",
    "is_tree_node",
    "keystr",
    "register_dataclass",
    "register_pytree_node",
    "register_pytree_node_class",
    "register_pytree_with_keys",
    "register_pytree_with_keys_class",
    "register_static",
    "tree_all",
    "tree_broadcast",
    "tree_flatten",
    "tree_flatten_with_path",
    "tree_leaves",
    "tree_leaves_with_path",
    "tree_map",
    "tree_map_with_path",
    "tree_reduce",
    "tree_reduce_associative",
    "tree_structure",
    "tree_transpose",
    "tree_unflatten",
    "treedef_children",
    "treedef_is_leaf",
    "treedef_tuple",
]

_documentation.attach(__name__)
