"""single_index: one element a row, gathered or scattered by comparison with a count."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn.ir import Program
from arrayfn.passes.single_index import single_index
from arrayfn.primitives.calls import evaluate
from tests.passes.texts import bits, parse

GATHER = (
    "{{window_axes=(), collapsed_axes=(1,), indexed_axes=(1,), batch=((0,),(0,)), "
    "sizes=(1,1), mode='{}', fill_value={}}}"
)
SCATTER = (
    "{{window_axes=(), collapsed_axes=(1,), indexed_axes=(1,), batch=((0,),(0,)), "
    "mode='{}', unique_indices=False}}"
)


def gather(
    mode: str = "fill", *, computed: bool = True, dtype: str = "f32", index: str = "i32"
) -> Program:
    """Elements ``[i, index[i]]`` of ``-x`` (of ``x`` itself, unless ``computed``)."""
    params = GATHER.format(mode, "nan" if mode == "fill" else "None")
    source = "a" if computed else "x"
    return parse(
        f"program f(x: {dtype}[3,4], i: {index}[3,1]) -> ({dtype}[3]) {{\n"
        f"  a: {dtype}[3,4] = neg(x)\n"
        f"  b: {dtype}[3] = gather({source}, i) {params}\n"
        "  return b\n}\n"
    )


def scatter(mode: str = "drop", start: str = "0.0:f32") -> Program:
    """``u[i]`` at ``[i, index[i]]`` of an array that is ``start`` elsewhere."""
    return parse(
        "program f(i: i32[3,1], u: f32[3]) -> (f32[3,4]) {\n"
        f"  a: f32[3,4] = broadcast_in_dim({start}) {{shape=(3,4), axes=()}}\n"
        f"  b: f32[3,4] = scatter_add(a, i, u) {SCATTER.format(mode)}\n"
        "  return b\n}\n"
    )


def primitives(program: Program) -> list[str]:
    return [eq.primitive.name for eq in program.equations]


def check(before: Program, *arguments: Any) -> None:
    """Assert that the rewritten Program gives the same bits."""
    after = single_index(before)
    after.check()
    (want,) = evaluate(before, arguments)
    (have,) = evaluate(after, arguments)
    assert bits(have) == bits(want), f"{have} is not {want}"


VALUES = np.array(
    [
        [-0.0, 1.0, np.nan, -np.inf],
        [np.nan, -np.inf, 2.0, 0.0],
        [np.inf, -0.0, 5.0, np.nan],
    ],
    np.float32,
)


@pytest.mark.parametrize("column", range(4))
def test_every_bit_of_the_element_is_kept(column: int) -> None:
    check(gather(), VALUES, np.full((3, 1), column, np.int32))


@pytest.mark.parametrize("mode", ["fill", "clip"])
@pytest.mark.parametrize("column", [-5, -1, 4, 2**31 - 1, -(2**31)])
def test_an_index_outside_gives_what_the_mode_says(column: int, mode: str) -> None:
    check(gather(mode), VALUES, np.full((3, 1), column, np.int32))


def test_a_gather_of_a_computed_value_becomes_a_maximum() -> None:
    names = primitives(single_index(gather()))
    assert "gather" not in names
    assert names.count("reduce_max") == 1


@pytest.mark.parametrize(
    ("program", "why"),
    [
        (gather(computed=False), "it reads one element a row of what is there"),
        (gather(dtype="i32", mode="clip"), "integers have no -inf"),
        (gather("clip"), "an index outside means the last element"),
    ],
    ids=lambda value: value.replace(" ", "_") if isinstance(value, str) else "",
)
def test_a_gather_stays_where(program: Program, why: str) -> None:
    assert "gather" in primitives(single_index(program)), why


def test_a_scatter_into_zeros_becomes_a_selection() -> None:
    names = primitives(single_index(scatter()))
    assert "scatter_add" not in names
    assert names.count("select") == 1


def test_a_scatter_into_other_values_stays() -> None:
    assert "scatter_add" in primitives(single_index(scatter(start="1.0:f32")))


@pytest.mark.parametrize(
    "columns", [[0, 3, 1], [-1, 4, 2], [2**31 - 1, -(2**31), 0]], ids=str
)
def test_a_scatter_writes_inside_and_drops_outside(columns: list[int]) -> None:
    updates = np.array([1.5, np.nan, np.inf], np.float32)
    check(scatter(), np.array(columns, np.int32)[:, None], updates)


@pytest.mark.parametrize(
    "index", ["u8", "i8", "i16", "u16", "i32", "u32", "i64", "u64"]
)
def test_indices_of_any_dtype_name_the_same_elements(index: str) -> None:
    dtype = np.dtype({"i": "int", "u": "uint"}[index[0]] + index[1:])
    check(gather(index=index), VALUES, np.array([[1], [3], [0]], dtype))


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_narrow_indices_into_long_rows_name_one_element(dtype: Any) -> None:
    x = np.random.default_rng(0).standard_normal((3, 300)).astype(np.float32)
    kind = "u8" if dtype is np.uint8 else "i8"
    program = parse(
        f"program f(x: f32[3,300], i: {kind}[3,1]) -> (f32[3]) {{\n"
        "  a: f32[3,300] = neg(x)\n"
        f"  b: f32[3] = gather(a, i) {GATHER.format('fill', 'nan')}\n"
        "  return b\n}\n"
    )
    check(program, x, np.array([[5], [44], [100]], dtype))


def log_softmax(z: Any) -> Any:
    z = z - anp.max(z, axis=-1, keepdims=True)
    return z - anp.log(anp.sum(anp.exp(z), axis=-1, keepdims=True))


def picked(z: Any, labels: Any) -> Any:
    return anp.take_along_axis(log_softmax(z), labels[:, None], axis=-1)[:, 0]


def mean_of_negated(z: Any, labels: Any) -> Any:
    return anp.mean(-picked(z, labels))


def negated_mean(z: Any, labels: Any) -> Any:
    return -anp.mean(picked(z, labels))


@pytest.mark.parametrize("loss", [negated_mean, mean_of_negated])
def test_the_gradient_of_cross_entropy_is_one_kernel(loss: Any) -> None:
    rng = np.random.default_rng(1)
    z = rng.standard_normal((5, 7)).astype(np.float32)
    labels = np.array([0, 6, -1, 3, -7], np.int32)
    jitted = af.jit(af.grad(loss))
    lowered = jitted.lower(z, labels)
    shifted = np.exp(z - z.max(1, keepdims=True))
    softmax = shifted / shifted.sum(1, keepdims=True)
    want = (softmax - np.eye(7, dtype=np.float32)[labels]) / 5
    np.testing.assert_allclose(jitted(z, labels), want, 1e-5, 1e-7)
    assert [k.name for k in lowered.kernels] == ["rows_0"]
    assert lowered.plan.arena == 0


def test_cross_entropy_of_each_row_is_one_kernel() -> None:
    z, labels = np.zeros((5, 7), np.float32), np.zeros(5, np.int32)
    jitted = af.jit(picked)
    lowered = jitted.lower(z, labels)
    assert [k.name for k in lowered.kernels] == ["rows_0"]
    assert lowered.plan.arena == 0
    np.testing.assert_allclose(jitted(z, labels), np.full(5, -np.log(7)), 1e-6)
