"""The command line: ``python -m arrayfn COMMAND``, or ``arrayfn COMMAND``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import arrayfn
from arrayfn.errors import ArrayfnError
from arrayfn.tools import commands

_TARGET: Final = (
    "The function is named as module:function or file.py:function. Its arguments are "
    "given by their types, as f32[128,64], and filled with random numbers, or are "
    "numbers."
)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line, with all commands and options."""
    top = argparse.ArgumentParser(
        prog="arrayfn", description="Compile pure functions of arrays."
    )
    top.add_argument(
        "--version", action="version", version=f"arrayfn {arrayfn.__version__}"
    )
    names = top.add_subparsers(dest="command")
    names.add_parser(
        "info",
        help="versions, backends and what they lack, threads, the disk cache",
        description="What to say in a report of a fault: versions, backends and what "
        "they lack, the processor and threads, the disk cache.",
    )
    cache = names.add_parser(
        "cache",
        help="list, measure or clear the disk cache of compiled kernels",
        description="The disk cache of compiled kernels ($ARRAYFN_CACHE_DIR).",
    )
    cache.add_argument("action", choices=("list", "size", "clear"))
    for name, text in (
        ("explain", "what a function is compiled to, and why"),
        ("compare", "accuracy and speed of a function on every backend"),
        ("bisect", "the first equation that is wrong or gives NaN"),
    ):
        command = names.add_parser(
            name, help=text, description=f"Print {text}. {_TARGET}"
        )
        command.add_argument("function", metavar="FUNCTION")
        command.add_argument("arguments", nargs="*", metavar="TYPE")
        command.add_argument(
            "--grad", action="store_true", help="take the gradient of the function"
        )
        if name == "explain":
            command.add_argument("--device", help="cpu (default), cuda or reference")
            command.add_argument(
                "--html", type=Path, metavar="FILE", help="write a page"
            )
        if name == "bisect":
            command.add_argument("--device", default="cpu", help="what is judged (cpu)")
        command.add_argument(
            "--zeros",
            action="store_true",
            help="fill arrays with zeros instead of random numbers",
        )
    profile = names.add_parser(
        "profile",
        help="where the time of a script's compiled functions goes",
        description="Run a script, and print where the time of its compiled functions "
        "went. Options of this command stand before the script.",
    )
    profile.add_argument(
        "--save",
        type=Path,
        metavar="FILE",
        help="write a page (.html) or a trace (.json)",
    )
    profile.add_argument("script", type=Path)
    profile.add_argument("rest", nargs=argparse.REMAINDER, metavar="ARGUMENT")
    names.add_parser(
        "coverage",
        help="count primitives, their rules, public names and parameters",
        description="Each primitive with its rules and kernels, the names beside "
        "the array API standard's and JAX's, and the parameters of functions beside "
        "NumPy's, SciPy's and JAX's, with reasons for missing ones.",
    )
    demo = names.add_parser(
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
    several = names.add_parser(
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
    """Run the command that ``arguments`` (by default ``sys.argv[1:]``) name.

    Returns the exit status: 2, after a message, for an ArrayfnError.
    """
    top = parser()
    chosen = top.parse_args(arguments)
    if chosen.command is None:
        top.print_help()
        return 0
    try:
        status = commands.COMMANDS[chosen.command](chosen)
        sys.stdout.flush()
        return status
    except ArrayfnError as error:
        print(f"arrayfn {chosen.command}: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader of a pipe, such as ``head``, has closed it. At exit the interpreter
        # flushes standard output again, which must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
