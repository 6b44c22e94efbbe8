"""Plans for machines of 1 to 64 cores: numbers of work items, and the same bits."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import lax
from arrayfn.backends.cpu import runtime
from arrayfn.lowering.cpu import machine
from arrayfn.lowering.gemm_tiles import gemm_tiles
from arrayfn.lowering.plan import kernel_calls

CORES = (1, 2, 7, 16, 64)


@pytest.fixture(autouse=True)
def threads() -> Any:
    before = af.get_num_threads()
    yield
    af.set_num_threads(before)


def on_machines(
    function: Callable[..., Any], arguments: tuple[Any, ...], mp: pytest.MonkeyPatch
) -> list[dict[str, int]]:
    """The items of each kernel on each machine; asserts that all give the same bits."""
    found: list[dict[str, int]] = []
    results: set[bytes] = set()
    for cores in CORES:
        mp.setattr(machine, "cores", lambda cores=cores: cores)
        # A new function each time: plans are kept for one.
        lowered = af.jit(functools.partial(function)).lower(*arguments)
        items: dict[str, int] = {}
        for call in kernel_calls(lowered.plan.steps):
            items[call.kernel] = items.get(call.kernel, 0) + call.items
        found.append(items)
        compiled = lowered.compile()
        for count in (1, min(cores, 5)):
            af.set_num_threads(count)
            leaves = af.tree.leaves(compiled(*arguments))
            results.add(b"".join(np.asarray(x).tobytes() for x in leaves))
    assert len(results) == 1
    return found


def draw(*shape: int, dtype: str = "f4") -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


def special(count: int, dtype: str) -> Any:
    """Numbers with both zeros, infinities and NaNs of either sign among them."""
    x = draw(count, dtype=dtype)
    for k, value in enumerate((0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan)):
        x[k :: 97 + k] = value
    return x


@pytest.mark.parametrize("dtype", ["f4", "f8", "i4", "u8"])
def test_a_long_row_is_sorted_in_as_many_chunks_as_there_are_cores(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 64 * 32768 + 5
    x = special(count, dtype) if dtype[0] == "f" else draw(count) * 1e6
    x = x.astype(dtype)
    found = on_machines(anp.sort, (x,), monkeypatch)
    chunks = [next(n for name, n in items.items() if "sort" in name) for items in found]
    assert chunks == [1, 2, 8, 16, 64]
    np.testing.assert_array_equal(af.jit(anp.sort)(x), np.sort(x))


def test_chunks_of_a_sort_are_not_short(monkeypatch: pytest.MonkeyPatch) -> None:
    x = special(70_000, "f4")
    found = on_machines(anp.argsort, (x,), monkeypatch)
    assert [items["argsort_packed_f32"] for items in found] == [1, 2, 2, 2, 2]
    expected = np.argsort(x, kind="stable")
    np.testing.assert_array_equal(af.jit(anp.argsort)(x), expected)


def test_rows_are_cut_only_where_they_are_fewer_than_the_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = on_machines(anp.sort, (draw(5, 1 << 18),), monkeypatch)
    assert [items["sort_codes_f32"] for items in found] == [5, 5, 10, 20, 40]


def column_softmax(x: Any) -> Any:
    p = anp.exp(x - anp.max(x, axis=0))
    return p / anp.sum(p, axis=0)


@pytest.mark.parametrize(
    ("function", "width", "expected"),
    [
        (column_softmax, 1000, [2, 2, 8, 16, 16]),
        (functools.partial(anp.cumsum, axis=0), 1024, [2, 2, 8, 16, 16]),
        (functools.partial(anp.cumsum, axis=0), 100, [1, 2, 2, 2, 2]),
    ],
)
def test_columns_are_shared_out_to_all_cores(
    function: Callable[..., Any],
    width: int,
    expected: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = on_machines(function, (draw(3000, width),), monkeypatch)
    assert [items["columns_0"] for items in found] == expected


def test_small_columns_stay_together(monkeypatch: pytest.MonkeyPatch) -> None:
    found = on_machines(column_softmax, (draw(3, 1024),), monkeypatch)
    assert [items["columns_0"] for items in found] == [2] * 5


def test_rows_and_elements_have_items_for_every_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = draw(512, 1000)
    for function, kernel, items in (
        (lambda x: anp.exp(x) * 2, "elementwise_0", 512_000),
        (lambda x: anp.sum(anp.exp(x), axis=1), "rows_0", 512),
        (anp.sum, "partial_0", 32),
    ):
        found = on_machines(function, (x,), monkeypatch)
        assert [each[kernel] for each in found] == [items] * 5


@pytest.mark.parametrize("n", [1, 256, 1024])
def test_tiles_of_a_product_follow_from_its_shape(
    n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = on_machines(anp.matmul, (draw(n, 300), draw(300, n)), monkeypatch)
    assert len({items["gemm_f32"] for items in found if "gemm_f32" in items}) < 2


@pytest.mark.parametrize(
    ("shape", "tiles"),
    [
        ((64, 64, 64), 1),
        ((128, 128, 128), 2),
        ((256, 256, 256), 4),
        ((512, 512, 512), 16),
        ((1024, 1024, 1024), 16),
        ((256, 1024, 1024), 16),
        ((512, 1024, 1024), 16),
        ((2048, 2048, 2048), 16),
        ((4096, 4096, 4096), 64),
        ((25088, 64, 64), 63),
        ((1, 1024, 1024), 2),
        ((1, 4096, 4096), 8),
        ((4, 1024, 1024), 8),
        ((8, 1024, 1024), 16),
        ((5, 0, 3), 0),
    ],
)
def test_large_products_have_tiles_for_many_cores(
    shape: tuple[int, int, int], tiles: int
) -> None:
    assert gemm_tiles(*shape, 1, np.dtype(np.float32)).items == tiles


def test_problems_of_a_batch_are_cut_where_they_are_few() -> None:
    dtype = np.dtype(np.float32)
    assert gemm_tiles(512, 512, 512, 4, dtype).items == 64
    assert gemm_tiles(512, 512, 512, 64, dtype).items == 64


def test_windows_have_the_same_items_on_every_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, w = draw(2, 14, 14, 64), draw(3, 3, 64, 32)
    layouts = "NHWC", "HWIO", "NHWC"

    def loss(x: Any, w: Any) -> Any:
        y = lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=layouts)
        return anp.sum(anp.tanh(y))

    found = on_machines(af.grad(loss, argnums=(0, 1)), (x, w), monkeypatch)
    windows = {k: n for k, n in found[0].items() if "window" in k}
    by_stem = {k.replace("_packed", ""): n for k, n in windows.items()}
    assert by_stem == {"windows_f32": 11, "window_sums_f32": 3}
    assert all({**windows, **items} == items for items in found)


def test_a_bundle_is_planned_for_the_machine_that_loads_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    x = special(1 << 20, "f4")
    monkeypatch.setattr(machine, "cores", lambda: 2)
    lowered = af.jit(lambda x: anp.sort(x) * 2).lower(x)
    af.save(lowered, tmp_path)
    results = {lowered.compile()(x).tobytes()}
    for cores in CORES:
        monkeypatch.setattr(machine, "cores", lambda cores=cores: cores)
        loaded = af.load(tmp_path)
        (sort,) = (
            step
            for step in kernel_calls(loaded.compiled[0].compiled.plan.steps)
            if step.kernel == "sort_codes_f32"
        )
        assert sort.items == min(32, 1 << (cores - 1).bit_length())
        results.add(loaded(x).tobytes())
    assert len(results) == 1


def test_the_cores_are_those_that_the_process_may_use() -> None:
    machine.cores.cache_clear()
    assert machine.cores() == runtime.get_num_threads()


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"a/b/cpu.max": "250000 100000", "a/cpu.max": "max 100000"}, [2.5]),
        ({"a/b/cpu.max": "max 100000", "a/cpu.max": "150000 100000"}, [1.5]),
        ({"cpu.max": "400000 100000"}, [4.0]),
        (
            {
                "cpu/cpu.cfs_quota_us": "300000",
                "cpu/cpu.cfs_period_us": "100000",
                "cpu/a/cpu.cfs_quota_us": "-1",
                "cpu/a/cpu.cfs_period_us": "100000",
            },
            [3.0],
        ),
        ({}, []),
    ],
)
def test_a_cgroup_may_give_less_time(
    files: dict[str, str], expected: list[float], tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    assert list(machine._quotas("/a/b", tmp_path)) == expected
