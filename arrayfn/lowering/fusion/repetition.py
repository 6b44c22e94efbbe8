"""Where an unrolled loop is cut, so that its pieces are equal kernels.

A loop of the user's Python code is traced iteration by iteration: its elementwise
equations repeat with a period. A group that takes as many of them as fit ends in the
middle of an iteration, the next one in the middle of another, and each is a kernel to
compile. Pieces of whole iterations are one kernel, which is called for each of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from arrayfn.ir import Atom, Equation, Program, Var
from arrayfn.passes.reads import affine_view
from arrayfn.primitives.base import Convert, Scalar, primitive_of

PIECE_COST: Final = 256
"""What a piece costs at most, in additions an element, if it is several iterations.

Then loading and storing what pieces pass on costs little beside computing it, and LLVM
takes 0.2 to 0.4 s for a piece, where it takes 1.4 s for 160 sines and tangents.
"""


def piece_starts(program: Program, most: int) -> frozenset[Equation]:
    """Return the equations at which unrolled loops are cut into pieces.

    A piece has at most ``most`` statements (equations that are not views). Loops of
    fewer than two such pieces, and those of longer iterations, are not cut.
    """
    equations = program.equations
    starts: set[Equation] = set()
    for begin, end, period in _repetitions(_numbered(equations, most), most):
        costs = [_cost(eq) for eq in equations[begin : begin + period]]
        statements = sum(cost > 0 for cost in costs)
        if statements:
            # A piece begins every ``times`` iterations of ``period`` equations.
            times = min(PIECE_COST // sum(costs), most // statements)
            starts.update(equations[begin : end : max(times, 1) * period])
    return frozenset(starts)


def _cost(equation: Equation) -> int:
    """Return the cost of ``equation`` per element; views cost nothing."""
    primitive = primitive_of(equation)
    if isinstance(primitive.kernel, Scalar):
        return primitive.kernel.cost
    return int(isinstance(primitive.kernel, Convert))


def _numbered(equations: Sequence[Equation], reach: int) -> list[int]:
    """Number ``equations`` so that equal statements have equal numbers.

    Such equations have equal primitives and params. Operands made up to ``reach``
    equations before are compared by their distance, others by their types. An equation
    that is not elementwise has a number of its own.
    """
    numbers: dict[Any, int] = {}
    made_at: dict[Atom, int] = {}
    numbered: list[int] = []
    for position, equation in enumerate(equations):
        key: Any = position
        is_elementwise = _cost(equation) or affine_view(equation) is not None
        if is_elementwise:
            operands: list[Any] = []
            for atom in equation.inputs:
                distance = position - made_at.get(atom, -reach - 1)
                is_recent = isinstance(atom, Var) and distance <= reach
                operands.append(
                    distance if is_recent else (atom.type.shape, atom.type.dtype)
                )
            params = repr(sorted(equation.params.items())) if equation.params else ""
            key = (equation.primitive.name, params, *operands)
        numbered.append(numbers.setdefault(key, len(numbers)))
        made_at.update(dict.fromkeys(equation.outputs, position))
    return numbered


def _repetitions(numbers: Sequence[int], most: int) -> Iterator[tuple[int, int, int]]:
    """Yield ``(begin, end, period)`` of each repetition in a sequence.

    Only repetitions of at least ``2 * most`` numbers, with periods up to ``most``, are
    found.
    """
    done = 0
    while done + 2 * most <= len(numbers):
        end = done + 2 * most
        length, period = _repeating_end(numbers[done:end], most)
        begin = end - length
        if length < most:
            done += most
            continue
        while end < len(numbers) and numbers[end] == numbers[end - period]:
            end += 1
        if end - begin >= 2 * most:
            yield begin, end, period
        done = end


def _repeating_end(numbers: Sequence[int], most: int) -> tuple[int, int]:
    """Return how many of the last ``numbers`` repeat, and the period: at most ``most``.

    By the failure function of Knuth, Morris and Pratt, Fast Pattern Matching in Strings
    (1977), of the numbers read backwards.

    >>> _repeating_end([9, 8, 1, 2, 7, 1, 2, 7], 4)
    (6, 3)
    >>> _repeating_end([1, 2, 3], 1)
    (0, 0)
    >>> _repeating_end([1, 2, 3, 4, 5, 1, 2], 5)  # not twice
    (0, 0)
    """
    backwards = numbers[::-1]
    border = 0
    borders = [0]
    longest = (0, 0)
    for length, number in enumerate(backwards[1:], 2):
        while border and number != backwards[border]:
            border = borders[border - 1]
        border += number == backwards[border]
        borders.append(border)
        period = length - border
        if period <= most and 2 * period <= length:
            longest = (length, period)
    return longest
