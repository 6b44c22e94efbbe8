"""Every row of the primitive table, checked on its own samples.

What a kernel has to do with a row (equal to the reference, in every layout) is checked
where kernels are, in tests/lowering.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from arrayfn import dtypes
from arrayfn.errors import DifferentiationError
from arrayfn.ir import Program, type_of
from arrayfn.ir.builder import current_builder
from arrayfn.ir.text import format_program, parse_program
from arrayfn.primitives.base import (
    LINEAR,
    NOT_LINEAR,
    THROUGH_BODY,
    WHOLE,
    ZERO_TANGENT,
    ByAxis,
    JvpWithOutputs,
    KernelForm,
    Marker,
    OverPrograms,
    Primitive,
    Sample,
)
from arrayfn.primitives.calls import evaluate
from arrayfn.primitives.table import ROWS, TABLE
from arrayfn.tools.oracle import oracle
from arrayfn.transforms.batching import batch
from arrayfn.transforms.forward_mode import jvp
from arrayfn.transforms.transposition import vjp
from tests.programs import (
    MAPPED,
    build,
    check_derivatives,
    check_mapped,
    noise,
    variants,
)


@dataclasses.dataclass(frozen=True)
class Case:
    row: Primitive
    sample: Sample
    label: str

    @property
    def arguments(self) -> list[Any]:
        return [np.asarray(x) for x in self.sample.inputs]

    def program(self) -> Program:
        def emit(*operands: Any) -> Any:
            return current_builder().emit(self.row, operands, self.sample.params)

        return build(emit, *[type_of(x) for x in self.arguments])

    def wrt(self) -> list[bool]:
        chosen = self.sample.differentiate
        return [
            x.dtype in dtypes.INEXACT and (chosen is None or k in chosen)
            for k, x in enumerate(self.arguments)
        ]


def label_of(sample: Sample) -> str:
    named = [v for v in sample.params.values() if isinstance(v, np.dtype)]
    given = [np.asarray(x).dtype for x in sample.inputs]
    return "-".join(dict.fromkeys(dtypes.short_name(d) for d in (*given[:2], *named)))


def cases() -> Iterator[Case]:
    for row in ROWS:
        for sample in row.samples():
            yield Case(row, sample, f"{row.name}-{label_of(sample)}")


def over(cases: list[Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases, ids=lambda c: c.label)


def is_refused(row: Primitive) -> bool:
    return isinstance(row.jvp, Marker) and row.jvp.name == "not_differentiable"


CASES = list(cases())
DIFFERENTIABLE = [c for c in CASES if any(c.wrt()) and not is_refused(c.row)]


def widened(value: Any) -> Any:
    """Arrays and params in float64 or complex128 where they were inexact."""
    if isinstance(value, Program):
        text = format_program(value, comments=False).replace("f32", "f64")
        return parse_program(text, TABLE)
    if isinstance(value, tuple) and value and isinstance(value[0], Program):
        return tuple(widened(program) for program in value)
    if isinstance(value, np.dtype):
        dtype = value
    elif isinstance(value, (np.ndarray, np.generic)):
        dtype = value.dtype
    else:
        return value
    wide = dtype
    if dtype in dtypes.FLOATS:
        wide = dtypes.float64
    elif dtype in dtypes.COMPLEX:
        wide = dtypes.complex128
    return wide if isinstance(value, np.dtype) else np.asarray(value).astype(wide)


def wide_cases() -> Iterator[Case]:
    """The samples in double precision; one of those that differ in precision alone."""
    seen: set[Any] = set()
    for case in DIFFERENTIABLE:
        inputs = tuple(widened(x) for x in case.sample.inputs)
        params = {k: widened(v) for k, v in case.sample.params.items()}
        key = (
            case.row.name,
            tuple((x.shape, x.dtype) for x in inputs),
            tuple(x.tobytes() for x in inputs if x.dtype not in dtypes.INEXACT),
            repr(
                {
                    k: format_program(v) if isinstance(v, Program) else v
                    for k, v in params.items()
                }
            ),
        )
        sample = Sample(inputs, params, case.sample.differentiate)
        wide = dataclasses.replace(case, sample=sample)
        # Halves came from few values: the derivative there may be at a tie.
        half = any(
            np.asarray(x).dtype in dtypes.HALF_PRECISION for x in case.sample.inputs
        )
        if not half and key not in seen:
            seen.add(key)
            yield wide


WIDE = list(wide_cases())


# The row itself.


def test_names_are_unique() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS) == len(TABLE)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_slot_is_filled(row: Primitive) -> None:
    assert row.name.isidentifier()
    assert row.family
    assert row.doc.endswith("."), "a row says in a sentence what it computes"
    assert isinstance(row.kernel, KernelForm)
    for slot, markers in (
        (row.jvp, (LINEAR, ZERO_TANGENT, THROUGH_BODY)),
        (row.transpose, (NOT_LINEAR, THROUGH_BODY)),
        (row.batch, (THROUGH_BODY,)),
        (row.split, (WHOLE,)),
    ):
        if isinstance(slot, Marker):
            refused = slot.name == "not_differentiable" and slot.reason
            assert slot in markers or refused
        else:
            held = (ByAxis, JvpWithOutputs, OverPrograms)
            assert callable(slot.rule if isinstance(slot, held) else slot)
    # The linear part of a custom_vjp has no meaning before it is transposed.
    assert list(row.samples()) or row.name == "custom_vjp_linear"


@over(CASES)
def test_the_reference_has_the_types_of_the_rule(case: Case) -> None:
    program = case.program()
    arguments = case.arguments
    before = [x.copy() for x in arguments]
    for have, want in zip(
        evaluate(program, arguments), program.output_types, strict=True
    ):
        assert np.asarray(have).dtype == want.dtype
        assert np.shape(have) == want.shape
    for x, y in zip(arguments, before, strict=True):
        np.testing.assert_array_equal(x, y)


@over([case for case in CASES if case.row.family != "linear algebra"])
def test_the_reference_is_within_the_oracles_bounds(case: Case) -> None:
    program = case.program()
    judged = oracle(program, case.arguments)
    for one, have in zip(judged, evaluate(program, case.arguments), strict=True):
        one.check(have)


@over(CASES)
def test_the_text_of_an_equation_round_trips(case: Case) -> None:
    program = case.program()
    text = format_program(program)
    parsed = parse_program(text, TABLE)
    assert format_program(parsed) == text
    assert case.row is parsed.equations[0].primitive


# Derivatives.


def derivative_programs(case: Case) -> Iterator[tuple[Program, list[Any], list[bool]]]:
    """The derivatives of a case as Programs, with arguments and what they vary with."""
    program, wrt = case.program(), case.wrt()
    rng = np.random.default_rng(1)
    chosen = [t for t, w in zip(program.input_types, wrt, strict=True) if w]
    if case.row.name != "custom_vjp":
        forward = jvp(program, wrt)
        tangents = [noise(rng, t) for t in chosen]
        yield forward, [*case.arguments, *tangents], [*wrt, *[True] * len(tangents)]
    cotangents = [
        noise(rng, t) if t.dtype in dtypes.INEXACT else np.zeros(t.shape, t.dtype)
        for t in program.output_types
    ]
    varies = [ct.dtype in dtypes.INEXACT for ct in cotangents]
    yield vjp(program, wrt), [*case.arguments, *cotangents], [*wrt, *varies]


@over(WIDE)
def test_derivatives_agree_with_finite_differences(case: Case) -> None:
    program = case.program()
    forward = case.row.name != "custom_vjp"
    check_derivatives(program, case.arguments, case.wrt(), forward=forward)


@over(WIDE)
def test_second_derivatives_agree_with_finite_differences(case: Case) -> None:
    for program, arguments, wrt in derivative_programs(case):
        check_derivatives(program, arguments, wrt)


@over(DIFFERENTIABLE)
def test_derivatives_have_the_types_of_the_values(case: Case) -> None:
    wrt = case.wrt()
    program = case.program()
    values = list(program.output_types)
    by = [t for t, w in zip(program.input_types, wrt, strict=True) if w]
    for derivative, arguments, _ in derivative_programs(case):
        derivative.check()
        reverse = derivative.name.startswith("vjp")
        expected = [*values, *(by if reverse else values)]
        assert [(t.shape, t.dtype) for t in derivative.output_types] == [
            (t.shape, t.dtype) for t in expected
        ]
        for have, want in zip(evaluate(derivative, arguments), expected, strict=True):
            assert np.asarray(have).dtype == want.dtype
            assert np.shape(have) == want.shape


@over([case for case in CASES if any(case.wrt()) and is_refused(case.row)])
def test_a_derivative_that_does_not_exist_is_refused_with_the_reason(
    case: Case,
) -> None:
    assert isinstance(case.row.jvp, Marker)
    with pytest.raises(DifferentiationError) as caught:
        jvp(case.program(), case.wrt())
    assert case.row.name in str(caught.value)
    assert case.row.jvp.reason in str(caught.value)


# Mapping.


@over([case for case in CASES if case.sample.inputs])
def test_mapping_is_a_loop(case: Case) -> None:
    check_mapped(case.program(), case.arguments)


@over(WIDE)
def test_mapping_a_derivative_is_a_loop(case: Case) -> None:
    for program, arguments, _ in derivative_programs(case):
        check_mapped(program, arguments)


@over(WIDE)
def test_the_derivative_of_a_mapped_row_agrees_with_finite_differences(
    case: Case,
) -> None:
    program = case.program()
    dims = [0] * len(case.arguments)
    mapped = batch(program, MAPPED, dims, [0] * len(program.outputs))
    arguments = [np.stack(variants(x)) for x in case.arguments]
    forward = case.row.name != "custom_vjp"
    check_derivatives(mapped, arguments, case.wrt(), forward=forward)
