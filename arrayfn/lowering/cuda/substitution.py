"""Triangular systems with few sides by kernels: block by block, without copies.

First the blocks on the diagonal are inverted, all at a time. Then each step multiplies
the sides of one block by its inverse, and takes what that comes to from the sides of
the blocks below: every block of threads does the product again for its own, which is
less work than to wait for another. Matrices and sides are read as they lie, upper
triangles from their last row on. (Higham, Accuracy and Stability of Numerical
Algorithms, 8.4: inverses of diagonal blocks are as stable as substitution.)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

from arrayfn import dtypes
from arrayfn.dtypes import DType, short_name
from arrayfn.ir import ArrayType, Var
from arrayfn.lowering.cuda.matrix_nests import Strided
from arrayfn.lowering.cuda.written import Written, WrittenCall
from arrayfn.lowering.libraries.calls import Place

MOST_SIDES: Final = 32
LEAST_ROWS: Final = 1024
MOST_ROWS: Final = 4096
"""Systems with fewer rows or with more are faster by cuBLAS: few steps, or many."""
_ROWS: Final = {dtypes.float32: 64, dtypes.float64: 32}
"""Of a block: two of them fit into the shared memory of a block of threads."""
_SIDES: Final = 8
_TERMS: Final = 8  # of a sum that is computed while others are read
_GROUPS: Final = 4
"""Threads that have a row of a block, each with some of the sides."""


def is_substituted(dtype: DType, n: int, sides: int) -> bool:
    """Whether these kernels solve systems of ``n`` rows with so many ``sides``."""
    return dtype in _ROWS and LEAST_ROWS <= n <= MOST_ROWS and sides <= MOST_SIDES


def substituted(
    matrix: Strided, answers: Strided, b: Var, n: int, sides: int, *, unit: bool
) -> Iterable[WrittenCall]:
    """``b``, which ``answers`` are the places [matrix, row, side] of, becomes x.

    The ``matrix`` is a lower triangle. Strides of both may be negative.
    """
    dtype = b.type.dtype
    size = _ROWS[dtype]
    matrices = math.prod(b.type.shape[:-2])
    blocks, parts = -(-n // size), -(-sides // _SIDES)
    inverses = Var(ArrayType((matrices * blocks, size, size), dtype))
    rest = Var(ArrayType((matrices, blocks * size, parts * _SIDES), dtype))
    _, down, across = matrix.strides
    _, row, side = answers.strides
    integers = {
        "n": n,
        "sides": sides,
        "blocks": blocks,
        "parts": parts,
        "begin": matrix.offset,
        "down": down,
        "across": across,
        "begin_sides": answers.offset,
        "down_sides": row,
        "across_sides": side,
    }
    short = short_name(dtype)
    # Neighbouring threads read neighbouring elements.
    by_rows = abs(across) == 1
    names = ("a", "b", "inverses", "rest")
    yield WrittenCall(
        Written(
            "triangles",
            "\n".join(_inversion(short, size, by_rows, unit)),
            names,
            tuple(integers),
            size,
            "Inverts the blocks on the diagonal, and copies their sides.",
            "a triangular system, block by block",
        ),
        (Place(matrix.array), Place(b)),
        (Place(inverses), Place(rest)),
        list(integers.values()),
        matrices * blocks,
    )
    text = Written(
        "triangles",
        "\n".join(_step(short, size, by_rows)),
        ("a", "inverses", "rest", "b"),
        (*integers, "step"),
        size * _GROUPS,
        "Solves the block ``step``, and takes it from the sides below.",
        "a triangular system, block by block",
    )
    for step in range(blocks):
        yield WrittenCall(
            text,
            (Place(matrix.array), Place(inverses)),
            (Place(rest), Place(b)),
            [*integers.values(), step],
            matrices * (blocks - step) * parts,
        )


def _inversion(short: str, size: int, by_rows: bool, unit: bool) -> Sequence[str]:
    pitch = size + 1
    i, j = ("part", "thread") if by_rows else ("thread", "part")
    inside = "j < i" if unit else "j <= i"
    return [
        "thread = thread_index()",
        "k = remainder(block_index(), blocks)",
        "matrix = quotient(block_index(), blocks)",
        f"first = k * {size}",
        f"own = shared_{short}({size * pitch})",
        f"inverse = shared_{short}({size * pitch})",
        "at = matrix * n * n + begin + first * (down + across)",
        f"for part in range({size}):",
        f"    i = {i}",
        f"    j = {j}",
        f"    value = {short}(0)",
        "    if i == j:",
        f"        value = {short}(1)",
        f"    if ({inside}) and (first + i < n):",
        "        value = a[at + i * down + j * across]",
        f"    own[i * {pitch} + j] = value",
        f"    inverse[part * {pitch} + thread] = {short}(0)",
        "barrier()",
        f"for i in range({size}):",
        f"    total = {short}(0)",
        f"    other = {short}(0)",
        "    if i == thread:",
        f"        total = {short}(1)",
        # What is not computed yet is 0.
        f"    for part in range(quotient(i + {_TERMS - 1}, {_TERMS})):",
        f"        for pair in unrolled({_TERMS // 2}):",
        f"            j = part * {_TERMS} + pair * 2",
        f"            term = neg_{short}(own[i * {pitch} + j])",
        f"            total = fma_{short}(term, inverse[j * {pitch} + thread], total)",
        "            j = j + 1",
        f"            term = neg_{short}(own[i * {pitch} + j])",
        f"            other = fma_{short}(term, inverse[j * {pitch} + thread], other)",
        "    total = total + other",
        f"    inverse[i * {pitch} + thread] = total / own[i * {pitch} + i]",
        f"    inverses[(block_index() * {size} + i) * {size} + thread] = (",
        f"        inverse[i * {pitch} + thread]",
        "    )",
        f"wide = parts * {_SIDES}",
        "sides_at = matrix * n * sides + begin_sides",
        "for side in range(wide):",
        f"    value = {short}(0)",
        "    if (side < sides) and (first + thread < n):",
        "        row = (first + thread) * down_sides",
        "        value = b[sides_at + row + side * across_sides]",
        f"    rest[(block_index() * {size} + thread) * wide + side] = value",
    ]


def _step(short: str, size: int, by_rows: bool) -> Sequence[str]:
    pitch, threads = size + 1, size * _GROUPS
    each = _SIDES // _GROUPS
    i, j = ("high", "low") if by_rows else ("low", "high")
    turns = size * size // threads

    def product(factor: str, sides: str, sums: str) -> list[str]:
        """Sums of a row of a block with the thread's columns of sides."""
        lines = [f"for j in range({size}):", f"    x = {factor}"]
        for k in range(each):
            place = f"{sides}[j * {_SIDES} + group * {each} + {k}]"
            lines.append(f"    {sums}{k} = fma_{short}(x, {place}, {sums}{k})")
        return lines

    less = f"neg_{short}(below[row * {pitch} + j])"
    own = [f"(group * {each} + {k})" for k in range(each)]
    return [
        "thread = thread_index()",
        f"row = remainder(thread, {size})",
        f"group = quotient(thread, {size})",
        "part = remainder(block_index(), parts)",
        "ahead = remainder(quotient(block_index(), parts), blocks - step)",
        "matrix = quotient(quotient(block_index(), parts), blocks - step)",
        f"inverse = shared_{short}({size * pitch})",
        f"below = shared_{short}({size * pitch})",
        f"given = shared_{short}({size * _SIDES})",
        f"solved = shared_{short}({size * _SIDES})",
        f"wide = parts * {_SIDES}",
        f"inverse_at = (matrix * blocks + step) * {size * size}",
        f"line = (step + ahead) * {size}",
        f"at = matrix * n * n + begin + line * down + step * {size} * across",
        f"for turn in range({turns}):",
        f"    place = turn * {threads} + thread",
        f"    high = quotient(place, {size})",
        f"    low = remainder(place, {size})",
        f"    inverse[high * {pitch} + low] = inverses[inverse_at + place]",
        f"    i = {i}",
        f"    j = {j}",
        "    if (ahead > 0) and (line + i < n):",
        f"        below[i * {pitch} + j] = a[at + i * down + j * across]",
        f"own_at = (matrix * blocks + step) * {size} + row",
        f"rest_at = own_at * wide + part * {_SIDES}",
        *(f"given[row * {_SIDES} + {side}] = rest[rest_at + {side}]" for side in own),
        f"rest_at = (own_at + ahead * {size}) * wide + part * {_SIDES}",
        *(f"y{k} = rest[rest_at + {side}]" for k, side in enumerate(own)),
        "barrier()",
        *(f"x{k} = {short}(0)" for k in range(each)),
        *product(f"inverse[row * {pitch} + j]", "given", "x"),
        *(f"solved[row * {_SIDES} + {side}] = x{k}" for k, side in enumerate(own)),
        "barrier()",
        "sides_at = matrix * n * sides + begin_sides + (line + row) * down_sides",
        "if (ahead > 0) and (line + row < n):",
        *("    " + line for line in product(less, "solved", "y")),
        *(f"    rest[rest_at + {side}] = y{k}" for k, side in enumerate(own)),
        "if (ahead == 0) and (line + row < n):",
        *(
            text
            for k, side in enumerate(own)
            for text in (
                f"    side{k} = part * {_SIDES} + {side}",
                f"    if side{k} < sides:",
                f"        b[sides_at + side{k} * across_sides] = x{k}",
            )
        ),
    ]
