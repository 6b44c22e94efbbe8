"""Tracing: what becomes an equation, what a constant, and how a Tracer behaves."""

from __future__ import annotations

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import dtypes
from arrayfn.ir import ArrayType
from arrayfn.primitives.calls import evaluate
from arrayfn.tracing import trace
from arrayfn.transforms import grad, trace_function, vmap
from tests.timed import timed

X = np.arange(6.0).reshape(2, 3)


def program(function, *args, abstract=True):
    return trace_function(function, args, {}, abstract=abstract).program


def names(traced):
    return [equation.primitive.name for equation in traced.equations]


def text(traced):
    return "\n".join(line.split("  #")[0].rstrip() for line in str(traced).splitlines())


def test_python_numbers_become_literals_of_the_promoted_dtype():
    traced = program(lambda x: 1 - x * 2.0, X.astype(np.float32))
    assert text(traced) == (
        "program function(x: f32[2,3]) -> (f32[2,3]) {\n"
        "  a: f32[2,3] = mul(x, 2.0:f32)\n"
        "  b: f32[2,3] = sub(1.0:f32, a)\n"
        "  return b\n"
        "}"
    )


def test_asarray_makes_arrays_that_traced_values_index():
    table = np.array([10.0, 20.0, 30.0])

    def look_up(x):
        return anp.asarray(table)[anp.argmax(x, axis=1)] * x.sum()

    np.testing.assert_array_equal(look_up(X), [450.0, 450.0])
    np.testing.assert_array_equal(af.jit(look_up)(X), [450.0, 450.0])
    total = grad(lambda x: look_up(x).sum())
    np.testing.assert_array_equal(total(X), np.full((2, 3), 60.0))
    np.testing.assert_array_equal(af.jit(total)(X), np.full((2, 3), 60.0))
    constants = program(look_up, X).constant_values
    np.testing.assert_array_equal(constants, [table])
    assert type(anp.asarray(table)) is np.ndarray


def test_broadcasting_is_an_equation_but_rank_0_needs_none():
    traced = program(lambda x, y, z: x + y + z, X, X[0], np.array(2.0))
    assert names(traced) == ["broadcast_in_dim", "add", "add"]
    assert traced.equations[0].params == {"shape": (2, 3), "axes": (1,)}


def test_kept_axes_are_put_back_by_an_affine_view():
    traced = program(lambda x: x.sum(axis=0, keepdims=True), X)
    assert names(traced) == ["reduce_sum", "broadcast_in_dim"]


def test_python_scalar_arguments_are_weak():
    traced = program(lambda x, y: x * y, X.astype(np.float32), 2.0)
    assert [str(t) for t in traced.input_types] == ["f32[2,3]", "~f64[]"]
    assert [str(t) for t in traced.output_types] == ["f32[2,3]"]


def test_each_equation_knows_the_users_line():
    def f(x):
        y = np.exp(x)
        return y.T @ y

    first = f.__code__.co_firstlineno
    traced = program(f, X)
    lines = [equation.source.line for equation in traced.equations]
    assert lines == [first + 1, first + 2, first + 2]
    assert traced.equations[0].source.file == __file__


def test_a_captured_array_is_one_constant_however_often_it_is_used():
    weights = np.ones((3, 4))
    traced = program(lambda x: (x @ weights).sum() + weights.sum(), X)
    assert [str(v.type) for v in traced.constants] == ["f64[3,4]"]
    assert traced.constant_values[0] is weights


def test_captured_arrays_of_rank_0_are_literals():
    traced = program(lambda x: x * np.float64(3.0), X)
    assert traced.constants == ()
    assert traced.equations[0].inputs[1].value == 3.0


def test_a_captured_tracer_is_an_input_of_the_inner_program():
    inner = []

    def f(x):
        flat = trace(
            lambda y: [x[0] * y], [ArrayType((3,), dtypes.float64)], name="inner"
        )
        inner.append(flat)
        return x.sum()

    program(f, X)
    (flat,) = inner
    assert [str(t) for t in flat.program.input_types] == ["f64[3]", "f64[2,3]"]
    assert len(flat.captured) == 1


def test_abstract_traces_stage_operations_on_arrays_alone():
    def f(x):
        return x + anp.exp(np.ones(3))

    assert names(program(f, X[0])) == ["exp", "add"]
    assert names(program(f, X[0], abstract=False)) == ["add"]


def test_traces_inside_abstract_ones_are_abstract():
    def f(x):
        return grad(lambda y: (y * anp.exp(np.ones(3))).sum())(x)

    assert "exp" in names(program(f, X[0]))


def test_a_tracer_with_a_value_prints_and_converts_as_the_array():
    seen = {}

    def f(x):
        y = x.sum()
        seen.update(str=str(y), repr=repr(y), format=f"{y:.2f}", float=float(y))
        seen.update(int=int(y), bool=bool(y > 0), list=x.tolist(), item=y.item())
        return y

    assert grad(f)(X).tolist() == [[1.0] * 3] * 2
    assert seen == {
        "str": "15.0",
        "repr": "Tracer(array(15.))",
        "format": "15.00",
        "float": 15.0,
        "int": 15,
        "bool": True,
        "list": X.tolist(),
        "item": 15.0,
    }


def test_a_tracer_without_a_value_prints_its_type():
    seen = []

    def f(x):
        seen.append(f"{x} {x!r}")
        return x

    program(f, X)
    assert seen == ["Tracer<f64[2,3]> Tracer<f64[2,3]>"]


def test_shape_and_its_kin():
    def f(x):
        assert x.shape == (2, 3)
        assert x.dtype == np.float64
        assert (x.ndim, x.size, x.nbytes, x.itemsize) == (2, 6, 48, 8)
        assert len(x) == 2
        assert x.device == "cpu"
        assert x.__array_namespace__() is anp
        return x

    program(f, X)


METHODS = [
    lambda x: x.sum(),
    lambda x: x.sum(0),
    lambda x: x.mean(axis=1, keepdims=True),
    lambda x: x.std(ddof=1),
    lambda x: x.var(0),
    lambda x: x.max(-1),
    lambda x: x.min(),
    lambda x: x.prod(1),
    lambda x: (x > 2).any(0),
    lambda x: (x > 2).all(),
    lambda x: x.argmax(1),
    lambda x: x.argmin(),
    lambda x: x.reshape(3, 2),
    lambda x: x.reshape((3, -1)),
    lambda x: x.ravel(),
    lambda x: x.flatten(),
    lambda x: x.T,
    lambda x: x.transpose(1, 0),
    lambda x: x.transpose((1, 0)),
    lambda x: x.transpose(),
    lambda x: x.swapaxes(0, 1),
    lambda x: x.view(np.int64),
    lambda x: x[:, :1].squeeze(),
    lambda x: x.astype(np.int32),
    lambda x: x.clip(1, 4),
    lambda x: x.round(1),
    lambda x: x.repeat(2, axis=0),
    lambda x: x.take(np.array([1, 0]), axis=1),
    lambda x: x.dot(x.T),
    lambda x: x.cumsum(1),
    lambda x: x.diagonal(1),
    lambda x: x.trace(),
    lambda x: x.copy(),
    lambda x: x.conj(),
    lambda x: x.real + x.imag,
    lambda x: -x + +x,
    lambda x: abs(x - 3),
    lambda x: 2 + x - 1,
    lambda x: 7 - x * 2,
    lambda x: 3 * x / 2,
    lambda x: 2 / (x + 1),
    lambda x: x // 2 + 7 // (x + 1),
    lambda x: x % 2 + 7 % (x + 1),
    lambda x: divmod(x, 2)[1],
    lambda x: x**2 + 2**x,
    lambda x: x @ x.T,
    lambda x: x.T @ np.eye(2),
    lambda x: np.eye(2) @ x,
    lambda x: (x > 1) & (x < 4) | (x == 5) ^ ~(x != 0),
    lambda x: True | (x > 1),
    lambda x: x.astype(int) << 2 >> 1,
    lambda x: 1 << x.astype(int),
    lambda x: np.ones(3) * x - x,
    lambda x: np.float32(2) * x,
    lambda x: (x >= 1) * 1 + (x <= 1) * 2,
    lambda x: x[1:, None] + x[..., ::-1],
    lambda x: np.stack(list(x)),
    lambda x: np.add.reduce(x, axis=0),
    lambda x: np.maximum.reduce(x, axis=1),
    lambda x: np.add.accumulate(x, axis=0),
    lambda x: np.multiply.outer(x[0], x[1]),
    lambda x: (*np.shape(x), np.ndim(x), np.size(x)),
]


@pytest.mark.parametrize("function", METHODS, ids=range(len(METHODS)))
def test_operators_methods_and_numpys_functions_do_what_numpys_arrays_do(function):
    expected = function(X)
    traced = program(function, X)
    results = evaluate(traced, [X, *traced.constant_values][: len(traced.inputs)])
    many = isinstance(expected, tuple)
    for result, wanted in zip(results, expected if many else [expected], strict=True):
        np.testing.assert_allclose(result, wanted, rtol=1e-15)
        if not many:
            assert result.dtype == np.asarray(wanted).dtype
            assert result.shape == np.shape(wanted)


def test_membership_and_iteration_need_values_only_where_they_ask_for_them():
    assert grad(lambda x: sum(row.sum() for row in x))(X).tolist() == [[1.0] * 3] * 2
    assert grad(lambda x: x.sum() * (3.0 in x))(X).tolist() == [[1.0] * 3] * 2


def test_results_that_are_arguments_are_copies():
    x = np.arange(3.0)
    first, second = vmap(lambda a: (a, a))(x)
    assert not np.shares_memory(first, x)
    assert not np.shares_memory(first, second)
    assert first.flags.owndata
    assert first.flags.writeable


def test_ten_thousand_equations_trace_in_a_second():
    def f(x):
        for _ in range(5_000):
            x = x * 0.5 + 1.0
        return x

    traced, seconds = timed(lambda: program(f, X))
    assert len(traced.equations) == 10_000
    assert seconds < 1.0


@pytest.mark.parametrize(
    "function",
    [
        lambda n, x: n * 0.5 * x,
        lambda n, x: n / 2 * x,
        lambda n, x: n / n + x,
        lambda n, x: (n + True) ** 0.5 - x,
        lambda n, x: x**n,
        lambda n, x: anp.exp(n) * x,
    ],
)
def test_what_is_made_of_python_numbers_alone_stays_weak(function):
    traced = program(function, 3, X.astype(np.float32))
    assert [str(t) for t in traced.output_types] == ["f32[2,3]"]


def test_augmented_assignment_gives_the_name_another_value():
    def f(x):
        before = x
        x += 1.0
        x *= x
        x -= before
        return x

    x = np.array([3.0, 4.0])
    np.testing.assert_array_equal(af.jit(f)(x), [13.0, 21.0])
    np.testing.assert_array_equal(x, [3.0, 4.0])
    assert float(grad(f)(3.0)) == 7.0
