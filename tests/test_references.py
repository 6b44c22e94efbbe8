"""``Ref``: arrays that traced code writes to."""

from __future__ import annotations

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import lax
from arrayfn.backends.cuda.emulator.plan import run_plan
from arrayfn.errors import ArgumentError, ShapeError, TracerLeakError
from arrayfn.lowering.cuda.lower import lower
from arrayfn.test_util import check_grads

X = np.array([1.0, 2.0, 4.0])


def filled(x):
    """Parts written in several ways."""
    ref = af.new_ref(anp.zeros_like(x))
    ref[0] = x[1] * 2
    ref[1:] += x[:2]
    ref[...] = ref[...] * 3
    ref[anp.argmax(x)] += 1
    return ref[...] + ref[::-1]


def running(x):
    """A scan that writes to two Refs and reads a third."""
    total, largest, scale = af.new_ref(0.0), af.new_ref(x[0]), af.new_ref(x[2])

    def step(carry, y):
        total[...] += y * scale[...]
        largest[...] = anp.maximum(largest[...], y)
        return carry + 1, total[...]

    count, totals = lax.scan(step, 0, x)
    return total[...] * largest[...] + count, totals


def looped(x):
    ref = af.new_ref(x)

    def body(i, carry):
        ref[i % 3] = ref[i % 3] * 2 + carry
        return carry + 1

    last = lax.fori_loop(0, 5, body, 0.0)
    return ref[...] + last


def waited(x):
    """A while_loop whose condition reads the Ref."""
    ref = af.new_ref(x)

    def body(n):
        ref[...] = ref[...] * 2
        return n + 1

    return lax.while_loop(lambda n: anp.sum(ref[...]) < 100, body, 0), ref[...]


def branched(x):
    ref, other = af.new_ref(x), af.new_ref(0.0)

    def negative(y):
        ref[...] = -ref[...]
        return y

    def larger(y):
        other[...] = y + 1
        return y * 2

    made = lax.cond(x[0] > 0, negative, larger, x[0])
    more = lax.switch(1, [negative, larger, lambda y: y], x[1])
    return ref[...] * made + other[...] * more


def nested(x):
    """A branch in a loop in a loop, and a jitted function."""
    ref = af.new_ref(anp.zeros(2))

    @af.jit
    def note(y):
        ref[1] += y
        return y

    def inner(carry, y):
        def add(y):
            ref[0] += note(y)

        lax.cond(y > 1, add, lambda y: None, y)
        return carry, None

    def outer(carry, _):
        return lax.scan(inner, carry, x)[0], None

    lax.scan(outer, 0.0, None, length=2)
    return ref[...]


def expected_running(x):
    totals = np.cumsum(x * x[2])
    return totals[-1] * x.max() + 3, totals


CASES = {
    "filled": (filled, lambda x: np.array([19, 6, 19])),
    "running": (running, expected_running),
    "looped": (looped, None),
    "waited": (waited, lambda x: (4, x * 16)),
    "branched": (branched, lambda x: -x * x[0] + 3 * 4),
    "nested": (nested, lambda x: np.array([12, 12])),
}


@pytest.mark.parametrize("name", CASES)
def test_traced_functions_write(name):
    f, wanted = CASES[name]
    at_once = f(X)
    compiled = af.jit(f)
    if wanted is not None:
        for have, want in zip(
            af.tree.leaves(at_once), af.tree.leaves(wanted(X)), strict=False
        ):
            np.testing.assert_allclose(have, want)
    for have in (compiled(X), compiled(X), af.jit(f, device="reference")(X)):
        for x, y in zip(af.tree.leaves(have), af.tree.leaves(at_once), strict=True):
            np.testing.assert_allclose(x, y)
    program = af.jit(f).lower(X).program
    outputs = run_plan(lower(program, frozenset()), [X])
    for x, y in zip(outputs, af.tree.leaves(at_once), strict=True):
        np.testing.assert_allclose(x, y)


@pytest.mark.parametrize("name", ["filled", "running", "looped", "branched", "nested"])
def test_derivatives_and_vmap_go_through(name):
    f = CASES[name][0]
    check_grads(lambda x: af.tree.leaves(f(x))[0], (X + 0.25,), order=1)
    rows = np.stack([X, 2 * X])
    mapped = af.jit(af.vmap(f))(rows)
    for k in range(2):
        for x, y in zip(
            af.tree.leaves(mapped), af.tree.leaves(f(rows[k])), strict=True
        ):
            np.testing.assert_allclose(x[k], y)


def test_a_jitted_function_writes_to_refs_that_it_is_given():
    @af.jit
    def push(stack, top, x, *, scale=1.0):
        stack[top[...]] = x * scale
        top[...] += 1
        return stack[...].sum()

    stack, top = af.new_ref(np.zeros(3)), af.new_ref(0)
    assert push(stack, top, 2.0) == 2.0
    assert push(stack, top, 3.0, scale=2.0) == 8.0
    np.testing.assert_array_equal(stack[...], [2.0, 6.0, 0.0])
    assert top[...] == 2

    def around(x):
        inside = af.new_ref(anp.zeros(3))
        push(inside, af.new_ref(1), x)
        return inside[...]

    np.testing.assert_array_equal(af.jit(around)(5.0), [0.0, 5.0, 0.0])
    np.testing.assert_array_equal(af.grad(lambda x: around(x).sum())(5.0), 1.0)


def test_outside_of_traces_a_ref_holds_an_array_of_its_own():
    x = np.zeros(3, np.float32)
    ref = af.new_ref(x)
    ref[1] = 2
    assert (ref.shape, ref.dtype, ref.ndim, ref.size) == ((3,), np.float32, 1, 3)
    assert x.sum() == 0
    assert ref.swap(np.ones(3)).tolist() == [0.0, 2.0, 0.0]
    assert ref[...].dtype == np.float32
    assert af.freeze(ref).tolist() == [1.0, 1.0, 1.0]
    assert repr(ref) == "Ref(f32[3])"
    assert af.empty_ref(x)[...].tolist() == [0.0, 0.0, 0.0]
    lax.fori_loop(0, 3, lambda i, c: (ref.set(ref[...] + 1), c)[1], 0)
    assert ref[...].tolist() == [4.0, 4.0, 4.0]


def escaping(x):
    return af.new_ref(x)


def kept(x):
    seen.append(af.new_ref(x))
    return x


seen: list[af.Ref] = []


def closing_over():
    ref = af.new_ref(X)
    return af.jit(lambda x: x + ref[...])(X)


def given_twice():
    ref = af.new_ref(X)
    return af.jit(lambda r, s: r[...])(ref, ref)


def written_by(wrap):
    def f(x):
        ref = af.new_ref(x)

        def inner(y):
            ref[...] = y
            return y

        return wrap(inner)(x[0])

    return f


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: af.jit(escaping)(X), ArgumentError, r"returned a Ref \(f64\[3\]\)"),
        (
            lambda: (af.jit(kept)(X), seen.pop()[...]),
            TracerLeakError,
            "is read after 'kept', the function that it was made in, has returned",
        ),
        (
            closing_over,
            ArgumentError,
            "is read: only this first call would do that. Pass the Ref as an argument",
        ),
        (
            given_twice,
            ArgumentError,
            "given one Ref twice",
        ),
        (
            lambda: written_by(af.grad)(X),
            ArgumentError,
            "'inner' writes to a Ref .* what grad, vmap or checkpoint takes returns",
        ),
        (
            lambda: af.jit(written_by(af.checkpoint))(X),
            ArgumentError,
            "writes to a Ref",
        ),
        (lambda: af.vmap(lambda r: r)(af.new_ref(X)), ArgumentError, r"is a Ref"),
        (lambda: af.new_ref("x"), ArgumentError, "init_val is str"),
        (lambda: np.asarray(af.new_ref(X)), ArgumentError, r"ref\[\.\.\.\] is the one"),
        (lambda: af.new_ref(X).set(np.ones(2)), ShapeError, r"2.*3"),
    ],
)
def test_misuse_is_refused_with_the_line(call, error, words):
    with pytest.raises(error, match=rf"test_references\.py:\d+: .*{words}"):
        call()


def test_a_condition_does_not_write():
    def f(x):
        ref = af.new_ref(x)

        def going(n):
            ref[...] = n
            return n < 3

        def body(n):
            ref[...] = n
            return n + 1

        return lax.while_loop(going, body, x)

    with pytest.raises(ArgumentError, match="the condition, writes to a Ref"):
        af.jit(f)(0.0)


def test_functions_with_rules_neither_return_refs_nor_take_one_twice() -> None:
    @af.custom_vjp
    def same(ref):
        return ref

    same.defvjp(lambda ref: (ref, None), lambda _, ct: (ct,))
    with pytest.raises(ArgumentError, match=r"same returned a Ref \(f64\[\]\)"):
        same(af.new_ref(0.0))

    @af.custom_vjp
    def nothing(x, y):
        return 1.0

    nothing.defvjp(lambda x, y: (1.0, None), lambda _, ct: (None, None))
    ref = af.new_ref(0.0)
    with pytest.raises(ArgumentError, match="nothing is given one Ref twice"):
        nothing(ref, ref)
    assert nothing(ref, af.new_ref(0.0)) == 1.0
