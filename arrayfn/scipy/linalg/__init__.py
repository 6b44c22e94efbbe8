"""Linear algebra under SciPy's names, on matrices (..., m, n)."""

from __future__ import annotations

from arrayfn import documentation as _documentation
from arrayfn.numpy import linalg
from arrayfn.numpy._parameters import also_takes
from arrayfn.numpy.linalg import expm
from arrayfn.scipy.linalg.factors import (
    cho_factor,
    cho_solve,
    cholesky,
    eigh,
    eigh_tridiagonal,
    eigvalsh,
    expm_frechet,
    hessenberg,
    lu,
    lu_factor,
    lu_solve,
    polar,
    qr,
    qr_multiply,
    schur,
    solve,
    solve_triangular,
    svd,
)
from arrayfn.scipy.linalg.forms import (
    block_diag,
    circulant,
    companion,
    dft,
    hadamard,
    hankel,
    helmert,
    hilbert,
    leslie,
    pascal,
    toeplitz,
)
from arrayfn.scipy.linalg.functions import (
    funm,
    rsf2csf,
    solve_sylvester,
    sqrtm,
)
from arrayfn.scipy.linalg.special_matrices import (
    convolution_matrix,
    fiedler,
    fiedler_companion,
    invhilbert,
    invpascal,
)

_MEMORY = ("overwrite_a", "check_finite")
det = also_takes(*_MEMORY)(linalg.det)
inv = also_takes(*_MEMORY)(linalg.inv)
svdvals = also_takes(*_MEMORY)(linalg.svdvals)

__all__ = [
    "block_diag",
    "cho_factor",
    "cho_solve",
    "cholesky",
    "circulant",
    "companion",
    "convolution_matrix",
    "det",
    "dft",
    "eigh",
    "eigh_tridiagonal",
    "eigvalsh",
    "expm",
    "expm_frechet",
    "fiedler",
    "fiedler_companion",
    "funm",
    "hadamard",
    "hankel",
    "helmert",
    "hessenberg",
    "hilbert",
    "inv",
    "invhilbert",
    "invpascal",
    "leslie",
    "lu",
    "lu_factor",
    "lu_solve",
    "pascal",
    "polar",
    "qr",
    "qr_multiply",
    "rsf2csf",
    "schur",
    "solve",
    "solve_sylvester",
    "solve_triangular",
    "sqrtm",
    "svd",
    "svdvals",
    "toeplitz",
]

_documentation.attach(__name__)
