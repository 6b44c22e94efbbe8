"""Linear algebra, under NumPy's names and the array API's: ``arrayfn.numpy.linalg``.

Arrays (..., m, n) are batches of matrices. float32, float64 and complex matrices keep
their dtype. Integers become float64. In compiled code these functions are steps of the
plan, with one work item per matrix. These functions do not raise NumPy's
``LinAlgError``. Results are NaN or infinite if a matrix is singular or not positive
definite, or if an iteration does not converge.
"""

from __future__ import annotations

from arrayfn import documentation as _documentation
from arrayfn.numpy.linalg.decompositions import (
    cholesky,
    eig,
    eigh,
    eigvals,
    eigvalsh,
    qr,
    svd,
    svdvals,
)
from arrayfn.numpy.linalg.norms import cond, matrix_norm, norm, vector_norm
from arrayfn.numpy.linalg.products import (
    cross,
    diagonal,
    expm,
    matrix_power,
    multi_dot,
    outer,
    trace,
)
from arrayfn.numpy.linalg.solutions import (
    det,
    inv,
    lstsq,
    matrix_rank,
    pinv,
    slogdet,
    solve,
    tensorinv,
    tensorsolve,
)
from arrayfn.numpy.linear_algebra import matmul, tensordot, vecdot
from arrayfn.numpy.manipulation import matrix_transpose

__all__ = [
    "cholesky",
    "cond",
    "cross",
    "det",
    "diagonal",
    "eig",
    "eigh",
    "eigvals",
    "eigvalsh",
    "expm",
    "inv",
    "lstsq",
    "matmul",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "matrix_transpose",
    "multi_dot",
    "norm",
    "outer",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "svd",
    "svdvals",
    "tensordot",
    "tensorinv",
    "tensorsolve",
    "trace",
    "vecdot",
    "vector_norm",
]

_documentation.attach(__name__)
