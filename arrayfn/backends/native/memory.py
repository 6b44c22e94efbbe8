"""Emits accesses to memory: how each type is read, written and passed to C."""

from __future__ import annotations

import ctypes
import typing
from typing import Any

from arrayfn.backends.native.emitter import Emitter, Value, llvm_type
from arrayfn.backends.native.structures import (
    INTEGERS,
    Struct,
    bare_type,
    element_c_type,
    field_types,
    is_inline,
    is_struct,
    value_type,
)
from arrayfn.records import frozen


@frozen(slots=True)
class Location:
    """An address in memory, as an LLVM operand, with the type of the value there.

    ``type`` is the annotated type of a field, or of an array's element if
    ``is_element``.
    """

    operand: str
    type: Any
    is_element: bool = False

    @property
    def is_inline(self) -> bool:
        """Whether the address holds a structure or an array itself, not a pointer."""
        return is_inline(self.type) or (self.is_element and is_struct(self.type))


def field_location(
    r: Emitter, base: str, kind: type[Struct], name: str
) -> Location | None:
    """Emit the address of the field ``name`` of the structure at ``base``.

    ``kind`` is the structure's class. Returns None if it has no such field.
    """
    types = field_types(kind)
    if name not in types:
        return None
    offset = getattr(kind, name).offset
    pointer = r.value_of(f"getelementptr i8, ptr {base}, i64 {offset}")
    return Location(pointer, types[name])


def element_location(r: Emitter, base: str, array: Any, index: str) -> Location:
    """Emit the address of element ``index`` of the array at ``base``.

    ``array`` is its type, ``Array[element]``. ``base`` and ``index`` are LLVM operands.
    """
    (kind,) = typing.get_args(array)
    size = ctypes.sizeof(element_c_type(kind))
    pointer = r.value_of(f"getelementptr [{size} x i8], ptr {base}, i64 {index}")
    return Location(pointer, kind, is_element=True)


def read(r: Emitter, location: Location) -> Value:
    """Emit the load of the value at a location, widened to 64 bits.

    A structure or array in place is not loaded: its value is its address.
    """
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
    """Return LLVM's name of the annotated type ``kind`` in memory and in C calls.

    For example, ``i32`` is "i32" there, while its values in routines are "i64".
    """
    kind = bare_type(kind)
    if kind in INTEGERS:
        return INTEGERS[kind][0]
    return "float" if kind is ctypes.c_float else llvm_type(value_type(kind))


def widened(r: Emitter, operand: str, kind: Any) -> Value:
    """Emit the widening to 64 bits of a value that was loaded or that C returned.

    ``operand`` is the value's name in LLVM IR, such as "%7", ``kind`` its annotated
    type. Types of 64 bits need no instruction.
    """
    bare = bare_type(kind)
    # "i8" and "sext", for example; ``extend`` is empty for 64 bits.
    memory, extend = INTEGERS.get(bare, ("i64", ""))
    if extend:
        operand = r.value_of(f"{extend} {memory} {operand} to i64")
    elif bare is ctypes.c_float:
        operand = r.value_of(f"fpext float {operand} to double")
    return Value(operand, value_type(kind))


def narrowed(r: Emitter, operand: str, kind: Any) -> str:
    """Emit the narrowing of a value to the annotated type ``kind``, as in memory.

    ``operand`` is its name in LLVM IR; the name of the narrow value is returned. Types
    of 64 bits need no instruction.
    """
    bare = bare_type(kind)
    if bare in INTEGERS and INTEGERS[bare][1]:
        return r.value_of(f"trunc i64 {operand} to {INTEGERS[bare][0]}")
    if bare is ctypes.c_float:
        return r.value_of(f"fptrunc double {operand} to float")
    return operand
