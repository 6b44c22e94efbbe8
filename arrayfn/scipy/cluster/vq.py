"""Vector quantisation."""

from __future__ import annotations

import arrayfn.numpy as anp
from arrayfn.errors import ShapeError, user_location
from arrayfn.numpy._operands import Array, ArrayLike


def vq(
    obs: ArrayLike, code_book: ArrayLike, check_finite: bool = True
) -> tuple[Array, Array]:
    """Find the nearest row of ``code_book`` (m, d) for each row of ``obs`` (n, d).

    Returns the indices of the nearest rows, int64 (n,), and the Euclidean distances to
    them (n,). Vectors ``obs`` (n,) and ``code_book`` (m,) count as matrices of one
    column. Other shapes raise ShapeError. ``check_finite`` has no effect.

    >>> import numpy as np
    >>> vq(np.array([[0.1], [0.8]]), np.array([[0.0], [1.0]]))
    (array([0, 1]), array([0.1, 0.2]))
    """
    points, codes = anp.asarray(obs), anp.asarray(code_book)
    if points.ndim != codes.ndim or points.ndim not in (1, 2):
        raise ShapeError(
            f"vq takes matrices of points and codes, a row each, not {points.shape} "
            f"and {codes.shape}",
            user_location(),
        )
    if points.ndim == 1:
        points, codes = points[:, None], codes[:, None]
    if points.shape[1] != codes.shape[1]:
        raise ShapeError(
            f"vq: points of {points.shape[1]} numbers and codes of {codes.shape[1]}",
            user_location(),
        )
    squared_distances = anp.sum((points[:, None] - codes) ** 2, -1)
    nearest = anp.argmin(squared_distances, -1)
    chosen = anp.take(codes, nearest, 0, mode="clip")
    return nearest, anp.sqrt(anp.sum((points - chosen) ** 2, -1))


__all__ = ["vq"]
