"""The trip count of a ``while_loop``, if its Programs and operands determine it.

A carry counts iterations if it begins at a literal, each iteration adds a literal, and
the condition compares it with a literal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from arrayfn.ir import Atom, Equation, Literal, Program, Var

_MIRRORED: Final = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "ne": "ne"}
"""Comparisons, and the comparison with the operands exchanged."""


def known_trip_count(
    condition: Program,
    body: Program,
    cond_consts: Sequence[Atom],
    body_consts: Sequence[Atom],
    carry: Sequence[Atom],
) -> int | None:
    """The trip count of the loop; None if it is not known.

    It is not known if the counter would overflow before the loop ends.
    """
    test = _made_by(condition, condition.outputs[0])
    if test is None or test.primitive.name not in _MIRRORED:
        return None
    name, (left, right) = test.primitive.name, test.inputs
    known = _literals(condition, cond_consts)
    limit = _integer(right, known)
    if limit is None:
        name, left, limit = _MIRRORED[name], right, _integer(left, known)
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
    """What an iteration adds to carry ``number``."""
    value = body.inputs[len(consts) + number]
    added = _made_by(body, body.outputs[number])
    if added is None or added.primitive.name not in ("add", "sub"):
        return None
    known = _literals(body, consts)
    left, right = added.inputs
    if left is value:
        step = _integer(right, known)
        is_less = added.primitive.name == "sub"
        return -step if step is not None and is_less else step
    is_sum = right is value and added.primitive.name == "add"
    return _integer(left, known) if is_sum else None


def _made_by(program: Program, atom: Atom) -> Equation | None:
    """The equation of two operands that makes ``atom``."""
    for equation in program.equations:
        if equation.outputs[0] is atom and len(equation.inputs) == 2:
            return equation
    return None


def _literals(program: Program, consts: Sequence[Atom]) -> dict[Var, Literal]:
    pairs = zip(program.inputs, consts, strict=False)
    return {var: atom for var, atom in pairs if isinstance(atom, Literal)}


def _integer(atom: Atom, known: Mapping[Var, Literal]) -> int | None:
    """The integer that ``atom`` is, if it is one."""
    literal = known.get(atom) if isinstance(atom, Var) else atom
    if literal is None or literal.type.dtype.kind not in "iu":
        return None
    return int(literal.value) if isinstance(literal.value, int) else None


def _below(start: int, step: int, limit: int) -> int | None:
    """Iterations while the counter is less than ``limit``."""
    if start >= limit:
        return 0
    return -(-(limit - start) // step) if step > 0 else None


def _unlike(start: int, step: int, limit: int) -> int | None:
    """Iterations while the counter is not ``limit``."""
    if start == limit:
        return 0
    count, rest = divmod(limit - start, step) if step else (-1, 0)
    return count if count > 0 and not rest else None


_COUNTS: Final[Mapping[str, Callable[[int, int, int], int | None]]] = {
    "lt": _below,
    "le": lambda start, step, limit: _below(start, step, limit + 1),
    "gt": lambda start, step, limit: _below(-start, -step, -limit),
    "ge": lambda start, step, limit: _below(-start, -step, 1 - limit),
    "ne": _unlike,
}
