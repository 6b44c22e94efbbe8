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
    """The real numbers in an element of ``dtype``: 2 if it is complex, else 1."""
    kind = BY_SHORT_NAME[dtype]
    return kind.itemsize // real_of(kind).itemsize


def addresses(dtype: str, *names: str, library: Blas | None = None) -> tuple[int, ...]:
    """The addresses of LAPACK functions for ``dtype``, whose letter replaces ``?``.

    Of names such as ``"orglq/unglq"`` the second is that of complex numbers. They are
    taken from ``library``, or else from ``blas()``.
    """
    chosen = (name.split("/")[-1 if parts_of(dtype) == 2 else 0] for name in names)
    library = library or blas()
    return tuple(library.address(LETTERS[dtype] + name) for name in chosen)


def leading(*names: str) -> Callable[..., tuple[int, ...]]:
    """Make a provider's ``leading_arguments``, a function of dtype and library.

    It returns the addresses of the functions ``names``, as ``addresses`` takes them,
    and the real numbers per element.
    """

    def arguments(dtype: str, library: Blas | None = None) -> tuple[int, ...]:
        return *addresses(dtype, *names, library=library), parts_of(dtype)

    return arguments


def copy(target: Array[Any], source: Array[Any], count: int) -> None:
    """Copy ``count`` numbers."""
    for k in range(count):
        target[k] = source[k]


def fill(target: Array[Any], count: int, value: float) -> None:
    """Set ``count`` numbers to one value."""
    for k in range(count):
        target[k] = value


def all_finite(x: Array[Any], count: int) -> bool:
    """Whether ``count`` numbers are finite."""
    found = False
    for k in range(count):
        difference = x[k] - x[k]  # NaN, of infinities too
        found = found | (difference != difference)
    return not found


def mirror_lower(matrix: Array[Any], n: int, parts: int) -> None:
    """Copy the lower triangle of a row-major n x n matrix to the upper one.

    An element is ``parts`` numbers, 2 if complex. Complex elements are copied as they
    are, without conjugation.
    """
    for tile in range((n + TILE - 1) // TILE):
        first = tile * TILE
        for row in range(first + 1, n):
            for column in range(first, min_i64(first + TILE, row)):
                below = matrix + (row * n + column) * parts
                copy(matrix + (column * n + row) * parts, below, parts)


def scale_of(x: Array[Any], count: int) -> float:
    """A power of two that scales the largest of ``count`` numbers to safe range.

    It is 1 for ordinary numbers. LAPACK's drivers scale matrices near the limits of
    their dtype in the same way, but geev does not always scale the eigenvalues back.
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
    """Multiply ``count`` numbers by ``factor``."""
    for k in range(count):
        x[k] = float(x[k]) * factor
