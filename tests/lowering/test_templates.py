"""Kernels that move elements: what they look like, and that shapes are arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from arrayfn import dtypes
from arrayfn.ir import ArrayType, Atom, Literal, type_of
from arrayfn.lowering.compiled import CompiledProgram
from arrayfn.lowering.lower import lower
from arrayfn.primitives import (
    cumulative,
    dynamic_slices,
    indexing,
    indexing_semantics,
    reductions,
    slicing,
    views,
)
from arrayfn.primitives import elementwise as e
from arrayfn.primitives.windows import Windows
from tests.lowering.kernels import check_kernels, keys, run_compiled, sources
from tests.programs import build

Array = np.ndarray[Any, Any]
F32, I32 = dtypes.float32, dtypes.int32
ROWS_OF = Windows((1,), (0,), (0,)).params()
ALONG = Windows((), (0,), (0,)).params()


def floats(*shape: int, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(5).normal(size=shape).astype(dtype)


def column(*indices: int) -> Array:
    return np.array(indices, np.int32).reshape(-1, 1)


def lowered(emit: Callable[..., Any], *inputs: Array) -> CompiledProgram:
    return lower(build(emit, *[type_of(x) for x in inputs]), check=True)


def checked(emit: Callable[..., Any], *inputs: Array) -> CompiledProgram:
    """``emit`` lowered, after its kernels were compared with the reference."""
    return check_kernels(build(emit, *[type_of(x) for x in inputs]), inputs)


def take(x: Atom, i: Atom, mode: str = "fill", fill: Any = 0.0) -> Atom:
    return indexing.gather(
        x,
        i,
        sizes=(1, *x.type.shape[1:]),
        mode=mode,
        fill_value=fill if mode == "fill" else None,
        **(ROWS_OF if x.type.ndim == 2 else ALONG),
    )


def put(
    x: Atom,
    i: Atom,
    y: Atom,
    row: Any = indexing.scatter_add,
    mode: str = "drop",
    unique: bool = False,
) -> Atom:
    windows = ROWS_OF if x.type.ndim == 2 else ALONG
    return row(x, i, y, mode=mode, unique_indices=unique, **windows)


CASES: dict[str, tuple[Callable[..., Any], Callable[[int, int], list[Array]]]] = {
    "concatenate": (
        lambda x, y: slicing.concatenate(x, y, axis=1),
        lambda n, m: [floats(n, m), floats(n, m + 1)],
    ),
    "pad": (
        lambda x: slicing.pad(x, 0.5, config=((1, 2, 0), (2, 1, 0))),
        lambda n, m: [floats(n, m)],
    ),
    "cumsum": (
        lambda x: cumulative.cumsum(x, axis=0, reverse=False),
        lambda n, m: [np.round(8 * floats(n, m))],
    ),
    "argmax": (
        lambda x: reductions.argmax(x, axis=1, dtype=dtypes.int64),
        lambda n, m: [floats(n, m)],
    ),
    "gather": (take, lambda n, m: [floats(n, m), column(*range(-1, n + 1))]),
    "scatter_add": (
        put,
        lambda n, m: [
            np.round(8 * floats(n, m)),
            column(*range(-1, n + 1)),
            np.round(8 * floats(n + 2, m)),
        ],
    ),
    "dynamic_slice": (
        lambda x, i, j: dynamic_slices.dynamic_slice(
            x, i, j, sizes=tuple(n - 1 for n in x.type.shape)
        ),
        lambda n, m: [floats(n, m), np.array(1, np.int32), np.array(-1, np.int32)],
    ),
    "dynamic_update_slice": (
        dynamic_slices.dynamic_update_slice,
        lambda n, m: [
            floats(n, m),
            floats(n - 1, m - 2),
            np.array(1, np.int32),
            np.array(9, np.int32),
        ],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_new_shape_compiles_nothing(name: str) -> None:
    emit, draw = CASES[name]
    first = checked(emit, *draw(4, 5))
    second = checked(emit, *draw(7, 6))
    assert keys(first) == keys(second)


@pytest.mark.parametrize("row", ["cumsum", "cumprod", "cummax", "cummin"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_scans_along_every_axis(row: str, axis: int) -> None:
    scan = getattr(cumulative, row)
    x = np.round(3 * floats(4, 3, 5), 0)
    x[1, 1, 2] = np.nan

    def both(x: Atom) -> list[Atom]:
        return [scan(x, axis=axis, reverse=reverse) for reverse in (False, True)]

    checked(both, x)


def test_a_scan_of_one_axis_runs_in_order_however_it_is_split() -> None:
    # 1e16 + 1 - 1e16 is 0 in float64 only in this order.
    x = np.array([1e16, 1.0, -1e16, 1.0])
    compiled = checked(lambda x: cumulative.cumsum(x, axis=0, reverse=False), x)
    (step,) = compiled.plan.steps
    assert step.items == 1


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("row", [reductions.argmax, reductions.argmin])
def test_positions_are_numpys_with_ties_and_nan(row: Any, dtype: str) -> None:
    x = np.array(
        [[1, 2, 2, 0], [np.nan, 3, np.nan, 9], [0.0, -0.0, -0.0, 0.0], [-np.inf] * 4],
    ).astype(dtypes.canonical(dtype))

    def along_both(x: Atom) -> list[Atom]:
        return [row(x, axis=axis, dtype=dtypes.int64) for axis in (0, 1)]

    checked(along_both, x)


def test_positions_fuse_with_what_makes_the_values() -> None:
    def emit(x: Atom) -> Atom:
        return reductions.argmax(e.neg(x), axis=1, dtype=dtypes.int64)

    assert len(checked(emit, floats(6, 5)).plan.steps) == 1


# Out of bounds.


@pytest.mark.parametrize("dtype", dtypes.SHORT_NAMES)
def test_gather_never_reads_outside(dtype: Any) -> None:
    # An un-jitted kernel raises IndexError where it leaves an array.
    x = (100 * floats(4, 3)).astype(dtype)
    far = column(-(2**31), -5, -1, 0, 3, 4, 2**31 - 1)
    fill = indexing_semantics.default_fill(dtype)

    def emit(x: Atom, i: Atom) -> list[Atom]:
        return [take(x, i, "fill", fill), take(x, i, "clip")]

    checked(emit, x, far)


@pytest.mark.parametrize("dtype", [np.uint64, np.int64, np.uint8, np.int8])
def test_indices_of_any_width(dtype: Any) -> None:
    limits = np.iinfo(dtype)
    indices = np.array([limits.min, 0, 1, 3, limits.max], dtype).reshape(-1, 1)

    def emit(x: Atom, i: Atom, y: Atom) -> list[Atom]:
        return [take(x, i), take(x, i, "clip"), put(x, i, y), put(x, i, y, mode="clip")]

    checked(emit, floats(4), indices, np.ones(5, np.float32))


@pytest.mark.parametrize(
    "row",
    [
        indexing.scatter,
        indexing.scatter_add,
        indexing.scatter_mul,
        indexing.scatter_min,
        indexing.scatter_max,
    ],
)
def test_updates_of_one_place_run_in_order(row: Any) -> None:
    x = floats(3)
    updates = np.array([1e8, 1.0, -1e8, 3.0, 5.0, np.nan], np.float32)
    indices = column(1, 1, 1, 2, 7, 0)
    checked(lambda *xs: put(*xs, row=row), x, indices, updates)
    wide = np.stack([updates, updates[::-1]], 1)
    checked(lambda *xs: put(*xs, row=row), floats(3, 2), indices, wide)


def test_windows_that_overlap_meet_in_order() -> None:
    # Windows of two along the indexed axis: one's second element is the next's first.
    windows = Windows((1,), (), (0,)).params()

    def emit(x: Atom, i: Atom, y: Atom) -> Atom:
        return indexing.scatter(x, i, y, mode="drop", unique_indices=False, **windows)

    compiled = checked(emit, floats(6), column(0, 1, 2, 1), floats(4, 2))
    assert compiled.plan.steps[-1].items == 1


def test_unique_updates_run_in_parallel() -> None:
    def emit(x: Atom, i: Atom, y: Atom) -> Atom:
        return put(x, i, y, unique=True)

    compiled = checked(emit, floats(8), column(5, 2, 7), floats(3))
    assert compiled.plan.steps[-1].items == 3


def test_scattered_rows_are_split_by_columns() -> None:
    compiled = lowered(put, floats(8, 2000), column(5, 2, 5), floats(3, 2000))
    assert compiled.plan.steps[-1].items == 4


# In place.


def test_an_update_of_a_temporary_is_in_place() -> None:
    def emit(x: Atom, i: Atom, y: Atom) -> Atom:
        return put(put(e.neg(x), i, y), i, e.neg(y), indexing.scatter_max)

    x, i, y = floats(5), column(3, 3, 0), floats(3)
    compiled = checked(emit, x, i, y)
    buffers = [b.kind for b in compiled.plan.buffers]
    writes = [buffers[k] for step in compiled.plan.steps for k in step.writes]
    assert sorted(writes) == ["output", "output", "output", "temporary"]


def test_an_argument_is_not_overwritten() -> None:
    x, i, y = floats(5), column(3, 3, 0), floats(3)
    before = x.copy()
    checked(put, x, i, y)
    np.testing.assert_array_equal(x, before)


# Bits.


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_are_moved_bit_by_bit(dtype: str) -> None:
    # All NaNs among them, the signalling ones too.
    bits = np.arange(0, 2**16, 7, dtype=np.uint16)
    bits = np.append(bits, np.array([0x7C01, 0x7F81, 0xFF81, 0xFC01], np.uint16))
    x = bits.view(dtypes.canonical(dtype))
    zero = Literal(0, I32)

    def emit(x: Atom) -> list[Atom]:
        n = x.type.shape[0]
        count = views.iota(shape=(n, 1), axis=0, dtype=I32)
        return [
            slicing.concatenate(x, x, axis=0),
            slicing.pad(x, 0.0, config=((0, 1, 0),)),
            dynamic_slices.dynamic_slice(x, zero, sizes=(n,)),
            take(x, count, "clip"),
        ]

    compiled = lowered(emit, x)
    from_kernels = sources(compiled)
    assert not any("convert_f32" in s for s in from_kernels if "pad" not in s)
    check_bits(emit, x, bits)


def check_bits(emit: Callable[..., Any], x: Array, bits: Array) -> None:
    from_compiled = _outputs(emit, x)
    wanted = [np.concatenate([bits, bits]), np.append(bits, np.uint16(0)), bits, bits]
    for have, want in zip(from_compiled, wanted, strict=True):
        np.testing.assert_array_equal(have.view(np.uint16), want)


def _outputs(emit: Callable[..., Any], *inputs: Array) -> list[Array]:
    return run_compiled(lowered(emit, *inputs), inputs)


# Padding and the kernels' looks.


@pytest.mark.parametrize(
    "config",
    [
        ((0, 0, 0), (0, 0, 0)),
        ((2, 1, 0), (0, 3, 0)),
        ((-1, 2, 0), (1, -2, 0)),
        ((1, 0, 2), (-2, 0, 1)),
        ((-3, -1, 0), (0, 0, 0)),
        ((-5, 6, 1), (4, -7, 0)),
    ],
)
def test_padding(config: Any) -> None:
    def emit(x: Atom, value: Atom) -> list[Atom]:
        return [
            slicing.pad(x, value, config=config),
            slicing.pad(x, 0.5, config=config),
        ]

    checked(emit, floats(4, 3), np.array(-2.0, np.float32))


def test_padding_touches_each_element_once() -> None:
    compiled = lowered(
        lambda x: slicing.pad(x, 0.0, config=((1, 1, 0), (1, 1, 0))), floats(6, 7)
    )
    assert [step.items for step in compiled.plan.steps] == [9, 9, 6, 6, 6]


def test_a_gather_reads_like_other_kernels() -> None:
    x, i = floats(4, 3), column(0, 2)
    (source,) = sources(lowered(lambda x, i: take(x, i, "clip"), x, i))
    body = [line.strip() for line in source.splitlines()]
    assert "b_index = convert_i32_i64(b)" in body
    assert "b_index_clamped = clamp_i64(b_index, i64(0), last_0)" in body
    assert any(
        line.startswith("a = a_in[") and "b_index_clamped" in line for line in body
    )


def test_literal_operands_of_rank_0() -> None:
    half = Literal(0.5, F32)

    def emit(x: Atom) -> list[Atom]:
        none = Windows((), (), (), ((), ())).params()
        empty = views.broadcast_literal(0, ArrayType((0,), I32))
        return [
            dynamic_slices.dynamic_slice(half, sizes=()),
            dynamic_slices.dynamic_update_slice(half, e.neg(x)),
            dynamic_slices.dynamic_update_slice(x, half),
            slicing.pad(half, 0.0, config=()),
            indexing.gather(x, empty, sizes=(), mode="clip", fill_value=None, **none),
            indexing.scatter_add(
                x, empty, half, mode="drop", unique_indices=False, **none
            ),
        ]

    checked(emit, np.array(2.0, np.float32))
