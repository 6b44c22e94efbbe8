"""``SparseArray``: what the formats share.

A format is a class with ``data``, two index arrays and a ``shape``: a pytree whose
leaves are the three arrays. Everything here is written on ``coordinates`` and
``with_data``, so it works for traced entries, and, where nothing else is said, for
traced positions too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final, Self

import numpy as np
from typing_extensions import override

import arrayfn.numpy as anp
from arrayfn import tree
from arrayfn.dtypes import DType, canonical
from arrayfn.errors import ArgumentError, ShapeError, user_location
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.sparse import display, products, structure
from arrayfn.sparse.products import Indices, Shape
from arrayfn.transforms import leaf_type

KEEP_ZERO: Final = [
    "abs",
    "arcsin",
    "arcsinh",
    "arctan",
    "arctanh",
    "ceil",
    "conj",
    "conjugate",
    "deg2rad",
    "expm1",
    "fabs",
    "floor",
    "imag",
    "log1p",
    "negative",
    "positive",
    "rad2deg",
    "real",
    "rint",
    "sign",
    "sin",
    "sinh",
    "sqrt",
    "square",
    "tan",
    "tanh",
    "trunc",
]
"""Functions with f(0) = 0: methods, and NumPy's ufuncs of these names."""

_OPERATORS: Final = {
    "add": ("__add__", "__radd__"),
    "subtract": ("__sub__", "__rsub__"),
    "multiply": ("__mul__", "__rmul__"),
    "divide": ("__truediv__", "__rtruediv__"),
    "true_divide": ("__truediv__", "__rtruediv__"),
    "matmul": ("__matmul__", "__rmatmul__"),
    "power": ("__pow__", "__rpow__"),
}
"""NumPy's ufuncs that are operators: the method for a left, and for a right operand."""


class SparseArray(tree.Indexed):
    """A sparse matrix (m, n). Entries that are not stored are 0.

    Entries whose row or column is outside the shape are padding, and are ignored. Only
    ``COO`` may have several entries at one position, which count as their sum.
    Operations return new matrices.
    """

    format: ClassVar[str]  # "csr", "csc" or "coo"
    data: Array  # the values of the entries (nnz,)
    indices: Array
    shape: Shape
    __array_priority__ = 2000  # NumPy's operators leave the work to this class

    # What a format defines.

    @property
    def positions(self) -> Indices:
        """The two index arrays, in the order of the constructor.

        They are (indices, indptr) for CSR and CSC, and (row, col) for COO.
        """
        raise NotImplementedError

    def with_arrays(self, data: Array, positions: Indices, shape: Shape) -> Self:
        """Return a matrix of this format; the arrays are not checked.

        ``data`` are the entries, and ``positions`` the two index arrays.
        """
        matrix = object.__new__(type(self))
        matrix._hold(data, positions, shape)
        return matrix

    def _hold(self, data: Array, positions: Indices, shape: Shape) -> None:
        """Set the attributes of this matrix to the arrays and the shape."""
        raise NotImplementedError

    def tocsr(self) -> Any:
        """Convert to ``CSR``, by rows."""
        raise NotImplementedError

    def tocsc(self) -> Any:
        """Convert to ``CSC``, by columns."""
        # The rows of the transpose are the columns.
        return self.T.tocsr().T

    def tocoo(self) -> Any:
        """Convert to ``COO``: entries with their rows and columns."""
        raise NotImplementedError

    # Properties.

    @property
    def dtype(self) -> DType:
        """The data type of the entries."""
        return leaf_type(self.data).dtype

    @property
    def ndim(self) -> int:
        """The number of axes, which is 2."""
        return 2

    @property
    def nnz(self) -> int:
        """The number of stored entries."""
        return leaf_type(self.data).shape[0]

    @property
    def nse(self) -> int:
        """The number of stored entries, under JAX's name."""
        return self.nnz

    @property
    def T(self) -> Any:  # noqa: N802 - NumPy's name
        """The transpose, which has the same arrays.

        CSR becomes CSC, and CSC becomes CSR.
        """
        raise NotImplementedError

    def transpose(self) -> Any:
        """Return the transpose; see ``T``."""
        return self.T

    def coordinates(self) -> Indices:
        """Return the row and the column of each entry, (nnz,) each."""
        return products.coordinates(self.format, self.positions, self.nnz)

    def with_data(self, data: ArrayLike) -> Self:
        """Return the matrix with other entries (nnz,) at the same positions.

        Raises ShapeError if there are more or fewer.

        >>> import numpy as np
        >>> from arrayfn.sparse import CSR
        >>> A = CSR(np.array([[1.0, 0.0], [2.0, 3.0]]))
        >>> A.with_data(A.data * 10).toarray()
        array([[10.,  0.],
               [20., 30.]])
        """
        type = ops.type_of_operand("with_data", data)
        if type.shape != (self.nnz,):
            raise ShapeError(
                f"with_data: the matrix has {self.nnz} entries, and the data are "
                f"{type}",
                user_location(),
            )
        return self.with_arrays(data, self.positions, self.shape)

    # Conversions.

    def asformat(self, format: str | None) -> Any:
        """Convert to "csr", "csc" or "coo"; None returns the matrix itself.

        Another name raises ArgumentError.
        """
        if format is None or format == self.format:
            return self
        if format not in products.TRANSPOSED:
            raise ArgumentError(
                f"formats are {', '.join(products.TRANSPOSED)}, not {format!r}",
                user_location(),
            )
        return getattr(self, f"to{format}")()

    def toarray(self) -> Array:
        """Return the matrix as a dense array (m, n).

        Entries at one position add up, and padding is dropped.
        """
        rows, columns = self.coordinates()
        position = (
            products.inside(rows, self.shape[0]),
            products.inside(columns, self.shape[1]),
        )
        return anp.at(anp.zeros(self.shape, self.dtype))[position].add(
            self.data, mode="drop"
        )

    todense = toarray

    def toscipy(self) -> Any:
        """Convert to a matrix of ``scipy.sparse`` in the same format.

        Raises AbstractValueError if values or positions are traced.
        """
        arrays = (self.data, *self.positions)
        data, first, second = structure.all_known("toscipy", *arrays)
        return products.in_scipy(self.format, data, first, second, self.shape)

    def astype(self, dtype: Any) -> Self:
        """Return the matrix with entries of another dtype."""
        return self.with_data(anp.astype(self.data, canonical(dtype)))

    def copy(self) -> Self:
        """Copy the matrix and its arrays."""
        return tree.map(anp.copy, self)

    # Elementwise functions.

    def map(self, function: Callable[[Array], Array]) -> Self:
        """Apply ``function`` to the stored entries; it must give 0 for 0.

        >>> import numpy as np
        >>> from arrayfn.sparse import CSR
        >>> CSR(np.array([[0.0, 4.0]])).map(np.sqrt).toarray()
        array([[0., 2.]])
        """
        return self.with_data(function(self.data))

    def __abs__(self) -> Self:
        """Return the absolute value of each entry."""
        return self.map(anp.abs)

    def __neg__(self) -> Self:
        """Return the matrix with negated entries."""
        return self.with_data(anp.negative(self.data))

    def __pos__(self) -> Self:
        """Return the matrix itself."""
        return self

    def __pow__(self, exponent: Any) -> Self:
        """Raise each entry to the power ``exponent``, a positive number.

        Other exponents raise ArgumentError, because 0 would not stay 0.
        """
        if not np.isscalar(exponent) or not exponent > 0:  # type: ignore[operator]
            raise ArgumentError(
                f"a sparse matrix to the power of {exponent}: only positive powers "
                "keep zeros; write A.toarray() ** exponent",
                user_location(),
            )
        return self.map(lambda x: anp.power(x, exponent))

    def power(self, n: Any) -> Self:
        """Raise each entry to a positive power."""
        return self**n

    def multiply(self, other: Any) -> Any:
        """Multiply elementwise by a number, a dense array or a sparse matrix."""
        return self * other

    def __mul__(self, other: Any) -> Any:
        """Multiply elementwise by a number, a dense array or a sparse matrix.

        The result is sparse.
        """
        if isinstance(other, SparseArray):
            return self._entrywise(other, "multiply", anp.multiply)
        return self._scaled("multiply", anp.multiply, other)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Any:
        """Divide elementwise by a number or a dense array.

        The quotient of two sparse matrices is dense, because 0 / 0 is NaN.
        """
        if isinstance(other, SparseArray):
            return self.toarray() / other.toarray()
        return self._scaled("divide", anp.divide, other)

    def __add__(self, other: Any) -> Any:
        """Add a sparse matrix, or a dense array, which gives a dense result."""
        return self._added(other, anp.add)

    def __sub__(self, other: Any) -> Any:
        """Subtract a sparse matrix, or a dense array, which gives a dense result."""
        return self._added(other, anp.subtract)

    def __radd__(self, other: Any) -> Any:
        """Add this matrix to ``other``."""
        return self + other

    def __rsub__(self, other: Any) -> Any:
        """Subtract this matrix from ``other``."""
        return -self + other

    def _scaled(self, name: str, function: Callable[..., Array], other: Any) -> Self:
        """Apply ``function`` to each entry and the element of ``other`` at its place.

        ``other`` is a number or a dense array that broadcasts to this shape; another
        shape raises ShapeError. ``name`` is the operation in errors.
        """
        type = ops.type_of_operand(name, other)
        if not type.shape:
            return self.with_data(function(self.data, other))
        try:
            shape = np.broadcast_shapes(self.shape, type.shape)
        except ValueError:
            shape = None
        if shape != self.shape:
            raise ShapeError(
                f"{name}: {type} does not broadcast to a sparse matrix {self.shape}",
                user_location(),
            )
        rows, columns = self.coordinates()
        dense = anp.broadcast_to(other, self.shape)
        element = anp.at(dense)[rows, columns]
        # Padding has no element in ``other``, and gets 1.
        return self.with_data(
            function(self.data, element.get(mode="fill", fill_value=1))
        )

    def _added(self, other: Any, function: Callable[..., Array]) -> Any:
        """Apply ``function``, a sum or difference, to this matrix and ``other``.

        The result is sparse for a sparse ``other``, and dense for a dense one. Of
        numbers, only 0 is allowed, which ``sum`` begins with: it returns this matrix.
        """
        if isinstance(other, SparseArray):
            return self._entrywise(other, "add", function)
        if ops.type_of_operand("add", other).shape:
            return function(self.toarray(), other)
        if isinstance(other, (int, float)) and other == 0:
            return self
        raise ArgumentError(
            "the sum of a sparse matrix and a number is dense; write A.toarray() "
            "+ number",
            user_location(),
        )

    def _entrywise(
        self, other: SparseArray, name: str, function: Callable[..., Array]
    ) -> Any:
        """Apply ``function`` to the entries of two sparse matrices; f(0, 0) is 0.

        The result has an entry where either matrix has one, and this matrix's format.
        If both share their position arrays, the result has them too. Otherwise the
        positions must be known. Errors, such as ShapeError for other shapes, call the
        operation ``name``.
        """
        if other.shape != self.shape:
            raise ShapeError(
                f"{name}: sparse matrices of shapes {self.shape} and {other.shape}",
                user_location(),
            )
        same_positions = self.format == other.format != "coo" and all(
            a is b for a, b in zip(self.positions, other.positions, strict=True)
        )
        if same_positions:
            return self.with_data(function(self.data, other.data))
        what = f"{name} of two sparse matrices"
        mine, theirs = self.coordinates(), other.coordinates()
        rows_a, columns_a, rows_b, columns_b = structure.all_known(what, *mine, *theirs)
        rows = np.concatenate([rows_a, rows_b])
        columns = np.concatenate([columns_a, columns_b])
        (a, b), _, dtype = ops.promoted(name, (self.data, other.data))

        def spread(x: Array, before: int, after: int) -> Array:
            """Add zeros before and after ``x``, for the other matrix's entries."""
            return anp.concatenate(
                [anp.zeros(before, dtype), x, anp.zeros(after, dtype)]
            )

        # Put both matrices at the positions of both. ``collected`` adds up the entries
        # at one position, so a matrix gets 0 where only the other one has an entry.
        a, b = spread(a, 0, other.nnz), spread(b, self.nnz, 0)
        left, indices, starts = structure.collected(self.shape, rows, columns, a)
        right, _, _ = structure.collected(self.shape, rows, columns, b)
        result = self.tocsr().with_arrays(
            function(left, right), (indices, starts), self.shape
        )
        return result.asformat(self.format)

    # Products.

    def __matmul__(self, other: Any) -> Any:
        """Multiply by a vector or a matrix, or by a sparse matrix.

        The product with a sparse matrix is sparse, and other products are dense.
        """
        if isinstance(other, SparseArray):
            return self._matrix_product(other)
        return products.matmul(
            self.format, self.data, self.positions, self.shape, other
        )

    def __rmatmul__(self, other: Any) -> Any:
        """Return ``other @ self`` for a dense ``other``, as (self.T @ other.T).T."""
        type = ops.type_of_operand("matmul", other)
        product = self.T @ (other if type.ndim == 1 else anp.transpose(other))
        return product if type.ndim == 1 else anp.transpose(product)

    def dot(self, other: Any) -> Any:
        """Return ``self @ other``, or for a number the elementwise product."""
        if isinstance(other, SparseArray) or ops.type_of_operand("dot", other).shape:
            return self @ other
        return self * other

    def _matrix_product(self, other: SparseArray) -> Any:
        """Multiply two sparse matrices, whose positions must be known.

        The result has this matrix's format. Shapes that do not fit raise ShapeError.
        """
        if self.shape[1] != other.shape[0]:
            raise ShapeError(
                f"matmul: sparse matrices of shapes {self.shape} and {other.shape}",
                user_location(),
            )
        left, right = self.tocsr(), other.tocsr()
        rows, columns, across, starts = structure.all_known(
            "the product of two sparse matrices",
            *left.coordinates(),
            *right.positions,
        )
        # Entry a of the left matrix meets entry b of the right one in a term.
        a, b = structure.product_terms(columns, starts)
        terms = anp.take(left.data, a) * anp.take(right.data, b)
        shape = (self.shape[0], other.shape[1])
        data, indices, starts = structure.collected(shape, rows[a], across[b], terms)
        product = left.with_arrays(data, (indices, starts), shape)
        return product.asformat(self.format)

    # Sums.

    def sum(self, axis: int | None = None) -> Array:
        """Return the sum of all entries, of columns (axis 0) or of rows (axis 1).

        Sums along an axis are dense vectors.

        >>> import numpy as np
        >>> from arrayfn.sparse import CSR
        >>> CSR(np.array([[1.0, 0.0], [2.0, 3.0]])).sum(axis=0)
        array([3., 3.])
        """
        if axis is None:
            return anp.sum(self.sum(axis=0))
        axis = ops.normalize_axis("sum", axis, 2)
        length = self.shape[axis]
        return (self.T if axis == 0 else self) @ anp.ones(length, self.dtype)

    def mean(self, axis: int | None = None) -> Array:
        """Return the mean over all elements, zeros included, or along an axis."""
        count = np.prod(self.shape) if axis is None else self.shape[axis]
        return self.sum(axis) / float(count)

    def diagonal(self, k: int = 0) -> Array:
        """Return the k-th diagonal as a dense vector; k > 0 is above the main one."""
        m, n = self.shape
        rows, columns = self.coordinates()
        length = max(0, min(m + min(k, 0), n - max(k, 0)))
        along = rows if k >= 0 else columns
        on_diagonal = (columns - rows == k) & (along >= 0)
        # Entries of other diagonals go to position ``length``, which is dropped.
        place = anp.where(on_diagonal, along, length)
        return anp.at(anp.zeros(length, self.dtype))[place].add(self.data, mode="drop")

    def trace(self, offset: int = 0) -> Array:
        """Return the sum of the diagonal number ``offset``."""
        return anp.sum(self.diagonal(offset))

    # Rows and columns.

    def __getitem__(self, index: Any) -> Any:
        """Return rows or columns, or one element.

        ``A[i]`` and ``A[:, j]`` are dense; slices and lists of rows are sparse. An
        ``index`` with slices or lists needs known positions.
        """
        row, column = index if isinstance(index, tuple) else (index, slice(None))
        rows = self._rows(row)
        if isinstance(rows, SparseArray):
            return rows.T._rows(column).T
        return rows[column]

    def _rows(self, row: Any) -> Any:
        """Return one row as a dense vector, or several rows as a sparse matrix.

        ``row`` is a number, which may be traced, a slice, or a list. A known number out
        of range raises IndexError.
        """
        if isinstance(row, slice) and row == slice(None):
            return self
        count = self.shape[0]
        if not isinstance(row, (slice, list)) and not leaf_type(row).shape:
            if structure.known(row) is not None and not -count <= int(row) < count:
                raise IndexError(f"row {row} of a sparse matrix with {count} rows")
            # Row i is the product of a unit vector with the matrix.
            chosen = anp.equal(anp.arange(count), anp.where(row < 0, row + count, row))
            return self.T @ anp.astype(chosen, self.dtype)
        if self.format != "csr":
            return self.tocsr()._rows(row).asformat(self.format)
        across, starts = structure.all_known("rows of a sparse matrix", *self.positions)
        rows = np.arange(count)[row]
        entries = structure.row_entries(starts, rows)
        # Pointers of the result: sums of the lengths of the chosen rows.
        ends = np.concatenate([[0], np.cumsum(np.diff(starts)[rows])])
        positions = (across[entries], ends.astype(starts.dtype))
        shape = (len(rows), self.shape[1])
        return self.with_arrays(anp.take(self.data, entries), positions, shape)

    # Protocols.

    def __array_ufunc__(
        self, ufunc: Any, method: str, *inputs: Any, **options: Any
    ) -> Any:
        """Apply one of NumPy's ufuncs to this matrix.

        Functions with f(0) = 0 are applied to the entries, and operators call the
        methods of ``_OPERATORS``. Others raise ArgumentError.
        """
        name = ufunc.__name__
        if method == "__call__" and not options:
            if len(inputs) == 1 and name in (*KEEP_ZERO, "absolute"):
                return self.map(getattr(anp, name))
            if name in _OPERATORS and len(inputs) == 2:
                own, reflected = _OPERATORS[name]
                if inputs[0] is self:
                    return getattr(self, own)(inputs[1])
                if hasattr(self, reflected):
                    return getattr(self, reflected)(inputs[0])
        raise ArgumentError(
            f"numpy.{name} does not take a sparse matrix; apply it to A.toarray(), "
            "or to the entries with A.map(function)",
            user_location(),
        )

    def __array__(self, *_: Any, **__: Any) -> Any:
        """Raise ArgumentError: no conversion to a dense array is implicit."""
        raise ArgumentError(
            "a sparse matrix does not become dense implicitly; write A.toarray()",
            user_location(),
        )

    @override
    def __repr__(self) -> str:
        """Show the format, type and number of entries, and a small matrix whole."""
        return display.text(self)

    def _repr_html_(self) -> str:
        """Show the matrix in a notebook: its head, and a picture of its pattern."""
        return display.html(self)


def _method(name: str) -> Callable[[SparseArray], SparseArray]:
    """Return a method that applies NumPy's function ``name`` to each entry.

    The method has the function's name and a docstring.
    """

    def method(self: SparseArray) -> SparseArray:
        """Apply the function to each entry."""
        return self.map(getattr(anp, name))

    method.__name__ = name
    method.__doc__ = f"``{name}`` of each entry."
    return method


for _name in KEEP_ZERO:
    if _name not in ("abs", "fabs", "negative", "positive", "square"):
        setattr(SparseArray, _name, _method(_name))
