"""Matrix products by BLAS. A work item is a tile of the output."""

from __future__ import annotations

from collections.abc import Callable

from arrayfn.dtypes import DType
from arrayfn.errors import BackendError
from arrayfn.ir import Equation, Var
from arrayfn.lowering.contraction import Gemm, as_gemm
from arrayfn.lowering.gemm_tiles import PROVIDERS, GemmTiles
from arrayfn.lowering.libraries.calls import LibraryCall, Pointer
from arrayfn.passes.reads import Reads


def product(
    equation: Equation,
    reads: Reads,
    tiles: Callable[[Gemm, DType], GemmTiles],
    provider: str = "",
) -> LibraryCall:
    """Return the library call that computes a dot_general as a GEMM, without copies.

    It computes row-major ``c[m, n] = a[m, k] @ b[k, n]`` for each of ``batch``
    problems. ``lda``, ``ldb``, ``ldc`` are elements between rows as stored;
    ``transpose_a = 1`` says that ``a`` is stored as ``[k, m]`` (2: and conjugated),
    likewise ``transpose_b``. Batch strides are in elements.

    Args:
        equation: the dot_general.
        reads: the array and index map behind each operand.
        tiles: cuts the product into work items.
        provider: the target's own library call, instead of BLAS's.
    """
    x, y = equation.inputs
    assert isinstance(x, Var)
    assert isinstance(y, Var)
    gemm = as_gemm(equation, reads[x], reads[y])
    output = equation.outputs[0]
    if gemm is None:
        raise BackendError(
            f"dot_general of {x.type} and {y.type} is not a GEMM", equation.source
        )
    dtype = output.type.dtype
    tiling = tiles(gemm, dtype)
    a, b = gemm.a, gemm.b
    return LibraryCall(
        provider=provider or PROVIDERS[dtype],
        reads={"a": Pointer(a.base, a.offset), "b": Pointer(b.base, b.offset)},
        writes={"c": Pointer(output)},
        integers={
            "m": gemm.m,
            "n": gemm.n,
            "k": gemm.k,
            "lda": a.leading,
            "ldb": b.leading,
            "ldc": max(gemm.n, 1),
            "transpose_a": int(a.transposed),
            "transpose_b": int(b.transposed),
            "batch": gemm.batch,
            "batch_stride_a": a.batch_stride,
            "batch_stride_b": b.batch_stride,
            "batch_stride_c": gemm.m * gemm.n,
            "tile_m": tiling.tile_m,
            "tile_n": tiling.tile_n,
        },
        items=tiling.items,
        grain=tiling.grain,
        library="BLAS",
    )
