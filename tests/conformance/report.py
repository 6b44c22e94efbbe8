"""Counts results by file, and the reasons of what failed or was left out."""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

JAX_FILES: Final = (
    "lax_numpy_test",
    "lax_numpy_indexing_test",
    "lax_numpy_reducers_test",
    "lax_numpy_operators_test",
    "lax_numpy_einsum_test",
    "lax_numpy_vectorize_test",
    "lax_numpy_ufuncs_test",
    "lax_numpy_setops_test",
    "lax_test",
    "lax_autodiff_test",
    "lax_vmap_test",
    "lax_vmap_op_test",
    "lax_control_flow_test",
    "random_test",
    "random_lax_test",
    "nn_test",
    "linalg_test",
    "fft_test",
    "lax_scipy_test",
    "lax_scipy_special_functions_test",
    "lax_scipy_sparse_test",
    "scipy_fft_test",
    "scipy_interpolate_test",
    "scipy_ndimage_test",
    "scipy_optimize_test",
    "scipy_signal_test",
    "scipy_spatial_test",
    "scipy_stats_test",
    "tree_util_test",
    "api_test",
    "custom_api_test",
    "batching_test",
    "custom_root_test",
    "custom_linear_solve_test",
    "python_callback_test",
    "debug_nans_test",
    "debugging_primitives_test",
    "jet_test",
    "checkify_test",
    "ode_test",
    "stax_test",
    "optimizers_test",
    "image_test",
    "mutable_array_test",
    "shard_map_test",
    "dtypes_test",
    "polynomial_test",
)


PLUGINS: Final = {
    "scipy": "scipy",
    "einops": "einops.tests",
    "array_api_extra": "array_api_extra.tests.main",
}
"""Suites that pytest runs with a plugin, and the packages of their tests."""

SCIPY_PACKAGES: Final = (
    "_lib",
    "cluster",
    "constants",
    "differentiate",
    "fft",
    "integrate",
    "interpolate",
    "linalg",
    "ndimage",
    "optimize",
    "signal",
    "spatial",
    "special",
    "stats",
)


@cache
def _reasons() -> list[tuple[str, re.Pattern[str], re.Pattern[str]]]:
    text = Path(__file__).with_name("reasons.toml").read_text()
    return [
        (
            reason,
            re.compile(each.get("test", ""), re.VERBOSE),
            re.compile(each["message"], re.DOTALL),
        )
        for reason, rows in tomllib.loads(text).items()
        for each in rows
    ]


def reason_of(file: str, record: dict[str, Any]) -> str | None:
    """Why a test does not apply to arrayfn; None for a fault."""
    name = f"{file}:{record['test']}"
    text = f"{record.get('type', '')}: {record.get('message', '')}"
    for reason, test, message in _reasons():
        if test.search(name) and message.search(text):
            return reason
    return None


def results(out: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The last record of each test, with its file."""
    for path in sorted(out.glob("*.jsonl")):
        last: dict[str, dict[str, Any]] = {}
        for line in path.read_text().splitlines():
            record = json.loads(line)
            last[record["test"]] = record
        for record in last.values():
            if record["status"] != "started":
                yield path.stem, record


def print_report(out: Path) -> None:
    """A table of counts by file, and the reasons by count."""
    counts: dict[str, Counter[str]] = {}
    reasons: Counter[str] = Counter()
    for file, record in results(out):
        status = record["status"]
        if status == "failed":
            reason = reason_of(file, record)
            if reason is not None:
                reasons[reason] += 1
                status = "differs"
        counts.setdefault(file, Counter())[status] += 1
    columns = ("passed", "failed", "differs", "absent", "skipped")
    print("| file | " + " | ".join(columns) + " | passed of those that apply |")
    print("|---" * (len(columns) + 2) + "|")
    total: Counter[str] = Counter()
    for file, count in counts.items():
        total += count
        print(_row(file, count, columns))
    print(_row("all", total, columns))
    for reason, count in reasons.most_common():
        print(f"{count:5d}  {reason}")


def _row(file: str, count: Counter[str], columns: tuple[str, ...]) -> str:
    apply = count["passed"] + count["failed"]
    share = f"{100 * count['passed'] / apply:.1f} %" if apply else ""
    cells = " | ".join(str(count[each]) for each in columns)
    return f"| {file} | {cells} | {share} |"
