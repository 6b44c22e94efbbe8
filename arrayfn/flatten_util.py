"""Pytrees as vectors: ``ravel_pytree``."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import arrayfn.numpy as anp
from arrayfn import dtypes, tree
from arrayfn.errors import DTypeError, ShapeError, user_location
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array
from arrayfn.transforms import leaf_type


def ravel_pytree(pytree: Any) -> tuple[Array, Callable[[Any], Any]]:
    """Put all elements of ``pytree`` into one vector; also return the inverse function.

    The vector has the dtype that the leaves promote to. The inverse restores the dtypes
    of the leaves. For a real leaf, it takes the real part of a complex vector. If all
    leaves have one dtype, the inverse takes a vector of any dtype and keeps that dtype.
    It raises ShapeError for a vector of another length, and DTypeError for a vector of
    another dtype.

    >>> import numpy as np
    >>> vector, unravel = ravel_pytree({"a": np.ones(2), "b": np.array([[3.0]])})
    >>> vector, unravel(2 * vector)
    (array([1., 1., 3.]), {'a': array([2., 2.]), 'b': array([[6.]])})
    """
    leaves, structure = tree.flatten(pytree)
    types = [leaf_type(x) for x in leaves]
    sizes = [math.prod(t.shape) for t in types]
    leaf_dtypes = [(t.dtype, t.weak) for t in types] or [(dtypes.float64, False)]
    dtype, _ = dtypes.promote(leaf_dtypes)
    # The dtype of all leaves, if they have one: then parts keep the vector's dtype.
    common_dtype = dtype if all(t.dtype == dtype for t in types) else None

    def unravel(vector: Any) -> Any:
        """Return the pytree whose leaves are the parts of ``vector``."""
        shape = leaf_type(vector).shape
        if shape != (sum(sizes),):
            raise ShapeError(
                f"unravel takes a vector of {sum(sizes)} elements, the length of the "
                f"one that came with it, not an array of shape {shape}",
                user_location(),
            )
        if common_dtype is None and leaf_type(vector).dtype != dtype:
            raise DTypeError(
                f"unravel takes a vector of {dtype}, the dtype of the one that came "
                f"with it, not of {leaf_type(vector).dtype}; convert it",
                user_location(),
            )
        new_leaves: list[Any] = []
        begin = 0
        for type, size in zip(types, sizes, strict=True):
            part = anp.reshape(vector[begin : begin + size], type.shape)
            if common_dtype is None:
                is_real = type.dtype not in dtypes.COMPLEX
                part = anp.real(part) if is_real and dtype in dtypes.COMPLEX else part
                part = ops.convert(part, type.dtype)
            new_leaves.append(part)
            begin += size
        return tree.unflatten(structure, new_leaves)

    if not leaves:
        return anp.zeros(0), unravel
    parts = [anp.ravel(ops.convert(anp.asarray(x), dtype)) for x in leaves]
    return anp.concatenate(parts), unravel


__all__ = ["ravel_pytree"]
