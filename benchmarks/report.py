"""The tables, and the same numbers as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.processes import Start
from benchmarks.throughput import Throughput
from benchmarks.timing import Timing

Starts = dict[str, dict[str, Start]]


def header(console: Console, facts: dict[str, str], command: str) -> None:
    """The machine, the versions and the command."""
    table = Table.grid(padding=(0, 2))
    for name, value in (facts | {"command": command}).items():
        table.add_row(f"[dim]{name}[/]", value)
    console.print(table)


def overhead_table(row: Throughput) -> Table:
    """Time of a call whose work is negligible."""
    table = Table(title="Call overhead: jitted f(x, y) on 4 elements, f32")
    for name in ("", "median", "quartiles", "against arrayfn"):
        table.add_column(name, justify="left" if not name else "right")
    ours = row.times.get("arrayfn")
    for name, timing in row.times.items():
        ratio = _ratio(timing.median / ours.median) if ours else ""
        quartiles = f"{_time(timing.low)} to {_time(timing.high)}"
        table.add_row(name, _time(timing.median), quartiles, ratio)
    return table


def throughput_table(rows: Iterable[Throughput]) -> Table:
    """The ratio is JAX's time over arrayfn's: above 1 where arrayfn is faster."""
    table = Table(title="Speed of a call (medians)", caption=throughput_table.__doc__)
    table.add_column("case")
    names = ("arrayfn", "jax", "jax / arrayfn", "numpy", "others")
    for name in (*names, "GB/s", "copy GB/s", "1 = 2 threads"):
        table.add_column(name, justify="right")
    for row in rows:
        ours, jax = row.times.get("arrayfn"), row.times.get("jax")
        extra = [
            f"{name} {_time(timing.median)}"
            for name, timing in row.times.items()
            if name not in ("arrayfn", "jax", "numpy")
        ]
        streams = row.copy and (ours or jax)
        table.add_row(
            row.case,
            _median(ours),
            _median(jax),
            _ratio(jax.median / ours.median) if ours and jax else "",
            _median(row.times.get("numpy")),
            ", ".join(extra),
            f"{row.nbytes / streams.median / 1e9:.1f}" if streams else "",
            f"{row.copy / 1e9:.1f}" if row.copy else "",
            {True: "same bits", False: "[red]differ[/]", None: ""}[row.same_bits],
        )
    return table


def start_table(starts: Starts) -> Table:
    """Tracing and compiling without the run, in fresh processes; arrayfn, then JAX."""
    table = Table(title="First calls and memory", caption=start_table.__doc__)
    table.add_column("case")
    fields = ("cold", "warm", "new_shape", "cold_total", "warm_total")
    for name in (*fields, "peak RSS", "growth of a call"):
        title = name.replace("_total", " with imports").replace("_", " ")
        table.add_column(title, justify="right")
    table.add_column("compiled when warm", justify="right")
    for case, by_engine in starts.items():
        values = list(by_engine.values())
        ours = by_engine.get("arrayfn")
        table.add_row(
            case,
            *(
                " / ".join(_time(getattr(start, field)) for start in values)
                for field in fields
            ),
            *(
                " / ".join(f"{getattr(start, field) / 2**20:.0f}" for start in values)
                + " MiB"
                for field in ("peak", "growth")
            ),
            str(ours.compiled_warm) if ours else "",
        )
    return table


def summary(console: Console, rows: Sequence[Throughput]) -> None:
    """Where arrayfn is slower than JAX, and the geometric mean of the ratios."""
    ratios = {
        row.case: row.times["jax"].median / row.times["arrayfn"].median
        for row in rows
        if {"arrayfn", "jax"} <= row.times.keys()
    }
    if not ratios:
        return
    mean = math.exp(sum(map(math.log, ratios.values())) / len(ratios))
    slower = {case: ratio for case, ratio in ratios.items() if ratio < 1.0}
    console.print(
        f"{len(ratios)} cases, geometric mean of jax / arrayfn {mean:.2f}; "
        f"{len(slower)} below 1.0"
    )
    for case, ratio in sorted(slower.items(), key=lambda item: item[1]):
        console.print(f"  {ratio:.2f}  {case}", style="red")


def record(
    facts: dict[str, str],
    command: str,
    overhead: Throughput | None,
    rows: Sequence[Throughput],
    starts: Starts,
) -> dict[str, Any]:
    """Everything that was measured, ready for JSON."""
    return {
        "command": command,
        "machine": facts,
        "overhead": asdict(overhead) if overhead else None,
        "throughput": [asdict(row) for row in rows],
        "starts": {
            case: {name: asdict(start) for name, start in by_engine.items()}
            for case, by_engine in starts.items()
        },
    }


def _median(timing: Timing | None) -> str:
    return _time(timing.median) if timing else ""


def _time(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(seconds) >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def _ratio(value: float) -> str:
    colour = "green" if value >= 1.0 else "red"
    return f"[{colour}]{value:.2f}[/]"
