"""Building Programs: rules emit equations into a ProgramBuilder.

Transformations are written with Vars and Literals: inside ``with builder:`` a call of a
primitive, ``mul(x, y)``, appends an equation to ``builder`` and returns its outputs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

import numpy as np

from arrayfn.errors import SourceLocation
from arrayfn.ir import (
    ArrayType,
    Atom,
    Equation,
    Literal,
    Params,
    PrimitiveRow,
    Program,
    Var,
    in_place,
    type_of,
)

Array = np.ndarray[Any, Any]


class ProgramBuilder:
    """Collects the equations of a Program under construction.

    ``source`` is the user's line that the next equations are attributed to.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.inputs: list[Var] = []
        self.equations: list[Equation] = []
        self.source: SourceLocation | None = None
        self._constants: dict[int, tuple[Var, Array]] = {}

    def input(self, type: ArrayType, hint: str = "") -> Var:
        """Add an input; ``hint`` is what the user calls it."""
        var = Var(type, hint)
        self.inputs.append(var)
        return var

    def inputs_of(self, program: Program) -> list[Var]:
        """New inputs like those of ``program``."""
        return [self.input(v.type, v.hint) for v in program.inputs]

    def constant(self, array: Array) -> Var:
        """Add a constant that holds ``array``; an array object gets only one."""
        known = self._constants.get(id(array))
        if known is None:
            array = in_place(array)
            known = self._constants[id(array)] = (Var(type_of(array)), array)
        return known[0]

    def adopt_constant(self, var: Var, array: Any) -> None:
        """Make ``var``, used already, the constant that holds ``array``."""
        self._constants[id(array)] = (var, array)

    def emit(
        self, primitive: PrimitiveRow, inputs: Iterable[Atom], params: Params
    ) -> tuple[Var, ...]:
        """Append an equation and return its outputs."""
        equation = Equation.infer(primitive, tuple(inputs), params, self.source)
        self.equations.append(equation)
        return equation.outputs

    def replay(self, equation: Equation, environment: dict[Var, Atom]) -> None:
        """Append a copy of ``equation``, renamed by ``environment``.

        Its new outputs are added to ``environment``.
        """
        self.source = equation.source
        outputs = self.keep(equation, [rename(a, environment) for a in equation.inputs])
        environment.update(zip(equation.outputs, outputs, strict=True))

    def keep(self, equation: Equation, operands: Iterable[Atom]) -> tuple[Var, ...]:
        """Append ``equation`` with new ``operands``; returns its new outputs."""
        made = equation.renamed(tuple(operands))
        self.equations.append(made)
        return made.outputs

    def take(self, equation: Equation, environment: dict[Var, Atom]) -> None:
        """Like ``replay``, but keep the Equation object and its outputs where possible.

        Nothing else in the Program under construction may define these outputs.
        """
        inputs = tuple([rename(a, environment) for a in equation.inputs])
        self.source = equation.source
        made = equation.with_inputs(inputs)
        self.equations.append(made)
        environment.update(zip(equation.outputs, made.outputs, strict=True))

    def inline(self, program: Program, operands: Sequence[Atom]) -> list[Atom]:
        """Append the equations of ``program`` on ``operands``; return its outputs."""
        environment = self.bind_inputs(program, operands)
        source = self.source
        for equation in program.equations:
            self.replay(equation, environment)
        self.source = source
        return [rename(a, environment) for a in program.outputs]

    def bind_inputs(
        self, program: Program, operands: Sequence[Atom]
    ) -> dict[Var, Atom]:
        """Map ``program``'s inputs to ``operands``, and its constants to new ones."""
        environment: dict[Var, Atom] = dict(zip(program.inputs, operands, strict=True))
        for var, value in zip(program.constants, program.constant_values, strict=True):
            environment[var] = self.constant(value)
        return environment

    def build(self, outputs: Iterable[Atom]) -> Program:
        """Finish the Program, whose outputs are ``outputs``."""
        constants = list(self._constants.values())
        return Program(
            self.name,
            tuple(self.inputs),
            tuple(self.equations),
            tuple(outputs),
            tuple(var for var, _ in constants),
            tuple(value for _, value in constants),
        )

    def __enter__(self) -> Self:
        _stack().append(self)
        return self

    def __exit__(self, *exc: object) -> None:
        _stack().pop()


Rewrite = Callable[[Equation, list[Atom]], Sequence[Atom | None] | None]


def rewritten(program: Program, rewrite: Rewrite) -> Program:
    """``program`` with some of its equations replaced.

    ``rewrite(equation, operands)`` is called for each equation with its operands in the
    new Program. It emits what replaces the equation and returns an atom for each output
    (None for one that nothing uses), or it returns None to keep the equation.
    """
    builder = ProgramBuilder(program.name)
    with builder:
        environment = builder.bind_inputs(program, builder.inputs_of(program))
        for equation in program.equations:
            builder.source = equation.source
            operands = [rename(a, environment) for a in equation.inputs]
            results = rewrite(equation, operands)
            if results is None:
                results = builder.keep(equation, operands)
            pairs = zip(equation.outputs, results, strict=True)
            environment.update((var, atom) for var, atom in pairs if atom is not None)
    return builder.build([rename(a, environment) for a in program.outputs])


def rename(atom: Atom, environment: dict[Var, Atom]) -> Atom:
    """``atom`` under the renaming ``environment``; Literals stay."""
    return atom if isinstance(atom, Literal) else environment[atom]


def current_builder() -> ProgramBuilder:
    """The builder that primitives called on Vars emit into."""
    return _stack()[-1]


class _Local(threading.local):
    def __init__(self) -> None:
        self.builders: list[ProgramBuilder] = []


_local = _Local()


def _stack() -> list[ProgramBuilder]:
    return _local.builders
