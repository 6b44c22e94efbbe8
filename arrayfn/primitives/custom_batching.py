"""Calls of functions with custom batching rules.

``custom_vmap`` computes its body. ``rule`` names a function that maps it:
``rule(size, mapped, batch)`` gives a Program of the operands, of which those that are
mapped have the mapped axis in front, and which of its outputs are mapped. ``batch``
maps other Programs, if the rule needs some.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import and_

from arrayfn import dtypes
from arrayfn.ir import ArrayType, Atom, Equation, Program, Var
from arrayfn.ir.builder import ProgramBuilder, current_builder
from arrayfn.primitives import elementwise as e
from arrayfn.primitives import families
from arrayfn.primitives.base import (
    Atoms,
    Batched,
    Dims,
    OverPrograms,
    Sample,
    Tangents,
    WithTangents,
)
from arrayfn.primitives.calls import call_primitive, operator_call
from arrayfn.primitives.control_flow import (
    Batch,
    Jvp,
    Split,
    built,
    elementwise_or,
    equation,
    selected,
    split_by_counts,
    unselected,
)
from arrayfn.primitives.named_functions import FUNCTIONS
from arrayfn.primitives.rules import (
    as_list,
    mapped_axes_first,
    not_none,
    repeated,
    with_nones,
)
from arrayfn.records import frozen

Mapped = tuple[Program, list[bool]]


def _batch(
    batch: Batch,
    axis_size: int,
    inputs: Atoms,
    dims: Dims,
    *,
    name: str,
    body: Program,
    rule: str,
) -> Batched:
    """Batching rule: emit a call of the Program that the custom rule gives.

    ``rule`` is the custom rule's name in ``FUNCTIONS``; ``body`` is not used.
    """
    mapped = tuple(dim is not None for dim in dims)
    program, results_mapped = FUNCTIONS.find(rule).function(axis_size, mapped, batch)
    call = operator_call(
        *mapped_axes_first(inputs, dims), name=f"vmap_{name}", body=program
    )
    return as_list(call), [0 if is_mapped else None for is_mapped in results_mapped]


def _jvp(
    jvp: Jvp,
    primals: Atoms,
    tangents: Tangents,
    *,
    name: str,
    body: Program,
    rule: str,
) -> WithTangents:
    """The jvp rule: a ``custom_vmap`` call of the body's jvp.

    Its batching rule differentiates the Program that the custom rule gives.
    """
    varies = [t is not None for t in tangents]
    count = len(body.outputs)
    derivative, results_vary = jvp(body, varies, [False] * count)
    mapped_derivative = _MappedDerivative(jvp, rule, varies, results_vary)
    results = as_list(
        custom_vmap(
            *primals,
            *not_none(tangents),
            name=f"jvp_{name}",
            body=derivative,
            rule=FUNCTIONS.name(mapped_derivative, f"jvp_{name}"),
        )
    )
    return results[:count], with_nones(results[count:], results_vary)


@frozen
class _MappedDerivative:
    """The batching rule of a ``custom_vmap`` function's derivative, as a callable.

    It differentiates (by ``jvp``) the Program that the custom rule, named ``rule``,
    gives. The derivative takes the operands and the tangents of those marked in
    ``varies``. It returns the results and the tangents of those marked in
    ``results_vary``.
    """

    jvp: Jvp
    rule: str
    varies: list[bool]
    results_vary: list[bool]

    def __call__(self, size: int, mapped: tuple[bool, ...], batch: Batch) -> Mapped:
        """Differentiate the mapped function, for these mapped operands and tangents.

        If an operand is mapped together with its tangent, the Program that the custom
        rule gives for mapped operands is differentiated. Otherwise, as in JAX, the
        custom rule gives a Program for unmapped operands. A tangent of 0 is not mapped.
        The derivative of this Program is mapped by the rules of the primitives in it.
        So ``jacfwd``, which maps tangents only, computes the results once and not once
        for each tangent. If that Program has a mapped result after all, the first way
        is taken.

        ``mapped`` has a flag for each operand, then for each tangent. Returns a Program
        and which of its outputs are mapped, as a custom rule does.
        """
        custom_rule = FUNCTIONS.find(self.rule).function
        operands_mapped, flags = split_by_counts(mapped, len(self.varies))
        next_flag = iter(flags)
        tangents_mapped = [varies and next(next_flag) for varies in self.varies]
        if not any(map(and_, operands_mapped, tangents_mapped)):
            none_mapped = (False,) * len(operands_mapped)
            program, results_mapped = custom_rule(size, none_mapped, batch)
            if not any(results_mapped):
                derivative, has_tangent = self.derivative(program)
                builder = ProgramBuilder(derivative.name)
                with builder:
                    inputs = builder.inputs_of(derivative)
                    outputs = self.results(derivative, inputs, has_tangent)
                    unmapped = builder.build(outputs)
                return batch(unmapped, size, mapped, [False] * len(outputs))
        # If an operand or its tangent is mapped, the custom rule maps both.
        either_mapped = elementwise_or(operands_mapped, tangents_mapped)
        program, results_mapped = custom_rule(size, tuple(either_mapped), batch)
        derivative, has_tangent = self.derivative(program)
        builder = ProgramBuilder(derivative.name)
        with builder:
            wanted = [*either_mapped, *selected(either_mapped, self.varies)]
            inputs = [
                _mapped_input(builder, type, size, is_mapped, is_wanted)
                for type, is_mapped, is_wanted in zip(
                    derivative.input_types, mapped, wanted, strict=True
                )
            ]
            mapped_program = builder.build(
                self.results(derivative, inputs, has_tangent)
            )
        tangents_of_results = selected(results_mapped, self.results_vary)
        return mapped_program, [*results_mapped, *tangents_of_results]

    def derivative(self, program: Program) -> tuple[Program, list[bool]]:
        """Return the jvp of ``program``, and which of its outputs have a tangent."""
        return self.jvp(program, self.varies, self.results_vary)

    def results(
        self, derivative: Program, inputs: Atoms, has_tangent: Sequence[bool]
    ) -> list[Atom]:
        """Emit ``derivative``; return its results and those tangents that are wanted.

        ``has_tangent`` says which results ``derivative`` returns a tangent of. The
        wanted ones are marked in ``results_vary``.
        """
        count = len(self.results_vary)
        outputs = current_builder().inline(derivative, inputs)
        tangents = with_nones(outputs[count:], has_tangent)
        return [*outputs[:count], *not_none(selected(tangents, self.results_vary))]


def _mapped_input(
    builder: ProgramBuilder,
    type: ArrayType,
    size: int,
    is_mapped: bool,
    is_wanted: bool,
) -> Atom:
    """Add an input to ``builder``, and return it with the mapped axis if it is wanted.

    ``type`` has the mapped axis, of extent ``size``, if it is wanted. The input has it
    if ``is_mapped``; else it is repeated.
    """
    if is_mapped or not is_wanted:
        return builder.input(type)
    member = type.with_shape(type.shape[1:]).with_varying(type.varying)
    return repeated(size, builder.input(member), dim=None)


def mapped_type(type: ArrayType, size: int) -> ArrayType:
    """Return ``type`` with a mapped axis of extent ``size`` in front."""
    return type.with_shape((size, *type.shape)).with_varying(type.varying)


def _split(
    split: Split, whole: Equation, unknown: Sequence[bool]
) -> tuple[list[Equation], list[Equation]]:
    """Split a ``custom_vmap`` into a known call and a linear call.

    ``whole`` is the call, and ``unknown`` marks its operands that the known part may
    not read. Each part is a plain call, and is mapped by the rules of the body's
    primitives. The custom rule can only map the whole body.
    """
    body: Program = whole.params["body"]
    parts = split(body, unknown, [False] * len(whole.outputs))
    residuals = [Var(a.type) for a in parts.residual_outputs]
    name = whole.params["name"]
    known = equation(
        operator_call,
        unselected(whole.inputs, unknown),
        {"name": f"known_{name}", "body": parts.known},
        [*unselected(whole.outputs, parts.unknown), *residuals],
        whole,
    )
    linear = equation(
        operator_call,
        [*residuals, *selected(whole.inputs, unknown)],
        {"name": f"linear_{name}", "body": parts.linear},
        selected(whole.outputs, parts.unknown),
        whole,
    )
    return [known], [linear]


# The rule has types of its own, so the sample is of the type that tests compute in.
_SAMPLE_TYPE = ArrayType((3, 4), dtypes.float64)


def _double_product(x: Atom, y: Atom) -> list[Atom]:
    """Emit 2 * x * y, the function of the samples."""
    product = e.mul(x, y)
    return [e.add(product, product)]


def _sample_rule(size: int, mapped: tuple[bool, ...], _: Batch) -> Mapped:
    """The custom batching rule of the samples' function: map both operands."""
    builder = ProgramBuilder("double_product")
    with builder:
        operands: list[Atom] = []
        for is_mapped in mapped:
            type = mapped_type(_SAMPLE_TYPE, size) if is_mapped else _SAMPLE_TYPE
            x = builder.input(type)
            operands.append(repeated(size, x, 0 if is_mapped else None))
        return builder.build(_double_product(*operands)), [True]


_SAMPLE_RULE = FUNCTIONS.name(_sample_rule, "double_product")


def _samples() -> Iterable[Sample]:
    """Yield a call with a custom batching rule, for the table tests."""
    operands = tuple(
        families.random_array(dtypes.float64, (3, 4), seed) for seed in (61, 62)
    )
    body = built("double_product", _double_product, [_SAMPLE_TYPE] * 2)
    yield Sample(operands, {"name": body.name, "body": body, "rule": _SAMPLE_RULE})


custom_vmap = call_primitive(
    name="custom_vmap",
    jvp=OverPrograms(_jvp),
    batch=OverPrograms(_batch),
    split=OverPrograms(_split),
    samples=_samples,
    doc="A function with the user's batching rule.",
)
