"""Finds Programs that compute so little that calls of kernels would cost more.

A loop with such a body becomes one kernel, with its matrix products written as sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from arrayfn.ir import Atom, Equation, Program, walk, with_programs
from arrayfn.ir.builder import current_builder, rewritten
from arrayfn.passes.expand import sum_of_products
from arrayfn.primitives import views
from arrayfn.primitives.base import (
    Body,
    Contraction,
    Control,
    Library,
    Template,
    View,
    primitive_of,
)
from arrayfn.primitives.contraction import depth

MAX_ELEMENTS: Final = 1 << 15
"""The most elements, and terms of sums, that a small Program computes."""
MAX_EQUATIONS: Final = 600
"""The most equations of a small Program: long kernels take long to compile."""
MAX_DEPTH: Final = 32
"""The most terms of a sum in a kernel; for longer sums the library is faster."""


def is_small(program: Program, max_elements: int | None = None) -> bool:
    """Whether ``program`` is small enough to be one kernel.

    A small Program computes at most ``max_elements`` (by default ``MAX_ELEMENTS``),
    without libraries, and has few equations, so that its kernel compiles quickly.
    """
    work = _work(program)
    if work is None or work > (MAX_ELEMENTS if max_elements is None else max_elements):
        return False
    return equation_count(program) <= MAX_EQUATIONS


def has_fixed_loop(equation: Equation) -> bool:
    """Whether ``equation`` is, or contains, a scan that no pass may change."""
    return any(inner.params.get("unroll") == 0 for inner in walk([equation]))


def equation_count(program: Program) -> int:
    """Return the number of equations in ``program`` and in the Programs inside it."""
    return sum(1 for _ in walk(program.equations))


def _work(program: Program) -> int | None:
    """Return the number of elements that ``program`` computes; None if libraries do.

    Of the branches of a ``cond``, or the Programs of a loop, only the one with most
    elements counts.
    """
    total = 0
    for equation in program.equations:
        primitive = primitive_of(equation)
        if isinstance(primitive.kernel, (Library, Body)) or has_fixed_loop(equation):
            return None
        if isinstance(primitive.kernel, Control):
            inner = [_work(p) for p in equation.subprograms()]
            counts = [n for n in inner if n is not None]
            if len(counts) < len(inner):
                return None
            total += max(counts, default=0)
        else:
            total += _elements(equation)
    return total


def _elements(equation: Equation) -> int:
    """Return how many elements and terms of sums an equation computes; 0 for a view.

    A matrix product of long sums counts as too many, because a library is faster.
    """
    primitive = primitive_of(equation)
    types = [a.type for a in (*equation.inputs, *equation.outputs)]
    if isinstance(primitive.kernel, Contraction):
        if depth(equation) > MAX_DEPTH:
            return MAX_ELEMENTS + 1
        return 2 * _multiplications(equation)
    if isinstance(primitive.kernel, View) and primitive is not views.relayout:
        return 0
    if isinstance(primitive.kernel, Template) and primitive.kernel.in_place:
        # The first operand becomes the result: only the others are read.
        return sum(a.type.size for a in equation.inputs[1:])
    if isinstance(primitive.kernel, Template):
        return types[-1].size
    return max(type.size for type in types)


def small_loops(
    program: Program, simplify: Callable[[Program], Program], limit: int | None = None
) -> Program:
    """Write the matrix products in small loops of ``program`` as sums.

    In the body of such a loop ``y = w @ x`` becomes ``y = sum(w * x, axis=1)``, which
    fuses. ``simplify`` runs the passes on a body that changed. With ``limit``, products
    of at most that many multiplications are written so in all loops, large ones too.
    """
    if not any(equation.subprograms() for equation in program.equations):
        return program

    def summed(equation: Equation, operands: list[Atom]) -> Sequence[Atom] | None:
        """Emit a loop with its small products as sums; None for other equations."""
        params = dict(equation.params)
        for key in ("program", "body_program"):
            body = params.get(key)
            if not isinstance(body, Program) or not has_products(body, limit):
                continue
            if limit is not None or is_small(body):
                params[key] = simplify(with_sums(body, limit))
        if params == equation.params:
            return None
        return current_builder().emit(equation.primitive, operands, params)

    return rewritten(program, summed)


def has_products(program: Program, limit: int | None = None) -> bool:
    """Whether ``program`` has matrix products, of up to ``limit`` multiplications."""
    return any(
        (
            isinstance(primitive_of(eq).kernel, Contraction)
            and (limit is None or (_is_product(eq) and _multiplications(eq) <= limit))
        )
        or any(has_products(inner, limit) for inner in eq.subprograms())
        for eq in program.equations
    )


def with_sums(program: Program, limit: int | None = None) -> Program:
    """Write the matrix products of ``program``, and of Programs inside it, as sums.

    With ``limit``, only products of up to so many multiplications.
    """

    def summed(equation: Equation, operands: list[Atom]) -> Sequence[Atom]:
        """Emit ``equation``; a small product becomes a sum of products."""
        params = with_programs(equation.params, lambda inner: with_sums(inner, limit))
        if _is_product(equation) and (
            limit is None or _multiplications(equation) <= limit
        ):
            x, y = operands
            return [sum_of_products(x, y, params["contract"], params["batch"])]
        return current_builder().emit(equation.primitive, operands, params)

    return rewritten(program, summed)


def _multiplications(equation: Equation) -> int:
    """Return the number of multiplications of a matrix product."""
    return depth(equation) * equation.outputs[0].type.size


def _is_product(equation: Equation) -> bool:
    """Whether ``equation`` multiplies matrices of one dtype."""
    primitive = primitive_of(equation)
    types = {a.type.dtype for a in (*equation.inputs, *equation.outputs)}
    return isinstance(primitive.kernel, Contraction) and len(types) == 1
