"""Random Programs: reference, derivatives, mapping and compiled kernels agree.

Programs are drawn from the primitive table: every elementwise row that takes the dtype,
on operands brought into the range of the row's own samples, between views, reductions,
contractions and selections.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from arrayfn import dtypes
from arrayfn.backends.registry import BACKENDS
from arrayfn.dtypes import DType
from arrayfn.ir import ArrayType, Atom, Literal, Program, Var
from arrayfn.ir.builder import ProgramBuilder
from arrayfn.ir.text import format_program, parse_program
from arrayfn.primitives import (
    complex_numbers,
    conversion,
    discrete,
    reductions,
    slicing,
    special,
    views,
)
from arrayfn.primitives import elementwise as e
from arrayfn.primitives.base import ZERO_TANGENT, Marker, Primitive
from arrayfn.primitives.calls import evaluate, operator_call
from arrayfn.primitives.table import ROWS, TABLE
from arrayfn.transforms.batching import batch
from arrayfn.transforms.transposition import value_and_grad
from tests.programs import check_derivatives, check_mapped, variants

# Rows that jump (where rounding decides the result) take what is exact alone.
JUMPS = {row.name for row in ROWS if row.jvp == ZERO_TANGENT} | {"remainder", "fmod"}


def elementwise_rows(dtype: DType) -> list[tuple[Primitive, list[tuple[float, float]]]]:
    """Rows of ``dtype`` alone, with the ranges of their samples' operands."""
    found = []
    for row in ROWS:
        for sample in row.samples() if row.family == "elementwise" else ():
            given = {np.asarray(x).dtype for x in sample.inputs}
            if given == {dtype} and not is_refused(row):
                ranges = [(float(x.min()), float(x.max())) for x in sample.inputs]
                found.append((row, ranges))
                break
    return found


def is_refused(row: Primitive) -> bool:
    return isinstance(row.jvp, Marker) and row.jvp.name == "not_differentiable"


class Drawn:
    """A Program being drawn: its values, and which of them no rounding has touched."""

    def __init__(self, draw: st.DrawFn, dtype: DType) -> None:
        self.draw = draw
        self.dtype = dtype
        self.builder = ProgramBuilder("random")
        self.rows, self.columns = (draw(st.integers(1, 4)) for _ in range(2))
        shapes = [(self.rows, self.columns), (self.columns,), ()]
        self.values: list[Atom] = [
            self.builder.input(ArrayType(shape, dtype)) for shape in shapes
        ]
        self.exact: set[int] = {id(v) for v in self.values}
        self.elementwise = elementwise_rows(dtype)

    def pick(self, ndim: int | None = None, exact: bool = False) -> Atom:
        """One of the values; the last ones are likelier."""
        fitting = [
            v
            for v in self.values
            if (ndim is None or v.type.ndim == ndim)
            and (not exact or id(v) in self.exact)
        ]
        place = min(self.draw(st.integers(0, 5)), len(fitting) - 1)
        return fitting[-1 - place]

    def keep(self, value: Atom, *operands: Atom, exact: bool = False) -> None:
        assert isinstance(value, (Var, Literal))
        self.values.append(value)
        if exact and all(id(x) in self.exact for x in operands):
            self.exact.add(id(value))

    def alike(self, x: Atom, y: Atom) -> Atom:
        """``y`` in the shape of ``x``, or rank 0."""
        if y.type.shape in (x.type.shape, ()) or x.type.shape == ():
            return y
        if y.type.ndim == 1 and x.type.ndim == 2 and y.type.shape[0] in x.type.shape:
            axis = x.type.shape.index(y.type.shape[0])
            return views.broadcast_in_dim(y, shape=x.type.shape, axes=(axis,))
        return reductions.reduce_max(y, axes=tuple(range(y.type.ndim)))

    def within(self, x: Atom, low: float, high: float) -> Atom:
        """``x`` brought into a range, away from its ends."""
        margin = 0.05 * (high - low) + 1e-3
        scaled = e.mul(special.logistic(x), high - low - 2 * margin)
        return e.add(scaled, low + margin)

    # Steps.

    def apply_row(self) -> None:
        row, ranges = self.draw(st.sampled_from(self.elementwise))
        jumps = row.name in JUMPS
        operands: list[Atom] = []
        for low, high in ranges:
            x = self.pick(exact=jumps)
            operands.append(x if jumps else self.within(x, low, high))
        first = max(operands, key=lambda v: v.type.ndim)
        if jumps and any(x.type.shape not in (first.type.shape, ()) for x in operands):
            operands = [operands[0]] * len(operands)
        operands = [self.alike(first, x) for x in operands]
        y = row(*operands)
        if y.type.dtype in dtypes.COMPLEX:
            y = e.mul(complex_numbers.real(y), complex_numbers.imag(y))
        self.keep(conversion.convert(y, self.dtype))

    def add_or_multiply(self) -> None:
        x, y = self.pick(), self.pick()
        row = self.draw(st.sampled_from([e.add, e.sub, e.mul]))
        if row is e.mul:
            x, y = special.tanh(x), special.tanh(y)
        self.keep(row(x, self.alike(x, y)))

    def scale(self) -> None:
        self.keep(e.mul(self.pick(), self.draw(st.sampled_from([-1.0, 0.5, 2.0]))))

    def choose(self) -> None:
        x, y, z = self.pick(exact=True), self.pick(), self.pick()
        which = discrete.lt(x, self.draw(st.sampled_from([-0.5, 0.0, 0.7])))
        if which.type.shape != y.type.shape:
            which = reductions.reduce_or(which, axes=tuple(range(which.type.ndim)))
        z = self.alike(y, z)
        if z.type.shape != y.type.shape and y.type.shape == ():
            y, z = z, y
        self.keep(e.select(which, y, z))

    def view(self) -> None:
        x = self.pick(ndim=2)
        n, m = x.type.shape
        kind = self.draw(st.sampled_from(["T", "rev", "slice", "pad", "cat", "flat"]))
        if kind == "T":
            y = views.transpose(x, permutation=(1, 0))
        elif kind == "rev":
            y = views.rev(x, axes=self.draw(st.sampled_from([(0,), (1,), (0, 1)])))
        elif kind == "slice":
            start = (self.draw(st.integers(0, n - 1)), 0)
            step = self.draw(st.integers(1, 2))
            y = slicing.slice_(x, start=start, limit=(n, m), strides=(1, step))
        elif kind == "pad":
            edges = ((self.draw(st.integers(-1, 2)) if n > 1 else 1, 0, 0), (0, 1, 1))
            y = slicing.pad(x, conversion.literal(0.5, self.dtype), config=edges)
        elif kind == "cat":
            other = views.rev(x, axes=(1,))
            y = slicing.concatenate(x, other, axis=self.draw(st.integers(0, 1)))
        else:
            y = views.reshape(x, shape=(n * m,))
        self.keep(y, x, exact=kind != "pad")

    def reduce(self) -> None:
        x = self.pick(ndim=2)
        axis = self.draw(st.integers(0, 1))
        name = self.draw(
            st.sampled_from(["sum", "max", "min", "prod", "cumsum", "arg"])
        )
        if name == "cumsum":
            self.keep(TABLE["cumsum"](x, axis=axis, reverse=self.draw(st.booleans())))
            return
        if name == "arg":
            at = reductions.argmax(
                self.pick(2, exact=True), axis=axis, dtype=dtypes.int32
            )
            self.keep(conversion.convert(at, self.dtype))
            return
        if name == "prod":
            x = special.tanh(x)
        y = TABLE[f"reduce_{name}"](x, axes=(axis,))
        if self.draw(st.booleans()):
            y = views.broadcast_in_dim(y, shape=x.type.shape, axes=(1 - axis,))
        self.keep(y)

    def contract(self) -> None:
        x, y = self.pick(ndim=2), self.pick(ndim=2)
        pairs = [
            (a, b)
            for a in range(2)
            for b in range(2)
            if x.type.shape[a] == y.type.shape[b]
        ]
        if not pairs:
            y, pairs = x, [(0, 0)]
        a, b = self.draw(st.sampled_from(pairs))
        self.keep(
            TABLE["dot_general"](
                special.tanh(x), y, contract=((a,), (b,)), batch=((), ())
            )
        )

    def take_rows(self) -> None:
        x = self.pick(ndim=2)
        _, m = x.type.shape
        index = views.iota(shape=(3, 1), axis=0, dtype=dtypes.int32)
        rows = e.sub(index, self.draw(st.integers(-1, 1)))
        y = TABLE["gather"](
            x,
            rows,
            window_axes=(1,),
            collapsed_axes=(0,),
            indexed_axes=(0,),
            batch=((), ()),
            sizes=(1, m),
            mode=self.draw(st.sampled_from(["clip", "promise_in_bounds"])),
            fill_value=None,
        )
        self.keep(y, x, exact=True)

    def call(self) -> None:
        x, y = self.pick(), self.pick()
        y = self.alike(x, y)
        inner = ProgramBuilder("inner")
        with inner:
            u, v = inner.input(x.type), inner.input(y.type)
            body = inner.build([e.sub(special.sin(u), e.mul(v, 0.5))])
        self.keep(operator_call(x, y, name="inner", body=body))

    def run(self) -> Program:
        steps: list[Callable[[], None]] = [
            self.apply_row,
            self.apply_row,
            self.add_or_multiply,
            self.scale,
            self.choose,
            self.view,
            self.reduce,
            self.contract,
            self.take_rows,
            self.call,
        ]
        with self.builder:
            for _ in range(self.draw(st.integers(2, 9))):
                self.draw(st.sampled_from(steps))()
            outputs = [self.values[-1], self.pick()]
        return self.builder.build(outputs)


@st.composite
def programs(draw: st.DrawFn, dtype: DType) -> Program:
    return Drawn(draw, dtype).run()


def arguments_of(program: Program) -> list[Any]:
    rng = np.random.default_rng(5)
    return [
        np.asarray(rng.uniform(-1.5, 1.5, t.shape)).astype(t.dtype)
        for t in program.input_types
    ]


def scalar(program: Program) -> Program:
    """The sum of all outputs of ``program``, a scalar."""
    builder = ProgramBuilder("total")
    with builder:
        inputs = [builder.input(t) for t in program.input_types]
        total: Atom | None = None
        for y in builder.inline(program, inputs):
            part = reductions.reduce_sum(y, axes=tuple(range(y.type.ndim)))
            total = part if total is None else e.add(total, part)
        assert total is not None
        return builder.build([total])


@given(programs(dtypes.float64))
@settings(max_examples=60)
def test_derivatives_agree_with_finite_differences(program: Program) -> None:
    note(str(program))
    program.check()
    arguments = arguments_of(program)
    check_derivatives(program, arguments, [True] * 3, rtol=2e-5, atol=2e-5)


@given(programs(dtypes.float64))
@settings(max_examples=40)
def test_derivatives_of_gradients_agree_with_finite_differences(
    program: Program,
) -> None:
    note(str(program))
    gradient = value_and_grad(scalar(program), [True] * 3)
    arguments = arguments_of(program)
    check_derivatives(gradient, arguments, [True] * 3, rtol=2e-4, atol=2e-4)


@given(programs(dtypes.float64))
@settings(max_examples=40)
def test_mapping_is_a_loop(program: Program) -> None:
    note(str(program))
    check_mapped(program, arguments_of(program))
    check_mapped(value_and_grad(scalar(program), [True] * 3), arguments_of(program))


@given(programs(dtypes.float32))
@settings(max_examples=40)
def test_texts_round_trip(program: Program) -> None:
    text = format_program(program)
    assert format_program(parse_program(text, TABLE)) == text


def check_compiled(program: Program, arguments: Sequence[Any], bound: float) -> None:
    """Assert that the CPU's kernels compute what the reference does."""
    note(format_program(program))
    backend = BACKENDS["cpu"]
    compiled = backend.lower(program, frozenset())
    note(compiled.text)
    results = backend.load(compiled)(tuple(arguments))
    for have, want, type in zip(
        results, evaluate(program, arguments), program.output_types, strict=True
    ):
        assert np.asarray(have).dtype == type.dtype
        assert np.shape(have) == type.shape
        np.testing.assert_allclose(have, want, bound, bound)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "bound"), [(dtypes.float64, 1e-10), (dtypes.float32, 2e-4)], ids=str
)
@given(data=st.data())
@settings(max_examples=12)
def test_compiled_programs_agree_with_the_reference(
    dtype: DType, bound: float, data: st.DataObject
) -> None:
    program = data.draw(programs(dtype))
    arguments = arguments_of(program)
    check_compiled(program, arguments, bound)
    gradient = value_and_grad(scalar(program), [True] * 3)
    check_compiled(gradient, arguments, 10 * bound)
    mapped = batch(program, 3, [0, None, 0], [0, 0])
    stacked = [np.stack(variants(x)) for x in arguments]
    check_compiled(mapped, [stacked[0], arguments[1], stacked[2]], bound)
