"""Numba IR of a printed kernel to LLVM IR: a mixin for a target's ``Lower`` class.

Types are those of ``typed``: implementations are looked up in the target context by
signature, and no typing context is asked. Variables that one block alone uses are SSA
values. A loop over a range counts in one variable, and its branch back may carry
metadata.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any, Final

from llvmlite import ir as llvm

from arrayfn.backends.numba.dialect import Dialect
from arrayfn.backends.numba.typed import KernelLoop, KernelTypes
from arrayfn.records import record

TYPES: Final = "arrayfn types"
"""The key of a kernel's ``KernelTypes`` in the metadata of Numba's compiler."""
_I64: Final = llvm.IntType(64)


@record(slots=True)
class Range:
    """A ``range`` object in LLVM IR.

    ``counter`` is the stack variable with the next value of an iterator over it.
    """

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
        # By variable name: its value (LLVM's; or a loop's Range or pair of next value
        # and whether there is one), or its stack memory if it is shared by blocks.
        self.values: dict[str, Any] = {}
        self.slots: dict[str, Any] = {}
        self.latches: dict[Any, Any] = {}  # the latch of a loop, by its head
        self.emitted: dict[Any, int] = {}  # instructions of each function called
        self.offset = 0  # of the current block in the bytecode
        self.offsets: Iterator[int] = iter(())  # of the blocks to come

    def loop_metadata(self, loop: KernelLoop) -> Any:
        """Return LLVM metadata for the branch back to a loop's head, or None.

        Targets override this.
        """
        return None

    def emit_environment_object(self) -> None:
        """Emit nothing: kernels use no Python objects."""

    def pre_lower(self) -> None:
        """Prepare to count the blocks; Numba calls it before the first one."""
        self.offsets = iter(sorted(self.blocks))

    def post_lower(self) -> None:
        """Do nothing: Numba ends debug information here, and kernels have none."""

    def lower_block(self, block: Any) -> None:
        """Emit the statements of a block; Numba calls it for blocks by offset."""
        self.offset = next(self.offsets)
        for statement in block.body:
            _STATEMENTS[type(statement).__name__](self, statement)

    # Variables

    def read(self, variable: Any) -> Any:
        """Return the value of a variable, which is loaded if it has a stack slot."""
        slot = self.slots.get(variable.name)
        return self.values[variable.name] if slot is None else self.builder.load(slot)

    def read_as(self, variable: Any, kind: Any) -> Any:
        """Return the value of a variable, cast to the Numba type ``kind``."""
        value = self.read(variable)
        declared = self.types.variables[variable.name]
        if declared == kind:
            return value
        return self.context.cast(self.builder, value, declared, kind)

    def write(self, name: str, value: Any) -> None:
        """Give the variable ``name`` a value.

        A variable that several blocks share is stored to its stack slot, which the
        first write makes. Values that are no LLVM values, such as a Range, have none.
        """
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
        """Lower a jump; a jump back to a loop's head goes to the loop's latch."""
        target = self.blkmap[statement.target]
        loop = self.types.loops.get(statement.target)
        if loop is not None and statement.target <= self.offset:
            target = self.latch(loop, target)
        self.builder.branch(target)

    def latch(self, loop: Any, head: Any) -> Any:
        """Return the loop's latch: the only block that jumps back to its ``head``.

        The latch's jump carries the loop's metadata. A body that ends in an ``if`` has
        two ends from Python 3.12 on, and LLVM would drop the metadata of their jumps
        when it merges them. For a loop without metadata no latch is made, and ``head``
        is returned.
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
        """Lower a return; a kernel returns None, a function that it calls a value."""
        self.call_conv.return_value(self.builder, self.read(statement.value))

    # Values

    def implement(self, function: Any, signature: Any, operands: Any) -> Any:
        """Emit the target's implementation of ``function``; return its result.

        ``operands`` are variables of Numba's IR, which are cast to the types of the
        signature.
        """
        values = list(map(self.read_as, operands, signature.args))
        # Numba finds a scalar function of the vocabulary by its Numba type.
        function = self.dialect.functions.get(function, function)
        return self.context.get_function(function, signature)(self.builder, values)

    def constant(self, name: str, node: Any) -> Any:
        """Return the LLVM value of a constant or of an imported number.

        ``node`` is the IR's constant or global, assigned to ``name``. Returns None for
        a function and for None, which have no value in LLVM IR.
        """
        if name in self.types.functions or node.value is None:
            return None
        kind = self.types.variables[name]
        return self.context.get_constant(kind, node.value)

    def lower_expression(self, name: str, node: Any) -> Any:
        """Emit the IR's expression ``node``, assigned to ``name``; return its value."""
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
                # A pair is a tuple: index it with 0 or 1.
                return self.read(node.value)[node.op == "pair_second"]
            case "cast":
                return self.read(node.value)
            case _:
                return self.implement(
                    node.fn, self.types.signatures[node], (node.value,)
                )

    def emit_infix(self, node: Any, function: Any) -> Any:
        """Emit the infix operation ``node``, whose operator is ``function``.

        A pointer plus an integer is an address that many elements further. ``//`` and
        ``%`` have no branch for a divisor of 0, unlike Numba's.
        """
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
        """Emit the call ``node``: of ``range``, a type or a function.

        The call of a type converts its argument. For a function, the number of emitted
        instructions is noted in ``emitted``.
        """
        signature = self.types.signatures[node]
        function = self.types.functions[node.func.name]
        if function is range:
            bounds = [self.read_as(x, signature.args[0]) for x in node.args]
            start = bounds[0] if len(bounds) > 1 else _I64(0)
            step = bounds[2] if len(bounds) == 3 else _I64(1)
            stop = bounds[min(len(bounds), 2) - 1]  # the only bound, or the second
            return Range(start, stop, step)
        if isinstance(function, type):
            return self.read_as(node.args[0], signature.return_type)
        before = len(self.builder.block.instructions)
        value = self.implement(function, signature, node.args)
        self.emitted[function] = len(self.builder.block.instructions) - before
        return value

    # Loops over ranges

    def begin_range(self, bounds: Range) -> Range:
        """Emit the start of an iteration over ``bounds``; return it with a counter.

        The counter, a stack variable, is set to the first value.
        """
        with self.builder.goto_entry_block():
            counter = self.builder.alloca(_I64)
        self.builder.store(bounds.start, counter)
        return Range(bounds.start, bounds.stop, bounds.step, counter)

    def next_of_range(self, loop: Range) -> tuple[Any, Any]:
        """Emit one step of an iteration: the next value, and whether there is one.

        The counter is advanced in any case.
        """
        b = self.builder
        value = b.load(loop.counter)
        b.store(b.add(value, loop.step, flags=("nsw",)), loop.counter)
        if isinstance(loop.step, llvm.Constant):
            sign = "<" if loop.step.constant > 0 else ">"
            return value, b.icmp_signed(sign, value, loop.stop)
        # The direction is known only when the kernel runs.
        up, down = (b.icmp_signed(sign, value, loop.stop) for sign in ("<", ">"))
        return value, b.select(b.icmp_signed(">", loop.step, _I64(0)), up, down)


def floor_division(b: llvm.IRBuilder, x: Any, y: Any, *, remainder: bool) -> Any:
    """Emit Python's ``x // y`` of int64, or ``x % y`` if ``remainder``.

    LLVM's division truncates: if the remainder is not 0 and its sign differs from the
    divisor's, 1 is subtracted from the quotient and the divisor is added to the
    remainder. There is no branch, so that loops around it are vectorised. A divisor of
    0 counts as 1.
    """
    divisor = b.select(b.icmp_signed("==", y, _I64(0)), _I64(1), y)
    quotient, rest = b.sdiv(x, divisor), b.srem(x, divisor)
    differ = b.icmp_signed("<", b.xor(rest, divisor), _I64(0))  # the signs
    inexact = b.icmp_signed("!=", rest, _I64(0))
    correct = b.and_(inexact, differ)
    if remainder:
        return b.select(correct, b.add(rest, divisor), rest)
    return b.sub(quotient, b.zext(correct, _I64))


def _assign(lower: KernelLowering, statement: Any) -> None:
    """Emit the assignment ``statement``: its value, then the write to its variable."""
    name, value = statement.target.name, statement.value
    lower.write(name, _VALUES[type(value).__name__](lower, name, value))


# Keys are names of Numba's IR classes, because numba-cuda has classes of its own.
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
