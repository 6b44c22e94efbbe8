"""Arrays of keys of random numbers: elements that are moved, never computed with.

A ``Key`` holds its words as a uint32 array with a last axis of 2, and is a pytree with
that one leaf. So transformations and loops take and return keys like arrays, while no
Program knows them. Functions that move elements take keys as they take other arrays:
``staging.apply`` moves the words alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NoReturn

import numpy as np
from typing_extensions import override

from arrayfn import dtypes, tree
from arrayfn.errors import ArgumentError, DTypeError, IndexingError, user_location
from arrayfn.ir import ArrayType
from arrayfn.primitives import (
    discrete,
    dynamic_slices,
    elementwise,
    indexing,
    slicing,
    views,
)
from arrayfn.primitives.base import Primitive
from arrayfn.records import frozen
from arrayfn.tracing.array_value import ImmutableArray
from arrayfn.tracing.methods import namespace
from arrayfn.tracing.value import Tracer

WORDS: Final = 2  # of a key, each a uint32


@frozen(slots=True, eq=False, repr=False)
class Key(ImmutableArray):
    """Keys of the Threefry-2x32 generator, of any shape.

    ``data`` is uint32[*shape, 2]. A Key is indexed, reshaped, joined, selected and
    updated (``keys.at[i].set(key)``) as other arrays are, and ``==`` compares keys.
    Functions that compute with numbers raise DTypeError for keys. Two keys have the
    same stream if and only if they are equal.

    >>> from arrayfn import random
    >>> keys = random.split(random.key(0), 3)
    >>> keys.shape, keys[0].shape, keys.dtype
    ((3,), (), key<fry>)
    """

    data: Any

    @property
    @override
    def type(self) -> ArrayType:
        """The shape and dtype; the dtype of a Key is ``key<fry>``."""
        return ArrayType(self.shape, dtypes.KEY)

    @property
    @override
    def shape(self) -> tuple[int, ...]:
        """The shape of the array of keys."""
        return tuple(self.data.shape[:-1])

    @property
    @override
    def T(self) -> Key:
        """The keys with the axes in reverse order."""
        return self.transpose()

    @override
    def transpose(self, *axes: Any) -> Key:
        """Return the keys with axes in another order, by default reversed.

        The order is given as one tuple, or as several ints. The axis of words stays
        last.
        """
        order_or_axis = axes[0] if len(axes) == 1 else axes
        # An empty order, or None, reverses the axes.
        axes_or_reversed = tuple(order_or_axis or range(self.ndim)[::-1])
        if isinstance(order_or_axis, int):
            axes_or_reversed = (order_or_axis,)
        ndim = len(axes_or_reversed)
        order = [place % ndim for place in axes_or_reversed]
        return Key(namespace().functions["transpose"](self.data, (*order, ndim)))

    @override
    def reshape(self, *shape: Any) -> Key:
        """Return the same keys with another shape; one extent of it may be -1.

        The shape is given as one tuple, or as several ints.
        """
        shape_or_extent = shape[0] if len(shape) == 1 else shape
        wanted = (
            shape_or_extent
            if isinstance(shape_or_extent, Sequence)
            else (shape_or_extent,)
        )
        # The last axis of ``data`` has the words of each key.
        return Key(namespace().functions["reshape"](self.data, (*wanted, WORDS)))

    @override
    def __iter__(self) -> Iterator[Key]:
        """Iterate over the keys along axis 0."""
        return iter([self[k] for k in range(len(self))])

    @override
    def __len__(self) -> int:
        """Return the extent of axis 0. Raises ArgumentError for a single key."""
        if not self.shape:
            raise ArgumentError(
                "a single key has no length; random.split(key, n) makes n keys",
                user_location(),
            )
        return self.shape[0]

    @override
    def __getitem__(self, index: Any) -> Key:
        """Return keys by an index of NumPy's kinds; the axis of words is kept.

        Raises IndexingError for a single key, unless the index only adds axes.
        """
        entries = index if isinstance(index, tuple) else (index,)
        if not self.shape and any(e is not None and e is not ... for e in entries):
            raise IndexingError(
                "a single key cannot be indexed; random.split(key, n) makes n keys",
                user_location(),
            )
        # (*entries, ..., :) keeps the axis of words; only one Ellipsis is allowed.
        dots = () if any(entry is Ellipsis for entry in entries) else (Ellipsis,)
        getitem = namespace().functions["getitem"]
        return Key(getitem(self.data, (*entries, *dots, slice(None))))

    @override
    def concrete(self, wanted: str, remedy: str) -> NoReturn:
        """Raise DTypeError: keys cannot be used as numbers."""
        raise DTypeError(
            f"{wanted} needs numbers, not keys; random.key_data(key) gives the words",
            user_location(),
        )

    def __array__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise DTypeError: keys are no numbers."""
        raise DTypeError(
            "a Key is not an array of numbers; random.key_data(key) gives its uint32 "
            "words",
            user_location(),
        )

    @override
    def __repr__(self) -> str:
        """Return the words of known keys, else the shape and where the keys are."""
        if isinstance(self.data, np.ndarray):
            return f"Key({self.data.tolist()})"
        if isinstance(self.data, ImmutableArray):
            kind = "traced" if isinstance(self.data, Tracer) else "on a device"
            return f"Key<{self.shape}, {kind}>"
        return f"Key({self.data!r})"


def _children(key: Key) -> tuple[tuple[Any], None]:
    """Return the leaves of a Key as a pytree, and no further data."""
    return (key.data,), None


def _of_children(_: None, children: tuple[Any, ...]) -> Key:
    """Make a Key of its leaf."""
    return Key(children[0])


tree.register_node(Key, _children, _of_children)


_MOVED: Final[dict[Primitive, tuple[int, ...]]] = {
    views.transpose: (0,),
    views.broadcast_in_dim: (0,),
    views.reshape: (0,),
    views.rev: (0,),
    views.stop_gradient: (0,),
    slicing.slice_: (0,),
    slicing.pad: (0, 1),
    slicing.concatenate: (),
    dynamic_slices.dynamic_slice: (0,),
    dynamic_slices.dynamic_update_slice: (0, 1),
    indexing.gather: (0,),
    indexing.scatter: (0, 2),
    elementwise.select: (1, 2),
    discrete.eq: (),
    discrete.ne: (),
}
"""The primitives that move or compare elements, and of which operands; () for all."""


def check_moved(primitive: Primitive, operands: Sequence[Any]) -> None:
    """Raise DTypeError unless ``primitive`` only moves or compares keys.

    All ``operands`` whose elements it moves or compares (see ``_MOVED``) must be keys.
    """
    places = _MOVED.get(primitive)
    if places is None:
        raise DTypeError(
            f"{primitive.name} takes numbers, not keys; draw numbers from a key "
            "(random.normal(key, shape)), or take its words, random.key_data(key)",
            user_location(),
        )
    chosen = [operands[place] for place in places] if places else operands
    if not all(isinstance(x, Key) for x in chosen):
        raise DTypeError(
            f"{primitive.name} takes keys beside keys, and no other values; "
            "random.wrap_key_data(words) gives keys",
            user_location(),
        )
