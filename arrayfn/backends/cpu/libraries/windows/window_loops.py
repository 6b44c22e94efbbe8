"""Windows copied side by side: the loops, compiled with all optimisations."""

from __future__ import annotations

from typing import Annotated, Final

from arrayfn.backends.native import CFunction, cast, native
from arrayfn.backends.native.structures import Array, Inline, Struct, i32

LOOPS_OVER_DATA: Final = True
memcpy = CFunction[[int, int, int], int]("memcpy")


class Dimension(Struct):
    """How many indices an axis of windows has, and how many elements lie between."""

    extent: int
    step: int


class Windows(Struct):
    """A batch of matrices of windows: the axes of rows and columns, outermost first."""

    problem: Inline[Dimension]
    rows: Annotated[Array[Dimension], 4]
    columns: Annotated[Array[Dimension], 4]


@native
def copy_windows(
    x: int, target: int, first: int, last: int, windows: Windows, size: int
) -> None:
    """Rows ``first`` to ``last`` of a matrix; ``size`` is that of an element."""
    rows = windows.rows
    columns = windows.columns
    s0 = columns[0].step * size
    s1 = columns[1].step * size
    s2 = columns[2].step * size
    run = columns[3].extent
    step = columns[3].step
    place = target
    for row in range(first, last):
        rest = row // rows[3].extent
        at = x + row % rows[3].extent * rows[3].step * size
        at += rest % rows[2].extent * rows[2].step * size
        rest = rest // rows[2].extent
        at += rest % rows[1].extent * rows[1].step * size
        at += rest // rows[1].extent * rows[0].step * size
        for c0 in range(columns[0].extent):
            for c1 in range(columns[1].extent):
                for c2 in range(columns[2].extent):
                    source = at + c0 * s0 + c1 * s1 + c2 * s2
                    if step == 1:
                        copy_run(source, place, run * size)
                    else:
                        spread_run(source, place, run, step * size, size)
                    place += run * size


@native
def copy_run(source: int, target: int, count: int) -> None:
    """``count`` bytes, a multiple of 4."""
    if count > 64:
        memcpy(target, source, count)
        return
    words = cast(Array[int], source)
    copies = cast(Array[int], target)
    for k in range(count // 8):
        copies[k] = words[k]
    if count % 8:
        cast(Array[i32], target)[count // 4 - 1] = cast(Array[i32], source)[
            count // 4 - 1
        ]


@native
def spread_run(source: int, target: int, run: int, step: int, size: int) -> None:
    """Elements that are ``step`` bytes apart."""
    if size == 4:
        narrow = cast(Array[i32], target)
        for k in range(run):
            narrow[k] = cast(Array[i32], source + k * step)[0]
    else:
        wide = cast(Array[int], target)
        words = size // 8
        for k in range(run):
            element = cast(Array[int], source + k * step)
            for word in range(words):
                wide[k * words + word] = element[word]
