"""Simplifies loops and branches, and drops operands and results they do not need.

After it, for every loop and branch:

* the Programs inside are simplified, and literals are propagated into them;
* a carry that the body returns unchanged is a constant of the loop;
* operands that the body does not use, and results that nothing uses, are gone;
* a ``while_loop`` carries its condition as its last value, computed before the loop and
  in the body, so that its ``cond_program`` only returns it;
* loops without iterations, and branches selected by a literal, are gone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from arrayfn.ir import (
    ArrayType,
    Atom,
    Equation,
    Literal,
    Params,
    Program,
    Var,
)
from arrayfn.ir.builder import ProgramBuilder, current_builder, rename, rewritten
from arrayfn.passes.known_counts import known_trip_count
from arrayfn.primitives import views
from arrayfn.primitives.base import Control, has_effect, needed, primitive_of
from arrayfn.primitives.control_flow_scan import scan

Simplify = Callable[[Program], Program]


def simplify_control_flow(program: Program, simplify: Simplify) -> Program:
    """``program`` with every loop and branch simplified as the module describes.

    ``simplify`` runs the pipeline up to this pass on a Program inside.
    """
    if not any(_is_control(equation) for equation in program.equations):
        return program
    used = {a for eq in program.equations for a in eq.inputs} | {*program.outputs}

    def simplified(equation: Equation, operands: list[Atom]) -> Results | None:
        """What replaces a loop or cond; None keeps ``equation``."""
        if not _is_control(equation):
            return None
        is_used = [var in used for var in equation.outputs]
        rule = _RULES[equation.primitive.name]
        return rule(equation, operands, is_used, simplify)

    return rewritten(program, simplified)


def _is_control(equation: Equation) -> bool:
    """Whether ``equation`` is a loop or branch."""
    return isinstance(primitive_of(equation).kernel, Control)


Results = Sequence[Atom | None]
"""The value of each result of a loop or branch; None for one that nothing reads."""


class _Loop:
    """The parts of a loop, which ``narrow`` reduces to those that results need.

    Attributes:
        consts: ``(body input, operand)`` of each constant.
        carry: ``(body input, operand, body output)`` of each carry, by its index.
        xs: ``(body input, operand)`` of each sliced array.
        ys: the body output of each stacked result, by its index.
        is_used: whether anything reads each result.
        invariant: the results that equal an operand, by index.
    """

    def __init__(
        self,
        body: Program,
        consts: Sequence[Atom],
        carry: Sequence[Atom],
        xs: Sequence[Atom],
        is_used: Sequence[bool],
    ) -> None:
        first, second = len(consts), len(consts) + len(carry)
        inputs = body.inputs
        self.body = body
        self.consts = list(zip(inputs[:first], consts, strict=True))
        self.carry = {
            k: (value, operand, body.outputs[k])
            for k, (value, operand) in enumerate(
                zip(inputs[first:second], carry, strict=True)
            )
        }
        self.xs = list(zip(inputs[second:], xs, strict=True))
        self.ys = {k: body.outputs[k] for k in range(len(carry), len(body.outputs))}
        self.is_used = is_used
        self.invariant: dict[int, Atom] = {}

    def narrow(self, always: frozenset[int] = frozenset()) -> None:
        """Make constants of unchanged carries, and drop what no result needs.

        The carries in ``always`` stay.
        """
        for k, (value, operand, result) in list(self.carry.items()):
            if result is value:
                self.invariant[k] = operand
                self.consts.append((value, operand))
                del self.carry[k]
        live = self.live(always)
        self.carry = {k: c for k, c in self.carry.items() if c[0] in live or k in live}
        self.ys = {k: y for k, y in self.ys.items() if self.is_used[k]}
        self.consts = [(v, operand) for v, operand in self.consts if v in live]
        self.xs = [(v, operand) for v, operand in self.xs if v in live]

    def live(self, always: frozenset[int]) -> set[Var | Atom | int]:
        """What results need: Vars of the body, and the numbers of kept carries.

        The carries ``always`` are kept in any case.
        """
        kept = {k for k in self.carry if self.is_used[k] or k in always}
        while True:
            live: set[Var | Atom | int] = {
                y for k, y in self.ys.items() if self.is_used[k]
            }
            live |= {self.carry[k][2] for k in kept}
            for equation in reversed(self.body.equations):
                if any(var in live for var in equation.outputs) or has_effect(equation):
                    live.update(equation.inputs)
            added = {k for k, c in self.carry.items() if c[0] in live} - kept
            if not added:
                return live | kept
            kept |= added

    def program(self) -> Program:
        """The body of the reduced loop, with literal constants propagated."""
        if self._is_whole():
            return self.body
        builder = ProgramBuilder(self.body.name)
        environment: dict[Var, Atom] = {}
        with builder:
            for value, operand in self.consts:
                environment[value] = (
                    operand
                    if isinstance(operand, Literal)
                    else builder.input(value.type, value.hint)
                )
            for value in (
                *(value for value, _, _ in self.carry.values()),
                *(value for value, _ in self.xs),
            ):
                environment[value] = builder.input(value.type, value.hint)
            kept = {a for _, _, a in self.carry.values()} | {*self.ys.values()}
            for equation in needed(self.body.equations, kept):
                builder.replay(equation, environment)
            results = [a for _, _, a in self.carry.values()]
            outputs = [rename(a, environment) for a in (*results, *self.ys.values())]
        return builder.build(outputs)

    def _is_whole(self) -> bool:
        """Whether nothing of the body was dropped or propagated."""
        if any(isinstance(operand, Literal) for _, operand in self.consts):
            return False
        inputs = (
            *(value for value, _ in self.consts),
            *(value for value, _, _ in self.carry.values()),
            *(value for value, _ in self.xs),
        )
        outputs = (*(a for _, _, a in self.carry.values()), *self.ys.values())
        body = self.body
        return (
            inputs == body.inputs
            and outputs == body.outputs
            and len(needed(body.equations, outputs)) == len(body.equations)
        )

    def arrays(self) -> list[Atom]:
        """The constants that are inputs of ``program``."""
        return [operand for _, operand in self.consts if isinstance(operand, Var)]

    def results(self, outputs: Sequence[Var]) -> Results:
        """The result for each index, from the outputs of the reduced loop."""
        by_index = dict(zip((*self.carry, *self.ys), outputs, strict=True))
        return [
            by_index.get(k, self.invariant.get(k)) for k in range(len(self.is_used))
        ]


def _scan(
    equation: Equation,
    operands: Sequence[Atom],
    is_used: Sequence[bool],
    simplify: Simplify,
) -> Results:
    """The results of a scan, simplified.

    ``operands`` are the new ones, ``is_used`` says which results are read, and
    ``simplify`` runs the passes on a Program inside.
    """
    return _scanned(equation.params, equation.outputs, operands, is_used, simplify)


def _scanned(
    params: Params,
    outputs: Sequence[Var],
    operands: Sequence[Atom],
    is_used: Sequence[bool],
    simplify: Simplify,
) -> Results:
    """The results of a scan with these params and operands, simplified.

    It emits the scan of what the results that ``is_used`` marks need, or none if there
    is nothing to compute. ``outputs`` have the types of its results, and ``simplify``
    runs the passes on the body.
    """
    params = dict(params)
    carry_begin = params["consts"]
    xs_begin = carry_begin + params["carry"]
    if params["length"] == 0:
        return [
            *operands[carry_begin:xs_begin],
            *(views.zeros(var.type) for var in outputs[params["carry"] :]),
        ]
    body = simplify(params["program"])
    loop = _Loop(
        body,
        operands[:carry_begin],
        operands[carry_begin:xs_begin],
        operands[xs_begin:],
        is_used,
    )
    loop.narrow()
    params["program"] = simplify(loop.program())
    consts = loop.arrays()
    carry = [operand for _, operand, _ in loop.carry.values()]
    params["consts"], params["carry"] = len(consts), len(carry)
    has_effects = any(has_effect(equation) for equation in params["program"].equations)
    if not loop.carry and not loop.ys and not has_effects:
        return loop.results(())
    xs = [operand for _, operand in loop.xs]
    return loop.results(current_builder().emit(scan, [*consts, *carry, *xs], params))


def _while_loop(
    equation: Equation,
    operands: Sequence[Atom],
    is_used: Sequence[bool],
    simplify: Simplify,
) -> Results:
    """The results of a while_loop, simplified; a scan if its trip count is known.

    The parameters are those of ``_scan``.
    """
    params = equation.params
    first = params["cond_consts"]
    second = first + params["body_consts"]
    condition, body = simplify(params["cond_program"]), params["body_program"]
    is_rotated = _is_rotated(condition, body)
    body = simplify(body)
    cond_operands, body_operands, carry = (
        operands[:first],
        operands[first:second],
        operands[second:],
    )
    count = known_trip_count(condition, body, cond_operands, body_operands, carry)
    if count is not None:
        counted: Params = {
            "program": body,
            "length": count,
            "reverse": False,
            "consts": len(body_operands),
            "carry": len(carry),
            "unroll": 1,
        }
        return _scanned(counted, (), operands[first:], is_used, simplify)
    if is_rotated:
        rotated, flags = body, [*is_used]
    else:
        rotated = simplify(_rotated(condition, body, first))
        carry = [
            *carry,
            current_builder().inline(condition, [*cond_operands, *carry])[0],
        ]
        body_operands = [*cond_operands, *body_operands]
        flags = [*is_used, True]
    loop = _Loop(rotated, body_operands, carry, [], flags)
    last = len(carry) - 1
    loop.narrow(frozenset((last,)))
    program = simplify(loop.program())
    arrays = loop.arrays()
    state = [operand for _, operand, _ in loop.carry.values()]
    outputs = current_builder().emit(
        equation.primitive,
        [*arrays, *state],
        {
            "cond_program": _last_of([v.type for v in program.inputs[len(arrays) :]]),
            "body_program": program,
            "cond_consts": 0,
            "body_consts": len(arrays),
        },
    )
    return loop.results(outputs)[: len(is_used)]


def _is_rotated(condition: Program, body: Program) -> bool:
    """Whether the condition is the last carry, which the body does not read."""
    if condition.equations or condition.outputs[0] is not condition.inputs[-1]:
        return False
    value = body.inputs[-1]
    read = {a for equation in body.equations for a in equation.inputs}
    return value not in read and value not in body.outputs


def _rotated(condition: Program, body: Program, cond_consts: int) -> Program:
    """The body that also computes the condition, from the carries it returns."""
    builder = ProgramBuilder(body.name)
    with builder:
        fixed = [builder.input(v.type, v.hint) for v in condition.inputs[:cond_consts]]
        inputs = builder.inputs_of(body)
        builder.input(condition.outputs[0].type, "goes_on")
        state = builder.inline(body, inputs)
        (goes_on,) = builder.inline(condition, [*fixed, *state])
    return builder.build([*state, goes_on])


def _last_of(types: Sequence[ArrayType]) -> Program:
    """The condition Program that returns the last of carries of these ``types``."""
    builder = ProgramBuilder("goes_on")
    inputs = [builder.input(type) for type in types]
    return builder.build(inputs[-1:])


def _cond(
    equation: Equation,
    operands: Sequence[Atom],
    is_used: Sequence[bool],
    simplify: Simplify,
) -> Results:
    """The results of a branch, simplified; its body if the index is a literal.

    The parameters are those of ``_scan``.
    """
    index, *operands_of_branches = operands
    branches = [simplify(b) for b in equation.params["branches"]]
    if isinstance(index, Literal):
        assert not isinstance(index.value, complex)
        chosen = min(max(int(index.value), 0), len(branches) - 1)
        return current_builder().inline(branches[chosen], operands_of_branches)
    narrowed, used = [], set[int]()
    for branch in branches:
        loop = _Loop(branch, operands_of_branches, [], [], is_used)
        loop.narrow()
        live = {value for value, _ in loop.consts}
        used |= {k for k, value in enumerate(branch.inputs) if value in live}
    for branch in branches:
        loop = _Loop(branch, operands_of_branches, [], [], is_used)
        loop.consts = [c for k, c in enumerate(loop.consts) if k in used]
        loop.ys = {k: y for k, y in loop.ys.items() if is_used[k]}
        narrowed.append(simplify(loop.program()))
    arrays = [
        a
        for k, a in enumerate(operands_of_branches)
        if k in used and isinstance(a, Var)
    ]
    outputs = iter(
        current_builder().emit(
            equation.primitive, [index, *arrays], {"branches": tuple(narrowed)}
        )
    )
    return [next(outputs) if used else None for used in is_used]


_RULES: dict[
    str, Callable[[Equation, Sequence[Atom], Sequence[bool], Simplify], Results]
] = {"scan": _scan, "while_loop": _while_loop, "cond": _cond}
