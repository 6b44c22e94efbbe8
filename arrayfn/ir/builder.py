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
    as_readable,
    type_of,
)

Array = np.ndarray[Any, Any]


class ProgramBuilder:
    """Collects the equations of a Program under construction.

    ``source`` is the user's line that the next equations are attributed to.
    """

    def __init__(self, name: str) -> None:
        """Begin a Program called ``name``."""
        self.name = name
        self.inputs: list[Var] = []
        self.equations: list[Equation] = []
        self.source: SourceLocation | None = None
        # By id of the array object, which the value keeps alive.
        self._constants: dict[int, tuple[Var, Array]] = {}
        # Aligned copies of constants, and the arrays that were given, by their ids.
        self._copies: dict[int, tuple[Array, Array]] = {}

    def input(self, type: ArrayType, hint: str = "") -> Var:
        """Add an input; ``hint`` is what the user calls it."""
        var = Var(type, hint)
        self.inputs.append(var)
        return var

    def inputs_of(self, program: Program) -> list[Var]:
        """Add inputs with the types and hints of those of ``program``; return them."""
        return [self.input(v.type, v.hint) for v in program.inputs]

    def constant(self, array: Array) -> Var:
        """Return the constant that holds ``array``; add it on the first call.

        An array that kernels cannot read is copied (see ``ir.as_readable``).
        """
        copied = self._copies.get(id(array))
        readable = as_readable(array) if copied is None else copied[0]
        # Keep ``array`` beside its copy, so that its id stays its own.
        if readable is not array and copied is None:
            self._copies[id(array)] = readable, array
        known = self._constants.get(id(readable))
        if known is None:
            known = self._constants[id(readable)] = Var(type_of(readable)), readable
        return known[0]

    def adopt_constant(self, var: Var, array: Any) -> None:
        """Make ``var``, which equations use already, the constant ``array``."""
        self._constants[id(array)] = (var, array)

    def emit(
        self, primitive: PrimitiveRow, inputs: Iterable[Atom], params: Params
    ) -> tuple[Var, ...]:
        """Append an equation and return its outputs."""
        equation = Equation.infer(primitive, tuple(inputs), params, self.source)
        self.equations.append(equation)
        return equation.outputs

    def replay(self, equation: Equation, environment: dict[Var, Atom]) -> None:
        """Append a copy of ``equation``, with inputs renamed by ``environment``.

        Adds the old and new outputs to ``environment``, and sets ``source`` to the
        equation's.
        """
        self.source = equation.source
        outputs = self.keep(equation, [rename(a, environment) for a in equation.inputs])
        environment.update(zip(equation.outputs, outputs, strict=True))

    def keep(self, equation: Equation, operands: Iterable[Atom]) -> tuple[Var, ...]:
        """Append a copy of ``equation`` with new ``operands``; return its outputs."""
        renamed = equation.renamed(tuple(operands))
        self.equations.append(renamed)
        return renamed.outputs

    def take(self, equation: Equation, environment: dict[Var, Atom]) -> None:
        """Append ``equation``, with inputs renamed by ``environment``, without a copy.

        Unlike ``replay``, this keeps the Equation object if no input changes, and its
        output Vars if no input's type changes. Nothing else in the Program under
        construction may define these Vars. Sets ``source`` and adds outputs to
        ``environment`` as ``replay`` does.
        """
        inputs = tuple([rename(a, environment) for a in equation.inputs])
        self.source = equation.source
        taken = equation.with_inputs(inputs)
        self.equations.append(taken)
        environment.update(zip(equation.outputs, taken.outputs, strict=True))

    def inline(self, program: Program, operands: Sequence[Atom]) -> list[Atom]:
        """Append copies of the equations of ``program`` on ``operands``.

        Returns the outputs of ``program``. ``source`` is afterwards what it was before.
        """
        environment = self.bind_inputs(program, operands)
        source = self.source
        for equation in program.equations:
            self.replay(equation, environment)
        self.source = source
        return [rename(a, environment) for a in program.outputs]

    def bind_inputs(
        self, program: Program, operands: Sequence[Atom]
    ) -> dict[Var, Atom]:
        """Return an environment for the equations of ``program`` on ``operands``.

        It maps the inputs of ``program`` to ``operands``, and its constants to
        constants of this builder.
        """
        environment: dict[Var, Atom] = dict(zip(program.inputs, operands, strict=True))
        for var, value in program.constant_pairs():
            environment[var] = self.constant(value)
        return environment

    def build(self, outputs: Iterable[Atom]) -> Program:
        """Return the Program of all inputs, equations and constants so far."""
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
        """Make this the builder that primitives emit into, in this thread."""
        _stack().append(self)
        return self

    def __exit__(self, *exc: object) -> None:
        """Emit into the builder that was entered before again."""
        _stack().pop()


Rewrite = Callable[[Equation, list[Atom]], Sequence[Atom | None] | None]


def rewritten(program: Program, rewrite: Rewrite) -> Program:
    """Return ``program`` with some of its equations replaced.

    ``rewrite(equation, operands)`` is called for each equation with the equation's
    operands in the new Program. It either emits other equations and returns an Atom for
    each output (None for an output that nothing uses), or it returns None to keep the
    equation.
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
    """Return ``environment[atom]`` for a Var, and a Literal itself."""
    return atom if isinstance(atom, Literal) else environment[atom]


def current_builder() -> ProgramBuilder:
    """Return the builder that primitives called on Vars emit into, in this thread."""
    return _stack()[-1]


class _Local(threading.local):
    """The builders that this thread has entered, the innermost last."""

    def __init__(self) -> None:
        """Begin with none; each thread calls this on its first access."""
        self.builders: list[ProgramBuilder] = []


_local = _Local()


def _stack() -> list[ProgramBuilder]:
    """Return this thread's list of entered builders."""
    return _local.builders
