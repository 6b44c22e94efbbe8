"""Operators: body, equation, kernel table."""

from __future__ import annotations

import numpy as np
import pytest

import arrayfn.numpy as anp
from arrayfn import jit, lax
from arrayfn.errors import ArgumentError
from arrayfn.functions import grad, trace_function, vmap
from arrayfn.ir_text import format_program, parse_program
from arrayfn.operators import KERNELS, operator
from arrayfn.primitives.calls import evaluate
from arrayfn.primitives.table import TABLE


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

    @doubled.kernel("cpu")
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

    @halved.kernel("cpu", when=lambda x, by: x.ndim == 2)
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

    @halved.kernel("cpu")
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
