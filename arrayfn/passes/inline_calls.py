"""Replaces calls of Programs by their bodies, unless a registered kernel is used.

After it: no operator_call that ``keep`` does not accept, no custom_jvp or custom_vjp,
and no shard_map, which one device computes by its body mapped along the mesh.
"""

from __future__ import annotations

from collections.abc import Callable

from arrayfn.errors import located
from arrayfn.ir import Equation, Program
from arrayfn.ir.builder import ProgramBuilder, rename
from arrayfn.primitives.base import Body, primitive_of
from arrayfn.primitives.custom_rules import custom_vjp_linear, forward_mode_error
from arrayfn.primitives.shard_map import one_device, shard_map


def keep_none(equation: Equation) -> bool:
    """Return False: a ``keep`` for targets that have no kernels for calls."""
    return False


def inline_calls(
    program: Program, keep: Callable[[Equation], bool] = keep_none
) -> Program:
    """Replace every call in ``program`` by its body, nested calls too.

    ``y = operator_call(x)`` with the body ``{z = exp(v); return z + 1}`` becomes
    ``z = exp(x); y = z + 1``. Calls that ``keep`` accepts stay. Raises the error about
    forward mode if a custom_vjp was differentiated in forward mode.
    """
    builder = ProgramBuilder(program.name)
    inputs = builder.inputs_of(program)
    environment = builder.bind_inputs(program, inputs)

    def walk(inner: Program) -> None:
        """Emit the equations of ``inner``, with bodies in place of calls."""
        for equation in inner.equations:
            primitive = primitive_of(equation)
            is_call = isinstance(primitive.kernel, Body)
            if is_call and "body" in equation.params and not keep(equation):
                replace_by(equation.params["body"], equation)
            elif primitive is shard_map:
                replace_by(one_device(equation), equation)
            elif primitive is custom_vjp_linear:
                error = forward_mode_error(equation.params["name"])
                raise located(error, equation.source)
            else:
                builder.replay(equation, environment)

    def replace_by(body: Program, equation: Equation) -> None:
        """Emit ``body`` on the operands of ``equation``, in its place."""
        operands = [rename(a, environment) for a in equation.inputs]
        environment.update(builder.bind_inputs(body, operands))
        walk(body)
        results = [rename(a, environment) for a in body.outputs]
        environment.update(zip(equation.outputs, results, strict=True))

    walk(program)
    return builder.build([rename(a, environment) for a in program.outputs])
