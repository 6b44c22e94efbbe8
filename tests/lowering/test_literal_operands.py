"""Literals and constants in every operand position, through all passes and lowerings.

Each operand of a row's samples, and all of them at once, becomes a Literal where the
type rule takes rank 0, a broadcast Literal, or a constant of the Program. Derivatives
are taken along Literals, and pull back Literals.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import dtypes
from arrayfn.backends.cpu.unjitted import run_unjitted
from arrayfn.backends.cuda.emulated_plan import run_plan
from arrayfn.errors import ArrayfnError
from arrayfn.ir import Atom, Literal, Program, type_of
from arrayfn.ir.builder import ProgramBuilder
from arrayfn.lowering.cuda.config import GPU
from arrayfn.lowering.cuda.lower import lower as lower_for_gpu
from arrayfn.lowering.lower import lower
from arrayfn.primitives import views
from arrayfn.primitives.base import (
    LINEAR,
    Marker,
    Primitive,
    Sample,
    Tolerance,
)
from arrayfn.primitives.calls import evaluate
from arrayfn.primitives.custom_rules import custom_vjp_linear
from arrayfn.primitives.table import ROWS, TABLE
from arrayfn.transforms.batching import batch
from arrayfn.transforms.forward_mode import jvp
from arrayfn.transforms.transposition import vjp
from tests.lowering.kernels import assert_near

Array = np.ndarray[Any, Any]

ROWS_WITH_SAMPLES: Final = [row for row in ROWS if row is not custom_vjp_linear]
KINDS: Final = (dtypes.float32, dtypes.int32, dtypes.bool_, dtypes.complex64)
FORMS: Final = ("literal", "spread", "constant")
NEAR: Final = Tolerance(float32=2e-4, float64=1e-12)
HALF: Final = 0.5

_NUMBER = np.asarray(0.75, np.float32)
_VECTOR = np.arange(1, 4, dtype=np.float32) / 2
_PLAIN: Final = {"contract": ((), ()), "batch": ((), ())}

RANK_0: Final[dict[str, list[Sample]]] = {
    "transpose": [Sample((_NUMBER,), {"permutation": ()})],
    "broadcast_in_dim": [Sample((_NUMBER,), {"shape": (2, 3), "axes": ()})],
    "reshape": [
        Sample((_NUMBER,), {"shape": (1, 1)}),
        Sample((_NUMBER,), {"shape": ()}),
    ],
    "rev": [Sample((_NUMBER,), {"axes": ()})],
    "slice": [Sample((_NUMBER,), {"start": (), "limit": (), "strides": ()})],
    "pad": [Sample((_NUMBER, _NUMBER), {"config": ()})],
    "dynamic_slice": [Sample((_NUMBER,), {"sizes": ()})],
    "dynamic_update_slice": [Sample((_NUMBER, _NUMBER), {})],
    "dot_general": [
        Sample((_NUMBER, _VECTOR), _PLAIN),
        Sample((_VECTOR, _NUMBER), _PLAIN),
        Sample((_NUMBER, _NUMBER), _PLAIN),
        Sample((np.int32(3), np.arange(4, dtype=np.int32)), _PLAIN),
        Sample((np.int8(3), np.arange(8, dtype=np.int8)), _PLAIN),
    ],
    **{
        name: [Sample((np.asarray(x),), {"axes": ()})]
        for name, x in (
            ("reduce_sum", np.float32(0.75)),
            ("reduce_prod", np.float32(0.75)),
            ("reduce_max", np.float32(0.75)),
            ("reduce_min", np.int32(3)),
            ("reduce_and", np.bool_(True)),
            ("reduce_or", np.bool_(True)),
        )
    },
}
"""Samples of operands that are numbers, for rows whose own samples have none."""


def samples_of(row: Primitive) -> Iterator[Sample]:
    """One sample for each choice of ranks and kind of dtype."""
    seen: set[Any] = set()
    for sample in (*row.samples(), *RANK_0.get(row.name, ())):
        arrays = [np.asarray(x) for x in sample.inputs]
        key = (*(x.ndim for x in arrays), arrays[0].dtype if arrays else None)
        if key not in seen and all(
            x.dtype in (*KINDS, dtypes.int8, dtypes.uint32) for x in arrays
        ):
            seen.add(key)
            yield sample


@dataclass(frozen=True)
class Variant:
    """A sample, some of whose operands have another form than an input."""

    row: Primitive
    sample: Sample
    forms: tuple[str, ...]

    @property
    def label(self) -> str:
        types = ", ".join(
            f"{form} {type_of(np.asarray(x))}"
            for form, x in zip(self.forms, self.sample.inputs, strict=True)
        )
        return f"{self.row.name}({types})"

    @property
    def arrays(self) -> list[Array]:
        return [np.asarray(x) for x in self.sample.inputs]

    @property
    def inputs(self) -> list[Array]:
        """What the Program is given."""
        pairs = zip(self.forms, self.arrays, strict=True)
        return [x for form, x in pairs if form == "input"]

    @property
    def is_contiguous(self) -> bool:
        return all(x.flags.c_contiguous for x in self.arrays)

    def program(self) -> Program:
        builder = ProgramBuilder(self.row.name)
        with builder:
            operands = [
                atom_of(builder, form, x)
                for form, x in zip(self.forms, self.arrays, strict=True)
            ]
            return builder.build(builder.emit(self.row, operands, self.sample.params))

    def wrt(self) -> list[bool]:
        """Which inputs of the Program to differentiate by."""
        named = self.sample.differentiate
        pairs = enumerate(zip(self.forms, self.arrays, strict=True))
        return [
            x.dtype in dtypes.INEXACT and (named is None or k in named)
            for k, (form, x) in pairs
            if form == "input"
        ]


def atom_of(builder: ProgramBuilder, form: str, x: Array) -> Atom:
    if form == "input":
        return builder.input(type_of(x))
    if form == "constant":
        return builder.constant(x)
    first = Literal(x.ravel()[0].item(), x.dtype)
    if form == "literal" or not x.ndim:
        return first
    return views.broadcast_in_dim(first, shape=x.shape, axes=())


def variants_of(row: Primitive) -> Iterator[Variant]:
    for sample in samples_of(row):
        count = len(sample.inputs)
        alone = [("input",) * k for k in range(count)]
        for form in FORMS:
            for before in alone:
                rest = ("input",) * (count - len(before) - 1)
                yield from _accepted(Variant(row, sample, (*before, form, *rest)))
            if count > 1:
                yield from _accepted(Variant(row, sample, (form,) * count))


def _accepted(variant: Variant) -> Iterator[Variant]:
    """``variant``, if the type rule takes it and the row has a value there."""
    for form, x in zip(variant.forms, variant.arrays, strict=True):
        if form != "input" and not x.size:
            return
        if form == "spread" and variant.row.family == "linear algebra":
            return  # a matrix of equal numbers is singular
        if form == "literal" and x.ndim and variant.row.family == "callback":
            return  # its function of Python takes arrays
    try:
        variant.program()
    except ArrayfnError:
        assert "literal" in variant.forms  # rank 0 where an array is wanted
        return
    yield variant


def side_by_side(
    name: str, parts: Iterable[tuple[Program, Sequence[Array], str]]
) -> tuple[Program, list[Array], list[str]]:
    """Programs in one; its inputs; labels of its outputs."""
    builder = ProgramBuilder(name)
    inputs: list[Array] = []
    labels: list[str] = []
    outputs: list[Atom] = []
    with builder:
        for program, arguments, label in parts:
            program.check()
            made = builder.inline(
                program, [builder.input(type_of(x)) for x in arguments]
            )
            inputs += arguments
            outputs += made
            labels += [label] * len(made)
    return builder.build(outputs), inputs, labels


def check_everywhere(
    program: Program, inputs: list[Array], labels: list[str], tolerance: Tolerance
) -> None:
    """The CPU's kernels give the reference's values; a GPU's are made at least."""
    wanted = evaluate(program, inputs)
    results = run_unjitted(lower(program, check=True), inputs)
    for have, want, label in zip(results, wanted, labels, strict=True):
        assert_near(have, want, tolerance, label)
    lower_for_gpu(program, check=True, gpu=replace(GPU, multiprocessors=2))


def differentiated(variant: Variant) -> Iterator[tuple[Program, list[Array], str]]:
    """The jvp along Literals, and the vjp of Literals, of a variant."""
    program, wrt = variant.program(), variant.wrt()
    if not any(wrt) or (
        isinstance(variant.row.jvp, Marker) and variant.row.jvp is not LINEAR
    ):
        return
    moved = [t for t, w in zip(program.input_types, wrt, strict=True) if w]
    for how, transformed, types in (
        ("jvp", jvp, moved),
        ("vjp", vjp, program.output_types),
    ):
        if how == "jvp" and variant.row.name == "custom_vjp":
            continue
        inner = transformed(program, wrt)
        builder = ProgramBuilder(inner.name)
        with builder:
            given: list[Atom] = [builder.input(t) for t in program.input_types]
            given += [views.broadcast_literal(HALF, t) for t in types]
            made = builder.inline(inner, given)
        yield builder.build(made), variant.inputs, f"{how} of {variant.label}"


def mapped(variant: Variant) -> Iterator[tuple[Program, list[Array], str]]:
    """A variant mapped along its inputs."""
    program = variant.program()
    if program.inputs:
        outs = [0] * len(program.outputs)
        made = batch(program, 2, [0] * len(program.inputs), outs)
        stacked = [np.stack([x, x]) for x in variant.inputs]
        yield made, stacked, f"vmap of {variant.label}"


@pytest.mark.parametrize("row", ROWS_WITH_SAMPLES, ids=lambda row: row.name)
def test_every_operand_may_be_known(row: Primitive) -> None:
    parts = ((v.program(), v.inputs, v.label) for v in variants_of(row))
    check_everywhere(*side_by_side(row.name, parts), row.tolerance)


@pytest.mark.parametrize("row", ROWS_WITH_SAMPLES, ids=lambda row: row.name)
def test_every_operand_may_be_known_in_derivatives(row: Primitive) -> None:
    parts = (part for v in variants_of(row) for part in differentiated(v))
    check_everywhere(*side_by_side(row.name, parts), NEAR)


@pytest.mark.parametrize("row", ROWS_WITH_SAMPLES, ids=lambda row: row.name)
def test_every_operand_may_be_known_in_maps(row: Primitive) -> None:
    parts = (part for v in variants_of(row) for part in mapped(v))
    check_everywhere(*side_by_side(row.name, parts), NEAR)


EMULATED: Final = (
    "select",
    "pow",
    "pad",
    "concatenate",
    "reduce_max",
    "cumsum",
    "gather",
    "scatter_min",
    "dynamic_update_slice",
    "dot_general",
    "cond",
    "scan",
    "while_loop",
)


@pytest.mark.parametrize("name", EMULATED)
def test_every_operand_may_be_known_on_a_gpu(name: str) -> None:
    row = TABLE[name]
    variants = [v for v in variants_of(row) if v.is_contiguous]
    parts = [(v.program(), v.inputs, v.label) for v in variants]
    parts += [part for v in variants for part in differentiated(v)]
    program, inputs, labels = side_by_side(name, parts)
    made = lower_for_gpu(program, check=True, gpu=replace(GPU, multiprocessors=2))
    wanted = evaluate(program, inputs)
    for have, want, label in zip(run_plan(made, inputs), wanted, labels, strict=True):
        assert_near(have, want, NEAR, label)


W = np.array([0.5, -1.25, 2.0, 1.0])
A = np.arange(16.0).reshape(4, 4)
SCALED_PRODUCTS = {
    "half the square": (lambda w: 0.5 * (w @ w), W),
    "minus the square": (lambda w: -(w @ w), -2 * W),
    "a difference": (lambda w: 1 - w @ w, -2 * W),
    "a form": (lambda w: w @ A @ w / 2, (A + A.T) @ W / 2),
    "vdot": (lambda w: 3 * anp.vdot(w, w), 6 * W),
    "inner": (lambda w: anp.inner(w, w) / 4, W / 2),
    "tensordot": (lambda w: 3 * anp.tensordot(w, w, 1), 6 * W),
    "einsum": (lambda w: 2 * anp.einsum("i,i->", w, w), 4 * W),
    "ridge": (
        lambda w: anp.mean((A @ w - 1) ** 2) + 0.05 * (w @ w),
        A.T @ (A @ W - 1) / 2 + 0.1 * W,
    ),
}


@pytest.mark.parametrize("name", SCALED_PRODUCTS)
def test_gradients_of_scaled_products_compile(name: str) -> None:
    f, expected = SCALED_PRODUCTS[name]
    np.testing.assert_allclose(af.jit(af.grad(f))(W), expected, 1e-14)
    np.testing.assert_allclose(af.jit(af.value_and_grad(f))(W)[1], expected, 1e-14)
    mapped = af.jit(af.vmap(af.grad(f)))(np.stack([W, W]))
    np.testing.assert_allclose(mapped, np.stack([expected] * 2), 1e-14)
    hessian = af.hessian(f)(W)
    np.testing.assert_allclose(af.jit(af.hessian(f))(W), hessian, 1e-13)


def test_a_gradient_at_a_constant_point_compiles() -> None:
    x = np.ones((100, 3))

    def f(q):
        return anp.sum(x @ q) - 0.5 * q @ q

    at_zero = af.jit(lambda k: af.grad(f)(anp.zeros(3)))(np.ones(4))
    np.testing.assert_array_equal(at_zero, [100.0] * 3)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("min", [[2.0, 0.0, 2 / 3], [0.0, 2.0, 2.0]]),
        ("max", [[0.0, 2.0, 2 / 3], [2.0, 0.0, 0.0]]),
    ],
)
def test_what_a_scatter_writes_over_is_not_read_afterwards(
    name: str, expected: list[list[float]]
) -> None:
    x = np.array([[1.0, 5.0, 3.0], [4.0, 1.0, 2.0]])
    rows = np.array([0, 1, 0])

    def f(x):
        return getattr(anp.at(x)[rows], name)(3.0)

    def along_twos(x):
        return af.jvp(f, (x,), (anp.full((2, 3), 2.0),))[1]

    # An element that equals the updates shares its derivative with them.
    np.testing.assert_allclose(af.jit(along_twos)(x), expected, 1e-15)
