"""Compiles native routines, a small, typed part of Python, to LLVM IR.

In: a module whose functions are marked ``@native`` (see ``native``). Out: the text of
an LLVM module that exports each as ``<module>.<name>``. The language (``expressions``
has the values): local variables, whose type is that of what is first assigned to them,
fields and elements, ``if``, ``while``, ``for ... in range``, ``break``, ``continue``
and ``return``. Anything else raises ``NativeSyntaxError`` with its file and line.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from arrayfn.backends.native import operations, routines_in
from arrayfn.backends.native.calls import Calls
from arrayfn.backends.native.emitter import Value, llvm_type
from arrayfn.backends.native.structures import value_type


def compile_module(module: Mapping[str, Any], triple: str) -> str:
    """Compile the native routines that ``module`` defines to the text of LLVM IR.

    ``module`` has the globals of a Python module by name, as ``vars`` gives them.
    ``triple`` is LLVM's name of the target, such as "x86_64-unknown-linux-gnu".
    """
    architecture = triple.split("-", 1)[0]
    externals: dict[str, str] = {}  # declarations by symbol, which the compilers add
    nodes = _definitions(module)
    texts = [
        _Compiler(
            nodes[routine.function.__name__], routine, architecture, externals
        ).text()
        for routine in routines_in(module)
        if routine.module is module
    ]
    declarations = [*externals.values(), *operations.declarations(architecture)]
    head = f'target triple = "{triple}"'
    return "\n".join([head, *declarations, *texts, ""])


def _definitions(module: Mapping[str, Any]) -> dict[str, ast.FunctionDef]:
    """Parse a module's file; return the syntax trees of its functions by name."""
    path = module["__file__"]
    tree = ast.parse(Path(path).read_text(encoding="utf-8"), path)
    return {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}


class _Compiler(Calls):
    """Compiles the statements of one routine."""

    def text(self) -> str:
        """Compile the routine to the text of its LLVM definition.

        Each parameter ``x`` arrives as ``%x.in`` and is stored to a variable ``%x``.
        """
        kinds, result = self.routine.types()
        self.result = value_type(result)
        arguments: list[str] = []
        for argument, kind in zip(self.node.args.args, kinds, strict=True):
            name, memory = argument.arg, llvm_type(value_type(kind))
            self.declare(name, value_type(kind))
            self.entry.append(f"  store {memory} %{name}.in, ptr %{name}")
            arguments.append(f"{memory} %{name}.in")
        self.statements(self.node.body)
        if not self.terminated:
            self.emit(self.default_return())
        returns = "void" if self.result is None else llvm_type(self.result)
        name = f'"{self.routine.symbol}"'
        head = f"define {returns} @{name}({', '.join(arguments)}) nounwind {{"
        return "\n".join([head, ".entry:", *self.entry, *self.body, "}"])

    def default_return(self) -> str:
        """Return the instruction for a return without a value: of nothing, 0 or null.

        It is also emitted at the end of a routine that has no ``return`` there.
        """
        if self.result is None:
            return "ret void"
        return "ret i64 0" if self.result is int else "ret ptr null"

    def statements(self, nodes: list[ast.stmt]) -> None:
        """Compile a sequence of statements."""
        for node in nodes:
            self.statement(node)

    def statement(self, node: ast.stmt) -> None:
        """Compile a statement, or raise NativeSyntaxError for an unknown kind."""
        match node:
            case ast.Expr(value=ast.Constant(value=str())) | ast.Pass():
                pass
            case ast.Expr(value=value):
                self.value(value)
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self.assign(node, name, self.value(value))
            case ast.Assign(
                targets=[ast.Attribute() | ast.Subscript() as target], value=value
            ):
                result = self.value(value)
                self.write(node, self.location(target), result)
            case ast.AnnAssign(target=ast.Name(id=name), annotation=kind, value=value):
                if value is None or name in self.locals:
                    raise self.error(node, "a variable is declared once, with a value")
                self.declare(name, value_type(self.annotation(kind)))
                self.assign(node, name, self.value(value))
            case ast.AugAssign(target=target, op=op, value=value):
                self.augmented_assignment(node, target, op, self.value(value))
            case ast.Return(value=value):
                self.return_statement(node, value)
            case ast.If(test=test, body=body, orelse=orelse):
                self.if_statement(test, body, orelse)
            case ast.While(test=test, body=body, orelse=[]):
                self.while_loop(test, body, step=None)
            case ast.For(target=ast.Name(id=name), iter=ast.Call() as count, body=body):
                self.range_loop(node, name, count, body)
            case ast.Break():
                _, after = self.loops[-1]
                self.branch(after)
            case ast.Continue():
                tail, _ = self.loops[-1]
                self.branch(tail)
            case _:
                raise self.error(node, "not a statement of native routines")

    def assign(self, node: ast.AST, name: str, value: Value) -> None:
        """Emit the assignment of ``value`` to the variable ``name``.

        The first assignment declares the variable with the value's type. Later values
        must have the same LLVM type.
        """
        if name not in self.locals:
            if value.type is None:
                raise self.error(node, f"{name} needs a type: '{name}: T | None = ...'")
            self.declare(name, value.type)
        kind = self.locals[name]
        operand = self.converted(node, value, kind).operand
        self.emit(f"store {llvm_type(kind)} {operand}, ptr %{name}")

    def augmented_assignment(
        self, node: ast.AST, target: ast.expr, op: ast.operator, value: Value
    ) -> None:
        """Compile ``target op= value``; the address of a target is computed once."""
        if isinstance(target, ast.Name):
            result = self.binary(node, op, self.name(target, target.id), value)
            self.assign(node, target.id, result)
        else:
            location = self.location(target)
            self.write(
                node, location, self.binary(node, op, self.read(location), value)
            )

    def return_statement(self, node: ast.stmt, value: ast.expr | None) -> None:
        """Compile a ``return``, of ``value`` if it has one."""
        if value is None:
            self.emit(self.default_return())
        elif self.result is None:
            self.value(value)
            self.emit("ret void")
        else:
            result = self.converted(node, self.value(value), self.result)
            self.emit(f"ret {result.llvm} {result.operand}")
        self.terminated = True

    def if_statement(
        self, test: ast.expr, body: list[ast.stmt], orelse: list[ast.stmt]
    ) -> None:
        """Compile an ``if``: ``body`` if ``test`` is true, else ``orelse``."""
        then, other, after = self.label(), self.label(), self.label()
        self.branch_if(self.condition(test), then, other)
        self.begin(then)
        self.statements(body)
        if not self.terminated:
            self.branch(after)
        self.begin(other)
        self.statements(orelse)
        self.begin(after)

    def while_loop(
        self, test: ast.expr, body: list[ast.stmt], step: Callable[[], None] | None
    ) -> None:
        """Compile a loop that runs ``body`` while ``test`` is true.

        ``step``, if given, emits code that runs after each iteration, also after a
        ``continue``.
        """
        head, inside, tail, after = (self.label() for _ in range(4))
        self.begin(head)
        self.branch_if(self.condition(test), inside, after)
        self.begin(inside)
        self.loops.append((tail, after))
        self.statements(body)
        self.loops.pop()
        self.begin(tail)
        if step is not None:
            step()
        self.branch(head)
        self.begin(after)

    def range_loop(
        self, node: ast.stmt, name: str, count: ast.Call, body: list[ast.stmt]
    ) -> None:
        """Compile ``for name in range(...)`` with one or two arguments.

        Both bounds are computed once, before the loop. The loop is compiled as a while
        loop whose step adds 1 to the variable.
        """
        match count:
            case ast.Call(func=ast.Name(id="range"), args=[stop], keywords=[]):
                start: ast.expr = ast.Constant(0)
            case ast.Call(func=ast.Name(id="range"), args=[start, stop], keywords=[]):
                pass
            case _:
                raise self.error(
                    node, "loops are over range(stop) or range(start, stop)"
                )
        self.assign(node, name, self.value(start))
        bound = f"{name}.stop{self.count}"
        self.assign(node, bound, self.value(stop))
        variable = ast.Name(id=name, ctx=ast.Load())
        test = ast.Compare(variable, [ast.Lt()], [ast.Name(id=bound, ctx=ast.Load())])

        def advance() -> None:
            """Add 1 to the loop's counter."""
            old = self.value_of(f"load i64, ptr %{name}")
            new = self.value_of(f"add i64 {old}, 1")
            self.emit(f"store i64 {new}, ptr %{name}")

        self.while_loop(test, body, advance)
