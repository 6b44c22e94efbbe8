"""``ShapeDtypeStruct``: a shape and a data type where no array is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from typing_extensions import override

from arrayfn import dtypes, tree
from arrayfn.dtypes import DType
from arrayfn.errors import AbstractValueError, ArgumentError, user_location
from arrayfn.ir import ArrayType, type_of
from arrayfn.ir.layout import Shape
from arrayfn.tracing import ImmutableArray, Key
from arrayfn.transforms.sizes import Dim


class ShapeDtypeStruct:
    """A stand-in for an array of this shape and data type, without elements.

    ``eval_shape``, ``make_program``, ``linear_transpose`` and ``jit(f).lower`` take it
    for an argument. An extent that is a ``Dim`` is open. Only ``jit(f).lower`` takes
    open extents.

    >>> ShapeDtypeStruct((3, 4), "float32")
    ShapeDtypeStruct(shape=(3, 4), dtype=float32)
    """

    __slots__ = ("_extents", "dtype", "weak_type")

    def __init__(
        self, shape: Sequence[int | Dim], dtype: Any, *, weak_type: bool = False
    ) -> None:
        if dtype is None:
            raise ArgumentError(
                "ShapeDtypeStruct needs a dtype, such as float32", user_location()
            )
        self._extents = tuple(n if isinstance(n, Dim) else int(n) for n in shape)
        self.dtype: DType = dtypes.canonical(dtype)
        self.weak_type = weak_type

    @property
    def extents(self) -> tuple[int | Dim, ...]:
        """The extents of the axes, some of which may be open."""
        return self._extents

    @property
    def shape(self) -> Shape:
        """The extents of the axes.

        Raises ArgumentError if one is open.
        """
        known = tuple(n for n in self._extents if not isinstance(n, Dim))
        if len(known) != len(self._extents):
            raise ArgumentError(
                f"{self!r} has sizes that are open; only jit(f).lower takes it",
                user_location(),
            )
        return known

    @classmethod
    def like(cls, x: Any) -> Any:
        """Return the ShapeDtypeStruct of ``x``, an array or a number.

        For an array of keys, it is a Key whose words are a ShapeDtypeStruct.

        >>> ShapeDtypeStruct.like(1.5)
        ShapeDtypeStruct(shape=(), dtype=float64, weak_type=True)
        """
        if isinstance(x, Key):
            return Key(cls.like(x.data))
        type = x.type if isinstance(x, ImmutableArray) else type_of(x)
        return cls(type.shape, type.dtype, weak_type=type.weak)

    @property
    def __arrayfn_type__(self) -> ArrayType:
        """The type of the array that this stands for."""
        return ArrayType(self.shape, self.dtype, weak=self.weak_type)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self._extents)

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.__arrayfn_type__.size

    def at(self, sizes: Mapping[str, int]) -> ShapeDtypeStruct:
        """Return a copy with known extents: each ``Dim`` becomes ``sizes[name]``."""
        closed = [sizes[n.name] if isinstance(n, Dim) else n for n in self._extents]
        return ShapeDtypeStruct(closed, self.dtype, weak_type=self.weak_type)

    def update(
        self, shape: Sequence[int] | None = None, dtype: Any = None
    ) -> ShapeDtypeStruct:
        """Return a copy with another shape or another data type.

        >>> ShapeDtypeStruct((3, 4), "float32").update(shape=(2,))
        ShapeDtypeStruct(shape=(2,), dtype=float32)
        """
        return ShapeDtypeStruct(
            self._extents if shape is None else shape,
            self.dtype if dtype is None else dtype,
            weak_type=self.weak_type,
        )

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NoReturn:
        raise AbstractValueError(
            f"{self!r} stands for an array and has no elements; pass an array, or give "
            "it to eval_shape, make_program, linear_transpose or jit(f).lower",
            user_location(),
        )

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a rank-0 array")
        return self.shape[0]

    @override
    def __eq__(self, other: object) -> bool:
        return isinstance(other, ShapeDtypeStruct) and self._parts() == other._parts()

    @override
    def __hash__(self) -> int:
        return hash(self._parts())

    def _parts(self) -> tuple[object, ...]:
        """Return what two equal instances have in common."""
        return self._extents, self.dtype, self.weak_type

    @override
    def __repr__(self) -> str:
        weak = ", weak_type=True" if self.weak_type else ""
        ends = "," if len(self._extents) == 1 else ""
        shape = f"({', '.join(map(str, self._extents))}{ends})"
        return f"ShapeDtypeStruct(shape={shape}, dtype={self.dtype}{weak})"


def stand_ins(arguments: Any) -> Any:
    """Replace arguments with only a shape and a dtype by a ``ShapeDtypeStruct``.

    >>> from types import SimpleNamespace
    >>> stand_ins((SimpleNamespace(shape=(3,), dtype="float32"), 1.0))
    (ShapeDtypeStruct(shape=(3,), dtype=float32), 1.0)
    """
    return tree.map(_stand_in, arguments)


def _stand_in(x: Any) -> Any:
    """Return a ``ShapeDtypeStruct`` for an object with only a shape and a dtype.

    Objects that are arrays, or can become arrays, stay.
    """
    if not (hasattr(x, "shape") and hasattr(x, "dtype")):
        return x
    is_known = hasattr(x, "__arrayfn_type__") or hasattr(x, "__arrayfn_array__")
    if is_known or hasattr(x, "__array__") or hasattr(x, "__dlpack__"):
        return x
    return ShapeDtypeStruct(x.shape, x.dtype)
