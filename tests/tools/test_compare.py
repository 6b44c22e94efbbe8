"""compare: every implementation is there, with its error and its time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import lax, nn
from arrayfn.errors import ArgumentError
from arrayfn.lowering.operations import operations
from arrayfn.lowering.operator_kernels import KERNELS
from arrayfn.tools.engines import COUNTERPARTS, ENGINES
from arrayfn.transforms import make_program

X = np.random.default_rng(0).standard_normal((40, 50)).astype(np.float32)


@af.operator(name="compared_softmax")
def softmax(x: Any, axis: int = -1) -> Any:
    e = anp.exp(x - anp.max(x, axis=axis, keepdims=True))
    return e / anp.sum(e, axis=axis, keepdims=True)


@softmax.kernel("cpu", when=lambda x, axis: x.ndim == 2)
def by_numpy(x: Any, out: Any, axis: int) -> None:
    np.exp(x - x.max(axis, keepdims=True), out=out)
    out /= out.sum(axis, keepdims=True)


@softmax.kernel("cpu", when=lambda x, axis: x.ndim == 2)
def too_large(x: Any, out: Any, axis: int) -> None:
    by_numpy(x, out, axis)
    out *= np.float32(1.001)


@softmax.kernel("cpu", when=lambda x, axis: x.ndim == 1)
def of_vectors(x: Any, out: Any, axis: int) -> None:
    raise AssertionError


def test_all_implementations_are_measured() -> None:
    before = len(softmax.kernels)
    compared = af.compare(softmax, X, repeats=3, axis=-1)
    rows = {row.name: row for row in compared}
    assert {"generated", "interpreted", "by_numpy", "too_large"} <= set(rows)
    assert rows["generated"].max_abs < 1e-7
    assert rows["by_numpy"].ulp < 20
    assert 0.9e-3 < rows["too_large"].max_rel < 1.1e-3
    assert 0.9e-3 < rows["too_large"].l2 < 1.1e-3
    assert rows["of_vectors"].refused == "does not take these operands"
    assert len(rows["generated"].times) == 3
    assert rows["generated"].bytes == 2 * X.nbytes
    assert "max abs" in repr(compared).splitlines()[0]
    assert "roof of cpu: " in repr(compared)
    page = compared._repr_html_()
    assert page.count("<tr>") == 1 + len(compared)
    assert "does not take these operands" in page
    assert len(softmax.kernels) == before
    assert not KERNELS.of("compared_softmax_0")


def test_functions_and_results_of_any_kind() -> None:
    def f(x: Any, n: Any) -> Any:
        return {"n": n + 1, "z": x * 1j, "nan": anp.log(x), "none": x[:0]}

    for row in af.compare(f, X[0], 3, repeats=1, warmup=0):
        assert row.max_abs < 1e-6


def test_operations_are_counted() -> None:
    def f(x: Any, y: Any) -> Any:
        return lax.scan(lambda c, _: (anp.sin(c) + 1, None), x @ y, None, length=7)[0]

    program = make_program(f)(np.ones((3, 4)), np.ones((4, 5)))
    assert operations(program) == 2 * 3 * 4 * 5 + 7 * 2 * 15


def count(f: Any, *args: Any) -> int:
    return operations(make_program(f)(*args))


def test_operations_of_convolutions_windows_and_systems_are_counted() -> None:
    x, w = np.ones((2, 6, 9, 8)), np.ones((4, 3, 3, 2))

    def convolved(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(x, w, (2, 1), "SAME", feature_group_count=2)

    products = 2 * 4 * 5 * 8 * (3 * 3 * 2)
    assert count(convolved, x, w) == 2 * products
    by_both = af.grad(lambda x, w: convolved(x, w)[0, 0, 0, 0], argnums=(0, 1))
    # The convolution is linear in each: its gradients are two products as large.
    assert count(by_both, x, w) == 2 * 3 * products
    pooled = lambda x: lax.reduce_window(  # noqa: E731
        x, -np.inf, lax.max, (1, 1, 3, 2), (1, 1, 3, 2), "VALID"
    )
    assert count(pooled, x) == x.size
    assert count(lambda x: anp.cumsum(x, axis=1), x) == x.size
    assert count(lambda x: anp.argmax(x, axis=1), x) == x.size
    a, b = np.eye(12), np.ones((12, 3))
    assert count(anp.linalg.solve, a, b) == 2 * 12**3 // 3 + 2 * 12 * 12 * 3


def test_operands_are_arrays() -> None:
    with pytest.raises(ArgumentError, match="an operand is a str"):
        af.compare(anp.sum, "x")


# Sweeps, and other libraries.

ENGINES_OF = {
    "nn.softmax": (nn.softmax, (X,), {"axis": 0}),
    "nn.log_softmax": (nn.log_softmax, (X,), {}),
    "nn.layer_norm": (nn.layer_norm, (X, X[0], X[1]), {}),
    "nn.rms_norm": (nn.rms_norm, (X, X[0]), {}),
    "nn.gelu": (nn.gelu, (X,), {"approximate": False}),
    "nn.dot_product_attention": (
        nn.dot_product_attention,
        (
            X.reshape(1, 10, 10, 20)[..., :8],
            *[X.reshape(1, 10, 10, 20)[:, :, :5, :8]] * 2,
        ),
        {"is_causal": True},
    ),
    "nn.cross_entropy": (nn.cross_entropy, (X, np.arange(40)), {}),
    "nn.embedding": (nn.embedding, (X, np.array([3, 0, 3])), {}),
    "numpy.matmul": (anp.matmul, (X, X.T), {}),
    "lax.conv_general_dilated": (
        lax.conv_general_dilated,
        (X.reshape(1, 2, 20, 50), X[:8, :18].reshape(8, 2, 3, 3)),
        {"window_strides": (1, 1), "padding": "SAME"},
    ),
}


@pytest.mark.parametrize("engine", ["numpy", "jax", "torch"])
@pytest.mark.parametrize("name", ENGINES_OF)
def test_counterparts_compute_what_the_operator_does(name: str, engine: str) -> None:
    function, args, static = ENGINES_OF[name]
    assert function.name == name
    if engine not in COUNTERPARTS[name]:
        pytest.skip(f"{engine} has no {name}")
    if not ENGINES[engine].is_installed:
        pytest.skip(f"{engine} is not installed")
    if engine == "jax":  # which computes float32 products in TF32 on a GPU
        import jax

        jax.config.update("jax_default_matmul_precision", "highest")
    (row,) = af.compare(
        function, *args, backends=[engine], repeats=1, warmup=0, **static
    )
    assert row.backend == engine
    assert not row.refused
    assert row.max_abs < 1e-4


@pytest.mark.parametrize("function", [nn.softmax, nn.log_softmax])
def test_softmax_of_numpy_leaves_out_what_the_operator_leaves_out(
    function: Any,
) -> None:
    where = X > 0
    where[3] = False
    counterpart = COUNTERPARTS[function.name]["numpy"]
    result, expected = counterpart(X, where=where), function(X, where=where)
    assert result.dtype == expected.dtype
    np.testing.assert_allclose(result, expected, rtol=1e-6)
    (row,) = af.compare(
        function, X, backends=["numpy"], repeats=1, warmup=0, where=where
    )
    assert row.max_abs < 1e-5


def test_one_operator_is_compared_over_several_engines() -> None:
    names = [
        "cpu",
        "reference",
        "numpy",
        *(name for name in ("jax", "torch") if ENGINES[name].is_installed),
    ]
    compared = af.compare(
        nn.softmax,
        X,
        backends=names,
        against={"mine": lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True)},
        repeats=1,
    )
    assert [row.backend for row in compared] == [*names, "mine"]
    assert all(row.max_rel < 1e-5 for row in compared)
    assert list(compared.roofs) == ["cpu", "reference"]


def test_an_engine_without_a_counterpart_is_refused_with_the_remedy() -> None:
    (row,) = af.compare(nn.rope, X.reshape(8, 5, 50), backends=["numpy"], repeats=1)
    assert row.refused == "no function known; give against={'numpy': function}"


MASK = X > 0
REFUSED = [
    ("numpy", anp.matmul, (X, X.T), {"precision": "highest"}, "argument 'precision'"),
    ("numpy", nn.cross_entropy, (X, np.arange(50)), {"axis": 0}, "argument 'axis'"),
    ("torch", nn.softmax, (X,), {"where": MASK}, "argument 'where'"),
    ("torch", nn.layer_norm, (X,), {"axis": 0}, "the last axis, not axis 0"),
    (
        "torch",
        *ENGINES_OF["lax.conv_general_dilated"][:2],
        {"window_strides": (1, 1), "padding": ((1, 0), (1, 0))},
        "both sides of an axis alike",
    ),
]


@pytest.mark.parametrize(("engine", "function", "args", "static", "why"), REFUSED)
def test_an_engine_is_refused_for_arguments_that_its_function_does_not_take(
    engine: str, function: Any, args: Any, static: Any, why: str
) -> None:
    if not ENGINES[engine].is_installed:
        pytest.skip(f"{engine} is not installed")
    generated, row = af.compare(
        function, *args, backends=["cpu", engine], repeats=1, warmup=0, **static
    )
    assert generated.backend == "cpu"
    assert not generated.refused
    assert "does not take these arguments" in row.refused
    assert why in row.refused


def test_a_type_error_of_the_users_function_is_raised() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'axis'"):
        af.compare(nn.softmax, X, against={"mine": lambda x: x}, backends=[], axis=0)


def test_counterparts_leave_out_a_scale_or_a_bias_of_none() -> None:
    for affine in ((X[0], None), (None, X[0])):
        (row,) = af.compare(nn.layer_norm, X, *affine, backends=["numpy"], repeats=1)
        assert row.max_abs < 1e-5


def test_unknown_backends_are_named() -> None:
    with pytest.raises(ArgumentError, match="no backend or library 'torhc'; there are"):
        af.compare(nn.softmax, X, backends=["torhc"])


def normal(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape)


def test_a_sweep_of_sizes_and_dtypes() -> None:
    swept = af.compare(
        nn.softmax,
        lambda n: normal(8, n),
        sizes=[16, 64],
        dtypes=["float32", "float64"],
        backends=["cpu", "numpy"],
        repeats=2,
    )
    assert [(p.size, p.dtype) for p in swept] == [
        (16, "float32"),
        (16, "float64"),
        (64, "float32"),
        (64, "float64"),
    ]
    lines = str(swept).splitlines()
    assert lines[0].split()[:4] == ["implementation", "backend", "dtype", "size"]
    assert [line.split()[:4] for line in lines[1:3]] == [
        ["generated", "cpu", "float32", "16"],
        ["generated", "cpu", "float32", "64"],
    ]
    assert len(lines) == 1 + 2 * 4
    for point, row in swept.rows():
        assert row.max_rel < (1e-5 if point.dtype == "float32" else 1e-13)


def test_a_sweep_is_drawn() -> None:
    pytest.importorskip("matplotlib").use("Agg")
    swept = af.compare(
        nn.gelu, normal, sizes=[8, 32], backends=["cpu", "numpy"], repeats=2
    )
    axes = swept.plot()
    assert [line.get_label() for line in axes.get_lines()] == [
        "generated, cpu",
        "np_gelu, numpy",
    ]
    assert [list(line.get_xdata()) for line in axes.get_lines()] == [[8, 32]] * 2
    page = swept._repr_html_()
    assert page.count("<svg") == 1
    assert page.count("<tr>") == 1 + 4


def test_sizes_need_an_operand_that_depends_on_them() -> None:
    with pytest.raises(ArgumentError, match=r"such as lambda n: numpy\.ones"):
        af.compare(nn.gelu, X, sizes=[1, 2])
    with pytest.raises(ArgumentError, match="sizes is empty"):
        af.compare(nn.gelu, normal, sizes=[])
