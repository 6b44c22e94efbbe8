"""Threefry-2x32: counter-based random bits, the same as JAX's.

Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (SC 2011), 20 rounds. There
are two primitives, one for each word of the result.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np

from arrayfn import dtypes
from arrayfn.primitives.base import ZERO_TANGENT, Array, Primitive, Sample, Scalar
from arrayfn.primitives.families import elementwise

_ROTATIONS: Final = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY: Final = 0x1BD11BDA


def threefry_rounds(
    key_0: Any, key_1: Any, counter_0: Any, counter_1: Any
) -> tuple[Any, Any]:
    """Encrypt two counters under a key of two words, by 20 rounds of Threefry-2x32.

    Returns two words of random bits. Words are uint32 arrays, or values of a kernel:
    the reference and the kernels both call this function.
    """
    keys = (key_0, key_1, key_0 ^ key_1 ^ _PARITY)
    x, y = counter_0 + keys[0], counter_1 + keys[1]
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            x = x + y
            y = (y << rotation) | (y >> (32 - rotation))  # rotate left
            y = x ^ y
        # After each four rounds, add two words of the key and the group's number.
        x = x + keys[(group + 1) % 3]
        y = y + keys[(group + 2) % 3] + (group + 1)
    return x, y


def threefry2x32(key_0: Any, key_1: Any, x_0: Any, x_1: Any) -> tuple[Array, Array]:
    """Return both random words for the counters ``x_0`` and ``x_1`` under the key.

    All operands are uint32 arrays, which are broadcast.

    >>> zero = np.zeros((), np.uint32)
    >>> [hex(word) for word in threefry2x32(zero, zero, zero, zero)]
    ['0x6b200159', '0x99ba4efe']
    """
    shape = np.broadcast_shapes(*map(np.shape, (key_0, key_1, x_0, x_1)))
    # NumPy warns of overflow for scalars, but not for arrays, so scalars get an axis.
    words = (np.broadcast_to(x, shape or (1,)) for x in (key_0, key_1, x_0, x_1))
    first, second = threefry_rounds(*words)
    return first.reshape(shape), second.reshape(shape)


def _samples() -> Iterable[Sample]:
    """Yield random words, with a scalar key and with a key for each, for tests."""
    rng = np.random.default_rng(101)

    def words(shape: tuple[int, ...]) -> Array:
        """Return random uint32 numbers."""
        return rng.integers(0, 2**32, shape, np.uint32)

    yield Sample((words(()), words(()), words((3, 5)), words((3, 5))), {})
    yield Sample(tuple(words((4,)) for _ in range(4)), {})


def _word(number: int) -> Primitive:
    """Make the primitive that computes word ``number`` (0 or 1) of the result."""

    def reference(*words: Array) -> Array:
        """Compute both words, and return one."""
        return threefry2x32(*words)[number]

    return elementwise(
        f"threefry2x32_{number}",
        reference,
        ZERO_TANGENT,
        arity=4,
        accepts={dtypes.uint32},
        kernel=Scalar(f"threefry2x32_{number}", cost=80),
        samples=_samples,
        doc=f"Word {number} of the Threefry-2x32 block of the last two operands, under "
        "the key of the first two.",
    )


threefry2x32_0 = _word(0)
threefry2x32_1 = _word(1)
