"""Which equations each step of a plan computes: the ``origins`` of its calls.

In: the Program after the passes, and the steps that it was lowered to. Each value of a
nest has the name and the user's line of the equation that it came from, through all
that fusion and schedules do. A library's call writes what its equation makes. What is
left then (a view, or a product whose epilogue a later equation is) belongs to the steps
that use it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

from arrayfn.errors import SourceLocation
from arrayfn.ir import Equation, Program, Var
from arrayfn.ir.format import equation_lines
from arrayfn.lowering.kernel_ir import Compute, Load, Nest, Reduce, Statement, Store
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
    """Finds the equations of ``program`` that steps come from."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.lines = {equation: line for line, equation in equation_lines(program)}
        self.makers = {v: eq for eq in self.lines for v in eq.outputs}
        self.by_kind = {(eq.source, eq.primitive.name): eq for eq in self.lines}
        self.by_name: dict[tuple[SourceLocation | None, str], list[Equation]] = {}

    def of_equation(self, equation: Equation) -> tuple[Origin, ...]:
        """That of what computes ``equation`` by itself; none if a pass has made it."""
        return self._origins([(equation, operations_of(equation))])

    def share(self, steps: Sequence[PlanStep], equation: Equation) -> None:
        """Set the origins of ``steps``, all that ``equation`` was lowered to.

        Calls share its operations evenly. A loop or branch does nothing itself, since
        its steps have origins of their own; a nest counts its statements.
        """
        calls = sum(isinstance(step, CallStep) for step in steps)
        for step in steps:
            shared = calls if isinstance(step, CallStep) else 0
            step.origins = tuple(
                replace(o, operations=o.operations // shared if shared else 0)
                for o in self.of_equation(equation)
            )

    def of_nest(self, nest: Nest, names: Mapping[Var, str]) -> tuple[Origin, ...]:
        """The origins of what computes ``nest``, whose values are called ``names``."""
        every = prod(axis.extent for axis in nest.axes)
        kept = prod(axis.extent for axis in nest.axes if not axis.reduced)
        found: list[tuple[Equation, int]] = []
        for statement in nest.statements:
            equation = self._made_by(statement, nest, names)
            if equation is not None:
                points = every if _is_element(statement) else kept
                counts = isinstance(statement, Reduce) or (
                    isinstance(statement, Compute) and statement.cost > 0
                )
                found.append((equation, points * counts))
        return self._origins(found)

    def of_steps(
        self, steps: Iterable[PlanStep], names: Mapping[Var, str]
    ) -> tuple[Origin, ...]:
        """The origins of ``steps`` together, loops and branches included."""
        found: list[Origin] = []
        for step in steps:
            if isinstance(step, NestStep):
                found += self.of_nest(step.nest, names)
                continue
            found += step.origins
            times = (step.count or 1) if isinstance(step, LoopStep) else 1
            for block in blocks_of(step):
                inside = self.of_steps(block, names)
                found += [replace(o, operations=times * o.operations) for o in inside]
        return merged(found)

    def complete(self, steps: Sequence[PlanStep]) -> None:
        """Give every equation that no step has to those that use its results."""
        for call in _calls(steps):
            if not call.origins:
                made = [self.makers[v] for v in call.writes if v in self.makers]
                call.origins = merged(o for eq in made for o in self.of_equation(eq))
        having: dict[int, list[CallStep]] = {}
        for call in _calls(steps):
            for origin in call.origins:
                having.setdefault(origin.line, []).append(call)
        self._complete(self.program, having)

    def _complete(self, program: Program, having: dict[int, list[CallStep]]) -> None:
        users: dict[Var, list[Equation]] = {}
        for equation in program.equations:
            for inner in equation.subprograms():
                self._complete(inner, having)
            for atom in equation.inputs:
                if isinstance(atom, Var):
                    users.setdefault(atom, []).append(equation)
        for equation in reversed(program.equations):
            using = [eq for v in equation.outputs for eq in users.get(v, ())]
            self._share(equation, using, having)
        for equation in program.equations:  # what only results use
            made = [self.makers.get(a) for a in equation.inputs if isinstance(a, Var)]
            self._share(equation, [eq for eq in made if eq is not None], having)

    def _share(
        self,
        equation: Equation,
        neighbours: Sequence[Equation],
        having: dict[int, list[CallStep]],
    ) -> None:
        """Give ``equation``, if no step has it, to the steps of its ``neighbours``."""
        line = self.lines[equation]
        if having.get(line) or equation.subprograms():
            return
        numbers = dict.fromkeys(self.lines[eq] for eq in neighbours)
        calls = {id(c): c for number in numbers for c in having.get(number, ())}
        having[line] = list(calls.values())
        for number, call in enumerate(having[line]):
            # The first does its arithmetic, if there is any; a view has none.
            done = 0 if number else operations_of(equation)
            origin = Origin(line, done, equation.source)
            call.origins = merged([*call.origins, origin])

    def _made_by(
        self, statement: Statement, nest: Nest, names: Mapping[Var, str]
    ) -> Equation | None:
        """The equation that ``statement`` computes a part of."""
        if isinstance(statement, (Load, Store)):
            return None
        if not self.by_name:  # all Programs have their names by now
            for equation in self.lines:
                for var in equation.outputs:
                    key = equation.source, names.get(var, "")
                    self.by_name.setdefault(key, []).append(equation)
        named = self.by_name.get((statement.source, statement.result.name), [])
        for equation in named:  # several, if bodies of one line use the name
            if equation.primitive.name in nest.primitives:
                return equation
        if named or statement.source is None:
            return named[0] if named else None
        kinds = ((statement.source, name) for name in nest.primitives)
        return next((self.by_kind[k] for k in kinds if k in self.by_kind), None)

    def _origins(self, found: Iterable[tuple[Equation, int]]) -> tuple[Origin, ...]:
        return merged(
            Origin(self.lines[equation], count, equation.source)
            for equation, count in found
            if equation in self.lines
        )


def merged(origins: Iterable[Origin]) -> tuple[Origin, ...]:
    """``origins`` with one for each line, by line; their operations add up."""
    found: dict[int, Origin] = {}
    for origin in origins:
        known = found.get(origin.line)
        done = origin.operations + (known.operations if known else 0)
        found[origin.line] = replace(origin, operations=done)
    return tuple(found[line] for line in sorted(found))


def _is_element(statement: Statement) -> bool:
    return isinstance(statement, Reduce) or statement.level == "element"


def _calls(steps: Iterable[PlanStep]) -> Iterator[CallStep]:
    for step in steps:
        if isinstance(step, CallStep):
            yield step
        elif isinstance(step, (LoopStep, BranchStep)):
            for block in blocks_of(step):
                yield from _calls(block)
