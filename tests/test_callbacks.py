"""pure_callback, debug.print and debug.callback: eager, compiled, mapped, in loops."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import arrayfn as af
from arrayfn import debug, lax
from arrayfn.callbacks import io_callback, pure_callback
from arrayfn.compilation.jit import jit
from arrayfn.errors import ArgumentError, DifferentiationError, ShapeError
from arrayfn.primitives.named_functions import FUNCTIONS
from arrayfn.transforms import ShapeDtypeStruct, grad, jvp, make_program, vmap
from arrayfn.transforms.custom import custom_jvp

X = np.array([3.0, 1.0, 2.0])
FLOAT = ShapeDtypeStruct((), np.float64)


def spectrum(x, scale=1.0):
    return {"sorted": np.sort(x) * scale, "n": np.int64(len(x))}


SPECTRUM = {"sorted": X, "n": ShapeDtypeStruct((), np.int64)}


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_a_python_function_between_compiled_ones(device):
    def f(x):
        found = pure_callback(spectrum, SPECTRUM, x * 2, scale=10.0)
        return found["sorted"] + found["n"]

    expected = np.sort(X) * 20 + 3
    assert f(X).tolist() == expected.tolist()
    assert jit(f, device=device)(X).tolist() == expected.tolist()


def test_every_dtype_and_shape_comes_through_as_it_is():
    arrays = [
        np.array([[True, False]]),
        np.arange(6, dtype=np.int8).reshape(2, 3),
        np.array(1 + 2j),
        np.float16(0.5) * np.ones(3, np.float16),
        np.zeros((0, 4), np.float32),
    ]

    def same(*given):
        for x, y in zip(given, arrays, strict=True):
            assert (x.dtype, x.shape) == (y.dtype, y.shape)
        return given

    f = jit(lambda *xs: pure_callback(same, tuple(xs), *[x.T.T for x in xs]))
    for have, want in zip(f(*arrays), arrays, strict=True):
        np.testing.assert_array_equal(have, want)
        assert have.dtype == want.dtype


def test_mapping_calls_for_each_member_or_once():
    calls = []

    def norm(x, y):
        calls.append((x.shape, y.shape))
        return np.sqrt((x * x).sum(-1)) * y[..., 0]

    def f(method):
        return vmap(
            lambda x, y: pure_callback(norm, FLOAT, x, y, vmap_method=method),
            (0, None),
        )

    xs = np.stack([X, 2 * X])
    y = np.array([2.0, 0.0])
    expected = np.sqrt((xs**2).sum(1)) * 2
    forms = {
        "sequential": [((3,), (2,))] * 2,
        "expand_dims": [((2, 3), (1, 2))],
        "broadcast_all": [((2, 3), (2, 2))],
    }
    for method, shapes in forms.items():
        for wrap in (lambda g: g, jit):
            calls.clear()
            np.testing.assert_allclose(wrap(f(method))(xs, y), expected, rtol=1e-15)
            assert calls == shapes
    with pytest.raises(ArgumentError, match="say how to call it, with pure"):
        f(None)(xs, y)
    nested = vmap(f("sequential"), (0, None))
    np.testing.assert_allclose(nested(xs[None], y), expected[None], rtol=1e-15)


def test_a_python_function_has_the_derivative_that_it_is_given():
    @custom_jvp
    def sine(x):
        return pure_callback(np.sin, x, x, vmap_method="expand_dims")

    @sine.defjvp
    def rule(primals, tangents):
        return sine(primals[0]), np.cos(primals[0]) * tangents[0]

    assert grad(sine)(0.5) == np.cos(0.5)
    assert jit(grad(sine))(0.5) == pytest.approx(np.cos(0.5), rel=1e-15)
    np.testing.assert_allclose(vmap(grad(sine))(X), np.cos(X), rtol=1e-15)
    with pytest.raises(DifferentiationError, match="rule of its own with custom_jvp"):
        grad(lambda x: pure_callback(np.sin, x, x))(0.5)


def test_results_that_are_not_as_declared():
    with pytest.raises(ShapeError, match=r"gave f64\[3\] as result 0, .* f64\[\]"):
        jit(lambda x: pure_callback(lambda x: x, FLOAT, x))(X)
    with pytest.raises(ShapeError, match=r"gave f32\[3\] as result 0, .* f64\[3\]"):
        pure_callback(np.float32, X, X)
    with pytest.raises(ArgumentError, match="returned the structure"):
        jit(lambda x: pure_callback(lambda x: (x, x), X, x))(X)
    with pytest.raises(ArgumentError, match="vmap_method must be one of"):
        pure_callback(np.sin, X, X, vmap_method="parallel")


def test_what_the_function_raises_is_raised_where_the_plan_was_called():
    calls = []

    def fail(x):
        calls.append("fail")
        raise ValueError(f"no square root of {x}")

    def f(x):
        y = pure_callback(fail, FLOAT, x)
        debug.callback(calls.append, y)
        return y + 1

    compiled = jit(f)
    for _ in range(2):
        calls.clear()
        with pytest.raises(ValueError, match=r"no square root of 2\.0") as caught:
            compiled(2.0)
        assert calls == ["fail"]  # and what comes later is left out
        (note,) = caught.value.__notes__
        assert note.startswith("in the Python function fail#")
        assert "called at test_callbacks.py:" in note
    assert jit(lambda x: x + 1)(2.0) == 3.0


def test_a_loop_that_waits_for_a_function_that_fails_ends():
    def fail(x):
        raise RuntimeError("no answer")

    @jit
    def f(x):
        def more(state):
            return pure_callback(fail, ShapeDtypeStruct((), bool), state)

        return lax.while_loop(more, lambda x: x + 1, x)

    with pytest.raises(RuntimeError, match="no answer"):
        f(1.0)


def test_values_are_printed_when_they_are_there(capsys):
    @jit
    def f(x):
        debug.print("x = {}, {half:.2f} and {}", x, "text", half=x / 2)
        debug.print("nothing")
        return x

    assert f(3.0) == 3.0
    assert f(4.0) == 4.0
    expected = "x = 3.0, 1.50 and text\nnothing\nx = 4.0, 2.00 and text\nnothing\n"
    assert capsys.readouterr().out == expected
    debug.print("{0} {0}", X)
    assert capsys.readouterr().out == "[3. 1. 2.] [3. 1. 2.]\n"
    with pytest.raises(ArgumentError, match="needs a value that was not given"):
        jit(lambda x: debug.print("{} {}", x))(1.0)


def test_each_value_has_its_place_in_the_format():
    with pytest.raises(ArgumentError, match=r"no place for the value 'y'.*f-string"):
        jit(lambda x: debug.print("{x}", x=x, y=x))(1.0)
    with pytest.raises(ArgumentError, match="no place for the value '0'"):
        debug.print("hello", 1.0)


def test_printing_options_are_those_of_the_line(capsys):
    def f(x):
        with np.printoptions(precision=2, suppress=True):
            debug.print("{}", x)
        debug.print(ordered=True)("{x}", x=x[:1])

    for g in (f, jit(f)):
        g(np.array([1.2345, 1e-7]))
        assert capsys.readouterr().out == "[1.23 0.  ]\n[1.2345]\n"


@pytest.mark.parametrize("within", ["scan", "cond", "while", "rule", "checkpoint"])
def test_effects_inside_of_what_is_differentiated_take_place_once(within):
    seen = []

    def show(x):
        debug.callback(lambda y: seen.append(float(y)), x)
        return 2.0 * x

    rule = custom_jvp(show)
    rule.defjvp(lambda p, t: (show(3.0 * p[0]), 2.0 * t[0]))
    f = {
        "scan": lambda x: lax.scan(lambda c, _: (show(c), None), x, length=2)[0],
        "cond": lambda x: lax.cond(x > 0, show, lambda x: x, x),
        "while": lambda x: lax.while_loop(lambda c: c < 4.0, show, x),
        "rule": rule,
        "checkpoint": af.checkpoint(show),
    }[within]
    want = {"scan": [1.0, 2.0], "while": [1.0, 2.0], "rule": [3.0]}.get(within, [1.0])
    for g in (f, jit(f)):
        del seen[:]
        jvp(g, (1.0,), (1.0,))
        assert seen == want


def test_effects_happen_once_and_in_order():
    seen = []

    def f(x):
        for k in range(4):
            debug.callback(lambda y, k=k: seen.append((k, float(y))), x)
            debug.callback(seen.append, k)
            x = np.sin(x) * 0 + k
        return 1.0

    for wrap in (lambda g: g, jit, grad, lambda g: jit(grad(g))):
        seen.clear()
        wrap(f)(5.0)
        numbers = [(0, 5.0), 0, (1, 0.0), 1, (2, 1.0), 2, (3, 2.0), 3]
        assert [x if isinstance(x, tuple) else int(x) for x in seen] == numbers


def test_derivatives_and_mappings_pass_effects_by():
    seen = []

    def f(x):
        debug.callback(lambda y: seen.append(y.tolist()), x * 2)
        return x**2

    assert grad(f)(3.0) == 6.0
    assert jvp(f, (3.0,), (1.0,)) == (9.0, 6.0)
    assert seen == [6.0, 6.0]
    seen.clear()
    assert jit(vmap(grad(f)))(X).tolist() == [6.0, 2.0, 4.0]
    assert seen == [6.0, 2.0, 4.0]
    seen.clear()
    vmap(vmap(f, (0,)), (1,))(np.arange(4.0).reshape(2, 2))
    assert seen == [0.0, 4.0, 2.0, 6.0]


def test_effects_in_loops_and_branches():
    seen = []

    def body(k, x):
        debug.callback(lambda k, x: seen.append((int(k), float(x))), k, x)
        return lax.cond(
            x > 2.0,
            lambda x: (debug.callback(lambda: seen.append("large")), x)[1],
            lambda x: x + 1.5,
            x,
        )

    assert jit(lambda x: lax.fori_loop(0, 3, body, x))(0.0) == 3.0
    assert seen == [(0, 0.0), (1, 1.5), (2, 3.0), "large"]


def test_functions_live_as_long_as_a_program_that_calls_them():
    def f(x):
        return pure_callback(lambda y: y * 2, x, x)

    program = make_program(f)(1.0)
    name = str(program.equations[0].params["callback"])
    assert FUNCTIONS.find(name).function(2.0)[0] == 4.0
    del program
    gc.collect()
    with pytest.raises(ValueError, match="belongs to another process, or to a Program"):
        FUNCTIONS.find(name)


def test_a_function_may_call_compiled_functions():
    inner = jit(lambda x: x @ x.T)
    x = np.ones((200, 200))

    def outer(x):
        return pure_callback(lambda y: inner(y) + inner(y), x, x) @ x

    np.testing.assert_array_equal(jit(outer)(x), 400 * x @ x)


def test_the_package_has_them():
    assert af.pure_callback is pure_callback
    assert af.debug.print is debug.print


# io_callback


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_io_callbacks_run_once_in_order_even_if_nothing_reads_them(device):
    log = []

    def count(x):
        log.append(float(x))
        return np.float64(len(log))

    def f(x):
        first = io_callback(count, FLOAT, x)
        io_callback(count, FLOAT, x)
        io_callback(lambda y: log.append(float(y)), None, x + 1, ordered=True)
        return first + io_callback(count, FLOAT, x)

    assert float(f(2.0)) == 5.0
    compiled = jit(f, device=device)
    log.clear()
    assert float(compiled(2.0)) == 5.0
    assert log == [2.0, 2.0, 3.0, 2.0]
    assert float(compiled(2.0)) == 13.0
    assert len(log) == 8


def test_io_callbacks_in_loops_and_maps():
    log = []

    def number(x):
        log.append(float(x))
        return np.float64(10 * x)

    def step(carry, x):
        return carry + io_callback(number, FLOAT, x, ordered=True), None

    assert float(jit(lambda xs: lax.scan(step, 0.0, xs)[0])(X)) == 60.0
    assert log == [3.0, 1.0, 2.0]
    log.clear()
    tens = jit(vmap(lambda x: io_callback(number, FLOAT, x)))(X)
    assert (tens.tolist(), log) == ([30.0, 10.0, 20.0], [3.0, 1.0, 2.0])
    with pytest.raises(ArgumentError, match="its calls are ordered"):
        vmap(lambda x: io_callback(number, FLOAT, x, ordered=True))(X)


def test_io_callbacks_have_no_derivative():
    def f(x):
        return x * io_callback(np.square, FLOAT, af.lax.stop_gradient(x))

    assert float(grad(f)(3.0)) == 9.0
    with pytest.raises(DifferentiationError, match="side effects has no derivative"):
        grad(lambda x: io_callback(np.square, FLOAT, x))(3.0)
