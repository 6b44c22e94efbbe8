"""The footprints of matrix products by a library, from their parameters."""

from __future__ import annotations

from arrayfn.lowering.plan import KernelCall, LibraryKernel
from arrayfn.lowering.verify.footprints import AccessSet, Footprint, access_set_of
from arrayfn.lowering.verify.interpreter import Access
from arrayfn.lowering.verify.numbers import Memory, Number, Symbol


def product_footprint(kernel: LibraryKernel, call: KernelCall) -> Footprint | None:
    """Return the footprint of a matrix product's call; None for other library kernels.

    The product is ``c[batch, m, n] = a[batch, m, k] @ b[batch, k, n]``, where ``a`` and
    ``b`` may be stored transposed, with a bias vector or an added matrix.
    """
    names = [p.name for p in kernel.parameters]
    arguments = dict(zip(names, call.arguments, strict=True))
    numbers = {k: v for k, v in arguments.items() if isinstance(v, int)}
    if not kernel.provider.startswith("gemm_") or "batch_stride_c" not in numbers:
        return None
    m, n, k, batch = (numbers[x] for x in ("m", "n", "k", "batch"))
    result = Footprint()
    if not batch * m * n:
        return result
    shapes = {"a": (m, k), "b": (k, n)}
    for name, (rows, columns) in shapes.items():
        if numbers.get(f"transpose_{name}"):
            rows, columns = columns, rows
        strides = numbers[f"batch_stride_{name}"], numbers[f"ld{name}"], 1
        if rows * columns:
            result.loads[names.index(name)] = _matrix(
                name, (batch, rows, columns), strides
            )
    if "added" in arguments:
        strides = numbers["batch_stride_added"], numbers["ld_added"], 1
        result.loads[names.index("added")] = _matrix("added", (batch, m, n), strides)
    if "bias" in arguments:
        result.loads[names.index("bias")] = _matrix("bias", (1, 1, n), (0, 0, 1))
    strides = numbers["batch_stride_c"], numbers["ldc"], 1
    result.stores[names.index("c")] = _matrix("c", (batch, m, n), strides)
    return result


def _matrix(
    name: str, extents: tuple[int, int, int], strides: tuple[int, int, int]
) -> AccessSet:
    """Return the accesses of argument ``name``: a batch of matrices.

    ``extents`` and ``strides`` are of batch, rows and columns. Each index becomes a
    counted symbol, so one Access describes all elements.
    """
    symbols = [Symbol(counted=True) for _ in extents]
    terms = {s: step for s, step in zip(symbols, strides, strict=True) if step}
    bounds = {s: (0, n - 1) for s, n in zip(symbols, extents, strict=True)}
    memory = Memory(name, "", Number(0))
    at = Number(0, terms)
    access = Access(
        memory,
        "load",
        at,
        width=1,
        bounds=dict(bounds),
        count=1,
        item=None,
        block=None,
        surely=True,
        line=0,
    )
    return access_set_of([access])
