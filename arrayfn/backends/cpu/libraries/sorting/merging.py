"""Merging of sorted runs, compiled with all optimisations.

Elements are integers: floats come as integers that order as they do. Where a part
begins in both runs is found by bisection (Odeh et al., Merge Path, 2012).
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
def key(bits: int, signed: int, size: int) -> int:
    """The signed integer that orders as an element does."""
    if signed:
        return bits
    if size == 4:
        return bits & LOW_HALF
    return bits ^ SIGN_64


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
def split(
    a: int, count_a: int, b: int, count_b: int, place: int, signed: int, size: int
) -> int:
    """How many of the first ``place`` merged elements are a's."""
    low = most(0, place - count_b)
    high = least(place, count_a)
    while low < high:
        middle = (low + high) >> 1
        left = key(read(a + size * middle, size), signed, size)
        if left <= key(read(b + size * (place - 1 - middle), size), signed, size):
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
    signed: int,
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
            if key(y, signed, size) < key(x, signed, size):
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
    signed: int,
    size: int,
) -> int:
    """Elements ``begin`` to ``end`` of two merged runs; of equal ones a's first.

    Two halves at a time: each waits for its own loads.
    """
    stop = least(end, count_a + count_b)
    if begin < stop:
        middle = (begin + stop) >> 1
        i = split(a, count_a, b, count_b, begin, signed, size)
        u = split(a, count_a, b, count_b, middle, signed, size)
        j = begin - i
        v = middle - u
        k = 0
        steps = 1
        while steps > 0:
            steps = least(middle - begin - k, stop - middle - k)
            steps = least(steps, least(count_a - i, count_b - j))
            steps = least(steps, least(count_a - u, count_b - v))
            for step in range(steps):
                x = read(a + size * i, size)
                y = read(b + size * j, size)
                value = x
                later = 0
                if key(y, signed, size) < key(x, signed, size):
                    value = y
                    later = 1
                x = read(a + size * u, size)
                y = read(b + size * v, size)
                second = x
                behind = 0
                if key(y, signed, size) < key(x, signed, size):
                    second = y
                    behind = 1
                write(target + size * (begin + k + step), value, size)
                write(target + size * (middle + k + step), second, size)
                j += later
                i += 1 - later
                v += behind
                u += 1 - behind
            k += steps
        span(a, count_a, b, count_b, target, i, begin + k, middle, signed, size)
        span(a, count_a, b, count_b, target, u, middle + k, stop, signed, size)
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
    signed: int,
) -> int:
    """``merge`` of elements of 32 bits."""
    return merge(a, count_a, b, count_b, target, begin, end, signed, 4)


@native
def merge_64(
    a: int,
    count_a: int,
    b: int,
    count_b: int,
    target: int,
    begin: int,
    end: int,
    signed: int,
) -> int:
    """``merge`` of elements of 64 bits."""
    return merge(a, count_a, b, count_b, target, begin, end, signed, 8)
