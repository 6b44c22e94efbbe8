"""Compiles calls in native routines: of the vocabulary, C functions and routines."""

from __future__ import annotations

import ast
import ctypes
import typing
from typing import Any

from typing_extensions import override

from arrayfn.backends import native
from arrayfn.backends.native import CFunction, Routine, memory, operations
from arrayfn.backends.native.emitter import Value, is_pointer, llvm_type
from arrayfn.backends.native.expressions import Expressions, type_name
from arrayfn.backends.native.structures import Array, element_c_type, value_type


class Calls(Expressions):
    """Compiles the calls of one routine."""

    @override
    def call(
        self, node: ast.Call, function: ast.expr, arguments: list[ast.expr]
    ) -> Value:
        """Compile a call: of the vocabulary, a C function, a routine or a pointer.

        ``min`` and ``max`` of integers are called by these names. Raises
        NativeSyntaxError for any other function.
        """
        match function:
            case ast.Name(id=name) if name not in self.locals:
                target: Any = self.module.get(name)
                if target is None and name in ("min", "max"):
                    return self.min_or_max(name, [self.integer(x) for x in arguments])
            case ast.Attribute() if (target := self.member(function)) is not None:
                pass  # a function of a module
            case _:
                return self.call_pointer(node, self.value(function), arguments)
        word = getattr(target, "__name__", "")
        if target is not None and getattr(native, word, None) is target:
            # A function of the vocabulary, which the package ``native`` defines.
            return self.operation(node, word, arguments)
        if isinstance(target, (CFunction, Routine)):
            kinds, result = target.types()
            return self.emit_call(
                node, f"@{self.symbol(target)}", kinds, result, arguments, target
            )
        raise self.error(node, f"{ast.unparse(function)!r} is not a native routine")

    def min_or_max(self, kind: str, values: list[str]) -> Value:
        """Emit the minimum or maximum of int64 operands.

        ``kind`` is "min" or "max". ``values`` are LLVM operands such as "%7" or "12".
        """
        order = "slt" if kind == "min" else "sgt"
        chosen, *others = values
        for other in others:
            condition = self.value_of(f"icmp {order} i64 {other}, {chosen}")
            operands = f"i1 {condition}, i64 {other}, i64 {chosen}"
            chosen = self.value_of(f"select {operands}")
        return Value(chosen)

    def operation(self, node: ast.Call, word: str, arguments: list[ast.expr]) -> Value:
        """Compile a call of the function named ``word`` of the vocabulary."""
        if word == "cast":
            return self.cast(
                node, self.annotation(arguments[0]), self.value(arguments[1])
            )
        if word == "local":
            return self.local(node, *arguments)
        if word == "size_of":
            return Value(
                str(ctypes.sizeof(element_c_type(self.annotation(arguments[0]))))
            )
        if word == "pointer":
            location = self.location(arguments[0])
            return Value(location.operand, Array[location.type])
        if word in operations.ATOMIC:
            location = self.location(arguments[0])
            if memory.memory_type(location.type) != "i64":
                raise self.error(node, "atomic operations are of 64-bit integers")
            rest = [self.integer(x) for x in arguments[1:]]
            return Value(operations.ATOMIC[word](self, location.operand, *rest))
        if word not in operations.OPERATIONS:
            raise self.error(node, f"{word!r} is not a native routine")
        return Value(operations.OPERATIONS[word](self))

    def cast(self, node: ast.AST, kind: Any, value: Value) -> Value:
        """Emit the conversion of ``value`` to the annotated type ``kind``.

        A pointer becomes an integer or a pointer of another type, an integer a pointer.
        Any other conversion raises NativeSyntaxError.
        """
        kind = value_type(kind)
        if kind is int and value.llvm == "ptr":
            return Value(self.value_of(f"ptrtoint ptr {value.operand} to i64"))
        if is_pointer(kind) and value.type is int:
            return Value(self.pointer(value.operand), kind)
        if is_pointer(kind) and value.llvm == "ptr":
            return Value(value.operand, kind)
        raise self.error(node, "a cast is of pointers, and of integers to pointers")

    def local(self, node: ast.Call, kind: ast.expr, count: ast.expr) -> Value:
        """Compile ``local(kind, count)``: an array on the stack.

        It is allocated at the routine's entry, so a call in a loop has the same array
        in each iteration.
        """
        number = self.integer(count)
        if number.startswith("%"):  # the result of an instruction
            raise self.error(node, "local takes a constant number of elements")
        element = self.annotation(kind)
        size = ctypes.sizeof(element_c_type(element)) * int(number)
        slot = self.fresh()
        self.entry.append(f"  {slot} = alloca [{size} x i8], align 16")
        return Value(slot, Array[element])

    def call_pointer(
        self, node: ast.Call, function: Value, arguments: list[ast.expr]
    ) -> Value:
        """Compile a call of ``function``, a pointer of a type ``Callable[...]``.

        A ``Callable[..., result]`` takes any arguments.
        """
        parts = typing.get_args(function.type)
        if not (is_pointer(function.type) and len(parts) == 2):
            raise self.error(node, f"{type_name(function.type)} is not a function")
        kinds, result = parts
        if kinds is Ellipsis:
            kinds = [...] * len(arguments)
        return self.emit_call(
            node, function.operand, kinds, result, arguments, target=None
        )

    def emit_call(
        self,
        node: ast.Call,
        pointer: str,
        kinds: list[Any],
        result: Any,
        nodes: list[ast.expr],
        target: CFunction[..., Any] | Routine[..., Any] | None,
    ) -> Value:
        """Emit a call of ``pointer`` with arguments ``nodes``, converted to ``kinds``.

        ``kinds`` and ``result`` are annotated types; an Ellipsis stands for any type.
        ``target`` is the called function, or None for a call through a pointer. C
        functions take and return narrow types such as i32, while routines take and
        return 64 bits.
        """
        if len(nodes) != len(kinds):
            name = ast.unparse(node.func) if target is None else target.symbol
            raise self.error(node, f"{name} takes {len(kinds)} arguments")
        is_routine = isinstance(target, Routine)
        operands: list[str] = []
        for argument, kind in zip(nodes, kinds, strict=True):
            value = self.value(argument)
            if kind is not Ellipsis:
                value = self.converted(argument, value, value_type(kind))
            if is_routine or kind is Ellipsis:
                operands.append(f"{value.llvm} {value.operand}")
            else:
                narrow = memory.narrowed(self, value.operand, kind)
                operands.append(f"{memory.memory_type(kind)} {narrow}")
        arguments = ", ".join(operands)
        if value_type(result) is None:
            self.emit(f"call void {pointer}({arguments})")
            return Value("0")
        if is_routine:
            kind = value_type(result)
            operand = self.value_of(f"call {llvm_type(kind)} {pointer}({arguments})")
            return Value(operand, kind)
        returns = memory.memory_type(result)
        operand = self.value_of(f"call {returns} {pointer}({arguments})")
        return memory.widened(self, operand, result)

    @override
    def symbol(self, function: CFunction[..., Any] | Routine[..., Any]) -> str:
        """Return a function's symbol in quotes, as LLVM IR writes it.

        A C function, or a routine of another module, is also declared in ``externals``.
        """
        symbol = f'"{function.symbol}"'
        if isinstance(function, Routine) and function.module is self.module:
            return symbol
        kinds, result = function.types()
        # Routines take and return 64-bit values, C functions values of the C types.
        if isinstance(function, Routine):
            parameters = [llvm_type(value_type(kind)) for kind in kinds]
            returns = llvm_type(value_type(result))
        else:
            parameters = [memory.memory_type(kind) for kind in kinds]
            returns = memory.memory_type(result)
        if value_type(result) is None:
            returns = "void"
        self.externals[symbol] = f"declare {returns} @{symbol}({', '.join(parameters)})"
        return symbol
