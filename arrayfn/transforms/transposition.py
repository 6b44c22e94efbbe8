"""Transposition of linear Programs, and reverse mode, which is built on it."""

from __future__ import annotations

from collections.abc import Sequence

from arrayfn.errors import DifferentiationError
from arrayfn.ir import Atom, Equation, Program, Var
from arrayfn.ir.builder import ProgramBuilder, rename
from arrayfn.primitives import emitters, views
from arrayfn.primitives.base import (
    THROUGH_BODY,
    Linear,
    Marker,
    Operand,
    OverPrograms,
    primitive_of,
)
from arrayfn.primitives.collectives import summed_over
from arrayfn.primitives.dropped_kernels import DIFFERENTIATION, warn_dropped
from arrayfn.primitives.rules import not_linear, not_none, with_nones
from arrayfn.transforms.linearization import Linearization, linearize, split


def transpose(program: Program, residuals: int) -> Program:
    """Transpose ``program``, which is linear in the inputs after the residuals.

    Its first inputs, ``residuals`` many, are the residuals. The result takes these and
    a cotangent for each output, and returns a cotangent for each linear input:
    ``(c, dx) -> c * dx`` becomes ``(c, ct) -> c * ct``.
    """
    linear = [False] * residuals + [True] * (len(program.inputs) - residuals)
    every = [True] * len(program.outputs)
    return transpose_varying(program, linear, every, linear[residuals:])[0]


def transpose_varying(
    program: Program,
    linear: Sequence[bool],
    has_cotangent: Sequence[bool],
    dense: Sequence[bool],
) -> tuple[Program, list[bool]]:
    """Transpose ``program``, which is ``linear`` in some inputs, without zeros.

    The result takes the other inputs, and the cotangents of the outputs marked in
    ``has_cotangent``. It returns the nonzero cotangents of linear inputs, and those
    marked in ``dense`` (one flag for each linear input). The second result says which
    of them there are.
    """
    pairs = list(zip(program.inputs, linear, strict=True))
    wanted = [v for v, is_linear in pairs if is_linear]
    parts = split(program, linear, [True] * len(program.outputs))
    builder = ProgramBuilder(f"transpose_{program.name}")
    with builder:
        saved = [builder.input(v.type) for v, is_linear in pairs if not is_linear]
        known = builder.inline(parts.known, saved)
        cotangents = [
            builder.input(t) if has else None
            for t, has in zip(program.output_types, has_cotangent, strict=True)
        ]
        results = pull_back(builder, parts.linear, known, cotangents)
        every = [
            views.zeros(v.type) if ct is None and forced else ct
            for v, ct, forced in zip(wanted, results, dense, strict=True)
        ]
        return builder.build(not_none(every)), [ct is not None for ct in every]


def pull_back(
    builder: ProgramBuilder,
    program: Program,
    saved: Sequence[Atom],
    cotangents: Sequence[Atom | None],
) -> list[Atom | None]:
    """Emit the cotangents of the inputs of ``program`` in which it is linear.

    These are the inputs after the first, whose values are ``saved``. ``cotangents`` are
    those of the outputs. A cotangent of None is zero. Equations that depend on no
    linear input are emitted first; the others are transposed, from last to first.
    """
    # Split the equations: what depends on linear inputs is transposed, and the rest is
    # computed.
    known: dict[Var, Atom] = dict(zip(program.inputs, saved, strict=False))
    linear: set[Var] = set(program.inputs[len(saved) :])
    linear_equations: list[Equation] = []
    for equation in program.equations:
        if any(a in linear for a in equation.inputs):
            linear.update(equation.outputs)
            linear_equations.append(equation)
        else:
            builder.replay(equation, known)
    sums = _CotangentSums(linear)
    for atom, cotangent in zip(program.outputs, cotangents, strict=True):
        sums.add(atom, cotangent)
    for equation in reversed(linear_equations):
        output_cotangents = [sums.pop(v) for v in equation.outputs]
        if all(ct is None for ct in output_cotangents):
            continue
        builder.source = equation.source
        operands: list[Operand] = [
            Linear(a.type) if a in linear else rename(a, known) for a in equation.inputs
        ]
        results = _transposed(builder, equation, operands, output_cotangents)
        for atom, cotangent in zip(equation.inputs, results, strict=True):
            sums.add(atom, cotangent)
    return [sums.pop(v) for v in program.inputs[len(saved) :]]


class _CotangentSums:
    """Running sums of the cotangents of ``linear`` Vars, one term for each use.

    A cotangent may vary along mesh axes along which its Var is the same for all
    members. Such terms are summed over the members of these axes too. Terms that share
    axes are added up first, so that one collective sums all of them.
    """

    def __init__(self, linear: set[Var]) -> None:
        self._linear = linear
        # For each Var, the sums of the terms by the axes to sum them over.
        self._by_axes: dict[Var, dict[frozenset[str], Atom]] = {}

    def add(self, atom: Atom, cotangent: Atom | None) -> None:
        """Emit ``cotangent`` added to the sum of ``atom``, if that is linear."""
        if cotangent is None or not isinstance(atom, Var) or atom not in self._linear:
            return
        sums = self._by_axes.setdefault(atom, {})
        axes = cotangent.type.varying - atom.type.varying
        total = sums.get(axes)
        sums[axes] = cotangent if total is None else emitters.add(total, cotangent)

    def pop(self, var: Var) -> Atom | None:
        """Remove and return the sum of ``var``; None if it has no terms."""
        total: Atom | None = None
        for axes, term in self._by_axes.pop(var, {}).items():
            for axis in sorted(axes):
                term = summed_over(term, axis)
            total = term if total is None else emitters.add(total, term)
        return total


def _transposed(
    builder: ProgramBuilder,
    equation: Equation,
    operands: Sequence[Operand],
    cotangents: Sequence[Atom | None],
) -> Sequence[Atom | None]:
    """Emit the cotangents of a linear equation's operands, by its transpose rule.

    ``cotangents`` are those of its outputs. The result has None for an operand that is
    not linear. Raises DifferentiationError if the primitive has no such rule.
    """
    primitive, params = primitive_of(equation), equation.params
    rule = primitive.transpose
    if rule == THROUGH_BODY:
        warn_dropped(equation, DIFFERENTIATION)
        return _through_body(builder, params["body"], operands, cotangents)
    if isinstance(rule, OverPrograms):
        return rule.rule(transpose_varying, cotangents, operands, **params)
    if isinstance(rule, Marker):
        raise DifferentiationError(
            f"{primitive.name} is not linear, so it has no transpose",
            equation.source,
        )
    return rule(cotangents, operands, **params)


def _through_body(
    builder: ProgramBuilder,
    body: Program,
    operands: Sequence[Operand],
    cotangents: Sequence[Atom | None],
) -> list[Atom | None]:
    """Emit the cotangents of the linear operands of a call, by transposing ``body``.

    The result has None for other operands and for zeros.
    """
    linear = [isinstance(x, Linear) for x in operands]
    has_cotangent = [ct is not None for ct in cotangents]
    program, is_nonzero = transpose_varying(
        body, linear, has_cotangent, [False] * sum(linear)
    )
    results = builder.inline(program, [*not_linear(operands), *not_none(cotangents)])
    return list(with_nones(with_nones(results, is_nonzero), linear))


def vjp(program: Program, wrt: Sequence[bool]) -> Program:
    """Return the Program (inputs, output cotangents) -> (outputs, cotangents).

    The cotangents that it returns are those of the inputs marked in ``wrt``.
    """
    split = linearize(program, wrt)
    builder = _continuing(split.known, f"vjp_{program.name}")
    with builder:
        cotangents = [builder.input(t) for t in program.output_types]
        return _with_gradients(builder, split, cotangents)


def value_and_grad(program: Program, wrt: Sequence[bool]) -> Program:
    """Return the Program inputs -> (outputs, gradients of the first output).

    The first output is a scalar. The gradients are by the inputs marked in ``wrt``.
    """
    split = linearize(program, wrt)
    builder = _continuing(split.known, f"grad_{program.name}")
    with builder:
        seed = views.broadcast_literal(1, program.output_types[0])
        others = [None] * (len(program.outputs) - 1)
        return _with_gradients(builder, split, [seed, *others])


def _continuing(program: Program, name: str) -> ProgramBuilder:
    """Return a builder that already has the equations and inputs of ``program``."""
    builder = ProgramBuilder(name)
    builder.inputs += program.inputs
    builder.equations += program.equations
    for var, value in program.constant_pairs():
        builder.adopt_constant(var, value)
    return builder


def _with_gradients(
    builder: ProgramBuilder, split: Linearization, cotangents: Sequence[Atom | None]
) -> Program:
    """Emit the pullback of ``cotangents`` into ``builder``, and build the Program.

    ``builder`` already has the equations of ``split.known``. The Program returns the
    outputs, then a cotangent for each input that has a tangent.
    """
    known, count = split.known, len(cotangents)
    outputs, residuals = known.outputs[:count], known.outputs[count:]
    gradients = pull_back(builder, split.linear, residuals, cotangents)
    wanted = split.linear.inputs[len(residuals) :]
    return builder.build([*outputs, *views.dense(gradients, [v.type for v in wanted])])
