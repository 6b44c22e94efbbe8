"""Eigenvalues of any square matrices: LAPACK's geev. Results are complex.

The operand and the eigenvectors lie by columns. LAPACK packs the complex eigenvectors
of a real matrix, which come in conjugate pairs, into two real ones each. A matrix that
is not finite, and one that does not converge, has NaNs.
"""

from __future__ import annotations

from typing import Final

from arrayfn.backends.cpu.libraries.blas import Blas
from arrayfn.backends.cpu.libraries.linear_algebra.calls import (
    CALL_BYTES,
    CALLS,
    ITEM_BYTES,
    NAN,
    REAL_BYTES,
    fields,
    lapack,
    lapack_words,
)
from arrayfn.backends.cpu.libraries.linear_algebra.matrices import (
    copy_negated,
    copy_real,
    fill_words,
    is_zero,
    memcpy,
    memset,
)
from arrayfn.backends.cpu.libraries.linear_algebra.references import by_reference
from arrayfn.backends.cpu.libraries.linear_algebra.scaling import (
    is_finite_exponent,
    largest_exponent,
    rescale,
    scale_of,
)
from arrayfn.backends.cpu.libraries.linear_algebra.threads import with_large
from arrayfn.backends.cpu.libraries.provider import Provider
from arrayfn.backends.native import load, native, stack, store
from arrayfn.primitives import linalg_spectral

VECTORS_CALL: Final = CALLS
VALUES_CALL: Final = CALLS + CALL_BYTES
LASCL: Final = CALLS + 2 * CALL_BYTES
PLACES: Final = fields(
    3, "x", "w", "v", "copy", "packed", "parts", "work", "n", "words"
)  # fmt: skip
X: Final = PLACES["x"]
W: Final = PLACES["w"]
V: Final = PLACES["v"]
COPY: Final = PLACES["copy"]
PACKED: Final = PLACES["packed"]
PARTS: Final = PLACES["parts"]  # real parts of eigenvalues, then imaginary ones
SIZE: Final = PLACES["n"]


@native
def eig_run(arguments: int, begin: int, end: int) -> int:
    """Decompose matrices ``begin`` to ``end``."""
    n = load(arguments + SIZE)
    item_bytes = 2 * load(arguments + REAL_BYTES)
    for item in range(begin, end):
        vectors = load(arguments + V) + item * n * n * item_bytes
        if geev(arguments, VECTORS_CALL, item) != 0:
            fill_words(vectors, n * n * item_bytes, load(arguments + NAN))
        else:
            unpack_vectors(arguments, vectors)
    return 0


@native
def eigvals_run(arguments: int, begin: int, end: int) -> int:
    """The eigenvalues of matrices ``begin`` to ``end``."""
    for item in range(begin, end):
        geev(arguments, VALUES_CALL, item)
    return 0


@native
def geev(arguments: int, table: int, item: int) -> int:
    """One decomposition; not 0 if it failed, and then the values are NaN."""
    n = load(arguments + SIZE)
    size = load(arguments + ITEM_BYTES)
    real = load(arguments + REAL_BYTES)
    a = load(arguments + COPY)
    parts = load(arguments + PARTS)
    values = load(arguments + W) + item * 2 * n * real
    own = stack(2)
    store(own, values)
    store(own + 8, parts + n * real)
    memcpy(a, load(arguments + X) + item * n * n * size, n * n * size)
    # geev's own scaling, which it does not always undo, never starts.
    exponent = largest_exponent(a, n * n * (size // real), real)
    scale = scale_of(exponent, real)
    failed = 1
    if is_finite_exponent(exponent, real):
        lascl = load(arguments + LASCL)
        if scale:
            rescale(lascl, scale, 0, n * (size // real), n, a, real)
        failed = lapack(arguments, table, own)
        if size == real:
            for k in range(n):
                copy_real(values + 2 * k * real, parts + k * real, real)
                copy_real(values + (2 * k + 1) * real, parts + (n + k) * real, real)
        if scale:
            rescale(lascl, scale, 1, 2 * n, 1, values, real)
    if failed != 0:
        fill_words(values, 2 * n * real, load(arguments + NAN))
    return failed


@native
def unpack_vectors(arguments: int, vectors: int) -> int:
    """Complex eigenvectors from what geev left."""
    n = load(arguments + SIZE)
    real = load(arguments + REAL_BYTES)
    packed = load(arguments + PACKED)
    if load(arguments + ITEM_BYTES) != real:
        memcpy(vectors, packed, 2 * n * n * real)
        return 0
    memset(vectors, 0, 2 * n * n * real)
    imaginary = load(arguments + PARTS) + n * real
    row = 0
    while row < n:
        source = packed + row * n * real
        target = vectors + 2 * row * n * real
        for k in range(n):
            copy_real(target + 2 * k * real, source + k * real, real)
        if is_zero(imaginary + row * real, real):
            row += 1
            continue
        other = source + n * real
        paired = target + 2 * n * real
        for k in range(n):
            copy_real(target + (2 * k + 1) * real, other + k * real, real)
            copy_real(paired + 2 * k * real, source + k * real, real)
            copy_negated(paired + (2 * k + 1) * real, other + k * real, real)
        row += 2
    return 0


def words(dtype: str, library: Blas | None = None) -> tuple[int, ...]:
    """The words before the arguments."""
    calls = [
        (
            f"?geev N {job} &n copy &n parts $1 null &n packed &n work &words info",
            f"?geev N {job} &n copy &n $0 null &n packed &n work &words parts info",
        )
        for job in "VN"
    ]
    return lapack_words(dtype, PLACES, *calls, "%lascl", library=library)


PROVIDERS: Final = {
    **with_large(
        "geev",
        Provider(
            eig_run,
            words,
            by_reference(linalg_spectral.eig, "x", ("n", "n"), "v", "w"),
            uses_blas=True,
        ),
        words,
    ),
    **with_large(
        "geev_values",
        Provider(
            eigvals_run,
            words,
            by_reference(linalg_spectral.eigvals, "x", ("n", "n"), "w"),
            uses_blas=True,
        ),
        words,
    ),
}
