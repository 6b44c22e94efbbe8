"""Functions that library kernels of linear algebra call, and constants that they share.

Complex matrices come as pointers to their real parts: ``parts`` is 2 for them, else 1.
LAPACK's matrices are column-major. A row-major matrix is, column-major, its transpose.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from arrayfn.backends.cpu.libraries.blas import LETTERS, Blas, blas
from arrayfn.backends.cpu.libraries.foreign import Array
from arrayfn.dtypes import BY_SHORT_NAME, real_of
from arrayfn.lowering.scalars import abs_f64, max_f64, min_i64

NAN: Final = float("nan")
# LAPACK's options.
FULL: Final = ord("A")
CONJUGATE: Final = ord("C")
IDENTITY: Final = ord("I")
LEFT: Final = ord("L")
LOWER: Final = ord("L")
NONE: Final = ord("N")
REDUCED: Final = ord("S")
RIGHT: Final = ord("R")
TRANSPOSED: Final = ord("T")
UNIT: Final = ord("U")
UPPER: Final = ord("U")
VECTORS: Final = ord("V")
SCALE: Final = float(1 << 30)
"""Numbers between this and its reciprocal are not scaled, in any dtype."""
TILE: Final = 16  # rows that are written at once, each a cache line


def parts_of(dtype: str) -> int:
    """Return the real numbers per element of ``dtype``: 2 if it is complex, else 1."""
    kind = BY_SHORT_NAME[dtype]
    return kind.itemsize // real_of(kind).itemsize


def addresses(dtype: str, *names: str, library: Blas | None = None) -> tuple[int, ...]:
    """Return the addresses of functions of BLAS or LAPACK for ``dtype``.

    ``names`` lack the first letter, which says the dtype: "gemm" is sgemm for "f32". In
    a name such as "orglq/unglq" the second part is for complex numbers. The functions
    are those of ``library``, by default of ``blas()``.
    """
    chosen = (name.split("/")[-1 if parts_of(dtype) == 2 else 0] for name in names)
    library = library or blas()
    return tuple(library.address(LETTERS[dtype] + name) for name in chosen)


def leading(*names: str) -> Callable[..., tuple[int, ...]]:
    """Make a function that returns the first arguments of a kernel.

    It takes a dtype and a library. It returns the addresses of the functions ``names``
    (as ``addresses`` takes them), and ``parts``, the real numbers in an element.
    """

    def arguments(dtype: str, library: Blas | None = None) -> tuple[int, ...]:
        """Return the functions' addresses in ``library``, and ``parts``."""
        return *addresses(dtype, *names, library=library), parts_of(dtype)

    return arguments


def copy(target: Array[Any], source: Array[Any], count: int) -> None:
    """Copy ``count`` numbers from ``source`` to ``target``."""
    for k in range(count):
        target[k] = source[k]


def fill(target: Array[Any], count: int, value: float) -> None:
    """Set the first ``count`` numbers of ``target`` to ``value``."""
    for k in range(count):
        target[k] = value


def all_finite(x: Array[Any], count: int) -> bool:
    """Return whether the first ``count`` numbers of ``x`` are finite."""
    has_nan = False
    for k in range(count):
        difference = x[k] - x[k]  # NaN if x[k] is NaN or infinite, else 0
        has_nan = has_nan | (difference != difference)  # only NaN differs from itself
    return not has_nan


def mirror_lower(matrix: Array[Any], n: int, parts: int) -> None:
    """Copy the lower triangle of a row-major n x n matrix to the upper one.

    An element is ``parts`` numbers, 2 if complex. Complex elements are not conjugated.
    ``TILE`` columns are read at a time, so that each cache line is used fully.
    """
    for tile in range((n + TILE - 1) // TILE):
        first = tile * TILE
        for row in range(first + 1, n):
            for column in range(first, min_i64(first + TILE, row)):
                below = matrix + (row * n + column) * parts
                copy(matrix + (column * n + row) * parts, below, parts)


def scale_of(x: Array[Any], count: int) -> float:
    """Return a power of 2 by which ``count`` numbers can be multiplied safely.

    The product of the largest one is between 1/SCALE and SCALE. The result is 1 for
    ordinary numbers. LAPACK's drivers scale matrices near the limits of their dtype in
    the same way, but geev does not always scale the eigenvalues back.
    """
    largest = 0.0
    for k in range(count):
        largest = max_f64(largest, abs_f64(float(x[k])))
    scale = 1.0
    while largest * scale > SCALE:
        scale = scale / SCALE
    while largest > 0.0 and largest * scale < 1.0 / SCALE:
        scale = scale * SCALE
    return scale


def multiply(x: Array[Any], count: int, factor: float) -> None:
    """Multiply the first ``count`` numbers of ``x`` by ``factor``, in place."""
    for k in range(count):
        x[k] = float(x[k]) * factor
