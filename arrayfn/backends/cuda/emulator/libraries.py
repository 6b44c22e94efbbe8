"""Computes NVIDIA's library calls by NumPy and LAPACK, for plans run without a GPU.

As in the libraries, solvers read and write column-major matrices in place, return
pivots that count from 1, return V instead of V^H, and do not access the triangle that
is not asked for. A status of 0 means success.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from arrayfn.backends.cuda.emulator.memory import Pointer
from arrayfn.dtypes import BY_SHORT_NAME, complex_of, real_of
from arrayfn.lowering.cuda.windows.convolution_axes import roles_of
from arrayfn.primitives.padded_convolution import ARRAYS, ROLES, padded_convolution

Array = np.ndarray[Any, Any]
Arguments = Mapping[str, Any]


class _Call:
    """The arguments of a library call: ``call["n"]`` is the integer ``n``.

    Methods return arrays by name, as views that can be written.
    """

    def __init__(self, dtype: str, arguments: Arguments) -> None:
        """Keep the ``arguments`` of a call on matrices of ``dtype``, as "f32"."""
        self.arguments = arguments
        self.dtype = BY_SHORT_NAME[dtype]
        self.lapack: Any = importlib.import_module("scipy.linalg.lapack")

    def __getitem__(self, name: str) -> int:
        value: int = self.arguments[name]
        return value

    def function(self, *names: str) -> Any:
        """Return LAPACK's function for the dtype of the matrices.

        If there are two ``names``, the second is for complex numbers.
        """
        name = names[-1] if self.dtype.kind == "c" else names[0]
        (function,) = self.lapack.get_lapack_funcs((name,), dtype=self.dtype)
        return function

    def columns(self, name: str, rows: int, columns: int, dtype: Any = None) -> Array:
        """Return the column-major matrices ``name`` as [matrices, rows, columns]."""
        pointer: Pointer = self.arguments[name]
        strides = (rows * columns, 1, rows)
        shape = (self["matrices"], rows, columns)
        return pointer.elements(name, np.dtype(dtype or self.dtype), shape, strides)

    def rows(self, name: str, count: int, dtype: Any = None) -> Array:
        """Return the vectors ``name``, one for each matrix, as [matrices, count]."""
        return self.columns(name, count, 1, dtype=dtype)[:, :, 0]

    def array(self, name: str, rows: int, columns: int, dtype: Any) -> Array:
        """Return the single row-major matrix ``name`` as [rows, columns]."""
        pointer: Pointer = self.arguments[name]
        flat = pointer.array[pointer.start :].view(dtype)
        return flat[: rows * columns].reshape(rows, columns)

    def status(self) -> Array:
        """Return the status of each matrix, [matrices] of int32."""
        return self.rows("status", 1, np.int32)[:, 0]


def _potrf(c: _Call) -> None:
    """Compute potrf: replace each matrix ``a`` by its Cholesky factor."""
    n, run = c["n"], c.function("potrf")
    a, status = c.columns("a", n, n), c.status()
    for k in range(c["matrices"]):
        # ``clean=0`` leaves the other triangle as it was, like cuSOLVER.
        factor, status[k] = run(a[k], lower=1 - c["upper"], clean=0)
        a[k] = factor


def _trsm(c: _Call) -> None:
    """Compute trsm: solve ``a x = b`` for lower triangular ``a``; x replaces b."""
    n, sides = c["n"], c["sides"]
    a, b = c.columns("a", n, n), c.columns("b", n, sides)
    for k in range(c["matrices"]):
        triangle = np.tril(a[k])
        if c["unit"]:
            np.fill_diagonal(triangle, 1)
        b[k] = np.linalg.solve(triangle, b[k])


def _trsm_batched(c: _Call) -> None:
    """Compute trsmBatched on row-major matrices; x replaces b.

    Solve ``op(a) x = b`` if ``left``, else ``x op(a) = b``; ``transpose`` is 1 if op
    transposes, and 2 if it conjugates too.
    """
    rows, columns = c["rows"], c["columns"]
    n = rows if c["left"] else columns
    # Seen as column-major matrices, these are the transposes of a and b.
    a, b = c.columns("a", n, n), c.columns("b", columns, rows)
    for k in range(c["matrices"]):
        triangle = np.triu(a[k]) if c["lower"] else np.tril(a[k])
        if c["unit"]:
            np.fill_diagonal(triangle, 1)
        triangle = triangle.T if c["transpose"] else triangle
        triangle = triangle.conj() if c["transpose"] == 2 else triangle
        if c["left"]:
            b[k] = np.linalg.solve(triangle.T, b[k].T).T
        else:
            b[k] = np.linalg.solve(triangle, b[k])


def _getrf(c: _Call) -> None:
    """Compute getrf: replace each matrix ``a`` by its LU factors.

    ``pivots`` are counted from 1.
    """
    rows, columns, run = c["rows"], c["columns"], c.function("getrf")
    a, pivots = (
        c.columns("a", rows, columns),
        c.rows("pivots", min(rows, columns), "i4"),
    )
    status = c.status()
    for k in range(c["matrices"]):
        a[k], pivots_from_0, status[k] = run(a[k])
        pivots[k] = pivots_from_0 + 1


def _geqrf(c: _Call) -> None:
    """Compute geqrf: replace each matrix ``a`` by R and Householder vectors.

    ``tau`` are the scales of the Householder reflections.
    """
    rows, columns, run = c["rows"], c["columns"], c.function("geqrf")
    a, tau = (
        c.columns("a", rows, columns),
        c.rows("tau", min(rows, columns)),
    )
    status = c.status()
    for k in range(c["matrices"]):
        a[k], tau[k], _, status[k] = run(a[k])


def _syevd(c: _Call) -> None:
    """Compute syevd or heevd: the eigenvalues ``w`` of Hermitian matrices ``a``.

    Eigenvectors replace the matrices if ``vectors``.
    """
    n, run = c["n"], c.function("syevd", "heevd")
    a, w = c.columns("a", n, n), c.rows("w", n, real_of(c.dtype))
    status = c.status()
    for k in range(c["matrices"]):
        w[k], vectors, status[k] = run(a[k], compute_v=c["vectors"], lower=0)
        a[k] = vectors


def _geev(c: _Call) -> None:
    """Compute geev: the complex eigenvalues ``w`` of general matrices ``a``.

    Right eigenvectors are written to ``v``, if the call has that array. Those of a real
    matrix are LAPACK's: a conjugate pair's real and imaginary part.
    """
    n, status = c["n"], c.status()
    a, w = c.columns("a", n, n), c.rows("w", n, complex_of(c.dtype))
    v = c.columns("v", n, n) if "v" in c.arguments else None
    run = c.function("geev")
    for k in range(c["matrices"]):
        # The eigenvalues are complex, or come as real and imaginary parts.
        *parts, _, vectors, status[k] = run(a[k], compute_vl=0)
        w[k] = parts[0] + 1j * parts[1] if len(parts) == 2 else parts[0]
        if v is not None:
            v[k] = vectors


def _gesvd(c: _Call) -> None:
    """Compute an SVD: the singular values ``s`` of the matrices ``a``.

    If ``vectors``, singular vectors are written to the columns of ``u`` and ``v``. Both
    are square if ``full``.
    """
    rows, columns, full = c["rows"], c["columns"], c["full"]
    small, run, status = min(rows, columns), c.function("gesdd"), c.status()
    a, s = c.columns("a", rows, columns), c.rows("s", small, real_of(c.dtype))
    widths = (rows, columns) if full else (small, small)
    for k in range(c["matrices"]):
        u, s[k], vh, status[k] = run(a[k], full_matrices=full)
        if c["vectors"]:
            c.columns("u", rows, widths[0])[k] = u
            c.columns("v", columns, widths[1])[k] = vh.conj().T


def _transform(kind: str) -> Callable[[_Call], None]:
    """Make a function that computes cuFFT's transform of each row.

    ``kind`` is the name of NumPy's function: "fft", "ifft", "rfft" or "irfft".
    """
    # cuFFT scales no transform: NumPy's norms without a factor in this direction.
    norm = "backward" if kind in ("fft", "rfft") else "forward"

    def transform(c: _Call) -> None:
        """Transform the rows of ``x`` to ``transformed``."""
        length, half = c["length"], c["length"] // 2 + 1
        operand_length = half if kind == "irfft" else length
        result_length = half if kind == "rfft" else length
        dtype = {"rfft": complex_of, "irfft": real_of}.get(kind, lambda d: d)(c.dtype)
        x = c.array("x", c["rows"], operand_length, c.dtype)
        function = getattr(np.fft, kind)
        c.array("transformed", c["rows"], result_length, dtype)[:] = function(
            x, length, norm=norm
        )

    return transform


_LIBRARIES: Final[dict[str, Callable[[_Call], None]]] = {
    "potrf": _potrf,
    "trsm": _trsm,
    "trsmbatched": _trsm_batched,
    "getrf": _getrf,
    "geqrf": _geqrf,
    "syevd": _syevd,
    "syevjbatched": _syevd,
    "geev": _geev,
    "geevvalues": _geev,
    "gesvdj": _gesvd,
    "gesvdjbatched": _gesvd,
    "gesvdp": _gesvd,
    **{kind: _transform(kind) for kind in ("fft", "ifft", "rfft", "irfft")},
}


def has_library(provider: str) -> bool:
    """Whether ``call_library`` computes the library kernel of this name."""
    return provider.partition("_")[0] in (*_LIBRARIES, "convolution")


def call_library(provider: str, arguments: Arguments) -> None:
    """Compute the library kernel ``provider``, such as "potrf_f32".

    ``arguments`` has a Pointer for each array and the integers, by name.
    """
    kind, _, dtype = provider.partition("_")
    if kind == "convolution":
        _convolve(provider, arguments)
    else:
        _LIBRARIES[kind](_Call(dtype, arguments))


def _convolve(provider: str, arguments: Arguments) -> None:
    """Compute a convolution by its NumPy reference.

    ``provider`` is "convolution_output_f32", for example: it computes the output, or
    the gradient by "operand" or "kernel". ``arguments`` are those of ``call_library``.
    """
    _, gives, name, *_ = provider.split("_")
    dtype, axes = BY_SHORT_NAME[name], range(arguments["axes"])
    roles = roles_of(
        arguments["axes"], bool(arguments["last"]), arguments["groups"] > 1
    )
    space = {
        "operand": [arguments[f"extent{k}"] for k in axes],
        "kernel": [arguments[f"size{k}"] for k in axes],
        "output": [arguments[f"count{k}"] for k in axes],
    }
    counts = {
        "operand": [arguments[k] for k in ("groups", "batch", "inner")],
        "kernel": [arguments[k] for k in ("groups", "outer", "inner")],
        "output": [arguments[k] for k in ("groups", "batch", "outer")],
    }

    def array(name: str) -> Array:
        """Return the array ``name`` with its axes in the order of the memory.

        ``roles`` has the axes of each role: groups if there are several, batch or
        output channels, channels, space.
        """
        order = [axis for role in roles[name] for axis in role]
        # An array without groups has no axis for them: leave out the first count.
        extents = [*counts[name][arguments["groups"] == 1 :], *space[name]]
        shape = [extents[order.index(axis)] for axis in range(len(order))]
        pointer: Pointer = arguments[name]
        flat = pointer.array[pointer.start :].view(dtype)
        return flat[: int(np.prod(shape))].reshape(shape)

    array(gives)[...] = padded_convolution.reference(
        *(array(name) for name in ARRAYS[gives]),
        gives=gives,
        **{key: roles[name] for name, key in ROLES.items()},
        strides=tuple(arguments[f"stride{k}"] for k in axes),
        dilations=tuple(arguments[f"dilation{k}"] for k in axes),
        padding=tuple((arguments[f"low{k}"], arguments[f"high{k}"]) for k in axes),
        extents=() if gives == "output" else tuple(space[gives]),
    )
