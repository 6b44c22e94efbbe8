"""Reduces angles to [-pi/4, pi/4] and a quadrant.

Arguments up to a limit are reduced by a three-part pi/2 with exact products; larger
ones by the relevant bits of 2/pi (Payne and Hanek, 1983). The result is a pair.
"""

from __future__ import annotations

from arrayfn.lowering.scalars.arithmetic import (
    FORMATS,
    Arithmetic,
    Pair,
    Value,
    bits,
    fast_two_sum,
    pair_product,
    reals,
    two_product,
    two_sum,
)

HALF_PI = {
    "f32": (1.5707963705062866, -4.371138828673793e-08, -1.7151245100058819e-15),
    "f64": (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33),
}
"""Parts that sum up to pi/2."""
LIMIT = {"f32": 2.0**17, "f64": 2.0**30}
"""The largest argument for which ``reduce`` is accurate."""
_DIGITS = (
    "A2F9836E4E441529FC2757D1F534DDC0DB6295993C439041FE5163ABDEBBC561"
    "B7246E3A424DD2E006492EEA09D1921CFE1DEB1CB129A73EE88235F52EBB4484"
    "E99C7026B45F7E413991D639835339F49C845F8BBDF9283B1FF897FFDE05980F"
    "EF2F118B5A0A6D1F6D367ECF27CB09B74F463F669E5FEA2D7527BAC7EBE5F17B"
    "3D0739F78A5292EA6BFB5FB11F8D5D0856033046FC7B6BABF0CFBC209AF4361D"
    "A9E391615EE61B08"
)
TWO_OVER_PI = (0, 0, *(int(_DIGITS[k : k + 8], 16) for k in range(0, len(_DIGITS), 8)))
"""2/pi in words of 32 bits, high first, after two words of zeros."""


def reduce(m: Arithmetic, a: Value) -> tuple[Value, Pair]:
    """Reduce an angle ``a``: return ``(n, r)`` with ``a = n pi/2 + r``.

    ``a`` is from 0 to the ``LIMIT`` of its format. n is the nearest integer to ``a
    2/pi``, so |r| is about pi/4 at most; r is a pair. Only the low bits of the returned
    n are right: use it modulo 4.
    """
    f = reals(m, a)
    first, second, third = HALF_PI[f.dtype]
    # The factor is 2/pi. Adding ``rounding_shift`` rounds to an integer, in the lowest
    # bits of the sum.
    shifted = m.fma(a, 0.6366197723675814, m.constant(f.dtype, f.rounding_shift))
    n = shifted - f.rounding_shift
    r = m.fma(n, -first, a)
    product, product_low = two_product(m, n, m.constant(f.dtype, second))
    high, low = two_sum(r, -product)
    low = low - m.fma(n, third, product_low)
    return bits(m, shifted), fast_two_sum(high, low)


def reduce_huge(m: Arithmetic, a: Value) -> tuple[Value, Pair]:
    """Reduce any finite f64 angle ``a >= 2**17``, with the result of ``reduce``.

    ``a = M 2**E`` with an integer M of 53 bits. The product ``a 2/pi`` is needed modulo
    4. So those high bits of 2/pi are skipped whose products with M are multiples of 4,
    and the next 192 bits are multiplied by M. The product's top two bits are the
    quadrant, and 190 bits of fraction follow, of which the last 53 are not exact. A
    double comes no nearer to a multiple of pi/2 than 2**-62, so enough exact bits
    remain.
    """
    f = FORMATS["f64"]
    raw = m.reinterpret(a, "u64")
    mantissa = (raw & f.mantissa_mask) | (1 << f.mantissa)
    # E - 2 bits of 2/pi are skipped; the table begins with 64 zero bits.
    skip = m.reinterpret(raw >> f.mantissa, "i64") - (f.bias + f.mantissa + 2 - 64)
    word, shift = skip >> 5, m.reinterpret(skip & 31, "u64")
    words = [m.lookup(TWO_OVER_PI, word + k) for k in range(7)]
    mask = 0xFFFFFFFF
    # The 192 bits from bit ``skip`` on, as 6 words of 32 bits, the lowest word first.
    window = [
        (((words[k] << 32) | words[k + 1]) >> (32 - shift)) & mask
        for k in reversed(range(6))
    ]
    # Multiply the 6 words by the two words of M as in long multiplication; only the low
    # 192 bits of the product are kept.
    low_half, high_half = mantissa & mask, mantissa >> 32
    product: list[Value] = []
    carry = m.constant("u64", 0)
    for k in range(6):
        carry = low_half * window[k] + (carry >> 32)
        product.append(carry & mask)
    carry = m.constant("u64", 0)
    for k in range(5):
        carry = high_half * window[k] + (product[k + 1] + (carry >> 32))
        product[k + 1] = carry & mask
    # The first 128 bits of the fraction, after the two bits of the quadrant.
    high = (product[5] << 34) | (product[4] << 2) | (product[3] >> 30)
    low = (product[3] << 34) | (product[2] << 2) | (product[1] >> 30)
    # Round to the nearest quadrant, so that the fraction becomes signed.
    negative = (high >> 63) != 0
    quadrant = (product[5] >> 30) + m.convert(negative, "u64")
    high = m.select(negative, ~high, high)
    low = m.select(negative, ~low, low)
    # The fraction as a pair of floats, then times pi/2.
    parts = (high >> 32, high & mask, low >> 32, low & mask)
    terms = [
        m.convert(part, "f64") * 2.0 ** (-32 * (k + 1)) for k, part in enumerate(parts)
    ]
    total = fast_two_sum(terms[0], terms[1])
    rest = fast_two_sum(total[1], terms[2] + terms[3])
    angle_high, angle_low = fast_two_sum(total[0], rest[0])
    first, second, _ = HALF_PI["f64"]
    half_pi = m.constant("f64", first), m.constant("f64", second)
    r, r_low = pair_product(m, (angle_high, angle_low + rest[1]), half_pi)
    r, r_low = (m.select(negative, -v, v) for v in (r, r_low))
    return m.reinterpret(quadrant, "i64"), (r, r_low)
