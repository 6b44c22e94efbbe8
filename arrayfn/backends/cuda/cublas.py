"""Matrix products through cuBLASLt: descriptors made once, when a plan is loaded.

float32 is computed in float32 and float64 in float64: TF32 is never taken unasked.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np

from arrayfn.backends.cuda.driver import device
from arrayfn.errors import BackendError

WORKSPACE: Final = 32 << 20
_LIBRARIES: Final = ("libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so")
_TRANSPOSE_A, _TRANSPOSE_B = 3, 4
_BATCH_COUNT, _BATCH_STRIDE = 5, 6
_MOST_WORKSPACE: Final = 1
_STATUS: Final = {
    1: "not initialized",
    3: "allocation failed",
    7: "invalid value",
    8: "architecture mismatch",
    13: "execution failed",
    14: "internal error",
    15: "not supported",
}


@dataclass(frozen=True, slots=True)
class _Precision:
    """cuBLAS's numbers for a dtype: of its elements, and of what it is computed in."""

    data: int
    compute: int
    dtype: np.dtype[Any]


_PRECISIONS: Final[dict[str, _Precision]] = {
    "gemm_f32": _Precision(0, 68, np.dtype(np.float32)),
    "gemm_f64": _Precision(1, 70, np.dtype(np.float64)),
    "gemm_c64": _Precision(4, 68, np.dtype(np.complex64)),
    "gemm_c128": _Precision(5, 70, np.dtype(np.complex128)),
}


class _Choice(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("status", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


@dataclass(frozen=True, slots=True)
class Product:
    """One product, ready to be called: addresses for the runner, and what they need.

    ``layouts`` are of cuBLAS's operands, in its order: the second factor, the first,
    the result.
    """

    handle: int
    operation: int
    alpha: int
    layouts: tuple[int, ...]
    beta: int
    algorithm: int
    workspace: int
    workspace_bytes: int
    kept: tuple[object, ...]


class Library:
    """cuBLASLt with its handle and workspace, which all products share in turn."""

    def __init__(self) -> None:
        self.library = _open()
        handle = ctypes.c_void_p()
        device().enter()
        self.check(self.library.cublasLtCreate(ctypes.byref(handle)))
        self.handle = int(handle.value or 0)
        self.workspace = device().allocate(WORKSPACE)
        self.matmul = (
            ctypes.cast(self.library.cublasLtMatmul, ctypes.c_void_p).value or 0
        )

    def check(self, status: int) -> None:
        """Raise BackendError unless ``status`` is success."""
        if status:
            meaning = _STATUS.get(status, "error")
            raise BackendError(f"cuBLASLt says: {meaning} ({status})")

    def _new(self, function: str, *arguments: Any) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        self.check(getattr(self.library, function)(ctypes.byref(made), *arguments))
        return made

    def _set(self, function: str, what: Any, attribute: int, value: Any) -> None:
        self.check(
            getattr(self.library, function)(
                what, attribute, ctypes.byref(value), ctypes.sizeof(value)
            )
        )

    def _layout(
        self, data: int, rows: int, columns: int, leading: int, batch: int, stride: int
    ) -> ctypes.c_void_p:
        layout = self._new(
            "cublasLtMatrixLayoutCreate",
            data,
            ctypes.c_uint64(rows),
            ctypes.c_uint64(columns),
            ctypes.c_int64(max(leading, rows)),
        )
        if batch > 1:
            setter = "cublasLtMatrixLayoutSetAttribute"
            self._set(setter, layout, _BATCH_COUNT, ctypes.c_int32(batch))
            self._set(setter, layout, _BATCH_STRIDE, ctypes.c_int64(stride))
        return layout

    def product(self, provider: str, p: Mapping[str, int]) -> Product:
        """Row-major ``c[m, n] = a @ b``, as parameters ``p`` of the kernel say.

        cuBLAS is column-major: it computes the transpose, ``b.T @ a.T``.
        """
        precision = _PRECISIONS[provider]
        data = precision.data
        operation = self._new("cublasLtMatmulDescCreate", precision.compute, data)
        setter = "cublasLtMatmulDescSetAttribute"
        for attribute, name in (
            (_TRANSPOSE_A, "transpose_b"),
            (_TRANSPOSE_B, "transpose_a"),
        ):
            self._set(setter, operation, attribute, ctypes.c_int32(p[name]))
        m, n, k, batch = p["m"], p["n"], p["k"], p["batch"]
        left = (k, n) if p["transpose_b"] else (n, k)
        right = (m, k) if p["transpose_a"] else (k, m)
        layouts = (
            self._layout(data, *left, p["ldb"], batch, p["batch_stride_b"]),
            self._layout(data, *right, p["lda"], batch, p["batch_stride_a"]),
            self._layout(data, n, m, p["ldc"], batch, p["batch_stride_c"]),
        )
        choice = self._choose(operation, layouts)
        one, zero = np.ones((), precision.dtype), np.zeros((), precision.dtype)
        return Product(
            handle=self.handle,
            operation=int(operation.value or 0),
            alpha=one.ctypes.data,
            layouts=tuple(int(layout.value or 0) for layout in layouts),
            beta=zero.ctypes.data,
            algorithm=ctypes.addressof(choice),
            workspace=self.workspace,
            workspace_bytes=WORKSPACE,
            kept=(one, zero, choice),
        )

    def _choose(self, operation: object, layouts: Sequence[object]) -> ctypes.Structure:
        """The algorithm that cuBLASLt thinks is the best."""
        preference = self._new("cublasLtMatmulPreferenceCreate")
        setter = "cublasLtMatmulPreferenceSetAttribute"
        self._set(setter, preference, _MOST_WORKSPACE, ctypes.c_uint64(WORKSPACE))
        choice, found = _Choice(), ctypes.c_int()
        status = self.library.cublasLtMatmulAlgoGetHeuristic(
            ctypes.c_void_p(self.handle),
            operation,
            *layouts,
            layouts[-1],
            preference,
            1,
            ctypes.byref(choice),
            ctypes.byref(found),
        )
        self.library.cublasLtMatmulPreferenceDestroy(preference)
        self.check(status or (0 if found.value else 15))
        return choice


def _open() -> ctypes.CDLL:
    try:
        finder = importlib.import_module("cuda.pathfinder")
        return ctypes.CDLL(str(finder.load_nvidia_dynamic_lib("cublasLt").abs_path))
    except (ImportError, OSError, RuntimeError):
        pass
    for name in _LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise BackendError("dot_general on a GPU needs cuBLASLt: pip install nvidia-cublas")


@cache
def library() -> Library:
    """cuBLASLt, opened at the first product."""
    return Library()
