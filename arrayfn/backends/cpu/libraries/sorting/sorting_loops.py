"""The inner loops around NumPy's sort functions, compiled with all optimisations.

Keys order as their elements do, but as signed integers: the bits of a float without its
sign, negated if it was negative (so -0.0 is 0.0), and all NaNs after everything else.
Elements are given as integers of their size.
"""

from __future__ import annotations

from typing import Final

from arrayfn.backends.cpu.libraries.sorting.numpy_sorts import NumpySort
from arrayfn.backends.native import (
    CFunction,
    generic,
    inlined,
    native,
    pointer,
    size_of,
)
from arrayfn.backends.native.structures import (
    Array,
    Integer,
    i8,
    i16,
    i32,
    u8,
    u16,
    u32,
)

LOOPS_OVER_DATA: Final = True
memcpy = CFunction[[Array[int], Array[int], int], int]("memcpy")

GREATEST_64: Final = (1 << 63) - 1
INFINITY_32: Final = 0x7F800000
INFINITY_64: Final = 0x7FF0000000000000
SIGN_64: Final = -(1 << 63)
LOW_HALF: Final = 0xFFFFFFFF
HIGH_HALF: Final = -(1 << 32)


@inlined
def float_key(bits: int, greatest: int, infinity: int) -> int:
    """The key of a float; ``greatest`` is the greatest integer of its size."""
    magnitude = bits & greatest
    if magnitude > infinity:
        return greatest
    return magnitude if bits == magnitude else -magnitude


@native
def encode_halves(
    source: Array[u16], target: Array[u16], count: int, infinity: int
) -> None:
    """Write floats of 16 bits as unsigned integers of the same order."""
    for k in range(count):
        bits = source[k]
        magnitude = bits & 0x7FFF
        code = bits | 0x8000 if bits == magnitude else bits ^ 0xFFFF
        target[k] = 0xFFFF if magnitude > infinity else code


@native
def decode_halves(codes: Array[u16], count: int, infinity: int) -> None:
    """The inverse of ``encode_halves``; every NaN is the same one."""
    for k in range(count):
        code = codes[k]
        codes[k] = code & 0x7FFF if code > 0x7FFF else code ^ 0xFFFF


@generic
def encode_floats(
    source: Array[Integer], target: Array[Integer], count: int, infinity: int
) -> None:
    """Write floats as signed integers of the same order; NaNs as the greatest."""
    greatest = (1 << (8 * size_of(Integer) - 1)) - 1
    nan = infinity | (1 << (22 if size_of(Integer) == 4 else 51))
    for k in range(count):
        bits = source[k]
        code = bits ^ greatest if bits < 0 else bits
        target[k] = nan if (bits & greatest) > infinity else code


@generic
def decode_floats(codes: Array[Integer], count: int, infinity: int) -> None:
    """The inverse of ``encode_floats``; every NaN is the same one."""
    greatest = (1 << (8 * size_of(Integer) - 1)) - 1
    for k in range(count):
        code = codes[k]
        codes[k] = code ^ greatest if code < 0 else code


ENCODE: Final = {
    "f32": encode_floats.of(Integer=i32),
    "f64": encode_floats.of(Integer=int),
}
DECODE: Final = {
    "f32": decode_floats.of(Integer=i32),
    "f64": decode_floats.of(Integer=int),
}


# Elements and their positions, packed into 64 bits: keys in the high halves, positions
# from ``first`` on in the low.


@native
def pack_floats(
    source: Array[i32], target: Array[int], count: int, first: int, infinity: int
) -> None:
    """Pack floats of 32 bits."""
    for k in range(count):
        key = float_key(source[k], 0x7FFFFFFF, INFINITY_32)
        target[k] = (key << 32) | (first + k)


@native
def pack_halves(
    source: Array[u16], target: Array[int], count: int, first: int, infinity: int
) -> None:
    """Pack floats of 16 bits."""
    for k in range(count):
        key = float_key(source[k], 0x7FFF, infinity)
        target[k] = (key << 32) | (first + k)


@generic
def pack_integers(
    source: Array[Integer], target: Array[int], count: int, first: int, infinity: int
) -> None:
    """Pack integers that fit 32 bits with a sign."""
    for k in range(count):
        target[k] = (source[k] << 32) | (first + k)


@native
def pack_u32(
    source: Array[u32], target: Array[int], count: int, first: int, infinity: int
) -> None:
    """Pack unsigned integers of 32 bits."""
    for k in range(count):
        target[k] = ((source[k] ^ (1 << 31)) << 32) | (first + k)


PACK: Final = {
    "bool": pack_integers.of(Integer=u8),
    "i8": pack_integers.of(Integer=i8),
    "u8": pack_integers.of(Integer=u8),
    "i16": pack_integers.of(Integer=i16),
    "u16": pack_integers.of(Integer=u16),
    "i32": pack_integers.of(Integer=i32),
    "u32": pack_u32,
    "f16": pack_halves,
    "bf16": pack_halves,
    "f32": pack_floats,
}


@native
def unpack(packed: Array[int], count: int, infinity: int) -> None:
    """Reduce packed elements to their positions."""
    for k in range(count):
        packed[k] &= LOW_HALF


# Elements of 64 bits: their keys, and the positions of equal ones in order.


@native
def keys_f64(source: Array[int], keys: Array[int], count: int) -> None:
    """Write the keys of floats."""
    for k in range(count):
        keys[k] = float_key(source[k], GREATEST_64, INFINITY_64)


@native
def keys_i64(source: Array[int], keys: Array[int], count: int) -> None:
    """Write the keys of signed integers."""
    memcpy(keys, source, size_of(int) * count)


@native
def keys_u64(source: Array[int], keys: Array[int], count: int) -> None:
    """Write the keys of unsigned integers."""
    for k in range(count):
        keys[k] = source[k] ^ SIGN_64


KEYS: Final = {"i64": keys_i64, "u64": keys_u64, "f64": keys_f64}


@native
def order_ties(
    keys: Array[int], order: Array[int], count: int, sort: NumpySort
) -> None:
    """Sort the positions of equal keys: ``order`` becomes that of a stable sort."""
    first = 0
    while first < count:
        key = keys[order[first]]
        last = first + 1
        while last < count and keys[order[last]] == key:
            last += 1
        if last - first > 1:
            sort(pointer(order[first]), last - first, None)
        first = last


# The first few of an order that descends.


@native
def select_packed(
    packed: Array[int],
    count: int,
    k: int,
    buffer: Array[int],
    room: int,
    sort: NumpySort,
) -> None:
    """The ``k`` greatest of packed elements, in the order of the descending sort.

    Candidates are collected in a ``buffer`` with ``room`` for them, and thinned out to
    ``k`` when it is full; from then on only what is greater than the least is one.
    """
    have = 0
    limit = GREATEST_64
    for position in range(count):
        value = packed[position] ^ HIGH_HALF
        if value < limit:
            buffer[have] = value
            have += 1
            if have == room:
                sort(buffer, have, None)
                have = k
                limit = buffer[k - 1]
    sort(buffer, have, None)


@native
def reverse_keys(keys: Array[int], count: int) -> None:
    """Complement the keys, which then order the other way round."""
    for k in range(count):
        keys[k] = ~keys[k]
