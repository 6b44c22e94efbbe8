"""Which values of a member's Program differ between the members along a mesh axis.

Inputs that are cut differ, and so does what is computed from them. A sum or gather over
all members gives every member the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from arrayfn.ir import Atom, Equation, Program, Var, walk
from arrayfn.primitives.base import primitive_of
from arrayfn.primitives.control_flow import fixed_point, split_by_counts

Flags = list[bool]
"""For each of some values, whether it differs between members."""


def varying(
    program: Program, inputs_vary: Sequence[bool], axis: str
) -> dict[Atom, bool]:
    """Return which Atoms of ``program`` may differ between members along ``axis``."""
    flags: dict[Atom, bool] = dict.fromkeys(program.constants, False)
    flags.update(zip(program.inputs, inputs_vary, strict=True))
    for equation in program.equations:
        of_inputs = [flags.get(atom, False) for atom in equation.inputs]
        results = results_vary(equation, of_inputs, axis)
        flags.update(zip(equation.outputs, results, strict=True))
    return flags


def results_vary(equation: Equation, operands_vary: Flags, axis: str) -> Flags:
    """Return which results of ``equation`` may differ between members."""
    primitive, params = primitive_of(equation), equation.params
    if is_collective_over(equation, axis):
        is_equal = primitive.name in ("all_reduce", "all_gather")
        return [not is_equal]
    if not has_collective_over(equation, axis):
        return [any(operands_vary)] * len(equation.outputs)
    if primitive.name == "scan":
        return scan_varies(params, operands_vary, axis)[1]
    if primitive.name == "while_loop":
        return while_varies(params, operands_vary, axis)
    # A cond. Its branches have a collective, so all members take the same one.
    branches = [_outputs_vary(b, operands_vary[1:], axis) for b in params["branches"]]
    return list(map(any, zip(*branches, strict=True)))


def scan_varies(
    params: Mapping[str, Any], operands_vary: Flags, axis: str
) -> tuple[Flags, Flags]:
    """Return which carries, and which results, of a scan may differ between members.

    The results are the carries, then the stacked outputs. What differs after an
    iteration may differ before the next, so flags are computed to a fixed point.
    """
    fixed, state, xs = split_by_counts(operands_vary, params["consts"], params["carry"])

    def body(carries: Flags) -> tuple[None, Flags]:
        """Return None and which results of an iteration differ between members.

        ``carries`` says which carries differ before the iteration.
        """
        flags = _outputs_vary(params["program"], [*fixed, *carries, *xs], axis)
        return None, [*_either(carries, flags), *flags[len(carries) :]]

    _, results = fixed_point(body, state)
    return results[: len(state)], results


def while_varies(params: Mapping[str, Any], operands_vary: Flags, axis: str) -> Flags:
    """Return which carries of a while_loop may differ between members.

    Its condition does not count: all members leave the loop together.
    """
    _, fixed, state = split_by_counts(
        operands_vary, params["cond_consts"], params["body_consts"]
    )

    def body(carries: Flags) -> tuple[None, Flags]:
        """Return None and which carries differ between members after an iteration.

        ``carries`` says which of them differ before the iteration.
        """
        flags = _outputs_vary(params["body_program"], [*fixed, *carries], axis)
        return None, _either(carries, flags)

    return fixed_point(body, state)[1]


def _either(carries: Flags, results: Flags) -> Flags:
    """Return for each carry whether it differs before an iteration or after it.

    ``results`` begin with the carries.
    """
    return [a or b for a, b in zip(carries, results, strict=False)]


def _outputs_vary(program: Program, inputs_vary: Sequence[bool], axis: str) -> Flags:
    """Return which outputs of ``program`` may differ between members."""
    flags = varying(program, inputs_vary, axis)
    return [isinstance(atom, Var) and flags[atom] for atom in program.outputs]


def is_collective_over(equation: Equation, axis: str) -> bool:
    """Whether ``equation`` is a collective along ``axis``."""
    is_collective = primitive_of(equation).is_collective
    return is_collective and equation.params["axis_name"] == axis


def has_collective_over(equation: Equation, axis: str) -> bool:
    """Whether ``equation``, or a Program in it, has a collective along ``axis``."""
    return any(is_collective_over(inner, axis) for inner in walk([equation]))
