"""Finds the equations that each step of a plan computes: the ``origins`` of calls.

In: the Program after the passes, and the steps that it was lowered to. Each value of a
nest keeps the name and the source line of its equation through fusion and scheduling. A
library call writes what its equation makes. An equation without a step of its own (a
view, or one that became the epilogue of a product) belongs to the steps that use it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

from arrayfn.errors import SourceLocation
from arrayfn.ir import Equation, Program, Var
from arrayfn.ir.format import equation_lines
from arrayfn.lowering.kernel_ir import (
    Compute,
    Load,
    Nest,
    Reduce,
    Statement,
    Store,
    is_outer,
)
from arrayfn.lowering.operations import operations_of
from arrayfn.lowering.plan import Origin
from arrayfn.lowering.steps import (
    BranchStep,
    CallStep,
    LoopStep,
    NestStep,
    PlanStep,
    blocks_of,
)


class Origins:
    """Finds the equations of ``program`` that steps come from.

    Attributes:
        lines: each equation's line in the Program's text.
        makers: the equation that makes each Var, in nested Programs too.
        by_kind: an equation by its source line and primitive.
        by_name: equations by their source line and the kernel's name of a result.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.lines = {equation: line for line, equation in equation_lines(program)}
        self.makers = {v: eq for eq in self.lines for v in eq.outputs}
        self.by_kind = {(eq.source, eq.primitive.name): eq for eq in self.lines}
        self.by_name: dict[tuple[SourceLocation | None, str], list[Equation]] = {}

    def of_equation(self, equation: Equation) -> tuple[Origin, ...]:
        """Return the origin of a step that computes ``equation``, as a tuple of one.

        The tuple is empty if the equation is not in the Program's text.
        """
        return self._origins([(equation, operations_of(equation))])

    def share(self, steps: Sequence[PlanStep], equation: Equation) -> None:
        """Set the origins of ``steps``, which together compute ``equation``.

        Its operations are divided evenly among calls. A loop or branch counts none,
        since its steps have origins of their own; a nest counts its statements.
        """
        calls = sum(isinstance(step, CallStep) for step in steps)
        for step in steps:
            shared = calls if isinstance(step, CallStep) else 0
            step.origins = tuple(
                replace(o, operations=o.operations // shared if shared else 0)
                for o in self.of_equation(equation)
            )

    def of_nest(self, nest: Nest, names: Mapping[Var, str]) -> tuple[Origin, ...]:
        """Return the origins of the kernel of ``nest``, whose values have ``names``.

        A statement counts one operation for each time that it runs, if it computes.
        """
        elements = prod(axis.extent for axis in nest.axes)
        rows = prod(axis.extent for axis in nest.axes if not axis.reduced)
        equations: list[tuple[Equation, int]] = []
        for statement in nest.statements:
            equation = self._equation_of(statement, nest, names)
            if equation is not None:
                times = rows if is_outer(statement) else elements
                counts = isinstance(statement, Reduce) or (
                    isinstance(statement, Compute) and statement.cost > 0
                )
                equations.append((equation, times * counts))
        return self._origins(equations)

    def of_steps(
        self, steps: Iterable[PlanStep], names: Mapping[Var, str]
    ) -> tuple[Origin, ...]:
        """Return the origins of all ``steps``, merged, loops and branches included."""
        origins: list[Origin] = []
        for step in steps:
            if isinstance(step, NestStep):
                origins += self.of_nest(step.nest, names)
                continue
            origins += step.origins
            iterations = (step.count or 1) if isinstance(step, LoopStep) else 1
            for block in blocks_of(step):
                inner_origins = self.of_steps(block, names)
                origins += [
                    replace(o, operations=iterations * o.operations)
                    for o in inner_origins
                ]
        return merged(origins)

    def complete(self, steps: Sequence[PlanStep]) -> None:
        """Attribute equations that no step computes to steps that use them."""
        for call in _calls(steps):
            if not call.origins:
                equations = [self.makers[v] for v in call.writes if v in self.makers]
                call.origins = merged(
                    o for eq in equations for o in self.of_equation(eq)
                )
        calls_by_line: dict[int, list[CallStep]] = {}
        for call in _calls(steps):
            for origin in call.origins:
                calls_by_line.setdefault(origin.line, []).append(call)
        self._complete(self.program, calls_by_line)

    def _complete(
        self, program: Program, calls_by_line: dict[int, list[CallStep]]
    ) -> None:
        """Attribute equations of ``program`` that no step computes.

        They are added to the steps of their readers, or, if only results read them, to
        the steps of the equations that compute their operands. ``program`` is the whole
        one or one inside. ``calls_by_line`` has the calls that each line of the
        Program's text is an origin of.
        """
        users: dict[Var, list[Equation]] = {}
        for equation in program.equations:
            for inner in equation.subprograms():
                self._complete(inner, calls_by_line)
            for atom in equation.inputs:
                if isinstance(atom, Var):
                    users.setdefault(atom, []).append(equation)
        for equation in reversed(program.equations):
            readers = [eq for v in equation.outputs for eq in users.get(v, ())]
            self._share(equation, readers, calls_by_line)
        for equation in program.equations:  # what only results use
            definitions = [
                self.makers.get(a) for a in equation.inputs if isinstance(a, Var)
            ]
            self._share(
                equation, [eq for eq in definitions if eq is not None], calls_by_line
            )

    def _share(
        self,
        equation: Equation,
        neighbours: Sequence[Equation],
        calls_by_line: dict[int, list[CallStep]],
    ) -> None:
        """Add ``equation`` to the steps of its ``neighbours`` if it has none."""
        line = self.lines[equation]
        if calls_by_line.get(line) or equation.subprograms():
            return
        numbers = dict.fromkeys(self.lines[eq] for eq in neighbours)
        calls = {id(c): c for number in numbers for c in calls_by_line.get(number, ())}
        calls_by_line[line] = list(calls.values())
        for number, call in enumerate(calls_by_line[line]):
            # The first does its arithmetic, if there is any; a view has none.
            operations = 0 if number else operations_of(equation)
            origin = Origin(line, operations, equation.source)
            call.origins = merged([*call.origins, origin])

    def _equation_of(
        self, statement: Statement, nest: Nest, names: Mapping[Var, str]
    ) -> Equation | None:
        """Return the equation that ``statement`` computes a part of; None if unknown.

        It is found by the source line and the name of the statement's result.
        """
        if isinstance(statement, (Load, Store)):
            return None
        if not self.by_name:  # all Programs have their names by now
            for equation in self.lines:
                for var in equation.outputs:
                    key = equation.source, names.get(var, "")
                    self.by_name.setdefault(key, []).append(equation)
        candidates = self.by_name.get((statement.source, statement.result.name), [])
        for equation in candidates:  # several, if bodies of one line use the name
            if equation.primitive.name in nest.primitives:
                return equation
        if candidates or statement.source is None:
            return candidates[0] if candidates else None
        keys = ((statement.source, name) for name in nest.primitives)
        return next((self.by_kind[k] for k in keys if k in self.by_kind), None)

    def _origins(self, counted: Iterable[tuple[Equation, int]]) -> tuple[Origin, ...]:
        """Make the origins of ``(equation, operations)`` pairs."""
        return merged(
            Origin(self.lines[equation], count, equation.source)
            for equation, count in counted
            if equation in self.lines
        )


def merged(origins: Iterable[Origin]) -> tuple[Origin, ...]:
    """Merge origins of the same line of the text, in order.

    Operations of one line are added up.
    """
    by_line: dict[int, Origin] = {}
    for origin in origins:
        previous = by_line.get(origin.line)
        operations = origin.operations + (previous.operations if previous else 0)
        by_line[origin.line] = replace(origin, operations=operations)
    return tuple(by_line[line] for line in sorted(by_line))


def _calls(steps: Iterable[PlanStep]) -> Iterator[CallStep]:
    """Yield the kernel calls among ``steps``, nested ones too."""
    for step in steps:
        if isinstance(step, CallStep):
            yield step
        elif isinstance(step, (LoopStep, BranchStep)):
            for block in blocks_of(step):
                yield from _calls(block)
