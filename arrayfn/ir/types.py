"""Types of arrays, and the type of a value."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from typing_extensions import override

from arrayfn.dtypes import (
    SHORT_NAMES,
    DType,
    canonical,
    is_python_scalar,
    short_name,
    weak_dtype,
)
from arrayfn.errors import ArgumentError, user_location
from arrayfn.ir import layout as layouts
from arrayfn.ir.layout import Layout, Shape
from arrayfn.ir.sharding import UNVARYING, NamedSharding
from arrayfn.records import frozen


@frozen(slots=True)
class ArrayType:
    """The shape, data type and layout of an array.

    ``weak`` marks values of Python scalars, which take the dtype of the array that they
    are combined with. A value inside ``shard_map`` may differ between members only
    along the mesh axes in ``varying``. An array over several devices has a
    ``sharding``.
    """

    shape: Shape
    dtype: DType
    layout: Layout = layouts.C
    weak: bool = False
    varying: frozenset[str] = UNVARYING
    sharding: NamedSharding | None = None

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The bytes of the elements."""
        return self.size * self.dtype.itemsize

    def span(self) -> tuple[int, int]:
        """Return (offset of the lowest element from the first, elements spanned).

        Both are in elements. The offset is 0, or negative if a stride is.

        >>> reversed_rows = ArrayType((2, 3), np.dtype("f4"), layouts.Strided((-3, 1)))
        >>> reversed_rows.span()
        (-3, 6)
        """
        if self.size == 0:
            return 0, 0
        steps = self.layout.strides(self.shape)
        ends = [(n - 1) * step for n, step in zip(self.shape, steps, strict=True)]
        low = sum(min(0, end) for end in ends)
        return low, sum(max(0, end) for end in ends) - low + 1

    def plain(self) -> ArrayType:
        """Return the same type, row-major and on one device, as type rules give it."""
        if self.layout is layouts.C and self.sharding is None:
            return self
        return ArrayType(self.shape, self.dtype, layouts.C, self.weak, self.varying)

    def strong(self) -> ArrayType:
        """Return the same type, row-major and on one device, but not weak."""
        return ArrayType(self.shape, self.dtype, varying=self.varying)

    def with_varying(self, axes: frozenset[str]) -> ArrayType:
        """Return the same type for a value that varies along these axes of the mesh."""
        if axes == self.varying:
            return self
        return replace(self, varying=axes)

    def with_shape(self, shape: Iterable[int]) -> ArrayType:
        """Return a row-major type of another shape, neither weak nor varying."""
        return ArrayType(tuple(shape), self.dtype)

    def with_dtype(self, dtype: DType) -> ArrayType:
        """Return a row-major type of another dtype, neither weak nor varying."""
        return ArrayType(self.shape, dtype)

    @override
    def __str__(self) -> str:
        """Return the type in the text form of Programs, such as ``f32[2,3] F``."""
        weak = "~" if self.weak else ""
        text = f"{weak}{short_name(self.dtype)}[{','.join(map(str, self.shape))}]"
        if self.layout != layouts.C:
            text = f"{text} {self.layout}"
        if self.varying:
            text = f"{text} varying({','.join(sorted(self.varying))})"
        return text if self.sharding is None else f"{text} {self.sharding.spec!r}"


def joined_variance(types: Iterable[ArrayType]) -> frozenset[str]:
    """Return the mesh axes along which any value of ``types`` varies."""
    axes = UNVARYING
    for type in types:
        if type.varying:
            axes |= type.varying
    return axes


def why_not_an_array(value: object) -> str:
    """Return why ``value``, of a subclass of NumPy's arrays, is refused.

    The text is empty if ``value`` is accepted as an array.
    """
    if isinstance(value, np.matrix):
        return (
            "a numpy.matrix, whose * is a product of matrices and whose axes are "
            "always two, as no array's are; convert it with numpy.asarray(x), and "
            "write @ for products"
        )
    if isinstance(value, np.ma.MaskedArray):
        return "a masked array, whose mask would be lost; call .filled() first"
    return ""


def type_of(value: object) -> ArrayType:
    """Return the type of ``value``: an array of NumPy or a device, or a scalar.

    Arrays on devices have their type as attribute ``__arrayfn_type__``. An array that
    kernels cannot read has the type of its copy (``as_readable``). Raises ArgumentError
    for a Python int that does not fit int64, and for matrices and masked arrays.
    """
    if type(value) is np.ndarray:
        return _type_of_array(value)
    if is_python_scalar(value):
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise ArgumentError(
                f"the Python int {value} does not fit int64; pass a float, or an array "
                "of uint64",
                user_location(),
            )
        return ArrayType((), weak_dtype(value), weak=True)  # type: ignore[arg-type]
    if not isinstance(value, (np.ndarray, np.generic)):
        known = getattr(value, "__arrayfn_type__", None)
        if isinstance(known, ArrayType):
            return known
    if why := why_not_an_array(value):
        raise ArgumentError(f"an operand is {why}", user_location())
    return _type_of_array(np.asarray(value))


def _type_of_array(array: np.ndarray[Any, Any]) -> ArrayType:
    """Return the type of a NumPy array, with its layout.

    An array that kernels cannot read has the type of its row-major copy.
    """
    dtype = array.dtype
    if dtype not in SHORT_NAMES:
        dtype = canonical(dtype)
    if array.flags.c_contiguous and array.flags.aligned:
        return ArrayType(array.shape, dtype)
    if not _lies_on_elements(array):
        return ArrayType(array.shape, dtype)
    steps = tuple(stride // array.itemsize for stride in array.strides)
    return ArrayType(array.shape, dtype, layouts.from_strides(array.shape, steps))


def as_readable(x: Any) -> Any:
    """Return ``x``, or a row-major copy if kernels cannot read its elements.

    Kernels count strides in elements, and need aligned elements in native byte order.
    Fields of records, and arrays that begin at an odd byte, may have neither.
    """
    if not isinstance(x, np.ndarray) or _lies_on_elements(x):
        return x
    return np.array(x, canonical(x.dtype), order="C")


def _lies_on_elements(array: np.ndarray[Any, Any]) -> bool:
    """Whether elements are aligned and native, and all strides are whole elements."""
    if not (array.flags.aligned and array.dtype.isnative):
        return False
    return not any(step % array.itemsize for step in array.strides)
