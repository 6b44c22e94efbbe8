"""Compiles expressions of native routines to LLVM instructions.

Integers wrap in 64 bits; ``//`` and ``%`` truncate, and serve non-negative operands.
Floats are only moved. Besides arithmetic, comparisons, ``and or not`` and conditional
expressions there are constants (also of the module, and members of its classes), fields
``p.field``, elements ``a[i]``, arrays from an element on ``a + i``, ``is None``,
``min``, ``max``, and calls: of the vocabulary, of C functions, of routines (also of
other modules), and of functions that a field or a variable points to.
"""

from __future__ import annotations

import ast
import typing
from typing import Any, Final

from arrayfn.backends.native import CFunction, Routine, memory
from arrayfn.backends.native.emitter import Emitter, Value, llvm_type
from arrayfn.backends.native.memory import Location
from arrayfn.backends.native.structures import (
    Array,
    External,
    is_struct,
    value_type,
)


class NativeSyntaxError(SyntaxError):
    """A native routine uses Python that the native language does not have."""


_INTEGERS: Final[dict[type[ast.operator], str]] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.FloorDiv: "sdiv",
    ast.Mod: "srem",
    ast.LShift: "shl",
    ast.RShift: "lshr",
    ast.BitAnd: "and",
    ast.BitOr: "or",
    ast.BitXor: "xor",
}
_COMPARE: Final[dict[type[ast.cmpop], str]] = {
    ast.Eq: "eq",
    ast.NotEq: "ne",
    ast.Lt: "slt",
    ast.LtE: "sle",
    ast.Gt: "sgt",
    ast.GtE: "sge",
}
_POINTERS: Final[dict[type[ast.cmpop], str]] = {ast.Is: "eq", ast.IsNot: "ne"}
_NONE: Final = Value("null", None)


class Expressions(Emitter):
    """Compiles the expressions of one routine."""

    def __init__(
        self,
        node: ast.FunctionDef,
        routine: Routine[..., Any],
        architecture: str,
        externals: dict[str, str],
    ) -> None:
        super().__init__(architecture)
        self.node = node
        self.routine = routine
        self.module = routine.module
        self.path = routine.module["__file__"]
        self.externals = externals
        self.locals: dict[str, Any] = {}  # the types of variables
        self.result: Any = int
        self.loops: list[tuple[str, str]] = []

    def error(self, node: ast.AST, message: str) -> NativeSyntaxError:
        """Make a NativeSyntaxError with this ``message`` at ``node``."""
        line = getattr(node, "lineno", self.node.lineno)
        return NativeSyntaxError(message, (self.path, line, None, ast.unparse(node)))

    def declare(self, name: str, kind: Any) -> None:
        """Emit the stack slot of a variable ``name`` of the type ``kind``."""
        self.locals[name] = kind
        self.entry.append(f"  %{name} = alloca {llvm_type(kind)}")

    def annotation(self, node: ast.expr) -> Any:
        """Evaluate a type that is written in the module's source."""
        return eval(ast.unparse(node), dict(self.module))

    def converted(self, node: ast.AST, value: Value, kind: Any) -> Value:
        """``value`` as one of the type ``kind``, if its LLVM type is the same.

        Raises NativeSyntaxError if it cannot.
        """
        if value.llvm != llvm_type(kind):
            raise self.error(node, f"{type_name(value.type)} is not {type_name(kind)}")
        return Value(value.operand, kind)

    # Conditions

    def condition(self, node: ast.expr) -> str:
        """Compile the expression ``node`` to a truth value, an LLVM i1."""
        match node:
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return self.comparison(node, op, self.value(left), self.value(right))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return self.value_of(f"xor i1 {self.condition(operand)}, true")
            case ast.BoolOp(op=op, values=values):
                return self.short_circuit(op, values)
            case _:
                value = self.value(node)
                zero = "0" if value.type is int else "null"
                return self.value_of(f"icmp ne {value.llvm} {value.operand}, {zero}")

    def comparison(self, node: ast.AST, op: ast.cmpop, a: Value, b: Value) -> str:
        """Emit a comparison as an i1: of integers by order, of pointers by identity."""
        if type(op) in _POINTERS and a.llvm == b.llvm == "ptr":
            code = _POINTERS[type(op)]
            return self.value_of(f"icmp {code} ptr {a.operand}, {b.operand}")
        if type(op) not in _COMPARE or not a.type is b.type is int:
            raise self.error(node, "not a comparison of native routines")
        code = _COMPARE[type(op)]
        return self.value_of(f"icmp {code} i64 {a.operand}, {b.operand}")

    def short_circuit(self, op: ast.boolop, values: list[ast.expr]) -> str:
        """Compile ``and`` or ``or``: later operands run only if they matter."""
        self.count += 1
        slot = f"%.truth{self.count}"
        self.entry.append(f"  {slot} = alloca i1")
        after = self.label()
        for position, value in enumerate(values):
            condition = self.condition(value)
            self.emit(f"store i1 {condition}, ptr {slot}")
            if position + 1 == len(values):
                break
            following = self.label()
            if isinstance(op, ast.And):
                self.branch_if(condition, following, after)
            else:
                self.branch_if(condition, after, following)
            self.begin(following)
        self.begin(after)
        return self.value_of(f"load i1, ptr {slot}")

    # Values

    def value(self, node: ast.expr) -> Value:
        """Compile the expression ``node``; return its value."""
        match node:
            case ast.Constant(value=number):
                return self.constant(node, number)
            case ast.Name(id=name):
                return self.name(node, name)
            case ast.Attribute():
                member = self.member(node)
                if member is None:
                    return self.read(self.location(node))
                return self.constant(node, member)
            case ast.Subscript():
                return self.read(self.location(node))
            case ast.BinOp(left=left, op=op, right=right):
                a = self.value(left)
                return self.binary(node, op, a, self.value(right))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return Value(self.value_of(f"sub i64 0, {self.integer(operand)}"))
            case ast.UnaryOp(op=ast.Invert(), operand=operand):
                return Value(self.value_of(f"xor i64 {self.integer(operand)}, -1"))
            case ast.Compare() | ast.BoolOp() | ast.UnaryOp(op=ast.Not()):
                return Value(self.value_of(f"zext i1 {self.condition(node)} to i64"))
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self.conditional_expression(node, test, body, orelse)
            case ast.Call(func=function, args=arguments, keywords=[]):
                return self.call(node, function, arguments)
            case _:
                raise self.error(node, "not an expression of native routines")

    def integer(self, node: ast.expr) -> str:
        """Compile an integer expression; return its operand."""
        value = self.value(node)
        if value.type is not int:
            raise self.error(node, "not an integer")
        return value.operand

    def constant(self, node: ast.AST, number: Any) -> Value:
        """The value of an integer or of None."""
        if isinstance(number, int):
            return Value(str(int(number)))
        if number is None:
            return _NONE
        raise self.error(node, "not an expression of native routines")

    def conditional_expression(
        self, node: ast.AST, test: ast.expr, body: ast.expr, orelse: ast.expr
    ) -> Value:
        """Compile ``body if test else orelse``: only one of them is computed."""
        then, other, after = self.label(), self.label(), self.label()
        self.branch_if(self.condition(test), then, other)
        self.begin(then)
        first = self.value(body)
        self.count += 1
        slot = f"%.choice{self.count}"
        self.entry.append(f"  {slot} = alloca {first.llvm}")
        self.emit(f"store {first.llvm} {first.operand}, ptr {slot}")
        self.branch(after)
        self.begin(other)
        second = self.converted(node, self.value(orelse), first.type)
        self.emit(f"store {first.llvm} {second.operand}, ptr {slot}")
        self.begin(after)
        return Value(self.value_of(f"load {first.llvm}, ptr {slot}"), first.type)

    def binary(self, node: ast.AST, op: ast.operator, a: Value, b: Value) -> Value:
        """Emit integer arithmetic, or the address ``a + b`` of an array's element b."""
        if a.type is b.type is int and type(op) in _INTEGERS:
            code = _INTEGERS[type(op)]
            return Value(self.value_of(f"{code} i64 {a.operand}, {b.operand}"))
        is_array = typing.get_origin(a.type) is Array
        if is_array and b.type is int and isinstance(op, ast.Add):
            location = memory.element_location(self, a.operand, a.type, b.operand)
            return Value(location.operand, a.type)
        raise self.error(node, "not an operator of native routines")

    def name(self, node: ast.AST, name: str) -> Value:
        """Emit the value of a variable, constant, structure or function ``name``."""
        if name in self.locals:
            kind = self.locals[name]
            return Value(self.value_of(f"load {llvm_type(kind)}, ptr %{name}"), kind)
        found = self.module.get(name)
        if isinstance(found, int):
            return self.constant(node, found)
        if isinstance(found, (CFunction, Routine)):
            return Value(f"@{self.symbol(found)}", found)
        if isinstance(found, External):
            symbol = f'"{found.symbol}"'
            self.externals[symbol] = f"@{symbol} = external global i8"
            return Value(f"@{symbol}", found.kind)
        raise self.error(
            node, f"{name!r} is neither a variable nor an integer constant"
        )

    # Memory

    def member(self, node: ast.Attribute) -> Any:
        """The constant or function that an attribute of a global names, or None."""
        owner = node.value
        if isinstance(owner, ast.Name) and owner.id not in self.locals:
            found = self.module.get(owner.id)
            if not isinstance(found, External):
                return getattr(found, node.attr, None)
        return None

    def location(self, node: ast.expr) -> Location:
        """Compile the address, with its type, of the field or element ``node``."""
        match node:
            case ast.Attribute(value=owner, attr=attribute):
                base = self.value(owner)
                if is_struct(base.type):
                    found = memory.field_location(
                        self, base.operand, base.type, attribute
                    )
                    if found is not None:
                        return found
                raise self.error(node, f"{type_name(base.type)} has no {attribute!r}")
            case ast.Subscript(value=owner, slice=index):
                base = self.value(owner)
                if typing.get_origin(base.type) is not Array:
                    raise self.error(node, f"{type_name(base.type)} has no elements")
                number = self.integer(index)
                return memory.element_location(self, base.operand, base.type, number)
            case _:
                raise self.error(node, "neither a field nor an element")

    def read(self, location: Location) -> Value:
        """Emit the load of the value at a location."""
        return memory.read(self, location)

    def write(self, node: ast.AST, location: Location, value: Value) -> None:
        """Emit the store of a value to a location."""
        if location.is_inline:
            raise self.error(node, "structures are written field by field")
        memory.write(
            self, location, self.converted(node, value, value_type(location.type))
        )

    def call(
        self, node: ast.Call, function: ast.expr, arguments: list[ast.expr]
    ) -> Value:
        """Compile a call; see ``calls``."""
        raise NotImplementedError

    def symbol(self, function: CFunction[..., Any] | Routine[..., Any]) -> str:
        """The symbol of a function in LLVM IR; see ``calls``."""
        raise NotImplementedError


def type_name(kind: Any) -> str:
    """The name of a type, for errors."""
    return "None" if kind is None else getattr(kind, "__name__", str(kind))
