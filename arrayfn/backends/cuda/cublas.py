"""Matrix products through cuBLASLt: descriptors are made once, when a plan is loaded.

``product_forms`` reads the names of providers.

cuBLASLt proposes several algorithms. They are timed when a product is first seen on a
machine, for 0.1 to 0.3 s, and the choice is kept in the disk cache: it is the same from
then on, and so are the bits of results. A process that finds it there only fills in
descriptors, by a dozen calls through ctypes (see ``libraries.shared``).
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, cycle
from typing import Any, Final

import numpy as np

from arrayfn.backends.addresses import function_address
from arrayfn.backends.cuda import timing
from arrayfn.backends.cuda.driver import device, per_device
from arrayfn.backends.cuda.libraries.shared import open_library
from arrayfn.backends.cuda.product_forms import (
    RANDOM_NUMBERS,
    Form,
    alignment_of,
    factor_scalar,
    form_of,
    operand_bytes,
    random_block,
    speed_parameters,
)
from arrayfn.backends.cuda.product_tiles import Choice, Tiles, tries_all_tiles
from arrayfn.backends.cuda.runner import BIAS_POINTER
from arrayfn.backends.object_cache import content_key, object_cache
from arrayfn.errors import BackendError, OutOfMemoryError
from arrayfn.records import frozen

WORKSPACE: Final = 64 << 20
"""Bytes of the workspace that all products share."""
_WORKSPACE_SECTION: Final = WORKSPACE // 8
"""Bytes of the sections that small products get in rotation."""
PROPOSALS: Final = 64
"""Algorithms that cuBLASLt is asked for; it proposes about eight."""
ROTATED_BYTES: Final = 192 << 20
"""Bytes of all sets of operands between which timing rotates: more than the L2 cache.
"""
MIN_SETS: Final = 2
"""Sets of operands at least: an algorithm may be slow on one set."""
MAX_SETS: Final = 8

# Numbers of cublasLt.h: attributes of descriptors, and their values.
_POINTER_MODE, _TRANSPOSE_A, _TRANSPOSE_B, _EPILOGUE = 2, 3, 4, 7
_DEVICE_POINTERS: Final = 1
_BATCH_COUNT, _BATCH_STRIDE = 5, 6
_MAX_WORKSPACE, _MIN_ALIGNMENTS = 1, (5, 6, 7, 8)
_STATUS: Final = {
    1: "not initialized",
    3: "allocation failed",
    7: "invalid value",
    8: "architecture mismatch",
    13: "execution failed",
    14: "internal error",
    15: "not supported",
}


@frozen(slots=True)
class PreparedProduct:
    """One product, ready to be called: addresses for the runner, and their owners.

    ``layouts`` are of cuBLAS's operands, in its order: the second factor, the first,
    the added matrix, the result. ``kept`` are the objects whose memory the addresses
    are in.
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
    described: bytes
    """The algorithm, in cuBLASLt's own encoding."""


@frozen(slots=True)
class _Descriptors:
    """cuBLASLt's descriptors of a product, for any algorithm.

    ``operation`` describes the product, ``layouts`` its matrices; ``factors`` are alpha
    and beta. Operands are aligned to ``alignment`` bytes.
    """

    form: Form
    operation: ctypes.c_void_p
    layouts: tuple[ctypes.c_void_p, ...]
    factors: np.ndarray[Any, Any] | _DeviceCopy
    alignment: int

    @property
    def alpha_address(self) -> int:
        """The address of alpha, on the host or the GPU."""
        if isinstance(self.factors, _DeviceCopy):
            return self.factors.pointer
        return self.factors.ctypes.data

    @property
    def beta_address(self) -> int:
        """The address of beta, on the host or the GPU."""
        return self.alpha_address + self.form.operand.factor.itemsize


class _DeviceCopy:
    """A copy of a host array in the GPU's memory, freed with this object."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.pointer = device().allocate(array.nbytes)
        device().copy_in(self.pointer, array.ctypes.data, array.nbytes)

    # ``is_finalizing`` is a default argument because the module's names may be gone
    # when the interpreter ends.
    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing():
            device().free(self.pointer)


class Library:
    """cuBLASLt with its handle, and the workspace that all products share."""

    def __init__(self) -> None:
        """Load cuBLASLt; make its handle and the workspace on this thread's GPU."""
        self.library = open_library("cublasLt", "dot_general", "nvidia-cublas")
        self.library.cublasLtGetVersion.restype = ctypes.c_size_t
        handle = ctypes.c_void_p()
        device().make_current()
        self.check(self.library.cublasLtCreate(ctypes.byref(handle)))
        self.handle = int(handle.value or 0)
        self.workspace = device().allocate(WORKSPACE)
        self._part = 0  # number of the section that the last small product got
        self.matmul = function_address(self.library.cublasLtMatmul)
        self.set_attribute = function_address(
            self.library.cublasLtMatmulDescSetAttribute
        )
        # All of the function's 16 parameters are passed as 64-bit words.
        self._call = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_uint64] * 16)(
            self.matmul
        )

    def check(self, status: int) -> None:
        """Raise BackendError unless ``status`` is success."""
        if status:
            meaning = _STATUS.get(status, "error")
            raise BackendError(f"cuBLASLt says: {meaning} ({status})")

    def _new(self, function: str, *arguments: Any) -> ctypes.c_void_p:
        """Create a handle by cuBLASLt's ``function``, with ``arguments``."""
        made = ctypes.c_void_p()
        self.check(getattr(self.library, function)(ctypes.byref(made), *arguments))
        return made

    def _set(self, function: str, what: Any, attribute: int, value: Any) -> None:
        """Set an ``attribute`` of the descriptor ``what``.

        ``function`` is the name of cuBLASLt's setter, and ``value`` a ctypes object.
        """
        self.check(
            getattr(self.library, function)(
                what, attribute, ctypes.byref(value), ctypes.sizeof(value)
            )
        )

    def _layout(
        self, data: int, rows: int, columns: int, leading: int, batch: int, stride: int
    ) -> ctypes.c_void_p:
        """Create the descriptor of a column-major matrix, or of a batch of them.

        ``data`` is its cudaDataType. ``leading`` elements lie between columns,
        ``stride`` elements between the matrices of a batch.
        """
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
        self, provider: str, p: Mapping[str, int], offsets: Sequence[int] = ()
    ) -> PreparedProduct:
        """Prepare the row-major product ``c[m, n] = a @ b`` with the parameters ``p``.

        cuBLAS is column-major: it computes the transpose, ``b.T @ a.T``. Operands begin
        ``offsets`` bytes into their arrays. ``provider`` is the kernel's name, which
        says dtypes and epilogue. The fastest algorithm is measured once, and kept in
        the disk cache.
        """
        problem = self._descriptors(provider, p, alignment_of(offsets))

        def fastest() -> bytes:
            """Return the best of cuBLASLt's proposals, measured if there are several.

            It is the bytes of a ``Choice``.
            """
            choices = self._proposals(problem, p)
            single = len(choices) == 1
            return bytes(choices[0 if single else self._fastest(problem, choices, p)])

        key = content_key(
            f"cublasLt {self.library.cublasLtGetVersion()} {device().name} {provider}",
            f"{speed_parameters(p)} {problem.alignment} {WORKSPACE} {PROPOSALS} "
            f"{ROTATED_BYTES} {RANDOM_NUMBERS} {timing.FINAL_ROUNDS} "
            f"{timing.LONG_ROUND_SECONDS} {timing.FINALISTS} "
            f"{tries_all_tiles(problem.form, p)}",
        )
        # Asking for proposals alone takes a process its first 30 ms.
        kept = object_cache().get_or_compile(key, fastest)
        return self._with_algorithm(problem, Choice.from_buffer_copy(kept))

    def proposals(self, provider: str, p: Mapping[str, int]) -> list[PreparedProduct]:
        """Prepare the product by each proposed algorithm, in cuBLASLt's order.

        ``provider`` and ``p`` are as for ``product``.
        """
        # No offsets: the operands are aligned.
        problem = self._descriptors(provider, p, alignment_of(()))
        return [self._with_algorithm(problem, c) for c in self._proposals(problem, p)]

    def _descriptors(
        self, provider: str, p: Mapping[str, int], alignment: int
    ) -> _Descriptors:
        """Create cuBLASLt's descriptors of a product, for any algorithm.

        ``provider`` and ``p`` are the kernel's name and integers; all operands are
        aligned to ``alignment`` bytes.
        """
        form = form_of(provider)
        operation = self._new(
            "cublasLtMatmulDescCreate", form.compute, form.operand.scale
        )
        setter = "cublasLtMatmulDescSetAttribute"
        # cuBLASLt's matrices are column-major, so it computes C^T = B^T A^T: its first
        # operand is b.
        for attribute, name in (
            (_TRANSPOSE_A, "transpose_b"),
            (_TRANSPOSE_B, "transpose_a"),
        ):
            self._set(setter, operation, attribute, ctypes.c_int32(p[name]))
        if form.factors_in_memory:
            mode = ctypes.c_int32(_DEVICE_POINTERS)
            self._set(setter, operation, _POINTER_MODE, mode)
        if form.epilogue:
            epilogue = ctypes.c_int32(form.epilogue)
            self._set(setter, operation, _EPILOGUE, epilogue)
        if "bias" in form.after:
            # Each run sets its own; this one is for the choice of an algorithm.
            self._set(setter, operation, BIAS_POINTER, ctypes.c_uint64(self.workspace))
        m, n, k, batch = p["m"], p["n"], p["k"], p["batch"]
        # Rows and columns of b and a as stored, read as column-major matrices.
        left = (k, n) if p["transpose_b"] else (n, k)
        right = (m, k) if p["transpose_a"] else (k, m)
        data, wide = form.operand.data, form.result.data
        ldc, stride = p["ldc"], p["batch_stride_c"]
        ld_added, added_stride = (
            p.get("ld_added", ldc),
            p.get("batch_stride_added", stride),
        )
        layouts = (
            self._layout(data, *left, p["ldb"], batch, p["batch_stride_b"]),
            self._layout(data, *right, p["lda"], batch, p["batch_stride_a"]),
            self._layout(wide, n, m, ld_added, batch, added_stride),
            self._layout(wide, n, m, ldc, batch, stride),
        )
        alpha = factor_scalar(p.get("alpha"), 1.0, form)
        beta = factor_scalar(p.get("beta"), 0.0, form)
        factors = np.stack([alpha, beta])
        kept = _DeviceCopy(factors) if form.factors_in_memory else factors
        return _Descriptors(form, operation, layouts, kept, alignment)

    def _workspace_for(self, nbytes: int) -> int:
        """Return the address of a workspace of ``nbytes`` for a product.

        Small products get sections of the workspace in rotation, so that products with
        different sections can run concurrently.
        """
        if nbytes > _WORKSPACE_SECTION:
            return self.workspace
        self._part = (self._part + 1) % (WORKSPACE // _WORKSPACE_SECTION)
        return self.workspace + self._part * _WORKSPACE_SECTION

    def _with_algorithm(self, problem: _Descriptors, choice: Choice) -> PreparedProduct:
        """Prepare the product of ``problem`` by the algorithm of ``choice``."""
        return PreparedProduct(
            handle=self.handle,
            operation=int(problem.operation.value or 0),
            alpha=problem.alpha_address,
            layouts=tuple(int(layout.value or 0) for layout in problem.layouts),
            beta=problem.beta_address,
            algorithm=ctypes.addressof(choice),
            workspace=self._workspace_for(choice.workspace),
            workspace_bytes=choice.workspace,
            kept=(problem.factors, choice),
            described=bytes(choice.algorithm),
        )

    def _proposals(self, problem: _Descriptors, p: Mapping[str, int]) -> list[Choice]:
        """Return the algorithms that cuBLASLt proposes, in its ranking.

        After them come the same algorithms with other tiles, in cases where cuBLASLt
        does not propose the best ones.
        """
        preference = self._new("cublasLtMatmulPreferenceCreate")
        setter = "cublasLtMatmulPreferenceSetAttribute"
        self._set(setter, preference, _MAX_WORKSPACE, ctypes.c_uint64(WORKSPACE))
        for attribute in _MIN_ALIGNMENTS:
            self._set(setter, preference, attribute, ctypes.c_uint32(problem.alignment))
        choices, found = (Choice * PROPOSALS)(), ctypes.c_int()
        status = self.library.cublasLtMatmulAlgoGetHeuristic(
            ctypes.c_void_p(self.handle),
            problem.operation,
            *problem.layouts,
            preference,
            PROPOSALS,
            ctypes.byref(choices),
            ctypes.byref(found),
        )
        self.library.cublasLtMatmulPreferenceDestroy(preference)
        # 15 is CUBLAS_STATUS_NOT_SUPPORTED.
        self.check(status or (0 if found.value else 15))
        proposed = [c for c in choices[: found.value] if not c.status]
        about = (
            self.handle,
            problem.form,
            problem.operation,
            problem.layouts,
        )
        if not tries_all_tiles(problem.form, p):
            return proposed
        tiles = Tiles(self.library, *about)
        return [*proposed, *tiles.all_choices(proposed, WORKSPACE)]

    def call(
        self, product: PreparedProduct, addresses: Sequence[int], stream: int
    ) -> int:
        """Enqueue ``product`` on ``stream``; return the status.

        ``addresses`` are those of b, a, the added matrix, and c. cuBLASLt's matrices
        are column-major: it computes c^T = b^T a^T, so b is its first operand.
        """
        b, a, d, c = addresses
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
        self, problem: _Descriptors, choices: Sequence[Choice], p: Mapping[str, int]
    ) -> int:
        """Time the choices on memory like the product's; return the number of one.

        The first one if there is no memory to time them on.
        """
        products = [self._with_algorithm(problem, choice) for choice in choices]
        sizes = operand_bytes(problem.form, p)
        try:
            with rotating_operands(sizes, problem.form.operand.name) as (
                count,
                next_set,
            ):
                runs = [
                    lambda stream, q=q: self.call(q, next_set(), stream)
                    for q in products
                ]
                return timing.fastest(runs, count)
        except OutOfMemoryError:
            return 0


@contextmanager
def rotating_operands(
    sizes: Sequence[int], dtype: str
) -> Generator[tuple[int, Callable[[], list[int]]]]:
    """Allocate several sets of operands of these sizes, filled with random numbers.

    Yields the number of sets, and a function that returns the addresses of the next
    set. Rotation keeps operands out of the L2 cache, as other work between two products
    of a program does. ``dtype`` is that of the numbers.
    """
    gpu = device()
    count = min(MAX_SETS, max(MIN_SETS, ROTATED_BYTES // sum(sizes)))
    block = random_block(dtype)
    held = [_memory(sizes)]
    try:
        for pointer, size in zip(held[0], sizes, strict=True):
            fill(pointer, size, block)
        with suppress(OutOfMemoryError):
            for _ in range(1, count):
                held.append(_memory(sizes))
                for to, source, size in zip(held[-1], held[0], sizes, strict=True):
                    gpu.copy(to, source, size)
        sets = cycle(held)
        yield len(held), lambda: next(sets)
    finally:
        for pointer in chain.from_iterable(held):
            gpu.free(pointer)


def _memory(sizes: Sequence[int]) -> list[int]:
    """Allocate memory of these sizes, all of them or none; raises OutOfMemoryError."""
    made: list[int] = []
    try:
        for size in sizes:
            made.append(device().allocate(size))  # noqa: PERF401 - freed if one fails
    except OutOfMemoryError:
        for pointer in made:
            device().free(pointer)
        raise
    return made


def max_small_work(provider: str) -> int:
    """Multiply-adds of the largest product that takes only a few microseconds."""
    return 1 << 30 if form_of(provider).uses_tensor_cores else 1 << 27


def fill(pointer: int, nbytes: int, block: np.ndarray[Any, Any]) -> None:
    """Fill ``nbytes`` of GPU memory at ``pointer`` with copies of ``block``.

    Its numbers must differ: a GPU that multiplies equal numbers draws less power and
    runs faster.
    """
    gpu = device()
    done = min(nbytes, block.nbytes)
    gpu.copy_in(pointer, block.ctypes.data, done)
    while done < nbytes:
        more = min(done, nbytes - done)
        gpu.copy(pointer + done, pointer, more)
        done += more


@per_device
def library() -> Library:
    """cuBLASLt, opened at the first product."""
    return Library()
