"""Structures of arguments and results as JSON, and back.

A number is a leaf, by its place. Tuples, lists and dicts stand for themselves; named
tuples and registered classes by their names, with their static values. What reads them
back imports nothing but ``OWN`` namespaces: another class is one that this process has
imported, and, unless it is a named tuple, registered as a node of trees.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final

import numpy as np

from arrayfn import tree
from arrayfn.dtypes import BY_SHORT_NAME, SHORT_NAMES
from arrayfn.errors import ArgumentError, BundleError, user_location

_DEEPEST: Final = 64  # of nested arguments
_MAIN: Final = "__main__"
OWN: Final = (
    *("arrayfn.checkify", "arrayfn.ode", "arrayfn.optim", "arrayfn.scipy.stats"),
    "arrayfn.sparse",
)
"""Our namespaces whose classes are pytrees; a process may not have used them yet."""


def described(structure: tree.TreeDef, first: int = 0) -> Any:
    """Describe ``structure`` as JSON, with leaves numbered from ``first`` on.

    Raises ArgumentError for static values that JSON cannot hold, such as functions.
    """
    numbers = range(first, first + structure.num_leaves)
    return _as_json(tree.unflatten(structure, numbers))


def read(document: Any) -> tuple[list[Any], tree.TreeDef]:
    """Rebuild the structure that ``described`` wrote: return leaf numbers and it.

    ``document`` is JSON. Raises BundleError for what ``described`` never writes, and
    for a class that is missing.
    """
    return tree.flatten(_from_json(document, 0))


def _as_json(value: Any) -> Any:
    """Convert ``value``, a pytree of numbers, to JSON."""
    if value is None or type(value) is int:
        return value
    cls = type(value)
    if cls in (tuple, list):
        return {cls.__name__: [_as_json(x) for x in value]}
    if cls is dict and all(type(key) is str for key in value):
        return {"dict": {key: _as_json(x) for key, x in value.items()}}
    if cls is dict:
        return {"map": [[_static(k, cls), _as_json(x)] for k, x in value.items()]}
    if _fields(cls) is not None:  # a named tuple
        children = [_as_json(x) for x in value]
        return {"named": [_name(cls), list(_fields(cls) or ()), children]}
    children, metadata, _ = tree.one_level(value)
    parts = [_as_json(x) for x in children]
    return {"node": [_name(cls), _static(metadata, cls), parts]}


def _static(value: Any, cls: type) -> Any:
    """Return a static value of a node of class ``cls`` as JSON."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) in (tuple, list):
        return {type(value).__name__: [_static(x, cls) for x in value]}
    if isinstance(value, np.dtype) and value in SHORT_NAMES:
        return {"dtype": SHORT_NAMES[value]}
    raise ArgumentError(
        f"save: the {cls.__name__} among the arguments or results has a static "
        f"{type(value).__name__} ({str(value)[:40]}), which a bundle cannot hold; use "
        "numbers, strings, dtypes and tuples of them, or pass its arrays alone",
        user_location(),
    )


def _fields(cls: type) -> tuple[str, ...] | None:
    """Return the fields of a class of named tuples; None for other classes."""
    if not issubclass(cls, tuple):
        return None
    return getattr(cls, "_fields", None)


def _name(cls: type) -> str:
    """Return the name of a class with its module, by which it is found again."""
    return f"{cls.__module__}:{cls.__qualname__}"


def _from_json(value: Any, depth: int) -> Any:
    """Rebuild a pytree of numbers from JSON ``value``, which is ``depth`` levels deep.

    Raises BundleError below ``_DEEPEST`` levels, and for JSON of another form.
    """
    if value is None or type(value) is int:
        return value
    if not isinstance(value, dict) or len(value) != 1 or depth >= _DEEPEST:
        raise BundleError("describes no structure of arrays")
    match value:
        case {"tuple": [*items]}:
            return tuple(_each(items, depth))
        case {"list": [*items]}:
            return _each(items, depth)
        case {"dict": dict(items)}:
            return dict(zip(items, _each(list(items.values()), depth), strict=True))
        case {"map": [*items]} if all(type(x) is list and len(x) == 2 for x in items):
            keys = [_static_from(key, depth) for key, _ in items]
            return _construct(dict, zip(keys, _each([x for _, x in items], depth)))  # noqa: B905
        case {"named": [str(name), [*fields], [*items]]}:
            children = _each(items, depth)
            return _construct(_named_tuple(name, fields)._make, children)
        case {"node": [str(name), metadata, [*items]]}:
            cls, make = _registered(name)
            node = _construct(make, _static_from(metadata, depth), _each(items, depth))
            if type(node) is not cls:
                raise BundleError(f"describes no {name}")
            return node
        case _:
            raise BundleError("describes no structure of arrays")


def _each(items: Sequence[Any], depth: int) -> list[Any]:
    """Return the pytrees of the children of a node that is ``depth`` levels deep."""
    return [_from_json(x, depth + 1) for x in items]


def _construct(make: Any, *parts: Any) -> Any:
    """Call ``make(*parts)``, of a class of this process; BundleError if it refuses."""
    try:
        return make(*parts)
    except Exception as error:
        raise BundleError(f"describes an object that cannot be: {error!r}") from error


def _static_from(value: Any, depth: int) -> Any:
    """Return the static value of the JSON ``value``, which is ``depth`` levels deep."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    match value:
        case {"tuple": [*items]} if len(value) == 1 and depth < _DEEPEST:
            return tuple(_static_from(x, depth + 1) for x in items)
        case {"list": [*items]} if len(value) == 1 and depth < _DEEPEST:
            return [_static_from(x, depth + 1) for x in items]
        case {"dtype": str(name)} if len(value) == 1 and name in BY_SHORT_NAME:
            return BY_SHORT_NAME[name]
        case _:
            raise BundleError("describes no static values")


def _import_own(module: str) -> None:
    """Import the namespace of ours that ``module`` is a part of, if it is of one."""
    for namespace in OWN:
        if f"{module}.".startswith(f"{namespace}."):
            import_module(namespace)


def _registered(name: str) -> tuple[type, Any]:
    """Return the registered class ``name``, and the function that makes its objects.

    ``name`` is "module:class". Where one of the two modules is ``__main__``, as of a
    script, the class's own name is enough. Raises BundleError for none or several.
    """
    module, _, own = name.partition(":")
    _import_own(module)
    known = tree.registered()
    matches = [cls for cls in known if _name(cls) == name] or [
        cls
        for cls in known
        if cls.__qualname__ == own and _MAIN in (module, cls.__module__)
    ]
    if len(matches) != 1:
        raise BundleError(
            f"has a {own} of the module {module}, which this process has not "
            "registered as a node of trees; import the module that does before loading"
        )
    return matches[0], known[matches[0]]


def _named_tuple(name: str, fields: Sequence[Any]) -> Any:
    """Return the class of named tuples ``name``, in a module that is imported already.

    ``fields`` are the names of its fields. Raises BundleError without such a class.
    """
    module, _, own = name.partition(":")
    _import_own(module)
    for place in (module, _MAIN):
        candidate: Any = sys.modules.get(place)
        for part in own.split("."):
            # Not getattr, which may run code of a module or a class.
            candidate = (
                vars(candidate).get(part) if hasattr(candidate, "__dict__") else None
            )
        if isinstance(candidate, type) and _fields(candidate) == tuple(fields):
            return candidate
    raise BundleError(
        f"has a {own} with fields {', '.join(map(str, fields))} of the module "
        f"{module}, which this process has not imported; import it before loading"
    )
