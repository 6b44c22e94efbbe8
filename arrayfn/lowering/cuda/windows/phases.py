"""Gradients of extrema of windows: elements look for their windows.

A scatter would sort where all windows put their values. Where windows are short, each
element asks the few that it is in.
"""

from __future__ import annotations

from arrayfn.ir import Program
from arrayfn.ir.builder import ProgramBuilder, rename
from arrayfn.lowering.cuda.windows.pools import is_pool
from arrayfn.primitives.window_elements import put_in_phases, window_put


def phased(program: Program) -> Program:
    """``program`` with values put into short windows as sums; others are scattered."""
    if all(equation.primitive is not window_put for equation in program.equations):
        return program
    builder = ProgramBuilder(program.name)
    with builder:
        inputs = builder.inputs_of(program)
        environment = builder.bind_inputs(program, inputs)
        for equation in program.equations:
            builder.source = equation.source
            made = None
            if equation.primitive is window_put and not is_pool(equation):
                operands = [rename(a, environment) for a in equation.inputs]
                made = put_in_phases(*operands, **equation.params)
            if made is None:
                builder.replay(equation, environment)
            else:
                environment[equation.outputs[0]] = made
    return builder.build([rename(a, environment) for a in program.outputs])
