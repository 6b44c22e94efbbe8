"""Sparse matrices under SciPy's names, and linear systems with them."""

from __future__ import annotations

from arrayfn.scipy.sparse import linalg
from arrayfn.sparse import (
    COO,
    CSC,
    CSR,
    block_array,
    diags_array,
    eye_array,
    hstack,
    issparse,
    kron,
    vstack,
)

coo_array, csc_array, csr_array = COO, CSC, CSR

__all__ = [
    "block_array",
    "coo_array",
    "csc_array",
    "csr_array",
    "diags_array",
    "eye_array",
    "hstack",
    "issparse",
    "kron",
    "linalg",
    "vstack",
]
