"""Distinct elements of arrays, and arrays as sets of their elements."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.data_dependent import known

_REMEDY = "Give it the size of the result"


class UniqueAll(NamedTuple):
    """The distinct values, where each is first, which each element is, how many."""

    values: Array
    indices: Array
    inverse_indices: Array
    counts: Array


class UniqueCounts(NamedTuple):
    """The distinct values and how many there are of each."""

    values: Array
    counts: Array


class UniqueInverse(NamedTuple):
    """The distinct values and which of them each element is."""

    values: Array
    inverse_indices: Array


def unique_all(x: ArrayLike, /) -> UniqueAll:
    """x's distinct values in order, and what ``UniqueAll`` says of them."""
    return UniqueAll(*np.unique_all(known("unique_all", x, _REMEDY)))


def unique_counts(x: ArrayLike, /) -> UniqueCounts:
    """x's distinct values in order, and how many there are of each: int64."""
    return UniqueCounts(*np.unique_counts(known("unique_counts", x, _REMEDY)))


def unique_inverse(x: ArrayLike, /) -> UniqueInverse:
    """x's distinct values in order, and which of them each element is: int64."""
    return UniqueInverse(*np.unique_inverse(known("unique_inverse", x, _REMEDY)))


def unique_values(x: ArrayLike, /) -> Array:
    """x's distinct values in order."""
    return np.unique_values(known("unique_values", x, _REMEDY))
