"""Merging of sorted runs, compiled with all optimisations.

Elements are compared by keys, signed integers that order as they do: the bits of a
float without its sign, negated if it was negative (so -0.0 is 0.0). NaNs, which runs
have at their ends, are left out of the comparison and put after everything else.
Where a part begins in both runs is found by bisection (Odeh et al., Merge Path, 2012).
"""

from __future__ import annotations

from typing import Final

from arrayfn.backends.native import (
    CFunction,
    inlined,
    load,
    load_i32,
    native,
    store,
    store_i32,
)

LOOPS_OVER_DATA: Final = True
memcpy = CFunction("memcpy", 3)

SIGN_64: Final = -0x8000000000000000
LOW_HALF: Final = 0xFFFFFFFF

# Kinds of elements.
FLOAT: Final = 0
SIGNED: Final = 1
UNSIGNED: Final = 2


# Constants of a width, given by the bytes of an element.


@inlined
def magnitude(size: int) -> int:
    """All bits but the sign, as numbers are loaded: those of 32 sign-extended."""
    if size == 4:
        return 0x7FFFFFFF
    return 0x7FFFFFFFFFFFFFFF


@inlined
def infinity(size: int) -> int:
    """The bits of infinity."""
    if size == 4:
        return 0x7F800000
    return 0x7FF0000000000000


@inlined
def read(address: int, size: int) -> int:
    """A number; one of 32 bits is sign-extended."""
    if size == 4:
        return load_i32(address)
    return load(address)


@inlined
def write(address: int, bits: int, size: int) -> int:
    """Write a number."""
    if size == 4:
        store_i32(address, bits)
    else:
        store(address, bits)
    return 0


@inlined
def key(bits: int, kind: int, size: int) -> int:
    """The key of a number."""
    if kind == FLOAT:
        if bits < 0:
            return 0 - (bits & magnitude(size))
        return bits
    if kind == UNSIGNED:
        if size == 4:
            return bits & LOW_HALF
        return bits ^ SIGN_64
    return bits


@inlined
def numbers(run: int, count: int, kind: int, size: int) -> int:
    """How many elements of a sorted run are no NaN."""
    low = 0
    if kind != FLOAT:
        low = count
    high = count
    while low < high:
        middle = (low + high) >> 1
        if (read(run + size * middle, size) & magnitude(size)) > infinity(size):
            high = middle
        else:
            low = middle + 1
    return low


@inlined
def least(a: int, b: int) -> int:
    """The lesser of two integers."""
    if a < b:
        return a
    return b


@inlined
def most(a: int, b: int) -> int:
    """The greater of two integers."""
    if a > b:
        return a
    return b


@inlined
def copy_part(
    source: int, target: int, place: int, count: int, begin: int, end: int, size: int
) -> int:
    """What of ``source``, which comes to ``place``, lies between begin and end."""
    start = most(begin, place)
    stop = least(end, place + count)
    if start < stop:
        memcpy(
            target + start * size,
            source + (start - place) * size,
            (stop - start) * size,
        )
    return 0


@inlined
def split(
    a: int, count_a: int, b: int, count_b: int, place: int, kind: int, size: int
) -> int:
    """How many of the first ``place`` merged elements are a's."""
    low = most(0, place - count_b)
    high = least(place, count_a)
    while low < high:
        middle = (low + high) >> 1
        left = key(read(a + size * middle, size), kind, size)
        if left <= key(read(b + size * (place - 1 - middle), size), kind, size):
            low = middle + 1
        else:
            high = middle
    return low


@inlined
def span(
    a: int,
    count_a: int,
    b: int,
    count_b: int,
    target: int,
    i: int,
    k: int,
    stop: int,
    kind: int,
    size: int,
) -> int:
    """Merged elements ``k`` to ``stop``, of which a has had ``i``."""
    j = k - i
    while k < stop:
        steps = least(stop - k, least(count_a - i, count_b - j))
        if steps == 0:
            if i < count_a:
                memcpy(target + size * k, a + size * i, size * (stop - k))
            else:
                memcpy(target + size * k, b + size * j, size * (stop - k))
            k = stop
        for step in range(steps):
            x = read(a + size * i, size)
            y = read(b + size * j, size)
            value = x
            later = 0
            if key(y, kind, size) < key(x, kind, size):
                value = y
                later = 1
            write(target + size * (k + step), value, size)
            j += later
            i += 1 - later
        k += steps
    return 0


@inlined
def merge(
    a: int,
    count_a: int,
    b: int,
    count_b: int,
    target: int,
    begin: int,
    end: int,
    kind: int,
    size: int,
) -> int:
    """Elements ``begin`` to ``end`` of two merged runs; of equal ones a's first.

    Two halves at a time: each waits for its own loads.
    """
    numbers_a = numbers(a, count_a, kind, size)
    numbers_b = numbers(b, count_b, kind, size)
    total = numbers_a + numbers_b
    stop = least(end, total)
    if begin < stop:
        middle = (begin + stop) >> 1
        i = split(a, numbers_a, b, numbers_b, begin, kind, size)
        u = split(a, numbers_a, b, numbers_b, middle, kind, size)
        j = begin - i
        v = middle - u
        k = 0
        steps = 1
        while steps > 0:
            steps = least(middle - begin - k, stop - middle - k)
            steps = least(steps, least(numbers_a - i, numbers_b - j))
            steps = least(steps, least(numbers_a - u, numbers_b - v))
            for step in range(steps):
                x = read(a + size * i, size)
                y = read(b + size * j, size)
                value = x
                later = 0
                if key(y, kind, size) < key(x, kind, size):
                    value = y
                    later = 1
                x = read(a + size * u, size)
                y = read(b + size * v, size)
                second = x
                behind = 0
                if key(y, kind, size) < key(x, kind, size):
                    second = y
                    behind = 1
                write(target + size * (begin + k + step), value, size)
                write(target + size * (middle + k + step), second, size)
                j += later
                i += 1 - later
                v += behind
                u += 1 - behind
            k += steps
        span(a, numbers_a, b, numbers_b, target, i, begin + k, middle, kind, size)
        span(a, numbers_a, b, numbers_b, target, u, middle + k, stop, kind, size)
    copy_part(
        a + size * numbers_a, target, total, count_a - numbers_a, begin, end, size
    )
    rest = total + count_a - numbers_a
    copy_part(b + size * numbers_b, target, rest, count_b - numbers_b, begin, end, size)
    return 0


@native
def merge_32(
    a: int,
    count_a: int,
    b: int,
    count_b: int,
    target: int,
    begin: int,
    end: int,
    kind: int,
) -> int:
    """``merge`` of elements of 32 bits."""
    return merge(a, count_a, b, count_b, target, begin, end, kind, 4)


@native
def merge_64(
    a: int,
    count_a: int,
    b: int,
    count_b: int,
    target: int,
    begin: int,
    end: int,
    kind: int,
) -> int:
    """``merge`` of elements of 64 bits."""
    return merge(a, count_a, b, count_b, target, begin, end, kind, 8)
