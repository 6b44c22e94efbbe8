"""Sparse Jacobians: few directional derivatives, chosen by colouring.

Columns that share no row get one colour, and one derivative in their sum's direction
has the entries of all of them (Curtis, Powell and Reid, On the estimation of sparse
Jacobian matrices, 1974). Rows are coloured likewise, for reverse mode.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from arrayfn import dtypes
from arrayfn.errors import ArgumentError, ShapeError, user_location
from arrayfn.sparse import structure
from arrayfn.sparse.array import SparseArray
from arrayfn.sparse.formats import COO, CSR
from arrayfn.transforms import jvp, leaf_type, shown_name, vjp, vmap

Positions = structure.Positions
_MODES = ("forward", "reverse", None)


class Colouring(NamedTuple):
    """Numbers of columns, which differ for columns that share a row.

    ``colours`` (n,) has the number of each column, from 0 to ``total`` - 1.
    """

    colours: Positions
    total: int


def colour_columns(pattern: Any) -> Colouring:
    """Colour the columns of a sparsity pattern greedily, the fullest column first.

    Columns that share a row get different colours. ``pattern`` is a sparse or dense
    matrix. Its stored or nonzero entries count. The number of colours is at least the
    number of entries in the fullest row.

    >>> tridiagonal = np.eye(9) + np.eye(9, k=1) + np.eye(9, k=-1)
    >>> colours, total = colour_columns(tridiagonal)
    >>> total
    3
    """
    matrix = pattern_of(pattern)
    by_row, by_column = matrix, matrix.tocsc()
    return _coloured(by_row.indices, by_row.indptr, by_column.indices, by_column.indptr)


def jacobian(
    function: Callable[..., Any],
    sparsity: Any,
    argnum: int = 0,
    *,
    mode: str | None = None,
) -> Callable[..., CSR]:
    """Return a function that computes the Jacobian of ``function`` as ``CSR``.

    It computes one directional derivative for each colour of the pattern. A banded
    matrix of any size has as many colours as its bandwidth. Entries outside the pattern
    must be 0. Otherwise the entries of the pattern are wrong.

    Args:
        function: gives a vector (m,) for a vector (n,) and other arguments.
        sparsity: the pattern (m, n), a sparse or dense matrix. It has stored or nonzero
            elements wherever the Jacobian can be nonzero. It must be known, not traced.
        argnum: the number of the argument to differentiate with respect to.
        mode: "forward" colours columns, and "reverse" colours rows. The default is the
            mode that needs fewer derivatives.

    Returns: a function of the same arguments, which ``jit``, ``grad`` and ``vmap``
        take. The Hessian of f is ``jacobian(grad(f), sparsity)``.

    Raises:
        ShapeError: the pattern does not have the shape of the Jacobian.

    >>> from arrayfn.sparse import diags_array
    >>> def f(x):
    ...     return x**2 - np.roll(x, 1) * (np.arange(4) > 0)
    >>> pattern = diags_array([1.0, 1.0], offsets=[0, -1], shape=(4, 4))
    >>> jacobian(f, pattern)(np.arange(4.0))
    CSR f64[4,4], 7 entries (43.8 %)
       0  . . .
      -1  2 . .
       . -1 4 .
       .  . -1 6
    """
    if mode not in _MODES:
        raise ArgumentError(
            f"jacobian: mode must be one of {_MODES}, not {mode!r}", user_location()
        )
    pattern = pattern_of(sparsity)
    rows, columns = pattern.coordinates()
    by_columns = colour_columns(pattern) if mode != "reverse" else None
    by_rows = colour_columns(pattern.T) if mode != "forward" else None
    if by_columns is not None and by_rows is not None:
        forward = by_columns.total <= by_rows.total
    else:
        forward = by_columns is not None
    colouring = by_columns if forward else by_rows
    assert colouring is not None
    # Row c of ``seeds`` is true for the columns (or rows) of colour c.
    seeds = np.arange(colouring.total)[:, None] == colouring.colours

    @functools.wraps(function)
    def wrapper(*args: Any) -> CSR:
        """Compute the Jacobian at these arguments, one derivative for each colour."""
        x = args[argnum]
        dtype = leaf_type(x).dtype
        if leaf_type(x).shape != pattern.shape[1:]:
            raise ShapeError(
                f"jacobian of {shown_name(function)}: the pattern {pattern.shape} is "
                f"for vectors ({pattern.shape[1]},), and the argument is "
                f"{leaf_type(x)}",
                user_location(),
            )
        if dtype not in dtypes.INEXACT:
            raise ArgumentError(
                f"jacobian of {shown_name(function)}: the argument is {leaf_type(x)}; "
                "convert it with .astype(numpy.float64)",
                user_location(),
            )

        def alone(x: Any) -> Any:
            """Call the function with another argument number ``argnum``."""
            return function(*args[:argnum], x, *args[argnum + 1 :])

        # ``products``, (colours, m) or (colours, n), has the entries of all columns, or
        # rows, of a colour. Entry (i, j) is at [colour of j, i], or [colour of i, j].
        if forward:
            along = vmap(lambda seed: _checked(jvp(alone, (x,), (seed,))[1], pattern))
            products = along(seeds.astype(dtype))
            data = products[colouring.colours[columns], rows]
        else:
            value, pull_back = vjp(alone, x)
            kind = leaf_type(_checked(value, pattern)).dtype
            products = vmap(lambda seed: pull_back(seed)[0])(seeds.astype(kind))
            data = products[colouring.colours[rows], columns]
        return pattern.with_arrays(data, pattern.positions, pattern.shape)

    return wrapper


def _checked(value: Any, pattern: CSR) -> Any:
    """Return ``value``, a result of the function or its tangent.

    Raises ShapeError unless it has as many elements as the pattern has rows.
    """
    if leaf_type(value).shape != pattern.shape[:1]:
        raise ShapeError(
            f"jacobian: the pattern {pattern.shape} is for results "
            f"({pattern.shape[0]},), and the function gave {leaf_type(value)}",
            user_location(),
        )
    return value


def pattern_of(given: Any) -> CSR:
    """Convert a sparse or dense matrix to a CSR matrix of True at its entries.

    The positions are NumPy arrays; AbstractValueError if they are traced.
    """
    matrix = given.tocoo() if isinstance(given, SparseArray) else COO(given)
    rows, columns = structure.all_known("a sparsity pattern", *matrix.positions)
    ones = np.ones(len(rows), np.bool_)
    data, indices, starts = structure.collected(matrix.shape, rows, columns, ones)
    return CSR((data, indices, starts), matrix.shape)


def _coloured(
    across: Positions, row_starts: Positions, down: Positions, starts: Positions
) -> Colouring:
    """Colour columns greedily, the fullest first, with the smallest free colour.

    ``across`` and ``row_starts`` are the CSR arrays (columns of each row, and where
    each row begins), and ``down`` and ``starts`` the CSC arrays (rows of each column,
    and where each column begins).
    """
    count = len(starts) - 1
    colours = np.full(count, -1, np.int64)
    # For each colour, the last column whose neighbours were found to have it.
    taken = np.full(count + 1, -1, np.int64)
    total = 0
    for column in np.argsort(-np.diff(starts), kind="stable"):
        rows = down[starts[column] : starts[column + 1]]
        # The columns that share one of these rows.
        neighbours = across[structure.row_entries(row_starts, rows)]
        used = colours[neighbours]
        taken[used[used >= 0]] = column
        # The first colour that no neighbour has.
        colour = int(np.argmax(taken[: total + 1] != column))
        colours[column] = colour
        total = max(total, colour + 1)
    return Colouring(colours, total)


__all__ = ["Colouring", "colour_columns", "jacobian"]
