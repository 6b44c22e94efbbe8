"""Paths to the leaves of pytrees: tuples of keys, one for each node on the way.

A key says how its node is indexed: ``SequenceKey(0)`` is ``[0]``, ``DictKey("a")`` is
``['a']``, ``GetAttrKey("x")`` is ``.x``. Children of a registered class without names
have a ``FlattenedIndexKey``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import optree
from typing_extensions import override

_OPTIONS: Final[dict[str, Any]] = {"namespace": "arrayfn"}


@dataclass(frozen=True)
class SequenceKey:
    """The position ``idx`` in a list or tuple."""

    idx: int

    @property
    def entry(self) -> int:
        """The key, position or name that the path shows."""
        return self.idx

    @override
    def __str__(self) -> str:
        """``[0]``."""
        return f"[{self.idx!r}]"

    def __call__(self, node: Any) -> Any:
        """The child of ``node``."""
        return node[self.idx]


@dataclass(frozen=True)
class DictKey:
    """The ``key`` of a dict."""

    key: Any

    @property
    def entry(self) -> Any:
        """The key, position or name that the path shows."""
        return self.key

    @override
    def __str__(self) -> str:
        """``['name']``."""
        return f"[{self.key!r}]"

    def __call__(self, node: Any) -> Any:
        """The child of ``node``."""
        return node[self.key]


@dataclass(frozen=True)
class GetAttrKey:
    """The attribute ``name``, of a named tuple or a dataclass."""

    name: str

    @property
    def entry(self) -> str:
        """The key, position or name that the path shows."""
        return self.name

    @override
    def __str__(self) -> str:
        """``.name``."""
        return f".{self.name}"

    def __call__(self, node: Any) -> Any:
        """The child of ``node``."""
        return getattr(node, self.name)


@dataclass(frozen=True)
class FlattenedIndexKey:
    """The number ``key`` of a child of a registered class."""

    key: int

    @override
    def __hash__(self) -> int:
        return hash((FlattenedIndexKey, self.key))

    @property
    def entry(self) -> int:
        """The key, position or name that the path shows."""
        return self.key

    @override
    def __str__(self) -> str:
        """``[<flat index 0>]``."""
        return f"[<flat index {self.key}>]"

    def __call__(self, node: Any) -> Any:
        """The child of ``node``."""
        children, *_ = optree.tree_flatten_one_level(node, **_OPTIONS)
        return children[self.key]


KeyEntry = SequenceKey | DictKey | GetAttrKey | FlattenedIndexKey


class Path(tuple[Any, ...]):
    """The keys from the root to a leaf. Call it with a tree to get what is there."""

    __slots__ = ()

    def __call__(self, tree: Any) -> Any:
        """The part of ``tree`` at this path."""
        for key in self:
            tree = key(tree)
        return tree


KeyPath = tuple[Any, ...]


class NamedEntry(optree.PyTreeEntry):
    """optree's entry of a child that its class has given a key."""

    @override
    def __call__(self, obj: Any) -> Any:
        """The child of ``obj``."""
        return self.entry(obj)

    @override
    def codify(self, /, node: str = "") -> str:
        """The key as text behind ``node``."""
        return f"{node}{self.entry}"


def key_of(entry: optree.PyTreeEntry) -> Any:
    """Return the key that an entry of optree stands for."""
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
    found = optree.tree_flatten_one_level(node, **_OPTIONS)
    keys = (
        key_of(found.path_entry_type(entry, found.type, found.kind))
        for entry in found.entries
    )
    return list(zip(keys, found.children, strict=True))


def decisions(tree: Any, is_leaf: Callable[[Any, Any], bool]) -> Callable[[Any], bool]:
    """Return ``is_leaf(path, node)`` as a function of the node only.

    All answers are computed at once, in the order of a traversal of ``tree``. The
    function returns them one after the other, so it serves one such traversal.
    """
    found: list[bool] = []

    def walk(path: Path, node: Any) -> None:
        """Ask for ``node`` and, unless it is a leaf, for its children."""
        stops = bool(is_leaf(path, node))
        found.append(stops)
        if not stops:
            for key, child in keyed_children(node):
                walk(Path((*path, key)), child)

    walk(Path(), tree)
    answers = iter(found)
    return lambda _: next(answers)
