"""Merging of sorted runs, compiled with all optimisations.

Elements are integers: floats come as integers that order as they do. Where a part
begins in both runs is found by bisection (Odeh et al., Merge Path, 2012).
"""

from __future__ import annotations

from typing import Final

from arrayfn.backends.native import CFunction, generic, size_of
from arrayfn.backends.native.structures import Array, Integer, i32, u32

LOOPS_OVER_DATA: Final = True
memcpy = CFunction[[Array[Integer], Array[Integer], int], int]("memcpy")

SIGN_64: Final = -(1 << 63)

# ``flip`` is SIGN_64 for unsigned integers of 64 bits, else 0: x ^ flip orders as x.


@generic
def split(
    a: Array[Integer],
    count_a: int,
    b: Array[Integer],
    count_b: int,
    rank: int,
    flip: int,
) -> int:
    """The number of a's elements among the first ``rank`` merged ones."""
    low = max(0, rank - count_b)
    high = min(rank, count_a)
    while low < high:
        middle = (low + high) >> 1
        if (a[middle] ^ flip) <= (b[rank - 1 - middle] ^ flip):
            low = middle + 1
        else:
            high = middle
    return low


@generic
def span(
    a: Array[Integer],
    count_a: int,
    b: Array[Integer],
    count_b: int,
    target: Array[Integer],
    i: int,
    k: int,
    stop: int,
    flip: int,
) -> None:
    """Write merged elements ``k`` to ``stop``, after ``i`` elements of a."""
    j = k - i
    while k < stop:
        steps = min(stop - k, count_a - i, count_b - j)
        if steps == 0:
            rest = a + i if i < count_a else b + j
            memcpy(target + k, rest, size_of(Integer) * (stop - k))
            k = stop
        for step in range(steps):
            x = a[i]
            y = b[j]
            later = (y ^ flip) < (x ^ flip)
            target[k + step] = y if later else x
            j += later
            i += 1 - later
        k += steps


@generic
def merge(
    a: Array[Integer],
    count_a: int,
    b: Array[Integer],
    count_b: int,
    target: Array[Integer],
    begin: int,
    end: int,
    flip: int,
) -> None:
    """Write elements ``begin`` to ``end`` of two merged runs; of equal ones a's first.

    Two halves at a time: each waits for its own loads.
    """
    stop = min(end, count_a + count_b)
    if begin >= stop:
        return
    middle = (begin + stop) >> 1
    i = split(a, count_a, b, count_b, begin, flip)
    u = split(a, count_a, b, count_b, middle, flip)
    j = begin - i
    v = middle - u
    k = 0
    steps = 1
    while steps > 0:
        steps = min(middle - begin - k, stop - middle - k)
        steps = min(steps, count_a - i, count_b - j)
        steps = min(steps, count_a - u, count_b - v)
        for step in range(steps):
            x = a[i]
            y = b[j]
            later = (y ^ flip) < (x ^ flip)
            value = y if later else x
            x = a[u]
            y = b[v]
            behind = (y ^ flip) < (x ^ flip)
            target[begin + k + step] = value
            target[middle + k + step] = y if behind else x
            j += later
            i += 1 - later
            v += behind
            u += 1 - behind
        k += steps
    span(a, count_a, b, count_b, target, i, begin + k, middle, flip)
    span(a, count_a, b, count_b, target, u, middle + k, stop, flip)


MERGE: Final = {
    "i32": merge.of(Integer=i32),
    "u32": merge.of(Integer=u32),
    "i64": merge.of(Integer=int),
}
