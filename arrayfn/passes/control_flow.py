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
from collections.abc import Set as AbstractSet
from typing import NamedTuple

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
Results = Sequence[Atom | None]
"""The value of each result of a loop or branch; None for one that nothing reads."""


def simplify_control_flow(program: Program, simplify: Simplify) -> Program:
    """Simplify every loop and branch of ``program`` as the module describes.

    ``c, n = scan(f, (c, n), xs)`` becomes ``c = scan(g, c, xs)`` if ``f`` returns ``n``
    unchanged. ``simplify`` runs the passes on a Program inside.
    """
    if not any(_is_control(equation) for equation in program.equations):
        return program
    read = {a for eq in program.equations for a in eq.inputs} | {*program.outputs}

    def simplified(equation: Equation, operands: list[Atom]) -> Results | None:
        """Emit a simplified loop or branch; None leaves ``equation`` as it is."""
        if not _is_control(equation):
            return None
        is_used = [var in read for var in equation.outputs]
        rule = _RULES[equation.primitive.name]
        return rule(equation, operands, is_used, simplify)

    return rewritten(program, simplified)


def _is_control(equation: Equation) -> bool:
    """Whether ``equation`` is a loop or branch."""
    return isinstance(primitive_of(equation).kernel, Control)


class _Carry(NamedTuple):
    """A carry of a loop: its initial value, and its input and output of the body."""

    input: Var
    initial: Atom
    output: Atom


class _Loop:
    """A loop that is being reduced: ``narrow`` drops what its used results do not need.

    A branch of a ``cond`` is a loop without carry and slices: its operands are
    ``consts`` and its results ``ys``.

    Attributes:
        consts: ``(body input, operand)`` of each constant.
        carry: each carry, by its index.
        xs: ``(body input, operand)`` of each sliced array.
        ys: the body output of each stacked result, by its index among all results.
        is_used: for each result, whether anything reads it.
        invariant: the operand that a result equals, by the result's index.
    """

    def __init__(
        self,
        body: Program,
        consts: Sequence[Atom],
        carry: Sequence[Atom],
        xs: Sequence[Atom],
        is_used: Sequence[bool],
    ) -> None:
        """Pair inputs of ``body`` with the operands, and outputs with their results."""
        carry_begin, xs_begin = len(consts), len(consts) + len(carry)
        inputs = body.inputs
        self.body = body
        self.consts = list(zip(inputs[:carry_begin], consts, strict=True))
        # The outputs of the body that are not carries are stacked results.
        carries = zip(inputs[carry_begin:xs_begin], carry, body.outputs, strict=False)
        self.carry = {k: _Carry(*carry) for k, carry in enumerate(carries)}
        self.xs = list(zip(inputs[xs_begin:], xs, strict=True))
        self.ys = {k: body.outputs[k] for k in range(len(carry), len(body.outputs))}
        self.is_used = is_used
        self.invariant: dict[int, Atom] = {}

    def narrow(self, always: frozenset[int] = frozenset()) -> None:
        """Turn unchanged carries into constants, and drop what no used result needs.

        The carries in ``always`` stay.
        """
        for k, carry in list(self.carry.items()):
            if carry.output is carry.input:
                self.invariant[k] = carry.initial
                self.consts.append((carry.input, carry.initial))
                del self.carry[k]
        self.ys = {k: y for k, y in self.ys.items() if self.is_used[k]}
        kept = {k for k in self.carry if self.is_used[k] or k in always}
        live = self.live(kept)
        # A kept carry may read further carries; keep these, too, to a fixed point.
        while read := {k for k, c in self.carry.items() if c.input in live} - kept:
            kept |= read
            live = self.live(kept)
        self.carry = {k: c for k, c in self.carry.items() if k in kept}
        self.consts = [(v, operand) for v, operand in self.consts if v in live]
        self.xs = [(v, operand) for v, operand in self.xs if v in live]

    def live(self, kept: AbstractSet[int]) -> set[Atom]:
        """Return the Atoms of the body that the carries ``kept`` and ``ys`` depend on.

        What equations with effects read is among them.
        """
        live = {*self.ys.values(), *(self.carry[k].output for k in kept)}
        for equation in reversed(self.body.equations):
            if any(var in live for var in equation.outputs) or has_effect(equation):
                live.update(equation.inputs)
        return live

    def program(self) -> Program:
        """Return the body of the reduced loop, with literal constants substituted.

        It is the original body if nothing changed.
        """
        body = self.body
        literals: dict[Var, Atom] = {
            v: operand for v, operand in self.consts if isinstance(operand, Literal)
        }
        inputs = (
            *(v for v, _ in self.consts if v not in literals),
            *(c.input for c in self.carry.values()),
            *(v for v, _ in self.xs),
        )
        outputs = (*(c.output for c in self.carry.values()), *self.ys.values())
        equations = needed(body.equations, outputs)
        is_whole = inputs == body.inputs and outputs == body.outputs
        if is_whole and len(equations) == len(body.equations):
            return body
        with ProgramBuilder(body.name) as builder:
            environment = {v: builder.input(v.type, v.hint) for v in inputs} | literals
            for equation in equations:
                builder.replay(equation, environment)
            return builder.build([rename(a, environment) for a in outputs])

    def arrays(self) -> list[Atom]:
        """Return the constants that are inputs of ``program``."""
        return [operand for _, operand in self.consts if isinstance(operand, Var)]

    def results(self, outputs: Sequence[Var]) -> Results:
        """Return the original loop's results, given ``outputs`` of the reduced one.

        An unchanged carry is the operand; a dropped result is None.
        """
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
    """Emit a simplified scan and return its results.

    ``operands`` are those in the new Program, ``is_used`` says which results are read,
    and ``simplify`` runs the passes on a Program inside.
    """
    return _emit_scan(equation.params, equation.outputs, operands, is_used, simplify)


def _emit_scan(
    params: Params,
    outputs: Sequence[Var],
    operands: Sequence[Atom],
    is_used: Sequence[bool],
    simplify: Simplify,
) -> Results:
    """Emit a simplified scan with these params and operands; return its results.

    No scan is emitted for a ``length`` of 0, whose stacked results are empty, or if all
    results are unchanged carries. Of ``outputs`` only the types of stacked results are
    read. ``is_used`` and ``simplify`` are those of ``_scan``.
    """
    params = dict(params)
    carry_begin = params["consts"]
    xs_begin = carry_begin + params["carry"]
    if params["length"] == 0:
        return [
            *operands[carry_begin:xs_begin],
            *(views.zeros(var.type) for var in outputs[params["carry"] :]),
        ]
    # Simplified before, so that unused values are seen, and after constants are known.
    body = simplify(params["program"])
    loop = _Loop(
        body,
        consts=operands[:carry_begin],
        carry=operands[carry_begin:xs_begin],
        xs=operands[xs_begin:],
        is_used=is_used,
    )
    loop.narrow()
    params["program"] = simplify(loop.program())
    consts = loop.arrays()
    carry = [carry.initial for carry in loop.carry.values()]
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
    """Emit a simplified while_loop, or a scan if the trip count is known.

    Returns the results. The parameters are those of ``_scan``. The loop is rotated (see
    ``_rotated``): ``while c(x): x = f(x)`` becomes
    ``go = c(x); while go: x = f(x); go = c(x)``.
    """
    params = equation.params
    body_begin = params["cond_consts"]
    carry_begin = body_begin + params["body_consts"]
    condition, body = simplify(params["cond_program"]), params["body_program"]
    is_rotated = _is_rotated(condition, body)
    body = simplify(body)
    cond_operands = operands[:body_begin]
    body_operands = operands[body_begin:carry_begin]
    carry = operands[carry_begin:]
    count = known_trip_count(condition, body, cond_operands, body_operands, carry)
    if count is not None:
        scan_params: Params = {
            "program": body,
            "length": count,
            "reverse": False,
            "consts": len(body_operands),
            "carry": len(carry),
            "unroll": 1,
        }
        # A while_loop has no stacked results, whose types ``outputs`` would give.
        return _emit_scan(
            scan_params,
            outputs=(),
            operands=operands[body_begin:],
            is_used=is_used,
            simplify=simplify,
        )
    if is_rotated:
        loop = _Loop(body, body_operands, carry, xs=[], is_used=is_used)
    else:
        # The condition before the first iteration is computed before the loop.
        arguments = [*cond_operands, *carry]
        (goes_on,) = current_builder().inline(condition, arguments)
        loop = _Loop(
            simplify(_rotated(condition, body, len(cond_operands))),
            [*cond_operands, *body_operands],
            [*carry, goes_on],
            xs=[],
            is_used=[*is_used, True],
        )
    loop.narrow(always=frozenset((len(loop.carry) - 1,)))  # the condition stays
    program = simplify(loop.program())
    arrays = loop.arrays()
    state = [carry.initial for carry in loop.carry.values()]
    new_params = {
        "cond_program": _last_of([v.type for v in program.inputs[len(arrays) :]]),
        "body_program": program,
        "cond_consts": 0,
        "body_consts": len(arrays),
    }
    outputs = current_builder().emit(equation.primitive, [*arrays, *state], new_params)
    return loop.results(outputs)[: len(is_used)]


def _is_rotated(condition: Program, body: Program) -> bool:
    """Whether the condition of a loop is just its last carry.

    The body computes that carry but does not read it: see ``_rotated``.
    """
    if condition.equations or condition.outputs[0] is not condition.inputs[-1]:
        return False
    value = body.inputs[-1]
    read = {a for equation in body.equations for a in equation.inputs}
    return value not in read and value not in body.outputs


def _rotated(condition: Program, body: Program, cond_consts: int) -> Program:
    """Extend ``body`` to compute the condition of the next iteration as last output.

    The extended body takes the first ``cond_consts`` inputs of ``condition``, which are
    constants of the loop; the inputs of ``body``; and the condition as the last carry,
    which it does not read.
    """
    with ProgramBuilder(body.name) as builder:
        consts = [builder.input(v.type, v.hint) for v in condition.inputs[:cond_consts]]
        inputs = builder.inputs_of(body)
        builder.input(condition.outputs[0].type, "goes_on")
        state = builder.inline(body, inputs)
        (goes_on,) = builder.inline(condition, [*consts, *state])
        return builder.build([*state, goes_on])


def _last_of(types: Sequence[ArrayType]) -> Program:
    """Return a condition Program that returns the last of carries of ``types``."""
    builder = ProgramBuilder("goes_on")
    inputs = [builder.input(type) for type in types]
    return builder.build(inputs[-1:])


def _cond(
    equation: Equation,
    operands: Sequence[Atom],
    is_used: Sequence[bool],
    simplify: Simplify,
) -> Results:
    """Emit a simplified branch, or its chosen body if the index is a literal.

    Returns the results. The parameters are those of ``_scan``. Like ``cond``, a literal
    index is clamped to the number of branches.
    """
    index, *operands_of_branches = operands
    branches = [simplify(b) for b in equation.params["branches"]]
    if isinstance(index, Literal):
        assert not isinstance(index.value, complex)
        chosen = min(max(int(index.value), 0), len(branches) - 1)
        return current_builder().inline(branches[chosen], operands_of_branches)
    # A branch is taken for the body of a loop that has only constants.
    loops = [
        _Loop(b, operands_of_branches, carry=[], xs=[], is_used=is_used)
        for b in branches
    ]
    used_operands = set[int]()  # by any branch: all branches take the same
    for loop in loops:
        loop.narrow()
        live = {value for value, _ in loop.consts}
        used_operands |= {k for k, v in enumerate(loop.body.inputs) if v in live}
    numbers = sorted(used_operands)
    for loop in loops:
        inputs = loop.body.inputs
        loop.consts = [(inputs[k], operands_of_branches[k]) for k in numbers]
    narrowed = tuple(simplify(loop.program()) for loop in loops)
    outputs = current_builder().emit(
        equation.primitive, [index, *loops[0].arrays()], {"branches": narrowed}
    )
    return loops[0].results(outputs)


_RULES: dict[
    str, Callable[[Equation, Sequence[Atom], Sequence[bool], Simplify], Results]
] = {"scan": _scan, "while_loop": _while_loop, "cond": _cond}
