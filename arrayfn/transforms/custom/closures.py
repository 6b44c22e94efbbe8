"""The captured values of traced functions, as inputs that several Programs share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from arrayfn.errors import DifferentiationError, user_location
from arrayfn.ir import ArrayType, Atom, Program, Var
from arrayfn.ir.builder import ProgramBuilder
from arrayfn.primitives import views
from arrayfn.tracing import ImmutableArray, Tracer
from arrayfn.transforms import FlatTrace, leaf_type


def closed_over(
    traces: Sequence[tuple[FlatTrace, int]],
) -> tuple[list[Any], list[tuple[Var, ...]]]:
    """All values that traced functions capture, and each function's inputs for them.

    Each trace comes with the number of its inputs that are arguments.
    """
    values: dict[int, Any] = {}
    for traced, _ in traces:
        values.update((id(value), value) for value in traced.trace.captured)
    inputs: list[tuple[Var, ...]] = []
    for traced, own in traces:
        captured = traced.trace.captured
        have = {
            id(value): var
            for value, var in zip(captured, traced.program.inputs[own:], strict=True)
        }
        inputs.append(
            tuple(
                have[key] if key in have else Var(leaf_type(value))
                for key, value in values.items()
            )
        )
    return list(values.values()), inputs


def with_inputs(
    traced: FlatTrace, inputs: Sequence[Var], outputs: Sequence[Atom] = ()
) -> Program:
    """The traced Program with other ``inputs``, and further ``outputs``."""
    program = traced.program
    return replace(program, inputs=tuple(inputs), outputs=(*program.outputs, *outputs))


def closed(what: str, traced: FlatTrace, own: int) -> Program:
    """The traced Program with its captured arrays as constants.

    Its first ``own`` inputs stay inputs. It is made when a derivative needs it, long
    after the call it belongs to, so a captured value that was traced then is an error.
    ``what`` is the function, for the message.
    """
    program, captured = traced.program, traced.trace.captured
    for value in captured:
        if isinstance(value, Tracer):
            raise DifferentiationError(
                f"{what} closes over a traced value ({value.type}), which a derivative "
                "of this order cannot reach; pass it as an argument",
                user_location(),
            )
    return replace(
        program,
        inputs=program.inputs[:own],
        constants=(*program.constants, *program.inputs[own:]),
        constant_values=(*program.constant_values, *map(held, captured)),
    )


def with_zeros(program: Program, types: Sequence[ArrayType]) -> Program:
    """Append outputs to ``program``: zeros of ``types``."""
    if not types:
        return program
    builder = ProgramBuilder(program.name)
    with builder:
        inputs = builder.inputs_of(program)
        outputs = builder.inline(program, inputs)
        return builder.build([*outputs, *map(views.zeros, types)])


def held(value: Any) -> Any:
    """A captured value in the form it is kept: traced, on a device, or NumPy's."""
    return value if isinstance(value, ImmutableArray) else np.asarray(value)
