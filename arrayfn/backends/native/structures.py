"""The types of native routines: numbers, pointers, and structures with named fields.

Values of a routine are ``int`` (64 bits), ``float`` (64 bits), ``bool``, structures,
arrays and functions; the last three are pointers, and may be None where their type says
so. ``i8`` to ``u64`` and ``f32`` are numbers in memory and of C functions: they are
widened when they are read, and narrowed when they are written.

A structure is a class of annotated fields, laid out as C does it. It is a
``ctypes.Structure``, so that Python makes, reads and writes it by the same names:

>>> class Point(Struct):
...     x: f32
...     label: int
>>> Point(x=1.5, label=7).label, Point.label.offset, ctypes.sizeof(Point)
(7, 8, 16)

A field or parameter of a structure's type is a pointer to it. In an array, structures
stand one after the other; ``Array[Ref[Point]]`` has pointers to them.
"""

from __future__ import annotations

import ctypes
import sys
import typing
from collections.abc import Callable
from functools import cache
from inspect import get_annotations
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Final, Generic, TypeAlias, TypeVar

from arrayfn.records import frozen

T = TypeVar("T")

_INLINE: Final = "inline"
_REFERENCE: Final = "reference"
_OWN_LINES: Final = "own lines"
LINES_BYTES: Final = 128  # two cache lines: processors fetch them in pairs

# ruff: noqa: PYI042  # the names that LLVM and Rust have for these types
if TYPE_CHECKING:
    i8: TypeAlias = int
    i16: TypeAlias = int
    i32: TypeAlias = int
    u8: TypeAlias = int
    u16: TypeAlias = int
    u32: TypeAlias = int
    u64: TypeAlias = int
    f32: TypeAlias = float
else:
    i8, i16, i32 = ctypes.c_int8, ctypes.c_int16, ctypes.c_int32
    u8, u16 = ctypes.c_uint8, ctypes.c_uint16
    u32, u64 = ctypes.c_uint32, ctypes.c_uint64
    f32 = ctypes.c_float

Inline: TypeAlias = Annotated[T, _INLINE]
"""A structure that is part of the one it is a field of."""

Ref: TypeAlias = Annotated[T, _REFERENCE]
"""A pointer to a structure, as an element of an array."""

OwnLines: TypeAlias = Annotated[T, _OWN_LINES]
"""A field in cache lines of its own: threads write it while others are read."""


class Array(Generic[T]):
    """A pointer to elements that follow each other: ``a[i]``; ``a + i`` begins at i.

    ``Annotated[Array[T], n]`` is a field that holds n elements itself.
    """

    def __getitem__(self, index: int) -> T:
        """Return element ``index``; only compiled routines can."""
        raise NotImplementedError

    def __setitem__(self, index: int, value: T) -> None:
        """Set element ``index``; only compiled routines can."""
        raise NotImplementedError

    def __add__(self, count: int) -> Array[T]:
        """Return the array from element ``count`` on; only compiled routines can."""
        raise NotImplementedError


_BASE: Final = ctypes.Structure
_STRUCT_TYPE: Any = type(_BASE)


class _StructType(_STRUCT_TYPE):
    """The metaclass of structures, which makes ``_fields_`` of their annotations."""

    def __init__(
        self, name: str, bases: tuple[type, ...], namespace: dict[str, Any]
    ) -> None:
        """Set ``_fields_``: each annotated field with its ctypes type.

        Padding fields are inserted before and after an ``OwnLines`` field, so that it
        shares its cache lines with no other. ``size`` counts the bytes so far.
        """
        super().__init__(name, bases, namespace)
        module = sys.modules.get(namespace["__module__"])
        names = {**vars(typing), **(vars(module) if module else {}), name: self}
        fields: list[tuple[str, Any]] = []
        size = max(
            (ctypes.sizeof(base) for base in bases if base is not _BASE), default=0
        )
        for field, text in get_annotations(self).items():
            kind = _evaluate_annotation(text, names)
            memory = c_type(kind)
            step = LINES_BYTES if _OWN_LINES in _marks(kind) else 0
            step = max(step, ctypes.alignment(memory))
            # ``-size % step`` bytes are missing to the next multiple of ``step``.
            # ctypes adds them itself for a type's own alignment.
            if step > ctypes.alignment(memory) and size % step:
                gap = ctypes.c_uint8 * (-size % step)
                fields.append((f"_before_{field}", gap))
            size += -size % step
            fields.append((field, memory))
            size += ctypes.sizeof(memory)
            if _OWN_LINES in _marks(kind) and size % step:
                fields.append((f"_after_{field}", ctypes.c_uint8 * (-size % step)))
                size += -size % step
        self._fields_ = fields


class Struct(ctypes.Structure, metaclass=_StructType):
    """The base of C structures, whose fields are the annotations of their classes."""

    def set(self, **values: float) -> None:
        """Set fields by name; a field that is a pointer is set to an address."""
        for name, value in values.items():
            setattr(self, name, value)


@frozen(slots=True)
class External(Generic[T]):
    """A structure of class ``kind`` in memory that ``Engine.define`` names ``symbol``.

    Routines use a global with this value like a variable that holds the structure.
    """

    kind: type[T]
    symbol: str


def external(kind: type[T], symbol: str) -> T:
    """Return the structure of class ``kind`` that ``Engine.define`` puts at ``symbol``.

    Only native routines can use it. For type checkers it is a ``kind``; in fact it is
    an External.
    """
    structure: Any = External(kind, symbol)
    return structure


def _evaluate_annotation(text: Any, names: dict[str, Any]) -> Any:
    """Evaluate a field's annotation ``text`` with these ``names``; return the type.

    If the text names a structure that is defined later, the result is Array: any
    pointer has the same layout.
    """
    if not isinstance(text, str):
        return text
    try:
        return eval(text, names)  # an annotation of our own
    except NameError:
        return Array


def _marks(kind: Any) -> tuple[Any, ...]:
    """Return the marks that ``Annotated`` adds to a type, such as ``_INLINE``."""
    return getattr(kind, "__metadata__", ())


def bare_type(kind: Any) -> Any:
    """Return the annotated type ``kind`` without ``Annotated`` and its marks."""
    while typing.get_origin(kind) is Annotated:
        kind = typing.get_args(kind)[0]
    return kind


@cache
def value_type(kind: Any) -> Any:
    """Return the type of a routine's values for the annotated type ``kind``.

    That is int for all integers and bool, float for all floats, None for no value, and
    otherwise a pointer: a structure, ``Array[...]`` or ``Callable[...]``. ``Annotated``
    and ``| None`` are removed.
    """
    kind = bare_type(kind)
    if typing.get_origin(kind) in (typing.Union, UnionType):
        (kind,) = (k for k in typing.get_args(kind) if k is not NoneType)
        return value_type(kind)
    if kind in (bool, int) or kind in INTEGERS:
        return int
    if kind in (float, ctypes.c_float, ctypes.c_double):
        return float
    return None if kind is NoneType else kind


INTEGERS: Final = {
    ctypes.c_int8: ("i8", "sext"),
    ctypes.c_int16: ("i16", "sext"),
    ctypes.c_int32: ("i32", "sext"),
    ctypes.c_uint8: ("i8", "zext"),
    ctypes.c_uint16: ("i16", "zext"),
    ctypes.c_uint32: ("i32", "zext"),
    ctypes.c_uint64: ("i64", ""),
}
"""LLVM's types of integers in memory, and the instructions that widen them."""


def is_inline(kind: Any) -> bool:
    """Return whether a field of the annotated type ``kind`` holds the object itself.

    If not, it holds a pointer. An integer among the marks is the length of an array.
    """
    return any(mark == _INLINE or isinstance(mark, int) for mark in _marks(kind))


def c_type(kind: Any) -> Any:
    """Return the ctypes type of a field annotated as ``kind``; pointers are int64."""
    counts = [mark for mark in _marks(kind) if isinstance(mark, int)]
    value = value_type(kind)
    if counts:
        return element_c_type(typing.get_args(value)[0]) * counts[0]
    if _INLINE in _marks(kind):
        return value
    kind = bare_type(kind)
    if kind in INTEGERS or kind is ctypes.c_float:
        return kind
    return ctypes.c_double if value is float else ctypes.c_int64


def element_c_type(kind: Any) -> Any:
    """Return the ctypes type of an element of ``Array[kind]``.

    Structures stand in the array itself; ``Array[Ref[...]]`` has pointers to them.
    """
    return kind if is_struct(kind) else c_type(kind)


def is_struct(kind: Any) -> bool:
    """Return whether ``kind`` is the class of a structure, without ``Annotated``."""
    return isinstance(kind, type) and issubclass(kind, Struct)


@cache
def field_types(kind: type[Struct]) -> dict[str, Any]:
    """Return the annotated types of a structure's fields, by name."""
    return typing.get_type_hints(
        kind, localns={kind.__name__: kind}, include_extras=True
    )


def function_types(function: Callable[..., Any]) -> tuple[list[Any], Any]:
    """Return the annotated types of a function's parameters, and that of its result.

    A parameter or result without an annotation is an int.
    """
    hints = typing.get_type_hints(function, include_extras=True)
    code = function.__code__
    names = code.co_varnames[: code.co_argcount]
    return [hints.get(name, int) for name in names], hints.get("return", int)
