"""The command line: ``python -m arrayfn COMMAND``, or ``arrayfn COMMAND``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from arrayfn.errors import BackendError
from arrayfn.tools import launch


def parser() -> argparse.ArgumentParser:
    """The commands and their options."""
    top = argparse.ArgumentParser(
        prog="arrayfn", description="Compile pure functions of arrays."
    )
    commands = top.add_subparsers(dest="command", required=True)
    demo = commands.add_parser(
        "demo",
        help="train a digit classifier and show what was compiled",
        description="Train a classifier of handwritten digits, then show its Program, "
        "one of its kernels, and its speed beside NumPy's.",
    )
    demo.add_argument(
        "--device", default="cpu", help="cpu (default), cuda or reference"
    )
    demo.add_argument(
        "--epochs", type=int, default=30, help="passes over the data (30)"
    )
    demo.add_argument(
        "--plot",
        type=Path,
        default=Path("loss.png"),
        metavar="FILE",
        help="where to write the loss curve (loss.png)",
    )
    commands.add_parser(
        "coverage",
        help="count primitives, their rules, and public names",
        description="Each primitive with its rules and kernels, and the public names "
        "beside the array API standard's and JAX's, with reasons for missing ones.",
    )
    several = commands.add_parser(
        "launch",
        help="run a script in several processes, each of them a device",
        description="Run a Python script in several processes through MPI. The script "
        "calls arrayfn.distributed.initialize().",
    )
    several.add_argument("-n", type=int, required=True, help="how many processes")
    several.add_argument(
        "script", nargs=argparse.REMAINDER, help="the script and its arguments"
    )
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit status."""
    chosen = parser().parse_args(arguments)
    if chosen.command == "coverage":
        # It imports all of arrayfn, which the other commands need not wait for.
        from arrayfn.tools import coverage

        return coverage.run()
    if chosen.command == "launch":
        try:
            return launch.run(chosen.n, chosen.script)
        except BackendError as error:
            print(f"arrayfn launch: {error}", file=sys.stderr)
            return 2
    try:
        # Its libraries are an extra, without which other commands still work.
        from arrayfn.tools import demo
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("arrayfn"):
            raise
        print(
            f"arrayfn demo needs {error.name}: pip install 'arrayfn[demo]'",
            file=sys.stderr,
        )
        return 2
    try:
        return demo.run(chosen.device, chosen.epochs, chosen.plot)
    except BackendError as error:
        print(f"arrayfn demo: {error}", file=sys.stderr)
        return 2
