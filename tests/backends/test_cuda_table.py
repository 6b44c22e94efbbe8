"""Every row of the table on a GPU and on the CPU: values, jvp and vjp of its samples.

A row's samples, of all dtypes, are one Program, and their derivatives another, so that
a row's kernels compile together. How far the GPU may be from the CPU is ``bound``; a
second run has to give the bits of the first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pytest

from arrayfn import dtypes
from arrayfn.backends.cuda import missing_here
from arrayfn.backends.registry import choose
from arrayfn.ir import Program, Var, type_of
from arrayfn.ir.builder import ProgramBuilder
from arrayfn.primitives.base import Primitive
from arrayfn.primitives.table import ROWS
from tests.primitives.test_table import (
    CASES,
    DIFFERENTIABLE,
    Case,
    derivative_programs,
)

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(bool(missing_here()), reason=missing_here()),
]

Array = np.ndarray[Any, Any]

# A derivative is several operations, each as exact as its own row; halves are rounded
# once an operation.
DERIVATIVE: Final = 64.0
HALF_PRECISION: Final = {dtypes.float16: 2.0**-10, dtypes.bfloat16: 2.0**-7}
# Rows whose samples ask for more: the GPU's own kernel is as far from the true value.
WIDER: Final = {
    "dot_general": 2e-3,  # one of its samples asks for TF32
}
# Vectors of these are unique but for a factor of absolute value 1: absolute values are
# compared, and no cotangent is given to vectors.
UP_TO_A_PHASE: Final = {"eigh", "svd", "eig"}
# Members of a mesh compute them together: tests/distributed/test_on_gpus.py.
COLLECTIVES: Final = {row.name for row in ROWS if row.is_collective}
# What holds a function of Python, or has no values.
LEFT_OUT: Final = {"custom_vjp_linear", *COLLECTIVES}


def bound(row: Primitive, dtype: Any, derivative: bool) -> float:
    """How far results on the two devices may be apart, relative to the largest."""
    real = dtypes.compute_dtype(dtypes.real_of(dtype))
    single = real == dtypes.float32
    own = row.tolerance.float32 if single else row.tolerance.float64
    floor = 2e-6 if single else 4e-15
    wide = max(own, floor) * (DERIVATIVE if derivative else 1.0)
    if single:
        wide = max(wide, WIDER.get(row.name, 0.0))
    return max(wide, HALF_PRECISION.get(dtype, 0.0) * (8.0 if derivative else 1.0))


def grouped(cases: Sequence[Case]) -> dict[str, list[Case]]:
    """The cases of each row that runs compiled, by its name."""
    found: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        if case.row.name not in LEFT_OUT:
            found[case.row.name].append(case)
    return found


def values_of(cases: Sequence[Case]) -> Iterator[tuple[Program, list[Any], str]]:
    for case in cases:
        yield case.program(), case.arguments, case.label


def derivatives_of(cases: Sequence[Case]) -> Iterator[tuple[Program, list[Any], str]]:
    for case in cases:
        values = case.program().output_types
        for program, arguments, _ in derivative_programs(case):
            how = program.name.split("_")[0]
            if how == "vjp" and case.row.name in UP_TO_A_PHASE:
                least = min(type.ndim for type in values)
                arguments[-len(values) :] = [
                    ct if type.ndim == least else np.zeros_like(ct)
                    for ct, type in zip(arguments[-len(values) :], values, strict=True)
                ]
            yield program, arguments, f"{how} of {case.label}"


def together(
    name: str, parts: Iterator[tuple[Program, list[Any], str]]
) -> tuple[Program, list[Array], list[str]]:
    """Programs side by side in one; its inputs; labels of its outputs."""
    builder = ProgramBuilder(name)
    known: dict[Any, Var] = {}
    inputs: list[Array] = []
    labels: list[str] = []
    outputs: list[Any] = []
    with builder:
        for program, arguments, label in parts:
            operands: list[Any] = []
            for x in map(np.asarray, arguments):
                key = (x.dtype, x.shape, x.tobytes())
                if key not in known:
                    known[key] = builder.input(type_of(x))
                    inputs.append(x)
                operands.append(known[key])
            made = builder.inline(program, operands)
            outputs += made
            labels += [f"{label}, output {k}" for k in range(len(made))]
    return builder.build(outputs), inputs, labels


def on(device: str, program: Program, inputs: Sequence[Array]) -> list[Array]:
    backend = choose(device)
    run = backend.load(backend.lower(program, frozenset()))
    first, second = ([np.asarray(x) for x in run(tuple(inputs))] for _ in range(2))
    for x, y in zip(first, second, strict=True):
        assert x.tobytes() == y.tobytes(), "another run gives other bits"
    return first


def check(
    row: Primitive,
    parts: Iterator[tuple[Program, list[Any], str]],
    derivative: bool,
) -> None:
    """Assert that both devices give the same; all that differ are named."""
    program, inputs, labels = together(row.name, parts)
    wanted = on("cpu", program, inputs)
    results = on("cuda", program, inputs)
    assert not differences(row, labels, results, wanted, derivative)


def differences(
    row: Primitive,
    labels: Sequence[str],
    results: Sequence[Array],
    expected: Sequence[Array],
    derivative: bool = False,
) -> str:
    """What differs by more than the bound, a line for each result; "" if nothing."""
    wrong: list[str] = []
    for label, have, want in zip(labels, results, expected, strict=True):
        assert (have.shape, have.dtype) == (want.shape, want.dtype), label
        if want.dtype in dtypes.FLOAT8:  # NumPy does not compare their NaNs
            have, want = have.view(np.uint8), want.view(np.uint8)
        if want.dtype not in dtypes.INEXACT:
            if not np.array_equal(have, want):
                wrong.append(f"{label}: {have} is not {want}")
            continue
        limit = bound(row, want.dtype, derivative)
        wide = np.complex128 if want.dtype in dtypes.COMPLEX else np.float64
        x, y = have.astype(wide), want.astype(wide)
        if row.name in UP_TO_A_PHASE:
            x, y = np.abs(x), np.abs(y)
        scale = np.abs(y[np.isfinite(y)]).max(initial=0.0)
        near = np.isclose(x, y, limit, limit * scale, equal_nan=True)
        if not near.all():
            both = np.isfinite(x) & np.isfinite(y)
            far = np.abs(x - y)[both].max(initial=0.0) / (scale or 1.0)
            wrong.append(
                f"{label} {want.dtype}: {np.sum(~near)} of {near.size} differ, by "
                f"{far:.1e} of the largest, bound {limit:.1e}"
            )
    return "\n".join(wrong)


VALUES = grouped(CASES)
DERIVED = grouped(DIFFERENTIABLE)
BY_NAME = {row.name: row for row in ROWS}


@pytest.mark.parametrize("name", VALUES)
def test_values_are_those_of_the_cpu(name: str) -> None:
    check(BY_NAME[name], values_of(VALUES[name]), derivative=False)


@pytest.mark.parametrize("name", DERIVED)
def test_derivatives_are_those_of_the_cpu(name: str) -> None:
    check(BY_NAME[name], derivatives_of(DERIVED[name]), derivative=True)
