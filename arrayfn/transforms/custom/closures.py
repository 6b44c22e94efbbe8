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
    """Return all values that traced functions capture, and their inputs for these.

    ``traces`` has pairs of a traced function and the number of its inputs that are
    arguments. The second result has a tuple for each of them: a Var for each of all the
    values. It is the Program's own input for a value that the function captures, else
    an unused Var.
    """
    values: dict[int, Any] = {}
    for traced, _ in traces:
        values.update((id(value), value) for value in traced.trace.captured)
    inputs: list[tuple[Var, ...]] = []
    for traced, own in traces:
        captured = traced.trace.captured
        own_inputs = {
            id(value): var
            for value, var in zip(captured, traced.program.inputs[own:], strict=True)
        }
        inputs.append(
            tuple(
                own_inputs[key] if key in own_inputs else Var(leaf_type(value))
                for key, value in values.items()
            )
        )
    return list(values.values()), inputs


def with_inputs(
    traced: FlatTrace, inputs: Sequence[Var], outputs: Sequence[Atom] = ()
) -> Program:
    """Return the traced Program with other ``inputs``, and further ``outputs``."""
    program = traced.program
    return replace(program, inputs=tuple(inputs), outputs=(*program.outputs, *outputs))


def closed(what: str, traced: FlatTrace, own: int) -> Program:
    """Return the traced Program with its captured arrays as constants.

    The first ``own`` inputs stay inputs. Rules are traced when a derivative needs them,
    which may be after the trace that the call belongs to has ended. So a captured value
    that is traced raises DifferentiationError. ``what`` is the function, for the
    message.
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
    """Return a captured value as arrayfn's own array, if it is one, or as NumPy's."""
    return value if isinstance(value, ImmutableArray) else np.asarray(value)
