"""Steps for the rows that NVIDIA's libraries compute: calls, and nests around them.

cuFFT's transforms are unscaled; a nest scales them. Linear algebra is in ``solvers``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Final

from arrayfn.dtypes import short_name
from arrayfn.ir import Equation, Var
from arrayfn.lowering.cuda.handwritten import Made
from arrayfn.lowering.cuda.solvers import factorizations, reflections
from arrayfn.lowering.cuda.solvers.factorizations import Names, Reads
from arrayfn.lowering.kernel_ir import Constant, Nest
from arrayfn.lowering.libraries import collectives
from arrayfn.lowering.libraries.calls import LibraryCall, Pointer, pointer_of
from arrayfn.lowering.templates.nest_builder import (
    NestBuilder,
    StridedArray,
    output_array,
)
from arrayfn.primitives.fourier import factor

Maker = Callable[[Equation, Reads, Names], Iterable[Made]]


def _fft(equation: Equation, reads: Reads, names: Names) -> Iterable[Made]:
    """The steps of a Fourier transform: cuFFT's call, and nests around it.

    ``reads`` says where operands lie, ``names`` what to call arrays. A nest copies the
    operand if cuFFT writes over it, and another multiplies the result by its factor.
    """
    (x,), (output,) = equation.inputs, equation.outputs
    params = equation.params
    kind, length = params["kind"], params["length"]
    scale = factor(kind, length, params["norm"])
    raw = output if scale == 1.0 else Var(output.type)
    given = pointer_of(x, reads)
    # cuFFT writes over the operand of a transform to real numbers.
    if kind == "irfft":
        copy = Var(x.type)
        yield _copied(equation, names, given, copy)
        given = Pointer(copy)
    yield LibraryCall(
        provider=f"{kind}_{short_name(x.type.dtype)}",
        reads={"x": given},
        writes={"transformed": Pointer(raw)},
        integers={"rows": math.prod(x.type.shape[:-1]), "length": length},
        items=1 if output.type.size else 0,
        library="cuFFT",
    )
    if raw is not output:
        yield _scaled(equation, names, raw, scale)


def _scaled(equation: Equation, names: Names, raw: Var, scale: float) -> Nest:
    """The nest that multiplies ``raw``, an unscaled transform, by ``scale``."""
    b = NestBuilder(equation, names)
    target = output_array(equation)
    source = StridedArray(raw, target.dtype, target.strides)
    name = names[equation.outputs[0]]
    value = b.load(f"{name}_raw", b.operand(source))
    constant = Constant(scale, target.dtype)
    result = b.compute(
        name, "mul", value, constant, dtype=target.dtype, of=target.dtype
    )
    b.store(b.operand(target, written=True), result)
    return b.nest(equation.outputs[0].type.shape, "a transform and its factor")


def _copied(equation: Equation, names: Names, source: Pointer, copy: Var) -> Nest:
    """The nest that copies ``source``, the transform's operand, into ``copy``."""
    b = NestBuilder(equation, names)
    strides = copy.type.layout.strides(copy.type.shape)
    dtype = copy.type.dtype
    given = StridedArray(source.array, dtype, strides, source.offset)
    b.move(equation.inputs[0], given, StridedArray(copy, dtype, strides))
    return b.nest(copy.type.shape, "a copy that may be written over")


def _collective(equation: Equation, reads: Reads, _: Names) -> Iterable[Made]:
    """The step of a collective: a call of the engine between devices."""
    return collectives.collective(equation, reads)


LIBRARIES: Final[dict[str, Maker]] = {
    "collective": _collective,
    "fft": _fft,
    "cholesky": factorizations.cholesky,
    "triangular_solve": factorizations.triangular_solve,
    "lu": factorizations.lu,
    "pivots_to_permutation": factorizations.pivots_to_permutation,
    "qr": reflections.qr,
    "eigh": factorizations.eigh,
    "eigvalsh": factorizations.eigvalsh,
    "eig": factorizations.eig,
    "eigvals": factorizations.eigvals,
    "svd": factorizations.svd,
    "svdvals": factorizations.svdvals,
}
"""What computes ``Library`` forms, by name; NumPy on the host computes others."""
