"""Sparsity patterns whose positions are known: which entries results have.

Positions are known if they are NumPy arrays, or traced with values. Values of entries
may be traced all the same: they are gathered and added up at known places.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import arrayfn.numpy as anp
from arrayfn.errors import AbstractValueError, user_location
from arrayfn.numpy._operands import Array
from arrayfn.transforms import leaf_type
from arrayfn.transforms.arguments import value_of

Positions = np.ndarray[Any, np.dtype[Any]]


def known(positions: Array) -> Positions | None:
    """Return the value of an index array, or None if it is traced without a value."""
    value = value_of(positions)
    return None if value is None else np.asarray(value)


def all_known(what: str, *arrays: Array) -> list[Positions]:
    """Return the values of index arrays, as NumPy arrays.

    Raises AbstractValueError if one is traced without a value; ``what`` says in the
    message what needs them.
    """
    values = [known(x) for x in arrays]
    known_values = [x for x in values if x is not None]
    if len(known_values) < len(values):
        raise AbstractValueError(
            f"{what} needs to know which entries there are, and here the positions are "
            "traced; let the function close over the matrix and take its data as an "
            "argument (A.with_data(data)), or do this outside of jit",
            user_location(),
        )
    return known_values


def index_dtype(*extents: int) -> np.dtype[Any]:
    """Return the dtype of positions up to these numbers: int32 if it holds them.

    Otherwise it is int64.
    """
    narrow = max(extents, default=0) <= np.iinfo(np.int32).max
    return np.dtype(np.int32 if narrow else np.int64)


def pointers(rows: Positions, count: int, dtype: np.dtype[Any]) -> Positions:
    """Return where each of ``count`` rows begins, and where the last ends.

    ``rows`` is the row of each entry, sorted: [0, 0, 2] with 3 rows gives [0, 2, 2, 3].
    """
    lengths = np.bincount(rows, minlength=count)[:count]
    return np.concatenate([[0], np.cumsum(lengths)]).astype(dtype)


def collected(
    shape: tuple[int, int], rows: Positions, columns: Positions, values: Array
) -> tuple[Array, Positions, Positions]:
    """Sort entries by row, then by column, and add up entries at one position.

    Returns the arrays of CSR: data, columns and pointers. ``values`` may be traced.
    Entries outside of ``shape`` are left out.
    """
    inside = (rows >= 0) & (rows < shape[0]) & (columns >= 0) & (columns < shape[1])
    (entries,) = np.nonzero(inside)
    keys = rows[entries].astype(np.int64) * shape[1] + columns[entries]
    unique_keys, first_entries, places = np.unique(
        keys, return_index=True, return_inverse=True
    )
    if len(unique_keys) < len(keys):
        zeros = anp.zeros(len(unique_keys), leaf_type(values).dtype)
        data = anp.at(zeros)[places].add(anp.take(values, entries))
    elif (np.diff(first_entries) < 0).any() or len(entries) < len(rows):
        # No duplicates, but the order changes, or entries are left out.
        data = anp.take(values, entries[first_entries])
    else:
        data = values
    dtype = index_dtype(*shape, len(unique_keys))
    width = max(shape[1], 1)
    indices = (unique_keys % width).astype(dtype)
    return data, indices, pointers(unique_keys // width, shape[0], dtype)


def product_terms(columns: Positions, starts: Positions) -> tuple[Positions, Positions]:
    """Return which entries of A and of B are multiplied in the product A @ B.

    Term t is entry left[t] of A times entry right[t] of B. ``columns`` are the columns
    of A's entries, and ``starts`` the row pointers of B in CSR. Entry e of A meets all
    entries of B's row columns[e].

    >>> product_terms(np.array([1, 0]), np.array([0, 1, 3]))
    (array([0, 0, 1]), array([1, 2, 0]))
    """
    lengths = np.diff(starts)[columns]
    left = np.repeat(np.arange(len(columns)), lengths)
    begins = np.cumsum(lengths) - lengths
    # The position within the group of terms of an entry, plus its row's start.
    right = np.arange(len(left)) - np.repeat(begins - starts[columns], lengths)
    return left, right


def row_entries(starts: Positions, rows: Positions) -> Positions:
    """Return the numbers of the entries of ``rows``, one row after the other.

    ``starts`` are row pointers.

    >>> row_entries(np.array([0, 1, 3]), np.array([1, 0]))
    array([1, 2, 0])
    """
    _, entries = product_terms(rows, starts)
    return entries
