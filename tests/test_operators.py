"""Operators: body, equation, kernel table."""

from __future__ import annotations

import numpy as np
import pytest

import arrayfn.numpy as anp
from arrayfn import debug, jit, lax
from arrayfn.compilation.operators import KERNELS, operator
from arrayfn.errors import ArgumentError, DroppedKernelWarning, KernelMismatchError
from arrayfn.ir.text import format_program, parse_program
from arrayfn.primitives.calls import evaluate
from arrayfn.primitives.table import TABLE
from arrayfn.transforms import grad, trace_function, vmap


@operator
def scaled_softmax(x, scale, axis=-1, shift=True):
    z = x * scale["by"]
    if shift:
        z = z - z.max(axis=axis, keepdims=True)
    e = anp.exp(z)
    return e / e.sum(axis=axis, keepdims=True)


X = np.array([[1.0, 2.0, 4.0], [0.5, -1.0, 3.0]])
SCALE = {"by": np.array(0.5)}


def traced(function, *args):
    return trace_function(function, args, {}, abstract=True).program


def test_a_call_on_arrays_runs_the_body():
    z = np.exp(X * 0.5)
    expected = z / z.sum(0, keepdims=True)
    np.testing.assert_allclose(scaled_softmax(X, SCALE, axis=0), expected, rtol=1e-14)


def test_a_call_in_a_trace_is_one_equation_with_its_body_and_static_arguments():
    program = traced(lambda x, s: scaled_softmax(x, s, axis=0), X, SCALE)
    (equation,) = program.equations
    assert equation.primitive.name == "operator_call"
    assert equation.params["name"] == equation.params["body"].name == "scaled_softmax"
    assert equation.params["static"] == (("axis", 0), ("shift", True))
    assert [e.primitive.name for e in equation.params["body"].equations][-1] == "div"


def test_the_equation_computes_what_the_body_does():
    program = traced(scaled_softmax, X, SCALE)
    (result,) = evaluate(program, [X, SCALE["by"]])
    np.testing.assert_allclose(result, scaled_softmax(X, SCALE), rtol=1e-15)


def test_the_text_form_of_the_equation_round_trips():
    text = format_program(traced(scaled_softmax, X, SCALE))
    assert format_program(parse_program(text, TABLE)) == text


def test_grad_and_vmap_go_through_the_body():
    weights = np.array([1.0, -2.0, 0.5])

    def loss(x):
        return (scaled_softmax(x, SCALE) * weights).sum()

    step = 1e-6
    for k in range(3):
        moved = np.eye(3)[k] * step
        difference = (loss(X[0] + moved) - loss(X[0] - moved)) / (2 * step)
        assert grad(loss)(X[0])[k] == pytest.approx(difference, rel=1e-7)
    np.testing.assert_allclose(vmap(loss)(X), [loss(X[0]), loss(X[1])], rtol=1e-14)


def test_a_body_may_close_over_traced_values():
    def outer(x, y):
        @operator
        def product(a):
            return a * y

        return product(x).sum()

    assert grad(outer, argnums=(0, 1))(2.0, 3.0) == (3.0, 2.0)


def test_the_kernel_registered_last_that_accepts_the_operands_is_found():
    @operator
    def doubled(x, times=1):
        return x * 2.0**times

    @doubled.kernel("cpu", check=False)
    def general(x, out, times): ...

    @doubled.kernel("cpu", when=lambda x, times: x.ndim == 1 and times == 1)
    def for_vectors(x, out, times): ...

    @doubled.kernel("cuda")
    def on_a_gpu(x, out, times): ...

    vector, matrix = (
        traced(doubled, np.ones(shape)).input_types for shape in ((3,), (3, 3))
    )
    found = [
        KERNELS.find("doubled", "cpu", vector, {"times": 1}),
        KERNELS.find("doubled", "cpu", vector, {"times": 2}),
        KERNELS.find("doubled", "cpu", matrix, {"times": 1}),
        KERNELS.find("doubled", "cuda", matrix, {"times": 1}),
        KERNELS.find("doubled", "tpu", matrix, {"times": 1}),
    ]
    assert [k and k.function for k in found] == [
        for_vectors,
        general,
        general,
        on_a_gpu,
        None,
    ]
    assert [k.function for k in doubled.kernels] == [for_vectors, general, on_a_gpu]


def halved_by_numpy():
    """An operator that halves, its kernel for matrices, and what that was given."""
    seen = []

    @operator
    def halved(x, by=2.0):
        return x / by

    @halved.kernel("cpu", when=lambda x, by: x.ndim == 2, check=False)
    def with_numpy(x, out, by):
        seen.append((x.shape, x.strides, x.flags.writeable, by))
        np.divide(x, by, out=out)

    return halved, seen


def test_compiled_functions_call_the_kernel_on_the_memory_of_the_plan():
    halved, seen = halved_by_numpy()
    f = jit(lambda x: anp.sum(halved(x[:, ::-1] + 1, by=4.0)))
    assert f(X) == pytest.approx((X + 1).sum() / 4)
    assert f(X[:, :2]) == pytest.approx((X[:, :2] + 1).sum() / 4)
    assert seen == [((2, 3), (24, 8), False, 4.0), ((2, 2), (16, 8), False, 4.0)]
    assert "operator_" in str(f.lower(X).plan)
    np.testing.assert_array_equal(grad(f)(X), np.full((2, 3), 0.25))
    vectors = jit(vmap(halved))(X)  # another function than the operator: its body
    np.testing.assert_array_equal(vectors, X / 2)
    assert len(seen) == 2


def test_kernels_are_called_in_loops_and_branches():
    halved, seen = halved_by_numpy()

    def descend(x):
        x = lax.fori_loop(0, 3, lambda k, y: halved(y), x)
        return lax.cond(x.sum() > 0, halved, lambda y: y, x)

    np.testing.assert_array_equal(jit(descend)(X), X / 16)
    assert len(seen) == 4


def test_what_a_kernel_raises_is_raised_by_the_call():
    halved, _ = halved_by_numpy()

    @halved.kernel("cpu", check=False)
    def refuses(x, out, by):
        raise FloatingPointError("no halves today")

    f = jit(lambda x: halved(x) + 1)
    for _ in range(2):
        with pytest.raises(FloatingPointError, match="no halves today"):
            f(X)


def test_a_prepared_kernel_is_asked_once_with_the_types():
    asked = []

    @operator
    def negated(x):
        return -x

    @negated.kernel("cpu", prepared=True)
    def prepare(x, out):
        asked.append((str(x), str(out)))
        return lambda x, out: np.negative(x, out=out)

    f = jit(negated)
    np.testing.assert_array_equal(f(X), -X)
    np.testing.assert_array_equal(f(X + 1), -X - 1)
    assert asked == [("f64[2,3]", "f64[2,3]")]


def test_defining_an_operator_again_forgets_the_kernels_of_the_old_one():
    @operator(name="twice")
    def first(x):
        return x + x

    first.kernel("cpu")(lambda x, out: None)

    @operator(name="twice")
    def second(x):
        return x * 2

    assert second.kernels == ()


def test_arguments_that_do_not_fit_the_signature_name_the_operator():
    with pytest.raises(ArgumentError, match=r"scaled_softmax: missing a required arg"):
        scaled_softmax(X)


def test_parameters_without_names_are_refused():
    with pytest.raises(ArgumentError, match=r"\*xs of total has none to call it by"):

        @operator
        def total(*xs):
            return sum(xs)


def test_unknown_static_names_are_refused():
    with pytest.raises(ArgumentError, match=r"no parameters \['axes'\]"):

        @operator(static_argnames=["axes"])
        def f(x, axis):
            return x


def test_a_static_argument_that_is_not_hashable_is_refused():
    with pytest.raises(
        ArgumentError, match=r"static argument 'axis' is not hashable: "
    ):
        scaled_softmax(X, SCALE, axis=[0])


# Kernels are compared with the body at the first call of each signature.


def squared_with(write, **options):
    """``jit`` of an operator x * x whose kernel is ``write(x, out)``."""

    @operator
    def squared(x):
        return x * x

    squared.kernel("cpu", **options)(write)
    return jit(squared)


def by_numpy(x, out):
    np.multiply(x, x, out=out)


def test_a_kernel_that_writes_nothing_is_an_error():
    f = squared_with(lambda x, out: None)
    for _ in range(2):
        with pytest.raises(
            KernelMismatchError,
            match=r"result 0 in 6 of 6 elements \(6 of them were not written\); at "
            r"\[0, 0\] it gives nan, the body 1.0",
        ):
            f(X)


@pytest.mark.parametrize("dtype", ["i4", "u1", "?", "f2", "c16"])
def test_elements_that_are_not_written_are_found_in_each_dtype(dtype):
    def all_but_the_last(x, out):
        np.multiply(x[:-1], x[:-1], out=out[:-1])

    with pytest.raises(KernelMismatchError, match=r"1 of 3 elements \(1 of them"):
        squared_with(all_but_the_last)(np.array([1, 0, 1], dtype))


def test_a_kernel_that_is_right_at_the_operands_alone_is_an_error():
    def by_chance(x, out):
        out[...] = X * X

    with pytest.raises(KernelMismatchError, match="so its derivative differs too"):
        squared_with(by_chance)(X)


def test_the_error_names_the_kernels_line_and_the_remedy():
    def doubled_instead(x, out):
        np.add(x, x, out=out)

    with pytest.raises(KernelMismatchError) as caught:
        squared_with(doubled_instead)(X)
    message = str(caught.value)
    line = doubled_instead.__code__.co_firstlineno
    assert f"test_operators.py:{line}: kernel doubled_instead (cpu)" in message
    assert "check=False" in message


def test_a_kernel_is_compared_once_for_each_signature():
    calls = []

    def counted(x, out):
        calls.append(x.shape)
        by_numpy(x, out)

    f = squared_with(counted)
    for x in (X, X + 1, X[0], X[1]):
        np.testing.assert_array_equal(f(x), x * x)
    assert calls == [(2, 3)] * 3 + [(2, 3)] + [(3,)] * 3 + [(3,)]


def test_check_is_a_tolerance_or_turns_the_comparison_off():
    def by_a_percent(x, out):
        np.multiply(x, 1.01 * x, out=out)

    with pytest.raises(KernelMismatchError, match="2 elements"):
        squared_with(by_a_percent, check=1e-3)(X[0, :2])
    for check in (0.1, False):
        got = squared_with(by_a_percent, check=check)(X)
        np.testing.assert_allclose(got, 1.01 * X * X, rtol=1e-15)


def test_nan_and_infinities_of_the_body_are_expected_of_the_kernel():
    x = np.array([np.nan, np.inf, -1.0])
    np.testing.assert_array_equal(squared_with(by_numpy)(x), [np.nan, np.inf, 1.0])


def test_a_body_with_an_effect_is_not_compared(capfd):
    @operator
    def spoken(x):
        debug.print("body")
        return x + 1

    spoken.kernel("cpu")(lambda x, out: np.add(x, 1, out=out))
    np.testing.assert_array_equal(jit(spoken)(X), X + 1)
    assert "body" not in capfd.readouterr().out


# What transformations make of kernels.


def test_differentiation_warns_that_it_uses_the_body():
    f = squared_with(by_numpy)
    with pytest.warns(
        DroppedKernelWarning, match="differentiation of operator squared"
    ):
        gradient = jit(grad(lambda x: f(x).sum()))(X)
    np.testing.assert_array_equal(gradient, 2 * X)


def test_vmap_warns_that_it_uses_the_body():
    f = squared_with(by_numpy)
    with pytest.warns(DroppedKernelWarning, match='vmap="sequential"'):
        got = jit(vmap(f))(X)
    np.testing.assert_array_equal(got, X * X)


def mapped_product(method):
    """An operator x * y of vectors, and the shapes its kernel was called with."""
    shapes = []

    @operator
    def outer_sum(x, y):
        return anp.sum(x * y) + x

    @outer_sum.kernel("cpu", vmap=method, check=1e-12)
    def with_numpy(x, y, out):
        shapes.append((x.shape, y.shape, out.shape))
        out[...] = (x * y).sum(-1, keepdims=True) + x

    return outer_sum, shapes


def test_a_sequential_kernel_is_called_for_each_member():
    f, shapes = mapped_product("sequential")
    y = np.array([2.0, 3.0])
    got = jit(vmap(f, in_axes=(1, None)))(X[:2, :], y)
    expected = np.stack([(c * y).sum() + c for c in X.T])
    np.testing.assert_allclose(got, expected, rtol=1e-15)
    assert set(shapes) == {((2,), (2,), (2,))}
    assert len(shapes) == 9  # three members: twice compared, then run


def test_an_expanding_kernel_is_called_once_with_the_mapped_axis_in_front():
    f, shapes = mapped_product("expand_dims")
    y = np.array([2.0, 3.0, 4.0])
    got = jit(vmap(f, in_axes=(0, None)))(X, y)
    np.testing.assert_allclose(got, (X * y).sum(1)[:, None] + X, rtol=1e-15)
    assert set(shapes) == {((2, 3), (1, 3), (2, 3))}


@pytest.mark.parametrize("method", ["sequential", "expand_dims"])
def test_nested_maps_are_computed_by_the_kernel(method):
    f, shapes = mapped_product(method)
    x = np.arange(24.0).reshape(2, 3, 4)
    y = np.arange(12.0).reshape(4, 3)
    got = jit(vmap(vmap(f), in_axes=(0, None)))(x, y.T)
    expected = (x * y.T).sum(-1, keepdims=True) + x
    np.testing.assert_allclose(got, expected, rtol=1e-15)
    lead = {"sequential": {((4,), (4,), (4,))}}
    assert set(shapes) == lead.get(method, {((2, 3, 4), (1, 3, 4), (2, 3, 4))})


def test_a_mapped_call_is_evaluated_and_differentiated_by_its_body():
    f, _ = mapped_product("sequential")
    y = np.array([2.0, 3.0, 4.0])
    with pytest.warns(DroppedKernelWarning):
        got = jit(grad(lambda x: vmap(f, in_axes=(0, None))(x, y).sum()))(X)
    np.testing.assert_allclose(got, np.broadcast_to(3 * y + 1, X.shape), rtol=1e-15)
    text = format_program(traced(vmap(f), X, X))
    assert "mapped=((2,(True,True)),)" in text
    assert format_program(parse_program(text, TABLE)) == text


def test_an_unknown_method_of_vmap_is_refused():
    with pytest.raises(
        ArgumentError, match=r"vmap must be one of \('sequential', 'expand"
    ):
        squared_with(by_numpy, vmap="magic")


def test_a_kernel_is_taken_by_functions_that_were_compiled_before_it():
    @operator
    def late(x):
        return x * 3

    calls = []
    inner = jit(lambda x: late(x) + 1)
    outer = jit(lambda x: lax.fori_loop(0, 2, lambda i, c: inner(c), x))
    other = jit(lambda x: x + 1)
    x = np.ones(3)
    for function in (inner, outer, other):
        function(x)
    kept = inner.lower(x).compile()

    @late.kernel("cpu", check=False)
    def kernel(x, out):
        calls.append("kernel")
        np.multiply(x, 3, out=out)

    assert other._cache
    assert kept(x).tolist() == [4.0] * 3
    assert not calls
    assert inner(x).tolist() == [4.0] * 3
    assert calls == ["kernel"]
    assert outer(x).tolist() == [13.0] * 3
    assert calls == ["kernel"] * 3
