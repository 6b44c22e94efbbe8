"""Paths to the leaves of pytrees: tuples of keys, one for each node on the way.

A key says how its node is indexed: ``SequenceKey(0)`` is ``[0]``, ``DictKey("a")`` is
``['a']``, ``GetAttrKey("x")`` is ``.x``. Children of a registered class without names
have a ``FlattenedIndexKey``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import optree
from typing_extensions import override

from arrayfn.records import frozen

_OPTIONS: Final[dict[str, Any]] = {"namespace": "arrayfn"}


@frozen
class SequenceKey:
    """The position ``idx`` in a list or tuple."""

    idx: int

    @property
    def entry(self) -> int:
        """The position, which ``keystr(simple=True)`` shows."""
        return self.idx

    @override
    def __str__(self) -> str:
        """Return ``[0]``, for example."""
        return f"[{self.idx!r}]"

    def __call__(self, node: Any) -> Any:
        """Return the child of ``node`` at this position."""
        return node[self.idx]


@frozen
class DictKey:
    """The ``key`` of a dict."""

    key: Any

    @property
    def entry(self) -> Any:
        """The dict's key, which ``keystr(simple=True)`` shows."""
        return self.key

    @override
    def __str__(self) -> str:
        """Return ``['name']``, for example."""
        return f"[{self.key!r}]"

    def __call__(self, node: Any) -> Any:
        """Return the child of ``node`` with this key."""
        return node[self.key]


@frozen
class GetAttrKey:
    """The attribute ``name``, of a named tuple or a dataclass."""

    name: str

    @property
    def entry(self) -> str:
        """The attribute's name, which ``keystr(simple=True)`` shows."""
        return self.name

    @override
    def __str__(self) -> str:
        """Return ``.name``, for example."""
        return f".{self.name}"

    def __call__(self, node: Any) -> Any:
        """Return the attribute of ``node``."""
        return getattr(node, self.name)


@frozen
class FlattenedIndexKey:
    """The number ``key`` of a child of a registered class."""

    key: int

    @override
    def __hash__(self) -> int:
        """Return a hash that differs from that of a ``SequenceKey``."""
        return hash((FlattenedIndexKey, self.key))

    @property
    def entry(self) -> int:
        """The number, which ``keystr(simple=True)`` shows."""
        return self.key

    @override
    def __str__(self) -> str:
        """Return ``[<flat index 0>]``, for example."""
        return f"[<flat index {self.key}>]"

    def __call__(self, node: Any) -> Any:
        """Return the child of ``node`` with this number."""
        children, *_ = optree.tree_flatten_one_level(node, **_OPTIONS)
        return children[self.key]


KeyEntry = SequenceKey | DictKey | GetAttrKey | FlattenedIndexKey


class Path(tuple[Any, ...]):
    """The keys from the root to a leaf. Calling it with a tree gives the part there."""

    __slots__ = ()

    def __call__(self, tree: Any) -> Any:
        """Return the part of ``tree`` at this path."""
        for key in self:
            tree = key(tree)
        return tree


KeyPath = tuple[Any, ...]


class NamedEntry(optree.PyTreeEntry):
    """optree's entry of a path for a child whose class gave it a key.

    ``entry`` is the key.
    """

    @override
    def __call__(self, obj: Any) -> Any:
        """Return the child of ``obj``."""
        return self.entry(obj)

    @override
    def codify(self, /, node: str = "") -> str:
        """Return the key as text behind ``node``."""
        return f"{node}{self.entry}"


def key_of(entry: optree.PyTreeEntry) -> Any:
    """Return the key for an entry of a path of optree."""
    if isinstance(entry, NamedEntry):
        return entry.entry
    if isinstance(entry, optree.NamedTupleEntry):
        return GetAttrKey(entry.field)
    if isinstance(entry, optree.SequenceEntry):
        return SequenceKey(entry.index)
    if isinstance(entry, optree.MappingEntry):
        return DictKey(entry.key)
    if isinstance(entry, optree.GetAttrEntry):
        return GetAttrKey(entry.name)
    return FlattenedIndexKey(entry.entry)


def keystr(keys: KeyPath, *, simple: bool = False, separator: str = "") -> str:
    """Write ``keys`` as text that can follow the name of the tree.

    ``simple`` writes each key without brackets and dots.

    >>> keystr((DictKey("w"), SequenceKey(0)))
    "['w'][0]"
    >>> keystr((DictKey("w"), SequenceKey(0)), simple=True, separator="/")
    'w/0'
    """
    if not simple:
        return separator.join(map(str, keys))
    return separator.join(
        str(key.entry) if hasattr(key, "entry") else str(key) for key in keys
    )


def keyed_children(node: Any) -> list[tuple[Any, Any]]:
    """Return pairs of key and child of a node, in order; none for a leaf."""
    if optree.tree_is_leaf(node, **_OPTIONS):
        return []
    one_level = optree.tree_flatten_one_level(node, **_OPTIONS)
    keys = (
        key_of(one_level.path_entry_type(entry, one_level.type, one_level.kind))
        for entry in one_level.entries
    )
    return list(zip(keys, one_level.children, strict=True))


def decisions(tree: Any, is_leaf: Callable[[Any, Any], bool]) -> Callable[[Any], bool]:
    """Return a function of a node that answers as ``is_leaf(path, node)``.

    optree calls it for the nodes of ``tree`` in order, but without paths. So all
    answers are computed first, by a traversal in the same order, and then given one by
    one.
    """
    decided: list[bool] = []

    def walk(path: Path, node: Any) -> None:
        """Ask for ``node`` and, unless it is a leaf, for its children."""
        stops = bool(is_leaf(path, node))
        decided.append(stops)
        if not stops:
            for key, child in keyed_children(node):
                walk(Path((*path, key)), child)

    walk(Path(), tree)
    answers = iter(decided)
    return lambda _: next(answers)
