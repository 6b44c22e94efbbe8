"""Emits accesses to memory: how each type is read, written and passed to C."""

from __future__ import annotations

import ctypes
import typing
from dataclasses import dataclass
from typing import Any

from arrayfn.backends.native.emitter import Emitter, Value, llvm_type
from arrayfn.backends.native.structures import (
    INTEGERS,
    Struct,
    element_c_type,
    field_types,
    is_inline,
    is_struct,
    value_type,
)


@dataclass(frozen=True, slots=True)
class Location:
    """An address, as an LLVM operand, with the type annotated for what is there."""

    operand: str
    type: Any
    is_element: bool = False

    @property
    def is_inline(self) -> bool:
        """Whether a structure or an array itself is there, not a pointer to it."""
        return is_inline(self.type) or (self.is_element and is_struct(self.type))


def field_location(
    r: Emitter, base: str, kind: type[Struct], name: str
) -> Location | None:
    """Emit the address of the field ``name`` of a structure; None if it has none."""
    types = field_types(kind)
    if name not in types:
        return None
    offset = getattr(kind, name).offset
    pointer = r.value_of(f"getelementptr i8, ptr {base}, i64 {offset}")
    return Location(pointer, types[name])


def element_location(r: Emitter, base: str, array: Any, index: str) -> Location:
    """Emit the address of element ``index`` of the array at ``base``."""
    (kind,) = typing.get_args(array)
    size = ctypes.sizeof(element_c_type(kind))
    pointer = r.value_of(f"getelementptr [{size} x i8], ptr {base}, i64 {index}")
    return Location(pointer, kind, is_element=True)


def read(r: Emitter, location: Location) -> Value:
    """Emit the load of the value at a location, widened to 64 bits."""
    kind = value_type(location.type)
    if location.is_inline:
        return Value(location.operand, kind)
    memory = memory_type(location.type)
    return widened(
        r, r.value_of(f"load {memory}, ptr {location.operand}"), location.type
    )


def write(r: Emitter, location: Location, value: Value) -> None:
    """Emit the store of a value to a location, narrowed to its type."""
    memory = memory_type(location.type)
    operand = narrowed(r, value.operand, location.type)
    r.emit(f"store {memory} {operand}, ptr {location.operand}")


def memory_type(kind: Any) -> str:
    """LLVM's type of the annotated type ``kind`` in memory, or in a call of C."""
    kind = _bare(kind)
    if kind in INTEGERS:
        return INTEGERS[kind][0]
    return "float" if kind is ctypes.c_float else llvm_type(value_type(kind))


def widened(r: Emitter, operand: str, kind: Any) -> Value:
    """Emit the widening of a loaded value of the annotated type ``kind`` to 64 bits.

    ``operand`` is the value's name in LLVM IR, such as "%7".
    """
    bare = _bare(kind)
    if bare in INTEGERS and INTEGERS[bare][1]:
        memory, extend = INTEGERS[bare]
        operand = r.value_of(f"{extend} {memory} {operand} to i64")
    elif bare is ctypes.c_float:
        operand = r.value_of(f"fpext float {operand} to double")
    return Value(operand, value_type(kind))


def narrowed(r: Emitter, operand: str, kind: Any) -> str:
    """Emit the narrowing of a value to the annotated type ``kind``; its operand."""
    bare = _bare(kind)
    if bare in INTEGERS and INTEGERS[bare][1]:
        return r.value_of(f"trunc i64 {operand} to {INTEGERS[bare][0]}")
    if bare is ctypes.c_float:
        return r.value_of(f"fptrunc double {operand} to float")
    return operand


def _bare(kind: Any) -> Any:
    """The type ``kind`` without what ``Annotated`` adds."""
    while typing.get_origin(kind) is typing.Annotated:
        kind = typing.get_args(kind)[0]
    return kind
