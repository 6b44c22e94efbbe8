"""Expressions of the Python that kernels are printed in, as LLVM IR.

See ``kernel_language``, whose compiler adds the statements.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from llvmlite import ir

from arrayfn.backends.llvm_arithmetic import I64, LLVMValue, scalar_type
from arrayfn.lowering.plan import Parameter
from arrayfn.lowering.scalars.arithmetic import FLOATS, HALVES, INTEGERS, REAL_PART
from arrayfn.lowering.scalars.table import ScalarFunction

Scalar = Any  # an LLVMValue, or a pair of them if complex

SIGNED: Final = frozenset({"i8", "i16", "i32", "i64"})
STORED: Final = {"bool": "u8", **dict.fromkeys(HALVES, "u16")}
_BINARY: Final[dict[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: lambda x, y: x + y,
    ast.Sub: lambda x, y: x - y,
    ast.Mult: lambda x, y: x * y,
}
_SHIFT: Final[dict[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.RShift: lambda x, y: x >> y,
    ast.LShift: lambda x, y: x << y,
}
_BITWISE: Final[dict[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.BitAnd: lambda x, y: x & y,
    ast.BitOr: lambda x, y: x | y,
    ast.BitXor: lambda x, y: x ^ y,
}
_COMPARE: Final[dict[type[ast.cmpop], Callable[[Any, Any], Any]]] = {
    ast.Lt: lambda x, y: x < y,
    ast.LtE: lambda x, y: x <= y,
    ast.Gt: lambda x, y: x > y,
    ast.GtE: lambda x, y: x >= y,
    ast.Eq: lambda x, y: x == y,
    ast.NotEq: lambda x, y: x != y,
}


class UnsupportedKernelError(Exception):
    """A kernel uses what this compiler does not know."""


def unsupported(node: ast.AST) -> UnsupportedKernelError:
    """The error for a piece of a kernel."""
    return UnsupportedKernelError(ast.unparse(node))


@dataclass(slots=True)
class Slot:
    """A variable in memory: an address for each part of its value."""

    addresses: list[ir.Value]
    dtype: str


@dataclass(slots=True)
class KernelValues:
    """Compiles the expressions of one kernel function."""

    node: ast.FunctionDef
    vocabulary: dict[str, Any]
    parameters: tuple[Parameter, ...]
    symbol: str
    slots: dict[str, Slot] = field(default_factory=dict[str, Slot])
    values: dict[str, Scalar] = field(default_factory=dict[str, Scalar])
    pointers: dict[str, tuple[ir.Value, str]] = field(
        default_factory=dict[str, tuple[ir.Value, str]]
    )
    in_memory: set[str] = field(default_factory=set[str])
    loops: list[tuple[ir.Block, ir.Block]] = field(
        default_factory=list[tuple[ir.Block, ir.Block]]
    )
    function: Any = None
    builder: Any = None
    m: Any = None

    def pointer(self, node: ast.AST, value: ast.expr) -> tuple[Any, str]:
        """A pointer, and the dtype of what it points to."""
        match value:
            case ast.Name(id=name) if name in self.pointers:
                return self.pointers[name]
            case _:
                raise unsupported(node)

    def is_pointer(self, value: ast.expr) -> bool:
        """Whether an expression names a pointer."""
        return isinstance(value, ast.Name) and value.id in self.pointers

    def place(self, pointer: ir.Value, index: ir.Value, kind: ir.Type) -> ir.Value:
        """The address of an element of a type in memory."""
        return self.builder.gep(pointer, [index], source_etype=kind)

    def element(self, node: ast.Subscript, parts: int) -> tuple[list[ir.Value], str]:
        """The addresses of the parts of an element, and the dtype of each."""
        pointer, kind = self.pointer(node, node.value)
        index = self.integer(node.slice)
        dtype = REAL_PART.get(kind) or STORED.get(kind, kind)
        if (kind in REAL_PART) != (parts == 2):
            raise unsupported(node)
        b = self.builder
        places = [index]
        if parts == 2:
            twice = b.shl(index, I64(1))
            places = [twice, b.add(twice, I64(1))]
        return [self.place(pointer, p, scalar_type(dtype)) for p in places], dtype

    def blocks(self, *names: str) -> list[ir.Block]:
        """New blocks of the function."""
        return [self.function.append_basic_block(name) for name in names]

    def integer(self, node: ast.expr) -> ir.Value:
        """An i64."""
        value = self.value(node)
        if isinstance(value, tuple) or value.dtype != "i64":
            raise unsupported(node)
        return value.value

    def condition(self, node: ast.expr) -> ir.Value:
        """A truth value."""
        value = self.value(node)
        if isinstance(value, tuple) or value.dtype != "bool":
            raise unsupported(node)
        return value.value

    def value(self, node: ast.expr) -> Scalar:
        """The value of an expression."""
        match node:
            case ast.Constant(value=bool() as truth):
                return self.m.constant("bool", truth)
            case ast.Constant(value=int() as number):
                return self.m.constant("i64", number)
            case ast.Constant(value=float() as number):
                return self.m.constant("f64", number)
            case ast.Name(id=name):
                return self.name(node, name)
            case ast.Subscript(value=ast.Name(id=name)):
                return self.load(node, name)
            case ast.BinOp(left=left, op=op, right=right):
                return self.binary(node, self.value(left), op, self.value(right))
            case ast.UnaryOp(
                op=ast.USub(), operand=ast.Constant(value=int() as number)
            ):
                return self.m.constant("i64", -number)
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=float() as x)):
                return self.m.constant("f64", -x)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return self.negative(node, self.value(operand))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return self.m.wrap(self.builder.not_(self.condition(operand)), "bool")
            case ast.BoolOp(op=op, values=values):
                return self.short_circuit(op, values)
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return self.compare(node, self.value(left), op, self.value(right))
            case ast.Compare(left=left, ops=[op, *more], comparators=[right, *others]):
                first = ast.Compare(left, [op], [right])
                return self.short_circuit(
                    ast.And(), [first, ast.Compare(right, more, others)]
                )
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self.chosen(node, test, body, orelse)
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
                return self.call(node, name, [self.value(a) for a in arguments])
            case _:
                raise unsupported(node)

    def name(self, node: ast.AST, name: str) -> Scalar:
        """A variable, a parameter or a constant of the vocabulary."""
        if name in self.slots:
            slot = self.slots[name]
            dtype = REAL_PART.get(slot.dtype, slot.dtype)
            parts = [self.m.wrap(self.builder.load(a), dtype) for a in slot.addresses]
            return parts[0] if len(parts) == 1 else tuple(parts)
        if name in self.values:
            return self.values[name]
        constant = self.vocabulary.get(name)
        if isinstance(constant, np.floating):
            return self.m.constant(f"f{8 * constant.itemsize}", float(constant))
        raise unsupported(node)

    def load(self, node: ast.Subscript, name: str) -> Scalar:
        """Read an element."""
        _, kind = self.pointer(node, node.value)
        addresses, dtype = self.element(node, 2 if kind in REAL_PART else 1)
        parts = tuple(
            self.m.wrap(self.builder.load(address, typ=scalar_type(dtype)), dtype)
            for address in addresses
        )
        return parts if len(parts) == 2 else parts[0]

    def binary(self, node: ast.AST, x: Scalar, op: ast.operator, y: Scalar) -> Scalar:
        """An infix operation of two values of one dtype, where Numba's has it too."""
        if isinstance(x, tuple) or isinstance(y, tuple):
            raise unsupported(node)
        if {x.dtype, y.dtype} <= SIGNED:
            # As in Numba, whose integers are indices as soon as one computes with them.
            x, y = self.m.convert(x, "i64"), self.m.convert(y, "i64")
        if x.dtype != y.dtype:
            raise unsupported(node)
        if type(op) in _BINARY and x.dtype in {*FLOATS, "i64"}:
            return _BINARY[type(op)](x, y)
        if type(op) in _BITWISE and x.dtype in ("i64", "bool"):
            return _BITWISE[type(op)](x, y)
        if type(op) in _SHIFT and x.dtype == "i64":
            return _SHIFT[type(op)](x, y)
        if isinstance(op, ast.Div) and x.dtype in FLOATS:
            return x / y
        if isinstance(op, (ast.FloorDiv, ast.Mod)) and x.dtype == "i64":
            return self.floor_division(x, y, remainder=isinstance(op, ast.Mod))
        raise unsupported(node)

    def negative(self, node: ast.AST, x: Scalar) -> Scalar:
        """``-x`` of a float or an index."""
        if isinstance(x, tuple) or x.dtype not in {*FLOATS, "i64"}:
            raise unsupported(node)
        return -x if x.dtype in FLOATS else self.m.constant("i64", 0) - x

    def floor_division(
        self, x: LLVMValue, y: LLVMValue, *, remainder: bool
    ) -> LLVMValue:
        """Python's ``//`` or ``%``; 0 divided by 0 is as by 1, and does not trap."""
        b = self.builder
        divisor = b.select((y == 0).value, I64(1), y.value)
        quotient, rest = b.sdiv(x.value, divisor), b.srem(x.value, divisor)
        differ = b.icmp_signed("<", b.xor(rest, divisor), I64(0))
        inexact = b.icmp_signed("!=", rest, I64(0))
        correct = b.and_(inexact, differ)
        if remainder:
            return self.m.wrap(b.select(correct, b.add(rest, divisor), rest), "i64")
        return self.m.wrap(b.sub(quotient, b.zext(correct, I64)), "i64")

    def chosen(
        self, node: ast.AST, test: ast.expr, body: ast.expr, orelse: ast.expr
    ) -> Scalar:
        """``body if test else orelse``, of which one is computed."""
        b = self.builder
        condition = self.condition(test)
        found: list[tuple[LLVMValue, ir.Block]] = []
        with b.if_else(condition) as (then, otherwise):
            for branch, value in ((then, body), (otherwise, orelse)):
                with branch:
                    given = self.value(value)
                    if isinstance(given, tuple):
                        raise unsupported(node)
                    found.append((given, b.block))
        (yes, _), (no, _) = found
        if yes.dtype != no.dtype:
            raise unsupported(node)
        result = b.phi(self.m.type(yes.dtype))
        for value, block in found:
            result.add_incoming(value.value, block)
        return self.m.wrap(result, yes.dtype)

    def short_circuit(self, op: ast.boolop, values: list[ast.expr]) -> Scalar:
        """``and`` and ``or``: later operands are computed only if they matter."""
        b = self.builder
        (after,) = self.blocks("decided")
        incoming: list[tuple[ir.Value, ir.Block]] = []
        for number, value in enumerate(values):
            condition = self.condition(value)
            incoming.append((condition, b.block))
            if number + 1 == len(values):
                b.branch(after)
                break
            (following,) = self.blocks("next")
            yes, no = (
                (following, after) if isinstance(op, ast.And) else (after, following)
            )
            b.cbranch(condition, yes, no)
            b.position_at_end(following)
        b.position_at_end(after)
        result = b.phi(ir.IntType(1))
        for condition, block in incoming:
            result.add_incoming(condition, block)
        return self.m.wrap(result, "bool")

    def compare(self, node: ast.AST, x: Scalar, op: ast.cmpop, y: Scalar) -> Scalar:
        """A comparison of two values of one dtype, or of integers."""
        if isinstance(x, tuple) or isinstance(y, tuple):
            raise unsupported(node)
        if x.dtype != y.dtype and {x.dtype, y.dtype} <= {*SIGNED, "u8", "u16", "u32"}:
            x, y = self.m.convert(x, "i64"), self.m.convert(y, "i64")
        if x.dtype != y.dtype:
            raise unsupported(node)
        if type(op) not in _COMPARE:
            raise unsupported(node)
        if x.dtype == "bool" and not isinstance(op, (ast.Eq, ast.NotEq)):
            raise unsupported(node)
        return _COMPARE[type(op)](x, y)

    def call(self, node: ast.Call, name: str, arguments: list[Scalar]) -> Scalar:
        """A function of the vocabulary, or a typed constant or conversion."""
        function = self.vocabulary.get(name)
        if isinstance(function, ScalarFunction):
            wanted = [
                STORED.get(d, d) if d != "bool" else d for d in function.arguments
            ]
            arguments = [
                self.m.convert(a, w) if {dtype_of(a), w} <= SIGNED else a
                for a, w in zip(arguments, wanted, strict=False)
            ]
            if [dtype_of(argument) for argument in arguments] != wanted:
                raise unsupported(node)
            return function.formula(self.m, *arguments)
        if name in {*FLOATS, *INTEGERS} and len(arguments) == 1:
            (value,) = arguments
            if not isinstance(value, tuple) and value.dtype in {*FLOATS, *SIGNED}:
                return self.converted(node, value, name)
        raise unsupported(node)

    def converted(self, node: ast.Call, value: LLVMValue, dtype: str) -> LLVMValue:
        """``f32(x)`` and its like; of a number, a constant."""
        match node.args[0]:
            case ast.Constant(value=int() | float() as number):
                return self.m.constant(dtype, number)
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=number)) if (
                isinstance(number, int | float)
            ):
                return self.m.constant(dtype, -number)
            case _:
                return self.m.convert(value, dtype)


def dtype_of(value: Scalar) -> str:
    """The dtype of a value; of a pair, the complex one."""
    if isinstance(value, tuple):
        return "c64" if value[0].dtype == "f32" else "c128"
    return value.dtype
