"""Rows that NVIDIA's libraries compute: the steps for each, calls and nests.

cuFFT transforms without a factor, which a nest multiplies by; cuSOLVER says in a status
whether a matrix could be factored, and a nest then puts NaN, and zeros above the
diagonal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from arrayfn import dtypes
from arrayfn.dtypes import DType, short_name
from arrayfn.ir import ArrayType, Equation, Var
from arrayfn.lowering.kernel_ir import Constant, Count, Nest, Scalar, Value
from arrayfn.lowering.libraries.calls import LibraryCall, Place, place_of
from arrayfn.lowering.templates.nest_builder import NestBuilder, output_place
from arrayfn.lowering.templates.nest_builder import Place as Strided
from arrayfn.passes.reads import Read
from arrayfn.primitives.fourier import factor

Reads = Mapping[Var, Read]
Names = Mapping[Var, str]
Made = LibraryCall | Nest
Maker = Callable[[Equation, Reads, Names], Iterable[Made]]


def _fft(equation: Equation, reads: Reads, names: Names) -> Iterable[Made]:
    (x,), (output,) = equation.inputs, equation.outputs
    params = equation.params
    kind, length = params["kind"], params["length"]
    scale = factor(kind, length, params["norm"])
    raw = output if scale == 1.0 else Var(output.type)
    given = place_of(x, reads)
    # cuFFT writes over the operand of a transform to real numbers.
    if kind == "irfft":
        copy = Var(x.type)
        yield _copied(equation, names, given, copy)
        given = Place(copy)
    yield LibraryCall(
        provider=f"{kind}_{short_name(x.type.dtype)}",
        reads={"x": given},
        writes={"transformed": Place(raw)},
        integers={"rows": math.prod(x.type.shape[:-1]), "length": length},
        items=1 if output.type.size else 0,
        library="cuFFT",
    )
    if raw is not output:
        yield _scaled(equation, names, raw, scale)


def _scaled(equation: Equation, names: Names, raw: Var, scale: float) -> Nest:
    b = NestBuilder(equation, names)
    target = output_place(equation)
    source = Strided(raw, target.dtype, target.strides)
    name = names[equation.outputs[0]]
    value = b.load(f"{name}_raw", b.operand(source))
    constant = Constant(scale, target.dtype)
    result = b.compute(
        name, "mul", value, constant, dtype=target.dtype, of=target.dtype
    )
    b.store(b.operand(target, written=True), result)
    return b.nest(equation.outputs[0].type.shape, "a transform and its factor")


def _copied(equation: Equation, names: Names, source: Place, copy: Var) -> Nest:
    b = NestBuilder(equation, names)
    strides = copy.type.layout.strides(copy.type.shape)
    dtype = copy.type.dtype
    given = Strided(source.array, dtype, strides, source.offset)
    b.move(equation.inputs[0], given, Strided(copy, dtype, strides))
    return b.nest(copy.type.shape, "a copy that may be written over")


def _cholesky(equation: Equation, reads: Reads, names: Names) -> Iterable[Made]:
    output = equation.outputs[0]
    *batch, n, _ = output.type.shape
    matrices = math.prod(batch)
    status = Var(ArrayType((matrices,), dtypes.int32))
    yield LibraryCall(
        provider=f"potrf_{short_name(output.type.dtype)}",
        reads={},
        writes={"a": Place(output), "status": Place(status)},
        integers={"n": n, "matrices": matrices},
        items=1 if output.type.size else 0,
        library="cuSOLVER",
    )
    if output.type.size:
        yield _lower_or_nan(equation, names, status, matrices, n)


def _lower_or_nan(
    equation: Equation, names: Names, status: Var, matrices: int, n: int
) -> Nest:
    """The lower triangle in place; NaN everywhere if ``status`` is not 0."""
    b = NestBuilder(equation, names)
    output = equation.outputs[0]
    dtype = output.type.dtype
    own = b.operand(Strided(output, dtype, (n * n, n, 1)), written=True)
    state = b.load("status", b.operand(Strided(status, dtypes.int32, (1, 0, 0))))
    row, column = (_counted(b, name, axis) for name, axis in (("row", 1), ("at", 2)))
    value = b.load("factor", own)
    zero, nan = (Constant(number, dtype) for number in (0.0, math.nan))
    bools = dtypes.bool_
    below = b.compute("below", "ge", row, column, dtype=bools, of=dtypes.int64)
    failed = b.compute(
        "failed",
        "ne",
        state,
        Constant(0, dtypes.int32),
        dtype=bools,
        of=dtypes.int32,
    )
    lower = _select(b, "lower", (below, value, zero), dtype)
    result = _select(b, names[output], (failed, nan, lower), dtype)
    b.store(own, result)
    return b.nest((matrices, n, n), "the lower triangle, or NaN")


def _select(
    b: NestBuilder, name: str, arguments: tuple[Value, Scalar, Scalar], dtype: DType
) -> Value:
    return b.compute(name, "select", *arguments, dtype=dtype, of=dtype)


def _counted(b: NestBuilder, name: str, axis: int) -> Value:
    result = b.value(name, dtypes.int64)
    b.statements.append(Count(result, axis, "element", 0, b.equation.source))
    return result


def _triangular_solve(equation: Equation, reads: Reads, names: Names) -> Iterable[Made]:
    params, output = equation.params, equation.outputs[0]
    *batch, rows, columns = output.type.shape
    yield LibraryCall(
        provider=f"trsm_{short_name(output.type.dtype)}",
        reads={"a": place_of(equation.inputs[1], reads)},
        writes={"b": Place(output)},
        integers={
            "rows": rows,
            "columns": columns,
            "matrices": math.prod(batch),
            "left": int(params["left"]),
            "lower": int(params["lower"]),
            "transpose": int(params["transpose"]) + int(params["conjugate"]),
            "unit": int(params["unit"]),
        },
        items=1 if output.type.size else 0,
        library="cuBLAS",
    )


def _eigh(equation: Equation, reads: Reads, names: Names) -> Iterable[Made]:
    vectors, values = equation.outputs
    *batch, n, _ = vectors.type.shape
    yield LibraryCall(
        provider=f"syevd_{short_name(vectors.type.dtype)}",
        reads={},
        writes={"a": Place(vectors), "w": Place(values)},
        integers={"n": n, "matrices": math.prod(batch)},
        items=1 if vectors.type.size else 0,
        library="cuSOLVER",
    )


LIBRARIES: Final[dict[str, Maker]] = {
    "fft": _fft,
    "cholesky": _cholesky,
    "triangular_solve": _triangular_solve,
    "eigh": _eigh,
}
"""By the names of ``Library`` forms; what is not here is computed on the host."""
