"""Sliding windows: copies each element to its position in every window."""

from __future__ import annotations

from collections.abc import Iterable

from arrayfn.ir import Equation
from arrayfn.lowering.kernel_ir import Nest
from arrayfn.lowering.templates.nest_builder import (
    Names,
    NestBuilder,
    StridedArray,
    output_array,
    source_of,
)
from arrayfn.passes.reads import Reads
from arrayfn.primitives.windowed import SlidingWindows


def sliding_windows(equation: Equation, reads: Reads, names: Names) -> Iterable[Nest]:
    """Yield the nest that copies every element of every window, at an affine index.

    A window's axis becomes two axes of the output: windows along it, whose stride is
    the operand's times the windows' stride, and elements of a window, whose stride is
    the operand's times the dilation.
    """
    (x,) = equation.inputs
    output = equation.outputs[0]
    if not output.type.size:
        return
    params = dict(equation.params)
    order = params.pop("order")
    geometry = SlidingWindows(**params)
    source = source_of(x, reads)
    if isinstance(source, StridedArray):
        strides = list(source.strides)
        for axis, stride, step in zip(
            geometry.axes, geometry.strides, geometry.dilations, strict=True
        ):
            strides.append(strides[axis] * step)
            strides[axis] *= stride
        in_order = tuple(strides[axis] for axis in order)
        source = StridedArray(source.array, source.dtype, in_order, source.offset)
    b = NestBuilder(equation, names)
    b.move(x, source, output_array(equation))
    yield b.nest(output.type.shape, "windows, which share elements, side by side")
