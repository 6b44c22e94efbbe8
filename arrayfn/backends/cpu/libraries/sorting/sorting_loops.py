"""The inner loops around NumPy's sort functions, compiled with all optimisations.

Keys order as their elements do, but as signed integers: the bits of a float without its
sign, negated if it was negative (so -0.0 is 0.0), and all NaNs after everything else.
"""

from __future__ import annotations

from typing import Final

from arrayfn.backends.native import (
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

LOOPS_OVER_DATA: Final = True
memcpy = CFunction("memcpy", 3)

MAGNITUDE_32: Final = 0x7FFFFFFF
INFINITY_32: Final = 0x7F800000
MAGNITUDE_64: Final = 0x7FFFFFFFFFFFFFFF
INFINITY_64: Final = 0x7FF0000000000000
NAN_32: Final = 0x7FC00000
NAN_64: Final = 0x7FF8000000000000
SIGN_64: Final = -0x8000000000000000
MAGNITUDE_16: Final = 0x7FFF
LOW_HALF: Final = 0xFFFFFFFF
HIGH_HALF: Final = -0x100000000


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
def encode_halves(source: int, target: int, count: int, infinity: int) -> int:
    """Floats of 16 bits become unsigned integers of the same order."""
    for k in range(count):
        place = target + 2 * k
        bits = load_u16(source + 2 * k)
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


@native
def encode_f32(source: int, target: int, count: int, infinity: int) -> int:
    """Floats become signed integers of the same order; NaNs the greatest."""
    for k in range(count):
        bits = load_i32(source + 4 * k)
        code = bits
        if bits < 0:
            code = bits ^ MAGNITUDE_32
        if (bits & MAGNITUDE_32) > infinity:
            code = NAN_32
        store_i32(target + 4 * k, code)
    return 0


@native
def decode_f32(address: int, count: int, infinity: int) -> int:
    """The inverse of ``encode_f32``; every NaN is the same one."""
    for k in range(count):
        code = load_i32(address + 4 * k)
        bits = code
        if code < 0:
            bits = code ^ MAGNITUDE_32
        store_i32(address + 4 * k, bits)
    return 0


@native
def encode_f64(source: int, target: int, count: int, infinity: int) -> int:
    """As ``encode_f32``."""
    for k in range(count):
        bits = load(source + 8 * k)
        code = bits
        if bits < 0:
            code = bits ^ MAGNITUDE_64
        if (bits & MAGNITUDE_64) > infinity:
            code = NAN_64
        store(target + 8 * k, code)
    return 0


@native
def decode_f64(address: int, count: int, infinity: int) -> int:
    """As ``decode_f32``."""
    for k in range(count):
        code = load(address + 8 * k)
        bits = code
        if code < 0:
            bits = code ^ MAGNITUDE_64
        store(address + 8 * k, bits)
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
def unpack(target: int, count: int, infinity: int) -> int:
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


# The first few of an order that descends.


@native
def select_packed(
    packed: int, count: int, k: int, buffer: int, room: int, sort: int
) -> int:
    """The ``k`` greatest of packed elements, in the order of the descending sort.

    Candidates are collected in a ``buffer`` with ``room`` for them, and thinned out to
    ``k`` when it is full; from then on only what is greater than the least is one.
    """
    have = 0
    limit = MAGNITUDE_64
    for position in range(count):
        value = load(packed + 8 * position) ^ HIGH_HALF
        if value < limit:
            store(buffer + 8 * have, value)
            have += 1
            if have == room:
                call(sort, buffer, have, 0)
                have = k
                limit = load(buffer + 8 * (k - 1))
    call(sort, buffer, have, 0)
    return 0


@native
def reverse_keys(keys: int, count: int) -> int:
    """Keys of the opposite order."""
    for k in range(count):
        store(keys + 8 * k, load(keys + 8 * k) ^ -1)
    return 0
