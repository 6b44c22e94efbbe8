"""Windows copied side by side: the loops, compiled with all optimisations."""

from __future__ import annotations

from typing import Final

from arrayfn.backends.native import (
    CFunction,
    load,
    load_i32,
    native,
    store,
    store_i32,
)

LOOPS_OVER_DATA: Final = True
memcpy = CFunction("memcpy", 3)


@native
def copy_windows(
    x: int, target: int, first: int, last: int, dimensions: int, size: int
) -> int:
    """Rows ``first`` to ``last`` of the matrix of windows.

    At ``dimensions`` are extent and stride of four dimensions of rows, outermost first,
    then of four of columns. ``size`` is that of an element.
    """
    b1 = load(dimensions + 16)
    b2 = load(dimensions + 32)
    b3 = load(dimensions + 48)
    e0 = load(dimensions + 64)
    e1 = load(dimensions + 80)
    e2 = load(dimensions + 96)
    run = load(dimensions + 112)
    s0 = load(dimensions + 72) * size
    s1 = load(dimensions + 88) * size
    s2 = load(dimensions + 104) * size
    step = load(dimensions + 120)
    place = target
    for row in range(first, last):
        rest = row // b3
        at = x + row % b3 * load(dimensions + 56) * size
        at += rest % b2 * load(dimensions + 40) * size
        rest = rest // b2
        at += rest % b1 * load(dimensions + 24) * size
        at += rest // b1 * load(dimensions + 8) * size
        for c0 in range(e0):
            for c1 in range(e1):
                for c2 in range(e2):
                    source = at + c0 * s0 + c1 * s1 + c2 * s2
                    if step == 1:
                        copy_run(source, place, run * size)
                    else:
                        spread_run(source, place, run, step * size, size)
                    place += run * size
    return 0


@native
def copy_run(source: int, target: int, count: int) -> int:
    """``count`` bytes, a multiple of 4."""
    if count > 64:
        memcpy(target, source, count)
    else:
        place = 0
        while place + 8 <= count:
            store(target + place, load(source + place))
            place += 8
        if place < count:
            store_i32(target + place, load_i32(source + place))
    return 0


@native
def spread_run(source: int, target: int, run: int, step: int, size: int) -> int:
    """Elements that are ``step`` bytes apart."""
    if size == 4:
        for k in range(run):
            store_i32(target + 4 * k, load_i32(source + k * step))
    else:
        for k in range(run):
            for word in range(size >> 3):
                value = load(source + k * step + 8 * word)
                store(target + k * size + 8 * word, value)
    return 0
