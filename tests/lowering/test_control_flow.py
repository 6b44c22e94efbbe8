"""Loops and branches as steps of a plan: reference = un-jitted = compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from arrayfn import dtypes
from arrayfn.ir import ArrayType, Atom, Literal, Program, Var, type_of
from arrayfn.ir.builder import ProgramBuilder
from arrayfn.lowering.lower import Lowering
from arrayfn.lowering.plan import Branch, KernelCall, Loop, kernel_calls
from arrayfn.passes import small
from arrayfn.primitives import (
    contraction,
    conversion,
    discrete,
    dynamic_slices,
    reductions,
    slicing,
    views,
)
from arrayfn.primitives import elementwise as e
from arrayfn.primitives.base import Tolerance
from arrayfn.primitives.control_flow_cond import cond
from arrayfn.primitives.control_flow_scan import scan
from arrayfn.primitives.control_flow_while import while_loop
from tests.lowering.kernels import EXACT, check_kernels

F32 = dtypes.float32
I32 = dtypes.int32
NEAR = Tolerance(1e-5, 1e-13)
Array = np.ndarray[Any, Any]


@pytest.fixture(params=["nodes", "lanes", "one kernel"], autouse=True)
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each loop as a node of the plan, and as the kernels that small ones become."""
    if request.param != "one kernel":
        monkeypatch.setattr(small, "MAX_ELEMENTS", -1)
    if request.param == "nodes":
        monkeypatch.setattr(Lowering, "lanes", lambda self, loop: 0)
    return request.param


def f32(*shape: int) -> ArrayType:
    return ArrayType(shape, F32)


def i32(*shape: int) -> ArrayType:
    return ArrayType(shape, I32)


def made(rule: Callable[..., Any], *types: ArrayType, name: str = "body") -> Program:
    """The Program of ``rule``, a function of Vars that gives a list of results."""
    builder = ProgramBuilder(name)
    with builder:
        return builder.build(rule(*[builder.input(t) for t in types]))


def program_of(rule: Callable[..., Any], inputs: Sequence[Array]) -> Program:
    return made(rule, *[type_of(x) for x in inputs], name="main")


def floats(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


def scanned(
    body: Program,
    *operands: Atom,
    length: int,
    carry: int,
    consts: int = 0,
    reverse=False,
) -> Any:
    return scan(
        *operands,
        program=body,
        length=length,
        reverse=reverse,
        consts=consts,
        carry=carry,
        unroll=1,
    )


def product(x: Atom, y: Atom) -> Any:
    return contraction.dot_general(x, y, contract=((1,), (0,)), batch=((), ()))


def less(x: Atom, n: int) -> Any:
    return discrete.lt(x, Literal(n, x.type.dtype))


def plus(x: Atom, n: float) -> Any:
    return e.add(x, Literal(n, x.type.dtype))


def loop_of(compiled: Any) -> Loop:
    (loop,) = (s for s in compiled.plan.steps if isinstance(s, Loop))
    return loop


@pytest.mark.parametrize("length", [0, 1, 2, 5, 8])
@pytest.mark.parametrize("reverse", [False, True])
def test_a_recurrent_network_alternates_between_two_buffers(
    length: int, reverse: bool, form: str
) -> None:
    inputs = [floats(3, 3), floats(2, 3, seed=1), floats(length, 2, 3, seed=2)]

    def body(w: Var, h: Var, x: Var) -> Any:
        new = e.absolute(e.sub(product(h, w), x))
        return [new, new]

    inner = made(body, *(f32(*x.shape[-2:]) for x in inputs))

    def main(*operands: Var) -> Any:
        return scanned(
            inner, *operands, length=length, carry=1, consts=1, reverse=reverse
        )

    compiled = check_kernels(program_of(main, inputs), inputs, NEAR)
    if length > 1 and form == "nodes":
        loop = loop_of(compiled)
        assert len(loop.carries) == 1
        assert len(loop.slices) == 2
        # The initial value is an argument; the last value is written to the result.
        assert loop.carries[0].result in (loop.carries[0].first, loop.carries[0].second)


def test_values_exchanged_by_the_body() -> None:
    inputs = [floats(5), floats(5, seed=1)]
    inner = made(lambda a, b: [e.add(b, Literal(0.5, F32)), a], f32(5), f32(5))
    for length in (1, 2, 3):
        main = program_of(
            lambda a, b, n=length: scanned(inner, a, b, length=n, carry=2), inputs
        )
        check_kernels(main, inputs)


def test_fibonacci_numbers() -> None:
    inner = made(lambda a, b: [b, e.add(a, b), a], i32(), i32())
    inputs = [np.array(0, np.int32), np.array(1, np.int32)]

    def main(a: Var, b: Var) -> Any:
        return scanned(inner, a, b, length=10, carry=2)

    compiled = check_kernels(program_of(main, inputs), inputs)
    assert compiled.plan.arena <= 4 * 64


def test_an_update_of_a_carried_array_is_in_place(form: str) -> None:
    n = 1000
    inputs = [floats(n)]

    def body(i: Var, x: Var) -> Any:
        here = dynamic_slices.dynamic_slice(x, i, sizes=(1,))
        new = e.add(here, here)
        return [plus(i, 1), dynamic_slices.dynamic_update_slice(x, new, i)]

    inner = made(body, i32(), f32(n))

    def main(x: Var) -> Any:
        zero = conversion.literal(0, I32)
        return list(scanned(inner, zero, x, length=7, carry=2))[1:]

    compiled = check_kernels(program_of(main, inputs), inputs)
    calls = list(kernel_calls(compiled.plan.steps))
    # One copy of the argument, before the loop.
    assert sum(call.items for call in calls) <= n + 8
    assert compiled.plan.arena <= 4 * 64
    if form == "nodes":
        buffers = compiled.plan.buffers
        carries = loop_of(compiled).carries
        assert all(buffers[c.current].nbytes < 8 for c in carries)


def test_an_updated_array_that_is_read_later_is_copied_in_the_body() -> None:
    inputs = [floats(6), floats(6, seed=3)]

    def body(i: Var, x: Var) -> Any:
        new = dynamic_slices.dynamic_update_slice(x, floats_literal(), i)
        return [plus(i, 1), e.add(new, e.mul(x, x))]

    def floats_literal() -> Any:
        return views.broadcast_literal(0.25, f32(2))

    inner = made(body, i32(), f32(6))

    def main(x: Var, y: Var) -> Any:
        zero = conversion.literal(0, I32)
        _, z = scanned(inner, zero, e.mul(x, y), length=4, carry=2)
        return [z]

    check_kernels(program_of(main, inputs), inputs, NEAR)


def test_an_elementwise_body_with_a_product_writes_in_place_or_not() -> None:
    inputs = [floats(4, 4), floats(4, 4, seed=1)]

    def body(w: Var, x: Var, y: Var) -> Any:
        moved = plus(x, 1.0)  # over x: nothing else needs it
        return [moved, product(w, y)]

    inner = made(body, *[f32(4, 4)] * 3)

    def main(w: Var, y: Var) -> Any:
        return scanned(inner, w, e.mul(y, y), y, length=3, carry=2, consts=1)

    check_kernels(program_of(main, inputs), inputs, NEAR)


def test_a_while_loop_reads_its_condition(form: str) -> None:
    inputs = [np.array(3, np.int32), floats(8)]
    condition = made(lambda i, x: [less(i, 10)], i32(), f32(8))
    body = made(lambda i, x: [plus(i, 2), e.mul(x, x)], i32(), f32(8))

    def main(i: Var, x: Var) -> Any:
        return while_loop(
            i,
            x,
            cond_program=condition,
            body_program=body,
            cond_consts=0,
            body_consts=0,
        )

    compiled = check_kernels(program_of(main, inputs), inputs)
    for start in (9, 10, 50):
        again = [np.array(start, np.int32), inputs[1]]
        check_kernels(program_of(main, again), again)
    text = str(compiled.plan) if form == "nodes" else compiled.kernels[-1].source
    assert "while" in text


def test_a_while_loop_with_constants_and_a_reduction_in_its_condition() -> None:
    inputs = [floats(3, 3), floats(3, 3, seed=1), np.array(1e3, np.float32)]

    def condition(bound: Var, x: Var) -> Any:
        return [discrete.lt(reductions.reduce_sum(e.absolute(x), axes=(0, 1)), bound)]

    cond_program = made(condition, f32(), f32(3, 3))
    body = made(lambda w, x: [e.add(product(w, x), x)], f32(3, 3), f32(3, 3))

    def main(w: Var, x: Var, bound: Var) -> Any:
        return [
            while_loop(
                bound,
                w,
                x,
                cond_program=cond_program,
                body_program=body,
                cond_consts=1,
                body_consts=1,
            )
        ]

    check_kernels(program_of(main, inputs), inputs, Tolerance(1e-4, 1e-12))


@pytest.mark.parametrize("index", [-3, 0, 1, 2, 7])
def test_a_branch_is_chosen_by_its_index(index: int) -> None:
    inputs = [np.array(index, np.int32), floats(4), floats(4, seed=1)]
    branches = (
        made(lambda x, y: [e.add(x, y), x], f32(4), f32(4)),
        made(lambda x, y: [y, y], f32(4), f32(4)),
        made(lambda x, y: [views.broadcast_literal(2.0, f32(4)), x], f32(4), f32(4)),
    )
    main = program_of(lambda i, x, y: cond(i, x, y, branches=branches), inputs)
    compiled = check_kernels(main, inputs)
    (branch,) = (s for s in compiled.plan.steps if isinstance(s, Branch))
    assert len(branch.branches) == 3


def test_a_literal_index_chooses_at_once() -> None:
    inputs = [floats(4)]
    branches = tuple(made(lambda x, k=k: [plus(x, k)], f32(4)) for k in range(3))

    def main(x: Var) -> Any:
        return [cond(Literal(1, I32), x, branches=branches)]

    compiled = check_kernels(program_of(main, inputs), inputs)
    assert all(isinstance(s, KernelCall) for s in compiled.plan.steps)


def test_loops_and_branches_three_deep(form: str) -> None:
    inputs = [floats(2, 3), floats(3, 4, 2, 3, seed=1), np.array(1, np.int32)]
    inner_branches = (
        made(lambda h, x: [e.sub(h, x)], f32(2, 3), f32(2, 3)),
        made(lambda h, x: [e.mul(h, x)], f32(2, 3), f32(2, 3)),
    )

    def step(which: Var, h: Var, x: Var) -> Any:
        new = cond(which, h, x, branches=inner_branches)
        return [new, reductions.reduce_max(new, axes=(1,))]

    inner = made(step, i32(), f32(2, 3), f32(2, 3))

    def row(which: Var, h: Var, xs: Var) -> Any:
        h, ys = scanned(inner, which, h, xs, length=4, carry=1, consts=1)
        return [h, ys]

    outer = made(row, i32(), f32(2, 3), f32(4, 2, 3))

    def main(h: Var, xs: Var, which: Var) -> Any:
        return scanned(outer, which, h, xs, length=3, carry=1, consts=1, reverse=True)

    compiled = check_kernels(program_of(main, inputs), inputs, NEAR)
    if form == "nodes":
        text = str(compiled.plan)
        assert text.count("loop") == 2
        assert "branch by input 2" in text
    if form == "one kernel":
        (kernel,) = compiled.kernels
        assert kernel.source.count("in range(iterations") == 2
        assert kernel.source.count("else:") == 1


def test_a_loop_in_a_loop_changes_an_array_in_place() -> None:
    n = 50
    inputs = [floats(n)]

    def step(i: Var, x: Var) -> Any:
        one = views.broadcast_literal(1.0, f32(1))
        return [plus(i, 1), dynamic_slices.dynamic_update_slice(x, one, i)]

    inner = made(step, i32(), f32(n))

    def row(i: Var, x: Var) -> Any:
        i, x = scanned(inner, i, x, length=3, carry=2)
        return [plus(i, 4), x]

    outer = made(row, i32(), f32(n))

    def main(x: Var) -> Any:
        return scanned(outer, conversion.literal(0, I32), x, length=5, carry=2)

    compiled = check_kernels(program_of(main, inputs), inputs)
    calls = list(kernel_calls(compiled.plan.steps))
    assert sum(call.items for call in calls if call.items >= n) == n


def test_what_a_loop_reads_lives_until_it_ends() -> None:
    inputs = [floats(16, 16) / 4]

    def body(w: Var, x: Var) -> Any:
        a = product(w, x)
        b = product(a, w)
        return [plus(product(b, a), 1.0)]

    inner = made(body, f32(16, 16), f32(16, 16))

    def main(x: Var) -> Any:
        w = product(x, x)
        (y,) = [scanned(inner, w, x, length=3, carry=1, consts=1)]
        return [product(y, y)]

    check_kernels(program_of(main, inputs), inputs, Tolerance(1e-3, 1e-12))


def test_values_nobody_needs_are_gone() -> None:
    inputs = [floats(4), floats(6, 4, seed=1)]

    def body(c: Var, unused: Var, a: Var, dead: Var, x: Var, _: Var) -> Any:
        return [e.add(a, e.mul(x, c)), e.mul(dead, x), e.absolute(x), e.neg(x)]

    inner = made(body, *[f32(4)] * 6)

    def main(a: Var, xs: Var) -> Any:
        made = scanned(inner, a, a, a, a, xs, xs, length=6, carry=2, consts=2)
        return [made[0], made[3]]

    compiled = check_kernels(program_of(main, inputs), inputs, NEAR)
    assert "mul(dead" not in compiled.text
    assert "abs" not in compiled.text


def test_a_value_that_stays_is_a_constant_of_the_loop(form: str) -> None:
    inputs = [floats(3, 3), floats(3, 3, seed=1)]
    inner = made(lambda w, x: [w, product(w, x)], f32(3, 3), f32(3, 3))
    main = program_of(lambda w, x: scanned(inner, w, x, length=3, carry=2), inputs)
    compiled = check_kernels(main, inputs, NEAR)
    assert "carry=1" in compiled.text
    assert form != "nodes" or len(loop_of(compiled).carries) == 1


def test_two_values_with_one_initial_value() -> None:
    inputs = [floats(3, 3)]
    inner = made(lambda x, y: [product(x, y), e.sub(y, x)], f32(3, 3), f32(3, 3))

    def main(x: Var) -> Any:
        z = e.mul(x, x)
        return scanned(inner, z, z, length=4, carry=2)

    check_kernels(program_of(main, inputs), inputs, NEAR)


def test_a_carried_array_sliced_too() -> None:
    """The initial value is also scanned over: it may not be written over."""
    inputs = [floats(4, 4)]

    def body(x: Var, row: Var) -> Any:
        spread = views.broadcast_in_dim(row, shape=(4, 4), axes=(1,))
        return [e.mul(x, spread), reductions.reduce_sum(x, axes=(0,))]

    inner = made(body, f32(4, 4), f32(4))

    def main(x: Var) -> Any:
        y = e.add(x, x)
        return scanned(inner, y, y, length=4, carry=1)

    check_kernels(program_of(main, inputs), inputs, NEAR)


def test_views_go_in_as_copies_that_are_equations() -> None:
    inputs = [floats(4, 3), floats(3, 4, seed=1)]
    inner = made(lambda w, h: [product(w, h)], f32(3, 3), f32(3, 4))

    def main(x: Var, h: Var) -> Any:
        w = views.transpose(
            slicing.slice_(x, start=(1, 0), limit=(4, 3), strides=(1, 1)),
            permutation=(1, 0),
        )
        return [scanned(inner, w, h, length=2, carry=1, consts=1)]

    check_kernels(program_of(main, inputs), inputs, NEAR)


@pytest.mark.parametrize("shape", [(0,), (0, 3)])
def test_empty_arrays(shape: tuple[int, ...]) -> None:
    inputs = [np.zeros(shape, np.float32), np.zeros((3, *shape), np.float32)]
    inner = made(lambda a, x: [e.add(a, x), a], f32(*shape), f32(*shape))
    main = program_of(lambda a, x: scanned(inner, a, x, length=3, carry=1), inputs)
    check_kernels(main, inputs, EXACT)


def test_elements_go_through_a_loop_in_blocks(form: str) -> None:
    n, length = 2500, 3
    inputs = [floats(n), floats(n, seed=1), floats(length, n, seed=2), floats(length)]

    def body(c: Var, i: Var, a: Var, b: Var, x: Var, s: Var) -> Any:
        new = e.add(e.mul(a, c), e.sub(x, s))
        return [plus(i, 1), b, new, e.add(new, b), e.mul(s, s)]

    inner = made(body, f32(n), i32(), f32(n), f32(n), f32(n), f32())

    def main(c: Var, a: Var, xs: Var, ss: Var) -> Any:
        zero = conversion.literal(0, I32)
        return scanned(
            inner, c, zero, a, c, xs, ss, length=length, carry=3, consts=1, reverse=True
        )

    compiled = check_kernels(program_of(main, inputs), inputs, NEAR)
    loops = [s for s in kernel_calls(compiled.plan.steps) if s.iterations == length]
    if form == "nodes":
        assert not loops
    else:
        assert [loop.items for loop in loops] == [3]  # blocks of 1024
        source = compiled.kernels[-1].source
        assert "for i0 in range(start, stop):" in source


def test_a_loop_with_scalars_reads_them_before_any_block_writes_them(form: str) -> None:
    n = 5000
    inputs = [np.array(0, np.int32), floats(n)]
    condition = made(lambda i, x: [less(i, 4)], i32(), f32(n))
    body = made(lambda i, x: [plus(i, 1), e.mul(x, x)], i32(), f32(n))

    def main(i: Var, x: Var) -> Any:
        # The counter is a value that nothing else needs: it could be written over.
        return while_loop(
            plus(i, 1),
            plus(x, 0.5),
            cond_program=condition,
            body_program=body,
            cond_consts=0,
            body_consts=0,
        )

    check_kernels(program_of(main, inputs), inputs, NEAR)


def test_a_branch_that_updates_an_array_does_so_in_place(form: str) -> None:
    n = 3000
    inputs = [floats(n), np.array([0, 1, 1, 0, 1], np.int32)]

    def update(i: Var, x: Var) -> Any:
        return [dynamic_slices.dynamic_update_slice(x, halves(), i)]

    def halves() -> Any:
        return views.broadcast_literal(0.5, f32(1))

    branches = (
        made(lambda i, x: [x], i32(), f32(n)),
        made(update, i32(), f32(n)),
    )

    def body(i: Var, x: Var, which: Var) -> Any:
        return [plus(i, 7), cond(which, i, x, branches=branches)]

    inner = made(body, i32(), f32(n), i32())

    def main(x: Var, which: Var) -> Any:
        zero = conversion.literal(0, I32)
        return scanned(inner, zero, x, which, length=5, carry=2)

    compiled = check_kernels(program_of(main, inputs), inputs)
    calls = list(kernel_calls(compiled.plan.steps))
    # The argument is copied once; no branch copies it.
    assert [call.items for call in calls if call.items > 10] == [n]
    assert compiled.plan.arena < 4 * n


def test_a_branch_that_needs_an_array_after_updating_it_copies_it() -> None:
    inputs = [np.array(1, np.int32), floats(8)]

    def update(x: Var) -> Any:
        new = dynamic_slices.dynamic_update_slice(
            x, views.broadcast_literal(0.5, f32(2)), Literal(3, I32)
        )
        return [new, e.add(x, new)]

    branches = (
        made(lambda x: [x, x], f32(8)),
        made(update, f32(8)),
    )

    def main(which: Var, x: Var) -> Any:
        return cond(which, e.mul(x, x), branches=branches)

    for which in (0, 1):
        given = [np.array(which, np.int32), inputs[1]]
        check_kernels(program_of(main, given), given)
