"""Keys: immutable arrays of Threefry keys, made from seeds and from one another."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import arrayfn.numpy as anp
from arrayfn import dtypes
from arrayfn.dtypes import DType
from arrayfn.errors import ArgumentError, DTypeError, ShapeError, user_location
from arrayfn.ir.layout import Shape
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.primitives import random_bits, views
from arrayfn.tracing import Key, apply

_WORDS = 2  # 32-bit words of a key
_WORD_LIMIT = 2**32
_LONG_ROW = 64  # elements


def key(seed: ArrayLike, *, impl: Any = None, dtype: Any = None) -> Key:
    """Make a key from an integer ``seed``.

    Its words are the high and the low word of the 64 bits of the seed. There is only
    one generator, so ``impl`` can only be "threefry2x32", and ``dtype`` only that of
    its keys. Raises ArgumentError for other generators, DTypeError if ``seed`` is not
    an integer, and OverflowError if ``seed`` has more than 64 bits.

    >>> key(42)
    Key([0, 42])
    """
    return Key(PRNGKey(seed, impl=_impl_of("key", impl, dtype)))


def key_dtype(impl_spec: Any = None) -> Any:
    """Return the dtype of keys; there is only one.

    Raises ArgumentError for a generator other than Threefry.

    >>> key_dtype() == key(7).dtype
    True
    """
    _check_impl("key_dtype", impl_spec)
    return dtypes.KEY


def PRNGKey(seed: ArrayLike, *, impl: Any = None) -> Array:  # noqa: N802 - JAX's name
    """Return the key of an integer ``seed`` as a plain array uint32[2].

    It is like ``key``, and has the same errors. All functions of this package take such
    arrays in place of a Key.

    >>> PRNGKey(42)
    array([ 0, 42], dtype=uint32)
    """
    _check_impl("key", impl)
    if isinstance(seed, int) and not isinstance(seed, bool):
        if not -(2**63) <= seed < 2**64:
            raise OverflowError(f"random.key: the seed {seed} does not fit in 64 bits")
        words = [seed // _WORD_LIMIT % _WORD_LIMIT, seed % _WORD_LIMIT]
        return anp.asarray(np.array(words, np.uint32))
    type = ops.type_of_operand("key", seed)
    if type.dtype not in dtypes.INTEGERS or type.shape:
        raise DTypeError(
            f"random.key takes one integer as the seed, not {type}", user_location()
        )
    low = anp.astype(seed, dtypes.uint32)
    if type.dtype.itemsize < 8:
        high = anp.zeros_like(low)
    else:
        high = anp.astype(anp.right_shift(seed, 32), dtypes.uint32)
    return anp.stack([high, low])


def _impl_of(name: str, impl: Any, dtype: Any) -> Any:
    """Return ``impl`` or ``dtype``, whichever is given; ArgumentError if both are."""
    if impl is not None and dtype is not None:
        raise ArgumentError(
            f"random.{name} takes impl or dtype, not both", user_location()
        )
    return dtype if impl is None else impl


def _check_impl(name: str, impl: Any) -> None:
    """Raise ArgumentError, about ``name``, unless ``impl`` is Threefry or None."""
    if impl not in (None, "threefry2x32", "fry", dtypes.KEY):
        raise ArgumentError(
            f"random.{name}: the only generator is 'threefry2x32', not {impl!r}",
            user_location(),
        )


def wrap_key_data(
    key_bits_array: ArrayLike, *, impl: Any = None, dtype: Any = None
) -> Key:
    """Return the keys whose words are ``key_bits_array``, uint32[..., 2].

    Raises DTypeError or ShapeError for other arrays.

    >>> wrap_key_data(np.array([0, 7], np.uint32))
    Key([0, 7])
    """
    _check_impl("wrap_key_data", _impl_of("wrap_key_data", impl, dtype))
    type = ops.type_of_operand("wrap_key_data", key_bits_array)
    if type.dtype != dtypes.uint32:
        raise DTypeError(
            f"the words of a key must be uint32, not {type}", user_location()
        )
    if not type.shape or type.shape[-1] != _WORDS:
        raise ShapeError(
            f"keys must be uint32[..., 2], not {type}; make one with random.key(seed)",
            user_location(),
        )
    return Key(key_bits_array)


def key_data(keys: Key | ArrayLike) -> Array:
    """Return the words of ``keys``, uint32[..., 2].

    >>> key_data(key(7))
    array([0, 7], dtype=uint32)
    """
    return ops.same(as_key("key_data", keys).data)


def key_impl(keys: Key | ArrayLike) -> str:
    """Return the name of the generator of ``keys``, which is always the same.

    >>> key_impl(key(7))
    'threefry2x32'
    """
    as_key("key_impl", keys)
    return "threefry2x32"


def clone(key: Key) -> Key:
    """Return the same key, to show that a stream is used twice on purpose."""
    return as_key("clone", key)


def as_key(name: str, given: Any) -> Key:
    """Convert ``given``, a Key or an array of its words, to a Key.

    Raises ArgumentError, about random.``name``, if it is neither.
    """
    if isinstance(given, Key):
        return given
    if ops.is_array(given):
        return wrap_key_data(given)
    raise ArgumentError(
        f"random.{name} takes a key first, not {type(given).__name__}; make one with "
        "random.key(seed)",
        user_location(),
    )


def single(name: str, given: Any) -> Key:
    """Convert ``given`` to one key; ShapeError if it is an array of several.

    Errors are about random.``name``.
    """
    key = as_key(name, given)
    if key.shape:
        raise ShapeError(
            f"random.{name} takes a single key, but was given keys of shape "
            f"{key.shape}; map over them with vmap",
            user_location(),
        )
    return key


def words_of(key: Key) -> tuple[Array, Array]:
    """Return both words of one key, of rank 0."""
    return anp.getitem(key.data, 0), anp.getitem(key.data, 1)


def block(key: Key, high: ArrayLike, low: ArrayLike) -> tuple[Array, Array]:
    """Return both words of the Threefry-2x32 block of the counter ``(high, low)``.

    ``high`` and ``low`` are uint32, and ``key`` is one key.
    """
    first, second = words_of(key)
    return (
        apply(random_bits.threefry2x32_0, first, second, high, low),
        apply(random_bits.threefry2x32_1, first, second, high, low),
    )


def counters(shape: Shape) -> tuple[ArrayLike, ArrayLike]:
    """Return the row-major position of each element of ``shape``, as a counter.

    The counter is the high and the low 32-bit word of the position.
    """
    size = math.prod(shape)
    if size <= _WORD_LIMIT:
        return ops.scalar(0, dtypes.uint32), _positions(shape, dtypes.uint32)
    position = _positions(shape, dtypes.uint64)
    high = anp.astype(anp.right_shift(position, 32), dtypes.uint32)
    return high, anp.astype(position, dtypes.uint32)


def _positions(shape: Shape, dtype: DType) -> Array:
    """Return the row-major position of each element, in ``dtype``."""
    if len(shape) <= 1 or shape[-1] < _LONG_ROW:
        flat = apply(views.iota, shape=(math.prod(shape),), axis=0, dtype=dtype)
        return anp.reshape(flat, shape)
    # For long rows, a sum over the axes needs no memory, because it fuses.
    total = apply(views.iota, shape=shape, axis=len(shape) - 1, dtype=dtype)
    for axis in range(len(shape) - 1):
        stride = math.prod(shape[axis + 1 :])
        steps = apply(views.iota, shape=shape, axis=axis, dtype=dtype)
        total = anp.add(total, anp.multiply(steps, stride))
    return total


def split(key: Key | ArrayLike, num: int | tuple[int, ...] = 2) -> Any:
    """Make ``num`` new keys whose streams are independent.

    ``num`` may also be a shape. A Key gives a Key of shape (num,). Plain words give
    words uint32[num, 2].

    >>> a, b = split(key(0))
    >>> a
    Key([1797259609, 2579123966])
    """
    one_key = single("split", key)
    parts = block(one_key, *counters(ops.as_shape("split", num)))
    data = anp.stack(list(parts), axis=-1)
    return Key(data) if isinstance(key, Key) else data


def fold_in(key: Key | ArrayLike, data: ArrayLike) -> Any:
    """Make a new key from ``key`` and an integer, such as the number of a step.

    Only the low 32 bits of ``data`` are used. The result is a Key if ``key`` is one.

    >>> fold_in(key(0), 1)
    Key([928981903, 3453687069])
    """
    one_key = single("fold_in", key)
    type = ops.type_of_operand("fold_in", data)
    if type.dtype not in dtypes.INTEGERS or type.shape:
        raise DTypeError(
            f"random.fold_in takes one integer to fold in, not {type}; map over "
            "several with vmap",
            user_location(),
        )
    if isinstance(data, int):
        low: ArrayLike = ops.scalar(data % _WORD_LIMIT, dtypes.uint32)
    else:
        low = anp.astype(data, dtypes.uint32)
    folded = anp.stack(list(block(one_key, ops.scalar(0, dtypes.uint32), low)))
    return Key(folded) if isinstance(key, Key) else folded


__all__ = [
    "Key",
    "PRNGKey",
    "clone",
    "fold_in",
    "key",
    "key_data",
    "key_dtype",
    "key_impl",
    "split",
    "wrap_key_data",
]
