"""Computes NVIDIA's library calls by NumPy and LAPACK, for plans run without a GPU.

As in the libraries, solvers read and write column-major matrices in place, return
pivots that count from 1 and V instead of V^H, and leave the other triangle alone.
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
    """The arrays and integers of a call, by name."""

    def __init__(self, dtype: str, arguments: Arguments) -> None:
        self.arguments = arguments
        self.dtype = BY_SHORT_NAME[dtype]
        self.lapack: Any = importlib.import_module("scipy.linalg.lapack")

    def __getitem__(self, name: str) -> int:
        value: int = self.arguments[name]
        return value

    def function(self, *names: str) -> Any:
        """LAPACK's function; of two names the second is the one for complex numbers."""
        name = names[-1] if self.dtype.kind == "c" else names[0]
        (found,) = self.lapack.get_lapack_funcs((name,), dtype=self.dtype)
        return found

    def columns(self, name: str, rows: int, columns: int, dtype: Any = None) -> Array:
        """The argument ``name``: column-major matrices, [matrices, rows, columns]."""
        pointer: Pointer = self.arguments[name]
        strides = (rows * columns, 1, rows)
        shape = (self["matrices"], rows, columns)
        return pointer.elements(name, np.dtype(dtype or self.dtype), shape, strides)

    def rows(self, name: str, count: int, dtype: Any = None) -> Array:
        """The argument ``name``: vectors, [matrices, count]."""
        return self.columns(name, count, 1, dtype=dtype)[:, :, 0]

    def array(self, name: str, rows: int, columns: int, dtype: Any) -> Array:
        """The argument ``name`` as a row-major matrix [rows, columns] of ``dtype``."""
        pointer: Pointer = self.arguments[name]
        flat = pointer.array[pointer.start :].view(dtype)
        return flat[: rows * columns].reshape(rows, columns)

    def status(self) -> Array:
        """The status of each matrix."""
        return self.rows("status", 1, np.int32)[:, 0]


def _potrf(c: _Call) -> None:
    """Replace each matrix by its Cholesky factor."""
    n, run = c["n"], c.function("potrf")
    a, status = c.columns("a", n, n), c.status()
    for k in range(c["matrices"]):
        factor, status[k] = run(a[k], lower=1 - c["upper"], clean=0)
        a[k] = factor


def _trsm(c: _Call) -> None:
    """Solve ``a x = b`` for lower triangular matrices; x replaces b."""
    n, sides = c["n"], c["sides"]
    a, b = c.columns("a", n, n), c.columns("b", n, sides)
    for k in range(c["matrices"]):
        triangle = np.tril(a[k])
        if c["unit"]:
            np.fill_diagonal(triangle, 1)
        b[k] = np.linalg.solve(triangle, b[k])


def _trsm_batched(c: _Call) -> None:
    """cublas<t>trsmBatched, on row-major operands: solve ``a x = b`` or ``x a = b``."""
    rows, columns = c["rows"], c["columns"]
    n = rows if c["left"] else columns
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
    """Replace each matrix by its LU factors, with pivots counted from 1."""
    rows, columns, run = c["rows"], c["columns"], c.function("getrf")
    a, pivots = (
        c.columns("a", rows, columns),
        c.rows("pivots", min(rows, columns), "i4"),
    )
    status = c.status()
    for k in range(c["matrices"]):
        a[k], found, status[k] = run(a[k])
        pivots[k] = found + 1


def _geqrf(c: _Call) -> None:
    """Replace each matrix by R and the Householder vectors of its QR factors."""
    rows, columns, run = c["rows"], c["columns"], c.function("geqrf")
    a, tau = (
        c.columns("a", rows, columns),
        c.rows("tau", min(rows, columns)),
    )
    status = c.status()
    for k in range(c["matrices"]):
        a[k], tau[k], _, status[k] = run(a[k])


def _syevd(c: _Call) -> None:
    """Compute eigenvalues w of Hermitian matrices, which eigenvectors replace."""
    n, run = c["n"], c.function("syevd", "heevd")
    a, w = c.columns("a", n, n), c.rows("w", n, real_of(c.dtype))
    status = c.status()
    for k in range(c["matrices"]):
        w[k], vectors, status[k] = run(a[k], compute_v=c["vectors"], lower=0)
        a[k] = vectors


def _geev(c: _Call) -> None:
    """Compute eigenvalues w, and eigenvectors v if given, of general matrices."""
    n, status = c["n"], c.status()
    a, w = c.columns("a", n, n), c.rows("w", n, complex_of(c.dtype))
    v = c.columns("v", n, n) if "v" in c.arguments else None
    run = c.function("geev")
    for k in range(c["matrices"]):
        *parts, _, vectors, status[k] = run(a[k], compute_vl=0)
        w[k] = parts[0] + 1j * parts[1] if len(parts) == 2 else parts[0]
        if v is not None:
            v[k] = vectors


def _gesvd(c: _Call) -> None:
    """Compute singular values s, and singular vectors u and v if asked for."""
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
    """Make cuFFT's transform of each row, without any factor.

    ``kind`` is NumPy's function: "fft", "ifft", "rfft" or "irfft".
    """
    norm = "backward" if kind in ("fft", "rfft") else "forward"

    def transform(c: _Call) -> None:
        length, half = c["length"], c["length"] // 2 + 1
        arguments = half if kind == "irfft" else length
        made = half if kind == "rfft" else length
        dtype = {"rfft": complex_of, "irfft": real_of}.get(kind, lambda d: d)(c.dtype)
        x = c.array("x", c["rows"], arguments, c.dtype)
        function = getattr(np.fft, kind)
        c.array("transformed", c["rows"], made, dtype)[:] = function(
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
    """Whether ``provider`` is a library call that is emulated here."""
    return provider.partition("_")[0] in (*_LIBRARIES, "convolution")


def call_library(provider: str, arguments: Arguments) -> None:
    """Compute what ``provider`` computes, with arrays and integers by their names."""
    kind, _, dtype = provider.partition("_")
    if kind == "convolution":
        _convolve(provider, arguments)
    else:
        _LIBRARIES[kind](_Call(dtype, arguments))


def _convolve(provider: str, arguments: Arguments) -> None:
    """Compute the convolution ``provider`` with ``arguments``.

    The provider's name says which of operand, kernel and output it computes, and the
    dtype.
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
        """The array ``name``, as the library lays out its axes."""
        order = [axis for role in roles[name] for axis in role]
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
