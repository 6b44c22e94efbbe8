"""Normal vectors with a given covariance, and random orthogonal matrices."""

from __future__ import annotations

from typing import Any

import arrayfn.numpy as anp
from arrayfn import dtypes, linalg
from arrayfn.errors import ArgumentError, ShapeError, user_location
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike, DTypeLike
from arrayfn.random.bits import AnyKey, floating, parameter, shape_for
from arrayfn.random.continuous import normal
from arrayfn.random.keys import single


def multivariate_normal(
    key: AnyKey,
    mean: ArrayLike,
    cov: ArrayLike,
    shape: Any = None,
    dtype: DTypeLike = None,
    method: str = "cholesky",
) -> Array:
    """Return random normal vectors with mean [..., n] and covariance [..., n, n].

    The result has shape [*shape, n]. By default, ``shape`` is the common batch shape of
    mean and covariance. ``method`` factors the covariance: "cholesky" if it is positive
    definite, and "eigh" or "svd" if it may be singular. A sample is mean + L z, for L
    L^T = cov and a standard normal vector z. Raises ShapeError for other shapes of mean
    and covariance, and ArgumentError for another method.

    >>> import numpy as np
    >>> from arrayfn import random
    >>> random.multivariate_normal(random.key(0), np.zeros(2), np.eye(2), (5,)).shape
    (5, 2)
    """
    kind = floating("multivariate_normal", dtype)
    center = ops.type_of_operand("random.multivariate_normal", mean)
    spread = ops.type_of_operand("random.multivariate_normal", cov)
    n = center.shape[-1] if center.shape else 0
    if not center.shape or spread.shape[-2:] != (n, n):
        raise ShapeError(
            "random.multivariate_normal takes a mean [..., n] and a covariance "
            f"[..., n, n], not {center} and {spread}",
            user_location(),
        )
    # Zeros of the batch shapes stand for the parameters in the check.
    batches = [anp.zeros(center.shape[:-1]), anp.zeros(spread.shape[:-2])]
    batch = shape_for("multivariate_normal", shape, *batches)
    matrix = parameter(cov, kind)
    if method == "cholesky":
        factor = linalg.cholesky(matrix)
    elif method == "eigh":
        values, vectors = linalg.eigh(matrix)
        roots = anp.sqrt(anp.maximum(values, 0))
        factor = anp.multiply(vectors, anp.expand_dims(roots, -2))
    elif method == "svd":
        left, values, _ = linalg.svd(matrix)
        factor = anp.multiply(left, anp.expand_dims(anp.sqrt(values), -2))
    else:
        raise ArgumentError(
            "random.multivariate_normal: method is cholesky, eigh or svd, not "
            f"{method!r}",
            user_location(),
        )
    drawn = normal(single("multivariate_normal", key), (*batch, n), kind)
    transformed = anp.matmul(factor, anp.expand_dims(drawn, -1))
    return anp.add(parameter(mean, kind), anp.squeeze(transformed, -1))


def orthogonal(
    key: AnyKey,
    n: int,
    shape: Any = (),
    dtype: DTypeLike = None,
    m: int | None = None,
) -> Array:
    """Return random matrices [*shape, n, m] with orthonormal columns or rows.

    ``m`` is n by default. The vectors of the shorter side are orthonormal, and
    uniformly distributed. A complex ``dtype`` gives unitary matrices. The method is a
    QR factorization of a normal matrix. See Mezzadri, How to generate random matrices
    from the classical compact groups, 2007.

    >>> from arrayfn import random
    >>> q = random.orthogonal(random.key(0), 3)
    >>> (q.T @ q).round(6)
    array([[ 1., ...
    """
    kind = dtypes.float64 if dtype is None else dtypes.canonical(dtype)
    columns = n if m is None else m
    wanted = ops.as_shape("random.orthogonal", shape)
    tall, short = max(n, columns), min(n, columns)
    drawn = normal(single("orthogonal", key), (*wanted, tall, short), kind)
    q, r = linalg.qr(drawn)
    diagonal = anp.diagonal(r, axis1=-2, axis2=-1)
    # The sign (for complex numbers the phase) that makes R's diagonal positive.
    phase = anp.divide(diagonal, anp.abs(diagonal))
    result = anp.multiply(q, anp.expand_dims(phase, -2))
    return anp.matrix_transpose(result) if n < columns else result


__all__ = ["multivariate_normal", "orthogonal"]
