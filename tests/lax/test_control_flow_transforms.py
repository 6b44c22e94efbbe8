"""Derivatives and mapping of control flow, against the same written out in Python."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import lax
from arrayfn.errors import DifferentiationError

RNG = np.random.default_rng(5)
W = RNG.standard_normal((2, 2)) * 0.4
XS = RNG.standard_normal((3, 2))


@dataclass(frozen=True)
class Case:
    """A function of a vector, with control flow and with Python's."""

    staged: Callable[[Any], Any]
    plain: Callable[[Any], Any]
    points: Any  # values that take different paths


def rnn(x: Any) -> Any:
    def step(h: Any, row: Any) -> Any:
        h = anp.tanh(W @ h + row * x)
        return h, {"h": h * x[0]}

    last, ys = lax.scan(step, anp.zeros(2), XS)
    return (ys["h"] ** 2).sum() + last.sum()


def rnn_plain(x: Any) -> Any:
    h, total = anp.zeros(2), 0.0
    for row in XS:
        h = anp.tanh(W @ h + row * x)
        total = total + ((h * x[0]) ** 2).sum()
    return total + h.sum()


def reverse_scan(x: Any) -> Any:
    def step(carry: Any, row: Any) -> Any:
        count, h = carry
        h = anp.sin(h * (count + 1) + row)
        return (count + 1, h), (h * row, count)

    (count, h), (ys, counts) = lax.scan(step, (0, x), XS, reverse=True)
    return (ys * counts[:, None]).sum() + (h * count).sum()


def reverse_plain(x: Any) -> Any:
    total = 0.0
    for count, row in enumerate(XS[::-1]):
        x = anp.sin(x * (count + 1) + row)
        total = total + (x * row * count).sum()
    return total + (x * 3).sum()


def branch(x: Any) -> Any:
    return lax.cond(
        x[0] > 0, lambda x: (anp.sin(x) * W).sum(), lambda x: (x**3).sum() * x[1], x
    )


def branch_plain(x: Any) -> Any:
    if x.value[0] > 0:
        return (anp.sin(x) * W).sum()
    return (x**3).sum() * x[1]


def chosen(x: Any) -> Any:
    number = anp.floor(x[0]).astype("int32")
    powers = [lambda y, k=k: (y**k).sum() * x[1] for k in (1, 2, 3)]
    return lax.switch(number, powers, x)


def chosen_plain(x: Any) -> Any:
    number = min(max(int(np.floor(x.value[0])), 0), 2)
    return (x ** (number + 1)).sum() * x[1]


def newton(x: Any) -> Any:
    def step(state: Any) -> Any:
        root, _ = state
        after = (root + x / root) / 2
        return after, abs(after - root).sum()

    root, _ = lax.while_loop(lambda state: state[1] > 1e-9, step, (x, 1.0))
    return (root * W).sum()


def newton_plain(x: Any) -> Any:
    root, change = x, 1.0
    while change > 1e-9:
        after = (root + x / root) / 2
        change, root = float(abs(after - root).sum()), after
    return (root * W).sum()


def counted(x: Any) -> Any:
    def step(k: Any, y: Any) -> Any:
        return anp.sin(y) * x + 0.1 * k

    known = lax.fori_loop(1, 4, step, x)
    unknown = lax.fori_loop(0, anp.floor(x[0]).astype("int32") + 3, step, x)
    return (known * unknown).sum()


def counted_plain(x: Any) -> Any:
    known = unknown = x
    for k in range(1, 4):
        known = anp.sin(known) * x + 0.1 * k
    for k in range(int(np.floor(x.value[0])) + 3):
        unknown = anp.sin(unknown) * x + 0.1 * k
    return (known * unknown).sum()


def scan_in_cond_in_while(x: Any) -> Any:
    def longer(y: Any) -> Any:
        return lax.scan(lambda c, row: (anp.sin(c) * x + row, c.sum()), y, XS)

    def shorter(y: Any) -> Any:
        return y * x, anp.zeros(3)

    def step(state: Any) -> Any:
        count, y, total = state
        y, parts = lax.cond(count % 2 == 0, longer, shorter, y)
        return count + 1, y, total + (parts**2).sum()

    _, y, total = lax.while_loop(lambda s: s[0] < 3, step, (0, x, 0.0))
    return y.sum() + total


def scan_in_cond_in_while_plain(x: Any) -> Any:
    y, total = x, 0.0
    for count in range(3):
        if count % 2 == 0:
            for row in XS:
                total = total + y.sum() ** 2
                y = anp.sin(y) * x + row
        else:
            y = y * x
    return y.sum() + total


def while_in_scan_in_cond(x: Any) -> Any:
    def halved(y: Any) -> Any:
        return lax.while_loop(lambda y: (y**2).sum() > 1.0, lambda y: y * 0.6 * x[1], y)

    def staged(x: Any) -> Any:
        def step(c: Any, row: Any) -> Any:
            c = halved(c * 2.0 + row)
            return c, c[0]

        last, ys = lax.scan(step, x, XS)
        return last.sum() * ys.prod()

    return lax.cond(x[0] > -5.0, staged, lambda x: x.sum(), x)


def while_in_scan_in_cond_plain(x: Any) -> Any:
    c, product = x, 1.0
    for row in XS:
        c = c * 2.0 + row
        while float((c**2).sum()) > 1.0:
            c = c * 0.6 * x[1]
        product = product * c[0]
    return c.sum() * product


def associative(x: Any) -> Any:
    rows = anp.asarray(XS) * x

    def combine(first: Any, second: Any) -> Any:
        return first[0] * second[0], second[0] * first[1] + second[1]

    _, states = lax.associative_scan(combine, (anp.cos(rows), rows))
    return (states**2).sum()


def associative_plain(x: Any) -> Any:
    h, total = anp.zeros(2), 0.0
    for row in XS:
        h = anp.cos(row * x) * h + row * x
        total = total + (h**2).sum()
    return total


def mapped(x: Any) -> Any:
    rows = anp.asarray(XS) * x
    alone = lax.map(lambda row: anp.sin(row).sum() * x, rows)
    together = lax.map(lambda row: anp.sin(row).prod(), rows, batch_size=2)
    return alone.sum() + together.sum()


def mapped_plain(x: Any) -> Any:
    total = 0.0
    for row in XS:
        sines = anp.sin(row * x)
        total = total + (sines.sum() * x).sum() + sines.prod()
    return total


SIGNS = np.array([[0.7, 0.4], [-0.8, 0.9], [0.2, 0.5]])
POSITIVE = np.array([[1.7, 0.4], [2.8, 0.9], [0.2, 0.5]])
CASES = {
    "rnn": Case(rnn, rnn_plain, SIGNS),
    "reverse": Case(reverse_scan, reverse_plain, SIGNS),
    "cond": Case(branch, branch_plain, SIGNS),
    "switch": Case(chosen, chosen_plain, POSITIVE),
    "newton": Case(newton, newton_plain, POSITIVE),
    "fori": Case(counted, counted_plain, POSITIVE),
    "scan_in_cond_in_while": Case(
        scan_in_cond_in_while, scan_in_cond_in_while_plain, SIGNS
    ),
    "while_in_scan_in_cond": Case(
        while_in_scan_in_cond, while_in_scan_in_cond_plain, POSITIVE
    ),
    "associative": Case(associative, associative_plain, SIGNS),
    "map": Case(mapped, mapped_plain, SIGNS),
}
EVERY = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
DIRECTION = np.array([0.3, -1.1])


def value_of(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """``function`` traced with values, so that its Python branches can be taken."""
    return lambda x: af.value_and_grad(function)(x)[0]


@EVERY
def test_the_value_is_that_of_python(case: Case) -> None:
    for x in case.points:
        np.testing.assert_allclose(case.staged(x), value_of(case.plain)(x), 1e-12)


@EVERY
def test_forward_mode(case: Case) -> None:
    for x in case.points:
        _, have = af.jvp(case.staged, (x,), (DIRECTION,))
        _, want = af.jvp(case.plain, (x,), (DIRECTION,))
        np.testing.assert_allclose(have, want, 1e-9)


@EVERY
def test_reverse_mode(case: Case) -> None:
    for x in case.points:
        want = af.grad(case.plain)(x)
        np.testing.assert_allclose(af.grad(case.staged)(x), want, 1e-9, 1e-12)


@EVERY
def test_reverse_mode_agrees_with_finite_differences(case: Case) -> None:
    x, step = case.points[0], 1e-6
    ahead = case.staged(x + step * DIRECTION)
    behind = case.staged(x - step * DIRECTION)
    want = (ahead - behind) / (2 * step)
    np.testing.assert_allclose(af.grad(case.staged)(x) @ DIRECTION, want, 1e-6)


@EVERY
def test_second_derivatives(case: Case) -> None:
    x = case.points[0]
    want = af.jacfwd(af.grad(case.plain))(x)
    forward_over_reverse = af.jacfwd(af.grad(case.staged))(x)
    np.testing.assert_allclose(forward_over_reverse, want, 1e-7, 1e-9)
    directional = af.grad(lambda x: af.grad(case.staged)(x) @ DIRECTION)(x)
    np.testing.assert_allclose(directional, want @ DIRECTION, 1e-7, 1e-9)


@EVERY
def test_mapping_is_a_loop(case: Case) -> None:
    points = case.points
    want = [case.staged(x) for x in points]
    np.testing.assert_allclose(af.vmap(case.staged)(points), want, 1e-12)
    want = [af.grad(case.staged)(x) for x in points]
    np.testing.assert_allclose(af.vmap(af.grad(case.staged))(points), want, 1e-9, 1e-12)


@EVERY
def test_compiled_values_and_gradients_are_those_of_the_reference(case: Case) -> None:
    both = af.jit(af.value_and_grad(case.staged))
    for x in case.points:
        value, gradient = both(x)
        np.testing.assert_allclose(value, case.staged(x), 1e-11)
        np.testing.assert_allclose(gradient, af.grad(case.staged)(x), 1e-9, 1e-12)


def test_the_gradient_of_a_mapped_loop_is_that_of_each() -> None:
    have = af.grad(lambda xs: af.vmap(newton)(xs).sum())(POSITIVE)
    want = [af.grad(newton)(x) for x in POSITIVE]
    np.testing.assert_allclose(have, want, 1e-9)


@pytest.mark.parametrize("steps", [0, 1, 8, 9, 40, 137])
def test_a_tape_that_is_full_is_thinned(
    steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("arrayfn.primitives.control_flow_tape._MAX_ENTRIES", 16)

    def staged(x: Any) -> Any:
        def step(state: Any) -> Any:
            k, y = state
            return k + 1, anp.sin(y) * 1.2 + 0.001 * y * k

        return lax.while_loop(lambda s: s[0] < steps, step, (0, x))[1].sum()

    def plain(x: Any) -> Any:
        for k in range(steps):
            x = anp.sin(x) * 1.2 + 0.001 * x * k
        return x.sum()

    x = np.array([0.5, -0.7])
    np.testing.assert_allclose(af.grad(staged)(x), af.grad(plain)(x), 1e-11)


def test_the_memory_of_a_while_loop_in_reverse_is_that_of_its_tape() -> None:
    def f(x: Any) -> Any:
        def step(state: Any) -> Any:
            k, y = state
            return k + 1, anp.sin(y) * 1.01

        return lax.while_loop(lambda s: s[0] < 10**6, step, (0, x))[1].sum()

    x = np.zeros((512, 512), np.float32)
    plan = af.jit(af.grad(f)).lower(x).plan
    # Sixteen entries, once carried and once as the loop leaves them; a few values.
    assert plan.arena <= (2 * 16 + 4) * x.nbytes


def test_a_loop_that_needs_no_values_needs_no_tape() -> None:
    def scaled(w: Any, x: Any) -> Any:
        return lax.while_loop(
            lambda s: s[0] < 5, lambda s: (s[0] + 1, s[1] * w), (0, x)
        )

    linear = af.grad(lambda x: scaled(np.array([2.0, 3.0]), x)[1].sum())
    np.testing.assert_allclose(linear(np.ones(2)), [32.0, 243.0])
    program = af.make_program(linear)(np.ones(2))
    assert "dynamic_update_slice" not in str(program)


def test_a_linear_loop_is_transposed() -> None:
    def accumulated(xs: Any) -> Any:
        def step(carry: Any, x: Any) -> Any:
            k, total = carry
            return (k + 1, total + x * k), total * 2.0

        return lax.scan(step, (0, 0.0), xs)[1]

    matrix = np.stack([accumulated(row) for row in np.eye(4)], axis=1)
    cotangent = np.array([1.0, -2.0, 0.5, 3.0])
    (result,) = af.linear_transpose(accumulated, np.zeros(4))(cotangent)
    np.testing.assert_allclose(result, matrix.T @ cotangent)


def test_what_does_not_vary_has_no_tangent() -> None:
    def step(carry: Any, x: Any) -> Any:
        k, y = carry
        return (k + 1.0, y * x), k

    program = af.make_program(
        lambda x: af.jvp(lambda x: lax.scan(step, (0.0, x), XS[:, 0]), (x,), (x,))
    )(1.0)
    (equation,) = [q for q in program.equations if q.primitive.name == "scan"]
    assert equation.params["carry"] == 3


def scans(function: Callable[..., Any], *arguments: Any) -> list[Any]:
    program = af.make_program(function)(*arguments)
    return [q for q in program.equations if q.primitive.name == "scan"]


def test_what_is_cheap_is_computed_again_and_what_is_constant_once() -> None:
    def f(x: Any) -> Any:
        def step(h: Any, row: Any) -> Any:
            h = anp.tanh(h * anp.exp(x) + row)
            return h, h

        return lax.scan(step, x, XS)[1].sum()

    forward, backward = scans(af.grad(f), np.ones(2))
    # The carry, the results, and each step's carry; 1 - tanh^2 follows from results.
    assert len(forward.outputs) == 3
    # exp(x) is a constant of the backward loop.
    inside = [q.primitive.name for q in backward.params["program"].equations]
    assert "exp" not in inside
    assert "tanh" not in inside
    assert "square" in inside or "mul" in inside


def test_slices_that_the_derivative_reads_are_not_copied() -> None:
    def f(x: Any, xs: Any) -> Any:
        return lax.scan(lambda h, row: (h * row, None), x, xs)[0].sum()

    forward, backward = scans(af.grad(f), np.ones(2), XS)
    assert len(forward.outputs) == 1
    assert forward.inputs[-1] in backward.inputs


def test_a_condition_of_what_is_linear_has_no_transpose() -> None:
    def f(x: Any) -> Any:
        return lax.while_loop(lambda y: y < 1.0, lambda y: y * 2.0, x)

    with pytest.raises(DifferentiationError, match="the condition of a while_loop"):
        af.linear_transpose(f, 1.0)(1.0)
