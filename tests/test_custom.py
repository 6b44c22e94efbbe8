"""Functions with derivative rules of their own."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import arrayfn.numpy as anp
from arrayfn.custom import custom_jvp, custom_vjp, stop_gradient
from arrayfn.errors import ArgumentError, DifferentiationError, ShapeError
from arrayfn.functions import grad, jvp, trace_function, vmap
from arrayfn.jit import jit

X = np.array([0.5, -1.0, 2.0])


@custom_jvp
def tripled(x):
    return 3 * x


@tripled.defjvp
def tripled_jvp(primals, tangents):
    return tripled(*primals), 30 * tangents[0]


@partial(custom_jvp, nondiff_argnums=(1,))
def power(x, n):
    return {"power": x**n}


@power.defjvp
def power_jvp(n, primals, tangents):
    (x,), (dx,) = primals, tangents
    return power(x, n), {"power": n * power(x, n - 1)["power"] * dx}


@custom_vjp
def clipped(x, limit):
    return x * limit


clipped.defvjp(
    lambda x, limit: (clipped(x, limit), (limit,)),
    lambda residuals, ct: (np.clip(ct, -residuals[0], residuals[0]), None),
)


def test_outside_a_trace_they_are_the_functions():
    assert tripled(X).tolist() == [1.5, -3.0, 6.0]
    assert power(2.0, n=3) == {"power": 8.0}
    assert clipped(X, 2.0).tolist() == [1.0, -2.0, 4.0]


def test_the_rule_is_the_derivative():
    assert grad(lambda x: tripled(x).sum())(X).tolist() == [30.0] * 3
    assert jvp(tripled, (X,), (X,))[1].tolist() == [15.0, -30.0, 60.0]


def test_the_equation_holds_the_body_and_the_rule():
    program = trace_function(tripled, (X,), {}, abstract=True).program
    (equation,) = program.equations
    assert equation.primitive.name == "custom_jvp"
    assert equation.params["name"] == "tripled"
    assert len(equation.params["jvp_body"].inputs) == 2


def test_static_arguments_and_pytrees():
    f = grad(lambda x: power(x, 3)["power"])
    assert f(2.0) == 12.0
    assert grad(f)(2.0) == 12.0
    assert grad(lambda x: power(n=2, x=x)["power"])(5.0) == 10.0


def test_a_rule_that_calls_its_function_finds_the_rule_in_second_derivatives():
    @custom_jvp
    def f(x):
        return x**3

    @f.defjvp
    def rule(primals, tangents):
        (x,), (dx,) = primals, tangents
        return f(x), (f(x) + 100 * x) * dx

    # The rule says f' = f + 100 x, so that f'' = f' + 100.
    assert grad(f)(2.0) == 208.0
    assert grad(grad(f))(2.0) == 308.0


def test_rules_of_reverse_mode():
    f = grad(lambda x, limit: (clipped(x, limit) * X).sum(), argnums=(0, 1))
    to_x, to_limit = f(X, 0.75)
    assert to_x.tolist() == [0.5, -0.75, 0.75]
    assert to_limit == 0.0


def test_forward_mode_through_a_reverse_rule_is_refused():
    with pytest.raises(
        DifferentiationError, match="clipped has a custom_vjp rule, which"
    ):
        jvp(lambda x: clipped(x, 1.0), (X,), (X,))


def test_rules_under_jit():
    f = jit(grad(lambda x: tripled(x).sum() + clipped(x, 0.5).sum()))
    assert f(X).tolist() == [30.5] * 3


def test_mapped_rules_agree_with_a_loop():
    xs = np.stack([X, 2 * X])
    f = grad(lambda x: (clipped(x, 0.75) * X).sum())
    np.testing.assert_array_equal(vmap(f)(xs), [f(x) for x in xs])


def test_bodies_and_rules_may_close_over_arrays_and_traced_values():
    weights = np.array([1.0, 2.0, 3.0])

    def f(scale):
        @custom_vjp
        def weighted(x):
            return x * weights * scale

        weighted.defvjp(
            lambda x: (weighted(x), x + scale),
            lambda saved, ct: (ct * saved * weights,),
        )
        return grad(lambda x: weighted(x).sum())(X).sum()

    assert f(2.0) == np.sum((X + 2.0) * weights)
    assert jit(f)(2.0) == f(2.0)


@pytest.mark.parametrize("kind", [custom_jvp, custom_vjp])
def test_derivatives_by_values_closed_over_are_refused(kind):
    def f(x, scale):
        @kind
        def scaled(x):
            return x * scale

        if kind is custom_jvp:
            scaled.defjvp(lambda p, t: (scaled(p[0]), t[0] * scale))
        else:
            scaled.defvjp(lambda x: (scaled(x), ()), lambda r, ct: (ct * scale,))
        return scaled(x)

    assert grad(f)(2.0, 3.0) == 3.0
    assert jit(grad(f))(2.0, 3.0) == 3.0
    assert vmap(grad(f), (0, None))(X, 3.0).tolist() == [3.0] * 3
    with pytest.raises(
        DifferentiationError, match="closes over this value, and the rule"
    ):
        grad(f, argnums=1)(2.0, 3.0)


def test_rules_may_branch_on_values_that_are_known():
    @custom_jvp
    def f(x):
        return x if x > 0 else -x

    @f.defjvp
    def rule(primals, tangents):
        (x,), (dx,) = primals, tangents
        return f(x), dx if x > 0 else -10 * dx

    assert grad(f)(2.0) == 1.0
    assert grad(f)(-2.0) == -10.0


def test_a_function_without_a_rule_says_how_to_give_it_one():
    @custom_jvp
    def bare(x):
        return x

    @custom_vjp
    def other(x):
        return x

    with pytest.raises(DifferentiationError, match=r"give it one with @bare\.defjvp"):
        grad(bare)(1.0)
    with pytest.raises(DifferentiationError, match=r"with other\.defvjp\(forward,"):
        grad(other)(1.0)


def rules(kind, *given):
    function = kind(lambda x: x * 2)
    function.defjvp(*given) if kind is custom_jvp else function.defvjp(*given)
    return lambda: grad(lambda x: function(x).sum())(X)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (rules(custom_jvp, lambda p, t: p[0]), ArgumentError, "jvp rule gives a pair"),
        (
            rules(custom_jvp, lambda p, t: ((p[0], 1.0), t[0])),
            ArgumentError,
            "the value of function's jvp rule has the structure",
        ),
        (
            rules(custom_jvp, lambda p, t: (p[0], t[0].sum())),
            ShapeError,
            "the tangent of function's jvp rule is f64[], not f64[3]",
        ),
        (
            rules(custom_vjp, lambda x: x, lambda r, ct: (ct,)),
            ArgumentError,
            "forward rule gives a pair (value, residuals)",
        ),
        (
            rules(custom_vjp, lambda x: (x, ()), lambda r, ct: ct),
            ArgumentError,
            "backward rule gives a tuple of 1 cotangents, one for each argument",
        ),
        (
            rules(custom_vjp, lambda x: (x, ()), lambda r, ct: (ct[:2],)),
            ShapeError,
            "backward rule: cotangent 0 is f64[2], not f64[3]",
        ),
    ],
)
def test_rules_that_do_not_fit(call, error, message):
    with pytest.raises(error) as caught:
        call()
    assert message in str(caught.value)


def test_stop_gradient():
    assert grad(lambda x: x * stop_gradient(x))(3.0) == 3.0
    p = {"a": X, "n": 3}
    result = grad(lambda p: (stop_gradient(p)["a"] * p["a"]).sum() * p["n"])(
        {"a": X, "n": 3.0}
    )
    np.testing.assert_array_equal(result["a"], X * 3)
    assert stop_gradient(p)["a"] is X
    program = trace_function(lambda x: anp.exp(stop_gradient(x)), (X,), {}).program
    assert [e.primitive.name for e in program.equations] == ["stop_gradient", "exp"]
