"""Random mixtures of reductions, broadcasts and transposes compute the same numbers.

All values are multiples of small powers of two and all operations exact, so that the
order of a sum does not matter and results must be equal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import given, note, settings
from hypothesis import strategies as st

from arrayfn import dtypes
from arrayfn.backends.registry import BACKENDS
from arrayfn.ir import ArrayType, Atom, Program
from arrayfn.ir.builder import ProgramBuilder
from arrayfn.ir.layout import C, F, Strided
from arrayfn.primitives import discrete, reductions, views
from arrayfn.primitives import elementwise as e
from arrayfn.primitives.calls import evaluate

EXTENTS = [(3, 5), (4, 4), (1, 5), (3, 1)]
LAYOUTS = {
    "C": lambda x: x,
    "F": np.asfortranarray,
    "S": lambda x: np.ascontiguousarray(np.repeat(x, 2, 0)[::-1])[::-2],
}


class Mixture:
    """A Program being drawn, from values of matrix, vector and scalar shapes."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.builder = ProgramBuilder("mixture")
        n, m = draw(st.sampled_from(EXTENTS))
        self.matrices = [(n, m), (m, n)]
        self.others: list[tuple[int, ...]] = [(n,), (m,), ()]
        layout = draw(st.sampled_from([C, F, Strided((-2 * m, 1))]))
        types = [ArrayType((n, m), dtypes.float64, layout)]
        types += [ArrayType(s, dtypes.float64) for s in ((m, n), (m,))]
        self.values: list[Atom] = [self.builder.input(t) for t in types]

    def pick(self, *shapes: tuple[int, ...]) -> Atom:
        """A value of one of ``shapes``, or of any; the last ones are likelier."""
        fitting = [v for v in self.values if not shapes or v.type.shape in shapes]
        return fitting[-1 - min(self.draw(st.integers(0, 3)), len(fitting) - 1)]

    def keep(self, value: Atom) -> None:
        self.values.append(value)

    def unary(self) -> None:
        row = self.draw(st.sampled_from([e.neg, e.absolute, lambda x: e.mul(x, 0.5)]))
        self.keep(row(self.pick()))

    def binary(self) -> None:
        x = self.pick()
        y = self.pick(x.type.shape, ())  # rank 0 meets any shape
        row = self.draw(
            st.sampled_from([e.add, e.sub, e.maximum, e.minimum, self.product])
        )
        self.keep(row(x, y))

    def product(self, x: Atom, y: Atom) -> Atom:
        """A product of values brought between -4 and 4, to keep all digits."""
        return e.mul(
            e.minimum(e.maximum(x, -4.0), 4.0), e.minimum(e.maximum(y, -4.0), 4.0)
        )

    def choose(self) -> None:
        x = self.pick()
        y, z = self.pick(x.type.shape), self.pick(x.type.shape)
        self.keep(e.select(discrete.lt(x, 0.5), y, z))

    def reduce(self) -> None:
        x = self.pick(*self.matrices)
        axes = self.draw(st.sampled_from([(0,), (1,), (0, 1)]))
        rows = [reductions.reduce_sum, reductions.reduce_max, reductions.reduce_min]
        self.keep(self.draw(st.sampled_from(rows))(x, axes=axes))

    def spread(self) -> None:
        x = self.pick(*self.others)
        shape = self.draw(st.sampled_from(self.matrices))
        fitting = [k for k, n in enumerate(shape) if x.type.shape == (n,)]
        axes = (self.draw(st.sampled_from(fitting)),) if fitting else ()
        spread = views.broadcast_in_dim(x, shape=shape, axes=axes)
        self.keep(e.sub(self.pick(shape), spread))

    def turn(self) -> None:
        self.keep(views.transpose(self.pick(*self.matrices), permutation=(1, 0)))

    def reverse(self) -> None:
        axes = (self.draw(st.sampled_from([0, 1])),)
        self.keep(views.rev(self.pick(*self.matrices), axes=axes))

    def program(self) -> Program:
        steps: list[Callable[[], None]] = [
            self.unary,
            self.binary,
            self.binary,
            self.choose,
            self.reduce,
            self.reduce,
            self.reduce,
            self.spread,
            self.spread,
            self.turn,
            self.reverse,
            self.reverse,
        ]
        with self.builder:
            for _ in range(self.draw(st.integers(3, 14))):
                self.draw(st.sampled_from(steps))()
            outputs = [self.values[-1], self.pick(), self.pick()]
        return self.builder.build(outputs)


@st.composite
def mixtures(draw: st.DrawFn) -> Program:
    return Mixture(draw).program()


def arguments(program: Program) -> list[Any]:
    rng = np.random.default_rng(2)
    made: list[Any] = []
    for type in program.input_types:
        x = rng.integers(-8, 9, type.shape) * 0.5
        made.append(LAYOUTS[str(type.layout)[0]](x))
    return made


def check(program: Program, donated: frozenset[int] = frozenset()) -> None:
    """Assert that the CPU computes the same, and leaves what is not donated alone."""
    want = evaluate(program, arguments(program))
    backend = BACKENDS["cpu"]
    compiled = backend.lower(program, donated)
    note(f"{program}\n{compiled.text}\n{compiled.plan}")
    given = arguments(program)
    results = backend.load(compiled)(tuple(given))
    for have, value in zip(results, want, strict=True):
        np.testing.assert_array_equal(have, value)
    for k, (x, original) in enumerate(zip(given, arguments(program), strict=True)):
        assert k in donated or np.array_equal(x, original)


@given(mixtures())
def test_fused_kernels_compute_what_the_reference_does(program: Program) -> None:
    check(program)


@given(mixtures(), st.frozensets(st.integers(0, 2), min_size=1))
@settings(max_examples=40)
def test_donated_arguments_do_not_change_the_numbers(
    program: Program, donated: frozenset[int]
) -> None:
    check(program, donated)
