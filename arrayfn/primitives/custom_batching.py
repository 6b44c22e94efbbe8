"""Calls of functions with custom batching rules.

``custom_vmap`` computes its body. ``rule`` names a function that maps it:
``rule(size, mapped, batch)`` gives a Program of the operands, of which those that are
mapped have the mapped axis in front, and which of its outputs are mapped. ``batch``
maps other Programs, if the rule needs some.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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
    """Batching rule: calls the Program that the custom rule gives for these inputs."""
    mapped = tuple(dim is not None for dim in dims)
    program, given = FUNCTIONS.find(rule).function(axis_size, mapped, batch)
    call = operator_call(
        *mapped_axes_first(inputs, dims), name=f"vmap_{name}", body=program
    )
    return as_list(call), [0 if is_mapped else None for is_mapped in given]


def _jvp(
    jvp: Jvp,
    primals: Atoms,
    tangents: Tangents,
    *,
    name: str,
    body: Program,
    rule: str,
) -> WithTangents:
    """The jvp rule: the body's derivative, mapped by that of the custom rule."""
    varies = [t is not None for t in tangents]
    count = len(body.outputs)
    derivative, given = jvp(body, varies, [False] * count)

    def mapped_derivative(size: int, mapped: tuple[bool, ...], batch: Batch) -> Mapped:
        """The derivative of the mapped function, for these mapped operands.

        ``mapped`` has a flag for each operand, then for each tangent. Returns a Program
        and which of its outputs are mapped, as a custom rule does.
        """
        values, directions = split_by_counts(mapped, len(varies))
        in_place = _flags_in_place(directions, varies)
        of_values = FUNCTIONS.find(rule).function

        def inlined(
            inner: Program, have: Sequence[bool], operands: Atoms
        ) -> list[Atom]:
            """The outputs of ``inner``, a derivative, with the tangents ``given``."""
            made = current_builder().inline(inner, operands)
            return [
                *made[:count],
                *not_none(selected(with_nones(made[count:], have), given)),
            ]

        are_apart = not any(
            value and (direction or not moves)
            for value, direction, moves in zip(values, in_place, varies, strict=True)
        )
        if are_apart:
            # No value is mapped with its direction: the rule is for none.
            alone, results = of_values(size, (False,) * len(values), batch)
            if not any(results):
                inner, have = jvp(alone, varies, given)
                builder = ProgramBuilder(inner.name)
                with builder:
                    operands = builder.inputs_of(inner)
                    program = builder.build(inlined(inner, have, operands))
                return batch(program, size, mapped, [False] * len(program.outputs))
        together = elementwise_or(values, in_place)
        # A value and its direction are mapped together.
        alone, results = of_values(size, tuple(together), batch)
        inner, have = jvp(alone, varies, given)
        builder = ProgramBuilder(inner.name)
        with builder:
            wanted = [*together, *selected(together, varies)]
            operands = []
            for type, has, needs in zip(inner.input_types, mapped, wanted, strict=True):
                lacks = needs and not has
                given_type = type.with_shape(type.shape[1:]) if lacks else type
                operand = builder.input(given_type)
                operands.append(repeated(size, operand, None) if lacks else operand)
            program = builder.build(inlined(inner, have, operands))
        return program, [*results, *selected(results, given)]

    made = as_list(
        custom_vmap(
            *primals,
            *not_none(tangents),
            name=f"jvp_{name}",
            body=derivative,
            rule=FUNCTIONS.name(mapped_derivative, f"jvp_{name}"),
        )
    )
    return made[:count], with_nones(made[count:], given)


def _flags_in_place(flags: Sequence[bool], there: Sequence[bool]) -> list[bool]:
    """The next of ``flags`` where ``there`` is True, else False."""
    rest = iter(flags)
    return [next(rest) if is_there else False for is_there in there]


def mapped_type(type: ArrayType, size: int) -> ArrayType:
    """``type`` with a mapped axis of extent ``size`` in front."""
    return type.with_shape((size, *type.shape))


def _split(
    split: Split, whole: Equation, unknown: Sequence[bool]
) -> tuple[list[Equation], list[Equation]]:
    """The equations of the known part of a call, and those of its linear part.

    ``whole`` is a ``custom_vmap``, and ``unknown`` marks its operands that the known
    part may not read. Each part is a plain call: it is mapped by the rules of the
    body's primitives, not by the custom rule, which maps the whole body only.
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
    """2 * x * y, the function of the samples."""
    product = e.mul(x, y)
    return [e.add(product, product)]


def _sample_rule(size: int, mapped: tuple[bool, ...], _: Batch) -> Mapped:
    """The custom batching rule of the samples' function."""
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
    """A call with a rule of its own, for the table tests."""
    operands = tuple(
        families.random_array(dtypes.float64, (3, 4), seed, -3.0, 3.0)
        for seed in (61, 62)
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
