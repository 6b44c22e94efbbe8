"""Types of the variables of a printed kernel, without inference.

Printed kernels give each variable one type, and their operations have the types that
Numba's inference finds. So one walk over the statements, in the order of the text,
types them all: the first assignment to a variable comes before its uses.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, Final

import numpy as np

from arrayfn.backends.numba.dialect import Dialect, UntypedKernelError
from arrayfn.lowering.scalars.table import ScalarFunction
from arrayfn.records import record

_ARITHMETIC: Final = frozenset((operator.add, operator.sub, operator.mul))
_BITWISE: Final = frozenset((operator.and_, operator.or_, operator.xor))
_INDEX: Final = frozenset(
    (operator.floordiv, operator.mod, operator.lshift, operator.rshift)
)
_COMPARISONS: Final = frozenset(
    (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne)
)


@record(slots=True)
class KernelLoop:
    """A loop of a kernel, as far as the lowering must know it.

    ``iterations`` is the trip count, or None if it is not constant. ``innermost`` says
    that no other loop is inside. ``functions`` are those that the loop calls.
    """

    iterations: int | None = None
    innermost: bool = True
    functions: set[Any] = field(default_factory=set[Any])


@record(slots=True)
class KernelTypes:
    """The types of a kernel's variables, for the lowering.

    Attributes:
        variables: the Numba type of each variable, by name (Numba's ``typemap``).
        signatures: the signature of each operation and store, by its IR node (Numba's
            ``calltypes``).
        functions: the Python function that a variable stands for, by name.
        shared: variables that need stack memory, because which assignment they hold
            depends on the path through the blocks.
        loops: the loops, by the offset of their first block.
        result: the Numba type of the return value.
    """

    variables: dict[str, Any] = field(default_factory=dict[str, Any])
    signatures: dict[Any, Any] = field(default_factory=dict[Any, Any])
    functions: dict[str, Any] = field(default_factory=dict[str, Any])
    shared: set[str] = field(default_factory=set[str])
    loops: dict[int, KernelLoop] = field(default_factory=dict[int, KernelLoop])
    result: Any = None


def kernel_types(
    function: Any, arguments: Sequence[Any], result: Any, dialect: Dialect
) -> KernelTypes:
    """Type the Numba IR of a kernel, or of a function that kernels call.

    ``arguments`` and ``result`` are the Numba types of its parameters and result.
    Raises UntypedKernelError for Python that printed kernels do not have.
    """
    return _Typing(function, tuple(arguments), result, dialect).run()


class _Typing:
    """Assigns types to the variables of one kernel, block by block.

    A variable has the type of its first assignment; an assignment of another type is
    refused.
    """

    def __init__(
        self, function: Any, arguments: tuple[Any, ...], result: Any, d: Dialect
    ) -> None:
        """Begin without types; the arguments are those of ``kernel_types``."""
        self.function, self.arguments, self.dialect = function, arguments, d
        self.result = KernelTypes(result=result)
        # By variable name.
        self.constants: dict[str, int] = {}  # values of constant integers
        self.ranges: dict[str, int | None] = {}  # trip counts of ranges and iterators
        self.defined: dict[str, int] = {}  # the block of the latest assignment
        self.exposed: set[str] = set()  # used in blocks that do not assign them before
        self.repeated: set[str] = set()  # assigned more than once
        self.block = min(function.blocks)  # the offset of the current block
        # By the offset of a block: the functions that it calls, and the blocks that
        # every path to it goes through.
        self.called: dict[int, list[Any]] = {}
        self.dominators = _dominators(function.blocks)
        types: Any = d.types
        self.types, self.signature = types, d.signature
        self.signed = {types.int8, types.int16, types.int32, types.int64}
        # The types of indices into arrays: all integers but uint64.
        self.indices = self.signed | {types.uint8, types.uint16, types.uint32}
        self.integers = self.indices | {types.uint64}
        self.floats = {types.float32, types.float64}

    def run(self) -> KernelTypes:
        """Type all statements, then describe the loops; return the types.

        Raises UntypedKernelError for Python whose types are not known without
        inference.
        """
        ir: Any = self.dialect.ir
        blocks: Mapping[int, Any] = self.function.blocks
        # Numba's lowering looks up the type of parameter x under "arg.x".
        for name, kind in zip(self.function.arg_names, self.arguments, strict=True):
            self.result.variables[f"arg.{name}"] = kind
        latches: dict[int, int] = {}  # by a loop's head: the last block that jumps back
        # A block with only a jump may precede the head of a loop, and be the target of
        # the jumps back (this happens if the head's first instruction has a prefix).
        # ``before`` maps such a block to the block that it jumps to.
        before = {
            offset: block.terminator.target
            for offset, block in blocks.items()
            if len(block.body) == 1 and isinstance(block.terminator, ir.Jump)
        }
        for offset in sorted(blocks):
            self.block, self.called[offset] = offset, []
            for statement in blocks[offset].body:
                self.statement(statement)
            for successor in blocks[offset].terminator.get_targets():
                if successor <= offset:
                    latches[before.get(successor, successor)] = offset
        loops = self.result.loops
        for head, loop in loops.items():
            # A loop's blocks have offsets from its head to its last jump back.
            inside = range(head, latches.get(head, head) + 1)
            loop.innermost = not any(o in inside for o in latches if o != head)
            loop.functions = {f for o in inside for f in self.called.get(o, ())}
        loops |= {o: loops[head] for o, head in before.items() if head in loops}
        # Of several assignments, a read in another block sees the one that ran last.
        self.result.shared |= self.exposed & self.repeated
        return self.result

    def statement(self, statement: Any) -> None:
        """Type a statement of the current block.

        Raises UntypedKernelError for a return of another type than the function's, and
        for kinds of statements that printed kernels do not have.
        """
        ir: Any = self.dialect.ir
        if isinstance(statement, ir.Assign):
            self.assign(statement)
        elif isinstance(statement, ir.SetItem):
            self.store(statement)
        elif isinstance(statement, ir.Branch):
            self.variable(statement.cond)
        elif isinstance(statement, ir.Return):
            if self.variable(statement.value) != self.result.result:
                raise self.unknown(statement)
        elif not isinstance(statement, (ir.Jump, ir.PopBlock)):
            raise self.unknown(statement)

    def unknown(self, node: Any) -> UntypedKernelError:
        """Make the error for an IR node that cannot be typed."""
        return UntypedKernelError(f"line {node.loc.line}: {node}")

    def variable(self, variable: Any) -> Any:
        """Return the type of ``variable``, which is read in the current block.

        Also notes if the variable needs stack memory (``KernelTypes.shared``): it does
        if the block that assigned it last in the text does not dominate the current
        one.
        """
        name = variable.name
        assigned = self.defined.get(name)
        if assigned != self.block:
            self.exposed.add(name)
            if assigned not in self.dominators[self.block]:
                self.result.shared.add(name)
        known = self.result.variables.get(name)
        if known is None:
            raise self.unknown(variable)
        return known

    def assign(self, statement: Any) -> None:
        """Give the variable that ``statement`` assigns the type of its value.

        Also notes what the variable stands for, if that is a range, a function or a
        constant integer that is assigned once. ``defined`` has the block of each
        variable's last assignment, ``repeated`` the variables assigned more than once.
        Raises UntypedKernelError if the variable had another type.
        """
        name, value, ir = statement.target.name, statement.value, self.dialect.ir
        if isinstance(value, ir.Expr):
            kind = self.expression(value, name)
        elif isinstance(value, ir.Var):
            kind = self.variable(value)
            if value.name in self.ranges:
                self.ranges[name] = self.ranges[value.name]
            if value.name in self.result.functions:
                # Numba copies the function's variable if an argument of its call has
                # branches, as in ``f(x if c else y)``.
                self.result.functions[name] = self.result.functions[value.name]
        elif isinstance(value, ir.Const):
            kind = self.constant(value)
        elif isinstance(value, ir.Arg):
            kind = self.arguments[value.index]
        elif isinstance(value, (ir.Global, ir.FreeVar)):
            kind = self.imported(value, name)
        else:
            raise self.unknown(statement)
        is_constant = isinstance(value, (ir.Const, ir.Global, ir.FreeVar))
        if is_constant and isinstance(value.value, int):
            self.constants[name] = value.value
        if name in self.defined:
            self.repeated.add(name)
            self.constants.pop(name, None)
        self.defined[name] = self.block
        known = self.result.variables.setdefault(name, kind)
        if known != kind:
            line = statement.loc.line
            raise UntypedKernelError(f"line {line}: {name} is {kind}, and was {known}")

    def store(self, statement: Any) -> None:
        """Note the signature of the store ``pointer[index] = value``.

        An integer may be stored as another integer, a float as another float.
        """
        pointer = self.variable(statement.target)
        index, value = map(self.variable, (statement.index, statement.value))
        if not isinstance(pointer, self.types.CPointer) or index not in self.indices:
            raise self.unknown(statement)
        element = pointer.dtype
        if not (
            value == element
            or {value, element} <= self.integers
            or {value, element} <= self.floats
        ):
            raise self.unknown(statement)
        signature = self.signature(self.types.none, pointer, self.types.int64, element)
        self.result.signatures[statement] = signature

    def constant(self, node: Any) -> Any:
        """Return the Numba type of a Python constant; a large int is a uint64."""
        match node.value:
            case bool():
                return self.types.boolean
            case int() as number if -(2**63) <= number < 2**64:
                return self.types.int64 if number < 2**63 else self.types.uint64
            case float():
                return self.types.float64
            case None:
                return self.types.none
            case _:
                raise self.unknown(node)

    def imported(self, node: Any, name: str) -> Any:
        """Return the type of the global ``node``, a number or a function.

        A function has no value in the kernel: its type is none, and it is noted that
        the variable ``name`` stands for it.
        """
        value = node.value
        if isinstance(value, np.floating):
            return self.dialect.value_type(f"f{8 * value.itemsize}")
        if isinstance(value, (int, float)):
            return self.constant(node)
        if callable(value):
            self.result.functions[name] = value
            return self.types.none
        raise self.unknown(node)

    def expression(self, node: Any, name: str) -> Any:
        """Return the result type of the operation ``node``, and note its signature.

        The result is assigned to the variable ``name``.
        """
        signature = self.operation(node, name)
        if signature is None:
            raise self.unknown(node)
        self.result.signatures[node] = signature
        return signature.return_type

    def operation(self, node: Any, name: str) -> Any:
        """Return the signature of the operation ``node``, or None if it is unknown.

        The result is assigned to the variable ``name``. For a loop, the trip count of
        its range is noted (``getiter``), and its KernelLoop is made (``iternext``).
        """
        types, signature = self.types, self.signature
        match node.op:
            case "binop":
                return self.binary(node, node.fn)
            case "inplace_binop":
                return self.binary(node, node.immutable_fn)
            case "getitem":
                pointer, index = self.variable(node.value), self.variable(node.index)
                if isinstance(pointer, types.CPointer) and index in self.indices:
                    return signature(pointer.dtype, pointer, types.int64)
            case "call" if not node.kws and node.vararg is None:
                return self.call(node, name)
            case "getiter":
                self.ranges[name] = self.ranges.get(node.value.name)
                if self.variable(node.value) == types.range_state64_type:
                    return signature(types.range_iter64_type, types.range_state64_type)
            case "iternext":
                count = self.ranges.get(node.value.name)
                self.result.loops[self.block] = KernelLoop(count)
                pair = types.Pair(types.int64, types.boolean)
                return signature(pair, self.variable(node.value))
            case "pair_first":
                return signature(types.int64, self.variable(node.value))
            case "pair_second":
                return signature(types.boolean, self.variable(node.value))
            case "cast":
                kind = self.variable(node.value)
                return signature(kind, kind)
            case "unary":
                kind = self.variable(node.value)
                negative = node.fn is operator.neg
                if negative and (kind in self.floats or kind == types.int64):
                    return signature(kind, kind)
                if node.fn is operator.not_ and kind == types.boolean:
                    return signature(kind, kind)
                if node.fn is operator.invert and kind == types.int64:
                    return signature(kind, kind)
            case _:
                pass
        return None

    def binary(self, node: Any, function: Any) -> Any:
        """Return the signature of the infix operation ``node``, or None if unknown.

        ``function`` is its operator. Narrower integers are converted to int64. A
        pointer plus an integer is a pointer.
        """
        types = self.types
        x, y = self.variable(node.lhs), self.variable(node.rhs)
        is_pointer = isinstance(x, types.CPointer)
        if is_pointer and function is operator.add and y in self.indices:
            return self.signature(x, x, types.int64)
        if x in self.signed and y in self.signed:
            x = y = types.int64
        if function in _COMPARISONS:
            if x != y and x in self.indices and y in self.indices:
                x = y = types.int64
            return self.signature(types.boolean, x, y) if x == y else None
        known = x == y and (
            (function in _ARITHMETIC and (x in self.floats or x == types.int64))
            or (function in _BITWISE and x in (types.int64, types.boolean))
            or (function in _INDEX and x == types.int64)
            or (function is operator.truediv and x in self.floats)
        )
        return self.signature(x, x, y) if known else None

    def call(self, node: Any, name: str) -> Any:
        """Return the signature of the call ``node``, or None if it is unknown.

        Its result is assigned to the variable ``name``. The function may be a scalar
        function, ``range`` (whose trip count is noted), ``bool``, a conversion such as
        ``int`` or ``np.float32``, or one of the target's own functions.
        """
        types, signature = self.types, self.signature
        function = self.result.functions.get(node.func.name)
        argument_types = [self.variable(argument) for argument in node.args]
        self.called[self.block].append(function)
        if isinstance(function, ScalarFunction):
            kinds = [self.dialect.value_type(t) for t in function.arguments]
            if len(kinds) != len(argument_types) or not all(
                a == b or {a, b} <= self.signed
                for a, b in zip(argument_types, kinds, strict=True)
            ):
                return None
            return signature(self.dialect.value_type(function.result), *kinds)
        constants = [self.constants.get(argument.name) for argument in node.args]
        if function is range and 1 <= len(argument_types) <= 3:
            # ``constants[2:]`` is the step, if there is one: it must not be 0.
            if not self.signed.issuperset(argument_types) or constants[2:] == [0]:
                return None
            self.ranges[name] = _iterations(constants)
            return signature(
                types.range_state64_type, *(types.int64 for _ in argument_types)
            )
        if function is bool and argument_types == [types.boolean]:
            return signature(types.boolean, types.boolean)
        if function in (int, float) or (
            isinstance(function, type) and issubclass(function, np.number)
        ):
            kind = np.dtype(function)
            numbers = {*self.floats, *self.integers, types.boolean}
            if len(argument_types) == 1 and argument_types[0] in numbers:
                result = self.dialect.value_type(f"{kind.kind}{8 * kind.itemsize}")
                return signature(result, *argument_types)
        return self.dialect.call(function, argument_types, constants)


def _iterations(bounds: Sequence[int | None]) -> int | None:
    """Return the trip count of ``range(*bounds)``; None if a bound is not constant."""
    known = [bound for bound in bounds if bound is not None]
    return len(range(*known)) if len(known) == len(bounds) else None


def _dominators(blocks: Mapping[int, Any]) -> dict[int, set[int]]:
    """Return the offsets of the blocks that dominate each block, by its offset.

    A block is dominated by itself and by the blocks that are on all paths to it. The
    sets begin with all blocks and shrink until nothing changes.
    """
    order = sorted(blocks)
    predecessors: dict[int, list[int]] = {offset: [] for offset in order}
    for offset in order:
        for successor in blocks[offset].terminator.get_targets():
            predecessors[successor].append(offset)
    dominators = {offset: set(order) for offset in order}
    dominators[order[0]] = {order[0]}
    changed = True
    while changed:
        changed = False
        for offset in order[1:]:
            before = (dominators[p] for p in predecessors[offset])
            common = set.intersection(*before) | {offset}
            changed |= common != dominators[offset]
            dominators[offset] = common
    return dominators
