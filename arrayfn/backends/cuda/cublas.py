"""Matrix products through cuBLASLt: descriptors made once, when a plan is loaded.

A provider's name says what is multiplied: ``gemm_f32``, ``gemm_bf16`` (summed in
float32, rounded once), ``gemm_bf16_f32`` (not rounded), ``gemm_f32_tf32``; and what
follows in the same call: ``_scaled`` by alpha, an array ``_added`` times beta, then
``_bias``, ``_relu``. float32 is computed in float32 and float64 in float64: TF32 is
never taken unasked.

cuBLASLt proposes several algorithms. They are timed when a product is first seen on a
machine, and the choice is kept in the disk cache: it is the same from then on, and so
are the bits of results.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np

from arrayfn.backends.cuda import timing
from arrayfn.backends.cuda.driver import OutOfMemoryError, device
from arrayfn.backends.cuda.runner import BIAS_POINTER
from arrayfn.backends.object_cache import content_key, object_cache
from arrayfn.errors import BackendError

WORKSPACE: Final = 64 << 20
PROPOSALS: Final = 12
_ALIGNMENT: Final = 16  # that arrays of other libraries have too
_LIBRARIES: Final = ("libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so")
_TRANSPOSE_A, _TRANSPOSE_B, _EPILOGUE = 3, 4, 7
_BATCH_COUNT, _BATCH_STRIDE = 5, 6
_MOST_WORKSPACE, _LEAST_ALIGNMENT = 1, (5, 6, 7, 8)
_STATUS: Final = {
    1: "not initialized",
    3: "allocation failed",
    7: "invalid value",
    8: "architecture mismatch",
    13: "execution failed",
    14: "internal error",
    15: "not supported",
}
_EPILOGUES: Final = {"relu": 2, "bias": 4}  # together: the sum
_FACTORS: Final = ("scaled", "added")  # no epilogues to cuBLASLt, but alpha and beta


@dataclass(frozen=True, slots=True)
class _Dtype:
    """cuBLAS's numbers for a dtype, for what it is computed in, and for factors."""

    data: int
    compute: int
    scale: int
    factor: np.dtype[Any]
    size: int


_F32, _F64 = np.dtype(np.float32), np.dtype(np.float64)
_DTYPES: Final[dict[str, _Dtype]] = {
    "f32": _Dtype(0, 68, 0, _F32, 4),
    "f64": _Dtype(1, 70, 1, _F64, 8),
    "f16": _Dtype(2, 68, 0, _F32, 2),
    "bf16": _Dtype(14, 68, 0, _F32, 2),
    "c64": _Dtype(4, 68, 4, np.dtype(np.complex64), 8),
    "c128": _Dtype(5, 70, 5, np.dtype(np.complex128), 16),
}
_TF32: Final = 77


@dataclass(frozen=True, slots=True)
class _Form:
    """What a provider's name says."""

    operand: _Dtype
    result: _Dtype
    compute: int
    after: tuple[str, ...]

    @property
    def epilogue(self) -> int:
        """cuBLASLt's number of it; 0 if it is none."""
        return sum(_EPILOGUES[word] for word in self.after if word not in _FACTORS)


def form_of(provider: str) -> _Form:
    """The form of product that ``provider`` names."""
    kind, first, *rest = provider.split("_")
    if kind != "gemm" or first not in _DTYPES:
        raise BackendError(f"there is no {provider} on a GPU")
    operand = result = _DTYPES[first]
    compute = operand.compute
    if rest and rest[0] in _DTYPES:
        result = _DTYPES[rest.pop(0)]
    if rest and rest[0] == "tf32":
        rest.pop(0)
        compute = _TF32
    unknown = [w for w in rest if w not in (*_FACTORS, *_EPILOGUES)]
    if unknown:
        raise BackendError(f"there is no {provider} on a GPU")
    return _Form(operand, result, compute, tuple(rest))


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
    what is added, the result.
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
        self.library.cublasLtGetVersion.restype = ctypes.c_size_t
        handle = ctypes.c_void_p()
        device().enter()
        self.check(self.library.cublasLtCreate(ctypes.byref(handle)))
        self.handle = int(handle.value or 0)
        self.workspace = device().allocate(WORKSPACE)
        self.matmul = self._address("cublasLtMatmul")
        self.set_attribute = self._address("cublasLtMatmulDescSetAttribute")
        self._call = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_uint64] * 16)(
            self.matmul
        )

    def _address(self, name: str) -> int:
        return ctypes.cast(getattr(self.library, name), ctypes.c_void_p).value or 0

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

    def product(
        self,
        provider: str,
        p: Mapping[str, int],
        offsets: Sequence[int] = (),
    ) -> Product:
        """Row-major ``c[m, n] = a @ b``, as parameters ``p`` of the kernel say.

        cuBLAS is column-major: it computes the transpose, ``b.T @ a.T``. Operands begin
        ``offsets`` bytes into their arrays.
        """
        form = form_of(provider)
        data = form.operand.data
        operation = self._new(
            "cublasLtMatmulDescCreate", form.compute, form.operand.scale
        )
        setter = "cublasLtMatmulDescSetAttribute"
        for attribute, name in (
            (_TRANSPOSE_A, "transpose_b"),
            (_TRANSPOSE_B, "transpose_a"),
        ):
            self._set(setter, operation, attribute, ctypes.c_int32(p[name]))
        if form.epilogue:
            epilogue = ctypes.c_int32(form.epilogue)
            self._set(setter, operation, _EPILOGUE, epilogue)
        if "bias" in form.after:
            # Set anew by each run; here for what judges the algorithms.
            self._set(setter, operation, BIAS_POINTER, ctypes.c_uint64(self.workspace))
        m, n, k, batch = p["m"], p["n"], p["k"], p["batch"]
        left = (k, n) if p["transpose_b"] else (n, k)
        right = (m, k) if p["transpose_a"] else (k, m)
        wide = form.result.data
        lies = p["ldc"], batch, p["batch_stride_c"]
        added = p.get("ld_added", lies[0]), batch, p.get("batch_stride_added", lies[2])
        layouts = (
            self._layout(data, *left, p["ldb"], batch, p["batch_stride_b"]),
            self._layout(data, *right, p["lda"], batch, p["batch_stride_a"]),
            self._layout(wide, n, m, *added),
            self._layout(wide, n, m, *lies),
        )
        alpha = _factor(p.get("alpha"), 1.0, form)
        beta = _factor(p.get("beta"), 0.0, form)
        alignment = _alignment_of(offsets)
        choices = self._proposals(operation, layouts, alignment)

        def made(choice: ctypes.Structure) -> Product:
            return Product(
                handle=self.handle,
                operation=int(operation.value or 0),
                alpha=alpha.ctypes.data,
                layouts=tuple(int(layout.value or 0) for layout in layouts),
                beta=beta.ctypes.data,
                algorithm=ctypes.addressof(choice),
                workspace=self.workspace,
                workspace_bytes=WORKSPACE,
                kept=(alpha, beta, choice),
            )

        if len(choices) == 1:
            return made(choices[0])
        sizes = _sizes(form, p)
        gpu = device()
        key = content_key(
            f"cublasLt {self.library.cublasLtGetVersion()} {gpu.name} {provider}",
            f"{_shape_of(p)} {alignment} {WORKSPACE} {PROPOSALS}",
        )
        kept = object_cache().get_or_compile(
            key, lambda: self._fastest([made(c) for c in choices], choices, sizes)
        )
        return made(_Choice.from_buffer_copy(kept))

    def _proposals(
        self, operation: object, layouts: Sequence[object], alignment: int
    ) -> list[_Choice]:
        """The algorithms that cuBLASLt proposes, what it thinks the best first."""
        preference = self._new("cublasLtMatmulPreferenceCreate")
        setter = "cublasLtMatmulPreferenceSetAttribute"
        self._set(setter, preference, _MOST_WORKSPACE, ctypes.c_uint64(WORKSPACE))
        for attribute in _LEAST_ALIGNMENT:
            self._set(setter, preference, attribute, ctypes.c_uint32(alignment))
        choices, found = (_Choice * PROPOSALS)(), ctypes.c_int()
        status = self.library.cublasLtMatmulAlgoGetHeuristic(
            ctypes.c_void_p(self.handle),
            operation,
            *layouts,
            preference,
            PROPOSALS,
            ctypes.byref(choices),
            ctypes.byref(found),
        )
        self.library.cublasLtMatmulPreferenceDestroy(preference)
        self.check(status or (0 if found.value else 15))
        return [c for c in choices[: found.value] if not c.status]

    def call(self, product: Product, places: Sequence[int], stream: int) -> int:
        """Enqueue ``product`` on b, a, what is added and c at these addresses."""
        b, a, d, c = places
        second, first, added, result = product.layouts
        return self._call(
            product.handle,
            product.operation,
            product.alpha,
            *(b, second, a, first),
            product.beta,
            *(d, added, c, result),
            product.algorithm,
            product.workspace,
            product.workspace_bytes,
            stream,
        )

    def _fastest(
        self,
        products: Sequence[Product],
        choices: Sequence[_Choice],
        sizes: Sequence[int],
    ) -> bytes:
        """The bytes of the choice whose product is the fastest on memory of ``sizes``.

        The first one where there is no memory to try them on.
        """
        gpu = device()
        held: list[int] = []
        try:
            held += [gpu.allocate(size) for size in sizes]
            for pointer, size in zip(held, sizes, strict=True):
                gpu.fill(pointer, 0x3C, size)
            best = timing.fastest(
                [lambda stream, q=q: self.call(q, held, stream) for q in products]
            )
        except OutOfMemoryError:
            best = 0
        finally:
            for pointer in held:
                gpu.free(pointer)
        return bytes(choices[best])


def _alignment_of(offsets: Sequence[int]) -> int:
    """The greatest power of two, up to ``_ALIGNMENT``, that all operands begin at."""
    alignment = _ALIGNMENT
    while any(offset % alignment for offset in offsets):
        alignment //= 2
    return alignment


def _factor(bits: int | None, other: float, form: _Form) -> np.ndarray[Any, Any]:
    """A factor, given as the bits of a float64, or the ``other`` one."""
    value = other if bits is None else np.int64(bits).view(np.float64)
    return np.array(value, form.operand.factor)


def _shape_of(p: Mapping[str, int]) -> list[tuple[str, int]]:
    """What of a product's parameters its speed may depend on: not its factors."""
    return sorted((k, v) for k, v in p.items() if k not in ("alpha", "beta"))


def _sizes(form: _Form, p: Mapping[str, int]) -> tuple[int, int, int, int]:
    """Bytes that b, a, what is added and c span."""

    def span(name: str, rows: int, size: int, leading: str = "ld") -> int:
        batches = (p["batch"] - 1) * abs(p[f"batch_stride_{name}"])
        return max(1, (batches + rows * p[leading + name]) * size)

    m, n, k = p["m"], p["n"], p["k"]
    size = form.operand.size
    return (
        span("b", n if p["transpose_b"] else k, size),
        span("a", k if p["transpose_a"] else m, size),
        span("added", m, form.result.size, "ld_") if "ld_added" in p else 1,
        span("c", m, form.result.size),
    )


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
