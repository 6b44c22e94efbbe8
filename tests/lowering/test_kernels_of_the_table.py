"""Each row's kernels on its own samples: un-jitted and compiled, within bounds.

Floats are compared with the oracle's, in float64, by the bounds of their errors; what
has several right answers (factorisations) with the reference, by the row's tolerance.

All samples of a row are one Program, so that the kernels of a row compile together.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from arrayfn import dtypes
from arrayfn.ir import ArrayType, Program, Var, type_of
from arrayfn.ir.builder import ProgramBuilder
from arrayfn.lowering.libraries import LIBRARIES
from arrayfn.lowering.templates import TEMPLATES
from arrayfn.passes.pipeline import run_passes
from arrayfn.primitives import elementwise as e
from arrayfn.primitives.base import (
    Body,
    Composition,
    Contraction,
    Convert,
    Library,
    Primitive,
    Reduction,
    Scalar,
    Template,
    View,
)
from arrayfn.primitives.custom_rules import custom_vjp_linear
from arrayfn.primitives.table import ROWS
from tests.lowering.kernels import check_kernels, keys

# custom_vjp_linear stands for a derivative until it is transposed: no Program that is
# run has one. Loops and branches are no kernels.
LOWERED = [
    row for row in ROWS if row is not custom_vjp_linear and row.family != "control"
]


def program_of_samples(row: Primitive) -> tuple[Program, list[Any], list[str]]:
    """All samples of ``row`` as one Program; its inputs; labels of its outputs."""
    builder = ProgramBuilder(row.name)
    known: dict[Any, Var] = {}
    inputs: list[Any] = []
    labels: list[str] = []
    outputs = []
    with builder:
        for number, sample in enumerate(row.samples()):
            operands = []
            for given in sample.inputs:
                x = np.asarray(given)
                key = (x.dtype, x.shape, x.tobytes())
                if key not in known:
                    known[key] = builder.input(type_of(x))
                    inputs.append(x)
                operands.append(known[key])
            made = builder.emit(row, operands, sample.params)
            types = ", ".join(str(v.type) for v in operands)
            labels += [f"sample {number}: {row.name}({types})"] * len(made)
            outputs += made
    return builder.build(outputs), inputs, labels


@pytest.mark.parametrize("row", LOWERED, ids=lambda row: row.name)
def test_kernels_agree_with_the_reference(
    row: Primitive, request: pytest.FixtureRequest
) -> None:
    if row.name == "schur":
        request.getfixturevalue("one_lapack")
    program, inputs, labels = program_of_samples(row)
    assert inputs or labels, "a row has samples"
    judge = row.family != "linear algebra"
    check_kernels(program, inputs, row.tolerance, labels, judge=judge)


@pytest.mark.parametrize("row", LOWERED, ids=lambda row: row.name)
def test_every_row_has_a_way_to_a_kernel(row: Primitive) -> None:
    form = row.kernel
    if isinstance(form, Template):
        assert form.name in TEMPLATES or form.name == "iota"
        return
    if isinstance(form, Library):
        assert form.name in LIBRARIES
        return
    program, _, _ = program_of_samples(row)
    after = {eq.primitive.name for eq in run_passes(program, check=True).equations}
    if isinstance(form, (Body, Composition)):
        # A pass replaces it by what it is made of.
        assert row.name not in after
    else:
        assert isinstance(form, (Scalar, Convert, View, Reduction, Contraction))


def test_templates_are_of_the_table() -> None:
    named = {row.kernel.name for row in ROWS if isinstance(row.kernel, Template)}
    assert set(TEMPLATES) == named - {"iota"}


def test_libraries_are_of_the_table() -> None:
    named = {row.kernel.name for row in ROWS if isinstance(row.kernel, Library)}
    assert set(LIBRARIES) == named


def test_custom_vjp_linear_is_transposed_before_it_is_lowered() -> None:
    assert isinstance(custom_vjp_linear.kernel, Body)
    assert list(custom_vjp_linear.samples()) == []


def test_the_table_covers_every_dtype() -> None:
    seen = {
        np.asarray(x).dtype
        for row in LOWERED
        for sample in row.samples()
        for x in sample.inputs
    }
    assert seen == dtypes.ALL


def test_kernels_of_one_text_and_two_dtypes_are_two() -> None:
    builder = ProgramBuilder("twice")
    with builder:
        inputs = [
            builder.input(ArrayType((3,), dtype))
            for dtype in (dtypes.float32, dtypes.float64)
        ]
        program = builder.build([e.neg(e.add(x, x)) for x in inputs])
    given = [np.arange(3.0, dtype=t.dtype) for t in program.input_types]
    assert len(keys(check_kernels(program, given))) == 2
