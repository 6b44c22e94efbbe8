"""Index arithmetic and grids: indices of triangles and diagonals, mgrid, ravel."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy import index_exp, s_
from typing_extensions import override

from arrayfn import dtypes
from arrayfn.errors import ArgumentError, ShapeError, user_location
from arrayfn.ir.layout import Shape
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike, DTypeLike
from arrayfn.numpy.arithmetic import divide, multiply, power
from arrayfn.numpy.arithmetic import sign as sign_of
from arrayfn.numpy.comparison import where
from arrayfn.numpy.creation import arange, asarray, linspace, meshgrid
from arrayfn.numpy.data_dependent import flatnonzero, nonzero
from arrayfn.numpy.index_bounds import index_error
from arrayfn.numpy.manipulation import (
    broadcast_to,
    concatenate,
    expand_dims,
    moveaxis,
    stack,
)
from arrayfn.numpy.transcendental import log10
from arrayfn.primitives import views
from arrayfn.records import frozen
from arrayfn.tracing import ImmutableArray, Tracer, apply, constant


def indices(
    dimensions: Sequence[int], dtype: DTypeLike = np.int64, sparse: bool = False
) -> Any:
    """Return the index along each axis, for every element of an array.

    ``dimensions`` is the shape of the array. For n axes, the result has the shape (n,
    *dimensions) and ``dtype``. With ``sparse``, the result is a tuple of n arrays,
    which have extent 1 along the other axes.
    """
    shape = ops.as_shape("indices", dimensions)
    wanted = dtypes.canonical(dtype)
    if sparse:
        grids = meshgrid(
            *[arange(n, dtype=wanted) for n in shape], indexing="ij", sparse=True
        )
        return tuple(grids)
    if not shape:
        return ops.full(0, (0,), wanted)
    axes = range(len(shape))
    return stack([apply(views.iota, shape=shape, axis=k, dtype=wanted) for k in axes])


def fromfunction(
    function: Callable[..., Any],
    shape: Sequence[int],
    *,
    dtype: DTypeLike = np.float64,
    **options: Any,
) -> Any:
    """Call ``function`` with the indices of an array of ``shape``.

    ``function`` receives an array of indices for each axis, as from ``indices(shape,
    dtype)``, and ``options``.
    """
    return function(*indices(shape, dtype), **options)


def ix_(*x: ArrayLike) -> tuple[Array, ...]:
    """Make an open grid of index vectors, which indexes all their combinations.

    For example, ``x[ix_([0, 2], [1])]`` has column 1 of rows 0 and 2. Vector k becomes
    an array with its elements along axis k, and extent 1 along the others. A mask
    becomes the positions of its true elements. Raises ShapeError if an argument is no
    vector.
    """
    vectors = [asarray(a) if not isinstance(a, ImmutableArray) else a for a in x]
    grids: list[Array] = []
    for axis, vector in enumerate(vectors):
        if vector.ndim != 1:
            raise ShapeError(
                f"ix_ takes vectors, not an array of shape {vector.shape}",
                user_location(),
            )
        if vector.dtype == dtypes.bool_:
            vector = flatnonzero(vector)
        elif not vector.size:  # an empty list is converted to float64
            vector = ops.convert(vector, dtypes.int64)
        others = tuple(k for k in range(len(vectors)) if k != axis)
        grids.append(expand_dims(vector, others) if others else ops.same(vector))
    return tuple(grids)


class Grid:
    """``mgrid`` and ``ogrid`` make a grid of the slices of an index.

    An imaginary step is the number of points, including the last. ``mgrid`` gives whole
    grids in one array. ``ogrid`` gives a tuple of arrays that broadcast to whole grids.

    >>> mgrid[0:2, 0:1:3j]
    array([[[0. , 0. , 0. ],
            [1. , 1. , 1. ]],
    <BLANKLINE>
           [[0. , 0.5, 1. ],
            [0. , 0.5, 1. ]]])
    >>> ogrid[0:2, 0:1:3j]
    (array([[0.],
           [1.]]), array([[0. , 0.5, 1. ]]))
    """

    def __init__(self, sparse: bool) -> None:
        """Make ``ogrid`` if ``sparse``, else ``mgrid``."""
        self._sparse = sparse

    @override
    def __repr__(self) -> str:
        """Return the public name."""
        return f"arrayfn.numpy.{'ogrid' if self._sparse else 'mgrid'}"

    def __getitem__(self, index: Any) -> Any:
        """Return the grid for ``index``, a slice or a tuple of slices.

        A single slice gives a vector.
        """
        if isinstance(index, slice):
            return _points(index)
        if not index:
            return () if self._sparse else ops.full(0, (0,), dtypes.int64)
        axes = [_points(part) for part in index]
        common = ops.common_dtype("mgrid", axes)
        axes = [ops.convert(points, common) for points in axes]
        grids = meshgrid(*axes, indexing="ij", sparse=self._sparse)
        return tuple(grids) if self._sparse else stack(grids)


mgrid = Grid(sparse=False)
ogrid = Grid(sparse=True)


def _points(part: slice) -> Array:
    """Return the points start, start + step, ... that a slice describes, as a vector.

    An imaginary step is the number of points from start to stop (inclusive).
    """
    start = 0 if part.start is None else part.start
    step = 1 if part.step is None else part.step
    if isinstance(step, complex):
        return linspace(start, part.stop, int(math.fabs(step.imag)))
    return arange(start, part.stop, step)


@frozen
class Joined:
    """The objects ``r_`` and ``c_``, which join the parts of an index: ``r_[a, 0]``.

    The index may begin with a text of up to three numbers, as in ``r_["0,2,1", a, b]``.
    The first number is the axis along which parts are joined. The second is the
    smallest number of axes of a part. The third is the position of the part's own axes
    among these. The text "r" or "c" makes a matrix of joined vectors, with one row or
    one column.

    >>> import numpy as np
    >>> r_["0,2", np.arange(3), 7:10]
    array([[0, 1, 2],
           [7, 8, 9]])
    """

    axis: int
    ndmin: int
    place: int  # of a part's own first axis among ndmin; negative: of its last axis

    def __getitem__(self, index: Any) -> Array:
        """Join the parts of ``index``: arrays, numbers and slices, after optional text.

        A slice stands for its points (see ``_points``). The result has the dtype to
        which the parts promote.
        """
        parts = index if isinstance(index, tuple) else (index,)
        axis, ndmin, place, as_matrix = self.axis, self.ndmin, self.place, ""
        if parts and isinstance(parts[0], str):
            directive, parts = parts[0], parts[1:]
            if directive in ("r", "c"):
                as_matrix = directive
            else:
                axis, ndmin, place = self._directed(directive)
        values = [_points(part) if isinstance(part, slice) else part for part in parts]
        values = [v if dtypes.is_python_scalar(v) else asarray(v) for v in values]
        dtype = ops.common_dtype("r_ and c_", values)
        arrays = [ops.as_array(ops.convert(value, dtype)) for value in values]
        joined = concatenate([_with_axes(x, ndmin, place) for x in arrays], axis)
        if as_matrix and joined.ndim == 1:
            return expand_dims(joined, 0 if as_matrix == "r" else 1)
        return joined

    def _directed(self, directive: str) -> tuple[int, int, int]:
        """Return axis, number of axes and place from a text such as "0,2,1".

        Missing numbers are those of this object. Raises ArgumentError for other text.
        """
        words = directive.split(",")[:3]
        defaults = (self.axis, self.ndmin, self.place)
        try:
            axis, ndmin, place = (*map(int, words), *defaults[len(words) :])
        except ValueError:
            raise ArgumentError(
                "a first text of r_ and c_ must be 'r', 'c' or up to three integers, "
                f"as in '0,2,1', not {directive!r}",
                user_location(),
            ) from None
        return axis, ndmin, place


def _with_axes(x: Array, ndim: int, place: int) -> Array:
    """Return ``x`` with at least ``ndim`` axes, of which its own begin at ``place``.

    The other axes have extent 1. A negative ``place`` counts the position of the last
    own axis from the end: -1 makes the own axes the last ones.
    """
    missing = ndim - x.ndim
    if missing <= 0:
        return x
    start = place + missing + 1 if place < 0 else place
    return expand_dims(
        x, tuple(k for k in range(ndim) if not start <= k < start + x.ndim)
    )


r_ = Joined(axis=0, ndmin=1, place=-1)
c_ = Joined(axis=-1, ndmin=2, place=0)


# Indices of matrices.


def diag_indices(n: int, ndim: int = 2) -> tuple[Array, ...]:
    """Return the int64 indices of the diagonal of an array, one vector for each axis.

    The array has ``ndim`` axes of extent n, and each vector is 0, 1, ..., n - 1.
    """
    return tuple(arange(n) for _ in range(ndim))


def diag_indices_from(arr: ArrayLike) -> tuple[Array, ...]:
    """Return the int64 indices of the diagonal of ``arr``, one vector for each axis.

    All axes of ``arr`` must have the same extent, and there are at least two;
    ShapeError otherwise.
    """
    shape = ops.type_of_operand("diag_indices_from", arr).shape
    if len(shape) < 2 or len(set(shape)) != 1:
        raise ShapeError(
            f"diag_indices_from takes two or more axes of one extent, not {shape}",
            user_location(),
        )
    return diag_indices(shape[0], len(shape))


def tril_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Array, Array]:
    """Return the rows and columns of the elements on and below diagonal k of a matrix.

    The matrix is n by m (n by n if m is None). Both results are int64 vectors.
    """
    rows, columns = np.tril_indices(n, k, m)
    return constant(rows), constant(columns)


def triu_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Array, Array]:
    """Return the rows and columns of the elements on and above diagonal k of a matrix.

    The matrix is n by m (n by n if m is None). Both results are int64 vectors.
    """
    rows, columns = np.triu_indices(n, k, m)
    return constant(rows), constant(columns)


def tril_indices_from(arr: ArrayLike, k: int = 0) -> tuple[Array, Array]:
    """Return the rows and columns of the elements of ``arr`` on and below diagonal k.

    Raises ShapeError unless ``arr`` is a matrix.
    """
    n, m = _matrix("tril_indices_from", arr)
    return tril_indices(n, k, m)


def triu_indices_from(arr: ArrayLike, k: int = 0) -> tuple[Array, Array]:
    """Return the rows and columns of the elements of ``arr`` on and above diagonal k.

    Raises ShapeError unless ``arr`` is a matrix.
    """
    n, m = _matrix("triu_indices_from", arr)
    return triu_indices(n, k, m)


def _matrix(name: str, x: ArrayLike) -> Shape:
    """Return the shape of x; ShapeError, about ``name``, unless it is a matrix."""
    shape = ops.type_of_operand(name, x).shape
    if len(shape) != 2:
        raise ShapeError(f"{name} takes a matrix, not {shape}", user_location())
    return shape


def mask_indices(
    n: int, mask_func: Callable[..., Any], k: Any = 0, *, size: int | None = None
) -> tuple[Array, ...]:
    """Return the indices of the nonzero elements of ``mask_func(ones((n, n)), k)``.

    ``mask_func`` is a function such as ``tril``. With ``size``, there are exactly that
    many indices (see ``nonzero``).
    """
    vectors = nonzero(mask_func(np.ones((n, n), np.int64), k), size=size)
    # Inside a trace, known indices become traced constants.
    return tuple(x if isinstance(x, Tracer) else constant(x) for x in vectors)


# Multi-indices and flat ones.


def ravel_multi_index(
    multi_index: Sequence[ArrayLike],
    dims: Sequence[int],
    mode: str = "raise",
    order: str = "C",
    *,
    dtype: DTypeLike = None,
) -> Array:
    """Convert indices along the axes of an array of shape ``dims`` to flat indices.

    ``multi_index`` has an array of indices for each axis. ``mode`` handles indices out
    of bounds: "wrap", "clip" or "raise". "raise" needs the values of the indices, and
    raises IndexingError. ``order`` is "C" (row-major) or "F". The result has dtype
    int64, or ``dtype``. Raises ShapeError for another number of arrays.
    """
    shape = ops.as_shape("ravel_multi_index", dims)
    parts = [asarray(part) for part in multi_index]
    if len(parts) != len(shape):
        raise ShapeError(
            f"ravel_multi_index takes {len(shape)} indices for the shape {shape}, not "
            f"{len(parts)}",
            user_location(),
        )
    places: Any = np.asarray(0)
    extents = list(zip(parts, shape, strict=True))
    row_major = ops.is_row_major("ravel_multi_index", order)
    # Horner's rule: ((i0 * n1 + i1) * n2 + i2) ...
    for part, extent in extents if row_major else extents[::-1]:
        places = places * extent + _within(part, extent, mode)
    return asarray(places, dtype)


def _within(part: Array, extent: int, mode: str) -> Array:
    """Return the indices ``part``, which ``mode`` brings into 0 to ``extent`` - 1.

    With "raise", the indices must be known while tracing, and IndexingError is raised
    for one that is out of bounds. Raises ArgumentError for another mode.
    """
    if mode == "wrap":
        return part % extent
    if mode == "clip":
        return where(part < 0, 0, where(part >= extent, extent - 1, part))
    if mode != "raise":
        raise ArgumentError(
            f"ravel_multi_index has no mode {mode!r}; it has 'raise', 'wrap', 'clip'",
            user_location(),
        )
    value = part
    if isinstance(part, ImmutableArray):
        value = part.concrete(
            "ravel_multi_index with mode='raise'", "Give it mode='wrap' or 'clip'"
        )
    if value.size and (value.min() < 0 or value.max() >= extent):
        raise index_error(
            f"ravel_multi_index: an index is out of bounds for an axis of {extent}"
        )
    return part


def unravel_index(indices: ArrayLike, shape: Any, order: str = "C") -> Any:
    """Convert flat indices to indices along the axes of an array of ``shape``.

    The result is a tuple with an array for each axis. Negative indices count from the
    end, and indices out of bounds are clamped. ``order`` is "C" (row-major) or "F". The
    extents of ``shape`` may be traced.
    """
    known = not any(isinstance(n, ImmutableArray) for n in (shape, *_entries(shape)))
    extents = ops.as_shape("unravel_index", shape) if known else _entries(shape)
    size = math.prod(extents)
    places: Any = asarray(indices)
    places = where(places < 0, places + size, places)
    places = where(places < 0, 0, where(places >= size, size - 1, places))
    positions: list[Array] = []
    row_major = ops.is_row_major("unravel_index", order)
    # The last axis of a row-major array varies fastest, so it comes first.
    for extent in extents[::-1] if row_major else extents:
        positions.append(asarray(places % extent))
        places = places // extent
    return tuple(positions[::-1] if row_major else positions)


def _entries(shape: Any) -> tuple[Any, ...]:
    """Return the extents of a shape, which may be traced, as a tuple.

    ``shape`` is one extent, a sequence or a traced vector.
    """
    if isinstance(shape, (tuple, list)):
        return tuple(shape)
    return tuple(shape) if getattr(shape, "ndim", 0) else (shape,)


# Sequences.


def geomspace(
    start: ArrayLike,
    stop: ArrayLike,
    num: int = 50,
    endpoint: bool = True,
    dtype: DTypeLike = None,
    axis: int = 0,
) -> Array:
    """Return ``num`` numbers from start to stop with a constant ratio.

    ``stop`` is the last number if ``endpoint``. If start or stop is an array, the
    numbers lie along a new ``axis``. ``dtype`` is that of the result; integers give
    floats. Real start and stop must have the same sign. Between complex numbers, the
    phase changes too.
    """
    wide = ops.inexact_dtype("geomspace", ops.common_dtype("geomspace", (start, stop)))
    ends, types, _ = ops.promoted("geomspace", (start, stop), wide)
    first, last = (ops.as_array(v) for v in ops.broadcast("geomspace", ends, types))
    is_complex = first.dtype in dtypes.COMPLEX
    one = ops.full(1, (), first.dtype)
    sign = sign_of(first) if is_complex else where(first < 0, -one, one)
    # Without the sign (or phase) of start, both logarithms are defined.
    low, high = (log10(divide(value, sign)) for value in (first, last))
    exponents = linspace(low, high, num, endpoint, axis=axis)
    values = multiply(sign, moveaxis(power(10.0, exponents), axis, 0))
    # Make both ends exactly start and stop.
    first, last = (broadcast_to(value, values.shape[1:]) for value in (first, last))
    if num > 0:
        values = concatenate([expand_dims(first, 0), values[1:]])
    if num > 1 and endpoint:
        values = concatenate([values[:-1], expand_dims(last, 0)])
    values = moveaxis(values, 0, axis)
    return values if dtype is None else ops.convert(values, dtypes.canonical(dtype))


def vander(x: ArrayLike, N: int | None = None, increasing: bool = False) -> Array:
    """Return the Vandermonde matrix: row i has the powers N - 1 to 0 of x[i].

    With ``increasing``, the powers are 0 to N - 1. N is the length of the vector x by
    default. The dtype is that of x. Raises ShapeError if x is no vector.
    """
    type = ops.type_of_operand("vander", x)
    if type.ndim != 1:
        raise ShapeError(f"vander takes a vector, not {type}", user_location())
    count = type.shape[0] if N is None else N
    columns = [ops.full(1, type.shape, type.dtype)]
    for _ in range(count - 1):
        columns.append(multiply(columns[-1], x))
    columns = columns[:count]
    if not columns:
        return ops.full(0, (type.shape[0], 0), type.dtype)
    return stack(columns if increasing else columns[::-1], -1)


__all__ = [
    "Grid",
    "Joined",
    "c_",
    "diag_indices",
    "diag_indices_from",
    "fromfunction",
    "geomspace",
    "index_exp",
    "indices",
    "ix_",
    "mask_indices",
    "mgrid",
    "ogrid",
    "r_",
    "ravel_multi_index",
    "s_",
    "tril_indices",
    "tril_indices_from",
    "triu_indices",
    "triu_indices_from",
    "unravel_index",
    "vander",
]
