"""Loops and branches as steps of a plan, over the arrays outside their Programs.

In: an equation as the passes leave it. The operands lie row-major; a ``while_loop``'s
condition is the last value that it carries, so that its body computes it and the
runtime only reads it. Out: a step whose body is lowered as any Program is, with kernels
of the same table. Nothing is copied on the way in: a loop's constants are the arrays
outside, a slice of ``xs`` or ``ys`` is a pointer into the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from arrayfn.ir import Atom, Equation, Program, Var
from arrayfn.lowering.in_place import Storage
from arrayfn.lowering.steps import (
    BranchStep,
    CarriedValue,
    LoopStep,
    PlanStep,
    SliceOf,
)
from arrayfn.passes.aliasing import branched_in_place
from arrayfn.passes.reads import Reads

Block = Callable[[Program], list[PlanStep]]
"""Lowers the Program of a body to its steps."""


def control_step(
    equation: Equation, reads: Reads, storage: Storage, block: Block
) -> LoopStep | BranchStep:
    """Lower a ``scan``, ``while_loop`` or ``cond`` to a step.

    Args:
        equation: the loop or branch, as the passes leave it.
        reads: the array and index map behind each operand.
        storage: where arrays lie, which this extends to Vars inside.
        block: lowers a Program inside to steps.
    """
    operands = [operand_array(atom, reads) for atom in equation.inputs]
    rule = {"scan": _scan, "while_loop": _while_loop, "cond": _cond}
    return rule[equation.primitive.name](equation, operands, storage, block)


def operand_array(atom: Atom, reads: Reads) -> Var:
    """Return the array that holds the operand ``atom`` of a loop or branch.

    The operand is row-major and begins at the array's first element: the layout pass
    copies other operands. It need not be the whole array, but may be its first rows, or
    a reshape.
    """
    assert isinstance(atom, Var)
    return reads[atom].base


def _scan(
    equation: Equation, operands: Sequence[Var], storage: Storage, block: Block
) -> LoopStep:
    """Lower a scan: a loop of known length, with pointers that advance as its slices.

    ``operands`` are the arrays of the equation's operands: constants, carry, arrays to
    slice.
    """
    params = equation.params
    program: Program = params["program"]
    length: int = params["length"]
    consts: int = params["consts"]
    carry: int = params["carry"]
    # The body reads the loop's constants where they lie outside.
    for inner, outer in zip(program.inputs[:consts], operands[:consts], strict=True):
        storage.put(inner, into=outer)
    body = block(program)
    xs_begin = consts + carry
    outputs = [result_array(atom) for atom in program.outputs]
    # Slices of the operands that are read, and of the stacked results.
    pairs = [
        *zip(program.inputs[xs_begin:], operands[xs_begin:], strict=True),
        *zip(outputs[carry:], equation.outputs[carry:], strict=True),
    ]
    slices: list[SliceOf] = []
    for inner, outer in pairs:
        stride = inner.type.nbytes
        offset, step = 0, stride
        if params["reverse"]:
            offset, step = (length - 1) * stride, -stride
        slices.append(SliceOf(inner, outer, offset, step))
    carries = carried_values(
        program.inputs[consts:xs_begin],
        outputs[:carry],
        operands[consts:xs_begin],
        equation.outputs[:carry],
    )
    results = list(equation.outputs)
    return LoopStep(
        body,
        count=length,
        predicate=None,
        slices=slices,
        carries=carries,
        operands=list(operands),
        results=results,
        outputs=outputs,
    )


def _while_loop(
    equation: Equation, operands: Sequence[Var], storage: Storage, block: Block
) -> LoopStep:
    """Lower a while_loop, which runs while the last carry, a bool, is True.

    ``operands`` are the arrays of the body's constants and the carry.
    """
    params = equation.params
    program: Program = params["body_program"]
    consts: int = params["body_consts"]
    assert params["cond_consts"] == 0
    for inner, outer in zip(program.inputs[:consts], operands[:consts], strict=True):
        storage.put(inner, into=outer)
    outputs = [result_array(atom) for atom in program.outputs]
    # The body does not read the condition: the next one is written over it.
    storage.put(program.inputs[-1], into=outputs[-1])
    body = block(program)
    carries = carried_values(
        program.inputs[consts:], outputs, operands[consts:], equation.outputs
    )
    results = list(equation.outputs)
    return LoopStep(
        body,
        count=None,
        predicate=results[-1],
        slices=[],
        carries=carries,
        operands=list(operands),
        results=results,
        outputs=outputs,
    )


def carried_values(
    inputs: Sequence[Var],
    outputs: Sequence[Var],
    initials: Sequence[Var],
    results: Sequence[Var],
) -> list[CarriedValue]:
    """Match the Vars of a loop's carries: one CarriedValue for each.

    ``inputs`` and ``outputs`` are Vars of the body, ``initials`` and ``results`` those
    outside of the loop.
    """
    values = zip(inputs, outputs, initials, results, strict=True)
    return [CarriedValue(*value) for value in values]


def _cond(
    equation: Equation, operands: Sequence[Var], storage: Storage, block: Block
) -> BranchStep:
    """Lower a ``cond``, whose branches write into the arrays of the equation's outputs.

    ``operands`` are the arrays of the index and of the branches' operands.
    """
    index, *arguments = operands
    for number, position in branched_in_place(equation).items():
        storage.put(arguments[position], into=equation.outputs[number])
    blocks: list[list[PlanStep]] = []
    programs: tuple[Program, ...] = equation.params["branches"]
    for program in programs:
        for inner, outer in zip(program.inputs, arguments, strict=True):
            storage.put(inner, into=outer)
        for atom, result in zip(program.outputs, equation.outputs, strict=True):
            storage.put(result_array(atom), into=result)
        with storage.keeping(equation.outputs):
            blocks.append(block(program))
    return BranchStep(index, blocks, arguments, list(equation.outputs))


def result_array(atom: Atom) -> Var:
    """Return the Var of a body's result.

    The layout pass made it an array of its own, so ``atom`` is no literal.
    """
    assert isinstance(atom, Var)
    return atom
