"""Numba IR of a printed kernel to LLVM IR: a mixin for a target's ``Lower`` class.

Types are those of ``typed``: implementations are looked up in the target context by
signature, and no typing context is asked. Variables that one block alone uses are SSA
values. A loop over a range counts in one variable, and its branch back may carry
metadata.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from llvmlite import ir as llvm

from arrayfn.backends.numba.dialect import Dialect
from arrayfn.backends.numba.typed import KernelLoop, KernelTypes

TYPES: Final = "arrayfn types"
"""Where in a compiler's metadata its ``KernelTypes`` are."""
_I64: Final = llvm.IntType(64)


@dataclass(slots=True)
class Range:
    """A range object: its bounds, and the stack variable that counts its iterations."""

    start: llvm.Value
    stop: llvm.Value
    step: llvm.Value
    counter: Any = None


class KernelLowering:
    """Lowers the Numba IR of a kernel, with the types of ``typed``, to LLVM IR.

    It precedes the target's ``Lower`` class in the method resolution order.
    """

    dialect: Dialect
    builder: Any
    context: Any
    blocks: Any
    blkmap: dict[int, Any]
    fnargs: Any
    call_conv: Any
    metadata: Any
    module: Any
    func_ir: Any
    fndesc: Any

    def init(self) -> None:
        """Prepare to lower a kernel; Numba calls it at the end of its constructor."""
        self.types: KernelTypes = self.metadata[TYPES]
        # By variable: its value (LLVM's, or a loop's Range or pair), or its memory.
        self.values: dict[str, Any] = {}
        self.slots: dict[str, Any] = {}
        self.latches: dict[Any, Any] = {}  # by the head of a loop
        self.emitted: dict[Any, int] = {}  # instructions of each function called
        self.offset = 0  # of the block that is lowered, in the bytecode
        self.offsets: Iterator[int] = iter(())

    def loop_metadata(self, loop: KernelLoop) -> Any:
        """The metadata of the branch back to a loop's head, or None."""
        return None

    def emit_environment_object(self) -> None:
        """Kernels use no Python objects."""

    def pre_lower(self) -> None:
        """Called before the first block."""
        self.offsets = iter(sorted(self.blocks))

    def post_lower(self) -> None:
        """Called after the last block; there is no debug information to end."""

    def lower_block(self, block: Any) -> None:
        """Emit the statements of a block."""
        self.offset = next(self.offsets)
        for statement in block.body:
            _STATEMENTS[type(statement).__name__](self, statement)

    # Variables

    def read(self, variable: Any) -> Any:
        """The value of a variable."""
        slot = self.slots.get(variable.name)
        return self.values[variable.name] if slot is None else self.builder.load(slot)

    def read_as(self, variable: Any, kind: Any) -> Any:
        """The value of a variable, cast to the type ``kind``."""
        value, own = self.read(variable), self.types.variables[variable.name]
        if own == kind:
            return value
        return self.context.cast(self.builder, value, own, kind)

    def write(self, name: str, value: Any) -> None:
        """Give the variable ``name`` a value."""
        if name not in self.types.shared or not hasattr(value, "type"):
            self.values[name] = value
            return
        slot = self.slots.get(name)
        if slot is None:
            with self.builder.goto_entry_block():
                slot = self.slots[name] = self.builder.alloca(value.type)
        self.builder.store(value, slot)

    # Statements

    def lower_set_item(self, statement: Any) -> None:
        """Lower the statement ``target[index] = value``."""
        signature = self.types.signatures[statement]
        operands = (statement.target, statement.index, statement.value)
        self.implement(operator.setitem, signature, operands)

    def lower_branch(self, statement: Any) -> None:
        """Lower a conditional branch."""
        yes, no = self.blkmap[statement.truebr], self.blkmap[statement.falsebr]
        self.builder.cbranch(self.read(statement.cond), yes, no)

    def lower_jump(self, statement: Any) -> None:
        """Lower a jump. One to a loop's head goes to the loop's latch."""
        target = self.blkmap[statement.target]
        loop = self.types.loops.get(statement.target)
        if loop is not None and statement.target <= self.offset:
            target = self.latch(loop, target)
        self.builder.branch(target)

    def latch(self, loop: Any, head: Any) -> Any:
        """The loop's latch: the one block that jumps back to its ``head``.

        A body that ends in an ``if`` has two ends from Python 3.12 on, and LLVM would
        drop the metadata of their jumps when it merges them. Without metadata it is the
        head.
        """
        if head in self.latches:
            return self.latches[head]
        metadata, latch = self.loop_metadata(loop), head
        if metadata is not None:
            latch = self.builder.append_basic_block(f"{head.name}.latch")
            llvm.IRBuilder(latch).branch(head).set_metadata("llvm.loop", metadata)
        self.latches[head] = latch
        return latch

    def lower_return(self, statement: Any) -> None:
        """The end of the function; a kernel returns nothing."""
        self.call_conv.return_value(self.builder, self.read(statement.value))

    # Values

    def implement(self, function: Any, signature: Any, operands: Any) -> Any:
        """Emit the target's implementation of ``function`` for a signature.

        ``operands`` are variables of Numba's IR, which are cast to the types of the
        signature. The dialect may have its own function in place of ``function``.
        """
        values = list(map(self.read_as, operands, signature.args))
        function = self.dialect.functions.get(function, function)
        return self.context.get_function(function, signature)(self.builder, values)

    def constant(self, name: str, node: Any) -> Any:
        """The value of a constant or of an imported number; None for a function.

        ``node`` is the IR's constant or global, assigned to ``name``.
        """
        if name in self.types.functions or node.value is None:
            return None
        kind = self.types.variables[name]
        return self.context.get_constant(kind, node.value)

    def lower_expression(self, name: str, node: Any) -> Any:
        """Emit the IR's expression ``node``, which is assigned to ``name``."""
        match node.op:
            case "binop":
                return self.emit_infix(node, node.fn)
            case "inplace_binop":
                return self.emit_infix(node, node.immutable_fn)
            case "getitem":
                operands = node.value, node.index
                return self.implement(
                    operator.getitem, self.types.signatures[node], operands
                )
            case "call":
                return self.emit_call(node)
            case "getiter":
                return self.begin_range(self.read(node.value))
            case "iternext":
                return self.next_of_range(self.read(node.value))
            case "pair_first" | "pair_second":
                return self.read(node.value)[node.op == "pair_second"]
            case "cast":
                return self.read(node.value)
            case _:
                return self.implement(
                    node.fn, self.types.signatures[node], (node.value,)
                )

    def emit_infix(self, node: Any, function: Any) -> Any:
        """Emit the infix operation ``node``, whose operator is ``function``."""
        signature = self.types.signatures[node]
        if isinstance(signature.return_type, self.dialect.types.CPointer):
            start, count = (
                self.read(node.lhs),
                self.read_as(node.rhs, signature.args[1]),
            )
            element = self.context.get_data_type(signature.return_type.dtype)
            return self.builder.gep(start, [count], source_etype=element)
        if function not in (operator.floordiv, operator.mod):
            return self.implement(function, signature, (node.lhs, node.rhs))
        x, y = self.read_as(node.lhs, signature.args[0]), self.read(node.rhs)
        return floor_division(self.builder, x, y, remainder=function is operator.mod)

    def emit_call(self, node: Any) -> Any:
        """Emit the call ``node``: of a function, a type or ``range``."""
        signature = self.types.signatures[node]
        function = self.types.functions[node.func.name]
        if function is range:
            bounds = [self.read_as(x, signature.args[0]) for x in node.args]
            start = bounds[0] if len(bounds) > 1 else _I64(0)
            step = bounds[2] if len(bounds) == 3 else _I64(1)
            return Range(start, bounds[min(len(bounds), 2) - 1], step)
        if isinstance(function, type):
            return self.read_as(node.args[0], signature.return_type)
        before = len(self.builder.block.instructions)
        value = self.implement(function, signature, node.args)
        self.emitted[function] = len(self.builder.block.instructions) - before
        return value

    # Loops over ranges

    def begin_range(self, bounds: Range) -> Range:
        """Emit the start of a range: its counter is set to its first value."""
        with self.builder.goto_entry_block():
            counter = self.builder.alloca(_I64)
        self.builder.store(bounds.start, counter)
        return Range(bounds.start, bounds.stop, bounds.step, counter)

    def next_of_range(self, loop: Range) -> tuple[Any, Any]:
        """Emit a step of a range: its next value, and whether it has one."""
        b = self.builder
        value = b.load(loop.counter)
        b.store(b.add(value, loop.step, flags=("nsw",)), loop.counter)
        if isinstance(loop.step, llvm.Constant):
            sign = "<" if loop.step.constant > 0 else ">"
            return value, b.icmp_signed(sign, value, loop.stop)
        up, down = (b.icmp_signed(sign, value, loop.stop) for sign in ("<", ">"))
        return value, b.select(b.icmp_signed(">", loop.step, _I64(0)), up, down)


def floor_division(b: llvm.IRBuilder, x: Any, y: Any, *, remainder: bool) -> Any:
    """Emit Python's floor division of int64, or its modulo for the ``remainder``.

    It has no branch, so that loops around it are vectorised. A divisor of 0 counts as
    1.
    """
    divisor = b.select(b.icmp_signed("==", y, _I64(0)), _I64(1), y)
    quotient, rest = b.sdiv(x, divisor), b.srem(x, divisor)
    differ = b.icmp_signed("<", b.xor(rest, divisor), _I64(0))
    inexact = b.icmp_signed("!=", rest, _I64(0))
    correct = b.and_(inexact, differ)
    if remainder:
        return b.select(correct, b.add(rest, divisor), rest)
    return b.sub(quotient, b.zext(correct, _I64))


def _assign(lower: KernelLowering, statement: Any) -> None:
    name, value = statement.target.name, statement.value
    lower.write(name, _VALUES[type(value).__name__](lower, name, value))


# By the names of Numba's classes: numba-cuda has its own.
_STATEMENTS: Final[dict[str, Callable[[KernelLowering, Any], None]]] = {
    "Assign": _assign,
    "SetItem": KernelLowering.lower_set_item,
    "Branch": KernelLowering.lower_branch,
    "Jump": KernelLowering.lower_jump,
    "Return": KernelLowering.lower_return,
    "PopBlock": lambda lower, statement: None,
}
_VALUES: Final[dict[str, Callable[[KernelLowering, str, Any], Any]]] = {
    "Expr": KernelLowering.lower_expression,
    "Var": lambda lower, name, variable: lower.read(variable),
    "Const": KernelLowering.constant,
    "Global": KernelLowering.constant,
    "FreeVar": KernelLowering.constant,
    "Arg": lambda lower, name, argument: lower.fnargs[argument.index],
}
