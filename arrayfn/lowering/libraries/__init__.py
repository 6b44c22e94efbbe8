"""Primitives that a library computes: a function for each ``Library`` form.

Each takes an equation and the arrays behind its operands, and returns the library calls
that compute its outputs, in order. Operands lie row-major (``pointer_of`` gives their
memory). A primitive that is ``in_place`` has its first operand in the memory of its
first output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from arrayfn.ir import Equation
from arrayfn.lowering.libraries import (
    callbacks,
    collectives,
    factorizations,
    fourier,
    sorting,
    triangular,
)
from arrayfn.lowering.libraries.calls import LibraryCall
from arrayfn.passes.reads import Reads

LIBRARIES: Final[dict[str, Callable[[Equation, Reads], Iterable[LibraryCall]]]] = {
    "callback": callbacks.callback,
    "collective": collectives.collective,
    "cholesky": factorizations.cholesky,
    "triangular_solve": triangular.triangular_solve,
    "sort": sorting.sort,
    "argsort": sorting.argsort,
    "top_k": sorting.top_k,
    "fft": fourier.fft,
    "lu": factorizations.lu,
    "pivots_to_permutation": factorizations.pivots_to_permutation,
    "qr": factorizations.qr,
    "column_order": factorizations.column_order,
    "eigh": factorizations.eigh,
    "eigvalsh": factorizations.eigvalsh,
    "eig": factorizations.eig,
    "eigvals": factorizations.eigvals,
    "svd": factorizations.svd,
    "svdvals": factorizations.svdvals,
    "hessenberg": factorizations.hessenberg,
    "tridiagonal": factorizations.tridiagonal,
    "schur": factorizations.schur,
}
