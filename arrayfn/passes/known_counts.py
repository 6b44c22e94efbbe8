"""Finds the trip count of a ``while_loop``, if its Programs and operands determine it.

A carry counts iterations if it begins at a literal, each iteration adds a literal, and
the condition compares it with a literal: ``i = 0; while i < 10: i = i + 3`` has 4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from arrayfn.ir import Atom, Equation, Literal, Program, Var

_MIRRORED: Final = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "ne": "ne"}
"""Each comparison, with the one that holds when the operands are exchanged."""


def known_trip_count(
    condition: Program,
    body: Program,
    cond_consts: Sequence[Atom],
    body_consts: Sequence[Atom],
    carry: Sequence[Atom],
) -> int | None:
    """Return the trip count of a while_loop; None if it is not known.

    It is not known if the counter would overflow before the loop ends. ``condition``
    takes ``cond_consts`` and the carry, ``body`` takes ``body_consts`` and the carry.
    These are the operands of the loop; ``carry`` has the initial values.
    """
    comparison = _binary_definition(condition, condition.outputs[0])
    if comparison is None or comparison.primitive.name not in _MIRRORED:
        return None
    name, (left, right) = comparison.primitive.name, comparison.inputs
    literals = _literals(condition, cond_consts)
    limit = _integer(right, literals)
    if limit is None:  # 10 > i is i < 10
        name, left, limit = _MIRRORED[name], right, _integer(left, literals)
    counters = condition.inputs[len(cond_consts) :]
    if limit is None or left not in counters:
        return None
    number = counters.index(left)
    start = _integer(carry[number], {})
    step = _step(body, body_consts, number)
    if start is None or step is None:
        return None
    count = _COUNTS[name](start, step, limit)
    if count is None:
        return None
    range_of = np.iinfo(carry[number].type.dtype)
    return count if range_of.min <= start + count * step <= range_of.max else None


def _step(body: Program, consts: Sequence[Atom], number: int) -> int | None:
    """Return what each iteration adds to carry ``number``; None if that is unknown.

    ``consts`` are the operands of the first inputs of ``body``.
    """
    value = body.inputs[len(consts) + number]
    addition = _binary_definition(body, body.outputs[number])
    if addition is None or addition.primitive.name not in ("add", "sub"):
        return None
    literals = _literals(body, consts)
    left, right = addition.inputs
    if left is value:
        step = _integer(right, literals)
        is_less = addition.primitive.name == "sub"
        return -step if step is not None and is_less else step
    is_sum = right is value and addition.primitive.name == "add"
    return _integer(left, literals) if is_sum else None


def _binary_definition(program: Program, atom: Atom) -> Equation | None:
    """Return the equation of two operands that makes ``atom``, or None."""
    for equation in program.equations:
        if atom in equation.outputs and len(equation.inputs) == 2:
            return equation
    return None


def _literals(program: Program, consts: Sequence[Atom]) -> dict[Var, Literal]:
    """Map the inputs of ``program`` whose operands are literals to these literals.

    ``consts`` are the operands of the first inputs.
    """
    pairs = zip(program.inputs, consts, strict=False)
    return {var: atom for var, atom in pairs if isinstance(atom, Literal)}


def _integer(atom: Atom, literals: Mapping[Var, Literal]) -> int | None:
    """Return the value of ``atom`` if it is a known integer, else None."""
    literal = literals.get(atom) if isinstance(atom, Var) else atom
    if literal is None or literal.type.dtype.kind not in "iu":
        return None
    return int(literal.value) if isinstance(literal.value, int) else None


def _count_below(start: int, step: int, limit: int) -> int | None:
    """Return the trip count of a loop that runs while its counter is below ``limit``.

    The counter begins at ``start`` and grows by ``step``; None if it never ends.
    """
    if start >= limit:
        return 0
    return -(-(limit - start) // step) if step > 0 else None  # rounded up


def _count_until_equal(start: int, step: int, limit: int) -> int | None:
    """Return the trip count of a loop that runs until its counter is ``limit``.

    The counter begins at ``start`` and grows by ``step``; None if it never ends.
    """
    if start == limit:
        return 0
    count, remainder = divmod(limit - start, step) if step else (-1, 0)
    return count if count > 0 and not remainder else None


_COUNTS: Final[Mapping[str, Callable[[int, int, int], int | None]]] = {
    "lt": _count_below,
    "le": lambda start, step, limit: _count_below(start, step, limit + 1),
    "gt": lambda start, step, limit: _count_below(-start, -step, -limit),
    "ge": lambda start, step, limit: _count_below(-start, -step, 1 - limit),
    "ne": _count_until_equal,
}
