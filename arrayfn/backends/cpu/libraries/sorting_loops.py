"""The inner loops around NumPy's sort functions, compiled with all optimisations.

Keys order as their elements do, but as signed integers: the bits of a float without its
sign, negated if it was negative (so -0.0 is 0.0), and all NaNs after everything else.
"""

from __future__ import annotations

from typing import Final

from arrayfn.backends.cpu.native import (
    CFunction,
    call,
    load,
    load_i32,
    load_u8,
    native,
    store,
    store_i32,
    store_u8,
)

memcpy = CFunction("memcpy", 3)

MAGNITUDE_32: Final = 0x7FFFFFFF
INFINITY_32: Final = 0x7F800000
MAGNITUDE_64: Final = 0x7FFFFFFFFFFFFFFF
INFINITY_64: Final = 0x7FF0000000000000
SIGN_64: Final = -0x8000000000000000
MAGNITUDE_16: Final = 0x7FFF
LOW_HALF: Final = 0xFFFFFFFF

# Kinds of elements, for ``merge``.
FLOAT: Final = 0
SIGNED: Final = 1
UNSIGNED: Final = 2


@native
def load_u16(address: int) -> int:
    """Two bytes."""
    return load_u8(address) | (load_u8(address + 1) << 8)


@native
def half_key(bits: int, infinity: int) -> int:
    """The key of a float of 16 bits."""
    magnitude = bits & MAGNITUDE_16
    if magnitude > infinity:
        return MAGNITUDE_16 + 1
    if bits != magnitude:
        return 0 - magnitude
    return magnitude


@native
def encode_halves(address: int, count: int, infinity: int) -> int:
    """Floats of 16 bits become unsigned integers of the same order, in place."""
    for k in range(count):
        place = address + 2 * k
        bits = load_u16(place)
        magnitude = bits & MAGNITUDE_16
        code = bits | 0x8000
        if bits != magnitude:
            code = bits ^ 0xFFFF
        if magnitude > infinity:
            code = 0xFFFF
        store_u8(place, code)
        store_u8(place + 1, code >> 8)
    return 0


@native
def decode_halves(address: int, count: int, infinity: int) -> int:
    """The inverse of ``encode_halves``; every NaN is the same one."""
    for k in range(count):
        place = address + 2 * k
        code = load_u16(place)
        bits = code ^ 0xFFFF
        if code > MAGNITUDE_16:
            bits = code & MAGNITUDE_16
        store_u8(place, bits)
        store_u8(place + 1, bits >> 8)
    return 0


# Elements and their positions, packed into 64 bits.


@native
def pack_f32(source: int, target: int, count: int, first: int, infinity: int) -> int:
    """Keys of floats in the high halves; positions from ``first`` on in the low."""
    for k in range(count):
        bits = load_i32(source + 4 * k)
        magnitude = bits & MAGNITUDE_32
        key = magnitude
        if bits < 0:
            key = 0 - magnitude
        if magnitude > INFINITY_32:
            key = MAGNITUDE_32
        store(target + 8 * k, (key << 32) | (first + k))
    return 0


@native
def pack_i32(source: int, target: int, count: int, first: int, infinity: int) -> int:
    """As ``pack_f32``, of signed integers."""
    for k in range(count):
        store(target + 8 * k, (load_i32(source + 4 * k) << 32) | (first + k))
    return 0


@native
def pack_u32(source: int, target: int, count: int, first: int, infinity: int) -> int:
    """As ``pack_f32``, of unsigned integers."""
    for k in range(count):
        key = load_i32(source + 4 * k) ^ 0x80000000
        store(target + 8 * k, (key << 32) | (first + k))
    return 0


@native
def pack_halves(source: int, target: int, count: int, first: int, infinity: int) -> int:
    """As ``pack_f32``, of floats of 16 bits."""
    for k in range(count):
        key = half_key(load_u16(source + 2 * k), infinity)
        store(target + 8 * k, (key << 32) | (first + k))
    return 0


@native
def pack_i16(source: int, target: int, count: int, first: int, infinity: int) -> int:
    """As ``pack_f32``, of signed integers of 16 bits."""
    for k in range(count):
        key = load_u16(source + 2 * k) ^ 0x8000
        store(target + 8 * k, (key << 32) | (first + k))
    return 0


@native
def pack_u16(source: int, target: int, count: int, first: int, infinity: int) -> int:
    """As ``pack_f32``, of unsigned integers of 16 bits."""
    for k in range(count):
        store(target + 8 * k, (load_u16(source + 2 * k) << 32) | (first + k))
    return 0


@native
def pack_i8(source: int, target: int, count: int, first: int, infinity: int) -> int:
    """As ``pack_f32``, of signed bytes."""
    for k in range(count):
        key = load_u8(source + k) ^ 0x80
        store(target + 8 * k, (key << 32) | (first + k))
    return 0


@native
def pack_u8(source: int, target: int, count: int, first: int, infinity: int) -> int:
    """As ``pack_f32``, of unsigned bytes and bools."""
    for k in range(count):
        store(target + 8 * k, (load_u8(source + k) << 32) | (first + k))
    return 0


@native
def unpack(target: int, count: int) -> int:
    """The positions alone."""
    for k in range(count):
        store(target + 8 * k, load(target + 8 * k) & LOW_HALF)
    return 0


# Elements of 64 bits: their keys, and the positions of equal ones in order.


@native
def keys_f64(source: int, target: int, count: int) -> int:
    """The keys of floats."""
    for k in range(count):
        bits = load(source + 8 * k)
        magnitude = bits & MAGNITUDE_64
        key = magnitude
        if bits < 0:
            key = 0 - magnitude
        if magnitude > INFINITY_64:
            key = MAGNITUDE_64
        store(target + 8 * k, key)
    return 0


@native
def keys_i64(source: int, target: int, count: int) -> int:
    """The keys of signed integers."""
    memcpy(target, source, 8 * count)
    return 0


@native
def keys_u64(source: int, target: int, count: int) -> int:
    """The keys of unsigned integers."""
    for k in range(count):
        store(target + 8 * k, load(source + 8 * k) ^ SIGN_64)
    return 0


@native
def order_ties(keys: int, order: int, count: int, sort: int) -> int:
    """Sort the positions of equal keys: ``order`` becomes that of a stable sort."""
    first = 0
    while first < count:
        key = load(keys + 8 * load(order + 8 * first))
        last = first + 1
        while last < count and load(keys + 8 * load(order + 8 * last)) == key:
            last += 1
        if last - first > 1:
            call(sort, order + 8 * first, last - first, 0)
        first = last
    return 0


# Merging: the path of Odeh et al., Merge Path (2012), found by bisection.


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
    """Elements ``begin`` to ``end`` of two merged runs; of equal ones a's first."""
    numbers_a = numbers_32(a, count_a, kind)
    numbers_b = numbers_32(b, count_b, kind)
    total = numbers_a + numbers_b
    stop = least(end, total)
    if begin < stop:
        low = most(0, begin - numbers_b)
        high = least(begin, numbers_a)
        while low < high:
            middle = (low + high) >> 1
            left = key_32(load_i32(a + 4 * middle), kind)
            if left <= key_32(load_i32(b + 4 * (begin - 1 - middle)), kind):
                low = middle + 1
            else:
                high = middle
        i = low
        j = begin - low
        k = begin
        while k < stop:
            steps = least(stop - k, least(numbers_a - i, numbers_b - j))
            if steps == 0:
                if i < numbers_a:
                    memcpy(target + 4 * k, a + 4 * i, 4 * (stop - k))
                else:
                    memcpy(target + 4 * k, b + 4 * j, 4 * (stop - k))
                k = stop
            for step in range(steps):
                x = load_i32(a + 4 * i)
                y = load_i32(b + 4 * j)
                value = x
                other = 0
                if key_32(y, kind) < key_32(x, kind):
                    value = y
                    other = 1
                store_i32(target + 4 * (k + step), value)
                j += other
                i += 1 - other
            k += steps
    copy_part(a + 4 * numbers_a, target, total, count_a - numbers_a, begin, end, 4)
    rest = total + count_a - numbers_a
    copy_part(b + 4 * numbers_b, target, rest, count_b - numbers_b, begin, end, 4)
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
    """As ``merge_32``, of 64 bits."""
    numbers_a = numbers_64(a, count_a, kind)
    numbers_b = numbers_64(b, count_b, kind)
    total = numbers_a + numbers_b
    stop = least(end, total)
    if begin < stop:
        low = most(0, begin - numbers_b)
        high = least(begin, numbers_a)
        while low < high:
            middle = (low + high) >> 1
            left = key_64(load(a + 8 * middle), kind)
            if left <= key_64(load(b + 8 * (begin - 1 - middle)), kind):
                low = middle + 1
            else:
                high = middle
        i = low
        j = begin - low
        k = begin
        while k < stop:
            steps = least(stop - k, least(numbers_a - i, numbers_b - j))
            if steps == 0:
                if i < numbers_a:
                    memcpy(target + 8 * k, a + 8 * i, 8 * (stop - k))
                else:
                    memcpy(target + 8 * k, b + 8 * j, 8 * (stop - k))
                k = stop
            for step in range(steps):
                x = load(a + 8 * i)
                y = load(b + 8 * j)
                value = x
                other = 0
                if key_64(y, kind) < key_64(x, kind):
                    value = y
                    other = 1
                store(target + 8 * (k + step), value)
                j += other
                i += 1 - other
            k += steps
    copy_part(a + 8 * numbers_a, target, total, count_a - numbers_a, begin, end, 8)
    rest = total + count_a - numbers_a
    copy_part(b + 8 * numbers_b, target, rest, count_b - numbers_b, begin, end, 8)
    return 0
