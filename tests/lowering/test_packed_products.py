"""Products by micro-kernels: which they are, their tiles, and their bits."""

from __future__ import annotations

import ctypes
import functools
import mmap
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import lax
from arrayfn.backends.cpu import code
from arrayfn.backends.native import loading, target
from arrayfn.compilation.kept_plans import plan_key
from arrayfn.lowering.cpu import machine
from arrayfn.lowering.plan import KernelCall, LibraryKernel

TRANSPOSITIONS: dict[str, Callable[[Any, Any], Any]] = {
    "a b": lambda a, b: a @ b,
    "a.T b": lambda a, b: anp.swapaxes(a, -1, -2) @ b,
    "a b.T": lambda a, b: a @ anp.swapaxes(b, -1, -2),
    "a.T b.T": lambda a, b: anp.swapaxes(b @ a, -1, -2),
}


@pytest.fixture
def avx512(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products are as on a machine with AVX-512: LLVM splits vectors elsewhere."""
    monkeypatch.setattr(machine, "vector_bytes", lambda: 64)
    monkeypatch.setattr(machine, "blas_vector_bytes", lambda: 32)


@contextmanager
def processor(mp: pytest.MonkeyPatch, excluded: str) -> Generator[None]:
    """Code is compiled for this processor without the ``excluded`` features."""
    own = target.host()
    features = ",".join(
        f"-{name[1:]}" if name[1:].startswith(excluded) else name
        for name in own.features.split(",")
    )
    caches = loading.toolchain, code._compiler, code._libraries
    with mp.context() as context:
        context.setattr(target, "host", lambda: replace(own, features=features))
        for cached in caches:
            cached.cache_clear()
        yield
    for cached in caches:
        cached.cache_clear()


def operands(
    m: int, n: int, k: int, dtype: Any, batch: tuple[int, ...] = ()
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.default_rng(m + n + k)
    shapes = (*batch, m, k), (*batch, k, n)
    x, y = (rng.standard_normal(shape).astype(dtype) for shape in shapes)
    return x, y


def stored(name: str, x: Any, y: Any) -> tuple[Any, Any]:
    """The operands whose product ``name`` is ``x @ y``."""
    if name == "a.T b.T":  # b @ a is y.T @ x.T: neither operand is transposed
        return x.swapaxes(-1, -2).copy(), y.swapaxes(-1, -2).copy()
    a = x.swapaxes(-1, -2).copy() if name.startswith("a.T") else x
    return a, y.swapaxes(-1, -2).copy() if name.endswith("b.T") else y


def product_of(plan: Any) -> tuple[str, int, int, int]:
    """The kernel of a plan's product, its tiles' rows and columns, and their number."""
    (call,) = (s for s in plan.steps if isinstance(s, KernelCall))
    tile_m, tile_n = (x for x in call.arguments[-2:] if isinstance(x, int))
    return call.kernel, tile_m, tile_n, call.items


def lowered(m: int, n: int, k: int, dtype: Any = "f4", batch: int = 1) -> Any:
    shapes = (batch, m, k), (batch, k, n)
    structs = [af.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    return product_of(af.jit(lambda a, b: a @ b).lower(*structs).plan)


@pytest.mark.usefixtures("avx512")
@pytest.mark.parametrize(
    ("shape", "dtype", "cores", "expected"),
    [
        ((1024, 1024, 1024), "f4", 2, ("gemm_packed_f32", 256, 512, 8)),
        ((1024, 1024, 1024), "f4", 16, ("gemm_packed_f32", 128, 128, 64)),
        ((256, 1024, 1024), "f4", 2, ("gemm_packed_f32", 128, 256, 8)),
        ((1024, 1024, 1024), "f8", 2, ("gemm_packed_f64", 512, 256, 8)),
        ((256, 256, 256), "f4", 2, ("gemm_packed_f32", 64, 128, 8)),
        ((64, 64, 64), "f4", 16, ("gemm_packed_f32", 64, 64, 1)),
        # 16 columns fill half of a panel for float32, and a whole one for float64.
        ((1024, 16, 64), "f4", 2, ("gemm_f32", 512, 16, 2)),
        ((1024, 16, 64), "f8", 2, ("gemm_packed_f64", 1024, 16, 1)),
        ((1, 1024, 1024), "f4", 2, ("gemm_f32", 1, 512, 2)),
        ((8, 1024, 1024), "c8", 2, ("gemm_c64", 8, 64, 16)),
    ],
)
def test_tiles_follow_from_shape_and_cores(
    shape: tuple[int, int, int],
    dtype: str,
    cores: int,
    expected: tuple[str, int, int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine, "cores", lambda: cores)
    assert lowered(*shape, dtype) == expected


@pytest.mark.usefixtures("avx512")
def test_blas_multiplies_small_matrices_where_it_has_long_vectors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine, "blas_vector_bytes", lambda: 64)
    shapes = (100, 100, 100), (16, 512, 512), (128, 128, 128), (32, 512, 512)
    kernels = [lowered(*shape)[0] for shape in shapes]
    assert kernels == ["gemm_f32", "gemm_f32", "gemm_packed_f32", "gemm_packed_f32"]


@pytest.mark.parametrize(
    ("kernels", "expected"),
    [(b"Haswell", 32), (b"Zen", 32), (b"SkylakeX", 64), (b"SapphireRapids", 64)],
)
def test_the_vectors_of_blas_follow_from_the_kernels_it_names(
    kernels: bytes, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Library:
        @staticmethod
        def scipy_openblas_get_corename64_() -> bytes:
            return kernels

    monkeypatch.setattr(machine, "vector_bytes", lambda: 64)
    monkeypatch.setattr(machine.ctypes, "CDLL", lambda _: Library)
    assert machine.blas_vector_bytes.__wrapped__() == expected


def test_without_vectors_of_512_bits_products_are_blas(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine, "vector_bytes", lambda: 32)
    assert lowered(1024, 1024, 1024) == ("gemm_f32", 512, 128, 16)
    assert lowered(32, 32, 32, "f8", 100)[0] == "gemm_f64"


@pytest.mark.usefixtures("avx512")
@pytest.mark.parametrize("name", TRANSPOSITIONS)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_edges_of_panels_are_right_and_nothing_beyond_is_touched(
    dtype: str, name: str
) -> None:
    product = af.jit(TRANSPOSITIONS[name])
    for m, n, k in [
        (5, 28, 1),
        (8, 32, 256),
        (17, 65, 15),
        (23, 30, 257),
        (41, 96, 600),
    ]:
        x, y = operands(m, n, k, dtype)
        a, b = map(guarded, stored(name, x, y))
        have = product(a, b)
        error = np.abs(have - x.astype("g") @ y.astype("g"))
        scale = np.abs(x).astype("f8") @ np.abs(y)
        assert (error / scale).max() < 4 * np.finfo(dtype).eps


def guarded(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """``x`` in memory that ends where a page begins that cannot be read."""
    page = mmap.PAGESIZE
    pages = -(-x.nbytes // page) * page
    memory = mmap.mmap(-1, pages + page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(address + pages), page, 0) == 0
    copied = np.frombuffer(memory, x.dtype, x.size, pages - x.nbytes).reshape(x.shape)
    copied[...] = x
    return copied


def bits(function: Callable[..., Any], *arguments: Any) -> bytes:
    """The bits of a function's results, compiled anew."""
    results = af.jit(functools.partial(function))(*arguments)
    return b"".join(np.asarray(r).tobytes() for r in af.tree.leaves(results))


def layer(x: Any, w: Any) -> Any:
    """A product with a fused epilogue, and the products of its derivatives."""
    y, pullback = af.vjp(lambda x, w: anp.tanh(x @ w + 0.5), x, w)
    return y, pullback(y)


def convolution(x: Any, w: Any) -> Any:
    """A convolution and its derivatives: products of windows, of all three kinds."""
    layouts = "NHWC", "HWIO", "NHWC"

    def convolve(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=layouts)

    y, pullback = af.vjp(convolve, x, w)
    return y, pullback(y)


IMAGES = np.random.default_rng(0).standard_normal((2, 14, 14, 64)).astype("f4")
WEIGHTS = np.random.default_rng(1).standard_normal((3, 3, 64, 40)).astype("f4")
FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    **{
        f"{name} {np.dtype(dtype).name}": (
            function,
            stored(name, *operands(43, 90, 530, dtype)),
        )
        for name, function in TRANSPOSITIONS.items()
        for dtype in ("f4", "f8")
    },
    "half": (TRANSPOSITIONS["a b"], operands(43, 90, 300, "f2")),
    "bfloat16": (TRANSPOSITIONS["a b"], operands(43, 90, 300, ml_dtypes.bfloat16)),
    "int32": (
        TRANSPOSITIONS["a b"],
        tuple((100 * x).astype("i4") for x in operands(43, 90, 300, "f4")),
    ),
    "batch": (
        TRANSPOSITIONS["a.T b"],
        stored("a.T b", *operands(9, 30, 40, "f4", (3,))),
    ),
    "convolution": (convolution, (IMAGES, WEIGHTS)),
    "layer": (layer, operands(40, 70, 300, "f4")),
}


@pytest.mark.usefixtures("avx512")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_bits_depend_neither_on_vectors_nor_on_cores(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, arguments = FUNCTIONS[name]
    found = {bits(function, *arguments)}
    with processor(monkeypatch, excluded="avx512"):
        found.add(bits(function, *arguments))
    monkeypatch.setattr(machine, "cores", lambda: 64)
    found.add(bits(function, *arguments))
    assert len(found) == 1


@pytest.mark.usefixtures("avx512")
def test_elements_of_a_product_do_not_depend_on_what_else_is_computed() -> None:
    x, y = operands(300, 320, 700, "f4")
    product = af.jit(lambda a, b: a @ b)
    whole = product(x, y)
    assert (
        product(x[100:150], y[:, 64:200]).tobytes() == whole[100:150, 64:200].tobytes()
    )
    assert np.swapaxes(product(y.T, x.T), 0, 1).tobytes() == whole.tobytes()


def test_plans_for_other_machines_have_other_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine, "vector_bytes", lambda: 32)
    before = plan_key("p")
    assert plan_key("p") == before
    monkeypatch.setattr(machine, "vector_bytes", lambda: 64)
    assert plan_key("p") != before


def test_code_for_other_processors_has_other_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel = LibraryKernel("gemm_packed_f32", "gemm_packed_f32", ())
    before = code.library_unit(kernel).key
    with processor(monkeypatch, excluded="fma"):
        other = code.library_unit(kernel).key
    assert other != before
    assert code.library_unit(kernel).key == before


@pytest.mark.usefixtures("avx512")
def test_windows_are_multiplied_by_micro_kernels() -> None:
    plan = af.jit(convolution).lower(IMAGES, WEIGHTS).plan
    calls = {s.kernel for s in plan.steps if isinstance(s, KernelCall)}
    assert {"windows_packed_f32", "window_sums_packed_f32"} <= calls
    x, w = IMAGES.astype("f8"), WEIGHTS.astype("f8")
    for have, wanted in zip(
        af.tree.leaves(af.jit(convolution)(IMAGES, WEIGHTS)),
        af.tree.leaves(af.jit(convolution, device="reference")(x, w)),
        strict=True,
    ):
        np.testing.assert_allclose(have, wanted, atol=2e-6 * np.abs(wanted).max())
