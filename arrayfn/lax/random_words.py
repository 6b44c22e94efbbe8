"""``rng_bit_generator``: random bits from four words of state, as in XLA."""

from __future__ import annotations

import math
from enum import IntEnum
from typing import Any

import numpy as np

import arrayfn.numpy as anp
from arrayfn import dtypes
from arrayfn.errors import ArgumentError, DTypeError, ShapeError, user_location
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike, DTypeLike
from arrayfn.primitives.random_bits import threefry2x32_0, threefry2x32_1
from arrayfn.tracing import apply


class RandomAlgorithm(IntEnum):
    """The algorithms of ``rng_bit_generator``; the default is Threefry."""

    RNG_DEFAULT = 0
    RNG_THREE_FRY = 1
    RNG_PHILOX = 2


def rng_bit_generator(
    key: ArrayLike,
    shape: Any,
    dtype: DTypeLike = np.uint32,
    algorithm: RandomAlgorithm | str = RandomAlgorithm.RNG_DEFAULT,
) -> tuple[Array, Array]:
    """Make random bits in an array of ``shape``, and return (next key, bits).

    The bits have ``dtype``, an unsigned integer. ``key`` has shape (4,) and dtype
    uint32: two words of a Threefry key, and two of a counter, the low word first. A key
    of two uint64 words is also accepted. The next key has the same form, and a higher
    counter. The bits are those of XLA's RNG_THREE_FRY: Threefry-2x32, Salmon et al. (SC
    2011). ``arrayfn.random`` makes random bits from keys.

    Raises ArgumentError for RNG_PHILOX, ShapeError or DTypeError for other keys and
    dtypes.

    >>> key, bits = rng_bit_generator(np.array([1, 2, 3, 4], np.uint32), (2,))
    >>> key, bits
    (array([1, 2, 4, 4], dtype=uint32),
     array([1576285164, 2249660814], dtype=uint32))
    """
    name = "rng_bit_generator"
    if isinstance(algorithm, str):
        algorithm = RandomAlgorithm[f"RNG_{algorithm.upper().removeprefix('RNG_')}"]
    if algorithm == RandomAlgorithm.RNG_PHILOX:
        raise ArgumentError(
            f"{name} has no Philox generator; leave algorithm out, for Threefry",
            user_location(),
        )
    type = ops.type_of_operand(name, key)
    if type.dtype not in (dtypes.uint32, dtypes.uint64):
        raise DTypeError(
            f"{name}: key must have uint32 or uint64 words, not {type}", user_location()
        )
    wide = type.dtype == dtypes.uint64
    if type.shape != ((2,) if wide else (4,)):
        raise ShapeError(
            f"{name}: key is four uint32 or two uint64 words, not {type}",
            user_location(),
        )
    wanted = dtypes.canonical(dtype)
    if wanted not in dtypes.UNSIGNED:
        raise DTypeError(
            f"{name}: bits must have an unsigned dtype, not {wanted}; reinterpret them "
            "with arrayfn.lax.bitcast_convert_type",
            user_location(),
        )
    extents = ops.as_shape(name, shape)
    size = math.prod(extents)
    words = [ops.convert(key[k], dtypes.uint64) for k in range(type.shape[0])]
    counter = words[1] if wide else words[2] | (words[3] << 32)
    keys = _halves(words[0]) if wide else (key[0], key[1])
    # Threefry makes blocks of two 32-bit words. A uint64 takes both words.
    blocks = size if wanted == dtypes.uint64 else (size + 1) // 2
    following = counter + np.uint64(blocks)
    low, high = _halves(following)
    updated = (
        anp.stack([words[0], following]) if wide else anp.stack([*keys, low, high])
    )
    if wanted == dtypes.uint64:
        first, second = _blocks(keys, counter, extents)
        bits = ops.convert(first, wanted) | (ops.convert(second, wanted) << 32)
        return updated, bits
    # As in XLA, the two words of a block are neighbours along the first even axis. If
    # all extents are odd, the longest axis gets one element more, which is dropped.
    even = [k for k, n in enumerate(extents) if n % 2 == 0]
    if even or not extents:
        axis = even[0] if even else 0
        whole = extents or (2,)
    else:
        axis = int(np.argmax(extents))
        whole = (*extents[:axis], extents[axis] + 1, *extents[axis + 1 :])
    half = (*whole[:axis], whole[axis] // 2, *whole[axis + 1 :])
    pair = anp.stack(_blocks(keys, counter, half), axis + 1)
    bits = anp.reshape(pair, whole)
    if not extents:
        bits = bits[0]
    elif whole != extents:
        bits = anp.take(bits, np.arange(extents[axis]), axis)
    return updated, ops.as_array(ops.convert(bits, wanted))


def _halves(word: Array) -> tuple[Array, Array]:
    """Return the low and the high 32 bits of ``word`` (uint64) as uint32 arrays."""
    low = ops.convert(word & np.uint64(0xFFFFFFFF), dtypes.uint32)
    return low, ops.convert(word >> np.uint64(32), dtypes.uint32)


def _blocks(keys: Any, counter: Array, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """Return the two words of one Threefry block for each element of ``shape``.

    Element i, in row-major order, encrypts ``counter`` + i. ``keys`` are the two uint32
    words of the Threefry key.
    """
    steps = anp.reshape(anp.arange(math.prod(shape), dtype=dtypes.uint64), shape)
    low, high = _halves(counter + steps)
    key_words = [anp.broadcast_to(key, shape) for key in keys]
    return (
        apply(threefry2x32_0, *key_words, low, high),
        apply(threefry2x32_1, *key_words, low, high),
    )
