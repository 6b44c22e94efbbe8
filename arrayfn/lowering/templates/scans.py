"""Cumulative primitives: a running value along one axis, stored as it goes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from arrayfn.ir import Equation, Var
from arrayfn.lowering.kernel_ir import Nest
from arrayfn.lowering.templates.nest_builder import (
    NestBuilder,
    output_place,
    place_of,
)
from arrayfn.passes.reads import Read
from arrayfn.primitives.base import Primitive, Reduction

Reads = Mapping[Var, Read]
Names = Mapping[Var, str]


def scan(
    function: str, reduction: Primitive
) -> Callable[[Equation, Reads, Names], Iterable[Nest]]:
    """The scan of ``function``, whose identity is that of ``reduction``."""
    form = reduction.kernel
    assert isinstance(form, Reduction)

    def nests(equation: Equation, reads: Reads, names: Names) -> Iterable[Nest]:
        (x,) = equation.inputs
        assert isinstance(x, Var)
        if not x.type.size:
            return
        axis: int = equation.params["axis"]
        source, target = place_of(x, reads), output_place(equation)
        if equation.params["reverse"]:
            starts = [n - 1 if k == axis else 0 for k, n in enumerate(x.type.shape)]
            steps = [-1 if k == axis else 1 for k in range(x.type.ndim)]
            source = source.begin_at(starts, steps)
            target = target.begin_at(starts, steps)
        b = NestBuilder(equation, names)
        value = b.load(names[x], b.operand(source))
        total = b.reduce(names[equation.outputs[0]], function, value, form)
        b.store(b.operand(target, written=True), total)
        yield b.nest(x.type.shape, "a running value along one axis", (axis,))

    return nests
