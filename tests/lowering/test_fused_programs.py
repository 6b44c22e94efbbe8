"""Fused kernels compute what the equations say, one by one: named and random Programs.

The random ones are of int32, where every order of summation gives the same result, so
that the comparison is exact; their kernels run un-jitted, which takes no compiler and
finds accesses outside an array.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import dtypes
from arrayfn.ir import ArrayType, Atom, Literal, Program
from arrayfn.ir.builder import ProgramBuilder
from arrayfn.ir.layout import C, F, Strided
from arrayfn.primitives import (
    contraction,
    cumulative,
    discrete,
    dynamic_slices,
    indexing,
    reductions,
    slicing,
    views,
)
from arrayfn.primitives import elementwise as e
from arrayfn.primitives.base import Tolerance
from arrayfn.primitives.windows import Windows
from tests.lowering.kernels import check_kernels, laid_out

Array = np.ndarray[Any, Any]
NEAR = Tolerance(1e-5, 1e-13)


def floats(*shape: int, seed: int = 3) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


# Named programs.


def softmax(x: Any, axis: int) -> Any:
    y = anp.exp(x - anp.max(x, axis=axis, keepdims=True))
    return y / anp.sum(y, axis=axis, keepdims=True)


def layernorm(x: Any, scale: Any, shift: Any) -> Any:
    centred = x - anp.mean(x, axis=-1, keepdims=True)
    variance = anp.mean(centred * centred, axis=-1, keepdims=True)
    return centred / anp.sqrt(variance + 1e-5) * scale + shift


def layernorm_loss(x: Any, scale: Any, shift: Any) -> Any:
    return anp.sum(anp.tanh(layernorm(x, scale, shift)))


def cross_entropy(x: Any, targets: Any) -> Any:
    shifted = x - anp.max(x, axis=1, keepdims=True)
    logits = shifted - anp.log(anp.sum(anp.exp(shifted), axis=1, keepdims=True))
    return -anp.mean(anp.sum(logits * targets, axis=1))


def levels(x: Any) -> Any:
    """Results over all axes, over the kept ones, and of rank 0, of one reduction."""
    y = anp.exp(x)
    rows = anp.sum(y, axis=1)
    return y, rows, y / rows[:, None], rows * 2.0, anp.sum(rows), anp.log(anp.sum(y))


def several_axes(x: Any) -> Any:
    y = x * x
    return [anp.sum(y, axis=a) for a in (0, 1, 2, (0, 1), (0, 2), (1, 2), None)]


def odd_outputs(x: Any, y: Any) -> Any:
    z = x + y
    return x, x, z, z, z.T, z[1:], z[::-1, ::2], 2.0, z.reshape(-1), y.T


def a_first_row_alone(x: Any, row: Any) -> Any:
    # The kernel of one row has an axis of one element, that of all rows has none.
    doubled = x * 2
    angle = anp.arctan2(doubled[:1], row)
    return angle, doubled + angle


def a_first_row_and_all_rows(x: Any, row: Any) -> Any:
    # The kernel of one row computes `doubled` again, for that row alone: it must not
    # become one with the kernel of all rows, where `angle` would be that of each row.
    doubled = x * 2
    angle = anp.arctan2(doubled[:1], row)
    return row + 1, angle, doubled + angle


CASES: dict[str, tuple[Callable[..., Any], list[Array]]] = {
    "a first row alone": (
        a_first_row_alone,
        [floats(3, 5), floats(1, 5, seed=4)],
    ),
    "a first row and all rows": (
        a_first_row_and_all_rows,
        [floats(3, 5), floats(1, 5, seed=4)],
    ),
    "an array and its transpose": (lambda x: x + x.T, [floats(7, 7)]),
    "a value and its transpose": (
        lambda x: anp.exp(x) * anp.exp(x).T,
        [floats(5, 5)],
    ),
    "a value and its reverse": (lambda x: (y := x * 2)[::-1] + y, [floats(6)]),
    "neighbours": (
        lambda x: (y := anp.tanh(x))[1:-1] + y[2:] - 2 * y[:-2],
        [floats(40)],
    ),
    "softmax over axis 0": (lambda x: softmax(x, 0), [floats(4, 5, 6)]),
    "softmax over axis 1": (lambda x: softmax(x, 1), [floats(4, 5, 6)]),
    "softmax over axis 2": (lambda x: softmax(x, 2), [floats(4, 5, 6)]),
    "softmax of a transpose": (lambda x: softmax(x.T, 1), [floats(4, 5)]),
    "softmax of one row": (lambda x: softmax(x, 0), [floats(9)]),
    "softmax of softmax": (lambda x: softmax(softmax(x, 0), 1), [floats(4, 5)]),
    "the gradient of softmax": (
        af.grad(lambda x, y: anp.sum(softmax(x, 1) * y)),
        [floats(4, 5), floats(4, 5, seed=4)],
    ),
    "layernorm": (layernorm, [floats(6, 8), floats(8), floats(8, seed=4)]),
    "the gradient of layernorm": (
        af.grad(layernorm_loss, argnums=(0, 1, 2)),
        [floats(6, 8), floats(8), floats(8, seed=4)],
    ),
    "the gradient of cross-entropy": (
        af.value_and_grad(cross_entropy),
        [floats(6, 4), np.eye(4, dtype=np.float32)[[0, 3, 1, 1, 2, 0]]],
    ),
    "rows and columns spread": (
        lambda x, r, c: (x + r) * c[:, None] - anp.sum(x * r, axis=1)[:, None],
        [floats(5, 6), floats(6), floats(5)],
    ),
    "an outer product": (
        lambda r, c: anp.sum(anp.exp(r[:, None] - c), axis=0),
        [floats(5), floats(6)],
    ),
    "reductions over several axes": (several_axes, [floats(3, 4, 5)]),
    "results of several levels": (levels, [floats(4, 5)]),
    "odd outputs": (odd_outputs, [floats(4, 6), floats(4, 6, seed=4)]),
    "a reshape in the middle": (
        lambda x: anp.exp((x * 2).reshape(2, 12)).sum(axis=0) + 1,
        [floats(4, 6)],
    ),
    "a reshape of a transpose": (
        lambda x: anp.sum(((x * 2).T.reshape(4, 6) + x) ** 2, axis=1),
        [floats(4, 6)],
    ),
    "variance over each axis": (
        lambda x: (anp.var(x, axis=0), anp.var(x, axis=1), anp.std(x)),
        [floats(5, 7)],
    ),
    "totals across softmax's rows": (
        lambda x, r: (
            y := softmax(x, 1),
            anp.sum(y * r, axis=0),
            anp.max(x, axis=0),
            anp.any(x > 1, axis=0),
            anp.sum(y - anp.max(x, axis=1, keepdims=True), axis=0) * 2,
        ),
        [floats(70, 9), floats(9)],
    ),
    "totals across a few long rows": (
        lambda x: (layernorm(x, 1.0, 0.5), anp.sum(x * x, axis=0)),
        [floats(3, 700)],
    ),
    "the position of the greatest": (
        lambda x: anp.argmax(softmax(x, 1), axis=1) + anp.argmin(x * 2, axis=1),
        [floats(6, 5)],
    ),
    "a part of a result": (
        lambda x: softmax(x, 1)[:, 0] + anp.max(x, axis=1),
        [floats(6, 5)],
    ),
    "the gradient of a slice": (
        af.grad(lambda x: anp.sum(anp.exp(x[1:, ::2]) * x[:-1, 1::2])),
        [floats(5, 6)],
    ),
    "the gradient of a concatenation": (
        af.grad(lambda x: anp.sum(anp.concatenate([x, anp.sin(x)]) ** 3)),
        [floats(5)],
    ),
    "the gradient of a lookup": (
        af.grad(lambda x: anp.sum(anp.exp(x[np.array([2, 0, 2, 2])]))),
        [floats(4, 3)],
    ),
    "the gradient of two layers": (
        af.grad(
            lambda w, v, x: anp.mean((anp.tanh(x @ w) @ v) ** 2),
            argnums=(0, 1),
        ),
        [floats(6, 5), floats(5, 3), floats(4, 6)],
    ),
    "the second derivative": (
        af.grad(lambda x: anp.sum(af.grad(lambda y: anp.sum(softmax(y, 0)[0]))(x))),
        [floats(5)],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_fused_kernels_equal_the_equations(name: str) -> None:
    function, inputs = CASES[name]
    program = af.jit(function).lower(*inputs).program
    check_kernels(program, inputs, NEAR)


# Random programs.

I32 = dtypes.int32
LIMIT = 300  # elements of a value
EXTENTS = st.sampled_from([1, 2, 3, 3, 4])


class Drawn:
    """A Program being drawn. Extents recur, so that axes may be mistaken."""

    def __init__(self, data: st.DataObject) -> None:
        self.draw = data.draw
        self.builder = ProgramBuilder("random")
        self.values: list[Atom] = []

    def program(self, steps: int) -> Program:
        with self.builder:
            base = self.shape()
            for shape in (base, base, self.shape()):
                layout = self.layout(shape)
                self.values.append(self.builder.input(ArrayType(shape, I32, layout)))
            for _ in range(steps):
                make = self.draw(st.sampled_from(STEPS))
                made = make(self, self.pick())
                if made is not None and made.type.size <= LIMIT:
                    self.values.append(made)
            outputs = [self.pick() for _ in range(self.below(4))]
            return self.builder.build([*outputs, self.values[-1]])

    def shape(self) -> tuple[int, ...]:
        return tuple(self.draw(st.lists(EXTENTS, max_size=3)))

    def layout(self, shape: tuple[int, ...]) -> Any:
        if not shape:
            return C
        rows = C.strides(shape)
        twice, back = Strided(tuple(2 * s for s in rows)), tuple(-s for s in rows)
        same = Strided((0, *rows[1:])) if shape[0] > 1 else C
        return self.draw(st.sampled_from([C, C, F, twice, Strided(back), same]))

    def below(self, n: int) -> int:
        return self.draw(st.integers(0, n - 1))

    def flip(self) -> bool:
        return self.draw(st.booleans())

    def pick(self) -> Atom:
        """A value, more often a late one."""
        n = len(self.values)
        return self.values[max(self.below(n), self.below(n))]

    def axis(self, x: Atom) -> int:
        return self.below(x.type.ndim)

    def like(self, x: Atom) -> Atom | None:
        """Another value made to have the shape of ``x``, if that is possible."""
        y, shape = self.pick(), x.type.shape
        have = y.type.shape
        if have == shape or (not have and self.flip()):
            return y
        places = [
            axes
            for axes in combinations(range(len(shape)), len(have))
            if all(n in (1, shape[k]) for n, k in zip(have, axes, strict=True))
        ]
        if places:
            axes = self.draw(st.sampled_from(places))
            return views.broadcast_in_dim(y, shape=shape, axes=axes)
        if sorted(have) == sorted(shape):
            free = list(range(len(have)))
            order = []
            for n in shape:
                order.append(next(k for k in free if have[k] == n))
                free.remove(order[-1])
            return views.transpose(y, permutation=tuple(order))
        if math.prod(have) == math.prod(shape):
            return views.reshape(y, shape=shape)
        return None


def unary(d: Drawn, x: Atom) -> Atom:
    return d.draw(st.sampled_from([e.neg, e.absolute, e.square, e.sign]))(x)


def binary(d: Drawn, x: Atom) -> Atom | None:
    y = d.like(x)
    if y is None:
        return None
    row = d.draw(st.sampled_from([e.add, e.sub, e.mul, e.maximum]))
    return row(y, x) if d.flip() else row(x, y)


def choose(d: Drawn, x: Atom) -> Atom | None:
    y = d.like(x)
    return None if y is None else e.select(discrete.lt(x, y), y, x)


def reduction(d: Drawn, x: Atom) -> Atom | None:
    if not x.type.ndim:
        return None
    every = st.sets(st.integers(0, x.type.ndim - 1), min_size=1)
    axes = tuple(sorted(d.draw(every)))
    rows = [reductions.reduce_sum, reductions.reduce_max, reductions.reduce_min]
    y = d.draw(st.sampled_from(rows))(x, axes=axes)
    return reductions.spread_back(y, x.type, axes) if d.flip() else y


def transpose(d: Drawn, x: Atom) -> Atom:
    return views.transpose(
        x, permutation=tuple(d.draw(st.permutations(range(x.type.ndim))))
    )


def slice_(d: Drawn, x: Atom) -> Atom:
    start = tuple(d.below(n) for n in x.type.shape)
    limit = tuple(
        k + 1 + d.below(n - k) for k, n in zip(start, x.type.shape, strict=True)
    )
    steps = tuple(1 + d.below(2) for _ in start)
    return slicing.slice_(x, start=start, limit=limit, strides=steps)


def reverse(d: Drawn, x: Atom) -> Atom | None:
    return views.rev(x, axes=(d.axis(x),)) if x.type.ndim else None


def reshape(d: Drawn, x: Atom) -> Atom:
    n = x.type.size
    shapes = [(n,), (1, n), (n, 1), x.type.shape[::-1]]
    return views.reshape(x, shape=d.draw(st.sampled_from(shapes)))


def spread(d: Drawn, x: Atom) -> Atom:
    shape = (d.draw(EXTENTS), *x.type.shape)
    return views.broadcast_in_dim(x, shape=shape, axes=tuple(range(1, len(shape))))


def concatenate(d: Drawn, x: Atom) -> Atom | None:
    y = d.like(x)
    if y is None or not y.type.shape or y.type.shape != x.type.shape:
        return None
    return slicing.concatenate(x, y, axis=d.axis(x))


def pad(d: Drawn, x: Atom) -> Atom:
    config = tuple((d.below(3) - (n > 1), d.below(2), d.below(2)) for n in x.type.shape)
    return slicing.pad(x, 7, config=config)


def count(d: Drawn, x: Atom) -> Atom | None:
    if not x.type.ndim:
        return None
    return views.iota(shape=x.type.shape, axis=d.axis(x), dtype=I32)


def literal(d: Drawn, x: Atom) -> Atom:
    return views.broadcast_literal(d.below(3), x.type)


def product(d: Drawn, x: Atom) -> Atom | None:
    y = d.pick()
    pairs = [
        (j, k)
        for j, n in enumerate(x.type.shape)
        for k, m in enumerate(y.type.shape)
        if n == m
    ]
    if not pairs:
        return None
    j, k = d.draw(st.sampled_from(pairs))
    rest = [(a, b) for a, b in pairs if a != j and b != k]
    batch = [d.draw(st.sampled_from(rest))] if rest and d.flip() else []
    axes = tuple(a for a, _ in batch), tuple(b for _, b in batch)
    return contraction.dot_general(x, y, contract=((j,), (k,)), batch=axes)


def scan(d: Drawn, x: Atom) -> Atom | None:
    if not x.type.ndim:
        return None
    row = d.draw(st.sampled_from([cumulative.cumsum, cumulative.cummax]))
    return row(x, axis=d.axis(x), reverse=d.flip())


def position(d: Drawn, x: Atom) -> Atom | None:
    if not x.type.ndim:
        return None
    row = d.draw(st.sampled_from([reductions.argmax, reductions.argmin]))
    return row(x, axis=d.axis(x), dtype=I32)


def indexed(d: Drawn, x: Atom) -> Atom | None:
    """Rows gathered, at places that need not exist, and perhaps scattered."""
    if not x.type.ndim:
        return None
    given = d.pick()
    indices = views.reshape(given, shape=(given.type.size, 1))
    if given.type.size > 8:
        limit, one = (8, 1), (1, 1)
        indices = slicing.slice_(indices, start=(0, 0), limit=limit, strides=one)
    windows = Windows(tuple(range(1, x.type.ndim)), (0,), (0,)).params()
    fill = 5 if d.flip() else None
    rows = indexing.gather(
        x,
        indices,
        sizes=(1, *x.type.shape[1:]),
        mode="clip" if fill is None else "fill",
        fill_value=fill,
        **windows,
    )
    if d.flip():
        return rows
    target = x if d.flip() else e.mul(x, 2)
    updates = rows if d.flip() else e.square(rows)
    row = d.draw(st.sampled_from([indexing.scatter, indexing.scatter_add]))
    mode = "clip" if fill is None else "drop"
    return row(target, indices, updates, mode=mode, unique_indices=False, **windows)


def starts(d: Drawn, x: Atom) -> list[Atom]:
    """Where a slice of ``x`` begins: literals, or computed."""
    total = reductions.reduce_max(x, axes=tuple(range(x.type.ndim)))
    return [total if d.flip() else Literal(d.below(4) - 1, I32) for _ in x.type.shape]


def moved_slice(d: Drawn, x: Atom) -> Atom | None:
    if not x.type.ndim:
        return None
    sizes = tuple(1 + d.below(n) for n in x.type.shape)
    return dynamic_slices.dynamic_slice(x, *starts(d, x), sizes=sizes)


def update(d: Drawn, x: Atom) -> Atom | None:
    y = d.pick()
    fits = y.type.ndim == x.type.ndim and all(
        n <= m for n, m in zip(y.type.shape, x.type.shape, strict=True)
    )
    if not fits or not x.type.ndim:
        return None
    target = x if d.flip() else e.add(x, 1)
    return dynamic_slices.dynamic_update_slice(target, y, *starts(d, x))


STEPS: list[Callable[[Drawn, Atom], Atom | None]] = [
    *(unary, binary, binary, binary, choose, reduction, reduction, transpose, slice_),
    *(reverse, reshape, spread, concatenate, pad, count, literal, product, scan),
    *(position, indexed, moved_slice, update),
]


def inputs_of(program: Program) -> list[Array]:
    rng = np.random.default_rng(11)
    types = program.input_types
    return [laid_out(rng.integers(-4, 5, t.shape).astype(np.int32), t) for t in types]


@given(st.data(), st.integers(2, 24))
def test_random_programs_un_jitted(data: st.DataObject, steps: int) -> None:
    program = Drawn(data).program(steps)
    note(str(program))
    check_kernels(program, inputs_of(program), jit=False)


@settings(max_examples=12)
@given(st.data())
def test_random_programs_compiled(data: st.DataObject) -> None:
    program = Drawn(data).program(24)
    note(str(program))
    check_kernels(program, inputs_of(program))


def test_gradients_of_slices_along_different_axes_are_added_up() -> None:
    x = floats(4, 4)

    def loss(x: Any) -> Any:
        corner, column = x[:2, :2], x[:, 2:]
        return (corner * corner).sum() + (column * column * column).sum()

    expected = np.zeros_like(x)
    expected[:2, :2] = 2 * x[:2, :2]
    expected[:, 2:] = 3 * x[:, 2:] ** 2
    np.testing.assert_allclose(af.jit(af.grad(loss))(x), expected, rtol=1e-6)


def test_gradients_of_corners_are_added_up() -> None:
    x = floats(4, 4)

    def loss(x: Any) -> Any:
        return (x[:2, :2] ** 2).sum() + (x[2:, 2:] ** 2).sum()

    expected = np.zeros_like(x)
    expected[:2, :2], expected[2:, 2:] = 2 * x[:2, :2], 2 * x[2:, 2:]
    np.testing.assert_allclose(af.jit(af.grad(loss))(x), expected, rtol=1e-6)
