"""Work that a scan does in each iteration and that is better done at once, outside.

* What depends on the loop's constants alone is computed before it.
* A matrix product of a slice and a constant is one product of the whole before it.
* Matrix products that are only added up are one product after it, of what the
  iterations leave: ``sum_t x_t^T y_t`` contracts the iterations too. So are the sums of
  what is left anyway. The gradient of a recurrent network is of this kind.

Sums are rounded in another order than by iterations; the order is fixed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from arrayfn.builder import ProgramBuilder, current_builder, rename
from arrayfn.ir import ArrayType, Atom, Equation, Literal, Program, Var
from arrayfn.primitives import contraction, reductions
from arrayfn.primitives import elementwise as e
from arrayfn.primitives.base import (
    Contraction,
    Convert,
    Primitive,
    Reduction,
    Scalar,
    View,
)

MOST_BYTES: Final = 1 << 26
"""The most memory that one value of all iterations may take."""
LEAST_WORK: Final = 1 << 13
"""Multiply-adds from which a product of one iteration is moved: few are quick there."""


@dataclass
class Motion:
    """A scan in parts: ``body`` and its operands, and what is left to do after it.

    ``body`` takes ``consts``, the carry, and ``xs``; it gives the carry, the results
    and, beyond ``count``, what later products need.
    """

    body: Program
    consts: list[Atom]
    carry: list[Atom]
    xs: list[Atom]
    length: int
    wanted: list[bool]
    later: dict[int, Equation] = field(default_factory=dict[int, Equation])
    stacked: dict[Var, int] = field(default_factory=dict[Var, int])
    scanned: dict[Var, Atom] = field(default_factory=dict[Var, Atom])
    count: int = 0

    def finish(self, results: Sequence[Atom | None]) -> list[Atom | None]:
        """The results of the scan, given those of the loop that is left."""
        done = list(results)
        for number, equation in self.later.items():
            initial = results[number]
            assert initial is not None
            current_builder().source = equation.source
            done[number] = e.add(initial, self.total(equation, results))
        return done[: self.count]

    def total(self, equation: Equation, results: Sequence[Atom | None]) -> Atom:
        """The sum over iterations of what ``equation`` gives."""
        operands: list[Any] = []
        for atom in equation.inputs:
            assert isinstance(atom, Var)
            whole = self.scanned.get(atom)
            operands.append(whole or results[self.stacked[atom]])
        if _form(equation) is Reduction:
            axes = (0, *(axis + 1 for axis in equation.params["axes"]))
            return reductions.reduce_sum(operands[0], axes=axes)
        left, right = equation.params["contract"]
        pairs = (0, *(k + 1 for k in left)), (0, *(k + 1 for k in right))
        params = {**equation.params, "contract": pairs}
        return contraction.dot_general(*operands, **params)


def move_out(
    body: Program,
    consts: Sequence[Atom],
    carry: Sequence[Atom],
    xs: Sequence[Atom],
    length: int,
    wanted: Sequence[bool],
) -> Motion:
    """The scan of ``body`` without what is better done outside, which is emitted."""
    motion = Motion(body, list(consts), list(carry), list(xs), length, list(wanted))
    motion.count = len(body.outputs)
    _before(motion)
    _after(motion)
    return motion


def _form(equation: Equation) -> type:
    row = equation.primitive
    assert isinstance(row, Primitive)
    return type(row.kernel)


# Before the loop.


def _before(motion: Motion) -> None:
    """Compute what needs no iteration, and products of slices and constants."""
    first = len(motion.consts)
    second = first + len(motion.carry)
    inputs = motion.body.inputs
    fixed: dict[Var, Atom] = dict(zip(inputs[:first], motion.consts, strict=True))
    whole: dict[Var, Atom] = dict(zip(inputs[second:], motion.xs, strict=True))
    views_of: dict[Var, Equation] = {}
    moved: dict[Var, bool] = {}  # whether it is sliced
    for equation in motion.body.equations:
        output = equation.outputs[0]
        if _is_fixed(equation, fixed, views_of):
            if _form(equation) is View:
                views_of[output] = equation
                continue
            if not _is_worth_it(equation):
                continue
            operands = [_outside(a, fixed, views_of) for a in equation.inputs]
            fixed[output] = _again(equation, operands)
            moved[output] = False
        elif (
            product := _product_of_slices(equation, motion, fixed, whole)
        ) is not None:
            whole[output] = product
            moved[output] = True
    if moved:
        _give(motion, moved, fixed, whole)


def _is_fixed(
    equation: Equation, fixed: dict[Var, Atom], views_of: dict[Var, Equation]
) -> bool:
    """Whether the operands are the same in each iteration, and one is an array."""
    variables = [a for a in equation.inputs if isinstance(a, Var)]
    return (
        bool(variables)
        and len(equation.outputs) == 1
        and all(a in fixed or a in views_of for a in variables)
    )


def _is_worth_it(equation: Equation) -> bool:
    """Whether the result is no larger than what it is made of."""
    if _form(equation) not in (Scalar, Convert, Reduction, Contraction):
        return False
    most = max(a.type.size for a in equation.inputs)
    return equation.outputs[0].type.size <= 2 * most and most > 1


def _outside(atom: Atom, fixed: dict[Var, Atom], views_of: dict[Var, Equation]) -> Atom:
    """What ``atom`` is outside the loop."""
    if isinstance(atom, Literal):
        return atom
    if atom not in fixed:
        equation = views_of[atom]
        operands = [_outside(a, fixed, views_of) for a in equation.inputs]
        fixed[atom] = _again(equation, operands)
    return fixed[atom]


def _again(equation: Equation, operands: Sequence[Atom]) -> Atom:
    """``equation`` on other operands, emitted where the loop is."""
    builder = current_builder()
    builder.source = equation.source
    return builder.emit(equation.primitive, operands, equation.params)[0]


def _product_of_slices(
    equation: Equation, motion: Motion, fixed: dict[Var, Atom], whole: dict[Var, Atom]
) -> Atom | None:
    """The products of all slices and a constant, stacked; None if it is none."""
    if _form(equation) is not Contraction or equation.params["batch"] != ((), ()):
        return None
    x, y = equation.inputs
    size = motion.length * equation.outputs[0].type.nbytes
    if not isinstance(x, Var) or not isinstance(y, Var) or size > MOST_BYTES:
        return None
    if _work(equation) < LEAST_WORK:
        return None
    (left, right), params = equation.params["contract"], dict(equation.params)
    if y in whole and x in fixed:
        # Turned round, so that the iterations come first. One side has no axis left.
        if x.type.ndim > len(left) and y.type.ndim > len(right):
            return None
        x, y, left, right = y, x, right, left
    if x not in whole or y not in fixed:
        return None
    params["contract"] = tuple(axis + 1 for axis in left), right
    builder = current_builder()
    builder.source = equation.source
    return contraction.dot_general(whole[x], fixed[y], **params)


def _work(equation: Equation) -> int:
    """The multiply-adds of a product."""
    contracted, _ = equation.params["contract"]
    shape = equation.inputs[0].type.shape
    return math.prod(shape[axis] for axis in contracted) * equation.outputs[0].type.size


def _give(
    motion: Motion,
    moved: dict[Var, bool],
    fixed: dict[Var, Atom],
    whole: dict[Var, Atom],
) -> None:
    """Give the body what was moved out of it as constants and slices."""
    first = len(motion.consts)
    second = first + len(motion.carry)
    old = motion.body.inputs
    builder = ProgramBuilder(motion.body.name)
    environment: dict[Var, Atom] = {}

    def take(variables: Sequence[Var]) -> None:
        for var in variables:
            environment[var] = builder.input(var.type, var.hint)

    constants = [var for var, sliced in moved.items() if not sliced]
    slices = [var for var, sliced in moved.items() if sliced]
    take([*old[:first], *constants, *old[first:second], *old[second:], *slices])
    motion.consts += [fixed[var] for var in constants]
    motion.xs += [whole[var] for var in slices]
    for equation in motion.body.equations:
        if equation.outputs[0] not in moved:
            builder.replay(equation, environment)
    outputs = [rename(a, environment) for a in motion.body.outputs]
    motion.body = builder.build(outputs)


# After the loop.


def _after(motion: Motion) -> None:
    """Leave for after the loop the sums of products that it only adds up."""
    body = motion.body
    first = len(motion.consts)
    second = first + len(motion.carry)
    uses = Counter(a for eq in body.equations for a in eq.inputs)
    uses.update(body.outputs)
    makers = {var: eq for eq in body.equations for var in eq.outputs}
    motion.scanned = dict(zip(body.inputs[second:], motion.xs, strict=True))
    fixed = {*body.inputs[:first]}
    outputs = list(body.outputs)
    extra: list[Var] = []

    def stack(var: Var) -> None:
        known = [
            k for k, y in enumerate(outputs) if y is var and k >= len(motion.carry)
        ]
        if known:
            motion.stacked[var] = known[0]
            motion.wanted[known[0]] = True
        elif var not in motion.scanned and var not in motion.stacked:
            motion.stacked[var] = motion.count + len(extra)
            extra.append(var)

    sums: dict[int, Equation] = {}
    for number, value in enumerate(body.inputs[first:second]):
        equation = _added(outputs[number], value, makers, uses)
        if equation is None or not motion.wanted[number]:
            continue
        if any(not isinstance(a, Var) or a in fixed for a in equation.inputs):
            continue
        if _form(equation) is Reduction:
            sums[number] = equation
        elif _pays(equation, motion):
            motion.later[number] = equation
            for atom in equation.inputs:
                assert isinstance(atom, Var)
                stack(atom)
    for number, equation in sums.items():
        (x,) = equation.inputs
        if x in motion.stacked or x in motion.scanned:
            motion.later[number] = equation
    for number in motion.later:
        outputs[number] = body.inputs[first + number]
    if motion.later:
        motion.body = replace(body, outputs=(*outputs, *extra))
        motion.wanted += [True] * len(extra)


def _added(
    output: Atom, value: Var, makers: dict[Var, Equation], uses: Counter[Atom]
) -> Equation | None:
    """The product or sum that is added to ``value`` to give ``output``, and no more."""
    made = makers.get(output) if isinstance(output, Var) else None
    if made is None or made.primitive is not e.add or uses[value] != 1:
        return None
    if value not in made.inputs or uses[output] != 1:
        return None
    term = made.inputs[1 - made.inputs.index(value)]
    equation = makers.get(term) if isinstance(term, Var) else None
    if equation is None or uses[term] != 1 or term.type.shape != value.type.shape:
        return None
    if equation.primitive is reductions.reduce_sum:
        return equation
    is_product = _form(equation) is Contraction
    plain = is_product and equation.params["batch"] == ((), ())
    return equation if plain else None


def _pays(equation: Equation, motion: Motion) -> bool:
    """Whether what the iterations leave is less than what they would add up."""
    if _work(equation) < LEAST_WORK:
        return False
    left = {a for a in equation.inputs if a not in motion.scanned}
    types: list[ArrayType] = [a.type for a in left]
    if any(t.nbytes * motion.length > MOST_BYTES for t in types):
        return False
    return sum(t.size for t in types) <= 2 * equation.outputs[0].type.size
