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
    assert [items["argsort_f32"] for items in found] == [1, 2, 2, 2, 2]
    expected = np.argsort(x, kind="stable")
    np.testing.assert_array_equal(af.jit(anp.argsort)(x), expected)


def test_rows_are_cut_only_where_they_are_fewer_than_the_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = on_machines(anp.sort, (draw(5, 1 << 18),), monkeypatch)
    assert [items["sort_codes_f32"] for items in found] == [5, 5, 10, 20, 40]


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
        ((256, 256, 256), 2),
        ((512, 512, 512), 8),
        ((1024, 1024, 1024), 16),
        ((256, 1024, 1024), 8),
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
    assert gemm_tiles(512, 512, 512, 4, dtype).items == 32
    assert gemm_tiles(512, 512, 512, 64, dtype).items == 64


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
