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
    """The value of an index array, or None while that is unknown."""
    value = value_of(positions)
    return None if value is None else np.asarray(value)


def all_known(what: str, *arrays: Array) -> list[Positions]:
    """The values of index arrays, as NumPy's.

    Raises AbstractValueError if one is traced; ``what`` says in the message what needs
    them.
    """
    values = [known(x) for x in arrays]
    found = [x for x in values if x is not None]
    if len(found) < len(values):
        raise AbstractValueError(
            f"{what} needs to know which entries there are, and here the positions are "
            "traced; let the function close over the matrix and take its data as an "
            "argument (A.with_data(data)), or do this outside of jit",
            user_location(),
        )
    return found


def index_dtype(*extents: int) -> np.dtype[Any]:
    """The dtype of positions up to these numbers: int32 if it holds them."""
    narrow = max(extents, default=0) <= np.iinfo(np.int32).max
    return np.dtype(np.int32 if narrow else np.int64)


def pointers(rows: Positions, count: int, dtype: np.dtype[Any]) -> Positions:
    """Where each of ``count`` rows begins among entries sorted by row, and the end."""
    lengths = np.bincount(rows, minlength=count)[:count]
    return np.concatenate([[0], np.cumsum(lengths)]).astype(dtype)


def collected(
    shape: tuple[int, int], rows: Positions, columns: Positions, values: Array
) -> tuple[Array, Positions, Positions]:
    """Entries in the order of rows, then columns, each position once: CSR's arrays.

    Values at one position are added up; entries outside of ``shape`` are left out.
    """
    inside = (rows >= 0) & (rows < shape[0]) & (columns >= 0) & (columns < shape[1])
    (kept,) = np.nonzero(inside)
    keys = rows[kept].astype(np.int64) * shape[1] + columns[kept]
    there, first, places = np.unique(keys, return_index=True, return_inverse=True)
    if len(there) < len(keys):
        zeros = anp.zeros(len(there), leaf_type(values).dtype)
        data = anp.at(zeros)[places].add(anp.take(values, kept))
    elif (np.diff(first) < 0).any() or len(kept) < len(rows):
        data = anp.take(values, kept[first])
    else:
        data = values
    dtype = index_dtype(*shape, len(there))
    width = max(shape[1], 1)
    indices = (there % width).astype(dtype)
    return data, indices, pointers(there // width, shape[0], dtype)


def product_terms(columns: Positions, starts: Positions) -> tuple[Positions, Positions]:
    """Which entries of A (in ``columns``) and B (CSR, by ``starts``) A @ B multiplies.

    >>> product_terms(np.array([1, 0]), np.array([0, 1, 3]))
    (array([0, 0, 1]), array([1, 2, 0]))
    """
    lengths = np.diff(starts)[columns]
    left = np.repeat(np.arange(len(columns)), lengths)
    begins = np.cumsum(lengths) - lengths
    right = np.arange(len(left)) - np.repeat(begins - starts[columns], lengths)
    return left, right


def row_entries(starts: Positions, rows: Positions) -> Positions:
    """The entries of ``rows``, one row after the other.

    >>> row_entries(np.array([0, 1, 3]), np.array([1, 0]))
    array([1, 2, 0])
    """
    return product_terms(rows, starts)[1]
