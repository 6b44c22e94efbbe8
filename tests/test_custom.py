"""Functions with derivative rules of their own."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import arrayfn.numpy as anp
from arrayfn import custom_derivatives, tree
from arrayfn.ad_checkpoint import checkpoint
from arrayfn.compilation.jit import jit
from arrayfn.errors import ArgumentError, DifferentiationError, ShapeError
from arrayfn.transforms import grad, jvp, trace_function, value_and_grad, vmap
from arrayfn.transforms.custom import (
    SymbolicZero,
    closure_convert,
    custom_gradient,
    custom_jvp,
    custom_vjp,
    custom_vmap,
    stop_gradient,
)

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


def test_a_linear_function_with_a_rule_is_applied_to_tangents():
    scaled = custom_jvp(lambda x: 3.0 * x)
    scaled.defjvp(lambda p, t: (scaled(*p), 2.0 * scaled(*t)))
    assert jvp(scaled, (1.0,), (1.0,)) == (3.0, 6.0)
    for transform in (lambda f: f, jit):
        assert transform(grad(scaled))(1.0) == 6.0
        assert transform(grad(lambda x: scaled(scaled(x))))(1.0) == 36.0
    np.testing.assert_array_equal(vmap(grad(scaled))(X), np.full(3, 6.0))
    total = grad(lambda x: vmap(scaled)(x).sum())
    np.testing.assert_array_equal(total(X), np.full(3, 6.0))


def test_a_function_that_is_not_linear_is_no_derivative():
    squared = custom_jvp(lambda x: x * x)
    squared.defjvp(lambda p, t: (squared(*p), squared(*t)))
    with pytest.raises(DifferentiationError, match="not linear"):
        grad(squared)(1.0)


def test_operands_without_derivatives_may_be_shared_by_mapped_members():
    @custom_vjp
    def chosen(x, which):
        return anp.where(which, x, 0.0)

    chosen.defvjp(
        lambda x, which: (chosen(x, which), which),
        lambda which, ct: (anp.where(which, ct, 0.0), None),
    )
    which = np.array([True, False, True])
    total = grad(lambda x: vmap(chosen, in_axes=(0, None))(x, which).sum())
    np.testing.assert_array_equal(total(np.stack([X, X])), [[1.0, 0.0, 1.0]] * 2)


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
        DifferentiationError, match="closes over a value that is differentiated"
    ):
        grad(f, argnums=1)(2.0, 3.0)


@pytest.mark.parametrize("by", ["forward", "backward"])
@pytest.mark.parametrize(
    ("way", "at"), [(jit, 4.0), (vmap, X), (lambda f: vmap(jit(f)), X)]
)
def test_rules_may_close_over_what_an_outer_derivative_is_taken_by(by, way, at):
    def slope(y):
        @custom_vjp
        def f(x):
            return 2.0 * anp.sin(x)

        saved = y if by == "forward" else ()
        f.defvjp(
            lambda x: (f(x), saved),
            lambda r, ct: (2.0 * anp.cos(r if by == "forward" else y) * ct,),
        )
        return grad(f)(1.0)

    np.testing.assert_allclose(way(slope)(at), 2 * np.cos(at))
    np.testing.assert_allclose(way(grad(slope))(at), -2 * np.sin(at))


@pytest.mark.parametrize("argument", [(2.0, 3.0), (2.0, None)])
def test_a_backward_rule_gives_none_for_parts_of_an_argument(argument):
    f = custom_vjp(lambda x: x[0])
    f.defvjp(fwd=lambda x: (f(x), None), bwd=lambda _, ct: ((5 * ct, (None, None)),))
    slope, (first, second) = grad(f)((1.0, argument))
    assert (slope, first) == (5.0, 0.0)
    assert second == (None if argument[1] is None else 0.0)


def test_a_function_with_rules_has_defaults_and_calls_by_keyword():
    f = custom_jvp(partial(lambda x, y, a: x + y * a, a=0.1))
    f.defjvp(lambda p, t: jvp(f.function, p, t))
    assert grad(f, argnums=(0, 1))(1.0, 2.0) == (1.0, 0.1)


def test_each_decorator_takes_its_rule():
    @custom_vmap
    @custom_jvp
    def f(x):
        return 2.0 * x

    @f.def_vmap
    def _(size, in_batched, xs):
        return 3.0 * f.function(xs), True

    f.defjvp(lambda p, t: (f(p[0]), 5.0 * t[0]))
    assert vmap(f)(X).tolist() == (6 * X).tolist()
    assert grad(f.function)(1.0) == 5.0
    with pytest.raises(AttributeError, match="custom_jvp has no attribute 'def_vmap'"):
        _ = f.function.def_vmap


@pytest.mark.parametrize("kind", [custom_jvp, custom_vjp, custom_vmap])
def test_a_call_without_a_rule_is_refused_at_once(kind):
    with pytest.raises((ArgumentError, DifferentiationError), match="without"):
        kind(lambda x: x)(1.0)


def test_a_converted_closure_takes_as_many_values_as_it_captured():
    def f(w):
        converted, values = closure_convert(lambda x: w * x, 1.0)
        with pytest.raises(
            ArgumentError, match=r"the 1 values that it captured .*, not 2"
        ):
            converted(2.0, *values, *values)
        with pytest.raises(ArgumentError, match="is list"):
            converted(2.0, values)
        return converted(2.0, *values)

    assert grad(f)(3.0) == 2.0


def test_a_converted_closure_takes_only_what_a_derivative_may_be_taken_by():
    counts = []

    def f(w, s, table):
        fixed, varying = anp.sin(s) * table[0], anp.sin(w)
        converted, values = closure_convert(lambda x: x * varying * fixed * s, 1.0)
        counts.append(len(values))
        return converted(2.0, *values)

    def expected(w, s):
        return 2 * np.cos(w) * np.sin(s) * X[0] * s

    assert grad(f)(3.0, 2.0, X) == pytest.approx(expected(3.0, 2.0))
    assert jit(grad(f))(3.0, 2.0, X) == pytest.approx(expected(3.0, 2.0))
    assert counts == [1, 3]
    grad(f, argnums=(0, 1))(3.0, 2.0, X)
    of_s = grad(lambda s: grad(f)(3.0, s, X))
    step = 1e-6
    difference = (expected(3.0, 2.0 + step) - expected(3.0, 2.0 - step)) / (2 * step)
    assert of_s(2.0) == pytest.approx(difference)
    assert counts == [1, 3, 3, 3]


def test_a_checkpoint_computes_residuals_of_rules_only_for_the_gradient():
    f = custom_vjp(anp.sin)
    f.defvjp(
        lambda x: (anp.sin(x), anp.cos(x)),
        lambda cos, ct: (3 * cos * ct,),
        optimize_remat=True,
    )
    g = checkpoint(lambda x: anp.exp(f(x)))
    assert grad(g)(1.0) == pytest.approx(3 * np.cos(1.0) * np.exp(np.sin(1.0)))
    text = jit(value_and_grad(g)).lower(1.0).compiled_program.text
    before, after = text.split("optimization_barrier")
    assert (before.count("cos("), after.count("cos(")) == (0, 1)


def test_zeros_and_values_for_rules():
    f = custom_vjp(lambda x, y: x * y)

    def forward(x, y):
        given = custom_derivatives.custom_vjp_primal_tree_values((x, y))
        assert (x.perturbed, y.perturbed) == (True, False)
        return f(*given), given

    def backward(saved, ct):
        return saved[1] * ct, custom_derivatives.zero_from_primal(saved[1], True)

    f.defvjp(forward, backward, symbolic_zeros=True)
    assert grad(f)(2.0, 3.0) == 3.0
    assert custom_derivatives.zero_from_primal(X).tolist() == [0.0] * 3


def test_what_a_forward_rule_gets_is_a_leaf_of_its_arguments():
    f = custom_vjp(lambda pair: pair["x"] * pair["y"])

    def forward(pair):
        assert tree.map(lambda leaf: leaf.perturbed, pair) == {"x": True, "y": True}
        values = tree.map(lambda leaf: leaf.value, pair)
        return f(values), values

    f.defvjp(
        forward,
        lambda pair, ct: ({"x": pair["y"] * ct, "y": pair["x"] * ct},),
        symbolic_zeros=True,
    )
    assert grad(f)({"x": 2.0, "y": 3.0}) == {"x": 3.0, "y": 2.0}


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
        (
            rules(custom_jvp, lambda p, t: p[0]),
            ArgumentError,
            "jvp rule must give a pair",
        ),
        (
            rules(custom_jvp, lambda p, t: ((p[0], 1.0), t[0])),
            ArgumentError,
            "'s jvp rule has the structure",
        ),
        (
            rules(custom_jvp, lambda p, t: (p[0], t[0].sum())),
            ShapeError,
            "'s jvp rule is f64[], not f64[3]",
        ),
        (
            rules(custom_vjp, lambda x: x, lambda r, ct: (ct,)),
            ArgumentError,
            "forward rule must give a pair (value, residuals)",
        ),
        (
            rules(custom_vjp, lambda x: (x, ()), lambda r, ct: ct),
            ArgumentError,
            "backward rule must give a tuple of 1 cotangents, one for each argument",
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


def test_functions_with_rules_show_their_names():
    def clipped(x):
        return x

    assert repr(custom_vjp(clipped)) == "<custom_vjp clipped>"
    assert repr(custom_jvp(clipped)) == "<custom_jvp clipped>"


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


@pytest.mark.parametrize("kind", ["jvp", "vjp"])
def test_rules_hold_in_derivatives_of_every_order(kind):
    # The rules say f' = -2 f, so that the n-th derivative is (-2)^n f.
    if kind == "jvp":

        @custom_jvp
        def f(x):
            return np.exp(x)

        f.defjvp(lambda p, t: (f(*p), -2.0 * f(*p) * t[0]))
    else:

        @custom_vjp
        def f(x):
            return np.exp(x)

        f.defvjp(lambda x: (f(x), x), lambda x, ct: (-2.0 * f(x) * ct,))

    g = f
    for order in range(1, 5):
        g = grad(g)
        expected = (-2.0) ** order * np.exp(0.3)
        assert g(0.3) == pytest.approx(expected, rel=1e-14)
    assert jit(g)(0.3) == pytest.approx(expected, rel=1e-14)
    many = vmap(grad(grad(f)))(X)
    np.testing.assert_allclose(many, 4 * np.exp(X), rtol=1e-14)
    np.testing.assert_allclose(
        jit(grad(lambda x: vmap(grad(f))(x).sum()))(X), 4 * np.exp(X), rtol=1e-14
    )


def test_a_rule_for_each_argument():
    @custom_jvp
    def f(x, y, z):
        return {"a": x * y, "b": z}

    f.defjvps(
        lambda t, value, x, y, z: {"a": t * y, "b": 0.0},
        None,
        lambda t, value, x, y, z: {"a": 0.0, "b": 100 * t * value["b"]},
    )
    value, tangent = jvp(f, (2.0, 3.0, 4.0), (1.0, 1.0, 1.0))
    assert value == {"a": 6.0, "b": 4.0}
    assert tangent == {"a": 3.0, "b": 400.0}
    by_all = grad(lambda *xs: f(*xs)["a"] + f(*xs)["b"], argnums=(0, 1, 2))
    assert by_all(2.0, 3.0, 4.0) == (3.0, 0.0, 400.0)
    f.defjvps(None)
    with pytest.raises(ArgumentError, match="was given 1 rules for 3 arguments"):
        jvp(f, (2.0, 3.0, 4.0), (1.0, 1.0, 1.0))
    static = partial(custom_jvp, nondiff_argnums=(0,))(lambda n, x: x)
    with pytest.raises(ArgumentError, match="cannot be used with nondiff_argnums"):
        static.defjvps(None)


def test_symbolic_zeros_of_forward_rules():
    seen = []

    @custom_jvp
    def f(x, y):
        return x * y, y

    def rule(primals, tangents):
        (x, y), (dx, dy) = primals, tangents
        seen.append([isinstance(t, SymbolicZero) for t in tangents])
        if isinstance(dy, SymbolicZero):
            assert (dy.shape, dy.dtype, dy.ndim, dy.size) == ((3,), np.float64, 1, 3)
            assert repr(dy) == "SymbolicZero(f64[3])"
            return f(x, y), (dx * y, dy)
        return f(x, y), (x * dy + (0 if isinstance(dx, SymbolicZero) else dx * y), dy)

    f.defjvp(rule, symbolic_zeros=True)
    g = grad(lambda x, y: f(x, y)[0].sum())
    assert g(X, 2 * X).tolist() == (2 * X).tolist()
    assert seen == [[False, True]]
    assert grad(lambda x, y: f(x, y)[0].sum(), 1)(X, X).tolist() == X.tolist()
    assert seen[1:] == [[True, False]]
    mapped = vmap(grad(lambda x, y: f(x, y)[0].sum()), (0, None))(np.stack([X, X]), X)
    assert mapped.tolist() == [X.tolist()] * 2
    assert jit(grad(lambda x: vmap(f)(x, x)[0].sum()))(X[:, None])[2] == 4.0


def test_a_symbolic_zero_that_a_rule_gives_stays_one_when_mapped():
    seen = []

    @custom_jvp
    def second(x, y):
        return y

    def rule(primals, tangents):
        seen.append(type(tangents[1]).__name__)
        return primals[1], tangents[1]

    second.defjvp(rule, symbolic_zeros=True)

    def nested(x):
        return second(x, second(x, 1.0))

    value, tangent = jvp(vmap(nested), (np.ones(3),), (np.ones(3),))
    np.testing.assert_array_equal([value, tangent], [np.ones(3), np.zeros(3)])
    assert seen == ["SymbolicZero", "SymbolicZero"]


def test_symbolic_zeros_of_reverse_rules():
    seen = []

    @custom_vjp
    def f(x, y):
        return x * y, x + y

    def forward(x, y):
        seen.append((x.perturbed, y.perturbed))
        return f(x.value, y.value), (x.value, y.value)

    def backward(saved, cts):
        x, y = saved
        to_product, to_sum = cts
        seen.append(tuple(isinstance(ct, SymbolicZero) for ct in cts))
        if isinstance(to_sum, SymbolicZero):
            return to_product * y, to_product * x
        return to_sum, to_sum

    f.defvjp(forward, backward, symbolic_zeros=True)
    assert grad(lambda x, y: f(x, y)[0].sum())(X, 2 * X).tolist() == (2 * X).tolist()
    assert seen == [(True, False), (False, True)]
    seen.clear()
    assert jit(grad(lambda x, y: f(x, y)[1].sum(), 1))(X, X).tolist() == [1.0] * 3
    assert seen == [(False, True), (True, False)]
    mapped = vmap(grad(lambda x, y: f(x, y)[0].sum(), 1), (0, None))
    np.testing.assert_allclose(mapped(np.stack([X, 2 * X]), X), [X, 2 * X])
    summed = grad(lambda y: vmap(f, (0, None))(np.stack([X, 2 * X]), y)[0].sum())
    np.testing.assert_allclose(summed(X), 3 * X)


def test_a_value_that_is_not_mapped_gets_the_sum_of_cotangents():
    def f(w):
        return vmap(lambda x: clipped(x, w))(np.stack([X, X])).sum()

    assert grad(f)(1.0) == 0.0

    @custom_vjp
    def product(x, w):
        return x * w

    product.defvjp(
        lambda x, w: (product(x, w), (x, w)),
        lambda r, ct: (ct * r[1], (ct * r[0]).sum()),
    )
    both = np.stack([X, 2 * X])
    total = grad(lambda w: vmap(product, (0, None))(both, w).sum())
    assert total(2.0) == pytest.approx(3 * X.sum(), rel=1e-15)
    assert jit(total)(2.0) == pytest.approx(3 * X.sum(), rel=1e-15)
    nested = vmap(lambda w: vmap(product, (0, None))(both, w).sum())
    assert grad(lambda w: nested(w).sum())(np.ones(2)).tolist() == [4.5, 4.5]


def test_rules_that_close_over_what_a_later_derivative_cannot_reach():
    def f(w):
        @custom_jvp
        def g(x):
            return x * w

        g.defjvp(lambda p, t: (g(*p), t[0] * w * g(*p)))
        return grad(grad(g))(1.0)

    with pytest.raises(DifferentiationError, match="closes over a traced value"):
        jit(f)(2.0)


def test_a_gradient_that_closes_over_the_forward_pass():
    @custom_gradient
    def f(x, y):
        root = np.sqrt(x)

        def rule(ct):
            return ct * 100 * root * y, None

        return root * y, rule

    assert f(4.0, 3.0) == 6.0
    assert grad(f, argnums=(0, 1))(4.0, 3.0) == (600.0, 0.0)
    assert jit(grad(f))(4.0, 3.0) == 600.0
    np.testing.assert_allclose(vmap(grad(f))(X**2, X), 100 * np.abs(X) * X)
    twice = grad(lambda x: grad(f)(x, 3.0))(4.0)
    assert twice == pytest.approx(100 * 3.0 * 0.5 / 2.0)


def test_what_a_function_closes_over_becomes_arguments():
    def integrate(function, x, *values):
        @custom_vjp
        def total(x, values):
            return function(x, *values) * 2

        total.defvjp(
            lambda x, values: (total(x, values), (x, values)),
            lambda saved, ct: (ct, tuple(ct * 1000 + 0 * v for v in saved[1])),
        )
        return total(x, values)

    def f(w, table):
        converted, values = closure_convert(lambda x: w * x + table[0] + X[1], 1.0)
        return integrate(converted, 2.0, *values)

    assert f(3.0, X) == 2 * (6.0 + X[0] + X[1])
    assert grad(f)(3.0, X) == 1000.0
    assert jit(grad(f))(3.0, X) == 1000.0
    converted, values = closure_convert(lambda x: {"y": x["a"] * 2}, {"a": 1.0})
    assert values == []
    assert converted({"a": 4.0}) == {"y": 8.0}
    with pytest.raises(ArgumentError, match="takes arguments of structure"):
        converted(4.0)
