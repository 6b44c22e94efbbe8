"""Lowers primitives that NVIDIA's libraries compute: calls, and nests around them.

cuFFT's transforms are unscaled; a nest scales them. Linear algebra is in ``solvers``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from arrayfn.dtypes import short_name
from arrayfn.ir import Var
from arrayfn.lowering.cuda.handwritten import Lowered
from arrayfn.lowering.cuda.solvers import factorizations, reflections
from arrayfn.lowering.cuda.solvers.matrix_nests import (
    LibraryEquation,
    MatrixEquation,
)
from arrayfn.lowering.kernel_ir import Constant, Nest
from arrayfn.lowering.libraries import collectives
from arrayfn.lowering.libraries.calls import LibraryCall, Pointer
from arrayfn.lowering.templates.nest_builder import (
    StridedArray,
    output_array,
)
from arrayfn.primitives.collectives import all_reduce
from arrayfn.primitives.fourier import factor

Maker = Callable[[MatrixEquation], Iterable[Lowered]]


def _fft(op: LibraryEquation) -> Iterable[Lowered]:
    """Yield the steps of a Fourier transform: cuFFT's call, and nests around it.

    A nest before the call copies the operand if cuFFT overwrites it. A nest after the
    call multiplies the result by the factor that ``norm`` asks for, unless that is 1.
    """
    (x,), (output,) = op.equation.inputs, op.equation.outputs
    params = op.equation.params
    kind, length = params["kind"], params["length"]
    scale = factor(kind, length, params["norm"])
    raw = output if scale == 1.0 else Var(output.type)
    source = op.operand()
    # cuFFT writes over the operand of a transform to real numbers.
    if kind == "irfft":
        copy = Var(x.type)
        yield _copy_nest(op, source, copy)
        source = Pointer(copy)
    yield LibraryCall(
        provider=f"{kind}_{short_name(x.type.dtype)}",
        reads={"x": source},
        writes={"transformed": Pointer(raw)},
        integers={"rows": math.prod(x.type.shape[:-1]), "length": length},
        items=1 if output.type.size else 0,
        library="cuFFT",
    )
    if raw is not output:
        yield _scaled(op, raw, scale)


def _scaled(op: LibraryEquation, raw: Var, scale: float) -> Nest:
    """Return the nest that multiplies ``raw``, an unscaled transform, by ``scale``.

    The nest stores the products in the output of the equation.
    """
    b = op.builder()
    target = output_array(op.equation)
    source = StridedArray(raw, target.dtype, target.strides)
    name = op.names[op.equation.outputs[0]]
    value = b.load(f"{name}_raw", b.operand(source))
    constant = Constant(scale, target.dtype)
    result = b.compute(name, "mul", value, constant, dtype=target.dtype)
    b.store(b.operand(target, written=True), result)
    return b.nest(op.equation.outputs[0].type.shape, "a transform and its factor")


def _copy_nest(op: LibraryEquation, source: Pointer, copy: Var) -> Nest:
    """Return the nest that copies a transform's operand ``source`` into ``copy``."""
    b = op.builder()
    strides = copy.type.layout.strides(copy.type.shape)
    dtype = copy.type.dtype
    strided_source = StridedArray(source.array, dtype, strides, source.offset)
    b.move(op.equation.inputs[0], strided_source, StridedArray(copy, dtype, strides))
    return b.nest(copy.type.shape, "a copy that may be written over")


def _collective(op: LibraryEquation) -> Iterable[Lowered]:
    """Return the step of a collective: a call of the engine between devices.

    An ``all_reduce`` may write its result over its operand. Then it needs no more
    memory, and a step that runs at the same time is not given memory that the reduction
    still reads.
    """
    (call,) = collectives.collective(op.equation, op.reads)
    if op.equation.primitive is all_reduce:
        (x,), (y,) = call.reads.values(), call.writes.values()
        call = replace(call, over=((y.array, x.array),))
    return [call]


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
"""What lowers each ``Library`` form, by name. NumPy on the host computes all others."""
