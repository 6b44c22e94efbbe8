"""cond: the results of one of several Programs, selected by an index."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np

from arrayfn import dtypes
from arrayfn.ir import ArrayType, Atom, Equation, Program, Var
from arrayfn.ir.builder import ProgramBuilder, current_builder
from arrayfn.primitives import discrete, special, views
from arrayfn.primitives import elementwise as e
from arrayfn.primitives.assertions import has_check, only_if
from arrayfn.primitives.base import (
    OWN_VARIANCE,
    Atoms,
    Batched,
    Control,
    Dim,
    Dims,
    Linear,
    Operands,
    OverPrograms,
    Primitive,
    Sample,
    Tangents,
    WithTangents,
)
from arrayfn.primitives.control_flow import (
    Batch,
    Jvp,
    Parts,
    Split,
    Transpose,
    agreeing,
    arranged,
    cond_reference,
    cond_types,
    equation,
    selected,
    unselected,
)
from arrayfn.primitives.families import random_array
from arrayfn.primitives.rules import (
    as_list,
    mapped_axes_first,
    not_linear,
    not_none,
    repeated,
    with_nones,
)

Branches = tuple[Program, ...]


def _jvp(
    jvp: Jvp, primals: Atoms, tangents: Tangents, *, branches: Branches
) -> WithTangents:
    """The jvp rule: a cond of the branches' jvps on primals and tangents.

    An output has a tangent if it has one in any branch; the other branches return zeros
    for it.
    """
    wrt = [t is not None for t in tangents[1:]]
    count = len(branches[0].outputs)
    jvp_branches, varies = agreeing(
        branches, count, lambda branch, dense: jvp(branch, wrt, dense)
    )
    varying_tangents = not_none(tangents[1:])
    outputs = as_list(cond(*primals, *varying_tangents, branches=tuple(jvp_branches)))
    return outputs[:count], with_nones(outputs[count:], varies)


def _batch(
    batch: Batch, axis_size: int, inputs: Atoms, dims: Dims, *, branches: Branches
) -> Batched:
    """The batching rule: a cond of mapped branches.

    If the index is mapped, members may take different branches: all branches are
    computed, and each member selects its results.
    """
    index, *operands = mapped_axes_first(inputs, dims)
    mapped = [dim is not None for dim in dims[1:]]
    if dims[0] is not None:
        return _batch_by_selection(batch, axis_size, index, operands, mapped, branches)
    batched_branches, varies = agreeing(
        branches,
        len(branches[0].outputs),
        lambda branch, dense: batch(branch, axis_size, mapped, dense),
    )
    outputs = as_list(cond(index, *operands, branches=tuple(batched_branches)))
    return outputs, [0 if v else None for v in varies]


_FEW: Final = 1024  # elements of an operand that is cheap to repeat for all members


def _batch_by_selection(
    batch: Batch,
    size: int,
    index: Atom,
    operands: Sequence[Atom],
    mapped: Sequence[bool],
    branches: Branches,
) -> Batched:
    """Compute all branches; each of ``size`` members selects its branch's results.

    ``index`` is the vector of the members' indices. ``operands`` have the mapped axis
    in front where ``mapped`` says so; ``batch`` maps a branch over it.

    A branch must contribute no derivative for members that did not select it: such a
    derivative may be infinite, and its product with 0 is NaN. So a branch reads each
    differentiable operand through ``where(is_chosen, x, stop_gradient(x))``. Operands
    that are not mapped are repeated for this, except large ones, which stay unguarded.

    Checks in a branch count only for members that select it. An operand that all
    branches return unchanged is returned directly.
    """
    guarded = [
        isinstance(x, Var)
        and x.type.dtype in dtypes.DIFFERENTIABLE
        and (m or x.type.size <= _FEW)
        for x, m in zip(operands, mapped, strict=True)
    ]
    mapped_or_guarded = [g or m for g, m in zip(guarded, mapped, strict=True)]
    repeated_operands = [
        repeated(size, x, 0 if m else None) if g else x
        for x, m, g in zip(operands, mapped, guarded, strict=True)
    ]
    count, last = len(branches[0].outputs), len(branches) - 1
    results: list[list[Atom]] = []
    for number, branch in enumerate(branches):
        checked = has_check(branch)
        # only_if adds a first input, which is mapped.
        flags = [True] if checked else []
        program, _ = batch(
            only_if(branch) if checked else branch,
            size,
            [*flags, *mapped_or_guarded],
            [True] * count,
        )
        # Indices are clamped: the first and the last branch take all beyond them.
        is_chosen = (
            discrete.le(index, 0)
            if number == 0
            else (discrete.eq if number < last else discrete.ge)(index, number)
        )
        read_inputs = {a for inner in branch.equations for a in inner.inputs}
        guarded_operands = [
            _where(is_chosen, x, views.stop_gradient(x))
            if g and v in read_inputs
            else x
            for x, g, v in zip(repeated_operands, guarded, branch.inputs, strict=True)
        ]
        branch_operands = (
            [is_chosen, *guarded_operands] if checked else guarded_operands
        )
        results.append(current_builder().inline(program, branch_operands))
    outputs: list[Atom] = []
    dims: list[Dim] = []
    for number, values in enumerate(zip(*results, strict=True)):
        passed = {_passed_on(branch, number) for branch in branches}
        source = passed.pop() if len(passed) == 1 else None
        outputs.append(_chosen(index, values) if source is None else operands[source])
        dims.append(0 if source is None or mapped[source] else None)
    return outputs, dims


def _passed_on(program: Program, number: int) -> int | None:
    """Return the number of the input that ``program`` returns as output ``number``.

    The input may pass through calls, branches and loops that do not change it. Returns
    None if the output is not an unchanged input.
    """
    definitions = {
        var: (equation, k)
        for equation in program.equations
        for k, var in enumerate(equation.outputs)
    }
    output: Atom | None = program.outputs[number]
    while output in definitions:
        output = _unchanged(*definitions[output])
    return next((k for k, v in enumerate(program.inputs) if v is output), None)


def _unchanged(equation: Equation, number: int) -> Atom | None:
    """Return the operand that a call, cond or loop returns unchanged as an output.

    ``number`` is the number of the output. Returns None if the output may differ from
    every operand.
    """
    params: dict[str, Any] = dict(equation.params)
    # Input k of the Programs is operand first + k. A loop leaves carry ``number``
    # unchanged if its body returns its own input for that carry, number ``own``.
    first, own = 0, None
    match equation.primitive.name:
        case "operator_call":
            programs = [params["body"]]
        case "cond":
            programs, first = params["branches"], 1
        case "scan" if number < params["carry"]:
            programs, own = [params["program"]], params["consts"] + number
        case "while_loop":
            programs, own = [params["body_program"]], params["body_consts"] + number
            first = params["cond_consts"]
        case _:
            return None
    positions = {_passed_on(program, number) for program in programs}
    position = positions.pop() if len(positions) == 1 else None
    if position is None or own not in (None, position):
        return None
    return equation.inputs[first + position]


def _where(flags: Atom, x: Atom, y: Atom) -> Atom:
    """Select slices along axis 0: of ``x`` where ``flags`` are True, else of ``y``.

    ``flags`` is a bool vector with an entry for each slice of ``x`` and ``y``, which
    have the same shape.
    """
    if x.type.ndim > 1:
        flags = views.broadcast_in_dim(flags, shape=x.type.shape, axes=(0,))
    return e.select(flags, x, y)


def _chosen(index: Atom, values: Sequence[Atom]) -> Atom:
    """Select slice k of ``values[index[k]]`` along axis 0, for each k.

    ``index`` is an int32 vector, whose elements are clamped; all of ``values``, one
    array for each branch, have the same shape.
    """
    result = values[-1]
    for number in reversed(range(len(values) - 1)):
        result = _where(discrete.le(index, number), values[number], result)
    return result


# Reverse mode.


def _split(
    split: Split, whole: Equation, unknown: Sequence[bool]
) -> tuple[list[Equation], list[Equation]]:
    """Split a cond into a known cond and a linear cond, by ``unknown`` operands.

    The known cond takes the known operands, and returns the known outputs and the
    residuals. It is left out if it would return nothing. The linear cond takes the
    index, known operands, residuals and unknown operands, and returns the other
    outputs. Returns the equations as two lists.
    """
    branches: Branches = whole.params["branches"]
    index, operands, unknown_operands = whole.inputs[0], whole.inputs[1:], unknown[1:]

    def split_branch(branch: Program, linear: list[bool]) -> tuple[Parts, list[bool]]:
        """Split a branch; also return which of its outputs are unknown."""
        parts = split(branch, unknown_operands, linear)
        return parts, parts.unknown

    parts, varies = agreeing(branches, len(whole.outputs), split_branch)
    known_operands = unselected(operands, unknown_operands)
    slots = _Slots(parts, known_operands)
    known_outputs = unselected(whole.outputs, varies)
    known: list[Equation] = []
    if known_outputs or slots.vars:
        known_branches = tuple(slots.known(part, len(known_outputs)) for part in parts)
        known.append(
            equation(
                cond,
                [index, *known_operands],
                {"branches": known_branches},
                [*known_outputs, *slots.vars],
                whole,
            )
        )
    linear = equation(
        cond,
        [index, *known_operands, *slots.vars, *selected(operands, unknown_operands)],
        {"branches": tuple(slots.linear(part) for part in parts)},
        selected(whole.outputs, varies),
        whole,
    )
    return known, [linear]


class _Slots:
    """The additional outputs ("slots") in which a known cond returns its residuals.

    All branches must return the same number of values of the same types. Residuals of
    equal type in different branches share a slot; a branch that does not use a slot
    fills it with zeros. Residuals that are known operands need no slot: the linear cond
    reads these operands directly.

    Attributes:
        operands: the known operands of the cond.
        types: the type of each slot.
        vars: the Var of each slot in the outer Program.
    """

    def __init__(self, parts: Sequence[Parts], operands: Sequence[Atom]) -> None:
        """Make enough slots for the residuals of each branch, listed in ``parts``.

        Each residual takes a free slot of its type, or else adds one.
        """
        self.operands = operands
        self.types: list[ArrayType] = []
        for p in parts:
            free = list(range(len(self.types)))  # slots that this branch may use
            for var in _own_residuals(p):
                form = (var.type.shape, var.type.dtype, var.type.varying)
                for slot in free:
                    slot_type = self.types[slot]
                    if (slot_type.shape, slot_type.dtype, slot_type.varying) == form:
                        free.remove(slot)
                        break
                else:
                    # ``with_shape`` gives a row-major type that is not weak.
                    type = var.type.with_shape(var.type.shape)
                    self.types.append(type.with_varying(var.type.varying))
        self.vars = [Var(t) for t in self.types]

    def _residual_of_slot(self, p: Parts) -> dict[int, int]:
        """Map each slot that the branch ``p`` fills to the number of its residual.

        Residuals take the first free slot of their type, in order.
        """
        free = list(range(len(self.types)))
        residual_of_slot: dict[int, int] = {}
        for number, var in enumerate(p.residual_outputs):
            if var in p.known.inputs:
                continue
            form = (var.type.shape, var.type.dtype)
            slot = next(
                s for s in free if (self.types[s].shape, self.types[s].dtype) == form
            )
            free.remove(slot)
            residual_of_slot[slot] = number
        return residual_of_slot

    def known(self, p: Parts, outputs: int) -> Program:
        """Return the known part of a branch, with a value for every slot.

        The result returns the first ``outputs`` results of ``p.known``, then the slots.
        Slots that this branch does not use hold zeros.
        """
        residual_of_slot = self._residual_of_slot(p)
        builder = ProgramBuilder(p.known.name)
        with builder:
            results = builder.inline(p.known, builder.inputs_of(p.known))
            residuals = results[len(results) - p.residuals :]
            filled = [
                residuals[residual_of_slot[slot]]
                if slot in residual_of_slot
                else views.zeros(t)
                for slot, t in enumerate(self.types)
            ]
            return builder.build([*results[:outputs], *filled])

    def linear(self, p: Parts) -> Program:
        """Return the branch of the linear cond, the linear part of ``p``.

        The result takes the known operands, all slots, and the unknown operands. Inputs
        that this branch does not read get unused Vars.
        """
        residual_of_slot = self._residual_of_slot(p)
        inner = p.linear.inputs  # all residuals, then the unknown operands
        # The known operands that are residuals, with the residual's number.
        read = {
            var: number
            for number, var in enumerate(p.residual_outputs)
            if var in p.known.inputs
        }
        operands = [
            inner[read[v]] if v in read else Var(v.type) for v in p.known.inputs
        ]
        filled = [
            inner[residual_of_slot[slot]] if slot in residual_of_slot else Var(t)
            for slot, t in enumerate(self.types)
        ]
        return arranged(
            p.linear,
            [*operands, *filled, *inner[p.residuals :]],
            p.linear.outputs,
        )


def _own_residuals(p: Parts) -> list[Var]:
    """Return the residuals of ``p`` that are not inputs of its known part."""
    inputs = p.known.inputs
    return [v for v in p.residual_outputs if isinstance(v, Var) and v not in inputs]


def _transpose(
    transpose: Transpose, cotangents: Tangents, inputs: Operands, *, branches: Branches
) -> Tangents:
    """The transpose rule: a cond of the branches' transposes on the cotangents.

    A linear operand has a cotangent if it has one in any branch; the other branches
    return zeros for it.
    """
    index, *operands = inputs
    assert not isinstance(index, Linear)
    linear = [isinstance(x, Linear) for x in operands]
    given_cotangents = [ct is not None for ct in cotangents]
    transposed_branches, has_cotangent = agreeing(
        branches,
        sum(linear),
        lambda branch, dense: transpose(branch, linear, given_cotangents, dense),
    )
    known = not_linear(operands)
    results: list[Atom] = []
    if any(has_cotangent):
        outputs = cond(
            index, *known, *not_none(cotangents), branches=tuple(transposed_branches)
        )
        results = as_list(outputs)
    return [None, *with_nones(with_nones(results, has_cotangent), linear)]


# Samples.


def _sample_branches() -> Branches:
    """Return three branches of two vectors, for samples."""
    vector = ArrayType((3,), dtypes.float32)

    def branch(name: str, which: int) -> Program:
        """Build the Program of branch number ``which``."""
        builder = ProgramBuilder(name)
        with builder:
            x, y = builder.input(vector), builder.input(vector)
            product = e.mul(special.sin(x), y)
            return builder.build(
                [(product, y), (e.mul(product, x), x), (y, e.square(y))][which]
            )

    return branch("first", 0), branch("second", 1), branch("third", 2)


def _samples() -> Iterable[Sample]:
    """Yield a cond for each of three branches, for the table tests."""
    x = random_array(dtypes.float32, (3,), 74, -2.0, 2.0)
    y = random_array(dtypes.float32, (3,), 75, -2.0, 2.0)
    for index in range(3):
        branches = _sample_branches()
        yield Sample((np.asarray(index, np.int32), x, y), {"branches": branches})


cond = Primitive(
    name="cond",
    family="control",
    types=cond_types,
    variance=OWN_VARIANCE,
    reference=cond_reference,
    kernel=Control(),
    jvp=OverPrograms(_jvp),
    transpose=OverPrograms(_transpose),
    batch=OverPrograms(_batch),
    split=OverPrograms(_split),
    samples=_samples,
    doc="The results of one of several Programs, selected by an index.",
)
