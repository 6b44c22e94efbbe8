"""Merging of sorted runs, compiled with all optimisations.

Elements are compared by keys, signed integers that order as they do: the bits of a
float without its sign, negated if it was negative (so -0.0 is 0.0). NaNs, which runs
have at their ends, are left out of the comparison and put after everything else.
Where a part begins in both runs is found by bisection (Odeh et al., Merge Path, 2012).
"""

from __future__ import annotations

from typing import Final

from arrayfn.backends.cpu.native import (
    CFunction,
    load,
    load_i32,
    native,
    store,
    store_i32,
)

LOOPS_OVER_DATA: Final = True
memcpy = CFunction("memcpy", 3)

MAGNITUDE_32: Final = 0x7FFFFFFF
INFINITY_32: Final = 0x7F800000
MAGNITUDE_64: Final = 0x7FFFFFFFFFFFFFFF
INFINITY_64: Final = 0x7FF0000000000000
SIGN_64: Final = -0x8000000000000000
LOW_HALF: Final = 0xFFFFFFFF

# Kinds of elements.
FLOAT: Final = 0
SIGNED: Final = 1
UNSIGNED: Final = 2


@native
def key_32(bits: int, kind: int) -> int:
    """The key of a number of 32 bits, which were sign-extended."""
    if kind == FLOAT:
        if bits < 0:
            return 0 - (bits & MAGNITUDE_32)
        return bits
    if kind == UNSIGNED:
        return bits & LOW_HALF
    return bits


@native
def key_64(bits: int, kind: int) -> int:
    """The key of a number of 64 bits."""
    if kind == FLOAT:
        if bits < 0:
            return 0 - (bits & MAGNITUDE_64)
        return bits
    if kind == UNSIGNED:
        return bits ^ SIGN_64
    return bits


@native
def numbers_32(run: int, count: int, kind: int) -> int:
    """How many elements of a sorted run are no NaN."""
    low = 0
    if kind != FLOAT:
        low = count
    high = count
    while low < high:
        middle = (low + high) >> 1
        if (load_i32(run + 4 * middle) & MAGNITUDE_32) > INFINITY_32:
            high = middle
        else:
            low = middle + 1
    return low


@native
def numbers_64(run: int, count: int, kind: int) -> int:
    """How many elements of a sorted run are no NaN."""
    low = 0
    if kind != FLOAT:
        low = count
    high = count
    while low < high:
        middle = (low + high) >> 1
        if (load(run + 8 * middle) & MAGNITUDE_64) > INFINITY_64:
            high = middle
        else:
            low = middle + 1
    return low


@native
def least(a: int, b: int) -> int:
    """The lesser of two integers."""
    if a < b:
        return a
    return b


@native
def most(a: int, b: int) -> int:
    """The greater of two integers."""
    if a > b:
        return a
    return b


@native
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


@native
def split_32(a: int, count_a: int, b: int, count_b: int, place: int, kind: int) -> int:
    """How many of the first ``place`` merged elements are a's."""
    low = most(0, place - count_b)
    high = least(place, count_a)
    while low < high:
        middle = (low + high) >> 1
        left = key_32(load_i32(a + 4 * middle), kind)
        if left <= key_32(load_i32(b + 4 * (place - 1 - middle)), kind):
            low = middle + 1
        else:
            high = middle
    return low


@native
def span_32(
    a: int,
    count_a: int,
    b: int,
    count_b: int,
    target: int,
    i: int,
    k: int,
    stop: int,
    kind: int,
) -> int:
    """Merged elements ``k`` to ``stop``, of which a has had ``i``."""
    j = k - i
    while k < stop:
        steps = least(stop - k, least(count_a - i, count_b - j))
        if steps == 0:
            if i < count_a:
                memcpy(target + 4 * k, a + 4 * i, 4 * (stop - k))
            else:
                memcpy(target + 4 * k, b + 4 * j, 4 * (stop - k))
            k = stop
        for step in range(steps):
            x = load_i32(a + 4 * i)
            y = load_i32(b + 4 * j)
            value = x
            later = 0
            if key_32(y, kind) < key_32(x, kind):
                value = y
                later = 1
            store_i32(target + 4 * (k + step), value)
            j += later
            i += 1 - later
        k += steps
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
    """Elements ``begin`` to ``end`` of two merged runs; of equal ones a's first.

    Two halves at a time: each waits for its own loads.
    """
    numbers_a = numbers_32(a, count_a, kind)
    numbers_b = numbers_32(b, count_b, kind)
    total = numbers_a + numbers_b
    stop = least(end, total)
    if begin < stop:
        middle = (begin + stop) >> 1
        i = split_32(a, numbers_a, b, numbers_b, begin, kind)
        u = split_32(a, numbers_a, b, numbers_b, middle, kind)
        j = begin - i
        v = middle - u
        k = 0
        steps = 1
        while steps > 0:
            steps = least(middle - begin - k, stop - middle - k)
            steps = least(steps, least(numbers_a - i, numbers_b - j))
            steps = least(steps, least(numbers_a - u, numbers_b - v))
            for step in range(steps):
                x = load_i32(a + 4 * i)
                y = load_i32(b + 4 * j)
                value = x
                later = 0
                if key_32(y, kind) < key_32(x, kind):
                    value = y
                    later = 1
                x = load_i32(a + 4 * u)
                y = load_i32(b + 4 * v)
                second = x
                behind = 0
                if key_32(y, kind) < key_32(x, kind):
                    second = y
                    behind = 1
                store_i32(target + 4 * (begin + k + step), value)
                store_i32(target + 4 * (middle + k + step), second)
                j += later
                i += 1 - later
                v += behind
                u += 1 - behind
            k += steps
        span_32(a, numbers_a, b, numbers_b, target, i, begin + k, middle, kind)
        span_32(a, numbers_a, b, numbers_b, target, u, middle + k, stop, kind)
    copy_part(a + 4 * numbers_a, target, total, count_a - numbers_a, begin, end, 4)
    rest = total + count_a - numbers_a
    copy_part(b + 4 * numbers_b, target, rest, count_b - numbers_b, begin, end, 4)
    return 0


@native
def split_64(a: int, count_a: int, b: int, count_b: int, place: int, kind: int) -> int:
    """How many of the first ``place`` merged elements are a's."""
    low = most(0, place - count_b)
    high = least(place, count_a)
    while low < high:
        middle = (low + high) >> 1
        left = key_64(load(a + 8 * middle), kind)
        if left <= key_64(load(b + 8 * (place - 1 - middle)), kind):
            low = middle + 1
        else:
            high = middle
    return low


@native
def span_64(
    a: int,
    count_a: int,
    b: int,
    count_b: int,
    target: int,
    i: int,
    k: int,
    stop: int,
    kind: int,
) -> int:
    """Merged elements ``k`` to ``stop``, of which a has had ``i``."""
    j = k - i
    while k < stop:
        steps = least(stop - k, least(count_a - i, count_b - j))
        if steps == 0:
            if i < count_a:
                memcpy(target + 8 * k, a + 8 * i, 8 * (stop - k))
            else:
                memcpy(target + 8 * k, b + 8 * j, 8 * (stop - k))
            k = stop
        for step in range(steps):
            x = load(a + 8 * i)
            y = load(b + 8 * j)
            value = x
            later = 0
            if key_64(y, kind) < key_64(x, kind):
                value = y
                later = 1
            store(target + 8 * (k + step), value)
            j += later
            i += 1 - later
        k += steps
    return 0


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
    """Elements ``begin`` to ``end`` of two merged runs; of equal ones a's first.

    Two halves at a time: each waits for its own loads.
    """
    numbers_a = numbers_64(a, count_a, kind)
    numbers_b = numbers_64(b, count_b, kind)
    total = numbers_a + numbers_b
    stop = least(end, total)
    if begin < stop:
        middle = (begin + stop) >> 1
        i = split_64(a, numbers_a, b, numbers_b, begin, kind)
        u = split_64(a, numbers_a, b, numbers_b, middle, kind)
        j = begin - i
        v = middle - u
        k = 0
        steps = 1
        while steps > 0:
            steps = least(middle - begin - k, stop - middle - k)
            steps = least(steps, least(numbers_a - i, numbers_b - j))
            steps = least(steps, least(numbers_a - u, numbers_b - v))
            for step in range(steps):
                x = load(a + 8 * i)
                y = load(b + 8 * j)
                value = x
                later = 0
                if key_64(y, kind) < key_64(x, kind):
                    value = y
                    later = 1
                x = load(a + 8 * u)
                y = load(b + 8 * v)
                second = x
                behind = 0
                if key_64(y, kind) < key_64(x, kind):
                    second = y
                    behind = 1
                store(target + 8 * (begin + k + step), value)
                store(target + 8 * (middle + k + step), second)
                j += later
                i += 1 - later
                v += behind
                u += 1 - behind
            k += steps
        span_64(a, numbers_a, b, numbers_b, target, i, begin + k, middle, kind)
        span_64(a, numbers_a, b, numbers_b, target, u, middle + k, stop, kind)
    copy_part(a + 8 * numbers_a, target, total, count_a - numbers_a, begin, end, 8)
    rest = total + count_a - numbers_a
    copy_part(b + 8 * numbers_b, target, rest, count_b - numbers_b, begin, end, 8)
    return 0
