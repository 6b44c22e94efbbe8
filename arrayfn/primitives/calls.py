"""Primitives that hold a Program: named operators, and functions with own rules.

``operator_call`` means its body. ``custom_jvp`` means its body, but is differentiated
by ``jvp_body`` (primals and tangents in, outputs and their tangents out).
``custom_vjp`` means its body, but is differentiated by ``forward`` (outputs, then
residuals) and ``backward`` (residuals, then cotangents in; input cotangents out); its
tangents pass through ``custom_vjp_linear``, which can only be transposed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from arrayfn import dtypes
from arrayfn.builder import ProgramBuilder, current_builder
from arrayfn.errors import DifferentiationError, ShapeError
from arrayfn.ir import ArrayType, Atom, Program, Var
from arrayfn.primitives import elementwise as e
from arrayfn.primitives import families, views
from arrayfn.primitives.base import (
    NOT_LINEAR,
    THROUGH_BODY,
    Array,
    AxisMap,
    Body,
    JvpWithOutputs,
    Linear,
    Operand,
    Primitive,
    Sample,
    View,
    not_differentiable,
)


def evaluate(program: Program, operands: Sequence[Any]) -> list[Any]:
    """Interpret ``program`` with the primitives' NumPy references.

    ``operands`` are arrays for its inputs; the result is a list of arrays.
    """
    environment: dict[Var, Any] = dict(zip(program.inputs, operands, strict=True))
    environment.update(zip(program.constants, program.constant_values, strict=True))
    for equation in program.equations:
        arguments = [_value(a, environment) for a in equation.inputs]
        row = equation.primitive
        assert isinstance(row, Primitive)
        result = row.reference(*arguments, **equation.params)
        results = result if isinstance(result, (tuple, list)) else (result,)
        environment.update(zip(equation.outputs, results, strict=True))
    return [_value(a, environment) for a in program.outputs]


def _value(atom: Atom, environment: dict[Var, Any]) -> Any:
    if isinstance(atom, Var):
        return environment[atom]
    return np.asarray(atom.value).astype(atom.type.dtype)


def body_types(
    *operands: ArrayType, body: Program, **params: Any
) -> ArrayType | tuple[ArrayType, ...]:
    """The types of the body's outputs; ShapeError if it does not take ``operands``."""
    wanted = body.input_types
    given = [(t.shape, t.dtype) for t in operands]
    if given != [(t.shape, t.dtype) for t in wanted]:
        raise ShapeError(
            f"{body.name} takes {', '.join(map(str, wanted))}, but was given "
            + ", ".join(map(str, operands))
        )
    return tuple(ArrayType(t.shape, t.dtype, weak=t.weak) for t in body.output_types)


def body_reference(*operands: Array, body: Program, **params: Any) -> tuple[Any, ...]:
    """What the body computes."""
    return tuple(evaluate(body, operands))


def _sample_body() -> Program:
    builder = ProgramBuilder("double_product")
    with builder:
        x = builder.input(ArrayType((3, 4), dtypes.float32))
        y = builder.input(ArrayType((3, 4), dtypes.float32))
        product = e.mul(x, y)
        return builder.build([e.add(product, product)])


def _samples() -> Iterable[Sample]:
    x = families.random_array(dtypes.float32, (3, 4), 61, -3.0, 3.0)
    y = families.random_array(dtypes.float32, (3, 4), 62, -3.0, 3.0)
    yield Sample((x, y), {"name": "double_product", "body": _sample_body()})


operator_call = Primitive(
    name="operator_call",
    family="call",
    types=body_types,
    reference=body_reference,
    kernel=Body(),
    jvp=THROUGH_BODY,
    transpose=THROUGH_BODY,
    batch=THROUGH_BODY,
    samples=_samples,
    doc="A named function whose body may be replaced by a kernel of its own.",
)


def _custom_jvp_rule(
    primals: Sequence[Atom],
    tangents: Sequence[Atom | None],
    *,
    body: Program,
    jvp_body: Program,
    name: str,
) -> tuple[list[Atom], list[Atom]]:
    from_zero = [
        _zero(p.type) if t is None else t
        for p, t in zip(primals, tangents, strict=True)
    ]
    results = current_builder().inline(jvp_body, [*primals, *from_zero])
    count = len(body.outputs)
    return results[:count], results[count:]


def _zero(type: ArrayType) -> Atom:
    """A zero tangent for a value of ``type``."""
    return views.broadcast_literal(0, type)


def _custom_jvp_samples() -> Iterable[Sample]:
    body = _sample_body()
    builder = ProgramBuilder("double_product_jvp")
    with builder:
        x, y, dx, dy = (
            builder.input(ArrayType((3, 4), dtypes.float32)) for _ in range(4)
        )
        product = e.mul(x, y)
        tangent = e.add(e.mul(dx, y), e.mul(x, dy))
        jvp_body = builder.build([e.add(product, product), e.add(tangent, tangent)])
    for sample in _samples():
        params = {"name": "double_product", "body": body, "jvp_body": jvp_body}
        yield Sample(sample.inputs, params)


custom_jvp = Primitive(
    name="custom_jvp",
    family="call",
    types=body_types,
    reference=body_reference,
    kernel=Body(),
    jvp=JvpWithOutputs(_custom_jvp_rule),
    transpose=NOT_LINEAR,
    batch=THROUGH_BODY,
    samples=_custom_jvp_samples,
    doc="A function differentiated by a rule that the user wrote.",
)


def _custom_vjp_rule(
    primals: Sequence[Atom],
    tangents: Sequence[Atom | None],
    *,
    body: Program,
    forward: Program,
    backward: Program,
    name: str,
) -> tuple[list[Atom], list[Atom]]:
    results = current_builder().inline(forward, primals)
    outputs, residuals = results[: len(body.outputs)], results[len(body.outputs) :]
    full = [
        _zero(p.type) if t is None else t
        for p, t in zip(primals, tangents, strict=True)
    ]
    value = custom_vjp_linear(
        *residuals, *full, name=name, backward=backward, residuals=len(residuals)
    )
    return outputs, list(value) if isinstance(value, tuple) else [value]


def _custom_vjp_samples() -> Iterable[Sample]:
    body = _sample_body()
    forward = ProgramBuilder("double_product_forward")
    with forward:
        x = forward.input(ArrayType((3, 4), dtypes.float32))
        y = forward.input(ArrayType((3, 4), dtypes.float32))
        product = e.mul(x, y)
        forward_program = forward.build([e.add(product, product), x, y])
    for sample in _samples():
        params = {
            "name": "double_product",
            "body": body,
            "forward": forward_program,
            "backward": _sample_backward(),
        }
        yield Sample(sample.inputs, params)


def _sample_backward() -> Program:
    backward = ProgramBuilder("double_product_backward")
    with backward:
        x, y, ct = (backward.input(ArrayType((3, 4), dtypes.float32)) for _ in range(3))
        to_x = e.mul(e.mul(ct, y), 2)
        return backward.build([to_x, e.mul(e.mul(ct, x), 2)])


custom_vjp = Primitive(
    name="custom_vjp",
    family="call",
    types=body_types,
    reference=body_reference,
    kernel=Body(),
    jvp=JvpWithOutputs(_custom_vjp_rule),
    transpose=NOT_LINEAR,
    batch=THROUGH_BODY,
    samples=_custom_vjp_samples,
    doc="A function differentiated in reverse by a rule that the user wrote.",
)


def _linear_types(
    *operands: ArrayType, name: str, backward: Program, residuals: int
) -> tuple[ArrayType, ...]:
    return tuple(ArrayType(t.shape, t.dtype) for t in backward.input_types[residuals:])


def _linear_reference(
    *operands: Array, name: str, backward: Program, residuals: int
) -> Any:
    raise DifferentiationError(
        f"{name} has a custom_vjp rule, which gives reverse-mode derivatives only; use "
        "grad or vjp, or give the function a custom_jvp rule"
    )


def _linear_transpose(
    cotangents: Sequence[Atom | None],
    inputs: Sequence[Operand],
    *,
    name: str,
    backward: Program,
    residuals: int,
) -> list[Atom | None]:
    types = backward.input_types[residuals:]
    full = [
        _zero(t) if ct is None else ct for ct, t in zip(cotangents, types, strict=True)
    ]
    saved = [a for a in inputs[:residuals] if not isinstance(a, Linear)]
    results = current_builder().inline(backward, [*saved, *full])
    linear = [
        ct if isinstance(operand, Linear) else None
        for operand, ct in zip(inputs[residuals:], results, strict=True)
    ]
    return [None] * residuals + linear


def _linear_samples() -> Iterable[Sample]:
    return ()


custom_vjp_linear = Primitive(
    name="custom_vjp_linear",
    family="call",
    types=_linear_types,
    reference=_linear_reference,
    kernel=Body(),
    jvp=not_differentiable("a custom_vjp rule has reverse-mode derivatives only"),
    transpose=_linear_transpose,
    batch=THROUGH_BODY,
    samples=_linear_samples,
    doc="The derivative of a custom_vjp function, before it is transposed.",
)

# What a function with a rule closes over: its rule says nothing of derivatives by that.


def _closed_over_batch(
    size: int, inputs: Sequence[Atom], dims: Sequence[int | None]
) -> tuple[list[Atom], list[int | None]]:
    return [closed_over(views.move_axis(inputs[0], dims[0] or 0, 0))], [0]


closed_over = Primitive(
    name="closed_over",
    family="call",
    types=lambda x: ArrayType(x.shape, x.dtype, weak=x.weak),
    reference=lambda x: x,
    kernel=View(lambda x: tuple(AxisMap(axis) for axis in range(x.ndim))),
    jvp=not_differentiable(
        "a function with a derivative rule of its own closes over this value, and the "
        "rule gives derivatives by arguments only; pass it as an argument"
    ),
    transpose=NOT_LINEAR,
    batch=_closed_over_batch,
    samples=lambda: [
        Sample((families.random_array(dtypes.float32, (3, 4), 63, -3.0, 3.0),), {})
    ],
    doc="The operand, by which it is an error to differentiate.",
)

ROWS = (operator_call, custom_jvp, custom_vjp, custom_vjp_linear, closed_over)
