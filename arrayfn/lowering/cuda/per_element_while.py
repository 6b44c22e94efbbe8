"""Turns a ``while_loop`` that ``vmap`` has mapped into a while loop per element.

The mapped loop iterates until all elements have finished, and keeps the values of those
that have: ``select(goes_on, following, current)``. If the body is elementwise, each
element gets a thread with a loop of its own, which ends when that element has finished:
no thread waits for another, and the condition need not be reduced over all elements.
"""

from __future__ import annotations

from collections.abc import Sequence

from arrayfn.ir import Equation, Program, Var, entry_of
from arrayfn.lowering.control_flow import (
    Block,
    Reads,
    carried_values,
    operand_array,
    result_array,
)
from arrayfn.lowering.in_place import Storage
from arrayfn.lowering.steps import LoopStep, NestStep, PlanStep
from arrayfn.records import frozen


@frozen
class PerElementWhile:
    """The body of a loop for one element, without the reduction of the condition.

    ``mask`` is the number of the carried value that is the element's own condition.
    """

    body: Program
    mask: int


def per_element_while(equation: Equation) -> PerElementWhile | None:
    """Rewrite the mapped ``equation`` as a while loop for each element.

    The body must be as ``vmap`` leaves it: its last output is ``any(mask)``, where the
    carried ``mask`` is ``and``-ed with its current value, so that no element goes on
    after it has finished; the other carried values are kept for elements that have
    finished, and have the shape of ``mask``. Returns None for any other equation.
    """
    if equation.primitive.name != "while_loop":
        return None
    body: Program = equation.params["body_program"]
    consts: int = equation.params["body_consts"]
    current = body.inputs[consts:-1]
    *following, goes_on = body.outputs
    definitions = body.definitions()
    reduction = entry_of(goes_on, definitions)
    if reduction is None or reduction.primitive.name != "reduce_or":
        return None
    # The condition of each element, which is reduced to that of the mapped loop.
    mask = reduction.inputs[0]
    if mask not in following or reduction.outputs[0].type.ndim:
        return None
    number = following.index(mask)
    current_mask = current[number]
    combined = entry_of(mask, definitions)
    if combined is None or combined.primitive.name != "and":
        return None
    if current_mask not in combined.inputs:
        return None  # an element that has finished might go on
    if any(var.type.shape != mask.type.shape for var in current) or not all(
        k == number or _keeps_finished(value, current_mask, current[k], definitions)
        for k, value in enumerate(following)
    ):
        return None
    equations = tuple(eq for eq in body.equations if eq is not reduction)
    # The reduced condition may have no other use, as it is dropped.
    if any(goes_on in eq.inputs for eq in equations) or goes_on in following:
        return None
    rest = Program(body.name, body.inputs[:-1], equations, tuple(following))
    return PerElementWhile(rest, number)


def _keeps_finished(
    value: object, mask: object, current: Var, definitions: dict[Var, Equation]
) -> bool:
    """Return whether ``value`` equals ``current`` for elements that have finished.

    These are the elements whose ``mask`` is False: ``value`` must be ``current``
    itself, or ``select(mask, ..., current)``. ``definitions`` has the equation that
    makes each Var of the loop's body.
    """
    if value is current:
        return True
    chosen = entry_of(value, definitions)
    if chosen is None or chosen.primitive.name != "select":
        return False
    return chosen.inputs[0] is mask and chosen.inputs[2] is current


def loop_of(
    equation: Equation,
    found: PerElementWhile,
    reads: Reads,
    storage: Storage,
    block: Block,
) -> LoopStep:
    """Make the step of a loop per element, whose predicate is one element's condition.

    Args:
        equation: The ``while_loop``.
        found: Its body for one element.
        reads: Where each operand lies.
        storage: Says which array's memory an array has. The constants of the body are
            recorded to have the memory of the equation's operands.
        block: Makes the steps of a Program.
    """
    body, consts = found.body, equation.params["body_consts"]
    # The last operand is the reduced condition.
    operands = [operand_array(atom, reads) for atom in equation.inputs[:-1]]
    for inner, outer in zip(body.inputs[:consts], operands[:consts], strict=True):
        storage.put(inner, into=outer)
    outputs = [result_array(atom) for atom in body.outputs]
    steps = block(body)
    results = list(equation.outputs[:-1])
    inner = body.inputs[consts:]
    carries = carried_values(inner, outputs, operands[consts:], results)
    predicate = inner[found.mask]  # the carried condition of the element
    return LoopStep(
        steps,
        count=None,
        predicate=predicate,
        slices=[],
        carries=carries,
        operands=operands,
        results=results,
        outputs=outputs,
    )


def without_unread(
    steps: Sequence[PlanStep], outputs: Sequence[Var], storage: Storage
) -> list[PlanStep]:
    """Drop the nests whose results neither another step nor ``outputs`` needs.

    ``storage`` says which array's memory an array has.
    """
    needed = {storage.of(var) for var in outputs}
    kept: list[PlanStep] = []
    for step in reversed(steps):
        if isinstance(step, NestStep) and not any(
            storage.of(var) in needed for var in step.writes
        ):
            continue
        needed.update(storage.of(var) for var in step.arrays())
        kept.append(step)
    return kept[::-1]
