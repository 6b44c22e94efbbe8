"""Sparse matrices as pytrees of arrays, with products, solutions and derivatives."""

from __future__ import annotations

from arrayfn import documentation as _documentation
from arrayfn.sparse.array import SparseArray
from arrayfn.sparse.construct import (
    block_array,
    diags_array,
    eye_array,
    hstack,
    issparse,
    kron,
    vstack,
)
from arrayfn.sparse.formats import COO, CSC, CSR
from arrayfn.sparse.jacobians import Colouring, colour_columns, jacobian

__all__ = [
    "COO",
    "CSC",
    "CSR",
    "Colouring",
    "SparseArray",
    "block_array",
    "colour_columns",
    "diags_array",
    "eye_array",
    "hstack",
    "issparse",
    "jacobian",
    "kron",
    "vstack",
]

_documentation.attach(__name__)
