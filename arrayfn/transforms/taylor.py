"""``jet``: higher derivatives along a curve, by truncated Taylor series.

A value is a series in t, whose coefficients are computed when they are needed. The
rules are derived from the jvp rules of the table. Where a jvp does not depend on what
varies, the primitive is linear, and its jvp is applied to each coefficient. A primitive
of two operands that is linear in each multiplies series (Cauchy's product). For all
others the series is the integral of that of the jvp: the coefficients of y' follow from
those of the operands and earlier ones of y (Griewank and Walther, Evaluating
Derivatives, 2008, chapter 13).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from arrayfn import dtypes, tree
from arrayfn.errors import ArgumentError, ArrayfnError, located, user_location
from arrayfn.ir import Atom, Equation, Program, Var
from arrayfn.ir.builder import ProgramBuilder
from arrayfn.primitives import elementwise as e
from arrayfn.primitives import views
from arrayfn.primitives.base import THROUGH_BODY, primitive_of
from arrayfn.tracing import apply_program
from arrayfn.transforms.arguments import Function, leaf_type, like, shown_name
from arrayfn.transforms.dce import dce
from arrayfn.transforms.flat_trace import trace_function
from arrayfn.transforms.forward_mode import jvp_varying

HigherCoefficient = Callable[[int], Atom | None]
"""The coefficient of t**k, for k > 0; None is zero."""


def jet(
    function: Function, primals: Sequence[Any], series: Sequence[Sequence[Any]]
) -> tuple[Any, Any]:
    """Compute ``function`` and its derivatives along a curve, as in Taylor series.

    Args:
        function: a function of pytrees of arrays.
        primals: its arguments at t = 0.
        series: for each argument, the list of its first, second, ... derivatives with
            respect to t, each like the argument. All lists have the same length, the
            order.

    Returns: the value at t = 0, and its derivatives with respect to t. The derivatives
    are a tree like the value, with a list in place of each array.

    Raises:
        ArgumentError: the series do not match the arguments.
        DifferentiationError: a part of the function has no derivative.

    >>> import numpy as np
    >>> jet(np.sin, (0.0,), ([1.0, 0.0, 0.0],))
    (array(0.), [array(1.), array(0.), array(-1.)])
    """
    args = tuple(primals)
    order = _order(function, args, series)
    leaves = tree.leaves(args)
    types = [leaf_type(x) for x in leaves]
    moving = [t.dtype in dtypes.DIFFERENTIABLE for t in types]
    # The leaves of the first derivatives of all arguments, of the second, and so on.
    derivatives = [tree.leaves(tuple(terms)) for terms in zip(*series, strict=True)]
    operands: list[Any] = []
    for number, terms in enumerate(derivatives):
        what = f"jet: derivative {number + 1} of leaf"
        for k, (type, term) in enumerate(zip(types, terms, strict=True)):
            if moving[k]:
                operands.append(like(what, k, type, term))
    traced = trace_function(function, args, {})
    captured = traced.trace.captured
    program = jet_program(traced.program, moving, order)
    results = apply_program(program, [*leaves, *captured, *operands], once=True)
    # The results are the outputs, their first derivatives, their second, and so on.
    count = len(traced.program.outputs)
    value = tree.unflatten(traced.out_tree, results[:count])
    by_output = [list(results[count + k :: count]) for k in range(count)]
    return value, tree.unflatten(traced.out_tree, by_output)


def jet_program(program: Program, moving: Sequence[bool], order: int) -> Program:
    """Return the Program of outputs and their derivatives along a curve.

    It takes the inputs, then derivatives of those marked in ``moving``, and returns the
    outputs, then their derivatives. Derivatives are those of the first order, then of
    the second, and so on, up to ``order``. Inside, a derivative of order k becomes a
    Taylor coefficient by division by k!, and back by multiplication.
    """
    builder = ProgramBuilder(f"jet_{program.name}")
    with builder:
        inputs = builder.inputs_of(program)
        flags = [*moving, *[False] * (len(inputs) - len(moving))]
        coefficients: list[list[Atom]] = [[] for _ in inputs]
        for k in range(1, order + 1):
            for terms, var, moves in zip(coefficients, inputs, flags, strict=True):
                if moves:
                    term = builder.input(var.type)
                    terms.append(e.mul(term, 1 / math.factorial(k)))
        series = [
            _series_of_terms(var, terms) if moves else _Series(var)
            for var, terms, moves in zip(inputs, coefficients, flags, strict=True)
        ]
        outputs = _interpreted(builder, program, series, {})
        results: list[Atom] = [y.first for y in outputs]
        for k in range(1, order + 1):
            results += [e.mul(y.dense(k), float(math.factorial(k))) for y in outputs]
    return builder.build(results)


class _Series:
    """Taylor coefficients of a value in t, computed when they are asked for.

    ``first`` is that of order 0; ``coefficient`` computes the others, or is None for a
    value that does not depend on t.
    """

    def __init__(
        self, first: Atom, coefficient: HigherCoefficient | None = None
    ) -> None:
        self.first = first
        self._coefficient = coefficient
        self._series_of_terms: dict[int, Atom | None] = {}  # coefficients by order

    @property
    def varies(self) -> bool:
        """Whether the value depends on t."""
        return self._coefficient is not None

    def at(self, k: int) -> Atom | None:
        """Return the coefficient of t**k; None is zero."""
        if k == 0:
            return self.first
        if self._coefficient is None:
            return None
        if k not in self._series_of_terms:
            self._series_of_terms[k] = self._coefficient(k)
        return self._series_of_terms[k]

    def dense(self, k: int) -> Atom:
        """Return the coefficient of t**k, as an array of zeros if it is zero."""
        term = self.at(k)
        return views.broadcast_literal(0, self.first.type) if term is None else term

    def derivative(self) -> _Series:
        """Return the derivative by t: coefficient k is (k + 1) * c[k + 1]."""
        return _Series(self.dense(1), lambda k: _scaled(self.at(k + 1), k + 1))


def _series_of_terms(first: Atom, terms: Sequence[Atom]) -> _Series:
    """Return the series of ``first`` and the coefficients ``terms``, then zeros."""
    return _Series(first, lambda k: terms[k - 1] if k <= len(terms) else None)


def _scaled(x: Atom | None, factor: float) -> Atom | None:
    """Emit ``x * factor``; None is zero."""
    return x if x is None or factor == 1 else e.mul(x, float(factor))


def _interpreted(
    builder: ProgramBuilder,
    program: Program,
    inputs: Sequence[_Series],
    environment: dict[Var, _Series],
) -> list[_Series]:
    """Return the series of the outputs of ``program``, given those of its inputs.

    Vars in ``environment`` have their series already. The series of all other Vars are
    added to it.
    """
    environment.update(zip(program.inputs, inputs, strict=True))
    for var, value in program.constant_pairs():
        environment[var] = _Series(builder.constant(value))

    def series_of(atom: Atom) -> _Series:
        """Return the series of ``atom``; that of a Literal is constant."""
        return environment[atom] if isinstance(atom, Var) else _Series(atom)

    for equation in program.equations:
        if all(v in environment for v in equation.outputs):
            continue
        builder.source = equation.source
        operands = [series_of(a) for a in equation.inputs]
        try:
            results = _applied(builder, equation, operands)
        except ArrayfnError as error:
            raise located(error, equation.source) from None
        for var, result in zip(equation.outputs, results, strict=True):
            environment.setdefault(var, result)
    return [series_of(a) for a in program.outputs]


def _applied(
    builder: ProgramBuilder, equation: Equation, operands: Sequence[_Series]
) -> list[_Series]:
    """Return the Taylor series of an equation's outputs, given those of its operands.

    Emits the coefficients of order 0 at once. See the module's docstring for the rules.
    """
    primitive = primitive_of(equation)
    varies = [x.varies for x in operands]
    if any(varies) and primitive.jvp == THROUGH_BODY:
        return _interpreted(builder, equation.params["body"], operands, {})
    firsts = builder.emit(primitive, [x.first for x in operands], equation.params)
    if not any(varies):
        return [_Series(y) for y in firsts]
    rule = _Rule(equation, varies)
    if rule.is_linear():
        return _linear(builder, rule, operands, firsts)
    if sum(varies) == 2 and rule.is_linear_in_each():
        return _bilinear(builder, rule, operands, firsts)
    return _integrated(builder, rule, operands, firsts)


class _Rule:
    """The jvp of an equation, as a Program of its operands and varying tangents.

    Attributes:
        varies: which operands vary.
        program: the jvp. It returns the outputs, then tangents of those that vary.
        outputs: which outputs vary.
        tangents: the jvp without the outputs, only with tangents.
    """

    def __init__(self, equation: Equation, varies: Sequence[bool]) -> None:
        self.equation = equation
        self.varies = varies
        alone = _single_equation_program(equation)
        self.program, self.outputs = jvp_varying(
            alone, varies, [False] * len(equation.outputs)
        )
        self.tangents = _tangents(self.program, len(equation.outputs))

    def is_linear(self) -> bool:
        """Whether the equation is linear in the operands that vary, taken together.

        It is if the tangents do not depend on the values of these operands.
        """
        read: set[Any] = {a for eq in self.tangents.equations for a in eq.inputs}
        read |= set(self.tangents.outputs)
        # The first inputs are the operands; the others are tangents.
        pairs = zip(self.tangents.inputs, self.varies, strict=False)
        return not any(varies and var in read for var, varies in pairs)

    def is_linear_in_each(self) -> bool:
        """Whether the equation is linear in each varying operand, with others fixed."""
        count = len(self.varies)
        return all(
            _Rule(self.equation, [k == number for k in range(count)]).is_linear()
            for number in range(count)
            if self.varies[number]
        )


def _single_equation_program(equation: Equation) -> Program:
    """Return a Program of only this equation, whose inputs are all of its operands."""
    builder = ProgramBuilder(equation.primitive.name)
    with builder:
        inputs = [builder.input(a.type) for a in equation.inputs]
        builder.source = equation.source
        return builder.build(builder.emit(equation.primitive, inputs, equation.params))


def _tangents(program: Program, outputs: int) -> Program:
    """Drop the first ``outputs`` outputs of a jvp: only the tangents are left."""
    return dce(
        Program(
            program.name,
            program.inputs,
            program.equations,
            program.outputs[outputs:],
            program.constants,
            program.constant_values,
        )
    )


def _from_all(
    rule: _Rule,
    firsts: Sequence[Atom],
    coefficients: Callable[[int], Sequence[Atom | None]],
) -> list[_Series]:
    """Make the series of an equation's outputs from a function of all of them.

    ``firsts`` are the coefficients of order 0 of all outputs. ``coefficients(k)`` emits
    those of order k > 0 of the outputs that vary, all together.
    """
    known: dict[int, Sequence[Atom | None]] = {}
    numbers = iter(range(sum(rule.outputs)))  # counts the outputs that vary

    def of(number: int) -> HigherCoefficient:
        """Return the function that gives higher coefficients of output ``number``."""

        def coefficient(k: int) -> Atom | None:
            """Return the coefficient of order ``k``, computed once for all outputs."""
            if k not in known:
                known[k] = coefficients(k)
            return known[k][number]

        return coefficient

    return [
        _Series(y, of(next(numbers))) if varies else _Series(y)
        for y, varies in zip(firsts, rule.outputs, strict=True)
    ]


def _linear(
    builder: ProgramBuilder,
    rule: _Rule,
    operands: Sequence[_Series],
    firsts: Sequence[Atom],
) -> list[_Series]:
    """Return the series of a linear equation's outputs: its jvp of each coefficient.

    ``firsts`` are the coefficients of order 0.
    """

    def coefficients(k: int) -> Sequence[Atom | None]:
        """Return the coefficients of order ``k``, by the jvp of the operands' ones."""
        moving = [x for x in operands if x.varies]
        if all(x.at(k) is None for x in moving):
            return [None] * sum(rule.outputs)
        inputs_of_jvp = [*(x.first for x in operands), *(x.dense(k) for x in moving)]
        return builder.inline(rule.tangents, inputs_of_jvp)

    return _from_all(rule, firsts, coefficients)


def _bilinear(
    builder: ProgramBuilder,
    rule: _Rule,
    operands: Sequence[_Series],
    firsts: Sequence[Atom],
) -> list[_Series]:
    """Return the series of an equation that is linear in each of two varying operands.

    That is their Cauchy product: coefficient k is the sum over j of the equation
    applied to coefficients j and k - j. ``firsts`` are the coefficients of order 0.
    """
    left_number, right_number = (k for k, x in enumerate(operands) if x.varies)
    equation = rule.equation

    def coefficients(k: int) -> Sequence[Atom | None]:
        """Emit the coefficients of order ``k``: sums of products of lower orders.

        The operands ``left_number`` and ``right_number`` are the two that vary.
        """
        totals: list[Atom | None] = [None] * len(firsts)
        for j in range(k + 1):
            left = operands[left_number].at(j)
            right = operands[right_number].at(k - j)
            if left is None or right is None:
                continue
            factors = [x.first for x in operands]
            factors[left_number], factors[right_number] = left, right
            terms = builder.emit(equation.primitive, factors, equation.params)
            totals = [
                term if total is None else e.add(total, term)
                for total, term in zip(totals, terms, strict=True)
            ]
        return [y for y, varies in zip(totals, rule.outputs, strict=True) if varies]

    return _from_all(rule, firsts, coefficients)


def _integrated(
    builder: ProgramBuilder,
    rule: _Rule,
    operands: Sequence[_Series],
    firsts: Sequence[Atom],
) -> list[_Series]:
    """Return the series of any equation's outputs, integrated from their derivatives.

    The derivative of y by t is the jvp along the operands' series, and coefficient k of
    y is coefficient k - 1 of y', divided by k. The jvp may read y itself: its lower
    coefficients are known then. ``firsts`` are the coefficients of order 0.
    """
    series_of_outputs: list[_Series] = []
    slopes: list[_Series] = []

    def coefficients(k: int) -> Sequence[Atom | None]:
        """Integrate the coefficients of order ``k - 1`` of the outputs' derivatives.

        The derivatives' series, ``slopes``, are made at the first call. They may read
        the series of the outputs, of which these coefficients are part: only lower
        orders, which do not depend on order ``k``.
        """
        if not slopes:
            moving = [x.derivative() for x in operands if x.varies]
            # The outputs of ``rule.program`` are those of the equation, then tangents.
            values = zip(rule.program.outputs, series_of_outputs, strict=False)
            known = {v: y for v, y in values if isinstance(v, Var)}
            outputs = _interpreted(builder, rule.program, [*operands, *moving], known)
            # ``firsts`` has one entry for each output: what follows are the tangents.
            slopes.extend(outputs[len(firsts) :])
        return [_scaled(y.at(k - 1), 1 / k) for y in slopes]

    series_of_outputs += _from_all(rule, firsts, coefficients)
    return series_of_outputs


def _order(
    function: Function, args: tuple[Any, ...], series: Sequence[Sequence[Any]]
) -> int:
    """Return the length of the lists in ``series``: the order.

    Raises ArgumentError if the lists have different lengths, or do not match ``args``.
    """
    name = shown_name(function)
    lengths = {len(terms) for terms in series}
    if len(series) != len(args) or len(lengths) != 1:
        raise ArgumentError(
            f"jet of {name}: {len(args)} arguments have as many series, all of one "
            f"length; there are {len(series)}, of lengths {sorted(lengths)}",
            user_location(),
        )
    for position, (argument, terms) in enumerate(zip(args, series, strict=True)):
        wanted = tree.structure(argument)
        for term in terms:
            if tree.structure(term) != wanted:
                raise ArgumentError(
                    f"jet of {name}: a derivative of argument {position} has the "
                    f"structure {tree.text_of(tree.structure(term))}, and the argument "
                    f"{tree.text_of(wanted)}",
                    user_location(),
                )
    return lengths.pop()
