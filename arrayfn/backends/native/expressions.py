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
    """Compiles the expressions of one routine.

    ``node`` is the routine's syntax tree. ``externals`` collects the LLVM declarations
    of functions of other modules, by symbol. ``loops`` has, for each enclosing loop,
    the labels that ``continue`` and ``break`` jump to.
    """

    def __init__(
        self,
        node: ast.FunctionDef,
        routine: Routine[..., Any],
        architecture: str,
        externals: dict[str, str],
    ) -> None:
        """Begin without text; ``routine`` is the routine, as in ``compiler``."""
        super().__init__(architecture)
        self.node = node
        self.routine = routine
        self.module = routine.module
        self.path = routine.module["__file__"]
        self.externals = externals
        self.locals: dict[str, Any] = {}  # the types of variables
        self.result: Any = int
        # For each enclosing loop: where ``continue`` and ``break`` jump to.
        self.loops: list[tuple[str, str]] = []

    def error(self, node: ast.AST, message: str) -> NativeSyntaxError:
        """Make a NativeSyntaxError with ``message`` and the line of ``node``."""
        line = getattr(node, "lineno", self.node.lineno)
        return NativeSyntaxError(message, (self.path, line, None, ast.unparse(node)))

    def declare(self, name: str, kind: Any) -> None:
        """Add the variable ``name`` of the type ``kind``; emit its stack slot."""
        self.locals[name] = kind
        self.entry.append(f"  %{name} = alloca {llvm_type(kind)}")

    def annotation(self, node: ast.expr) -> Any:
        """Evaluate a type annotation in the module's source, and return the type."""
        return eval(ast.unparse(node), dict(self.module))

    def converted(self, node: ast.AST, value: Value, kind: Any) -> Value:
        """Return ``value`` with its type changed to ``kind``; emits nothing.

        Raises NativeSyntaxError if the LLVM types differ. All pointers have the same
        LLVM type. ``node`` is named in the error.
        """
        if value.llvm != llvm_type(kind):
            raise self.error(node, f"{type_name(value.type)} is not {type_name(kind)}")
        return Value(value.operand, kind)

    # Conditions

    def condition(self, node: ast.expr) -> str:
        """Compile the expression ``node`` to a truth value; return its LLVM i1.

        An integer is true if it is not 0, a pointer if it is not null.
        """
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
        """Emit ``a op b`` and return its LLVM i1.

        Integers are compared by value, pointers only with ``is`` and ``is not``. Raises
        NativeSyntaxError for anything else.
        """
        if type(op) in _POINTERS and a.llvm == b.llvm == "ptr":
            code = _POINTERS[type(op)]
            return self.value_of(f"icmp {code} ptr {a.operand}, {b.operand}")
        if type(op) not in _COMPARE or not a.type is b.type is int:
            raise self.error(node, "not a comparison of native routines")
        code = _COMPARE[type(op)]
        return self.value_of(f"icmp {code} i64 {a.operand}, {b.operand}")

    def short_circuit(self, op: ast.boolop, values: list[ast.expr]) -> str:
        """Compile ``and`` or ``or`` of ``values``; return its LLVM i1.

        Each operand is stored to a stack slot. The next one is computed only if it can
        change the result.
        """
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
        """Compile the expression ``node`` of any kind; return its value."""
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
        """Compile an integer expression; return its LLVM operand.

        Raises NativeSyntaxError if the expression is not an integer.
        """
        value = self.value(node)
        if value.type is not int:
            raise self.error(node, "not an integer")
        return value.operand

    def constant(self, node: ast.AST, number: Any) -> Value:
        """Return the Value of a constant: an integer (or bool), or None.

        Raises NativeSyntaxError for another constant; ``node`` is named in the error.
        """
        if isinstance(number, int):
            return Value(str(int(number)))
        if number is None:
            return _NONE
        raise self.error(node, "not an expression of native routines")

    def conditional_expression(
        self, node: ast.AST, test: ast.expr, body: ast.expr, orelse: ast.expr
    ) -> Value:
        """Compile ``body if test else orelse``; only one of both values is computed.

        The value is stored to a stack slot, whose type is that of ``body``.
        """
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
        """Emit ``a op b`` of integers, or ``a + b`` of an array and an integer.

        The latter is the array that begins at element b. Raises NativeSyntaxError for
        anything else.
        """
        if a.type is b.type is int and type(op) in _INTEGERS:
            code = _INTEGERS[type(op)]
            return Value(self.value_of(f"{code} i64 {a.operand}, {b.operand}"))
        is_array = typing.get_origin(a.type) is Array
        if is_array and b.type is int and isinstance(op, ast.Add):
            location = memory.element_location(self, a.operand, a.type, b.operand)
            return Value(location.operand, a.type)
        raise self.error(node, "not an operator of native routines")

    def name(self, node: ast.AST, name: str) -> Value:
        """Emit the value of a local variable or of the module's global ``name``.

        A global may be an integer, a function (its address), or an External structure,
        which is declared in ``externals``. Raises NativeSyntaxError for anything else.
        """
        if name in self.locals:
            kind = self.locals[name]
            return Value(self.value_of(f"load {llvm_type(kind)}, ptr %{name}"), kind)
        target = self.module.get(name)
        if isinstance(target, int):
            return self.constant(node, target)
        if isinstance(target, (CFunction, Routine)):
            return Value(f"@{self.symbol(target)}", target)
        if isinstance(target, External):
            symbol = f'"{target.symbol}"'
            self.externals[symbol] = f"@{symbol} = external global i8"
            return Value(f"@{symbol}", target.kind)
        raise self.error(
            node, f"{name!r} is neither a variable nor an integer constant"
        )

    # Memory

    def member(self, node: ast.Attribute) -> Any:
        """Return the Python object that ``node`` names in a global, or None.

        ``Kind.MEMBER`` names a constant of a class, ``module.function`` a function. The
        attributes of local variables and of Externals are fields instead.
        """
        owner = node.value
        if isinstance(owner, ast.Name) and owner.id not in self.locals:
            target = self.module.get(owner.id)
            if not isinstance(target, External):
                return getattr(target, node.attr, None)
        return None

    def location(self, node: ast.expr) -> Location:
        """Compile the address of the field or element ``node``.

        Raises NativeSyntaxError if ``node`` is neither of these.
        """
        match node:
            case ast.Attribute(value=owner, attr=attribute):
                base = self.value(owner)
                if is_struct(base.type):
                    location = memory.field_location(
                        self, base.operand, base.type, attribute
                    )
                    if location is not None:
                        return location
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
        """Emit the load of the value at a location, widened to 64 bits."""
        return memory.read(self, location)

    def write(self, node: ast.AST, location: Location, value: Value) -> None:
        """Emit the store of a value to a location, narrowed to the location's type.

        Raises NativeSyntaxError for a whole structure; ``node`` is named in the error.
        """
        if location.is_inline:
            raise self.error(node, "structures are written field by field")
        memory.write(
            self, location, self.converted(node, value, value_type(location.type))
        )

    def call(
        self, node: ast.Call, function: ast.expr, arguments: list[ast.expr]
    ) -> Value:
        """Compile a call; ``calls.Calls`` overrides this."""
        raise NotImplementedError

    def symbol(self, function: CFunction[..., Any] | Routine[..., Any]) -> str:
        """Return a function's symbol in LLVM IR; ``calls.Calls`` overrides this."""
        raise NotImplementedError


def type_name(kind: Any) -> str:
    """Return the name of a type, for errors."""
    return "None" if kind is None else getattr(kind, "__name__", str(kind))
