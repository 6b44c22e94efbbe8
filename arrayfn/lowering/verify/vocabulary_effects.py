"""The effects of CUDA device functions: memory accesses, barriers, thread indices."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from arrayfn.lowering.cuda.vocabulary import DeviceFunction
from arrayfn.lowering.verify.integers import divided
from arrayfn.lowering.verify.numbers import (
    BLOCK,
    FAR,
    THREAD,
    Data,
    Memory,
    Number,
    State,
    Value,
)

if TYPE_CHECKING:
    from arrayfn.lowering.verify.interpreter import Interpreter

Action = Callable[["Interpreter", DeviceFunction, ast.Call, State], Value]


def _variable(name: str) -> Action:
    def action(
        interpreter: Interpreter, word: DeviceFunction, node: ast.Call, state: State
    ) -> Value:
        return state.variables[name]

    return action


def _dynamic_block_id(
    interpreter: Interpreter, word: DeviceFunction, node: ast.Call, state: State
) -> Value:
    # A permutation of the block indices: which one does not matter.
    return state.variables[BLOCK]


def _division(*, quotient: bool) -> Action:
    def action(
        interpreter: Interpreter, word: DeviceFunction, node: ast.Call, state: State
    ) -> Value:
        x, y = (interpreter.number(a, state) for a in node.args)
        return divided(x, y, state, quotient=quotient)

    return action


def _own(
    interpreter: Interpreter, word: DeviceFunction, node: ast.Call, state: State
) -> Value:
    size = interpreter.number(node.args[-1], state)
    return Memory(f"{word.name} of line {node.lineno}", word.dtype, Number(0), size)


def _mbarriers(
    interpreter: Interpreter, word: DeviceFunction, node: ast.Call, state: State
) -> Value:
    return Data()


def _touches(
    interpreter: Interpreter, node: ast.Call, state: State, *where: str
) -> None:
    """Note accesses: each ``where`` says which argument, load or store, and how wide.

    As in ``"0 load 4"``; with a fourth word the place is to be aligned.
    """
    for text in where:
        number, kind, width, *aligned = text.split()
        memory = interpreter.evaluate(node.args[int(number)], state)
        at = interpreter.number(node.args[int(number) + 1], state)
        assert kind in ("load", "store", "add")
        interpreter.touch(
            memory,
            at,
            kind,  # type: ignore[arg-type]
            state,
            node.lineno,
            int(width),
            aligned=bool(aligned),
        )


def _vector(*where: str) -> Action:
    def action(
        interpreter: Interpreter, word: DeviceFunction, node: ast.Call, state: State
    ) -> Value:
        n = word.lanes
        places = (w.replace("nn", str(n * n)).replace("n", str(n)) for w in where)
        _touches(interpreter, node, state, *places)
        return Data()

    return action


def _copy(
    interpreter: Interpreter, word: DeviceFunction, node: ast.Call, state: State
) -> Value:
    """A copy into shared memory, if its last argument holds."""
    _touches(interpreter, node, state, f"2 store {word.lanes}")
    yes, _ = state.parted(interpreter.truth(node.args[4], state))
    for part in yes:
        _touches(interpreter, node, part, f"0 load {word.lanes} aligned")
    return Data()


def _bulk_copy(
    interpreter: Interpreter, word: DeviceFunction, node: ast.Call, state: State
) -> Value:
    """``bulk_copy(array, at, shared, place, count, mbarriers, k)``."""
    source, target = (
        (
            interpreter.evaluate(node.args[k], state),
            interpreter.number(node.args[k + 1], state),
        )
        for k in (0, 2)
    )
    count = interpreter.number(node.args[4], state)
    interpreter.move(source, target, count, node.lineno, state)
    return Data()


def _subarray(
    interpreter: Interpreter, word: DeviceFunction, node: ast.Call, state: State
) -> Value:
    memory = interpreter.evaluate(node.args[0], state)
    at = interpreter.number(node.args[1], state)
    if not isinstance(memory, Memory):
        return Data()
    return Memory(memory.name, memory.kind, memory.start.plus(at), memory.size)


def _barrier(
    interpreter: Interpreter, word: DeviceFunction, node: ast.Call, state: State
) -> Value:
    interpreter.meet(node.lineno, state)
    return Data()


def _next_work_item(
    interpreter: Interpreter, word: DeviceFunction, node: ast.Call, state: State
) -> Value:
    return state.unknown(0, FAR)


def _opaque(
    interpreter: Interpreter, word: DeviceFunction, node: ast.Call, state: State
) -> Value:
    return interpreter.evaluate(node.args[0], state)


def _same_range(
    interpreter: Interpreter, word: DeviceFunction, node: ast.Call, state: State
) -> Value:
    """Another lane's value."""
    value = interpreter.evaluate(node.args[0], state)
    if isinstance(value, Number):
        return state.unknown(*state.extremes(value))
    return value


EFFECTS: Final[dict[str, Action]] = {
    "block_index": _variable(BLOCK),
    "thread_index": _variable(THREAD),
    "quotient": _division(quotient=True),
    "remainder": _division(quotient=False),
    "shared": _own,
    "registers": _own,
    "dynamic_shared": _own,
    "mbarriers": _mbarriers,
    "load": _vector("0 load n aligned", "2 store n"),
    "store": _vector("0 store n aligned", "2 load n"),
    "widen": _vector("0 load n", "2 store n"),
    "transpose": _vector("0 load nn", "0 store nn"),
    "max": _vector("0 load n"),
    "min": _vector("0 load n"),
    "atomic_add": _vector("0 add 1"),
    "cp_async": _copy,
    "bulk_copy": _bulk_copy,
    "subarray": _subarray,
    "barrier": _barrier,
    "grid_barrier": _barrier,
    "dynamic_block_id": _dynamic_block_id,
    "next_work_item": _next_work_item,
    "opaque": _opaque,
    "shuffle_xor": _same_range,
    "shuffle_up": _same_range,
    "shuffle_from": _same_range,
}
"""What a device function does, by its kind. Others access no global memory."""
