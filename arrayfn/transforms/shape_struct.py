"""``ShapeDtypeStruct``: a shape and a data type where no array is needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from arrayfn import dtypes
from arrayfn.dtypes import DType
from arrayfn.errors import AbstractValueError, user_location
from arrayfn.ir import ArrayType
from arrayfn.ir.layout import Shape


class ShapeDtypeStruct:
    """Stands for an array of this shape and data type; it has no elements.

    ``eval_shape``, ``make_program``, ``linear_transpose`` and ``jit(f).lower`` take it
    for an argument.

    >>> ShapeDtypeStruct((3, 4), "float32")
    ShapeDtypeStruct(shape=(3, 4), dtype=float32)
    """

    __slots__ = ("dtype", "shape", "weak_type")

    def __init__(
        self, shape: Sequence[int], dtype: Any, *, weak_type: bool = False
    ) -> None:
        self.shape: Shape = tuple(int(n) for n in shape)
        self.dtype: DType = dtypes.canonical(dtype)
        self.weak_type = weak_type

    @property
    def __arrayfn_type__(self) -> ArrayType:
        """The type of the array that this stands for."""
        return ArrayType(self.shape, self.dtype, weak=self.weak_type)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.__arrayfn_type__.size

    def update(
        self, shape: Sequence[int] | None = None, dtype: Any = None
    ) -> ShapeDtypeStruct:
        """This with another shape or another data type.

        >>> ShapeDtypeStruct((3, 4), "float32").update(shape=(2,))
        ShapeDtypeStruct(shape=(2,), dtype=float32)
        """
        return ShapeDtypeStruct(
            self.shape if shape is None else shape,
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

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ShapeDtypeStruct)
            and self.__arrayfn_type__ == other.__arrayfn_type__
        )

    def __hash__(self) -> int:
        return hash(self.__arrayfn_type__)

    def __repr__(self) -> str:
        weak = ", weak_type=True" if self.weak_type else ""
        return f"ShapeDtypeStruct(shape={self.shape}, dtype={self.dtype}{weak})"
