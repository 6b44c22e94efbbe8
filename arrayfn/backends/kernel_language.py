"""The Python that kernels are printed in, to LLVM IR: what all targets share.

The language is what ``lowering`` prints, and a little more: assignments, subscripts of
pointers, ``for ... in range``, ``while``, ``if``, integer index arithmetic, infix
``+ - * /`` of one dtype, comparisons, and calls of the scalar vocabulary. What is
outside of it (a kernel written by hand may be) raises ``UnsupportedKernelError``, and
is left to Numba, which gives such kernels the same meaning: types are Numba's, wherever
this compiler accepts an expression. A kernel takes a few milliseconds here, and ten
times as long in Numba's front end, which costs half a second before its first kernel.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from llvmlite import ir

from arrayfn.backends.kernel_values import (
    SIGNED,
    STORED,
    KernelValues,
    Scalar,
    Slot,
    UnsupportedKernelError,
    dtype_of,
    unsupported,
)
from arrayfn.backends.llvm_arithmetic import I64
from arrayfn.lowering.plan import Parameter

__all__ = [
    "STORED",
    "KernelCompiler",
    "Scalar",
    "UnsupportedKernelError",
    "parsed",
    "unsupported",
]


def parsed(
    source: str, name: str, modules: Mapping[str, ModuleType]
) -> tuple[ast.FunctionDef, dict[str, Any]]:
    """The function ``name`` of a kernel's source, and what is there by its names.

    That are other functions before it, as syntax, and what is imported from
    ``modules``.
    """
    vocabulary: dict[str, Any] = {}
    for node in ast.parse(source).body:
        match node:
            case ast.ImportFrom(module=str(module), names=names) if module in modules:
                known = modules[module]
                vocabulary |= {
                    n.asname or n.name: getattr(known, n.name) for n in names
                }
            case ast.FunctionDef(name=defined) if defined == name:
                return node, vocabulary
            case ast.FunctionDef(name=defined):
                vocabulary[defined] = node
            case _:
                raise unsupported(node)
    raise UnsupportedKernelError(f"there is no function {name}")


def with_names_of(
    node: ast.FunctionDef, parameters: Sequence[Parameter], more: tuple[str, ...] = ()
) -> tuple[Parameter, ...]:
    """``parameters`` with the names that the function has for them.

    A kernel's neutral text numbers them. ``more`` are parameters that follow them.
    """
    given = [argument.arg for argument in node.args.args]
    if len(given) != len(parameters) + len(more):
        expected = [*(p.name for p in parameters), *more]
        raise UnsupportedKernelError(f"parameters {given}, not {expected}")
    own = given[: len(parameters)]
    return tuple(replace(p, name=n) for p, n in zip(parameters, own, strict=True))


@dataclass(slots=True)
class KernelCompiler(KernelValues):
    """Compiles one kernel function."""

    def bind_parameters(self, more: tuple[str, ...] = ()) -> None:
        """Give the parameters their names; ``more`` integers come after them."""
        names = [argument.arg for argument in self.node.args.args]
        expected = [*(p.name for p in self.parameters), *more]
        if names != expected:
            raise UnsupportedKernelError(f"parameters {names}, not {expected}")
        kinds = [*(p.kind for p in self.parameters), *("i64" for _ in more)]
        for name, kind, argument in zip(names, kinds, self.function.args, strict=True):
            if kind.endswith("*"):
                self.pointers[name] = (argument, kind[:-1])
            else:
                self.values[name] = self.m.wrap(argument, "i64")

    # What a target has of its own.

    def effect(self, node: ast.stmt, name: str, arguments: list[ast.expr]) -> None:
        """A call that is a statement."""
        raise unsupported(node)

    def mark_loop(self, back: Any, turns: float, body: list[ast.stmt]) -> None:
        """Mark the branch back to the head of a loop of so many turns."""

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
            ):
                self.effect(node, name, arguments)
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
                step = self.step(bounds[2]) if len(bounds) == 3 else I64(1)
                start = self.integer(bounds[0]) if len(bounds) > 1 else I64(0)
                stop = self.integer(bounds[min(len(bounds), 2) - 1])
                self.loop(node, name, (start, stop, step), body)
            case _:
                raise unsupported(node)

    def loop(
        self,
        node: ast.stmt,
        name: str,
        bounds: tuple[ir.Value, ir.Value, ir.Value],
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
        b.cbranch(self.goes_on(count, stop, step), inside, after)
        b.position_at_end(inside)
        outer = dict(self.values)
        self.assign(node, name, self.m.wrap(count, "i64"))
        self.loops.append((latch, after))
        self.suite(body)
        self.loops.pop()
        self.values = outer
        self.fall_into(latch)
        count.add_incoming(b.add(count, step, flags=("nsw",)), latch)
        self.mark_loop(b.branch(head), turns(bounds), body)
        b.position_at_end(after)

    def step(self, node: ast.expr) -> ir.Value:
        """The step of a range, which is not 0."""
        match node:
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as size)):
                return I64(-size)
            case ast.Constant(value=0):
                raise unsupported(node)
            case _:
                return self.integer(node)

    def goes_on(self, count: ir.Value, stop: ir.Value, step: ir.Value) -> ir.Value:
        """Whether a range by ``step``, up or down, has not come to ``stop``."""
        b = self.builder
        if isinstance(step, ir.Constant):
            return b.icmp_signed("<" if step.constant > 0 else ">", count, stop)
        up, down = (b.icmp_signed(sign, count, stop) for sign in ("<", ">"))
        return b.select(b.icmp_signed(">", step, I64(0)), up, down)

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

    def fall_into(self, block: ir.Block) -> None:
        """Go on in a block, from this one if it is still open."""
        if not self.builder.block.is_terminated:
            self.builder.branch(block)
        self.builder.position_at_end(block)

    def assign(self, node: ast.AST, name: str, value: Scalar) -> None:
        """Give a variable a value."""
        if name in self.pointers:
            raise unsupported(node)
        if name not in self.in_memory:
            self.values[name] = value
            return
        parts = value if isinstance(value, tuple) else (value,)
        slot = self.slots.get(name)
        if slot is None:
            with self.builder.goto_entry_block():
                addresses = [self.builder.alloca(part.value.type) for part in parts]
            slot = self.slots[name] = Slot(addresses, dtype_of(value))
        if slot.dtype != dtype_of(value):
            raise unsupported(node)
        for address, part in zip(slot.addresses, parts, strict=True):
            self.builder.store(part.value, address)

    def store(self, node: ast.Subscript, value: Scalar) -> None:
        """Write an element."""
        parts = value if isinstance(value, tuple) else (value,)
        addresses, dtype = self.element(node, len(parts))
        for address, part in zip(addresses, parts, strict=True):
            if {part.dtype, dtype} <= SIGNED:
                part = self.m.convert(part, dtype)
            if part.dtype != dtype:
                raise unsupported(node)
            self.builder.store(part.value, address)


def turns(bounds: tuple[ir.Value, ir.Value, ir.Value]) -> float:
    """How often a loop goes round, if that is known; else for ever."""
    for bound in bounds:
        if not isinstance(bound, ir.Constant):
            return math.inf
    start, stop, step = (bound.constant for bound in bounds)  # type: ignore[attr-defined]
    return (stop - start) / step
