"""Pytrees: nested tuples, lists, dicts, named tuples and registered classes of arrays.

The package optree implements them. ``None`` is an empty subtree. Dicts are ordered by
key. ``register_dataclass``, ``register_node`` and ``register_static`` make other
classes nodes.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Final, Self, TypeVar, cast

import optree
from typing_extensions import override

from arrayfn import documentation as _documentation
from arrayfn import tree_paths
from arrayfn.errors import ArgumentError, StructureError, user_location
from arrayfn.tree_paths import NamedEntry, Path, decisions, key_of

TreeDef = optree.PyTreeSpec
keystr = tree_paths.keystr
IsLeaf = Callable[[Any], bool] | None
C = TypeVar("C", bound=type)

# The text of a structure within optree's "PyTreeSpec(...)".
_SPEC: Final = re.compile(
    r"^PyTreeSpec\((.*?)(?:, NoneIsLeaf)?(?:, namespace='.*')?\)$", re.DOTALL
)
_LONGEST: Final = 120  # characters of a structure's text
_OWN: Final = "arrayfn"  # optree's namespace of the classes that are registered here
_IN_ORDER: Final = "arrayfn.in_order"  # the same classes; dicts are not sorted
_NOTHING: Final = object()  # says that a parameter was not given
_OPTREE_FIELDS: Final = "__optree_dataclass_fields__"
_ATTRS_FIELDS: Final = "__attrs_attrs__"
# The order of dicts counts in ``_IN_ORDER`` until this context ends, which it never
# does.
_keeping_order: Final = optree.dict_insertion_ordered(True, namespace=_IN_ORDER)
_keeping_order.__enter__()


def flatten(tree: Any, is_leaf: IsLeaf = None) -> tuple[list[Any], TreeDef]:
    """Return the leaves of ``tree`` in order, and its structure.

    A node that ``is_leaf`` accepts is a leaf.

    >>> flatten({"b": (1, 2), "a": 3})[0]
    [3, 1, 2]
    """
    leaves, structure = optree.tree_flatten(tree, is_leaf, namespace=_OWN)
    return list(leaves), structure


def flatten_in_order(tree: Any) -> tuple[list[Any], TreeDef]:
    """Return the leaves of ``tree`` with dicts in their own order, and its structure.

    Structures differ if dicts have their keys in different orders.

    >>> flatten_in_order({"b": (1, 2), "a": 3})[0]
    [1, 2, 3]
    """
    return optree.tree_flatten(tree, namespace=_IN_ORDER)


def sorted_positions(structure: TreeDef, in_order: TreeDef) -> list[int] | None:
    """Return the positions, in ``flatten_in_order``, of the leaves of ``flatten``.

    The structures are those that the two functions return for one tree. Returns None if
    two leaves have the same path.

    >>> tree = {"b": (1, 2), "a": 3}
    >>> sorted_positions(flatten(tree)[1], flatten_in_order(tree)[1])
    [2, 0, 1]
    """
    positions = {path: k for k, path in enumerate(in_order.paths())}
    if len(positions) < in_order.num_leaves:
        return None
    return [positions[path] for path in structure.paths()]


def text_of(structure: TreeDef) -> str:
    """Return the short text of ``structure`` that errors show; ``*`` is an array.

    A text of more than 120 characters is cut.

    >>> text_of(structure({"a": 1, "b": (2, 3)}))
    "{'a': *, 'b': (*, *)}"
    """
    text = _SPEC.sub(r"\1", str(structure))
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def flatten_arguments(tree: Any) -> tuple[list[Any], TreeDef]:
    """Flatten ``tree``, with dataclasses of optree as nodes.

    Users register these dataclasses under a name of their choice. This function
    registers the dataclasses that it finds in ``tree``, too.

    >>> flatten_arguments({"a": 1})[0]
    [1]
    """
    flat_leaves, structure = flatten(tree)
    classes = {type(x) for x in flat_leaves if hasattr(type(x), _OPTREE_FIELDS)}
    if not classes:
        return flat_leaves, structure
    for cls in classes:
        register_dataclass(cls)
    return flatten_arguments(tree)


def unflatten(treedef: TreeDef, leaves: Iterable[Any]) -> Any:
    """Return the tree of structure ``treedef`` with these leaves."""
    return optree.tree_unflatten(treedef, leaves)


def leaves(tree: Any, is_leaf: IsLeaf = None) -> list[Any]:
    """Return the leaves of ``tree`` in order.

    A node that ``is_leaf`` accepts is a leaf.
    """
    return list(optree.tree_leaves(tree, is_leaf, namespace=_OWN))


def structure(tree: Any, is_leaf: IsLeaf = None) -> TreeDef:
    """Return the structure of ``tree``.

    A node that ``is_leaf`` accepts is a leaf.
    """
    return optree.tree_structure(tree, is_leaf, namespace=_OWN)


def map(f: Callable[..., Any], tree: Any, *rest: Any, is_leaf: IsLeaf = None) -> Any:
    """Map ``f`` over the leaves: ``f(leaf, *leaves of rest at its path)``.

    Raises StructureError if a tree of ``rest`` differs in structure from ``tree``.

    >>> map(lambda x, y: x + y, {"a": 1}, {"a": 2})
    {'a': 3}
    """
    try:
        return optree.tree_map(f, tree, *rest, is_leaf=is_leaf, namespace=_OWN)
    except ValueError:
        # optree's error does not say which tree differs.
        wanted = structure(tree, is_leaf)
        for other in rest:
            _check_structure(wanted, other)
        raise


def _check_structure(wanted: TreeDef, other: Any) -> None:
    """Raise StructureError unless ``other`` has the structure ``wanted``.

    In the place of a leaf, it may have a subtree.
    """
    try:
        wanted.flatten_up_to(other)
    except ValueError as error:
        raise StructureError(
            f"two trees that are mapped together differ: {error}", user_location()
        ) from None


def reduce(
    function: Callable[[Any, Any], Any],
    tree: Any,
    initializer: Any = _NOTHING,
    is_leaf: IsLeaf = None,
) -> Any:
    """Combine all leaves: ``function(function(leaf0, leaf1), leaf2)`` and so on.

    The combination begins with ``initializer``, if it is given. A tree without leaves
    needs an initializer, or TypeError is raised.

    >>> reduce(lambda x, y: x + y, {"a": 1, "b": (2, 3)})
    6
    """
    remaining = iter(leaves(tree, is_leaf))
    total = next(remaining, _NOTHING) if initializer is _NOTHING else initializer
    if total is _NOTHING:
        raise TypeError("reduce of a tree without leaves needs an initializer")
    for leaf in remaining:
        total = function(total, leaf)
    return total


def all(tree: Any, is_leaf: IsLeaf = None) -> bool:
    """Return whether all leaves of ``tree`` are true.

    >>> all({"a": True, "b": (1, 0)})
    False
    """
    return optree.tree_all(tree, is_leaf=is_leaf, namespace=_OWN)


def reduce_associative(
    operation: Callable[[Any, Any], Any],
    tree: Any,
    *,
    identity: Any = _NOTHING,
    is_leaf: IsLeaf = None,
) -> Any:
    """Combine all leaves by an associative operation.

    It combines pairs, then pairs of pairs, and so on. ``identity`` is the result of a
    tree without leaves. Without ``identity``, such a tree raises TypeError.

    >>> reduce_associative(lambda x, y: f"({x}{y})", ["a", "b", "c", "d"])
    '((ab)(cd))'
    """
    values = leaves(tree, is_leaf)
    if not values and identity is _NOTHING:
        raise TypeError("reduce_associative of a tree without leaves needs an identity")
    while len(values) > 1:
        # An odd value at the end is kept for the next round.
        paired = [operation(x, y) for x, y in zip(values[::2], values[1::2])]  # noqa: B905
        values = paired + values[2 * len(paired) :]
    return values[0] if values else identity


def transpose(
    outer_treedef: TreeDef, inner_treedef: TreeDef | None, pytree_to_transpose: Any
) -> Any:
    """Exchange the outer and the inner structure of a tree of trees.

    ``inner_treedef`` defaults to the structure of the first subtree.

    >>> transpose(structure([0, 0]), structure({"a": 0}), [{"a": 1}, {"a": 2}])
    {'a': [1, 2]}
    """
    if inner_treedef is None:
        inner_treedef = structure(outer_treedef.flatten_up_to(pytree_to_transpose)[0])
    return optree.tree_transpose(outer_treedef, inner_treedef, pytree_to_transpose)


def flatten_with_path(
    tree: Any,
    is_leaf: Callable[..., bool] | None = None,
    is_leaf_takes_path: bool = False,
) -> tuple[list[tuple[Path, Any]], TreeDef]:
    """Return the pairs (path, leaf) of all leaves, and the structure of ``tree``.

    A path is a tuple of keys, such as ``DictKey("w")``. ``keystr`` prints a path.
    Calling a path with a tree gives the part of the tree at this path. With
    ``is_leaf_takes_path``, ``is_leaf(path, node)`` is called.
    """
    if is_leaf is not None and is_leaf_takes_path:
        is_leaf = decisions(tree, is_leaf)
    accessors, leaves, structure = optree.tree_flatten_with_accessor(
        tree, is_leaf, namespace=_OWN
    )
    paths = [Path(key_of(entry) for entry in accessor) for accessor in accessors]
    return list(zip(paths, leaves, strict=True)), structure


def leaves_with_path(
    tree: Any,
    is_leaf: Callable[..., bool] | None = None,
    is_leaf_takes_path: bool = False,
) -> list[tuple[Path, Any]]:
    """Return the pairs (path, leaf) of all leaves; see ``flatten_with_path``."""
    return flatten_with_path(tree, is_leaf, is_leaf_takes_path)[0]


def map_with_path(
    f: Callable[..., Any],
    tree: Any,
    *rest: Any,
    is_leaf: Callable[..., bool] | None = None,
    is_leaf_takes_path: bool = False,
) -> Any:
    """Map ``f`` over paths and leaves: ``f(path, leaf, *leaves of rest)``.

    >>> map_with_path(lambda path, x: keystr(path) + f" = {x}", {"a": (1, 2)})
    {'a': ("['a'][0] = 1", "['a'][1] = 2")}
    """
    pairs, structure = flatten_with_path(tree, is_leaf, is_leaf_takes_path)
    others = [structure.flatten_up_to(each) for each in rest]
    values = [
        f(path, x, *more) for (path, x), *more in zip(pairs, *others, strict=True)
    ]
    return unflatten(structure, values)


def paths(tree: Any) -> list[str]:
    """Return the path of each leaf, written as an index.

    >>> paths({"w": (1, 2)})
    ["['w'][0]", "['w'][1]"]
    """
    accessors = optree.tree_accessors(tree, namespace=_OWN)
    return [accessor.codify("") for accessor in accessors]


def broadcast(prefix_tree: Any, full_tree: Any, is_leaf: IsLeaf = None) -> Any:
    """Repeat each leaf of ``prefix_tree`` for all leaves of ``full_tree`` below it.

    >>> broadcast((1, 2), ((0, 0), {"a": 0}))
    ((1, 1), {'a': 2})
    """
    return optree.tree_broadcast_prefix(prefix_tree, full_tree, is_leaf, namespace=_OWN)


def broadcast_prefix(prefix: Any, tree: Any) -> list[Any]:
    """Return a list with the leaf of ``prefix`` above each leaf of ``tree``.

    Leaves of ``prefix`` may be None. None in ``tree`` is no leaf, so it has no entry.

    >>> broadcast_prefix((0, None), ((1, None, 2), 3))
    [0, 0, None]
    """
    options: Any = {"none_is_leaf": True, "namespace": _OWN}
    below = optree.tree_leaves(tree, **options)
    spread = optree.broadcast_prefix(prefix, tree, **options)
    pairs = zip(spread, below, strict=True)
    return [value for value, leaf in pairs if leaf is not None]


def one_level(
    node: Any,
) -> tuple[list[Any], Hashable, Callable[[Any, list[Any]], Any]]:
    """Return the children and metadata of ``node``, and a function that makes a node.

    The function takes metadata and children. Raises ValueError for a leaf.

    >>> children, metadata, make = one_level({"a": 1, "b": (2, 3)})
    >>> children, make(metadata, [4, 5])
    ([1, (2, 3)], {'a': 4, 'b': 5})
    """
    children, metadata, _, make = optree.tree_flatten_one_level(node, namespace=_OWN)
    return list(children), cast(Hashable, metadata), cast(Any, make)


def registered() -> dict[type, Callable[[Any, Any], Any]]:
    """Return the registered classes, each with its ``make(metadata, children)``."""
    entries = optree.register_pytree_node.get(namespace=_OWN)  # type: ignore[attr-defined]
    return {cls: entry.unflatten_func for cls, entry in entries.items()}


# Custom classes.


class Indexed:
    """A node whose integer leaves are positions, such as a sparse matrix's indices.

    Derivatives are taken only with respect to its other leaves. A gradient keeps the
    positions.
    """


def positions_in(tree: Any) -> list[bool]:
    """Return whether each leaf of ``tree`` is below an ``Indexed`` node."""
    nodes = leaves(tree, is_leaf=lambda x: isinstance(x, Indexed))
    return [isinstance(node, Indexed) for node in nodes for _ in leaves(node)]


def _register(
    cls: type,
    flat: Callable[[Any], Any],
    make: Callable[[Any, Any], Any],
    entry: type[optree.PyTreeEntry] = optree.AutoEntry,
) -> None:
    """Register ``cls`` with optree: for sorted dicts, and for dicts in their order.

    ``flat`` and ``make`` take an instance apart and put it together. ``entry`` is the
    class of the keys of the children.
    """
    for namespace in (_OWN, _IN_ORDER):
        optree.register_pytree_node(
            cls, flat, make, path_entry_type=entry, namespace=namespace
        )


def register_node(
    cls: C,
    flatten: Callable[[Any], tuple[Iterable[Any], Hashable]] | None = None,
    unflatten: Callable[[Any, tuple[Any, ...]], Any] | None = None,
) -> C:
    """Make instances of ``cls`` nodes of trees, and return ``cls``.

    ``flatten(instance)`` returns the pair (children, metadata). ``unflatten(metadata,
    children)`` returns the instance. Trees whose metadata differ have different
    structures. As a decorator without these functions, it uses the method
    ``tree_flatten`` and the class method ``tree_unflatten`` of the class.

    >>> @register_node
    ... class Interval:
    ...     def __init__(self, low, high):
    ...         self.low, self.high = low, high
    ...
    ...     def tree_flatten(self):
    ...         return (self.low, self.high), None
    ...
    ...     @classmethod
    ...     def tree_unflatten(cls, metadata, children):
    ...         return cls(*children)
    >>> map(lambda x: 2 * x, Interval(1, 4)).high
    8
    """
    take, make = flatten, unflatten
    if take is None or make is None:
        own = cast(Any, cls)
        if not hasattr(own, "tree_flatten") or not hasattr(own, "tree_unflatten"):
            raise ArgumentError(
                f"register_node: {cls.__name__} has no tree_flatten and "
                "tree_unflatten; give it these methods, or register_node the functions",
                user_location(),
            )
        take, make = own.tree_flatten, own.tree_unflatten
    _register(
        cls,
        lambda node: _parts(cls, take(node)),
        make,
        optree.GetItemEntry,
    )
    return cls


def _parts(cls: type, parts: Any) -> tuple[tuple[Any, ...], Hashable]:
    """Check ``parts``, the pair (children, metadata) of a flatten function.

    Returns the pair, with the children as a tuple. Raises ArgumentError, about the
    class ``cls``, if it is no such pair.
    """
    pair = isinstance(parts, (tuple, list)) and len(parts) == 2
    if not pair or not isinstance(parts[0], Iterable):
        raise ArgumentError(
            f"the flatten function of {cls.__name__} returned {parts!r}, not a pair "
            "(children, metadata) of an iterable and a hashable value",
            user_location(),
        )
    return tuple(parts[0]), parts[1]


class _Whole:
    """A wrapper that keeps a ``functools.partial`` whole inside of a ``Partial``.

    Python merges nested partials, so the inner arguments would become leaves. The
    wrapper equals the partial that it wraps.
    """

    def __init__(self, function: functools.partial[Any]) -> None:
        """Wrap ``function``."""
        functools.update_wrapper(self, function)
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the partial."""
        return self.function(*args, **kwargs)

    @override
    def __eq__(self, other: object) -> bool:
        """Compare the wrapped partials, or this one's with a plain partial."""
        return self.function == (other.function if isinstance(other, _Whole) else other)

    @override
    def __hash__(self) -> int:
        """Return the hash of the partial."""
        return hash(self.function)

    @override
    def __repr__(self) -> str:
        """Show the partial."""
        return repr(self.function)


@register_node
class Partial(functools.partial[Any]):
    """A ``functools.partial`` that is a tree, with its arguments as leaves.

    A Partial can be an argument of ``jit`` and ``grad``, and brings its arrays with it.
    If it wraps a ``functools.partial``, the arguments of that one are not leaves.

    >>> double = Partial(lambda a, x: a * x, 2.0)
    >>> double(3.0), leaves(double)
    (6.0, [2.0])
    """

    def __new__(cls, func: Callable[..., Any], /, *args: Any, **keywords: Any) -> Self:
        """Bind arguments to ``func``; those of a ``Partial`` are merged with them."""
        if isinstance(func, functools.partial) and not isinstance(func, Partial):
            func = _Whole(func)
        return super().__new__(cls, func, *args, **keywords)

    def tree_flatten(self) -> tuple[tuple[Any, Any], Any]:
        """Return the arguments as children, and the function as metadata."""
        return (self.args, self.keywords), self.func

    @classmethod
    def tree_unflatten(cls, function: Any, held: tuple[Any, Any]) -> Self:
        """Return the function with these positional and keyword arguments."""
        arguments, keywords = held
        return cls(function, *arguments, **keywords)


def register_with_keys(
    cls: type,
    flatten_with_keys: Callable[[Any], tuple[Iterable[tuple[Any, Any]], Hashable]],
    unflatten: Callable[[Any, tuple[Any, ...]], Any],
) -> type:
    """Do what ``register_node`` does, for a class whose children have keys.

    Paths show the keys. ``flatten_with_keys(instance)`` returns the pair (pairs of key
    and child, metadata). A key is one of ``arrayfn.tree_util``'s, or any value that
    names a child.

    >>> from arrayfn.tree_util import GetAttrKey
    >>> class Box:
    ...     def __init__(self, inside):
    ...         self.inside = inside
    >>> _ = register_with_keys(
    ...     Box,
    ...     lambda box: ([(GetAttrKey("inside"), box.inside)], None),
    ...     lambda _, children: Box(*children),
    ... )
    >>> paths([Box({"a": 1.0})])
    ["[0].inside['a']"]
    """

    def flat(node: Any) -> tuple[tuple[Any, ...], Hashable, tuple[Any, ...]]:
        """Return the children of ``node``, its metadata, and the children's keys."""
        children, metadata = _parts(cls, flatten_with_keys(node))
        keys = tuple(key for key, _ in children)
        return tuple(child for _, child in children), metadata, keys

    _register(
        cls,
        flat,
        unflatten,
        NamedEntry,
    )
    return cls


def register_static(cls: C) -> C:
    """Make instances of ``cls`` part of the structure, without leaves; return ``cls``.

    Instances must be hashable, and are compared by ``==``. A function is compiled for
    each value.

    >>> @register_static
    ... class Mode(str):
    ...     pass
    >>> leaves((Mode("fast"), 1))
    [1]
    """
    _register(
        cls,
        lambda node: ((), node),
        lambda node, _: node,
    )
    return cls


def static(**options: Any) -> Any:
    """Return a ``dataclasses.field`` that is part of the structure, not a child.

    ``options`` are those of ``dataclasses.field``.

    >>> from dataclasses import dataclass
    >>> @register_dataclass
    ... @dataclass
    ... class Scaled:
    ...     x: float
    ...     unit: str = static(default="m")
    >>> leaves(Scaled(1.0))
    [1.0]
    """
    metadata = {"static": True, **(options.pop("metadata", None) or {})}
    return dataclasses.field(**options, metadata=metadata)


def register_dataclass(
    nodetype: type | None = None,
    data_fields: Sequence[str] | None = None,
    meta_fields: Sequence[str] | None = None,
    drop_fields: Sequence[str] = (),
) -> Any:
    """Make instances of a dataclass nodes of trees; this can be a decorator.

    Classes of the package attrs and dataclasses of ``optree.dataclasses`` work too.

    Fields in ``data_fields`` are children. Fields in ``meta_fields`` are part of the
    structure, and must be hashable. By default, all fields of the constructor are
    children, except those declared as ``static()``, which is
    ``field(metadata={"static": True})``. The constructor fills in ``drop_fields``.
    Raises ArgumentError for fields that the class does not have, and for fields that no
    list names.

    >>> from dataclasses import dataclass, field
    >>> @register_dataclass
    ... @dataclass
    ... class Layer:
    ...     weights: float
    ...     name: str = field(metadata={"static": True})
    >>> map(lambda x: x + 1.0, Layer(1.0, "first"))
    Layer(weights=2.0, name='first')
    """
    if nodetype is None:
        return lambda cls: register_dataclass(
            cls, data_fields, meta_fields, drop_fields
        )
    data, meta = _fields(nodetype, data_fields, meta_fields, drop_fields)
    # attrs leaves the _ of a private field out of its parameter's name.
    attrs_fields = getattr(nodetype, _ATTRS_FIELDS, ())
    parameters: dict[str, str] = {f.name: f.alias for f in attrs_fields}

    def flat(node: Any) -> tuple[tuple[Any, ...], tuple[Any, ...], tuple[str, ...]]:
        """Return the data fields of ``node``, its static fields, and the data's names.

        A static field that is not hashable raises ArgumentError.
        """
        static = tuple(getattr(node, name) for name in meta)
        try:
            hash(static)
        except TypeError:
            _refuse_unhashable(node, meta)
        return tuple(getattr(node, name) for name in data), static, data

    def made(static: tuple[Any, ...], children: Iterable[Any]) -> Any:
        """Return an instance with these fields."""
        given = dict(zip(data, children, strict=True))
        given.update(zip(meta, static, strict=True))
        return nodetype(**{parameters.get(name, name): x for name, x in given.items()})

    _register(
        nodetype,
        flat,
        made,
        optree.GetAttrEntry,
    )
    return nodetype


def _refuse_unhashable(node: Any, meta: Sequence[str]) -> None:
    """Raise ArgumentError for the first static field of ``node`` without a hash."""
    for name in meta:
        value = getattr(node, name)
        try:
            hash(value)
        except TypeError:
            raise ArgumentError(
                f"the static field {name!r} of {type(node).__name__} is a "
                f"{type(value).__name__}, which is not hashable; give a tuple for a "
                "list, or make the field one of data_fields",
                user_location(),
            ) from None


def _constructed(cls: type) -> dict[str, bool] | None:
    """Return the fields of the constructor of ``cls``, and whether each is static.

    The result is None for a class that is neither a dataclass nor one of attrs. A field
    is static if its metadata have ``static=True``, or flax's ``pytree_node=False``.
    """
    if dataclasses.is_dataclass(cls):
        fields: Iterable[Any] = dataclasses.fields(cls)
    elif hasattr(cls, _ATTRS_FIELDS):
        fields = getattr(cls, _ATTRS_FIELDS)
    else:
        return None
    return {
        f.name: bool(f.metadata.get("static"))
        or not f.metadata.get("pytree_node", True)
        for f in fields
        if f.init
    }


def _fields(
    cls: type,
    data: Sequence[str] | None,
    meta: Sequence[str] | None,
    dropped: Sequence[str],
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the fields that are children, and of the static ones.

    The parameters are those of ``register_dataclass``: ``data``, ``meta`` and
    ``dropped`` are lists of fields, or None for the default. Raises ArgumentError for a
    class that is no dataclass without both lists, and for lists that do not name each
    field once.
    """
    name = cls.__name__
    fields = _constructed(cls)
    if fields is None:
        if data is None or meta is None:
            raise ArgumentError(
                f"register_dataclass: {name} is not a dataclass; decorate it with "
                "@dataclass below @register_dataclass, or name its data_fields and "
                "meta_fields",
                user_location(),
            )
        return tuple(data), tuple(meta)
    fields = {n: is_static for n, is_static in fields.items() if n not in dropped}
    if data is None and meta is None:
        static = {name for name, is_static in fields.items() if is_static}
        names = list(fields)
        return (
            tuple(n for n in names if n not in static),
            tuple(n for n in names if n in static),
        )
    data, meta = tuple(data or ()), tuple(meta or ())
    if sorted((*data, *meta)) != sorted(fields):
        raise ArgumentError(
            f"register_dataclass: data_fields {data} and meta_fields {meta} must "
            f"name each field of {name}'s constructor once: "
            f"{tuple(fields)}; name others in drop_fields",
            user_location(),
        )
    return data, meta


_documentation.attach(__name__)
