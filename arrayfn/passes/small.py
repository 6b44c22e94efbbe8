"""Programs so small that a call of a kernel costs more than what it computes.

The body of a loop that is small is best a part of one kernel, with its matrix products
written out as sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from arrayfn.ir import Atom, Equation, Program
from arrayfn.ir.builder import ProgramBuilder, rename
from arrayfn.passes.expand import sum_of_products
from arrayfn.primitives import views
from arrayfn.primitives.base import (
    Body,
    Contraction,
    Control,
    Library,
    Primitive,
    Template,
    View,
)

MOST_ELEMENTS: Final = 1 << 15
"""What a small Program may compute: elements, and products in sums."""
MOST_EQUATIONS: Final = 600
"""And in how many equations: long kernels take long to compile."""
MOST_DEPTH: Final = 32
"""The most products in a sum: of longer ones a library's kernel is faster."""


def is_small(program: Program, most: int | None = None) -> bool:
    """Whether ``program`` computes little, once, and all of it by nests.

    That is up to ``most`` elements, or ``MOST_ELEMENTS``.
    """
    work = _work(program)
    if work is None or work > (MOST_ELEMENTS if most is None else most):
        return False
    return _equations(program) <= MOST_EQUATIONS


def _equations(program: Program) -> int:
    """How many equations there are in ``program``, and in the Programs in it."""
    inner = (p for equation in program.equations for p in equation.subprograms())
    return len(program.equations) + sum(map(_equations, inner))


def _work(program: Program) -> int | None:
    """The elements that ``program`` computes; None if it is not all nests."""
    total = 0
    for equation in program.equations:
        row = equation.primitive
        assert isinstance(row, Primitive)
        if isinstance(row.kernel, (Library, Body)):
            return None
        if isinstance(row.kernel, Control):
            inner = [_work(p) for p in equation.subprograms()]
            known = [n for n in inner if n is not None]
            if len(known) < len(inner):
                return None
            total += max(known, default=0)
        else:
            total += _elements(equation)
    return total


def _elements(equation: Equation) -> int:
    """The elements that one equation reads or writes, if it is no view."""
    row = equation.primitive
    assert isinstance(row, Primitive)
    types = [a.type for a in (*equation.inputs, *equation.outputs)]
    if isinstance(row.kernel, Contraction):
        contracted, _ = equation.params["contract"]
        depth = math.prod(types[0].shape[axis] for axis in contracted)
        if depth > MOST_DEPTH:
            return MOST_ELEMENTS + 1
        return 2 * depth * types[-1].size
    if isinstance(row.kernel, View) and row is not views.relayout:
        return 0
    if isinstance(row.kernel, Template) and row.kernel.in_place:
        return sum(a.type.size for a in equation.inputs[1:])
    if isinstance(row.kernel, Template):
        return types[-1].size
    return max(type.size for type in types)


def small_loops(
    program: Program, simplify: Callable[[Program], Program], most: int | None = None
) -> Program:
    """``program``, where loops that are small multiply matrices by sums of products.

    With ``most`` all loops do, where a product multiplies up to so many pairs.
    """
    if not any(equation.subprograms() for equation in program.equations):
        return program
    builder = ProgramBuilder(program.name)
    environment = builder.bind_inputs(program, builder.inputs_of(program))
    changed = False
    for equation in program.equations:
        params = dict(equation.params)
        for key in ("program", "body_program"):
            body = params.get(key)
            if not isinstance(body, Program) or not has_products(body, most):
                continue
            if most is not None or is_small(body):
                params[key] = simplify(with_sums(body, most))
                changed = True
        inputs = tuple(rename(a, environment) for a in equation.inputs)
        builder.source = equation.source
        outputs = builder.emit(equation.primitive, inputs, params)
        environment.update(zip(equation.outputs, outputs, strict=True))
    if not changed:
        return program
    return builder.build([rename(a, environment) for a in program.outputs])


def has_products(program: Program, most: int | None = None) -> bool:
    """Whether ``program`` multiplies matrices, in branches too; of ``most`` pairs."""
    return any(
        (
            isinstance(eq.primitive, Primitive)
            and isinstance(eq.primitive.kernel, Contraction)
            and (most is None or (_is_product(eq) and _pairs(eq) <= most))
        )
        or any(has_products(inner, most) for inner in eq.subprograms())
        for eq in program.equations
    )


def with_sums(program: Program, most: int | None = None) -> Program:
    """``program``, and what it holds, with matrix products as sums of products.

    All of them, or those that multiply up to ``most`` pairs of elements.
    """
    builder = ProgramBuilder(program.name)
    with builder:
        environment = builder.bind_inputs(program, builder.inputs_of(program))
        for equation in program.equations:
            builder.source = equation.source
            inputs = [rename(a, environment) for a in equation.inputs]
            params = {k: _inside(value, most) for k, value in equation.params.items()}
            outputs: tuple[Atom, ...]
            if _is_product(equation) and (most is None or _pairs(equation) <= most):
                x, y = inputs
                outputs = (sum_of_products(x, y, params["contract"], params["batch"]),)
            else:
                outputs = builder.emit(equation.primitive, inputs, params)
            environment.update(zip(equation.outputs, outputs, strict=True))
    return builder.build([rename(a, environment) for a in program.outputs])


def _inside(value: Any, most: int | None) -> Any:
    """A param, if it is Programs with their products as sums."""
    if isinstance(value, Program):
        return with_sums(value, most)
    if isinstance(value, tuple):
        return tuple(_inside(part, most) for part in value)
    return value


def _pairs(equation: Equation) -> int:
    """How many elements a product of matrices multiplies with one another."""
    contracted, _ = equation.params["contract"]
    shape = equation.inputs[0].type.shape
    depth = math.prod(shape[axis] for axis in contracted)
    return depth * equation.outputs[0].type.size


def _is_product(equation: Equation) -> bool:
    """Whether ``equation`` multiplies matrices of one dtype."""
    row = equation.primitive
    assert isinstance(row, Primitive)
    types = {a.type.dtype for a in (*equation.inputs, *equation.outputs)}
    return isinstance(row.kernel, Contraction) and len(types) == 1
