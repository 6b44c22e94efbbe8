"""The formats: ``CSR``, ``CSC`` and ``COO``."""

from __future__ import annotations

from typing import Any, ClassVar, Self, cast

import numpy as np
from typing_extensions import override

import arrayfn.numpy as anp
from arrayfn import dtypes, tree
from arrayfn.errors import ArgumentError, ShapeError, user_location
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array
from arrayfn.sparse import products, structure
from arrayfn.sparse.array import SparseArray
from arrayfn.sparse.products import Indices, Shape
from arrayfn.tracing import ImmutableArray, is_staged


class _Format(SparseArray):
    """The constructor of all formats."""

    def __init__(
        self, given: Any, shape: Any = None, dtype: Any = None, copy: bool = False
    ) -> None:
        """Create a matrix from ``given``; see ``CSR`` for the arguments."""
        matrix = _matrix(type(self), given, _as_shape(shape))
        if dtype is not None:
            matrix = matrix.astype(dtype)
        if copy:
            matrix = matrix.copy()
        self._hold(matrix.data, matrix.positions, matrix.shape)

    @classmethod
    def fromdense(
        cls, mat: Any, *, nse: int | None = None, index_dtype: Any = np.int32
    ) -> Self:
        """Return a sparse matrix of the elements of a dense matrix that are not 0.

        With ``nse`` the result has that number of entries, of which some may be
        padding, and ``mat`` may be traced. Further elements are left out. Raises
        AbstractValueError for a traced matrix without ``nse``.

        >>> from arrayfn.compilation.jit import jit
        >>> count = jit(lambda x: CSR.fromdense(x, nse=3) @ np.ones(2))
        >>> count(np.array([[1.0, 0.0], [2.0, 3.0]]))
        array([1., 5.])
        """
        if nse is None:
            return cls(mat)
        shape = cast(Shape, ops.type_of_operand("fromdense", mat).shape)
        # Padding is at the position (m, n), outside of the matrix.
        rows, columns = anp.nonzero(mat, size=nse, fill_value=shape)
        rows, columns = (anp.astype(x, index_dtype) for x in (rows, columns))
        data = anp.at(mat)[rows, columns].get(mode="fill", fill_value=0)
        return COO((data, (rows, columns)), shape).asformat(cls.format)

    @classmethod
    def tree_unflatten(cls, metadata: Any, children: tuple[Any, ...]) -> Self:
        """Return the matrix of the leaves ``children``; ``metadata`` is its shape."""
        matrix = object.__new__(cls)
        data, first, second = children
        matrix._hold(data, (first, second), metadata)
        return matrix

    def tree_flatten(self) -> tuple[tuple[Any, ...], Shape]:
        """Return the leaves (data and two index arrays), and the shape."""
        return (self.data, *self.positions), self.shape


class _Compressed(_Format):
    """A matrix by rows or columns, one after the other, with pointers.

    ``indptr`` says where each row or column begins among the entries, and where the
    last ends. ``indices`` has the column or row of each entry.
    """

    indptr: Array

    @property
    @override
    def positions(self) -> Indices:
        """The arrays ``indices`` and ``indptr``."""
        return self.indices, self.indptr

    @override
    def _hold(self, data: Array, positions: Indices, shape: Shape) -> None:
        """Set the attributes to the arrays and the shape."""
        self.data = data
        self.indices, self.indptr = positions
        self.shape = shape

    @override
    def tocoo(self) -> COO:
        """Convert to ``COO``, with the same data."""
        return _made(COO, self.data, self.coordinates(), self.shape)


@tree.register_node
class CSR(_Compressed):
    """A sparse matrix by rows: Compressed Sparse Row.

    Entries ``indptr[i]`` to ``indptr[i + 1]`` are those of row i, with their columns in
    ``indices``.

    Args:
        given: arrays ``(data, indices, indptr)`` or ``(data, (rows, columns))``. It may
            also be a dense matrix, a sparse matrix of arrayfn or of SciPy, or a shape.
        shape: (m, n), by default the smallest shape that has all entries.
        dtype: the dtype of the entries.
        copy: whether arrays are copied.

    Raises ShapeError and ArgumentError for arrays that do not fit, and
    AbstractValueError for a dense matrix whose values are not known
    (see ``fromdense``).

    >>> CSR(np.array([[1.0, 0.0, 2.0], [0.0, 0.0, 3.0]]))
    CSR f64[2,3], 3 entries (50 %)
      1 . 2
      . . 3
    """

    format: ClassVar[str] = "csr"

    @property
    @override
    def T(self) -> CSC:
        """The transpose, a ``CSC`` of the same arrays."""
        return _made(CSC, self.data, self.positions, self.shape[::-1])

    @override
    def tocsr(self) -> CSR:
        """Return the matrix itself."""
        return self


@tree.register_node
class CSC(_Compressed):
    """A sparse matrix by columns: Compressed Sparse Column.

    Entries ``indptr[j]`` to ``indptr[j + 1]`` are those of column j, with their rows in
    ``indices``. Arguments are those of ``CSR``.

    >>> CSC(np.array([[1.0, 0.0, 2.0], [0.0, 0.0, 3.0]])).indptr
    array([0, 1, 1, 3], dtype=int32)
    """

    format: ClassVar[str] = "csc"

    @property
    @override
    def T(self) -> CSR:
        """The transpose, a ``CSR`` of the same arrays."""
        return _made(CSR, self.data, self.positions, self.shape[::-1])

    @override
    def tocsr(self) -> CSR:
        """Convert to ``CSR``, by sorting the entries."""
        return self.tocoo().tocsr()

    @override
    def tocsc(self) -> CSC:
        """Return the matrix itself."""
        return self


@tree.register_node
class COO(_Format):
    """A sparse matrix of entries with their rows and columns: coordinates.

    Entries at one position add up. Arguments are those of ``CSR``.

    >>> COO((np.array([1.0, 2.0, 3.0]), ([0, 1, 1], [0, 0, 0])), (2, 2)).toarray()
    array([[1., 0.],
           [5., 0.]])
    """

    format: ClassVar[str] = "coo"
    row: Array
    col: Array

    @property
    @override
    def positions(self) -> Indices:
        """The arrays ``row`` and ``col``."""
        return self.row, self.col

    @override
    def _hold(self, data: Array, positions: Indices, shape: Shape) -> None:
        """Set the attributes to the arrays and the shape."""
        self.data = data
        self.row, self.col = positions
        self.shape = shape

    @property
    @override
    def T(self) -> COO:
        """The transpose, with ``row`` and ``col`` exchanged."""
        return _made(COO, self.data, (self.col, self.row), self.shape[::-1])

    @override
    def map(self, function: Any) -> COO:
        """Apply ``function`` to the entries; it must give 0 for 0.

        Entries at one position are added up first.
        """
        summed = self.sum_duplicates()
        return summed.with_data(function(summed.data))

    @override
    def _added(self, other: Any, function: Any) -> Any:
        """Apply ``function``, a sum or difference, to this matrix and ``other``.

        For two COO matrices, the entries are put one after the other, which needs no
        known positions: entries at one position count as their sum.
        """
        if not isinstance(other, COO) or other.shape != self.shape:
            return super()._added(other, function)
        rows, columns = (
            anp.concatenate(pair)
            for pair in zip(self.positions, other.positions, strict=True)
        )
        zero = anp.zeros((), other.dtype)
        data = anp.concatenate([self.data, function(zero, other.data)])
        return _made(COO, data, (rows, columns), self.shape)

    def sum_duplicates(self) -> COO:
        """Return the matrix with one entry for each position, in the order of rows.

        If positions are traced, the number of entries does not change. Entries that
        were added to another entry become padding.
        """
        places = [structure.known(x) for x in self.positions]
        if places[0] is not None and places[1] is not None:
            return self._compressed(*places).tocoo()
        order = anp.lexsort((self.col, self.row))
        data, *sorted_places = (
            anp.take(x, order) for x in (self.data, *self.positions)
        )
        # Number the distinct positions: the number rises where row or column changes.
        steps = [anp.not_equal(x[1:], x[:-1]) for x in sorted_places]
        numbers = anp.cumsum(anp.logical_or(*steps))
        numbers = anp.concatenate([anp.zeros(1, numbers.dtype), numbers])[: self.nnz]
        sums = anp.at(anp.zeros_like(data))[numbers].add(data)
        rows, columns = (
            anp.at(anp.full_like(x, extent))[numbers].set(x)
            for x, extent in zip(sorted_places, self.shape, strict=True)
        )
        return _made(COO, sums, (rows, columns), self.shape)

    def _compressed(self, rows: Any, columns: Any) -> CSR:
        """Return a CSR matrix of the entries at these known rows and columns."""
        data, indices, starts = structure.collected(
            self.shape, rows, columns, self.data
        )
        return _made(CSR, data, (indices, starts), self.shape)

    @override
    def tocsr(self) -> CSR:
        """Convert to ``CSR``.

        Entries at one position are added up if positions are known. Otherwise the
        entries are sorted by row, and padding comes last.
        """
        places = [structure.known(x) for x in self.positions]
        if places[0] is not None and places[1] is not None:
            return self._compressed(*places)
        count, rows = self.shape[0], products.inside(self.row, self.shape[0])
        order = anp.argsort(rows, stable=True)
        # lengths[i + 1] counts the entries of row i, so sums are where rows begin.
        lengths = anp.zeros(count + 1, rows.dtype)
        lengths = anp.at(lengths)[rows + 1].add(1, mode="drop")
        starts = anp.cumsum(lengths, dtype=rows.dtype)
        positions = anp.take(self.col, order), starts
        return _made(CSR, anp.take(self.data, order), positions, self.shape)

    @override
    def tocoo(self) -> COO:
        """Return the matrix itself."""
        return self


def _made(cls: type[Any], data: Array, positions: Indices, shape: Any) -> Any:
    """Return a matrix of class ``cls`` from arrays that are known to fit."""
    return cls.tree_unflatten(shape, (data, *positions))


def _as_shape(shape: Any) -> Shape | None:
    """Convert ``shape`` to two integers; None stays None.

    Raises ShapeError if it is not the shape of a matrix.
    """
    if shape is None:
        return None
    extents = ops.as_shape("a sparse matrix", shape)
    if len(extents) != 2:
        raise ShapeError(
            f"a sparse matrix has two axes, and its shape is {extents}",
            user_location(),
        )
    return extents[0], extents[1]


def _matrix(cls: type[_Format], given: Any, shape: Shape | None) -> SparseArray:
    """Convert the argument ``given`` of the constructor of ``cls`` to a matrix.

    It is a matrix of SciPy; one of this library; ``(data, indices, indptr)``; ``(data,
    (rows, columns))``; a shape (m, n), for a matrix without entries; or a dense matrix.
    ``shape`` is the constructor's argument, or None. Raises ShapeError if both
    disagree, and ArgumentError for three arrays of a COO.
    """
    if _is_scipys(given):
        scipy_matrix = given.asformat(cls.format)
        if scipy_matrix is given and not scipy_matrix.has_canonical_format:
            scipy_matrix = scipy_matrix.copy()  # the next line changes it
        scipy_matrix.sum_duplicates()
        arrays = (
            (scipy_matrix.row, scipy_matrix.col)
            if cls is COO
            else (scipy_matrix.indices, scipy_matrix.indptr)
        )
        return _checked(cls, scipy_matrix.data, arrays, shape or scipy_matrix.shape)
    if isinstance(given, SparseArray):
        matrix = given.asformat(cls.format)
        if shape not in (None, matrix.shape):
            raise ShapeError(
                f"a sparse matrix {matrix.shape} was given the shape {shape}",
                user_location(),
            )
        return matrix
    if isinstance(given, tuple) and len(given) == 3:
        if cls is COO:
            raise ArgumentError(
                "COO takes (data, (rows, columns)), not three arrays",
                user_location(),
            )
        return _checked(cls, given[0], given[1:], shape)
    if isinstance(given, tuple) and len(given) == 2:
        if not isinstance(given[1], (tuple, list)):
            extents = _as_shape(given)
            nothing = np.zeros(0, np.int32)
            empty = _made(COO, np.zeros(0), (nothing, nothing), extents)
            return empty.asformat(cls.format)
        return _checked(COO, given[0], tuple(given[1]), shape).asformat(cls.format)
    return _from_dense(given, shape).asformat(cls.format)


def _array(given: Any) -> Array:
    """Convert ``given`` to an array; an array stays itself, so that it stays known."""
    if isinstance(given, (list, tuple)) and is_staged(tree.leaves(given)):
        return anp.asarray(given)
    return (
        cast(Array, given) if isinstance(given, ImmutableArray) else np.asarray(given)
    )


def _is_scipys(given: Any) -> bool:
    """Return whether ``given`` is a sparse matrix of SciPy."""
    return type(given).__module__.startswith("scipy.sparse")


def _from_dense(given: Any, shape: Shape | None) -> COO:
    """Return the elements of a dense matrix that are not 0, as ``COO``.

    The values must be known. Raises ShapeError if ``shape`` is another.
    """
    dense = _array(given)
    extents = _as_shape(ops.type_of_operand("a sparse matrix", dense).shape)
    (values,) = structure.all_known("a sparse matrix of a dense one", dense)
    if shape not in (None, extents):
        raise ShapeError(
            f"a dense matrix {extents} was given the shape {shape}", user_location()
        )
    rows, columns = (x.astype(np.int32) for x in np.nonzero(values))
    return _made(COO, dense[rows, columns], (rows, columns), extents)


def _checked(cls: type[_Format], data: Any, positions: Any, shape: Shape | None) -> Any:
    """Return a matrix of ``data`` and ``positions``, after checks.

    Raises ShapeError or ArgumentError for arrays that are not vectors of fitting
    lengths, or positions that are not integers. Values are not checked. Without
    ``shape``, it is the smallest that has all positions.
    """
    name = cls.__name__
    data, first, second = (_array(x) for x in (data, *positions))
    types = [ops.type_of_operand(name, x) for x in (data, first, second)]
    of_data, of_first, of_second = types
    for type, what in zip(types, ("data", *_names(cls)), strict=True):
        if type.ndim != 1:
            raise ShapeError(
                f"{name}: {what} must be a vector, not {type}", user_location()
            )
    if not {of_first.dtype, of_second.dtype} <= set(dtypes.INTEGERS):
        raise ArgumentError(
            f"{name}: positions must be integers, not {of_first.dtype} and "
            f"{of_second.dtype}",
            user_location(),
        )
    if of_first.shape != of_data.shape or (
        cls is COO and of_second.shape != of_data.shape
    ):
        raise ShapeError(
            f"{name}: there are {of_data.shape[0]} entries, and "
            f"{', '.join(_names(cls))} are {of_first} and {of_second}",
            user_location(),
        )
    shape = shape or _smallest(cls, first, second)
    lines = shape[0] if cls is CSR else shape[1]
    if cls is not COO and of_second.shape != (lines + 1,):
        raise ShapeError(
            f"{name}: a matrix {shape} has pointers ({lines + 1},), not {of_second}",
            user_location(),
        )
    return _made(cls, data, (first, second), shape)


def _names(cls: type[_Format]) -> tuple[str, str]:
    """Return the names of the two index arrays, for errors."""
    return ("row", "col") if cls is COO else ("indices", "indptr")


def _smallest(cls: type[_Format], first: Array, second: Array) -> Shape:
    """Return the smallest shape that has all positions, ``first`` and ``second``.

    The positions must be known.
    """
    first, second = structure.all_known("the shape of a sparse matrix", first, second)
    extent = int(first.max(initial=-1)) + 1
    if cls is COO:
        return extent, int(second.max(initial=-1)) + 1
    lines = len(second) - 1  # of row or column pointers
    return (lines, extent) if cls is CSR else (extent, lines)


__all__ = ["COO", "CSC", "CSR"]
