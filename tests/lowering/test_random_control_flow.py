"""Random nests of loops and branches: reference = un-jitted = compiled, in both forms.

A body is made of a few operations on scalars, vectors, matrices and a counter, in-place
updates, matrix products, loops and branches among them, whose values are mixed: passed
on, exchanged, dropped, returned twice.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from arrayfn import dtypes
from arrayfn.backends.cuda.emulator.plan import run_plan
from arrayfn.ir import ArrayType, Atom, Literal, Program
from arrayfn.ir.builder import ProgramBuilder
from arrayfn.lowering.cuda.config import GPU
from arrayfn.lowering.cuda.lower import lower
from arrayfn.lowering.lower import Lowering
from arrayfn.lowering.options import Options
from arrayfn.lowering.plan import Kernel
from arrayfn.passes import small
from arrayfn.primitives import (
    contraction,
    conversion,
    discrete,
    dynamic_slices,
    reductions,
    special,
    views,
)
from arrayfn.primitives import elementwise as e
from arrayfn.primitives.base import Tolerance
from arrayfn.primitives.calls import evaluate
from arrayfn.primitives.control_flow_cond import cond
from arrayfn.primitives.control_flow_scan import scan
from arrayfn.primitives.control_flow_while import while_loop
from tests.lowering.kernels import check_kernels

F32, I32 = dtypes.float32, dtypes.int32
SCALAR, VECTOR = ArrayType((), F32), ArrayType((3,), F32)
MATRIX, COUNT = ArrayType((3, 3), F32), ArrayType((), I32)
KINDS = (SCALAR, VECTOR, MATRIX, COUNT)
NEAR = Tolerance(2e-4, 1e-12)
MOST_DEPTH = 3


class Maker:
    """Makes random Programs; the values in scope are by type."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def pick(self, scope: list[Atom], type: ArrayType) -> Any:
        fitting = [a for a in scope if a.type == type]
        return fitting[self.rng.integers(len(fitting))]

    def types(self, least: int, most: int) -> list[ArrayType]:
        count = self.rng.integers(least, most + 1)
        return [KINDS[k] for k in self.rng.integers(0, len(KINDS), count)]

    def body(
        self, name: str, ins: list[ArrayType], outs: list[ArrayType], depth: int
    ) -> Program:
        builder = ProgramBuilder(name)
        with builder:
            scope: list[Atom] = [builder.input(t) for t in ins]
            for t in KINDS:
                if not any(a.type == t for a in scope):
                    scope.append(
                        conversion.convert(views.broadcast_literal(1, t), t.dtype)
                        if t.shape
                        else Literal(1, t.dtype)
                    )
            for _ in range(self.rng.integers(1, 5)):
                scope += self.step(scope, depth)
            # The newest values are returned more often.
            results = [self.pick(scope[-5:] + scope, t) for t in outs]
        return builder.build(results)

    def step(self, scope: list[Atom], depth: int) -> list[Atom]:
        rules = [self.elementwise, self.product, self.total, self.update, self.count]
        if depth < MOST_DEPTH:
            rules += [self.scan, self.while_loop, self.cond]
        return rules[self.rng.integers(len(rules))](scope, depth)

    def elementwise(self, scope: list[Atom], depth: int) -> list[Atom]:
        t = KINDS[self.rng.integers(3)]
        x, y = self.pick(scope, t), self.pick(scope, t)
        rule = (e.add, e.sub, e.maximum)[self.rng.integers(3)]
        return [special.tanh(rule(x, y))]

    def product(self, scope: list[Atom], depth: int) -> list[Atom]:
        x, v = self.pick(scope, MATRIX), self.pick(scope, VECTOR)
        side = ((0,), (0,)) if self.rng.integers(2) else ((1,), (0,))
        made = contraction.dot_general(x, v, contract=side, batch=((), ()))
        return [special.tanh(made)]

    def total(self, scope: list[Atom], depth: int) -> list[Atom]:
        x = self.pick(scope, MATRIX)
        return [
            special.tanh(reductions.reduce_sum(x, axes=(self.rng.integers(2).item(),)))
        ]

    def update(self, scope: list[Atom], depth: int) -> list[Atom]:
        x, i = self.pick(scope, VECTOR), self.pick(scope, COUNT)
        here = dynamic_slices.dynamic_slice(x, i, sizes=(1,))
        new = e.sub(views.broadcast_literal(0.5, ArrayType((1,), F32)), here)
        return [dynamic_slices.dynamic_update_slice(x, new, i)]

    def count(self, scope: list[Atom], depth: int) -> list[Atom]:
        i = self.pick(scope, COUNT)
        return [discrete.bitwise_and(e.add(i, Literal(1, I32)), Literal(3, I32))]

    def operands(self, scope: list[Atom], types: list[ArrayType]) -> list[Atom]:
        return [self.pick(scope, t) for t in types]

    def scan(self, scope: list[Atom], depth: int) -> list[Atom]:
        consts, carry = self.types(0, 2), self.types(1, 3)
        ys = self.types(0, 2)
        length = int(self.rng.integers(1, 4))
        xs = self.types(0, 1)
        stacked = [ArrayType((length, *t.shape), t.dtype) for t in xs]
        wide = [
            views.broadcast_in_dim(
                self.pick(scope, t),
                shape=w.shape,
                axes=tuple(range(1, len(w.shape))),
            )
            for t, w in zip(xs, stacked, strict=True)
        ]
        program = self.body(
            f"scan_{depth}", [*consts, *carry, *xs], [*carry, *ys], depth + 1
        )
        made = scan(
            *self.operands(scope, [*consts, *carry]),
            *wide,
            program=program,
            length=length,
            reverse=bool(self.rng.integers(2)),
            consts=len(consts),
            carry=len(carry),
            unroll=1,
        )
        results = list(made) if isinstance(made, tuple) else [made]
        last = [reductions.reduce_max(y, axes=(0,)) for y in results[len(carry) :]]
        return [*results[: len(carry)], *last]

    def while_loop(self, scope: list[Atom], depth: int) -> list[Atom]:
        consts, carry = self.types(0, 2), self.types(1, 3)
        types = [COUNT, *carry]
        inner = self.body(f"while_{depth}", [*consts, *types[1:]], carry, depth + 1)
        builder = ProgramBuilder(f"while_{depth}")
        with builder:
            fixed = [builder.input(t) for t in consts]
            turn, *state = [builder.input(t) for t in types]
            results = builder.inline(inner, [*fixed, *state])
            program = builder.build([e.add(turn, Literal(1, I32)), *results])
        test = ProgramBuilder("goes_on")
        limit = int(self.rng.integers(0, 4))
        with test:
            turn, *_ = [test.input(t) for t in types]
            goes_on = test.build([discrete.lt(turn, Literal(limit, I32))])
        made = while_loop(
            *self.operands(scope, consts),
            self.pick(scope, COUNT) if self.rng.integers(2) else Literal(0, I32),
            *self.operands(scope, carry),
            cond_program=goes_on,
            body_program=program,
            cond_consts=0,
            body_consts=len(consts),
        )
        return list(made)[1:]

    def cond(self, scope: list[Atom], depth: int) -> list[Atom]:
        ins, outs = self.types(1, 3), self.types(1, 3)
        count = int(self.rng.integers(2, 4))
        branches = tuple(
            self.body(f"branch_{depth}_{k}", ins, outs, depth + 1) for k in range(count)
        )
        made = cond(
            self.pick(scope, COUNT), *self.operands(scope, ins), branches=branches
        )
        return list(made) if isinstance(made, tuple) else [made]


@pytest.mark.parametrize("most", [-1, 400, 1 << 15], ids=["nodes", "both", "kernels"])
@pytest.mark.parametrize("seed", range(24))
def test_random_control_flow(
    seed: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small, "MAX_ELEMENTS", most)
    if seed % 2:
        monkeypatch.setattr(Lowering, "lanes", lambda self, loop: 0)
    maker = Maker(seed)
    ins = [SCALAR, VECTOR, MATRIX, COUNT, VECTOR, MATRIX]
    program = maker.body("main", ins, maker.types(2, 4), 0)
    inputs = [
        np.asarray(maker.rng.uniform(-1, 1, t.shape) * 3).astype(t.dtype) for t in ins
    ]
    # Compiled on one in three: the kernels' text is what differs.
    check_kernels(program, inputs, NEAR, jit=(seed + most) % 3 == 0)


@pytest.mark.parametrize("seed", [2, 4, 5, 8, 10, 81])
def test_random_control_flow_as_one_kernel_of_a_gpu(seed: int) -> None:
    """The emulator finds every place where blocks would have to meet."""
    maker = Maker(seed)
    ins = [SCALAR, VECTOR, MATRIX, COUNT, VECTOR, MATRIX]
    program = maker.body("main", ins, maker.types(2, 4), 0)
    inputs = [
        np.asarray(maker.rng.uniform(-1, 1, t.shape) * 3).astype(t.dtype) for t in ins
    ]
    small_gpu = replace(GPU, multiprocessors=2)
    made = lower(program, gpu=small_gpu, options=Options(mode="persistent"))
    (kernel,) = made.kernels
    assert isinstance(kernel, Kernel)
    assert kernel.cooperative
    for have, want in zip(
        run_plan(made, inputs), evaluate(program, inputs), strict=True
    ):
        np.testing.assert_allclose(have, want, 1e-3, 1e-5)
