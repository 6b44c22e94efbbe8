"""Calls of functions with custom derivative rules.

``custom_jvp`` computes its body. Its derivative is ``jvp_body``, which takes primals
and tangents, and returns outputs and their tangents. ``custom_vjp`` computes its body
too. Its derivative is ``forward``, which returns outputs and residuals, and
``backward``, which takes residuals and cotangents and returns input cotangents.
Tangents pass through ``custom_vjp_linear``, which can only be transposed.

A rule may also be the name of a function that makes the Program when it is needed, for
the inputs that vary: ``jvp_body(varies)`` takes only their tangents. It returns a
Program, and flags for the outputs that vary, whose tangents that Program gives.
``forward(varies)`` returns the pair (forward, backward). A named ``backward`` is called
with flags for the given cotangents, and takes only those.

The last ``captured`` operands are values that the function closes over. It has no
derivative by them; what its rules compute of them has.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from arrayfn import dtypes
from arrayfn.dtypes import DType
from arrayfn.errors import DifferentiationError
from arrayfn.ir import ArrayType, Atom, Program
from arrayfn.ir.builder import ProgramBuilder, current_builder
from arrayfn.ir.layout import Shape
from arrayfn.primitives import elementwise as e
from arrayfn.primitives import emitters, families, views
from arrayfn.primitives.base import (
    Array,
    Atoms,
    Batched,
    Body,
    Dims,
    JvpWithOutputs,
    Linear,
    Operands,
    OverPrograms,
    Primitive,
    Sample,
    Tangents,
    WithTangents,
    not_differentiable,
)
from arrayfn.primitives.calls import call_primitive, sample_body
from arrayfn.primitives.control_flow import Batch, built, selected
from arrayfn.primitives.named_functions import FUNCTIONS
from arrayfn.primitives.rules import as_list, mapped_axes_first, not_linear, not_none

Rule = Program | str
NamedJvp = tuple[Program, tuple[bool, ...]]
Results = tuple[tuple[Shape, DType], ...]


def _refuse_captured(tangents: Tangents, captured: int, name: str) -> None:
    """Raise DifferentiationError if one of the last ``captured`` tangents is not None.

    These belong to values that the function ``name`` closes over.
    """
    arguments = len(tangents) - captured
    if any(tangent is not None for tangent in tangents[arguments:]):
        raise DifferentiationError(
            f"{name} has a derivative rule and closes over a value that is "
            "differentiated; the rule covers arguments only; pass the value as an "
            "argument"
        )


def _closing_over(captured: int) -> dict[str, int]:
    """Return ``{"captured": captured}``, or no param if the number is 0."""
    return {"captured": captured} if captured else {}


# custom_jvp


def _jvp_rule(
    primals: Atoms,
    tangents: Tangents,
    *,
    body: Program,
    jvp_body: Rule,
    name: str,
    captured: int = 0,
) -> WithTangents:
    """The jvp rule: inline the user's ``jvp_body`` on primals and tangents.

    ``body`` is the Program of the function itself, and ``name`` the function's name.
    ``jvp_body`` is a Program that takes all tangents, or the name of a function that
    makes a Program for the tangents that are not zero. The last ``captured`` operands
    are values that the function closes over, whose tangents must be zero.
    """
    _refuse_captured(tangents, captured, name)
    count = len(body.outputs)
    if isinstance(jvp_body, str):
        named_jvp: NamedJvp = FUNCTIONS.find(jvp_body).function(
            tuple(t is not None for t in tangents)
        )
        rule, varies = named_jvp
        directions = not_none(tangents)
    else:
        rule, varies = jvp_body, (True,) * count
        directions = views.dense(tangents, [p.type for p in primals])
    results = current_builder().inline(rule, [*primals, *directions])
    out_tangents = iter(results[count:])
    return results[:count], [next(out_tangents) if v else None for v in varies]


def _jvp_batch(
    batch: Batch,
    axis_size: int,
    inputs: Atoms,
    dims: Dims,
    *,
    body: Program,
    jvp_body: Rule,
    name: str,
    captured: int = 0,
) -> Batched:
    """Batching rule: a call whose ``body`` and derivative are both mapped.

    All outputs and output tangents are mapped. If ``jvp_body`` is the name of a
    function, the new call gets the name of a function that maps the Programs which that
    function makes. The last ``captured`` operands are values that the function closes
    over.
    """
    mapped = [dim is not None for dim in dims]
    count = len(body.outputs)
    if isinstance(jvp_body, str):
        named_rule = FUNCTIONS.find(jvp_body)

        def rule(varies: tuple[bool, ...]) -> NamedJvp:
            """Map the user's jvp rule for the tangents that ``varies`` marks."""
            named_jvp: NamedJvp = named_rule.function(varies)
            member_rule, out_varies = named_jvp
            inputs = [*mapped, *selected(mapped, varies)]
            outputs = [True] * len(member_rule.outputs)
            batched_rule, _ = batch(member_rule, axis_size, inputs, outputs)
            return batched_rule, out_varies

        mapped_rule: Rule = FUNCTIONS.name(rule, f"{name}_jvp")
    else:
        outputs = [True] * len(jvp_body.outputs)
        mapped_rule, _ = batch(jvp_body, axis_size, [*mapped, *mapped], outputs)
    batched_body, _ = batch(body, axis_size, mapped, [True] * count)
    results = custom_jvp(
        *mapped_axes_first(inputs, dims),
        name=name,
        body=batched_body,
        jvp_body=mapped_rule,
        **_closing_over(captured),
    )
    return as_list(results), [0] * count


VECTOR = ArrayType((3, 4), dtypes.float32)


def _sample_inputs() -> tuple[Array, ...]:
    """Return two float32 arrays for the samples."""
    return tuple(
        families.random_array(dtypes.float32, (3, 4), seed) for seed in (61, 62)
    )


def _jvp_samples() -> Iterable[Sample]:
    """Yield a function and its jvp, for the table tests."""

    def derivative(x: Atom, y: Atom, dx: Atom, dy: Atom) -> list[Atom]:
        """The samples' rule: ``2 x y`` and its tangent ``2 (dx y + x dy)``."""
        product = e.mul(x, y)
        tangent = e.add(e.mul(dx, y), e.mul(x, dy))
        return [e.add(product, product), e.add(tangent, tangent)]

    jvp_body = built("double_product_jvp", derivative, [VECTOR] * 4)
    params = {"name": "double_product", "body": sample_body(), "jvp_body": jvp_body}
    yield Sample(_sample_inputs(), params)


custom_jvp = call_primitive(
    name="custom_jvp",
    jvp=JvpWithOutputs(_jvp_rule),
    batch=OverPrograms(_jvp_batch),
    samples=_jvp_samples,
    doc="A function with the user's jvp rule.",
)

# custom_vjp


def _vjp_rule(
    primals: Atoms,
    tangents: Tangents,
    *,
    body: Program,
    forward: Rule,
    backward: Rule,
    name: str,
    captured: int = 0,
) -> WithTangents:
    """The jvp rule: inline ``forward``, and emit a ``custom_vjp_linear`` of tangents.

    The latter holds ``backward`` and the residuals for its transpose rule. ``body`` is
    the Program of the function itself, and ``name`` the function's name. ``forward``
    and ``backward`` are the user's rules, as in the module's docstring. The last
    ``captured`` operands are values that the function closes over, whose tangents must
    be zero.
    """
    _refuse_captured(tangents, captured, name)
    forward_program, backward_rule = forward, backward
    if isinstance(forward_program, str):
        # The name of a function that makes both rules for the operands that vary.
        varies = tuple(t is not None for t in tangents)
        forward_program, backward_rule = FUNCTIONS.find(forward_program).function(
            varies
        )
    count = len(body.outputs)
    results = current_builder().inline(forward_program, primals)
    outputs, residuals = results[:count], results[count:]
    value = custom_vjp_linear(
        *residuals,
        *views.dense(tangents, [p.type for p in primals]),
        name=name,
        backward=backward_rule,
        residuals=len(residuals),
        results=tuple((x.type.shape, x.type.dtype) for x in outputs),
    )
    return outputs, as_list(value)


def _vjp_batch(
    batch: Batch,
    axis_size: int,
    inputs: Atoms,
    dims: Dims,
    *,
    body: Program,
    forward: Rule,
    backward: Rule,
    name: str,
    captured: int = 0,
) -> Batched:
    """Batching rule: a call whose ``body`` and rules are all mapped.

    All outputs are mapped, and residuals that depend on mapped inputs. If ``forward``
    is the name of a function, the new call gets the name of a function that maps the
    rules which that function makes. The last ``captured`` operands are values that the
    function closes over.
    """
    mapped = [dim is not None for dim in dims]
    count = len(body.outputs)

    def batched_rules(
        forward_program: Program, backward_rule: Rule
    ) -> tuple[Program, Rule]:
        """Map the user's forward Program and backward rule."""
        residuals = len(forward_program.outputs) - count
        dense = [True] * count + [False] * residuals
        program, varies = batch(forward_program, axis_size, mapped, dense)
        return program, _batched_backward(
            batch, axis_size, varies[count:], mapped, backward_rule
        )

    if isinstance(forward, str):
        # One named function makes both rules; ``backward`` is not read.
        named_rule = FUNCTIONS.find(forward)
        batched_name = FUNCTIONS.name(
            lambda varies: batched_rules(*named_rule.function(varies)), name
        )
        forward_program, backward_rule = batched_name, batched_name
    else:
        forward_program, backward_rule = batched_rules(forward, backward)
    batched_body, _ = batch(body, axis_size, mapped, [True] * count)
    results = custom_vjp(
        *mapped_axes_first(inputs, dims),
        name=name,
        body=batched_body,
        forward=forward_program,
        backward=backward_rule,
        **_closing_over(captured),
    )
    return as_list(results), [0] * count


def _batched_backward(
    batch: Batch,
    size: int,
    residuals: Sequence[bool],
    mapped: Sequence[bool],
    backward: Rule,
) -> Rule:
    """Map the user's ``backward`` rule.

    ``batch`` maps Programs along an axis of extent ``size``. ``residuals`` and
    ``mapped`` say which residuals and which inputs of the function are mapped. The
    cotangent of an input that is not mapped is the sum over all members.
    """
    if isinstance(backward, str):
        named_rule = FUNCTIONS.find(backward)

        def rule(has_cotangent: tuple[bool, ...]) -> Rule:
            """Map the user's rule for the cotangents that the flags mark."""
            member_rule = named_rule.function(has_cotangent)
            return _batched_backward(batch, size, residuals, mapped, member_rule)

        return FUNCTIONS.name(rule, str(named_rule))
    cotangents = len(backward.inputs) - len(residuals)
    all_inputs = [True] * len(mapped)
    program, _ = batch(backward, size, [*residuals, *[True] * cotangents], all_inputs)
    builder = ProgramBuilder(program.name)
    with builder:
        results = builder.inline(program, builder.inputs_of(program))
        return builder.build(
            [ct if m else _total(ct) for ct, m in zip(results, mapped, strict=True)]
        )


def _total(cotangent: Atom) -> Atom:
    """Sum a mapped ``cotangent`` over all members; zeros for integers."""
    type = cotangent.type
    if type.dtype not in dtypes.DIFFERENTIABLE:
        return views.zeros(type.with_shape(type.shape[1:]))
    return emitters.reduce_sum(cotangent, axes=(0,))


def _vjp_samples() -> Iterable[Sample]:
    """Yield a function with forward and backward rules, for the table tests."""

    def forward(x: Atom, y: Atom) -> list[Atom]:
        """Return ``2 x y``, and the residuals x and y."""
        product = e.mul(x, y)
        return [e.add(product, product), x, y]

    def backward(x: Atom, y: Atom, ct: Atom) -> list[Atom]:
        """Return the cotangents of x and y: ``2 ct y`` and ``2 x ct``."""
        to_x = e.mul(e.mul(ct, y), 2)
        return [to_x, e.mul(e.mul(ct, x), 2)]

    forward_program = built("double_product_forward", forward, [VECTOR] * 2)
    backward_rule = built("double_product_backward", backward, [VECTOR] * 3)
    params = {
        "name": "double_product",
        "body": sample_body(),
        "forward": forward_program,
        "backward": backward_rule,
    }
    yield Sample(_sample_inputs(), params)


custom_vjp = call_primitive(
    name="custom_vjp",
    jvp=JvpWithOutputs(_vjp_rule),
    batch=OverPrograms(_vjp_batch),
    samples=_vjp_samples,
    doc="A function with the user's vjp rule.",
)

# custom_vjp_linear


def forward_mode_error(name: str) -> DifferentiationError:
    """Return the error for forward mode of ``name``, which has a custom_vjp rule."""
    return DifferentiationError(
        f"{name} has a custom_vjp rule, which gives reverse-mode derivatives only; use "
        "grad or vjp, or give the function a custom_jvp rule"
    )


def _linear_types(
    *operands: ArrayType, name: str, backward: Rule, residuals: int, results: Results
) -> tuple[ArrayType, ...]:
    """Type rule: the shapes and dtypes of ``results``, one for each output.

    The first ``residuals`` operands are residuals, the others tangents.
    """
    return tuple(ArrayType(shape, dtype) for shape, dtype in results)


def _linear_reference(
    *operands: Array, name: str, backward: Rule, residuals: int, results: Results
) -> Any:
    """Raise an error: the linear part of a custom_vjp can only be transposed."""
    raise forward_mode_error(name)


def _linear_transpose(
    cotangents: Tangents,
    inputs: Operands,
    *,
    name: str,
    backward: Rule,
    residuals: int,
    results: Results,
) -> Tangents:
    """Transpose rule: inline ``backward`` on residuals and cotangents.

    The first ``residuals`` operands are residuals, the others tangents. If ``backward``
    is the name of a function, that function makes the rule for the cotangents that are
    not zero.
    """
    residual_values = not_linear(inputs[:residuals])
    if isinstance(backward, str):
        flags = tuple(ct is not None for ct in cotangents)
        rule: Program = FUNCTIONS.find(backward).function(flags)
        rule_cts = not_none(cotangents)
    else:
        rule = backward
        rule_cts = views.dense(cotangents, rule.input_types[residuals:])
    input_cotangents = current_builder().inline(rule, [*residual_values, *rule_cts])
    linear = [
        ct if isinstance(operand, Linear) else None
        for operand, ct in zip(inputs[residuals:], input_cotangents, strict=True)
    ]
    return [None] * residuals + linear


def _linear_batch(
    batch: Batch,
    axis_size: int,
    inputs: Atoms,
    dims: Dims,
    *,
    name: str,
    backward: Rule,
    residuals: int,
    results: Results,
) -> Batched:
    """Batching rule: the same call with a mapped ``backward``.

    The first ``residuals`` operands are residuals, the others tangents.
    """
    mapped = [dim is not None for dim in dims]
    outputs = custom_vjp_linear(
        *mapped_axes_first(inputs, dims),
        name=name,
        backward=_batched_backward(
            batch, axis_size, mapped[:residuals], mapped[residuals:], backward
        ),
        residuals=residuals,
        results=tuple(((axis_size, *shape), dtype) for shape, dtype in results),
    )
    return as_list(outputs), [0] * len(results)


custom_vjp_linear = Primitive(
    name="custom_vjp_linear",
    family="call",
    types=_linear_types,
    reference=_linear_reference,
    kernel=Body(),
    jvp=not_differentiable("a custom_vjp rule has reverse-mode derivatives only"),
    transpose=_linear_transpose,
    batch=OverPrograms(_linear_batch),
    samples=lambda: (),
    doc="The derivative of a custom_vjp function, before it is transposed.",
)
