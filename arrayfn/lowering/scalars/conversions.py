"""Conversions between all dtypes.

float16 and bfloat16 values are the ``u16`` of their bits. Conversions are NumPy's. For
a float outside an integer's range, where NumPy's result depends on the machine, they
give the nearest integer in range, and 0 for NaN.
"""

from __future__ import annotations

from arrayfn.lowering.scalars.arithmetic import (
    COMPLEXES,
    FLOATS,
    HALF_PRECISION,
    INTEGERS,
    Arithmetic,
    Value,
    width,
)


def bf16_to_f32(m: Arithmetic, x: Value) -> Value:
    """Return the f32 that is the bfloat16 with the bits ``x``, a u16."""
    return m.reinterpret(m.convert(x, "u32") << 16, "f32")


def f32_to_bf16(m: Arithmetic, x: Value) -> Value:
    """Return the bits of the nearest bfloat16, ties to even; NaN stays NaN."""
    raw = m.reinterpret(x, "u32")
    # A bfloat16 has the upper 16 bits of an f32. Adding a little less than half of its
    # last bit, or half if that bit is 1, rounds to nearest with ties to even.
    rounded = (raw + (((raw >> 16) & 1) + 0x7FFF)) >> 16
    quiet = (raw >> 16) | 0x40  # sets a bit of NaN, whose other bits may be cut off
    return m.convert(m.select(x != x, quiet, rounded), "u16")


def f64_to_f32_odd(m: Arithmetic, x: Value) -> Value:
    """Return an f64 rounded to f32 by rounding to odd.

    An inexact result has a last bit of 1: of the two neighbouring floats, it is the one
    that is odd. Rounding this to float16 then gives the same as rounding the f64 once.
    """
    near = m.convert(x, "f32")
    back = m.convert(near, "f64")
    raw = m.reinterpret(near, "i32")
    even = (raw & 1) == 0
    inexact = (back != x) & (x == x)
    one = m.constant("i32", 1)
    # Step away from zero if the rounding went towards it.
    step = m.select(m.abs(back) < m.abs(x), one, -1)
    return m.reinterpret(raw + m.select(inexact & even, step, 0), "f32")


def saturate(m: Arithmetic, x: Value, target: str) -> Value:
    """Return a float truncated to the integer dtype ``target``.

    Floats outside of its range give the nearest integer in range, NaN gives 0.
    """
    n, signed = width(target), target[0] == "i"
    lowest = -(1 << (n - 1)) if signed else 0
    highest = (1 << (n - signed)) - 1  # a signed dtype has one bit less
    # ``highest`` may not be a float, but the next power of two is.
    above, below = x >= float(highest + 1), x <= float(lowest)
    inside = m.select(above | below | (x != x), 0.0, x)
    result = m.select(above, highest, m.convert(inside, target))
    return m.select(below, lowest, result)


def real(m: Arithmetic, x: Value, source: str, target: str) -> Value:
    """Convert ``x`` from dtype ``source`` to ``target``, both real or bool.

    float16 and bfloat16 values are u16 with their bits, and are converted by way of
    f32. An f64 is rounded to odd first if it becomes a float16, so that it is rounded
    once.
    """
    if source == target:
        return x
    if source in HALF_PRECISION:
        x = m.from_half_bits(x) if source == "f16" else bf16_to_f32(m, x)
        return real(m, x, "f32", target)
    if target in HALF_PRECISION:
        if source == "f64":
            x = f64_to_f32_odd(m, x) if target == "f16" else m.convert(x, "f32")
        elif source != "f32":
            x = real(m, x, source, "f32")
        return m.to_half_bits(x) if target == "f16" else f32_to_bf16(m, x)
    if target == "bool":
        return x != 0
    if source in FLOATS and target in INTEGERS:
        return saturate(m, x, target)
    return m.convert(x, target)


def bitcast(m: Arithmetic, x: Value, source: str, target: str) -> Value:
    """Return the bits of ``x``, of dtype ``source``, as a value of ``target``.

    Both have the same width; f16 and bf16 are u16 here. A c64, a pair of f32, has the
    bits of a u64 with the real part in the low half.
    """
    if source in COMPLEXES:
        low, high = (m.convert(m.reinterpret(part, "u32"), "u64") for part in x)
        x, source = low | (high << 32), "u64"
    if source == "bool":
        x, source = m.convert(x, "u8"), "u8"
    if target in COMPLEXES:
        bits = x if source == "u64" else m.reinterpret(x, "u64")
        parts = (m.convert(bits, "u32"), m.convert(bits >> 32, "u32"))
        return tuple(m.reinterpret(part, "f32") for part in parts)
    if target == "bool":
        return x != 0
    return x if source == target else m.reinterpret(x, target)


def stored(dtype: str) -> str:
    """Return the dtype of a stored ``dtype`` in a kernel: u16 for half precision."""
    return "u16" if dtype in HALF_PRECISION else dtype
