"""The names and parameters of matrix products, in cuBLASLt's numbers.

A provider's name has the dtypes: ``gemm_f32``, ``gemm_bf16`` (summed in float32,
rounded once), ``gemm_bf16_f32`` (not rounded), ``gemm_f32_tf32``, ``gemm_i8_i32``. Then
comes what follows in the same call: ``_scaled`` by alpha, or ``_times`` a number in
memory, an array ``_added`` times beta, then ``_bias``, ``_relu``. float32 is computed
in float32 and float64 in float64: TF32 is used on request only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from arrayfn.errors import BackendError
from arrayfn.records import frozen

RANDOM_NUMBERS: Final = 262_139
"""Number of random numbers in a block, whose copies fill the operands for timing.

It is a prime, so that the rows of a matrix differ. If rows repeat, a GPU draws less
power, and some algorithms gain more by that than others: with 2**18 numbers, an
algorithm was the fastest that is 5 % slower on other matrices (bfloat16, H200).
"""
_ALIGNMENT: Final = 16
"""Bytes to which all arrays are aligned, also those of other libraries."""
_EPILOGUES: Final = {"relu": 2, "bias": 4}
"""The cublasLtEpilogue_t of each word of a provider's name; several are added."""
_NO_EFFECT_ON_SPEED: Final = ("alpha", "beta", "tile_m", "tile_n")
"""Parameters that do not change a product's speed; tiles are those of CPUs."""
_FACTORS: Final = ("scaled", "times", "added")
"""Words of a provider's name that are alpha or beta to cuBLASLt, not an epilogue."""


@frozen(slots=True)
class Dtype:
    """A dtype, and the enumeration values that cuBLAS has for it.

    ``data`` is the dtype's cudaDataType_t, ``compute`` the cublasComputeType_t of
    matrix products of it, ``scale`` the cudaDataType_t of alpha and beta, ``factor``
    the NumPy dtype of alpha and beta, and ``size`` the bytes of an element.
    """

    name: str
    data: int
    compute: int
    scale: int
    factor: np.dtype[Any]
    size: int


_F32, _F64, _I32 = (np.dtype(t) for t in (np.float32, np.float64, np.int32))
_BY_NAME: Final[dict[str, Dtype]] = {
    "f32": Dtype("f32", 0, 68, 0, _F32, 4),
    "f64": Dtype("f64", 1, 70, 1, _F64, 8),
    "f16": Dtype("f16", 2, 68, 0, _F32, 2),
    "bf16": Dtype("bf16", 14, 68, 0, _F32, 2),
    "i8": Dtype("i8", 3, 72, 10, _I32, 1),
    "i32": Dtype("i32", 10, 72, 10, _I32, 4),
    "c64": Dtype("c64", 4, 68, 4, np.dtype(np.complex64), 8),
    "c128": Dtype("c128", 5, 70, 5, np.dtype(np.complex128), 16),
}
_TF32: Final = 77
"""CUBLAS_COMPUTE_32F_FAST_TF32."""


@frozen(slots=True)
class Form:
    """The form of a matrix product, parsed from a provider's name.

    ``operand`` and ``result`` are the dtypes of the operands and of the result,
    ``compute`` is the cublasComputeType_t, and ``after`` has the words of the name that
    follow the dtypes, such as "bias".
    """

    operand: Dtype
    result: Dtype
    compute: int
    after: tuple[str, ...]

    @property
    def uses_tensor_cores(self) -> bool:
        """Whether tensor cores compute the product: operands below 32 bits, or TF32.

        Such products are at least eight times as fast as those of float32.
        """
        return self.operand.size < 4 or self.compute == _TF32

    @property
    def factors_in_memory(self) -> bool:
        """Whether alpha and beta are in the GPU's memory, not the host's."""
        return "times" in self.after

    @property
    def epilogue(self) -> int:
        """The product's cublasLtEpilogue_t; 0 if it has no epilogue."""
        return sum(_EPILOGUES[word] for word in self.after if word not in _FACTORS)


def form_of(provider: str) -> Form:
    """Parse the name ``provider``; raises BackendError if there is no such product.

    "gemm_bf16_f32_bias" is a product of bf16 operands with an f32 result and the
    epilogue "bias".
    """
    kind, first, *rest = provider.split("_")
    if kind != "gemm" or first not in _BY_NAME:
        raise BackendError(f"there is no {provider} on a GPU")
    operand = result = _BY_NAME[first]
    compute = operand.compute
    if rest and rest[0] in _BY_NAME:
        result = _BY_NAME[rest.pop(0)]
    if rest and rest[0] == "tf32":
        rest.pop(0)
        compute = _TF32
    unknown = [w for w in rest if w not in (*_FACTORS, *_EPILOGUES)]
    if unknown:
        raise BackendError(f"there is no {provider} on a GPU")
    return Form(operand, result, compute, tuple(rest))


def alignment_of(offsets: Sequence[int]) -> int:
    """Return the largest power of two, at most 16, that divides all ``offsets``.

    ``offsets`` are in bytes from aligned memory, so the result is the alignment there.
    """
    alignment = _ALIGNMENT
    while any(offset % alignment for offset in offsets):
        alignment //= 2
    return alignment


def factor_scalar(bits: int | None, default: float, form: Form) -> np.ndarray[Any, Any]:
    """Make alpha or beta as an array of no axes, in the dtype that cuBLAS takes.

    ``bits`` are those of a float64, as an integer; None stands for ``default``.
    """
    value = default if bits is None else np.int64(bits).view(np.float64)
    return np.array(value, form.operand.factor)


def speed_parameters(p: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return the parameters that a product's speed may depend on, sorted by name.

    Left out are alpha, beta, the tiles of CPUs and, with a batch of one, the strides
    between batches.
    """
    single = p["batch"] == 1
    return sorted(
        (k, v)
        for k, v in p.items()
        if k not in _NO_EFFECT_ON_SPEED
        and not (single and k.startswith("batch_stride"))
    )


def operand_bytes(form: Form, p: Mapping[str, int]) -> tuple[int, int, int, int]:
    """Return the bytes that b, a, the added array (1 if there is none) and c span.

    ``p`` has the integer arguments of the product c = a @ b: extents, leading
    dimensions and strides.
    """

    def span(name: str, rows: int, size: int, leading: str = "ld") -> int:
        """Return the bytes from the first to the last of the array ``name``.

        Each matrix has ``rows`` rows of a leading dimension, which is the parameter
        ``leading + name``.
        """
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


def random_block(name: str) -> np.ndarray[Any, Any]:
    """Return the bytes of a block of random numbers of the dtype ``name``, as "f32".

    Floats are normally distributed; integers are random bytes.
    """
    rng = np.random.default_rng(0)
    if name.startswith("i"):
        return rng.integers(0, 256, RANDOM_NUMBERS, np.uint8)
    if name in ("f64", "c128"):  # float32 values would leave low bits zero
        return rng.standard_normal(RANDOM_NUMBERS).view(np.uint8)
    values = rng.standard_normal(RANDOM_NUMBERS, np.float32)
    if name == "bf16":
        # The upper 16 bits of a float32, which come second, are a bfloat16.
        return values.view(np.uint16)[1::2].copy().view(np.uint8)
    return (values.astype(np.float16) if name == "f16" else values).view(np.uint8)
