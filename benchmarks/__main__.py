"""Command line of the benchmarks; ``python -m benchmarks --help``."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path

from rich.console import Console

from benchmarks import machine, processes, report, throughput
from benchmarks.cases import CASES, GROUPS, Case
from benchmarks.engines import ENGINES, Engine, load


def arguments() -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Compare arrayfn with JAX in one run. Takes about three minutes.",
    )
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=", ".join(GROUPS))
    parser.add_argument("--json", type=Path, metavar="FILE", help="store the numbers")
    parser.add_argument("--text", type=Path, metavar="FILE", help="store the tables")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each case (1)")
    parser.add_argument(
        "--repeats", type=int, default=1, help="fresh processes a case and engine (1)"
    )
    parser.add_argument(
        "--only", choices=("speed", "starts"), help="leave out the other half"
    )
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    chosen = parser.parse_args()
    if unknown := set(chosen.groups) - set(GROUPS):
        parser.error(f"no group {', '.join(sorted(unknown))}; there are {list(GROUPS)}")
    return chosen


def installed(names: list[str], console: Console) -> dict[str, Engine]:
    """The engines that can be imported; says which cannot."""
    engines = {}
    for name in names:
        try:
            engines[name] = load(name)
        except ImportError as error:
            console.print(f"without {name}: {error}", style="yellow")
    return engines


def main() -> int:
    """Measure, print, store. Returns 1 if some case failed."""
    chosen = arguments()
    command = shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]])
    console = Console(record=True, width=None if sys.stdout.isatty() else 190)
    facts = machine.describe()
    report.header(console, facts, command)
    engines = installed(chosen.engines, console)
    cases = [case for case in CASES if not chosen.groups or case.group in chosen.groups]

    overhead, rows, failures = None, [], 0
    if chosen.only != "starts":
        if not chosen.groups or "overhead" in chosen.groups:
            overhead = throughput.measure_overhead(engines, chosen.seconds)
            console.print(report.overhead_table(overhead))
        for case in cases:
            console.print(f"[dim]{case.name}[/]")
            try:
                rows.append(throughput.measure(case, engines, chosen.seconds))
            except Exception as error:  # noqa: BLE001 (the other cases still count)
                failures += 1
                console.print(
                    f"{case.name}: {type(error).__name__}: {error}", style="red"
                )
        console.print(report.throughput_table(rows))
        report.summary(console, rows)

    starts: report.Starts = {}
    if chosen.only != "speed":
        compilers = [name for name in engines if name != "numpy"]
        for case in startup_cases(cases):
            console.print(f"[dim]{case.name}: fresh processes[/]")
            try:
                starts[case.name] = processes.measure(case, compilers, chosen.repeats)
            except RuntimeError as error:
                failures += 1
                console.print(str(error), style="red", markup=False)
        console.print(report.start_table(starts))

    if chosen.json:
        numbers = report.record(facts, command, overhead, rows, starts)
        chosen.json.write_text(json.dumps(numbers, indent=1) + "\n")
    if chosen.text:
        console.save_text(str(chosen.text))
    return 1 if failures else 0


def startup_cases(cases: list[Case]) -> list[Case]:
    """Those that are also measured in fresh processes: one or two a group."""
    return [case for case in cases if case.startup]


if __name__ == "__main__":
    sys.exit(main())
