"""Real numbers of either width in memory: all is computed in float64."""

from __future__ import annotations

from typing import Final

from arrayfn.backends.native import (
    add_f64,
    inlined,
    load,
    load_i32,
    mul_f64,
    narrow_f64,
    native,
    store,
    store_i32,
    widen_f32,
)

LOOPS_OVER_DATA: Final = True


@inlined
def real_at(address: int, size: int) -> int:
    """The bits of a number of ``size`` bytes, as of an f64."""
    if size == 8:
        return load(address)
    return widen_f32(load_i32(address))


@inlined
def write_real(address: int, bits: int, size: int) -> int:
    """Write a number of ``size`` bytes from the bits of an f64."""
    if size == 8:
        store(address, bits)
    else:
        store_i32(address, narrow_f64(bits))
    return 0


@native
def sum_of_squares(numbers: int, count: int, size: int) -> int:
    """In four parts, for an addition takes longer than to begin the next one."""
    a = 0
    b = 0
    c = 0
    d = 0
    place = 0
    stop = count // 4 * 4 * size
    while place < stop:
        a = add_square(a, numbers + place, size)
        place += size
        b = add_square(b, numbers + place, size)
        place += size
        c = add_square(c, numbers + place, size)
        place += size
        d = add_square(d, numbers + place, size)
        place += size
    stop = count * size
    while place < stop:
        a = add_square(a, numbers + place, size)
        place += size
    return add_f64(add_f64(a, b), add_f64(c, d))


@inlined
def add_square(total: int, place: int, size: int) -> int:
    """A sum, and the square of a number."""
    number = real_at(place, size)
    return add_f64(total, mul_f64(number, number))
