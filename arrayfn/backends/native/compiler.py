"""Native routines to LLVM IR: a compiler for integer-only Python.

In: a module whose functions are marked ``@native`` (see ``native``). Out: the text of
an LLVM module that exports each as ``i64 <module>.<name>(i64...)``. The language:
integer constants (also of the module), local variables, ``+ - * // % << >> & | ^``,
comparisons, ``and or not``, ``if``, ``while``, ``for ... in range``, ``break``,
``continue``, ``return``, and calls of the native vocabulary, of C functions and of
routines, also those of other modules. Floating-point numbers are integers too, their
bits. Arithmetic wraps in 64 bits; ``//`` and ``%`` truncate, and serve non-negative
operands. Anything else raises ``NativeSyntaxError`` with its file and line.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from arrayfn.backends import native
from arrayfn.backends.native import CFunction, Routine, operations


class NativeSyntaxError(SyntaxError):
    """A native routine uses what its language does not have."""


_BINARY: Final[dict[type[ast.operator], str]] = {
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


def compile_module(module: Mapping[str, Any], triple: str) -> str:
    """The LLVM IR of the native routines of ``module``, given by its names.

    ``triple`` is the target's.
    """
    architecture = triple.split("-", 1)[0]
    externals: dict[str, str] = {}
    routines = [
        _Compiler(node, routine, module, architecture, externals).text()
        for source in (module, *inlined_modules(module))
        for node, routine in _definitions(source)
        if source is module or routine.is_inlined
    ]
    declarations = [*externals.values(), *operations.declarations(architecture)]
    return "\n".join([f'target triple = "{triple}"', *declarations, *routines, ""])


def inlined_modules(module: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The other modules whose inlined routines ``module`` calls, or these call."""
    found: dict[str, Mapping[str, Any]] = {module["__name__"]: module}

    def add(names: Mapping[str, Any]) -> None:
        for value in names.values():
            if isinstance(value, Routine) and value.is_inlined:
                name = value.module["__name__"]
                if name not in found:
                    found[name] = value.module
                    add(value.module)

    add(module)
    return list(found.values())[1:]


def _definitions(
    module: Mapping[str, Any],
) -> Iterator[tuple[ast.FunctionDef, Routine]]:
    """The native routines that a module defines."""
    path = module["__file__"]
    tree = ast.parse(Path(path).read_text(encoding="utf-8"), path)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            routine = module.get(node.name)
            if isinstance(routine, Routine):
                yield node, routine


class _Compiler:
    """Compiles one function. Values are texts of i64 operands; conditions, of i1."""

    def __init__(
        self,
        node: ast.FunctionDef,
        routine: Routine,
        target: Mapping[str, Any],
        architecture: str,
        externals: dict[str, str],
    ) -> None:
        self.node = node
        self.routine = routine
        self.module = routine.module
        self.target = target  # the module that is compiled
        self.path = routine.module["__file__"]
        self.architecture = architecture
        self.externals = externals
        self.locals = set(routine.variables)
        self.entry: list[str] = []
        self.body: list[str] = []
        self.loops: list[tuple[str, str]] = []
        self.count = 0
        self.terminated = False

    def text(self) -> str:
        """The definition."""
        parameters = self.routine.variables[: self.routine.arity]
        for name in self.routine.variables:
            self.entry.append(f"  %{name} = alloca i64")
        for name in parameters:
            self.entry.append(f"  store i64 %{name}.in, ptr %{name}")
        self.statements(self.node.body)
        if not self.terminated:
            self.emit("ret i64 0")
        signature = ", ".join(f"i64 %{name}.in" for name in parameters)
        linkage, attributes = "", "nounwind"
        if self.routine.is_inlined:
            linkage, attributes = "internal ", "alwaysinline nounwind"
        name = f'"{self.routine.symbol}"'
        head = f"define {linkage}i64 @{name}({signature}) {attributes} {{"
        return "\n".join([head, ".entry:", *self.entry, *self.body, "}"])

    def error(self, node: ast.AST, message: str) -> NativeSyntaxError:
        """An error at ``node``."""
        line = getattr(node, "lineno", self.node.lineno)
        return NativeSyntaxError(message, (self.path, line, None, ast.unparse(node)))

    def emit(self, instruction: str) -> None:
        """Append an instruction to the current block."""
        if not self.terminated:
            self.body.append(f"  {instruction}")

    def fresh(self) -> str:
        """A new operand name."""
        self.count += 1
        return f"%.v{self.count}"

    def value_of(self, instruction: str) -> str:
        """Append an instruction with a result; its operand."""
        result = self.fresh()
        self.emit(f"{result} = {instruction}")
        return result

    def label(self) -> str:
        """A new block label."""
        self.count += 1
        return f".b{self.count}"

    def branch(self, label: str) -> None:
        """End the block with a jump."""
        self.emit(f"br label %{label}")
        self.terminated = True

    def begin(self, label: str) -> None:
        """Start a block, falling into it where the last one is open."""
        if not self.terminated:
            self.branch(label)
        self.terminated = False
        self.body.append(f"{label}:")

    # Statements

    def statements(self, nodes: list[ast.stmt]) -> None:
        """Compile a suite."""
        for node in nodes:
            self.statement(node)

    def statement(self, node: ast.stmt) -> None:
        """Compile one statement."""
        match node:
            case ast.Expr(value=ast.Constant(value=str())) | ast.Pass():
                pass
            case ast.Expr(value=value):
                self.value(value)
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self.emit(f"store i64 {self.value(value)}, ptr %{name}")
            case ast.AugAssign(target=ast.Name(id=name), op=op, value=value):
                right = self.value(value)
                left = self.value_of(f"load i64, ptr %{name}")
                result = self.binary(node, op, left, right)
                self.emit(f"store i64 {result}, ptr %{name}")
            case ast.Return(value=value):
                result = "0" if value is None else self.value(value)
                self.emit(f"ret i64 {result}")
                self.terminated = True
            case ast.If(test=test, body=body, orelse=orelse):
                self.conditional(test, body, orelse)
            case ast.While(test=test, body=body, orelse=[]):
                self.loop(test, body, None)
            case ast.For(target=ast.Name(id=name), iter=ast.Call() as count, body=body):
                self.count_loop(node, name, count, body)
            case ast.Break():
                self.branch(self.loops[-1][1])
            case ast.Continue():
                self.branch(self.loops[-1][0])
            case _:
                raise self.error(node, "not a statement of native routines")

    def conditional(
        self, test: ast.expr, body: list[ast.stmt], orelse: list[ast.stmt]
    ) -> None:
        """An ``if``."""
        then, other, after = self.label(), self.label(), self.label()
        condition = self.condition(test)
        self.emit(f"br i1 {condition}, label %{then}, label %{other}")
        self.terminated = True
        self.begin(then)
        self.statements(body)
        if not self.terminated:
            self.branch(after)
        self.begin(other)
        self.statements(orelse)
        self.begin(after)

    def loop(
        self, test: ast.expr, body: list[ast.stmt], step: Callable[[], None] | None
    ) -> None:
        """A ``while``; ``step`` emits what follows each turn."""
        head, inside, tail, after = (self.label() for _ in range(4))
        self.begin(head)
        condition = self.condition(test)
        self.emit(f"br i1 {condition}, label %{inside}, label %{after}")
        self.terminated = True
        self.begin(inside)
        self.loops.append((tail, after))
        self.statements(body)
        self.loops.pop()
        self.begin(tail)
        if step is not None:
            step()
        self.branch(head)
        self.begin(after)

    def count_loop(
        self, node: ast.stmt, name: str, count: ast.Call, body: list[ast.stmt]
    ) -> None:
        """``for name in range(...)`` with one or two arguments."""
        match count:
            case ast.Call(func=ast.Name(id="range"), args=[stop], keywords=[]):
                start: ast.expr = ast.Constant(0)
            case ast.Call(func=ast.Name(id="range"), args=[start, stop], keywords=[]):
                pass
            case _:
                raise self.error(
                    node, "loops are over range(stop) or range(start, stop)"
                )
        self.emit(f"store i64 {self.value(start)}, ptr %{name}")
        bound = f"{name}.stop{self.count}"
        self.entry.append(f"  %{bound} = alloca i64")
        self.emit(f"store i64 {self.value(stop)}, ptr %{bound}")
        variable = ast.Name(id=name, ctx=ast.Load())
        test = ast.Compare(variable, [ast.Lt()], [ast.Name(id=bound, ctx=ast.Load())])
        self.locals.add(bound)

        def advance() -> None:
            old = self.value_of(f"load i64, ptr %{name}")
            new = self.value_of(f"add i64 {old}, 1")
            self.emit(f"store i64 {new}, ptr %{name}")

        self.loop(test, body, advance)

    # Expressions

    def condition(self, node: ast.expr) -> str:
        """The i1 of a truth value."""
        match node:
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                a, b = self.value(left), self.value(right)
                if type(op) not in _COMPARE:
                    raise self.error(node, "not a comparison of native routines")
                return self.value_of(f"icmp {_COMPARE[type(op)]} i64 {a}, {b}")
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return self.value_of(f"xor i1 {self.condition(operand)}, true")
            case ast.BoolOp(op=op, values=values):
                return self.short_circuit(op, values)
            case _:
                return self.value_of(f"icmp ne i64 {self.value(node)}, 0")

    def short_circuit(self, op: ast.boolop, values: list[ast.expr]) -> str:
        """``and`` and ``or``: later operands run only if they matter."""
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
            yes, no = (
                (following, after) if isinstance(op, ast.And) else (after, following)
            )
            self.emit(f"br i1 {condition}, label %{yes}, label %{no}")
            self.terminated = True
            self.begin(following)
        self.begin(after)
        return self.value_of(f"load i1, ptr {slot}")

    def value(self, node: ast.expr) -> str:
        """The i64 operand of an expression."""
        match node:
            case ast.Constant(value=int() as number):
                return str(int(number))
            case ast.Name(id=name):
                return self.name(node, name)
            case ast.BinOp(left=left, op=op, right=right):
                a = self.value(left)
                return self.binary(node, op, a, self.value(right))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return self.value_of(f"sub i64 0, {self.value(operand)}")
            case ast.UnaryOp(op=ast.Invert(), operand=operand):
                return self.value_of(f"xor i64 {self.value(operand)}, -1")
            case ast.Compare() | ast.BoolOp() | ast.UnaryOp(op=ast.Not()):
                return self.value_of(f"zext i1 {self.condition(node)} to i64")
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
                return self.call(node, name, arguments)
            case _:
                raise self.error(node, "not an expression of native routines")

    def binary(self, node: ast.AST, op: ast.operator, a: str, b: str) -> str:
        """An arithmetic operation."""
        if type(op) not in _BINARY:
            raise self.error(node, "not an operator of native routines")
        return self.value_of(f"{_BINARY[type(op)]} i64 {a}, {b}")

    def name(self, node: ast.AST, name: str) -> str:
        """A local variable or a constant of the module."""
        if name in self.locals:
            return self.value_of(f"load i64, ptr %{name}")
        constant = self.module.get(name)
        if isinstance(constant, int):
            return str(int(constant))
        raise self.error(
            node, f"{name!r} is neither a variable nor an integer constant"
        )

    def pointer(self, address: str) -> str:
        """An address as a pointer."""
        return self.value_of(f"inttoptr i64 {address} to ptr")

    def call(self, node: ast.Call, name: str, arguments: list[ast.expr]) -> str:
        """A call of the vocabulary, of a C function, or of a routine."""
        target = self.module.get(name)
        if target is native.address_of:
            return self.address(node, arguments[0])
        if target is native.stack:
            return self.stack(node, arguments[0])
        values = [self.value(argument) for argument in arguments]
        if isinstance(target, (CFunction, Routine)):
            return self.call_of(node, target, values)
        operation = operations.OPERATIONS.get(getattr(target, "__name__", ""))
        if operation is not None and getattr(native, name, None) is target:
            return operation(self, *values)
        raise self.error(node, f"{name!r} is not a native routine")

    def call_of(
        self, node: ast.Call, function: CFunction | Routine, values: list[str]
    ) -> str:
        """A call by symbol."""
        if len(values) != function.arity:
            raise self.error(
                node, f"{function.symbol} takes {function.arity} arguments"
            )
        returns = function.returns if isinstance(function, CFunction) else "i64"
        operands = ", ".join(f"i64 {value}" for value in values)
        instruction = f"call {returns} @{self.symbol(function)}({operands})"
        if returns == "void":
            self.emit(instruction)
            return "0"
        result = self.value_of(instruction)
        if returns == "i32":
            return self.value_of(f"sext i32 {result} to i64")
        return result

    def symbol(self, function: CFunction | Routine) -> str:
        """The symbol of a function, which is declared if another module defines it."""
        symbol = f'"{function.symbol}"'
        returns = function.returns if isinstance(function, CFunction) else "i64"
        if isinstance(function, CFunction) or (
            function.module is not self.target and not function.is_inlined
        ):
            parameters = ", ".join(["i64"] * function.arity)
            self.externals[symbol] = f"declare {returns} @{symbol}({parameters})"
        return symbol

    def address(self, node: ast.Call, argument: ast.expr) -> str:
        """The address of a routine or a C function."""
        target = (
            self.module.get(argument.id) if isinstance(argument, ast.Name) else None
        )
        if not isinstance(target, (CFunction, Routine)):
            raise self.error(node, "address_of takes the name of a function")
        return self.value_of(f"ptrtoint ptr @{self.symbol(target)} to i64")

    def stack(self, node: ast.Call, argument: ast.expr) -> str:
        """Words on the stack, of the routine's whole life."""
        words = self.value(argument)
        if words.startswith("%"):
            raise self.error(node, "stack takes a constant")
        slot = self.fresh()
        self.entry.append(f"  {slot} = alloca [{words} x i64], align 16")
        return self.value_of(f"ptrtoint ptr {slot} to i64")
