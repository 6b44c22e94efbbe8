"""Dataclasses that are cheap to define: ``@frozen`` and ``@record``.

``dataclass(frozen=True)`` compiles the source text of six methods for each class. That
took 0.3 ms a class and was half of the time to import arrayfn. The methods of these
classes are closures. Only ``__init__`` is compiled, when it is first needed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, Field, FrozenInstanceError
from operator import attrgetter
from reprlib import recursive_repr
from types import FunctionType
from typing import Any, Final, TypeVar, dataclass_transform, overload

_T = TypeVar("_T")
_UNSET: Final = object()
"""The default of parameters of ``__init__`` whose field has a ``default_factory``."""


@overload
def frozen(cls: type[_T], /) -> type[_T]: ...


@overload
def frozen(
    *, eq: bool = True, repr: bool = True, slots: bool = False
) -> Callable[[type[_T]], type[_T]]: ...


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def frozen(
    cls: type[Any] | None = None,
    /,
    *,
    eq: bool = True,
    repr: bool = True,
    slots: bool = False,
) -> Any:
    """Make a class a frozen dataclass, as ``dataclass(frozen=True)`` does.

    ``dataclasses.fields`` and ``replace``, ``copy``, ``pickle`` and ``match`` know its
    objects. Methods that the class defines itself are kept. ``eq`` and ``repr`` say
    whether objects are compared and printed by their fields, ``slots`` whether fields
    are slots. A field cannot be an ``InitVar``. Raises TypeError if the class defines
    ``__setattr__`` or ``__delattr__``.

    >>> @frozen
    ... class Point:
    ...     x: int
    ...     y: int = 0
    >>> Point(1), Point(1) == Point(1, 0), hash(Point(1)) == hash(Point(1))
    (Point(x=1, y=0), True, True)
    >>> Point(1).x = 2
    Traceback (most recent call last):
    dataclasses.FrozenInstanceError: cannot assign to field 'x'
    """
    if cls is None:
        return lambda cls: _frozen(cls, eq=eq, repr=repr, slots=slots)
    return _frozen(cls, eq=eq, repr=repr, slots=slots)


@overload
def record(cls: type[_T], /) -> type[_T]: ...


@overload
def record(*, slots: bool = False) -> Callable[[type[_T]], type[_T]]: ...


@dataclass_transform(eq_default=False, field_specifiers=(dataclasses.field,))
def record(cls: type[Any] | None = None, /, *, slots: bool = False) -> Any:
    """Make a class a dataclass whose fields can be set; an object equals only itself.

    As ``dataclass(eq=False)`` does. ``slots`` says whether fields are slots. A field
    cannot be an ``InitVar``.

    >>> @record
    ... class Count:
    ...     total: int = 0
    >>> count = Count()
    >>> count.total += 2
    >>> count, count == Count(2)
    (Count(total=2), False)
    """
    if cls is None:
        return lambda cls: _record(cls, slots=slots)
    return _record(cls, slots=slots)


def _record(cls: type[Any], *, slots: bool) -> type[Any]:
    """Return the dataclass of ``cls``: a class of its own if ``slots``."""
    own = set(cls.__dict__)
    cls = _without_methods(cls, slots=slots)
    _add(cls, own, {"__init__": _Init(cls), "__repr__": _repr(dataclasses.fields(cls))})
    return cls


def _frozen(cls: type[Any], *, eq: bool, repr: bool, slots: bool) -> type[Any]:
    """Return the frozen dataclass of ``cls``: a class of its own if ``slots``."""
    own = set(cls.__dict__)
    if "__eq__" in own and cls.__dict__["__hash__"] is None:
        own.remove("__hash__")  # Python set it, because the class defines __eq__
    cls = _without_methods(cls, slots=slots)
    fields = dataclasses.fields(cls)
    methods: dict[str, Any] = dict(_immutable(cls, {f.name for f in fields}))
    if forbidden := own & methods.keys():
        raise TypeError(f"{cls.__name__} defines {', '.join(sorted(forbidden))}")
    methods["__init__"] = _Init(cls)
    if slots:
        # ``pickle`` and ``copy`` would set the slots by the class's own __setattr__.
        methods |= {"__getstate__": _state, "__setstate__": _restore}
    if repr:
        methods["__repr__"] = _repr(fields)
    if eq:
        compared = _getter([f.name for f in fields if f.compare])
        hashed = [f.name for f in fields if (f.compare if f.hash is None else f.hash)]
        methods |= {"__eq__": _eq(compared), "__hash__": _hash(_getter(hashed))}
    _add(cls, own, methods)
    return cls


def _without_methods(cls: type[_T], *, slots: bool) -> type[_T]:
    """Make ``cls`` a dataclass that has its fields, but no methods to compile."""
    define = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots)
    return define(cls)


def _add(cls: type[Any], own: set[str], methods: dict[str, Any]) -> None:
    """Set those of ``methods`` that are not in ``own``, which the class has itself."""
    for name, method in methods.items():
        if name not in own:
            setattr(cls, name, method)
            if isinstance(method, FunctionType):
                method.__name__ = name
                method.__qualname__ = f"{cls.__qualname__}.{name}"


class _Init:
    """A class's ``__init__``, which replaces itself by the real one when looked up."""

    def __init__(self, owner: type[Any]) -> None:
        self.owner = owner

    def __get__(self, instance: object, cls: type[Any]) -> Any:
        """Compile the real ``__init__``, store it in the class, and bind it."""
        init = _compiled_init(self.owner)
        self.owner.__init__ = init  # type: ignore[misc]
        return init.__get__(instance, cls)


def _compiled_init(cls: type[Any]) -> Any:
    """Compile ``__init__``, which takes the fields, sets them, calls __post_init__."""
    names: dict[str, Any] = {"_set": object.__setattr__, "_UNSET": _UNSET}
    parameters, keywords, body = ["self"], ["*"], list[str]()
    for field in dataclasses.fields(cls):
        parameter, value = _initial(field, names)
        if parameter:
            (keywords if field.kw_only else parameters).append(parameter)
        if value:
            body.append(f"_set(self, {field.name!r}, {value})")
    if len(keywords) > 1:
        parameters += keywords
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    head = f"def __init__({', '.join(parameters)}):"
    exec("\n ".join([head, *(body or ["pass"])]), names)
    init = names["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    init.__module__ = cls.__module__
    init.__annotations__ = {f.name: f.type for f in dataclasses.fields(cls) if f.init}
    init.__annotations__["return"] = None
    return init


def _initial(field: Field[Any], names: dict[str, Any]) -> tuple[str, str]:
    """Return the text of a field's parameter of ``__init__`` and of its value.

    Either is empty if there is none. ``names`` gets what the texts refer to.
    """
    name = field.name
    if field.default_factory is not MISSING:
        names[f"_make_{name}"] = field.default_factory
        if not field.init:
            return "", f"_make_{name}()"
        return f"{name}=_UNSET", f"_make_{name}() if {name} is _UNSET else {name}"
    if not field.init:
        return "", ""
    if field.default is MISSING:
        return name, name
    names[f"_default_{name}"] = field.default
    return f"{name}=_default_{name}", name


def _getter(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that takes an object and returns its attributes ``names``."""
    if len(names) > 1:
        return attrgetter(*names)
    if not names:
        return lambda _: ()
    get = attrgetter(*names)  # of one name, it returns no tuple
    return lambda record: (get(record),)


def _eq(compared: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any, Any], Any]:
    """Return ``__eq__``, which compares what ``compared`` returns."""

    def equal(self: Any, other: Any) -> Any:
        if other.__class__ is self.__class__:
            return compared(self) == compared(other)
        return NotImplemented

    return equal


def _hash(hashed: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any], int]:
    """Return ``__hash__``, the hash of what ``hashed`` returns."""

    def hash_value(self: Any) -> int:
        return hash(hashed(self))

    return hash_value


def _repr(fields: Sequence[Field[Any]]) -> Callable[[Any], str]:
    """Return ``__repr__``, which prints the class and ``fields`` with ``repr``."""
    names = [field.name for field in fields if field.repr]

    @recursive_repr()
    def text(self: Any) -> str:
        parts = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{self.__class__.__qualname__}({parts})"

    return text


def _immutable(
    cls: type[Any], names: set[str]
) -> Iterator[tuple[str, Callable[..., None]]]:
    """Yield ``__setattr__`` and ``__delattr__``, which refuse the fields ``names``.

    Objects of ``cls`` itself have no other attributes; those of a subclass may.
    """

    def set_attribute(self: Any, name: str, value: Any) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def delete_attribute(self: Any, name: str) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    yield "__setattr__", set_attribute
    yield "__delattr__", delete_attribute


def _state(self: Any) -> list[Any]:
    """Return the values of the fields, for ``pickle``."""
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _restore(self: Any, state: list[Any]) -> None:
    """Set the fields to ``state``."""
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)
