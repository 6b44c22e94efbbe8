"""Generated kernels to LLVM IR: a compiler for the Python that kernels are printed in.

In: a kernel's source; out: the text of an LLVM module that exports the uniform entry
``void entry(int64* arguments, int64 begin, int64 end)``. The language is what
``lowering`` prints, and a little more: assignments, subscripts of pointers, ``for ...
in range``, ``while``, ``if``, integer index arithmetic, infix ``+ - * /`` of one dtype,
comparisons, and calls of the scalar vocabulary. What is outside of it (a kernel written
by hand may be) raises ``UnsupportedKernelError``, and is left to Numba, which gives
such kernels the same meaning: types are Numba's, wherever this compiler accepts an
expression. A kernel takes a few milliseconds here, and ten times as long in Numba's
front end, which costs half a second before its first kernel.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from llvmlite import ir

from arrayfn import dtypes
from arrayfn.backends.cpu import target
from arrayfn.backends.cpu.kernel_memory import memory_function
from arrayfn.backends.cpu.kernel_module import (
    accumulates,
    add_entry,
    interleave_of,
    interleaved,
    unrolled,
)
from arrayfn.backends.cpu.kernel_variables import variables_in_memory
from arrayfn.backends.llvm_arithmetic import I64, LLVMArithmetic, LLVMValue, scalar_type
from arrayfn.lowering import scalars
from arrayfn.lowering.plan import Parameter
from arrayfn.lowering.scalars.arithmetic import FLOATS, HALVES, INTEGERS, REAL_PART
from arrayfn.lowering.scalars.memory import MEMORY
from arrayfn.lowering.scalars.table import ScalarFunction

Scalar = Any  # an LLVMValue, or a pair of them if complex

SHORT: Final = 32  # turns of a loop that is best unrolled, or vectorised as it is
VOCABULARY: Final = "arrayfn.lowering.scalars"
_STORED: Final = {"bool": "u8", **dict.fromkeys(HALVES, "u16")}
_BINARY: Final[dict[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: lambda x, y: x + y,
    ast.Sub: lambda x, y: x - y,
    ast.Mult: lambda x, y: x * y,
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


def kernel_ir(
    source: str, name: str, parameters: tuple[Parameter, ...], symbol: str
) -> str:
    """The LLVM IR of a kernel; it exports the uniform entry under ``symbol``."""
    vocabulary: dict[str, Any] = {}
    for node in ast.parse(source).body:
        match node:
            case ast.ImportFrom(module=module, names=names) if module == VOCABULARY:
                vocabulary |= {n.asname or n.name: n.name for n in names}
            case ast.FunctionDef(name=defined) if defined == name:
                known = {k: getattr(scalars, v) for k, v in vocabulary.items()}
                return _Kernel(node, known, parameters, symbol).text()
            case _:
                raise _unsupported(node)
    raise UnsupportedKernelError(f"there is no function {name}")


def _unsupported(node: ast.AST) -> UnsupportedKernelError:
    return UnsupportedKernelError(ast.unparse(node))


@dataclass(slots=True)
class _Slot:
    """A variable in memory: an address for each part of its value."""

    addresses: list[ir.Value]
    dtype: str


@dataclass(slots=True)
class _Kernel:
    """Compiles one kernel function."""

    node: ast.FunctionDef
    vocabulary: dict[str, Any]
    parameters: tuple[Parameter, ...]
    symbol: str
    slots: dict[str, _Slot] = field(default_factory=dict[str, _Slot])
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

    def text(self) -> str:
        """The module's text."""
        module = ir.Module(self.symbol)
        module.triple = target.host().triple
        kinds = [_parameter_type(parameter) for parameter in self.parameters]
        signature = ir.FunctionType(ir.VoidType(), [*kinds, I64, I64])
        self.function = ir.Function(module, signature, "kernel")
        self.function.linkage = "internal"
        self.function.attributes.add("noinline")
        self.function.attributes.add("nounwind")
        self.builder = ir.IRBuilder(self.function.append_basic_block("entry"))
        self.m = LLVMArithmetic(self.builder, "kernel")
        self.bind_parameters()
        self.in_memory = variables_in_memory(self.node)
        self.suite(self.node.body)
        if any(name.startswith("store_row") for name in module.globals):
            # Stores past the caches are ordered before what tells other threads.
            self.builder.fence("seq_cst")
        self.builder.ret_void()
        add_entry(module, self.function, self.symbol)
        return str(module)

    def bind_parameters(self) -> None:
        """Give the parameters their names."""
        names = [argument.arg for argument in self.node.args.args]
        expected = [*(p.name for p in self.parameters), "begin", "end"]
        if names != expected:
            raise UnsupportedKernelError(f"parameters {names}, not {expected}")
        kinds = [*(p.kind for p in self.parameters), "i64", "i64"]
        for name, kind, argument in zip(names, kinds, self.function.args, strict=True):
            if kind.endswith("*"):
                argument.add_attribute("noalias")
                self.pointers[name] = (argument, kind[:-1])
            else:
                self.values[name] = self.m.wrap(argument, "i64")

    # Statements

    def suite(self, body: Iterable[ast.stmt]) -> None:
        """Compile statements; SSA values made in them end with them."""
        outer = dict(self.values)
        for statement in body:
            if self.builder.block.is_terminated:
                break
            self.statement(statement)
        self.values = outer

    def statement(self, node: ast.stmt) -> None:
        """Compile one statement."""
        match node:
            case ast.Expr(value=ast.Constant(value=str())) | ast.Pass():
                pass
            case ast.Expr(
                value=ast.Call(func=ast.Name(id=name), args=arguments, keywords=[])
            ) if self.vocabulary.get(name) in MEMORY.values():
                self.memory(node, name, arguments)
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self.assign(node, name, self.value(value))
            case ast.Assign(targets=[ast.Subscript() as place], value=value):
                self.store(place, self.value(value))
            case ast.AugAssign(target=ast.Name(id=name), op=op, value=value):
                result = self.binary(node, self.name(node, name), op, self.value(value))
                self.assign(node, name, result)
            case ast.AugAssign(target=ast.Subscript() as place, op=op, value=value):
                right = self.value(value)
                left = self.value(place)
                self.store(place, self.binary(node, left, op, right))
            case ast.While(test=test, body=body, orelse=[]):
                self.while_loop(test, body)
            case ast.Break() if self.loops:
                self.builder.branch(self.loops[-1][1])
            case ast.Continue() if self.loops:
                self.builder.branch(self.loops[-1][0])
            case ast.If(test=test, body=body, orelse=orelse):
                condition = self.condition(test)
                if orelse:
                    with self.builder.if_else(condition) as (then, otherwise):
                        with then:
                            self.suite(body)
                        with otherwise:
                            self.suite(orelse)
                else:
                    with self.builder.if_then(condition):
                        self.suite(body)
            case ast.For(
                target=ast.Name(id=name),
                iter=ast.Call(func=ast.Name(id="range"), args=bounds, keywords=[]),
                body=body,
                orelse=[],
            ) if 1 <= len(bounds) <= 3:
                step = _step(bounds[2]) if len(bounds) == 3 else 1
                start = self.integer(bounds[0]) if len(bounds) > 1 else I64(0)
                stop = self.integer(bounds[min(len(bounds), 2) - 1])
                self.loop(node, name, (start, stop, step), body)
            case _:
                raise _unsupported(node)

    def loop(
        self,
        node: ast.stmt,
        name: str,
        bounds: tuple[ir.Value, ir.Value, int],
        body: list[ast.stmt],
    ) -> None:
        """``for name in range(start, stop, step)``."""
        b = self.builder
        start, stop, step = bounds
        before = b.block
        head, inside, latch, after = self.blocks("head", "body", "latch", "after")
        b.branch(head)
        b.position_at_end(head)
        count = b.phi(I64)
        count.add_incoming(start, before)
        b.cbranch(b.icmp_signed("<" if step > 0 else ">", count, stop), inside, after)
        b.position_at_end(inside)
        outer = dict(self.values)
        self.assign(node, name, self.m.wrap(count, "i64"))
        self.loops.append((latch, after))
        self.suite(body)
        self.loops.pop()
        self.values = outer
        self.fall_into(latch)
        count.add_incoming(b.add(count, I64(step), flags=("nsw",)), latch)
        back = b.branch(head)
        short = _turns(bounds) <= SHORT
        if short and accumulates(body):
            back.set_metadata("llvm.loop", unrolled(b.module))
        elif not short and (times := interleave_of(body)):
            back.set_metadata("llvm.loop", interleaved(b.module, times))
        b.position_at_end(after)

    def while_loop(self, test: ast.expr, body: list[ast.stmt]) -> None:
        """``while test``."""
        b = self.builder
        head, inside, after = self.blocks("head", "body", "after")
        b.branch(head)
        b.position_at_end(head)
        b.cbranch(self.condition(test), inside, after)
        b.position_at_end(inside)
        self.loops.append((head, after))
        self.suite(body)
        self.loops.pop()
        if not b.block.is_terminated:
            b.branch(head)
        b.position_at_end(after)

    def blocks(self, *names: str) -> list[ir.Block]:
        """New blocks of the function."""
        return [self.function.append_basic_block(name) for name in names]

    def fall_into(self, block: ir.Block) -> None:
        """Go on in a block, from this one if it is still open."""
        if not self.builder.block.is_terminated:
            self.builder.branch(block)
        self.builder.position_at_end(block)

    def assign(self, node: ast.AST, name: str, value: Scalar) -> None:
        """Give a variable a value."""
        if name not in self.in_memory:
            self.values[name] = value
            return
        if name in self.pointers:
            raise _unsupported(node)
        parts = value if isinstance(value, tuple) else (value,)
        slot = self.slots.get(name)
        if slot is None:
            with self.builder.goto_entry_block():
                addresses = [self.builder.alloca(part.value.type) for part in parts]
            slot = self.slots[name] = _Slot(addresses, _dtype(value))
        if slot.dtype != _dtype(value):
            raise _unsupported(node)
        for address, part in zip(slot.addresses, parts, strict=True):
            self.builder.store(part.value, address)

    def element(self, node: ast.Subscript, parts: int) -> tuple[list[ir.Value], str]:
        """The addresses of the parts of an element, and the dtype of each."""
        match node.value:
            case ast.Name(id=name) if name in self.pointers:
                pointer, kind = self.pointers[name]
            case _:
                raise _unsupported(node)
        index = self.integer(node.slice)
        dtype = REAL_PART.get(kind) or _STORED.get(kind, kind)
        if (kind in REAL_PART) != (parts == 2):
            raise _unsupported(node)
        b = self.builder
        places = [index]
        if parts == 2:
            twice = b.shl(index, I64(1))
            places = [twice, b.add(twice, I64(1))]
        kind = scalar_type(dtype)
        return [b.gep(pointer, [p], source_etype=kind) for p in places], dtype

    def store(self, node: ast.Subscript, value: Scalar) -> None:
        """Write an element."""
        parts = value if isinstance(value, tuple) else (value,)
        addresses, dtype = self.element(node, len(parts))
        for address, part in zip(addresses, parts, strict=True):
            if part.dtype != dtype:
                raise _unsupported(node)
            self.builder.store(part.value, address)

    def memory(self, node: ast.stmt, name: str, arguments: list[ast.expr]) -> None:
        """A call of a memory function: pointers of one dtype, and integers."""
        values: list[ir.Value] = []
        kinds: set[str] = set()
        for argument in arguments:
            match argument:
                case ast.Name(id=pointer) if pointer in self.pointers:
                    value, kind = self.pointers[pointer]
                    kinds.add(kind)
                case _:
                    value = self.integer(argument)
            values.append(value)
        if len(kinds) != 1:
            raise _unsupported(node)
        (kind,) = kinds
        size = dtypes.BY_SHORT_NAME[kind].itemsize
        self.builder.call(memory_function(self.builder.module, name, size), values)

    # Expressions

    def integer(self, node: ast.expr) -> ir.Value:
        """An i64."""
        value = self.value(node)
        if isinstance(value, tuple) or value.dtype != "i64":
            raise _unsupported(node)
        return value.value

    def condition(self, node: ast.expr) -> ir.Value:
        """A truth value."""
        value = self.value(node)
        if isinstance(value, tuple) or value.dtype != "bool":
            raise _unsupported(node)
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
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return self.m.wrap(self.builder.not_(self.condition(operand)), "bool")
            case ast.BoolOp(op=op, values=values):
                return self.short_circuit(op, values)
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return self.compare(node, self.value(left), op, self.value(right))
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
                return self.call(node, name, [self.value(a) for a in arguments])
            case _:
                raise _unsupported(node)

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
        raise _unsupported(node)

    def load(self, node: ast.Subscript, name: str) -> Scalar:
        """Read an element."""
        _, kind = self.pointers.get(name, (None, ""))
        addresses, dtype = self.element(node, 2 if kind in REAL_PART else 1)
        parts = tuple(
            self.m.wrap(self.builder.load(address, typ=scalar_type(dtype)), dtype)
            for address in addresses
        )
        return parts if len(parts) == 2 else parts[0]

    def binary(self, node: ast.AST, x: Scalar, op: ast.operator, y: Scalar) -> Scalar:
        """An infix operation of two values of one dtype, where Numba's has it too."""
        if isinstance(x, tuple) or isinstance(y, tuple) or x.dtype != y.dtype:
            raise _unsupported(node)
        if type(op) in _BINARY and x.dtype in {*FLOATS, "i64"}:
            return _BINARY[type(op)](x, y)
        if isinstance(op, ast.Div) and x.dtype in FLOATS:
            return x / y
        if isinstance(op, (ast.FloorDiv, ast.Mod)) and x.dtype == "i64":
            return self.floor_division(x, y, remainder=isinstance(op, ast.Mod))
        raise _unsupported(node)

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
        """A comparison of two values of one dtype."""
        if isinstance(x, tuple) or isinstance(y, tuple) or x.dtype != y.dtype:
            raise _unsupported(node)
        if type(op) not in _COMPARE or x.dtype == "bool":
            raise _unsupported(node)
        return _COMPARE[type(op)](x, y)

    def call(self, node: ast.Call, name: str, arguments: list[Scalar]) -> Scalar:
        """A function of the vocabulary, or a typed constant or conversion."""
        function = self.vocabulary.get(name)
        if isinstance(function, ScalarFunction):
            wanted = [
                _STORED.get(d, d) if d != "bool" else d for d in function.arguments
            ]
            if [_dtype(argument) for argument in arguments] != wanted:
                raise _unsupported(node)
            return function.formula(self.m, *arguments)
        if name in {*FLOATS, *INTEGERS} and len(arguments) == 1:
            (value,) = arguments
            if not isinstance(value, tuple) and value.dtype in {*FLOATS, "i64"}:
                return self.converted(node, value, name)
        raise _unsupported(node)

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


def _turns(bounds: tuple[ir.Value, ir.Value, int]) -> float:
    """How often a loop goes round, if that is known; else for ever."""
    start, stop, step = bounds
    if not isinstance(start, ir.Constant) or not isinstance(stop, ir.Constant):
        return math.inf
    return (stop.constant - start.constant) / step


def _step(node: ast.expr) -> int:
    """The step of a range: a constant other than 0."""
    match node:
        case ast.Constant(value=int() as step) if step > 0:
            return step
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as step)):
            return -step
        case _:
            raise _unsupported(node)


def _dtype(value: Scalar) -> str:
    """The dtype of a value; of a pair, the complex one."""
    if isinstance(value, tuple):
        return "c64" if value[0].dtype == "f32" else "c128"
    return value.dtype


def _parameter_type(parameter: Parameter) -> ir.Type:
    return ir.PointerType() if parameter.kind.endswith("*") else I64
