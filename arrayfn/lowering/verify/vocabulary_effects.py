"""The effects of CUDA device functions: memory accesses, barriers, thread indices."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace
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
    Truth,
    Value,
)
from arrayfn.records import frozen

if TYPE_CHECKING:
    from arrayfn.lowering.verify.interpreter import Interpreter


@frozen
class Call:
    """The call ``node`` of a device function; ``state`` is the state before it."""

    interpreter: Interpreter
    function: DeviceFunction
    node: ast.Call
    state: State

    def value(self, k: int) -> Value:
        """Evaluate argument ``k``, and record its accesses."""
        return self.interpreter.evaluate(self.node.args[k], self.state)

    def number(self, k: int) -> Number:
        """Evaluate argument ``k`` as an integer."""
        return self.interpreter.number(self.node.args[k], self.state)

    def truth(self, k: int) -> Truth:
        """Evaluate argument ``k`` as a condition."""
        return self.interpreter.truth(self.node.args[k], self.state)

    def record(self, text: str) -> None:
        """Record an access that ``text`` describes, such as ``"0 load 4 aligned"``.

        The words are: the number of the array argument, which the index argument
        follows; the kind of access; the number of elements; and optionally that the
        index must be a multiple of this number.
        """
        k, kind, width, *aligned = text.split()
        assert kind in ("load", "store", "add")
        self.interpreter.record(
            self.value(int(k)),
            self.number(int(k) + 1),
            kind,  # type: ignore[arg-type]
            self.state,
            self.node.lineno,
            int(width),
            aligned=bool(aligned),
        )


Effect = Callable[[Call], Value]


def _accesses(*texts: str) -> Effect:
    """Make an effect that records accesses.

    ``texts`` are descriptions for ``Call.record``, in which ``n`` stands for the
    function's vector width and ``nn`` for its square.
    """

    def effect(c: Call) -> Value:
        """Record the accesses of a call; the result is Data."""
        n = c.function.lanes
        for text in texts:
            c.record(text.replace("nn", str(n * n)).replace("n", str(n)))
        return Data()

    return effect


def _array_of_block_or_thread(c: Call) -> Value:
    """Return a new array in shared memory or registers, of the last argument's size."""
    name = f"{c.function.name} of line {c.node.lineno}"
    return Memory(name, c.function.dtype, Number(0), c.number(-1))


def _cp_async(c: Call) -> Value:
    """Record ``cp_async(array, at, shared, place, live)``.

    It writes to shared memory in any case: the elements of ``array`` if ``live`` holds,
    else zeros.
    """
    c.record(f"2 store {c.function.lanes}")
    yes, _ = c.state.split(c.truth(4))
    for part in yes:
        replace(c, state=part).record(f"0 load {c.function.lanes} aligned")
    return Data()


def _bulk_copy(c: Call) -> Value:
    """Record ``bulk_copy(array, at, shared, shared_at, count, mbarriers, k)``."""
    source, target = ((c.value(k), c.number(k + 1)) for k in (0, 2))
    c.interpreter.copy_elements(source, target, c.number(4), c.node.lineno, c.state)
    return Data()


def _subarray(c: Call) -> Value:
    """Return the memory of argument 0 from the index on that argument 1 gives."""
    memory = c.value(0)
    if not isinstance(memory, Memory):
        return Data()
    return replace(memory, start=memory.start.plus(c.number(1)))


def _barrier(c: Call) -> Value:
    """Record a barrier of the threads of a block."""
    c.interpreter.barrier(c.node.lineno, c.state)
    return Data()


def _shuffle(c: Call) -> Value:
    """Return the value of another lane of the warp.

    It is an unknown number with the bounds of this lane's value.
    """
    value = c.value(0)
    if isinstance(value, Number):
        return c.state.unknown(*c.state.extremes(value))
    return value


EFFECTS: Final[dict[str, Effect]] = {
    "block_index": lambda c: c.state.variables[BLOCK],
    "thread_index": lambda c: c.state.variables[THREAD],
    # A permutation of the block indices: which one does not matter.
    "dynamic_block_id": lambda c: c.state.variables[BLOCK],
    "quotient": lambda c: divided(c.number(0), c.number(1), c.state, quotient=True),
    "remainder": lambda c: divided(c.number(0), c.number(1), c.state, quotient=False),
    **dict.fromkeys(
        ("shared", "registers", "dynamic_shared"), _array_of_block_or_thread
    ),
    "mbarriers": lambda c: Data(),
    "load": _accesses("0 load n aligned", "2 store n"),
    "store": _accesses("0 store n aligned", "2 load n"),
    "widen": _accesses("0 load n", "2 store n"),
    "transpose": _accesses("0 load nn", "0 store nn"),
    **dict.fromkeys(("max", "min"), _accesses("0 load n")),
    "atomic_add": _accesses("0 add 1"),
    "cp_async": _cp_async,
    "bulk_copy": _bulk_copy,
    "subarray": _subarray,
    **dict.fromkeys(("barrier", "grid_barrier"), _barrier),
    "next_work_item": lambda c: c.state.unknown(0, FAR),
    "opaque": lambda c: c.value(0),
    **dict.fromkeys(("shuffle_xor", "shuffle_up", "shuffle_from"), _shuffle),
}
"""The effect of a device function, by its kind. Others access no global memory."""
