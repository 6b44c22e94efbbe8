"""Unrolls scans as their ``unroll`` param asks, and scans of one iteration.

After it: every scan has at least two iterations and an ``unroll`` of 1, or one of 0.
A body goes through the passes up to this one before it is unrolled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from arrayfn.ir import Atom, Equation, Program, Var
from arrayfn.ir.builder import ProgramBuilder, current_builder, rewritten
from arrayfn.primitives import slicing, views


def unroll_loops(program: Program, simplify: Callable[[Program], Program]) -> Program:
    """Unroll the scans of ``program`` as their params ask.

    With ``unroll=2``, ``scan(f, c, xs)`` over 5 slices becomes a scan over 2 groups,
    whose body is ``f`` twice, and one ``f`` after it. ``simplify`` runs the passes on a
    body.
    """
    if not any(_is_unrolled(equation) for equation in program.equations):
        return program

    def unrolled(equation: Equation, operands: list[Atom]) -> list[Atom] | None:
        """Emit an unrolled scan; None leaves ``equation`` as it is."""
        if not _is_unrolled(equation):
            return None
        return _Unrolled(equation, simplify).emit(operands)

    return rewritten(program, unrolled)


def _is_unrolled(equation: Equation) -> bool:
    """Whether ``equation`` is a scan to unroll.

    A scan of one iteration is, unless its ``unroll`` is 0.
    """
    if equation.primitive.name != "scan":
        return False
    length, unroll = equation.params["length"], equation.params["unroll"]
    return unroll > 0 and (length == 1 or (length > 1 and unroll > 1))


class _Unrolled:
    """A scan that is unrolled to a loop over groups of ``factor`` iterations.

    Attributes:
        body: the scan's body, after the passes.
        consts, carry: how many constants and carries there are.
        reverse, length: the params of the scan.
    """

    def __init__(
        self,
        equation: Equation,
        simplify: Callable[[Program], Program],
    ) -> None:
        """Run the passes ``simplify`` on the body of the scan ``equation``."""
        params = equation.params
        self.equation = equation
        self.body = simplify(params["program"])
        self.consts, self.carry = params["consts"], params["carry"]
        self.reverse = params["reverse"]
        self.length = params["length"]
        self.factor = min(params["unroll"], self.length)

    def emit(self, operands: Sequence[Atom]) -> list[Atom]:
        """Emit a loop over groups of iterations, and the remaining iterations.

        Of 5 iterations in groups of 2, iterations 0 to 3 are in the loop and 4 comes
        after it; if the scan is reversed, 1 to 4 are in the loop. One group is no loop.
        """
        second = self.consts + self.carry
        const_operands, xs = operands[: self.consts], operands[second:]
        state = list(operands[self.consts : second])
        looped = self.length // self.factor * self.factor
        if looped == self.factor:
            looped = 0  # a single group
        remainder = range(looped, self.length)
        if self.reverse:  # the remainder is at the front, and runs last
            remainder = range(self.length - looped)
        begin = self.length - looped if self.reverse else 0
        groups: list[Atom] = []
        if looped:
            state, groups = self.loop(const_operands, state, xs, begin, looped)
        state, singles = self.steps(const_operands, state, xs, remainder)
        if not looped:
            return [*state, *self.stacked(singles)]
        if not remainder:
            return [*state, *groups]
        pieces = [self.stacked(singles), groups]
        if not self.reverse:
            pieces.reverse()
        return [
            *state,
            *(slicing.concatenate(*y, axis=0) for y in zip(*pieces, strict=True)),
        ]

    def steps(
        self,
        consts: Sequence[Atom],
        state: list[Atom],
        xs: Sequence[Atom],
        numbers: range,
    ) -> tuple[list[Atom], list[list[Atom]]]:
        """Emit the iterations ``numbers``; return the final carry and their results.

        ``consts`` are the constants, ``state`` is the carry before these iterations,
        and ``xs`` are the arrays that are sliced. The results are in the order of the
        slices, also if the scan is reversed. An output of the body is a carry (the
        first ``self.carry`` of them) or a result.
        """
        results: list[list[Atom]] = []
        for number in reversed(numbers) if self.reverse else numbers:
            slices = [slicing.index_along(x, 0, number) for x in xs]
            outputs = current_builder().inline(self.body, [*consts, *state, *slices])
            state = outputs[: self.carry]
            results.append(outputs[self.carry :])
        return state, results[::-1] if self.reverse else results

    def stacked(self, results: Sequence[Sequence[Atom]]) -> list[Atom]:
        """Stack the results of iterations along a new axis 0.

        ``results`` has a list for each iteration. Returns one array for each result.
        """
        stacks: list[Atom] = []
        for values in zip(*results, strict=True):
            rows = [views.reshape(y, shape=(1, *y.type.shape)) for y in values]
            stacks.append(
                rows[0] if len(rows) == 1 else slicing.concatenate(*rows, axis=0)
            )
        return stacks

    def loop(
        self,
        consts: Sequence[Atom],
        state: list[Atom],
        xs: Sequence[Atom],
        begin: int,
        count: int,
    ) -> tuple[list[Atom], list[Atom]]:
        """Emit a scan over groups of the ``count`` iterations from ``begin`` on.

        The other parameters are those of ``steps``. Returns the final carry, and the
        results of all these iterations.
        """
        groups = count // self.factor
        grouped = [_grouped(x, begin, count, self.factor) for x in xs]
        program = self.group(grouped)
        params: dict[str, Any] = {
            **self.equation.params,
            "program": program,
            "length": groups,
            "unroll": 1,
        }
        outputs = current_builder().emit(
            self.equation.primitive, [*consts, *state, *grouped], params
        )
        ys = [
            views.reshape(y, shape=(count, *y.type.shape[2:]))
            for y in outputs[self.carry :]
        ]
        return list(outputs[: self.carry]), ys

    def group(self, grouped: Sequence[Atom]) -> Program:
        """Return the body of the loop over groups: ``factor`` iterations.

        ``grouped`` are the arrays of groups that the loop slices.
        """
        with ProgramBuilder(self.body.name) as builder:
            inputs = [
                builder.input(v.type, v.hint)
                for v in self.body.inputs[: self.consts + self.carry]
            ]
            slices: list[Var] = [
                builder.input(x.type.with_shape(x.type.shape[1:])) for x in grouped
            ]
            state, results = self.steps(
                inputs[: self.consts],
                list(inputs[self.consts :]),
                slices,
                range(self.factor),
            )
            return builder.build([*state, *self.stacked(results)])


def _grouped(x: Atom, begin: int, count: int, factor: int) -> Atom:
    """Return ``count`` slices of ``x`` from ``begin`` on, in groups of ``factor``.

    The result has the shape ``(count // factor, factor, ...)``.
    """
    shape = x.type.shape
    if count < shape[0]:
        x = slicing.slice_along(x, 0, begin, begin + count)
    return views.reshape(x, shape=(count // factor, factor, *shape[1:]))
