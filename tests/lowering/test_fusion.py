"""Fusion: which kernels known programs become, how many, and what lies between."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import lax, tree
from arrayfn.lowering.fusion import FusedGroup, SingleUnit, fuse
from arrayfn.lowering.fusion.groups import Groups
from arrayfn.lowering.memory import ALIGNMENT
from tests.common_functions import cross_entropy, layernorm, softmax, two_layers
from tests.passes.texts import parse

RNG = np.random.default_rng(17)
ROWS, COLUMNS = 48, 20  # a full-size array of float32 takes 3840 bytes
FULL = ROWS * COLUMNS * 4


def single(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


X, Y, ROW, COLUMN = (
    single(ROWS, COLUMNS),
    single(ROWS, COLUMNS),
    single(COLUMNS),
    single(ROWS),
)
LABELS = RNG.integers(0, COLUMNS, ROWS).astype(np.int32)
PARAMETERS = {
    "w1": single(COLUMNS, 16),
    "b1": single(16),
    "w2": single(16, 10),
    "b2": single(10),
}


def aligned(*nbytes: int) -> int:
    return sum(-(-n // ALIGNMENT) * ALIGNMENT for n in nbytes)


def layernorm_gradient(x: Any, g: Any, b: Any, w: Any) -> Any:
    def loss(x: Any, g: Any, b: Any) -> Any:
        return anp.sum(layernorm(x, g, b) * w)

    return af.grad(loss, argnums=(0, 1, 2))(x, g, b)


def training(p: Any, x: Any, labels: Any) -> Any:
    return af.value_and_grad(two_layers)(p, x, labels)


@dataclass(frozen=True)
class Case:
    """A program, the steps it becomes, and the bytes of its temporaries."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    steps: list[str]
    arena: int = 0


PAIR = aligned(4)  # the partial results of a sum of one chunk
CASES = {
    "an elementwise chain is one kernel": Case(
        lambda x, y: anp.tanh(x * y + 1) - anp.exp(-x), (X, Y), ["elementwise_0"]
    ),
    "two results of one pass are one kernel": Case(
        lambda x, y: (x + y, x * y, -x), (X, Y), ["elementwise_0"]
    ),
    "broadcasts are index maps": Case(
        lambda x, r, c: (x - r) * c[:, None] + 2.0, (X, ROW, COLUMN), ["elementwise_0"]
    ),
    "views are index maps": Case(
        lambda x, y: x[::-1, 1:].T + y[:, :-1].T, (X, Y), ["elementwise_0"]
    ),
    "a transposed sum is one kernel": Case(
        lambda x, y: x + y.T, (X, Y.T.copy()), ["elementwise_0"]
    ),
    "a selection by a count is one kernel": Case(
        lambda x: anp.where(anp.arange(COLUMNS) < 3, x, 0.0), (X,), ["elementwise_0"]
    ),
    "a sum of each row is one kernel": Case(
        lambda x: anp.sum(x * x, axis=1), (X,), ["rows_0"]
    ),
    "a sum of each column is partial sums and their sum": Case(
        lambda x: anp.sum(x * x, axis=0),
        (X,),
        ["partial_0", "columns_0"],
        aligned(COLUMNS * 4),
    ),
    "a sum of all is partial sums and their sum": Case(
        lambda x: anp.sum(anp.exp(x)), (X,), ["partial_0", "rows_0"], PAIR
    ),
    "an epilogue runs where the sums are combined": Case(
        lambda x: anp.sqrt(anp.mean(x * x)), (X,), ["partial_0", "rows_0"], PAIR
    ),
    "sums of the same elements share their pass": Case(
        lambda x: (anp.sum(x), anp.max(x), anp.sum(x * x)),
        (X,),
        ["partial_0", "rows_0"],
        3 * PAIR,
    ),
    "a norm of each row is one kernel": Case(
        lambda x: x / anp.sqrt(anp.sum(x * x, axis=1, keepdims=True)), (X,), ["rows_0"]
    ),
    "softmax is one kernel": Case(softmax, (X,), ["rows_0"]),
    "softmax along columns is one kernel": Case(
        lambda x: softmax(x.T).T, (X,), ["columns_0"]
    ),
    "log-sum-exp is one kernel": Case(
        lambda x: anp.log(anp.sum(anp.exp(x - anp.max(x, axis=1)[:, None]), axis=1)),
        (X,),
        ["rows_0"],
    ),
    "layernorm is one kernel": Case(layernorm, (X, ROW, ROW + 1), ["rows_0"]),
    "the gradient of layernorm adds up over its rows as it goes": Case(
        layernorm_gradient,
        (X, ROW, ROW + 1, Y),
        ["rows_0", "columns_0"],
        # The partial sums of two columns; mean and deviation are not stored.
        2 * aligned(COLUMNS * 4),
    ),
    "the gradient of cross-entropy is one kernel": Case(
        af.grad(cross_entropy), (X, LABELS), ["rows_0"]
    ),
    "cross-entropy is one kernel and the mean": Case(
        cross_entropy,
        (X, LABELS),
        ["rows_0", "partial_0", "rows_1"],
        aligned(ROWS * 4) + PAIR,
    ),
    "cross-entropy with its gradient is that too": Case(
        af.value_and_grad(cross_entropy),
        (X, LABELS),
        ["rows_0", "partial_0", "rows_1"],
        aligned(ROWS * 4) + PAIR,
    ),
    "bias and activation follow the product in one kernel": Case(
        lambda x, w, b: anp.tanh(x @ w + b),
        (X, PARAMETERS["w1"], PARAMETERS["b1"]),
        ["gemm_f32", "elementwise_0"],
    ),
    "transposes go into the product": Case(lambda x, y: x.T @ y, (X, Y), ["gemm_f32"]),
    "a copy is one kernel": Case(lambda x: x.T, (X,), ["elementwise_0"]),
    "nothing but constants is one kernel": Case(
        lambda: anp.zeros((3, 4)) + 1, (), ["elementwise_0"]
    ),
}
JITTED = {name: af.jit(case.function) for name, case in CASES.items()}


@pytest.mark.parametrize("name", CASES)
def test_steps_and_temporaries(name: str) -> None:
    case = CASES[name]
    plan = JITTED[name].lower(*case.arguments).plan
    assert [step.kernel for step in plan.steps] == case.steps
    assert plan.arena <= case.arena


@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_the_reference(name: str) -> None:
    case = CASES[name]
    got = tree.leaves(JITTED[name](*case.arguments))
    reference = af.jit(case.function, device="reference")
    for have, want in zip(got, tree.leaves(reference(*case.arguments)), strict=True):
        assert have.dtype == want.dtype
        np.testing.assert_allclose(have, want, 2e-5, 2e-5)


def test_a_training_gradient_is_four_products_and_few_kernels() -> None:
    jitted = af.jit(training)
    plan = jitted.lower(PARAMETERS, X, LABELS).plan
    steps = [step.kernel for step in plan.steps]
    # Two products forward; back, one by each operand of the second, one of the first.
    assert steps.count("gemm_f32") == 5
    # Activation; loss with its gradient; means, bias gradients, and their sums.
    assert len(steps) - 5 <= 10
    assert sum(step.startswith("elementwise") for step in steps) <= 2
    # The hidden layer, what flows back to it, the scores, their gradient; rows.
    hidden, scores = aligned(ROWS * 16 * 4), aligned(ROWS * 10 * 4)
    assert plan.arena <= 3 * hidden + 2 * scores + 4 * aligned(ROWS * 4)
    value, slope = jitted(PARAMETERS, X, LABELS)
    want_value, want = af.jit(training, device="reference")(PARAMETERS, X, LABELS)
    np.testing.assert_allclose(value, want_value, 1e-5)
    for key in PARAMETERS:
        np.testing.assert_allclose(slope[key], want[key], 1e-4, 1e-5)


# What says why.


def test_reasons_name_the_axes_and_the_primitives() -> None:
    def reasons(name: str) -> list[str]:
        return [k.reason for k in JITTED[name].lower(*CASES[name].arguments).kernels]

    assert reasons("a norm of each row is one kernel") == [
        "reductions over the same axes (extents 20): square, reduce_sum, sqrt, div"
    ]
    assert reasons("broadcasts are index maps") == [
        "one pass over [48, 20]: sub, mul, add"
    ]
    assert reasons("transposes go into the product") == ["BLAS"]
    first, second = reasons("a sum of each column is partial sums and their sum")
    assert first == "reductions over the same axes (extents 48): square, reduce_sum"
    assert second == f"combines the partial results of chunks; {first}"


def test_the_title_of_a_kernel_names_primitives_and_the_users_line() -> None:
    (kernel,) = af.jit(softmax).lower(X).kernels
    assert kernel.source.splitlines()[0] == (
        "# rows_0: reduce_max, sub, exp, reduce_sum, div        at common_functions.py:"
        f"{softmax.__code__.co_firstlineno + 3}"
    )


# Units of a Program.


def units(text: str) -> list[str]:
    """The primitives of each unit that a Program becomes."""
    names = []
    for unit in fuse(parse(text)):
        if isinstance(unit, SingleUnit):
            names.append(f"single: {unit.equation.primitive.name}")
        else:
            assert isinstance(unit, FusedGroup)
            names.append(", ".join(eq.primitive.name for eq in unit.equations))
    return names


def test_a_library_call_is_a_barrier() -> None:
    assert units(
        "program f(x: f32[4,4], y: f32[4,4]) -> (f32[4,4]) {\n"
        "  a: f32[4,4] = exp(x)\n"
        "  b: f32[4,4] = dot_general(a, y) {contract=((1,),(0,)), batch=((),())}\n"
        "  c: f32[4,4] = add(a, b)\n"
        "  d: f32[4,4] = tanh(c)\n"
        "  return d\n}\n"
    ) == ["exp", "single: dot_general", "add, tanh"]


def test_reductions_over_other_axes_are_kernels_of_their_own() -> None:
    assert units(
        "program f(x: f32[4,5]) -> (f32[4], f32[5]) {\n"
        "  a: f32[4] = reduce_sum(x) {axes=(1,)}\n"
        "  b: f32[5] = reduce_sum(x) {axes=(0,)}\n"
        "  return a, b\n}\n"
    ) == ["reduce_sum", "reduce_sum"]


@pytest.mark.parametrize("dtype", [np.bool_, np.int32, np.float32])
@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((1, 4), (0, 1)),
        ((1, 1, 4), (0, 1, 2)),
        ((2, 1, 3), (0, 1, 2)),
        ((1, 4, 1, 3), (0, 1)),
        ((1, 4, 1, 3), (1, 2)),
        ((3, 1, 1, 2), (1, 2, 3)),
    ],
)
def test_a_reduction_over_axes_of_extent_one_reads_all_elements(
    shape: tuple[int, ...], axes: tuple[int, ...], dtype: type
) -> None:
    size = int(np.prod(shape))
    some = af.jit(lambda x: anp.any(x, axis=axes))
    every = af.jit(lambda x: anp.all(x, axis=axes))
    for position in range(size):
        x = np.zeros(size, dtype)
        x[position] = 1
        x = x.reshape(shape)
        np.testing.assert_array_equal(some(x), np.any(x, axis=axes))
        np.testing.assert_array_equal(every(x == 0), np.all(x == 0, axis=axes))


def test_what_is_read_across_is_not_fused_with_its_producer() -> None:
    # exp(x) at [j, i] is not there yet when [i, j] is computed.
    got = units(
        "program f(x: f32[4,4]) -> (f32[4,4], f32[4,4]) {\n"
        "  a: f32[4,4] = exp(x)\n"
        "  b: f32[4,4] = transpose(a) {permutation=(1,0)}\n"
        "  c: f32[4,4] = add(a, b)\n"
        "  return a, c\n}\n"
    )
    assert got == ["exp", "add"]


def test_what_is_computed_again_and_read_across_is_one_kernel() -> None:
    # One kernel computes `b` again for its transpose, and reads its reverse as stored.
    got = units(
        "program f(x: f32[4,4], y: f32[4]) -> (f32[4,4], f32[4,4]) {\n"
        "  a: f32[4,4] = broadcast_in_dim(y) {shape=(4,4), axes=(1,)}\n"
        "  b: f32[4,4] = sub(x, a)\n"
        "  c: f32[4,4] = transpose(b) {permutation=(1,0)}\n"
        "  d: f32[4,4] = rev(b) {axes=(0,)}\n"
        "  e: f32[4,4] = sub(c, d)\n"
        "  f: bool[4,4] = lt(e, 0.5:f32)\n"
        "  g: f32[4,4] = select(f, d, e)\n"
        "  return g, d\n}\n"
    )
    assert got == ["sub", "sub, sub, lt, select"]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x - x.sum())[::-1],
        lambda x: ((x - x.sum())[::-1], x + 1),
        lambda x: (x - x.max(axis=0)).T[::-1] * 2,
        lambda x: (x - x.sum(axis=1, keepdims=True))[:, ::2],
        lambda x: (x * x.mean())[1:] + x[:-1],
    ],
    ids=["all", "siblings", "columns", "rows", "slices"],
)
def test_what_follows_a_reduction_is_there_before_a_view_of_it_is_read(
    function: Callable[[Any], Any],
) -> None:
    got = tree.leaves(af.jit(function)(X))
    for have, want in zip(got, tree.leaves(function(X)), strict=True):
        np.testing.assert_allclose(have, want, 1e-4, 1e-4)


def test_a_dear_value_used_by_two_kernels_is_computed_once() -> None:
    got = units(
        "program f(x: f32[4,5], y: f32[5,4]) -> (f32[5], f32[4,4]) {\n"
        "  a: f32[4,5] = tanh(x)\n"
        "  b: f32[5] = reduce_sum(a) {axes=(0,)}\n"
        "  c: f32[4,4] = dot_general(a, y) {contract=((1,),(0,)), batch=((),())}\n"
        "  return b, c\n}\n"
    )
    assert sum(unit.count("tanh") for unit in got) == 1


def test_a_cheap_value_is_computed_again_rather_than_stored() -> None:
    plan = (
        af.jit(lambda x, y: (anp.sum(x - y, axis=0), anp.sum(x - y, axis=1)))
        .lower(X, Y)
        .plan
    )
    assert plan.arena < FULL


def test_unused_equations_are_in_no_kernel() -> None:
    assert units(
        "program f(x: f32[4]) -> (f32[4]) {\n"
        "  a: f32[4] = exp(x)\n"
        "  b: f32[4] = neg(x)\n"
        "  return b\n}\n"
    ) == ["neg"]


def test_a_long_chain_is_cut_into_kernels_of_bounded_size() -> None:
    def chain(x: Any) -> Any:
        for k in range(400):
            x = anp.sin(x) + k
        return x

    lowered = af.jit(chain).lower(X)
    assert 4 <= len(lowered.plan.steps) <= 30
    assert len(lowered.kernels) <= 4  # the first has other literals, the last is short
    assert all(k.source.count("\n") < 400 for k in lowered.kernels)
    np.testing.assert_allclose(af.jit(chain)(X), chain(X), 1e-3)


@pytest.mark.parametrize("checks", ["nan", "inf", "all"])
def test_what_is_computed_again_orders_no_groups(
    checks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Else groups come to need each other, and one reads what is not written yet.
    order = Groups.order

    def checked(self: Any, first: Any, second: Any) -> None:
        assert not first.ancestors >> second.number & 1
        order(self, first, second)

    monkeypatch.setattr(Groups, "order", checked)
    x = np.random.default_rng(1).standard_normal((20, 20))
    m = x.T.copy()

    def extremes(c: Any) -> Any:
        return anp.max(c, axis=0) + anp.sum(c, axis=1, keepdims=True) / 20

    def step(c: Any, y: Any) -> Any:
        both = extremes(c.at[3].set(1.5)) + extremes(y)
        return anp.tanh(both), extremes(c / 20) @ m

    def f(x: Any) -> Any:
        last, all_ = lax.scan(step, x, np.stack([m] * 3))
        return anp.sum(last**2) + anp.sum(all_**2)

    have = af.jit(af.grad(f), checks=checks)(x)
    np.testing.assert_array_equal(have, af.jit(af.grad(f), checks=checks)(x))
    want = af.jit(af.grad(f), device="reference")(x)
    np.testing.assert_allclose(have, want, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("rows", [40, 64])
def test_two_kernel_matrices_are_not_stored_whatever_their_extents(rows: int) -> None:
    def gaussian(x: Any, y: Any) -> Any:
        return anp.exp(-((x[:, None] - y[None, :]) ** 2))

    def products(x: Any, y: Any) -> Any:
        s = anp.sum(gaussian(x, y), axis=1)
        # Of equal extents, the second matrix could join the first one's reduction;
        # what reads it cannot, since it reads s along the other axis.
        return s, anp.sum(gaussian(y, x) * s, axis=1)

    random = np.random.default_rng(3)
    x, y = random.normal(size=rows), random.normal(size=64)
    compiled = af.jit(products).lower(x, y).compiled_program
    temporaries = [b for b in compiled.plan.buffers if b.kind == "temporary"]
    assert sum(b.type.nbytes for b in temporaries) <= 2 * 64 * 8
    s, t = af.jit(products)(x, y)
    first = np.exp(-((x[:, None] - y[None, :]) ** 2))
    np.testing.assert_allclose(s, first.sum(1), rtol=1e-13)
    np.testing.assert_allclose(t, (first.T * s).sum(1), rtol=1e-13)


def test_a_costly_value_that_two_kernels_read_is_computed_once() -> None:
    def f(x: Any, y: Any) -> Any:
        k = anp.exp(x[:, None] * y[None, :])
        return anp.sum(k, axis=1), anp.sum(k * k, axis=0)

    x, y = np.linspace(0, 1, 64), np.linspace(1, 2, 48)
    kernels = af.jit(f).lower(x, y).kernels
    assert sum(k.source.count("exp_f64(") for k in kernels) == 1
