"""Windows copied side by side: the loops, compiled with all optimisations."""

from __future__ import annotations

from typing import Annotated, Final

from arrayfn.backends.native import CFunction, cast, native
from arrayfn.backends.native.structures import Array, Inline, Struct, i32

LOOPS_OVER_DATA: Final = True
memcpy = CFunction[[int, int, int], int]("memcpy")


class Dimension(Struct):
    """An axis of windows: its extent, and its stride in elements."""

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
    """Copy rows ``first`` to ``last`` of a matrix; elements have ``size`` bytes."""
    # Read once: as far as the compiler knows, what is written may be these.
    n1 = windows.rows[1].extent
    n2 = windows.rows[2].extent
    n3 = windows.rows[3].extent
    r0 = windows.rows[0].step * size
    r1 = windows.rows[1].step * size
    r2 = windows.rows[2].step * size
    r3 = windows.rows[3].step * size
    e0 = windows.columns[0].extent
    e1 = windows.columns[1].extent
    e2 = windows.columns[2].extent
    run = windows.columns[3].extent
    s0 = windows.columns[0].step * size
    s1 = windows.columns[1].step * size
    s2 = windows.columns[2].step * size
    step = windows.columns[3].step
    output = target
    for row in range(first, last):
        rest = row // n3
        at = x + row % n3 * r3
        at += rest % n2 * r2
        rest = rest // n2
        at += rest % n1 * r1
        at += rest // n1 * r0
        for c0 in range(e0):
            for c1 in range(e1):
                for c2 in range(e2):
                    source = at + c0 * s0 + c1 * s1 + c2 * s2
                    if step == 1:
                        copy_run(source, output, run * size)
                    else:
                        spread_run(source, output, run, step * size, size)
                    output += run * size


@native
def copy_run(source: int, target: int, count: int) -> None:
    """Copy ``count`` bytes, a multiple of 4."""
    if count > 64:
        memcpy(target, source, count)
        return
    # Addresses, not indices: the loop is too short to be made a loop of vectors.
    offset = 0
    while offset + 8 <= count:
        cast(Array[int], target + offset)[0] = cast(Array[int], source + offset)[0]
        offset += 8
    if offset < count:
        cast(Array[i32], target + offset)[0] = cast(Array[i32], source + offset)[0]


@native
def spread_run(source: int, target: int, run: int, step: int, size: int) -> None:
    """Copy ``run`` elements, which are ``step`` bytes apart in ``source``."""
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
